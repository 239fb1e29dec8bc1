"""`minfer bench`: tokens a second, as llama-bench measures and prints them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from minfer.cli.loading import note
from minfer.cli.options import Debug, Device, option
from minfer.cli.terminal import progress_bar, status_line, table
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.llm import Notice
    from minfer.measure import Case, OpTime, Result, Setup

_test = partial(option, "Tests")
_setup = partial(option, "Setups")
_print = partial(option, "Output")
_more = partial(option, "Beyond llama-bench")


class Output(StrEnum):
    """Values of --output."""

    md = "md"
    csv = "csv"
    json = "json"
    jsonl = "jsonl"
    sql = "sql"


@dataclass(frozen=True)
class Tests:
    """What is timed. Lists `512,1024` and ranges `first-last`, `+step`, `*factor` are taken."""

    n_prompt: Annotated[
        str, _test("Tokens of a prompt; 0 leaves the test out.", "-p", "--n-prompt", metavar="N")
    ] = "512"
    n_gen: Annotated[
        str, _test("Tokens to generate; 0 leaves the test out.", "-n", "--n-gen", metavar="N")
    ] = "128"
    n_pg: Annotated[
        list[str] | None,
        _test("A prompt, then generation, timed together; repeatable.", "-pg", metavar="PP,TG"),
    ] = None
    n_depth: Annotated[
        str, _test("Tokens in the KV cache before a test.", "-d", "--n-depth", metavar="N")
    ] = "0"
    repetitions: Annotated[
        int, _test("Times each test is run.", "-r", "--repetitions", metavar="N")
    ] = 5
    no_warmup: Annotated[bool, _test("Do not run a test before timing it.", "--no-warmup")] = False

    def all(self) -> list[Case]:
        """Every test asked for.

        Raises:
            RequestError: for a value that cannot be read.
        """
        from minfer.measure import every_case, numbers, pairs

        found = every_case(
            numbers(self.n_prompt, where="-p"),
            numbers(self.n_gen, where="-n"),
            [pair for text in self.n_pg or () for pair in pairs(text, where="-pg")],
            numbers(self.n_depth, where="-d"),
        )
        if not found:
            raise typer.BadParameter("there is nothing to time", param_hint="-p, -n")
        if self.repetitions < 1:
            raise typer.BadParameter(f"value {self.repetitions} is less than 1", param_hint="-r")
        return found


@dataclass(frozen=True)
class Setups:
    """How models are run; lists and ranges give a row for every combination."""

    n_batch: Annotated[
        str,
        _setup("Tokens of a prompt handed over at a time.", "-b", "--batch-size", metavar="N"),
    ] = "2048"
    n_ubatch: Annotated[
        str, _setup("Rows a step computes at most.", "-ub", "--ubatch-size", metavar="N")
    ] = "512"
    type_k: Annotated[
        str, _setup("Type of the cache of K.", "-ctk", "--cache-type-k", metavar="TYPE")
    ] = "f16"
    type_v: Annotated[
        str | None,
        _setup("The same, of V: as K, unless given.", "-ctv", "--cache-type-v", metavar="TYPE"),
    ] = None
    threads: Annotated[
        str, _setup("CPU threads; 0 for the cores there are.", "-t", "--threads", metavar="N")
    ] = "0"
    gpu_layers: Annotated[
        str | None, _setup("Layers on the GPU.", "-ngl", "--n-gpu-layers", metavar="N")
    ] = None
    device: Annotated[
        Device | None, _setup("Where to run; by default the best there is.", "--device")
    ] = None

    def all(self, models: list[str]) -> list[Setup]:
        """Every combination asked for.

        Raises:
            RequestError: for a value that cannot be read.
        """
        from minfer.measure import every_setup, numbers

        keys = self.type_k.split(",")
        values = keys if self.type_v is None else self.type_v.split(",")
        if len(values) not in (1, len(keys)):
            raise typer.BadParameter(
                f"{len(values)} types of V for {len(keys)} of K", param_hint="-ctv"
            )
        values = values * len(keys) if len(values) == 1 else values
        return list(
            every_setup(
                models,
                numbers(self.gpu_layers, where="-ngl") if self.gpu_layers else [None],
                list(zip(keys, values, strict=True)),
                numbers(self.threads, where="-t"),
                numbers(self.n_batch, where="-b"),
                numbers(self.n_ubatch, where="-ub"),
            )
        )


@dataclass(frozen=True)
class Printing:
    """What is printed, and where."""

    output: Annotated[Output, _print("Form of the rows.", "-o", "--output")] = Output.md
    output_err: Annotated[
        Output | None, _print("Print them on standard error too, in this form.", "-oe")
    ] = None
    progress: Annotated[
        bool, _print("Tell what is done, also where no terminal shows it.", "--progress")
    ] = False


@dataclass(frozen=True)
class Looking:
    """What llama-bench has not."""

    floor: Annotated[
        bool, _more("Measure what this machine allows, and give each row's share.", "--floor")
    ] = False
    ops: Annotated[bool, _more("Show where the time of a step goes, op by op.", "--ops")] = False
    chart: Annotated[bool, _more("Draw the rows as bars.", "--chart")] = False
    plot: Annotated[Path | None, _more("Write a plot, .png or .svg.", "--plot", metavar="FILE")] = (
        None
    )


def bench(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Models to measure.", show_default=False),
    ],
    what: Tests,
    how: Setups,
    printing: Printing,
    looking: Looking,
    debug: Debug = False,
) -> None:
    """Measure tokens a second.

    Flags, defaults, columns and formats are llama-bench's. Tokenizing and sampling are not timed.
    Rows appear as they are measured; Ctrl-C ends a run and keeps them.
    """
    from minfer import hub, measure

    tests, setups = what.all(), how.all(models)
    if looking.plot is not None:
        measure.check_plot(looking.plot)
    settings = Settings.load()
    if how.device is not None:
        from dataclasses import replace

        settings = replace(settings, device=how.device.value)
    with progress_bar() as bar:
        paths = {m: hub.resolve(m, settings, progress=bar) for m in dict.fromkeys(models)}
    todo = [(setup, paths[setup.model]) for setup in setups]
    done: list[Result] = []
    with status_line(always=printing.progress) as say:
        rows = measure.run(
            todo,
            tests,
            settings,
            repetitions=what.repetitions,
            warm_up=not what.no_warmup,
            floor=looking.floor,
            progress=say,
            note=partial(_note, say, set()),
        )
        with _writer(printing.output_err, sys.stderr, setups, looking.floor) as also:
            form = _form(printing.output, setups, looking.floor)
            for text in form(_seen(rows, done, also)):
                say("")
                sys.stdout.write(text)
                sys.stdout.flush()
        if looking.ops:
            for setup, path in todo:
                for section in _ops(setup, path, tests, settings, looking.floor, say):
                    print("\n" + section)
    if looking.chart:
        print("\n" + measure.speeds(done, max(10, shutil.get_terminal_size().columns - 60)))
    if looking.plot is not None:
        measure.plot_speeds(done, looking.plot)


def _note(say: Callable[[str], None], told: set[Notice], notices: Sequence[Notice]) -> None:
    """Tell notices once, however many setups they are of."""
    say("")
    note(notice for notice in notices if notice not in told)
    told.update(notices)


Form = Callable[[Iterable["Result"]], Iterator[str]]


def _form(output: Output, setups: list[Setup], floor: bool) -> Form:
    from minfer import measure

    match output:
        case Output.md:
            return partial(measure.markdown, setups=setups, floor=floor)
        case Output.csv:
            return measure.csv_rows
        case Output.json:
            return measure.json_rows
        case Output.jsonl:
            return measure.jsonl_rows
        case Output.sql:
            return measure.sql_rows


@contextmanager
def _writer(
    output: Output | None, stream: TextIO, setups: list[Setup], floor: bool
) -> Iterator[list[Result]]:
    """A list whose rows are written at the end, whatever ends the block."""
    rows: list[Result] = []
    try:
        yield rows
    finally:
        if output is not None:
            stream.writelines(_form(output, setups, floor)(rows))


def _seen(rows: Iterator[Result], done: list[Result], also: list[Result]) -> Iterator[Result]:
    for row in rows:
        done.append(row)
        also.append(row)
        yield row


def _ops(
    setup: Setup,
    path: Path,
    tests: list[Case],
    settings: Settings,
    floor: bool,
    say: Callable[[str], None],
) -> Iterator[str]:
    """A table for each test: where the time of its step goes."""
    from dataclasses import replace

    from minfer import measure

    eager = replace(settings, no_cuda_graph=True)
    n_ctx = max(t.n_tokens + t.n_depth for t in tests) + 64
    with measure.opened(setup, path, eager, n_ctx) as model:
        limit = measure.measure_floor(model.engine, model.facts.n_threads) if floor else None
        for test in tests:
            say(f"{test.name}: timing every node")
            rows = measure.time_ops(model.engine, setup, test, limit)
            say("")
            yield f"{model.facts.model_type}, a step of {test.name}\n\n{_op_table(rows)}"


def _op_table(rows: list[OpTime]) -> str:
    whole = sum(row.seconds for row in rows)
    known = bool(rows) and rows[0].floor_seconds is not None
    head = ["op", "nodes", "µs", "share", "GB/s", "GFLOP/s"] + ["of floor"] * known
    lines = [head]
    for row in rows:
        cells = [
            row.op,
            str(row.calls),
            f"{row.seconds * 1e6:.1f}",
            f"{100 * row.seconds / whole:.1f} %",
            f"{row.nbytes / row.seconds / 1e9:.2f}",
            f"{row.flops / row.seconds / 1e9:.2f}",
        ]
        if row.floor_seconds is not None:
            cells.append(f"{100 * row.floor_seconds / row.seconds:.0f} %")
        lines.append(cells)
    total = ["all", str(sum(row.calls for row in rows)), f"{whole * 1e6:.1f}"]
    lines.append(total + [""] * (len(head) - len(total)))
    return table(lines)
