"""Bars in a terminal, and plots in a file. Plots need matplotlib (`pip install 'minfer[plot]'`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer.errors import UnsupportedError
from minfer.measure.cases import Result

_EIGHTHS = " ▏▎▍▌▋▊▉"
ENDINGS = (".png", ".svg")


def bars(rows: Sequence[tuple[str, float, str]], width: int) -> str:
    """Labelled bars as text.

    Args:
        rows: label, length, and what to write behind the bar.
        width: columns the longest bar takes.
    """
    longest = max((value for _, value, _ in rows), default=0.0) or 1.0
    margin = max((len(label) for label, _, _ in rows), default=0)
    lines = []
    for label, value, text in rows:
        eighths = round(8 * width * value / longest)
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(f"{label.rjust(margin)} {bar} {text}")
    return "\n".join(lines)


def speeds(results: Sequence[Result], width: int) -> str:
    """The rows of a benchmark as bars, prompts and generation each on their own scale."""
    parts = []
    for generating in (False, True):
        mine = [r for r in results if bool(r.test.n_gen) is generating]
        rows = [(f"{r.test.name} {_label(r)}", r.avg_ts, f"{r.avg_ts:.1f} t/s") for r in mine]
        if rows:
            parts.append(bars(rows, width))
    return "\n\n".join(parts)


def _label(result: Result) -> str:
    setup = result.setup
    return f"{result.facts.model_type} {setup.type_k} {result.facts.n_threads}t"


@dataclass(frozen=True)
class Line:
    """A line of a plot."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] = ()


def check_plot(path: Path) -> None:
    """Refuse a plot that could not be written after all the measuring.

    Raises:
        UnsupportedError: for an ending other than .png and .svg, or without matplotlib.
    """
    if path.suffix not in ENDINGS:
        raise UnsupportedError(
            f"value {str(path)!r} ends in none of {', '.join(ENDINGS)}", where="--plot"
        )
    _pyplot()


def plot_speeds(results: Sequence[Result], path: Path) -> None:
    """Tokens a second of a benchmark: over depth where it varies, else over the tests' lengths."""
    over_depth = len({r.test.n_depth for r in results}) > 1
    groups: dict[tuple[bool, str], list[Result]] = {}
    for r in results:
        kind = r.test.name.split(" @ ")[0] if over_depth else ("tg" if r.test.n_gen else "pp")
        groups.setdefault((bool(r.test.n_gen), f"{kind} {_label(r)}"), []).append(r)
    panels: list[list[Line]] = [[], []]
    for (generating, label), rows in groups.items():
        xs = [float(r.test.n_depth if over_depth else r.test.n_tokens) for r in rows]
        ordered = sorted(zip(xs, rows, strict=True), key=lambda pair: pair[0])
        panels[generating].append(
            Line(
                label,
                [x for x, _ in ordered],
                [r.avg_ts for _, r in ordered],
                [r.stddev_ts for _, r in ordered],
            )
        )
    x_label = "tokens in the cache before" if over_depth else "tokens"
    titled = [
        (title, lines)
        for title, lines in zip(("prompt", "generation"), panels, strict=True)
        if lines
    ]
    plot_lines(path, titled, x_label, "tokens a second")


def plot_lines(
    path: Path,
    panels: Sequence[tuple[str, Sequence[Line]]],
    x_label: str,
    y_label: str,
    *,
    logarithmic: bool = False,
) -> None:
    """Write panels of lines beside each other, as the path's ending says.

    Raises:
        UnsupportedError: for an unknown ending, or without matplotlib.
    """
    check_plot(path)
    figure, axes = _pyplot().subplots(
        1, len(panels), figsize=(5.5 * len(panels), 4), squeeze=False, layout="constrained"
    )
    for axis, (title, lines) in zip(axes[0], panels, strict=True):
        for line in lines:
            axis.errorbar(
                line.x,
                line.y,
                yerr=line.error or None,
                label=line.label,
                marker="o",
                markersize=4,
                capsize=3,
            )
        axis.set_title(title)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        if logarithmic:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    _pyplot().close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UnsupportedError(
            "plots need matplotlib", where="--plot", remedy="Run `pip install 'minfer[plot]'`"
        ) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot
