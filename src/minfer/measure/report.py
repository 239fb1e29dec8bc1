"""Rows of `minfer bench` as Markdown, CSV, JSON, JSON Lines and SQL, in llama-bench's own order.

Each writer gives text piece by piece, so that a row is on the screen when it has been measured, and
an interrupted run has left whole rows.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minfer.measure.cases import Result, Setup
from minfer.measure.machine import commit

_ABSENT: dict[str, Any] = {
    "cpu_mask": "0x0",
    "cpu_strict": False,
    "poll": 50,
    "n_cpu_moe": 0,
    "split_mode": "none",
    "main_gpu": 0,
    "no_kv_offload": False,
    "flash_attn": 1,
    "devices": "auto",
    "tensor_split": "0.00",
    "tensor_buft_overrides": "none",
    "use_mmap": True,
    "use_direct_io": False,
    "embeddings": False,
    "no_op_offload": 0,
    "no_host": False,
    "repack": True,
    "fit_target": 0,
    "fit_min_ctx": 0,
}
"""llama-bench's fields that minfer has no switch for, with what holds for minfer."""

FIELDS = (
    "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size "
    "model_n_params n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers "
    "n_cpu_moe split_mode main_gpu no_kv_offload flash_attn devices tensor_split "
    "tensor_buft_overrides use_mmap use_direct_io embeddings no_op_offload no_host repack "
    "fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts"
).split()
"""Fields of a row in llama-bench's order. Figures of the floor follow them where asked for."""


def record(result: Result) -> dict[str, Any]:
    """A row as llama-bench's JSON has it, without the samples."""
    ns = list(result.samples_ns)
    layers = result.setup.gpu_layers
    on_gpu = "CUDA" in result.facts.backends
    known: dict[str, Any] = {
        "build_commit": commit(),
        "build_number": 0,
        "cpu_info": result.facts.cpu_info,
        "gpu_info": result.facts.gpu_info,
        "backends": result.facts.backends,
        "model_filename": result.facts.filename,
        "model_type": result.facts.model_type,
        "model_size": result.facts.model_size,
        "model_n_params": result.facts.n_params,
        "n_batch": result.setup.n_batch,
        "n_ubatch": result.setup.n_ubatch,
        "n_threads": result.facts.n_threads,
        "type_k": result.setup.type_k,
        "type_v": result.setup.type_v,
        "n_gpu_layers": layers if layers is not None else on_gpu * (result.facts.n_layers + 1),
        "n_prompt": result.test.n_prompt,
        "n_gen": result.test.n_gen,
        "n_depth": result.test.n_depth,
        "test_time": result.began.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(statistics.fmean(ns)),
        "stddev_ns": round(statistics.stdev(ns)) if len(ns) > 1 else 0,
        "avg_ts": result.avg_ts,
        "stddev_ts": result.stddev_ts,
    }
    row = {name: known[name] if name in known else _ABSENT[name] for name in FIELDS}
    if result.floor_ts is not None:
        row["floor_ts"] = result.floor_ts
        row["floor_share"] = result.avg_ts / result.floor_ts
        row["floor_bound"] = result.bound
    return row


def csv_rows(results: Iterable[Result]) -> Iterator[str]:
    """A header, then a line a row with every cell quoted."""
    first = True
    for result in results:
        row = record(result)
        if first:
            yield ",".join(row) + "\n"
            first = False
        cells = (_text(v).replace('"', '""') for v in row.values())
        yield ",".join(f'"{cell}"' for cell in cells) + "\n"


def sql_rows(results: Iterable[Result]) -> Iterator[str]:
    """A table, then an INSERT a row; every value is a string, which the columns' types convert."""
    first = True
    for result in results:
        row = record(result)
        if first:
            columns = ",\n".join(f"  {name} {_SQL_TYPES[type(v)]}" for name, v in row.items())
            yield f"CREATE TABLE IF NOT EXISTS llama_bench (\n{columns}\n);\n\n"
            first = False
        values = ", ".join("'" + _text(v).replace("'", "''") + "'" for v in row.values())
        yield f"INSERT INTO llama_bench ({', '.join(row)}) VALUES ({values});\n"


_SQL_TYPES = {str: "TEXT", int: "INTEGER", bool: "INTEGER", float: "REAL"}


def _text(value: str | int | float) -> str:
    """A value in CSV and SQL: yes and no are 1 and 0, fractions have six digits."""
    if isinstance(value, float):
        return f"{value:.6f}"
    return str(int(value)) if isinstance(value, bool) else str(value)


def jsonl_rows(results: Iterable[Result]) -> Iterator[str]:
    """An object a line."""
    for result in results:
        yield json.dumps(_with_samples(result), ensure_ascii=False) + "\n"


def json_rows(results: Iterable[Result]) -> Iterator[str]:
    """One array; it is closed also when measuring is interrupted."""
    end = "[\n]\n"
    try:
        for result in results:
            text = json.dumps(_with_samples(result), ensure_ascii=False, indent=2)
            yield "[\n" if end.startswith("[") else ",\n"
            yield "\n".join("  " + line for line in text.splitlines())
            end = "\n]\n"
    except BaseException as error:
        if not isinstance(error, GeneratorExit):  # then nobody reads any more
            yield end
        raise
    yield end


def _with_samples(result: Result) -> dict[str, Any]:
    samples = {"samples_ns": list(result.samples_ns), "samples_ts": result.samples_ts}
    return record(result) | samples


@dataclass(frozen=True)
class _Column:
    """A column of the Markdown table: its title, its width, and which way cells lean."""

    title: str
    width: int
    left: bool = False

    def cell(self, text: str) -> str:
        return text.ljust(self.width) if self.left else text.rjust(self.width)

    @property
    def rule(self) -> str:
        return "-" * self.width if self.left else "-" * (self.width - 1) + ":"


_COLUMNS: dict[str, _Column] = {
    "model": _Column("model", 30, left=True),
    "size": _Column("size", 10),
    "params": _Column("params", 10),
    "backends": _Column("backend", 10, left=True),
    "n_gpu_layers": _Column("ngl", 3),
    "n_threads": _Column("threads", 7),
    "n_batch": _Column("n_batch", 7),
    "n_ubatch": _Column("n_ubatch", 8),
    "type_k": _Column("type_k", 6),
    "type_v": _Column("type_v", 6),
    "test": _Column("test", 15),
    "t/s": _Column("t/s", 20),
    "floor": _Column("floor t/s", 10),
    "share": _Column("of floor", 8),
    "bound": _Column("bound by", 8, left=True),
}


def columns(setups: Sequence[Setup], on_gpu: bool, floor: bool) -> list[str]:
    """The columns of the Markdown table: those that tell rows apart or differ from the default."""
    default = Setup("")
    found = ["model", "size", "params", "backends"]
    if on_gpu:
        found.append("n_gpu_layers")
    for name in ("n_threads", "n_batch", "n_ubatch", "type_k", "type_v"):
        values = {getattr(s, name) for s in setups}
        shown = name == "n_threads" and not on_gpu
        if shown or len(values) > 1 or values != {getattr(default, name)}:
            found.append(name)
    return [*found, "test", "t/s"] + ["floor", "share", "bound"] * floor


def markdown(results: Iterable[Result], setups: Sequence[Setup], floor: bool) -> Iterator[str]:
    """llama-bench's table, then the build."""
    shown: list[str] = []
    for result in results:
        if not shown:
            shown = columns(setups, "CUDA" in result.facts.backends, floor)
            yield _line(shown, [_COLUMNS[name].title for name in shown])
            yield "| " + " | ".join(_COLUMNS[name].rule for name in shown) + " |\n"
        cells = _cells(result)
        yield _line(shown, [cells[name] for name in shown])
    from minfer import __version__

    yield f"\nbuild: minfer {__version__}" + (f" ({commit()})" if commit() else "") + "\n"


def _line(shown: Sequence[str], cells: Sequence[str]) -> str:
    padded = [_COLUMNS[name].cell(text) for name, text in zip(shown, cells, strict=True)]
    return "| " + " | ".join(padded) + " |\n"


def _cells(result: Result) -> Mapping[str, str]:
    row = {name: str(value) for name, value in record(result).items()}
    size, params = result.facts.model_size, result.facts.n_params
    row["model"] = result.facts.model_type
    row["size"] = f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
    row["params"] = f"{params / 1e9:.2f} B" if params >= 1e9 else f"{params / 1e6:.2f} M"
    row["test"] = result.test.name
    row["t/s"] = f"{result.avg_ts:.2f} ± {result.stddev_ts:.2f}"
    if result.floor_ts is not None:
        row["floor"] = f"{result.floor_ts:.2f}"
        row["share"] = f"{100 * result.avg_ts / result.floor_ts:.1f} %"
        row["bound"] = result.bound
    return row
