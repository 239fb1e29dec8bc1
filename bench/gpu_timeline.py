"""Where the time of a step goes on the GPU: kernel by kernel, with the gaps between them.

    python -m bench.gpu_timeline [--model qwen2-7b-q4_k_m] [--batch 1,16] [--prompt 2048]

Real decode steps and real prompts of a synthetic model run under torch's profiler, which serves
only as a reader of CUPTI's records: torch must be installed beside minfer. A profile costs time;
what a step takes without one is `bench.gpu`'s to say.

**Whose time it is.** Kernels overlap: by programmatic dependent launch the next one starts before
the last one ends, and waits inside. So a kernel is given the time from the end of all before it to
its own end (`us`); these add up to the step, whatever overlaps. `gap_us` is the part of it in which
no kernel runs: launching, and copies. `early_us` is how long before that end the kernel started;
`own_us` its duration as recorded, its wait included.

**Which steps.** A step begins with the embedding. The most frequent sequence of kernels is the
work's (a generation's prompts are kept rarer); its first step, which follows another kind, is left
out, and each place in the sequence has the median of the others.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np

from bench import results, synthetic
from bench.engines import Minfer, switches
from bench.gpu import N_CTX, PREFILL_ROWS, WARM_UP, Work, device_name, work
from minfer.errors import BackendError
from minfer.settings import Settings

FIRST = "embed"
"""The kernel a step begins with."""
STEPS = 32
"""Decode steps to record, at least."""
PROMPTS = 6
"""Prompts to record."""
NAME_WIDTH = 40
"""Letters of a kernel's name that are printed; a library's may have hundreds."""

Geometry = tuple[int, ...]
Kind = tuple[str, Geometry, Geometry]
"""Name, grid and block: what launches of the same work have in common."""


@dataclass(frozen=True)
class Event:
    """A kernel that ran; times in microseconds."""

    name: str
    start: float
    duration: float
    grid: Geometry
    block: Geometry

    @property
    def kind(self) -> Kind:
        """What it has in common with others."""
        return self.name, self.grid, self.block


@dataclass(frozen=True)
class Share:
    """The time a kernel is given, in microseconds; the module's text says how."""

    us: float
    gap_us: float
    early_us: float
    own_us: float

    @staticmethod
    def of_all(pick: Callable[[list[float]], float], shares: Sequence[Share]) -> Share:
        """Median or mean, figure by figure."""
        return Share(
            pick([s.us for s in shares]),
            pick([s.gap_us for s in shares]),
            pick([s.early_us for s in shares]),
            pick([s.own_us for s in shares]),
        )


@dataclass(frozen=True)
class Line:
    """The launches of one kind in a step, and their mean share."""

    kind: Kind
    launches: int
    share: Share

    @property
    def total_us(self) -> float:
        """Of all launches."""
        return self.launches * self.share.us

    @property
    def idle_us(self) -> float:
        """Of all gaps."""
        return self.launches * self.share.gap_us


@dataclass(frozen=True)
class Timeline:
    """A typical step: its lines, by first launch, and of how many steps it is the median."""

    lines: tuple[Line, ...]
    steps: int

    @property
    def launches(self) -> int:
        """Kernels of a step."""
        return sum(line.launches for line in self.lines)

    @property
    def total_us(self) -> float:
        """From the end of the step before to the end of this one."""
        return sum(line.total_us for line in self.lines)

    @property
    def idle_us(self) -> float:
        """Of `total_us`, when no kernel runs."""
        return sum(line.idle_us for line in self.lines)

    def layers(self) -> Timeline:
        """What is in a step more than once: the layers, without embedding, head and sampling."""
        return replace(self, lines=tuple(line for line in self.lines if line.launches > 1))


def shares(events: Sequence[Event]) -> list[Share]:
    """The time of each event; `events` are in the order of their starts."""
    found = []
    ended = events[0].start if events else 0.0
    for event in events:
        end = event.start + event.duration
        found.append(
            Share(
                us=max(0.0, end - ended),
                gap_us=max(0.0, event.start - ended),
                early_us=max(0.0, ended - event.start),
                own_us=event.duration,
            )
        )
        ended = max(ended, end)
    return found


def analysed(events: Sequence[Event], first: str = FIRST) -> Timeline:
    """The typical step of a record.

    Raises:
        BackendError: if no step came at least twice.
    """
    ordered = sorted(events, key=lambda event: event.start)
    given = shares(ordered)
    begins = [i for i, event in enumerate(ordered) if event.name == first]
    steps: dict[tuple[Kind, ...], list[list[Share]]] = {}
    for begin, end in pairwise([*begins, len(ordered)]):
        sequence = tuple(event.kind for event in ordered[begin:end])
        steps.setdefault(sequence, []).append(given[begin:end])
    sequence, alike = max(steps.items(), key=lambda item: len(item[1]), default=((), []))
    if len(alike) < 2:
        raise BackendError(
            f"of {len(ordered)} kernels {len(begins)} are {first!r}, and no step came twice",
            where="gpu_timeline",
            remedy="Record more steps",
        )
    typical = [Share.of_all(median, place) for place in zip(*alike[1:], strict=True)]
    lines = []
    for kind, launches in Counter(sequence).items():
        mine = [s for k, s in zip(sequence, typical, strict=True) if k == kind]
        lines.append(Line(kind, launches, Share.of_all(fmean, mine)))
    return Timeline(tuple(lines), len(alike) - 1)


def rows(timeline: Timeline, n_layers: int, tokens: int) -> list[dict[str, object]]:
    """A row for each kind of kernel, and one for each sum: a step, a layer, a token."""
    found: list[dict[str, object]] = []
    for line in timeline.lines:
        name, grid, block = line.kind
        found.append(
            {
                "kernel": name,
                "grid": "x".join(map(str, grid)),
                "block": "x".join(map(str, block)),
                "launches": line.launches,
                "us": line.share.us,
                "gap_us": line.share.gap_us,
                "early_us": line.share.early_us,
                "own_us": line.share.own_us,
                "total_us": line.total_us,
                "busy_us": line.total_us - line.idle_us,
                "idle_us": line.idle_us,
                "share": line.total_us / timeline.total_us,
            }
        )
    for name, part, n in (
        ("(a step)", timeline, 1),
        ("(a layer)", timeline.layers(), n_layers),
        ("(a token)", timeline, tokens),
    ):
        found.append(
            {
                "kernel": name,
                "launches": part.launches / n,
                "total_us": part.total_us / n,
                "busy_us": (part.total_us - part.idle_us) / n,
                "idle_us": part.idle_us / n,
                "share": part.total_us / n / timeline.total_us,
            }
        )
    return found


def kernels(trace: Mapping[str, Any]) -> list[Event]:
    """The kernels of a trace in Chrome's format, as torch's profiler writes it."""
    return [
        Event(e["name"], e["ts"], e["dur"], tuple(e["args"]["grid"]), tuple(e["args"]["block"]))
        for e in trace["traceEvents"]
        if e.get("cat") == "kernel"
    ]


class Recorder:
    """torch's profiler. Make it before an engine: torch takes its share of the GPU here.

    Raises:
        BackendError: if torch is missing, or has no GPU.
    """

    def __init__(self) -> None:
        try:
            torch = importlib.import_module("torch")
            self._profiler = importlib.import_module("torch.profiler")
        except ImportError as error:
            raise BackendError(
                f"a timeline is recorded by torch's profiler: {error}",
                where="gpu_timeline",
                remedy="Install torch, with CUDA, beside minfer",
            ) from None
        if not torch.cuda.is_available():
            raise BackendError(
                f"torch {torch.__version__} finds no GPU",
                where="gpu_timeline",
                remedy="Install a torch with CUDA, on a machine with an NVIDIA GPU",
            )
        torch.zeros(1, device="cuda")

    def __call__(self, run: Callable[[], object]) -> list[Event]:
        """The kernels of `run`, which waits for them."""
        with self._profiler.profile(activities=[self._profiler.ProfilerActivity.CUDA]) as profile:
            run()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            return kernels(json.loads(path.read_text()))


def works(batches: Sequence[int], prompts: Sequence[int], depth: int) -> list[Work]:
    """What to record: enough steps of a generation to outnumber those of its prompts."""
    chunks = -(-(depth + 1) // PREFILL_ROWS)
    suffix = f" @ d{depth}" if depth else ""
    return [
        *(work(f"tg{STEPS + 2 * chunks * batch}{suffix} x{batch}") for batch in batches),
        *(work(f"pp{n}") for n in prompts),
    ]


def recorded(engine: Minfer, work: Work, record: Recorder) -> Timeline:
    """Record a work when all of its steps are captured graphs."""
    random = np.random.default_rng(5)

    def run() -> None:
        for _ in range(PROMPTS if work.prompt else 1):
            if work.prompt:
                engine.prefill(random.integers(0, 255, work.prompt).tolist())
            else:
                engine.decode(work.generate, work.depth, work.batch)
        engine.backend.synchronize()  # a generation ends with a step in vain under way

    for _ in range(WARM_UP):
        run()
    return analysed(record(run))


def numbers(text: str) -> list[int]:
    """Whole numbers of at least 1, separated by commas; none if empty."""
    found = [int(word) for word in text.split(",") if word]
    if any(n < 1 for n in found):
        raise ValueError("numbers of at least 1 are expected")
    return found


def main() -> None:
    """Record, print, append to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", choices=synthetic.MODELS, default="qwen2-7b-q4_k_m")
    parser.add_argument("--batch", type=numbers, default=[1, 16], help="sequences that generate")
    parser.add_argument("--prompt", type=numbers, default=[2048], help="tokens of a prompt")
    parser.add_argument("--depth", type=int, default=0, help="tokens before a generation")
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()))
    args = parser.parse_args()
    wanted = works(args.batch, args.prompt, args.depth)
    if not wanted:
        parser.error("nothing to record; give --batch or --prompt a number")
    settings = replace(Settings.load(), device="cuda")
    record = Recorder()
    engine = Minfer(
        synthetic.find(args.model, args.folder),
        settings,
        n_ctx=max(N_CTX, *(w.n_ctx for w in wanted)),
        batch=max(w.batch for w in wanted),
        prefill_rows=PREFILL_ROWS,
        n_cells=max(w.n_ctx * w.batch for w in wanted),
    )
    stamp = {"model": args.model, "switches": switches(settings)}
    for w in wanted:
        timeline = recorded(engine, w, record)
        tokens = min(w.prompt, PREFILL_ROWS) or w.batch
        mine = rows(timeline, len(engine.model.layers), tokens)
        print(f"\n{args.model} {w.test}, median of {timeline.steps} steps of {tokens} tokens")
        print(results.table([r | {"kernel": str(r["kernel"])[:NAME_WIDTH]} for r in mine]))
        stamped = [{**stamp, "test": w.test, "steps": timeline.steps, **row} for row in mine]
        results.append("gpu_timeline", stamped, device_name("cuda"))
    engine.close()


if __name__ == "__main__":
    main()
