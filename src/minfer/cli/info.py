"""`minfer info`: what a GGUF file says about itself. Reads the file's head, loads no tensor."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minfer.cli.options import Debug, ModelName
from minfer.cli.terminal import in_bytes, in_short, progress_bar, table
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.gguf import GGUFFile

SHOWN = 8  # items of an array, and
WIDTH = 72  # characters of a text that a line shows


def info(
    model: ModelName,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with every value in full.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show what a model file says about itself, and its tensors by type."""
    from minfer import gguf, hub

    with progress_bar() as progress:
        path = hub.resolve(model, Settings.load(), progress=progress)
    with gguf.open_gguf(path) as file:
        if as_json:
            print(json.dumps(_as_json(file, tensors), ensure_ascii=False, indent=2))
        else:
            print("\n\n".join(_sections(file, tensors)))


def _sections(file: GGUFFile, tensors: bool) -> list[str]:
    n_params = sum(tensor.n_items for tensor in file.tensors.values())
    bits = 8 * sum(tensor.nbytes for tensor in file.tensors.values()) / max(n_params, 1)
    head = [
        ("file", str(file.path) + (f" and {rest} more" if (rest := len(file.shards) - 1) else "")),
        ("format", f"GGUF version {file.version}"),
        ("size", f"{in_bytes(file.nbytes)} ({file.nbytes:,} bytes)"),
        ("parameters", f"{in_short(n_params)} ({n_params:,}), {bits:.2f} bits each"),
    ]
    sections = [table(head), table([(key, _brief(value)) for key, value in _metadata(file)])]
    if file.tensors:
        rows = [
            (name, str(total.tensors), in_short(total.parameters), in_bytes(total.bytes))
            for name, total in _by_type(file).items()
        ]
        sections.append(table([("type", "tensors", "parameters", "size"), *rows]))
    if tensors:
        listed = [
            (tensor.name, str(tensor.dtype), " x ".join(map(str, tensor.shape)))
            for tensor in file.tensors.values()
        ]
        sections.append(table([("tensor", "type", "shape"), *listed]))
    return sections


@dataclass
class _Total:
    """What all tensors of one type amount to."""

    tensors: int = 0
    parameters: int = 0
    bytes: int = 0


def _by_type(file: GGUFFile) -> dict[str, _Total]:
    totals: dict[str, _Total] = {}
    for tensor in file.tensors.values():
        total = totals.setdefault(tensor.dtype.name, _Total())
        total.tensors += 1
        total.parameters += tensor.n_items
        total.bytes += tensor.nbytes
    return dict(sorted(totals.items(), key=lambda row: -row[1].bytes))


def _as_json(file: GGUFFile, tensors: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "path": str(file.path),
        "version": file.version,
        "bytes": file.nbytes,
        "parameters": sum(tensor.n_items for tensor in file.tensors.values()),
        "metadata": {key: _plain(value) for key, value in _metadata(file)},
        "types": {name: asdict(total) for name, total in _by_type(file).items()},
    }
    if tensors:
        described["tensors"] = [
            {
                "name": tensor.name,
                "type": tensor.dtype.name,
                "shape": list(tensor.shape),
                "bytes": tensor.nbytes,
            }
            for tensor in file.tensors.values()
        ]
    return described


def _metadata(file: GGUFFile) -> list[tuple[str, Any]]:
    return [(key, file.metadata[key]) for key in file.metadata]


def _plain(value: Any) -> Any:
    """A metadata value as JSON has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(value.value) if hasattr(value, "value") else value


def _brief(value: Any) -> str:
    """A metadata value on one line."""
    value = _plain(value)
    if isinstance(value, list):
        shown = ", ".join(json.dumps(item, ensure_ascii=False) for item in value[:SHOWN])
        more = f", … {len(value):,} in all" if len(value) > SHOWN else ""
        return f"[{shown}{more}]"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    line = json.dumps(text, ensure_ascii=False)[1:-1]
    return line if len(line) <= WIDTH else f"{line[:WIDTH]}… {len(text):,} characters"
