"""The page of the GPU's figures, from the rows in `bench/results`: nothing on it is typed by hand.

    python -m bench.figures > docs/gpu_figures.md

Of each work the newest row counts. A test keeps the page as fresh as the rows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from bench import results, synthetic
from bench.gpu import RIVALLED, SWITCHES, WORKS, Work
from bench.gpu_matmul import READ_GBS
from bench.synthetic import tensors
from minfer.settings import PREFIX

Row = Mapping[str, str]

PROTOTYPES = {
    "pp2048": "42,100",
    "tg128": "717-737",
    "tg64 x16": "9,700",
    "tg64 x32": "15,900",
    "tg64 x64": "24,000",
}
"""Of the 7B in Q4_K_M, what experiments before this project reached: the products alone (decode,
batches), or library products on cached f16 weights with stand-ins for the rest (prefill)."""

BEST = "qwen2-7b-q4_k_m"
OTHER_TESTS = ("pp512", "pp2048", "tg64 x16", "tg128")
READ_BYTES = READ_GBS * 1e9
TABLE, HEAD = "token_embd.weight", "output.weight"
SHOWN_STEPS = ("x1", "x16", "x64", "pp512")

INTRODUCTION = """\
Written by `python -m bench.figures` from `bench/results/gpu*.csv`; the last column is the commit.
One NVIDIA H200; models with real shapes and random weights. Every run checks the logits of tiny
models against Hugging Face's, and prefill against decode, before it times anything.

llama.cpp is that of October 2026 on the same card (`-ngl 99 -fa 1`). Floor: for decode the bytes of
the weights over memory bandwidth, for prefill cuBLAS products of halves alone. Prototype: earlier
experiments, with the products alone or with a library's. Work: `pp512` is a prompt of 512 tokens,
`tg128` 128 tokens one by one, `@ d8192` behind 8,192 others, `x16` in 16 sequences at once. Speeds
are medians, with the least and the most.
"""
TYPES = """\
Gate and up of a 7B layer, 37,888 rows of 3,584 weights: microseconds, and the share of the floor
(bytes over 4,530 GB/s, or operations over 990 TFLOP/s), for 1, 16, 64 rows and a prompt of 512.
"""
MEMORY = """\
Loading: from a file in the page cache to an engine that is ready. On the device: weights, KV cache,
arena and scratch after all work of a run, without what the driver takes for itself; beside it the
bound, which is the file, the KV cache, 10 % of the file and 500 MB. In MB.
"""
STARTS = """\
By `python -m bench.gpu_start`: a process from its beginning to the last of a few tokens after a
prompt, seconds. The first compiles its kernels, later ones find them. The driver's own start is
part of it.
"""
SPARE_SHARE, SPARE_BYTES = 0.1, 500e6
"""Beyond the file and the KV cache."""
TIME_LINES = """\
By `python -m bench.gpu_timeline`, under a profiler: a kernel has the time from the end of all that
came before to its own end, so the last column adds up to the step. The first time line there is of
a kind of step, and the newest.
"""
TYPE_ROWS = ("1", "16", "64", "512")


def rows_of(name: str) -> list[Row]:
    """All rows of a results file, oldest first."""
    path = results.FOLDER / f"{name}.csv"
    if not path.exists():  # nothing was measured yet
        return []
    with path.open(newline="") as file:
        return sorted(csv.DictReader(file), key=lambda row: row["date"])


def speeds(rows: Iterable[Row]) -> dict[tuple[str, str, str], Row]:
    """The newest rows with a speed, by model, test and switches."""
    found = [row for row in rows if row["tokens_per_second"] and not row["error"]]
    return {(row["model"], row["test"], row["switches"]): row for row in found}


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown, and an empty line."""
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for line in lines:
        yield "| " + " | ".join(line) + " |"
    yield ""


def number(text: str) -> str:
    """A figure for people: three digits at least, thousands apart."""
    if not text:
        return ""
    value = float(text)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(text: str) -> str:
    """A share of one."""
    return f"{100 * float(text):.0f} %" if text else ""


def times(text: str) -> str:
    """A ratio."""
    return f"{float(text):.2f} x" if text else ""


def rivalled(found: Mapping[tuple[str, str, str], Row], switches: str) -> Iterator[Sequence[str]]:
    """A line a work whose rival is known, or that has none but is of the same model."""
    for model in RIVALLED:
        for work in WORKS[model]:
            row = found.get((model, work.test, switches))
            if row is not None:
                yield _against(model, work, row)


def _against(model: str, work: Work, row: Row) -> Sequence[str]:
    return (
        model,
        work.test,
        f"{work.rival:,.0f}" if work.rival else "",
        f"**{number(row['tokens_per_second'])}** ({number(row['least'])}-{number(row['most'])})",
        times(row["x_llama_cpp"]),
        percent(row["share_of_floor"]),
        PROTOTYPES.get(work.test, "") if model == BEST else "",
        row["commit"],
    )


def switched(found: Mapping[tuple[str, str, str], Row]) -> Iterator[Sequence[str]]:
    """A line a switch and work that was measured against all of them off."""
    names = {f"{PREFIX}{name.upper()}=1" for name in SWITCHES}
    for (model, test, switches), row in sorted(found.items()):
        if row["x_unswitched"] and switches in names:
            value, ratio = number(row["tokens_per_second"]), times(row["x_unswitched"])
            yield (f"`{switches}`", f"{model} {test}", value, ratio, row["commit"])


def bytes_a_token(model: str) -> int:
    """Bytes of the weights that a decode step reads: all, but of a table that is no head a row."""
    listed = {t: dtype.nbytes(prod(dims)) for t, dtype, dims in tensors(synthetic.MODELS[model])}
    return sum(n for t, n in listed.items() if t != TABLE or HEAD not in listed)


def others(found: Mapping[tuple[str, str, str], Row]) -> Iterator[Sequence[str]]:
    """A line a model that has no rival's figures; decoding with its share of the floor by bytes."""
    for model in WORKS:
        rows = {test: found.get((model, test, "")) for test in OTHER_TESTS}
        if model in RIVALLED or not any(rows.values()):
            continue
        speeds = {
            test: number(row["tokens_per_second"]) if row else "" for test, row in rows.items()
        }
        decode = rows["tg128"]
        of_floor = ""
        if decode is not None:
            share = float(decode["tokens_per_second"]) * bytes_a_token(model) / READ_BYTES
            of_floor = percent(str(share))
        yield (model, *(speeds[test] for test in OTHER_TESTS), of_floor)


def memory(rows: Iterable[Row]) -> Iterator[Sequence[str]]:
    """A line a model and context: the newest loading, and what the device then held."""
    newest = {(r["model"], r["n_ctx"], r["test"]): r for r in rows if not r["switches"]}
    for model, n_ctx, test in sorted(newest, key=lambda key: (key[0], int(key[1] or 0))):
        loaded = newest.get((model, n_ctx, "load"))
        if test != "memory" or loaded is None:
            continue
        row = newest[model, n_ctx, test]
        held, cache, file = (int(row[f"{of}_bytes"]) for of in ("device", "kv", "file"))
        allowed = (1 + SPARE_SHARE) * file + cache + SPARE_BYTES
        seconds = f"{float(loaded['load_seconds']):.2f} s"
        sizes = (f"{x / 1e6:,.0f}" for x in (file, cache, held, allowed))
        yield (model, number(n_ctx), seconds, *sizes)


def starts(rows: Iterable[Row]) -> Iterator[Sequence[str]]:
    """A line a model for the newest first start, and one for the newest later one."""
    newest = {(row["model"], row["start"]): row for row in rows}
    for (model, start), row in sorted(newest.items()):
        parts = ("start", "driver", "load", "tokens")
        yield (
            model,
            start,
            row["kernels_compiled"],
            *(f"{float(row[f'{part}_seconds']):.2f}" for part in parts),
        )


def types(rows: Iterable[Row]) -> Iterator[Sequence[str]]:
    """A line a weight type: gate and up of a 7B layer, as shares of the floor."""
    newest = {
        (row["types"], row["rows"]): row
        for row in rows
        if "--shapes types" in row["command"] and "--sweep" not in row["command"]
    }
    names = list(dict.fromkeys(name for name, _ in newest))
    for name in sorted(names, key=lambda n: -float(newest[n, "1"]["floor_share"])):
        cells = []
        for n in TYPE_ROWS:
            row = newest.get((name, n))
            us = f"{float(row['us']):.1f} us" if row else ""
            cells.append(f"{us}, {percent(row['floor_share'])}" if row else "")
        yield (name, *cells)


def steps(rows: Sequence[Row]) -> Iterator[str]:
    """For each kind of step the first and the newest time line there are."""
    kinds: dict[str, dict[tuple[str, str], list[Row]]] = {}
    for row in rows:
        # the number of steps that were recorded is in the name of a generation: "tg34 x1"
        what = row["test"] if row["test"].startswith("pp") else row["test"].split(" ", 1)[1]
        if row["model"] == BEST and what in SHOWN_STEPS:
            kinds.setdefault(what, {}).setdefault((row["date"], row["commit"]), []).append(row)
    for what, times_of in kinds.items():
        runs = list(times_of.items())
        shown = [runs[0], runs[-1]] if len(runs) > 1 else runs
        yield f"### {BEST}: {'prompt' if what.startswith('pp') else 'decode'}, {what}"
        yield ""
        for (date, commit), lines in shown:
            yield f"{date[:10]}, {commit}:"
            yield ""
            yield from table(
                ("kernel", "grid", "launches", "us each", "gap before, us", "us together"),
                (
                    (
                        line["kernel"],
                        line["grid"],
                        number(line["launches"]),
                        number(line["us"]),
                        number(line["gap_us"]),
                        number(line["total_us"]),
                    )
                    for line in lines
                    if line["kernel"] not in ("(a layer)", "(a token)")
                ),
            )


def started(rows: Sequence[Row]) -> Iterator[str]:
    """The section on starts, if any was measured."""
    if rows:
        header = ("Model", "Start", "kernels compiled", "whole", "driver", "loading", "tokens")
        yield from ("## Starting", "", STARTS, *table(header, starts(rows)))


def page() -> str:
    """The whole page."""
    measured = rows_of("gpu")
    found = speeds(measured)
    header = ("Model", "Work", "llama.cpp", "minfer, t/s", "ratio", "of the floor", "prototype", "")
    lines = [
        "# The GPU by its figures",
        "",
        INTRODUCTION,
        "## Against llama.cpp",
        "",
        *table(header, rivalled(found, "")),
        "## The kernels of cards before Hopper",
        "",
        "On the same card, without `wgmma`, bulk copies and programmatic launches",
        "(`MINFER_CUDA_GENERIC=1`):",
        "",
        *table(header, rivalled(found, "MINFER_CUDA_GENERIC=1")),
        "## Each switch",
        "",
        *table(("Switch", "Work", "t/s", "of all on", ""), switched(found)),
        "## Other models",
        "",
        *table(
            ("Model", "pp512, t/s", "pp2048", "tg64 x16", "tg128", "of the floor"), others(found)
        ),
        "## Loading and memory",
        "",
        MEMORY,
        *table(
            ("Model", "Context", "loaded in", "file", "KV cache", "on the device", "bound"),
            memory(measured),
        ),
        *started(rows_of("gpu_start")),
        "## Every weight type",
        "",
        TYPES,
        *table(("Type", "1 row", "16 rows", "64 rows", "512 rows"), types(rows_of("gpu_matmul"))),
        "## Time lines",
        "",
        TIME_LINES,
        *steps(rows_of("gpu_timeline")),
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
