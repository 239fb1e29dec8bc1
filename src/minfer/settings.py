"""The only reader of the environment: one typed row a switch.

Every `MINFER_*` variable is a row of `ROWS`; an unknown name or an unusable value is refused,
because a misspelt switch that silently measures the default costs a day. `docs/settings.md` is
generated from the same rows. Other variables that minfer honours (XDG folders, the Hugging Face
cache) are read here too, by `Settings.load`, and nowhere else.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from minfer.errors import SettingsError

PREFIX = "MINFER_"


def _boolean(text: str) -> bool:
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("expected 1 or 0")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("expected a whole number of at least 0")
    return int(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    parse.__name__ = " or ".join(choices)
    return parse


def _path(text: str) -> Path:
    if not text:
        raise ValueError("expected a path")
    return Path(text).expanduser()


def _row(parse: Callable[[str], Any], default: Any, doc: str) -> Any:
    return field(default=default, metadata={"parse": parse, "doc": doc})


@dataclass(frozen=True)
class Settings:
    """All switches of a process, read once.

    Each field is the lower-case name of a `MINFER_*` variable. Fields of the last group come
    from other programs' conventions.
    """

    # What runs where
    device: str = _row(_one_of("auto", "cpu", "cuda", "reference"), "auto", "Backend to run on.")
    threads: int = _row(_count, 0, "CPU threads; 0 takes the cores this process may use.")
    gpu_layers: str = _row(str, "auto", "Layers placed on the GPU: a number, `auto` or `all`.")
    gpu_mem: int = _row(_count, 0, "GPU memory budget in MiB; 0 takes what is free.")
    cpu_isa: str = _row(
        _one_of("auto", "scalar", "avx2", "avx512", "neon"),
        "auto",
        "Instruction set of the CPU kernels; `auto` takes the best this machine has.",
    )
    cache_type: str = _row(_one_of("f32", "f16", "q8_0"), "f16", "Element type of the KV cache.")
    # A/B controls: each is part of a plan's identity
    no_cuda_graph: bool = _row(_boolean, False, "Launch every CUDA kernel eagerly.")
    no_fa_prefill: bool = _row(
        _boolean, False, "Use the plain attention kernel for prefill on CUDA."
    )
    cuda_generic: bool = _row(
        _boolean, False, "Use the CUDA kernels of cards before Hopper on every card."
    )
    cuda_halves: bool = _row(
        _boolean,
        False,
        "On cards but Hopper, keep weights as halves, too: prompts skip an expansion, for 2 bytes "
        "a weight. Hopper's kernels expand nothing apart.",
    )
    no_fuse_qkv: bool = _row(_boolean, False, "Keep Q, K and V projections as separate nodes.")
    no_fuse_ffn: bool = _row(_boolean, False, "Keep gate and up projections as separate nodes.")
    no_prefix_cache: bool = _row(_boolean, False, "Never reuse KV pages between requests.")
    # Looking inside
    trace: Path | None = _row(_path, None, "Write a trace of every node to this file.")
    trace_format: str = _row(
        _one_of("json", "perfetto"),
        "json",
        "Form of a trace: `json` lines, for `minfer diff`, or `perfetto` for ui.perfetto.dev.",
    )
    verify: bool = _row(
        _boolean, False, "Check the graph against its specification after every pass."
    )
    debug: bool = _row(_boolean, False, "Show tracebacks of errors in the command line.")
    # Serving
    api_keys: str = _row(
        str, "", "Keys of which a request to `minfer serve` must bear one, separated by commas."
    )
    # Files
    cache_dir: Path | None = _row(_path, None, "Folder of downloaded models and compiled kernels.")
    offline: bool = _row(_boolean, False, "Never use the network.")

    # Read from other programs' conventions by `load`
    xdg_cache: Path = field(default=Path("~/.cache"), metadata={"env": "XDG_CACHE_HOME"})
    hf_hub_cache: Path = field(
        default=Path("~/.cache/huggingface/hub"), metadata={"env": "HF_HUB_CACHE"}
    )
    hf_endpoint: str = field(default="https://huggingface.co", metadata={"env": "HF_ENDPOINT"})
    hf_token: str | None = field(default=None, metadata={"env": "HF_TOKEN"}, repr=False)
    ollama_models: Path = field(default=Path("~/.ollama/models"), metadata={"env": "OLLAMA_MODELS"})
    ollama_registry: str = field(
        default="https://registry.ollama.ai", metadata={"env": "OLLAMA_REGISTRY"}
    )

    def __post_init__(self) -> None:
        for name in ("xdg_cache", "hf_hub_cache", "ollama_models"):
            object.__setattr__(self, name, getattr(self, name).expanduser())

    @staticmethod
    def load(environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `environ` (the process environment by default).

        Raises:
            SettingsError: for an unknown `MINFER_*` name or a value its row cannot parse.
        """
        env = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        rows = {PREFIX + f.name.upper(): f for f in ROWS}
        for name, text in env.items():
            if not name.startswith(PREFIX):
                continue
            if name not in rows:
                short = name.removeprefix(PREFIX).lower()
                close = difflib.get_close_matches(short, [f.name for f in ROWS], n=1)
                raise SettingsError(
                    f"unknown setting with value {text!r}",
                    where=name,
                    remedy=f"Did you mean {PREFIX}{close[0].upper()}?"
                    if close
                    else "See docs/settings.md",
                )
            try:
                values[rows[name].name] = rows[name].metadata["parse"](text)
            except ValueError as error:
                raise SettingsError(f"value {text!r} is unusable: {error}", where=name) from None
        return Settings(**(_conventions(env) | values))

    @property
    def cache(self) -> Path:
        """The folder for downloaded models and compiled kernels."""
        return self.cache_dir if self.cache_dir else self.xdg_cache / "minfer"


def _conventions(env: Mapping[str, str]) -> dict[str, Any]:
    home = Path(env.get("HOME", "~")).expanduser()
    xdg = Path(env["XDG_CACHE_HOME"]) if env.get("XDG_CACHE_HOME") else home / ".cache"
    hf_home = Path(env["HF_HOME"]) if env.get("HF_HOME") else xdg / "huggingface"
    found: dict[str, Any] = {
        "xdg_cache": xdg,
        "hf_hub_cache": Path(env.get("HF_HUB_CACHE") or hf_home / "hub"),
        "ollama_models": Path(env.get("OLLAMA_MODELS") or home / ".ollama" / "models"),
        "hf_token": env.get("HF_TOKEN") or _saved_token(hf_home),
    }
    if env.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        found["offline"] = True
    if env.get("HF_ENDPOINT"):
        found["hf_endpoint"] = env["HF_ENDPOINT"].rstrip("/")
    if env.get("OLLAMA_REGISTRY"):
        found["ollama_registry"] = env["OLLAMA_REGISTRY"].rstrip("/")
    return found


def _saved_token(hf_home: Path) -> str | None:
    """The token that `hf auth login` leaves."""
    path = hf_home / "token"
    return path.read_text().strip() or None if path.is_file() else None


ROWS = tuple(f for f in fields(Settings) if "parse" in f.metadata)
"""The `MINFER_*` rows, in the order of the documentation."""
