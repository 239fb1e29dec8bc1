"""`minfer fidelity`: how far quantized models, caches and backends are from a base run."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minfer.cli.options import Debug, Device, option
from minfer.cli.perplexity import Text, in_figures, opened, remaining, resolved, settings_on
from minfer.cli.report import INTERRUPTED
from minfer.cli.terminal import status_line, table
from minfer.errors import RequestError

if TYPE_CHECKING:
    from minfer.measure import Base, Distances

_base = partial(option, "Base run")
_runs = partial(option, "Runs")
ZIP = b"PK"  # how a file of saved logits begins


class Form(StrEnum):
    """Values of --output."""

    txt = "txt"
    json = "json"


@dataclass(frozen=True)
class BaseRun:
    """What runs are compared with."""

    base: Annotated[
        str | None,
        _base(
            "A model, or logits saved before; by default the first model itself.",
            "--base",
            metavar="MODEL|FILE",
        ),
    ] = None
    device: Annotated[Device, _base("Where the base runs, with an f32 cache.", "--base-device")] = (
        Device.reference
    )
    save: Annotated[
        Path | None, _base("Save the base's logits here.", "--save-base", metavar="FILE")
    ] = None


@dataclass(frozen=True)
class Runs:
    """How models are run; every combination is a row."""

    devices: Annotated[str, _runs("Devices, separated by commas.", "--device", metavar="LIST")] = (
        "auto"
    )
    cache_types: Annotated[
        str, _runs("Types of the KV cache.", "--cache-type", "-ctk", metavar="LIST")
    ] = "f16"
    paths: Annotated[str, _runs("Kernels: prefill, decode or both.", "--path", metavar="LIST")] = (
        "prefill"
    )

    def all(self) -> list[tuple[str, str, str]]:
        """Every combination of device, cache type and path.

        Raises:
            typer.BadParameter: for an unknown one.
        """
        known = (
            ("--device", self.devices, ("auto", "cpu", "cuda", "reference")),
            ("--cache-type", self.cache_types, ("f32", "f16", "q8_0")),
            ("--path", self.paths, ("prefill", "decode")),
        )
        for name, text, allowed in known:
            for value in text.split(","):
                if value not in allowed:
                    raise typer.BadParameter(
                        f"value {value!r} is none of {', '.join(allowed)}", param_hint=name
                    )
        devices, types, paths = (text.split(",") for _, text, _ in known)
        return list(product(devices, types, paths))


@dataclass(frozen=True)
class _Row:
    """A run and what was found."""

    model: str
    device: str
    cache_type: str
    path: str
    found: Distances
    n_chunks: int


def fidelity(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Models to compare.", show_default=False),
    ],
    base_run: BaseRun,
    runs: Runs,
    text: Text,
    output: Annotated[Form, typer.Option("-o", "--output", help="Form of the rows.")] = Form.txt,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Write a plot of percentiles, .png or .svg."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Measure how far runs of a model are from a base run of it, on a text.

    Compare quantizations (several models and --base with the original), KV caches, devices and
    kernels. Ctrl-C ends it with what is known by then; in the base run, the chunks that are done
    are still compared.
    """
    from minfer import measure

    if plot is not None:
        measure.check_plot(plot)
    combinations = runs.all()
    rows: list[_Row] = []
    interrupted = False
    with status_line() as say:
        try:
            base, complete = _base_of(models[0], base_run, text, say)
            if not complete:
                interrupted = True
                n = base.n_chunks
                print(f"interrupted: comparing {n} chunks; Ctrl-C again ends it", file=sys.stderr)
            for model, (device, cache_type, path) in product(models, combinations):
                rows += _compare(model, device, cache_type, path, base, say)
                if rows[-1].n_chunks < base.n_chunks:
                    interrupted = True
                    break
        except KeyboardInterrupt:
            interrupted = True
    if output is Form.json:
        print(json.dumps([_as_json(row) for row in rows], ensure_ascii=False, indent=1))
    elif rows:
        print(_head(base))
        print(_table(rows, base.n_chunks))
    if plot is not None and rows:
        _plot(rows, plot)
    if interrupted:
        if not rows:
            print("interrupted before a chunk was compared", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _base_of(model: str, wanted: BaseRun, text: Text, say: Any) -> tuple[Base, bool]:
    """The base run, computed or read, and whether it is complete."""
    from minfer import measure

    if wanted.base is not None and _is_saved(Path(wanted.base)):
        if text.file is not None:
            raise typer.BadParameter("saved logits have their text with them", param_hint="-f")
        return measure.load_base(Path(wanted.base)), True
    settings = settings_on(wanted.device)
    path = resolved(wanted.base or model, settings)
    chunks = text.cut(path)
    base: Base | None = None
    complete = True
    with opened(path, settings, "f32", text.n_ctx, say) as run:
        about = f"{run.facts.model_type} on {', '.join(run.engine.describe())}, f32 cache"
        left = remaining(len(chunks))
        try:
            for base in measure.record_base(run.engine, chunks, about):
                say(f"base: chunk {base.n_chunks}/{len(chunks)}, {left(base.n_chunks)}")
        except KeyboardInterrupt:
            complete = False
    if base is None:
        raise KeyboardInterrupt
    if wanted.save is not None:
        measure.save_base(base, wanted.save)
        print(f"saved {base.n_chunks} chunks in {wanted.save}", file=sys.stderr)
    return base, complete


def _is_saved(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(2) == ZIP


def _compare(
    model: str, device: str, cache_type: str, path: str, base: Base, say: Any
) -> list[_Row]:
    """The row of a run, of as many chunks as were done before Ctrl-C."""
    from minfer import measure

    settings = replace(settings_on(None), device=device)
    file = resolved(model, settings)
    n_ctx = base.chunks.ids.shape[1]
    rows: list[_Row] = []
    with opened(file, settings, cache_type, n_ctx, say) as run:
        if int(base.top_ids.max()) >= run.engine.model.n_vocab:
            raise RequestError(
                f"the base knows token {int(base.top_ids.max())}, this model "
                f"{run.engine.model.n_vocab} tokens",
                where=model,
                remedy="Compare models with the same vocabulary",
            )
        on = ",".join(run.engine.describe())
        left = remaining(base.n_chunks)
        try:
            for found in measure.compare(run.engine, base, single=path == "decode"):
                done = len(found) // base.chunks.n_scored
                name = run.facts.model_type
                rows = [_Row(name, on, cache_type, path, found, done)]
                say(
                    f"{name} {on} {cache_type} {path}: chunk {done}/{base.n_chunks}, "
                    f"KL {found.mean_kl.value:.5f}, {left(done)}"
                )
        except KeyboardInterrupt:
            if not rows:
                raise
    return rows


def _head(base: Base) -> str:
    n_positions = base.n_chunks * base.chunks.n_scored
    return (
        f"base: {base.about}; {n_positions:,} positions in {base.n_chunks} chunks of "
        f"{base.chunks.ids.shape[1]} tokens\n"
    )


def _table(rows: list[_Row], n_chunks: int) -> str:
    head = ["model", "device", "KV", "path", "perplexity", "ratio", "mean KL"]
    lines = [[*head, "KL 50 %", "90 %", "99 %", "max", "same best"]]
    for row in rows:
        found = row.found
        partial_ = f" ({row.n_chunks} of {n_chunks} chunks)" if row.n_chunks < n_chunks else ""
        lines.append(
            [
                row.model + partial_,
                row.device,
                row.cache_type,
                row.path,
                in_figures(found.perplexity),
                f"{100 * found.log_ratio.value:+.3f} % ± {100 * found.log_ratio.error:.3f}",
                f"{found.mean_kl.value:.6f} ± {found.mean_kl.error:.6f}",
                *(f"{found.percentile(p):.2g}" for p in (50, 90, 99, 100)),
                f"{100 * found.top1.value:.2f} % ± {100 * found.top1.error:.2f}",
            ]
        )
    return table(lines)


def _as_json(row: _Row) -> dict[str, Any]:
    from minfer.measure import PERCENTILES

    found = row.found
    return {
        "model": row.model,
        "device": row.device,
        "cache_type": row.cache_type,
        "path": row.path,
        "chunks": row.n_chunks,
        "positions": len(found),
        "perplexity": found.perplexity.value,
        "base_perplexity": found.base_perplexity.value,
        "log_ratio": found.log_ratio.value,
        "mean_kl": found.mean_kl.value,
        "mean_kl_error": found.mean_kl.error,
        "kl_percentiles": {f"{p:g}": found.percentile(p) for p in PERCENTILES},
        "same_best": found.top1.value,
    }


def _plot(rows: list[_Row], path: Path) -> None:
    from minfer.measure import Line, plot_lines

    shares = [5.0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 100]
    least = 1e-9  # a logarithm needs something to show
    lines = [
        Line(
            f"{row.model} {row.device} {row.cache_type} {row.path}",
            shares,
            [max(least, row.found.percentile(share)) for share in shares],
        )
        for row in rows
    ]
    panels = [("divergence from the base", lines)]
    plot_lines(path, panels, "percent of positions", "KL divergence, at most", logarithmic=True)
