"""A kernel's preprocessed text as C++: inline PTX becomes calls, shared variables become places.

Every `asm` statement is parsed: its operands are bound once, and each instruction is a call of the
function of `ptx.h` of that name (what is no letter or digit is an underscore). So the registers,
constraints and the order of operands that a GPU would see are those that run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

_ASM = re.compile(r"\basm\b\s*(?:volatile\b)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SHARED = re.compile(
    r"(?P<extern>extern\s+)?__shared__\s+(?:alignas\(\d+\)\s+)?(?P<type>\w+)\s+(?P<names>[^;]+);"
)
_DECLARATOR = re.compile(r"\s*(\w+)\s*((?:\[[^\]]*\])*)\s*(?:,|$)")
_ENTRY = re.compile(r'extern "C" void\s+(\w+)\(')
_REGISTER = re.compile(r"\.reg\s+\.(\w+)\s+(\w+)")
_REGISTER_TYPES = {"pred": "bool", "b32": "u32", "b64": "u64"}
_WGMMA_SHAPE = re.compile(r"m64n\d+k16")

PRELUDE = '#include "ptx.h"\n'


def translate(text: str) -> str:
    """C++ of a kernel file whose macros are expanded, with an entry point for each kernel."""
    variables = count()

    def shared(match: re.Match[str]) -> str:
        return " ".join(_shared(match, variables))

    body = _SHARED.sub(shared, _without_asm(text))
    return "\n".join([PRELUDE, body, *(_entry(name) for name in kernels(text))])


def kernels(text: str) -> list[str]:
    """Names of the kernels in a preprocessed text."""
    return list(dict.fromkeys(_ENTRY.findall(text)))


def _entry(name: str) -> str:
    return (
        f'extern "C" void {name}__run(const u64* raw) {{ emulated::call({name}, raw); }}\n'
        f'extern "C" void {name}__sizes(int* to) {{ emulated::sizes({name}, to); }}'
    )


def _shared(match: re.Match[str], variables: Iterator[int]) -> Iterator[str]:
    kind = match["type"]
    for name, dimensions in _DECLARATOR.findall(match["names"]):
        if match["extern"]:
            yield f"{kind}* const {name} = ({kind}*)emulated::dynamic_shared();"
        else:
            place = f"emulated_static<{kind}{dimensions}>({next(variables)})"
            yield f"auto& {name} = {place};"


def _without_asm(text: str) -> str:
    parts: list[str] = []
    position = 0
    while match := _ASM.search(text, position):
        end = _closing(text, match.end())
        parts.append(text[position : match.start()])
        parts.append(_statement(text[match.end() : end]))
        position = text.index(";", end) + 1
    return "".join([*parts, text[position:]])


def _closing(text: str, position: int) -> int:
    """Where the parenthesis that is open at `position` closes."""
    depth = 1
    while depth:
        if text[position] == '"':
            string = _STRING.match(text, position)
            assert string
            position = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return position - 1


def _split(text: str, separator: str) -> list[str]:
    """Pieces of `text` between separators that are in no bracket and no string."""
    pieces, depth, start, position = [], 0, 0, 0
    while position < len(text):
        if text[position] == '"':
            string = _STRING.match(text, position)
            assert string
            position = string.end()
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[position], 0)
        if text[position] == separator and not depth:
            pieces.append(text[start:position])
            start = position + 1
        position += 1
    return [*pieces, text[start:]]


def _statement(inside: str) -> str:
    template, *operands = _split(inside, ":")
    lines = []
    number = 0
    for kind, listed in zip(("auto&", "const auto&"), operands, strict=False):
        for operand in filter(str.strip, _split(listed, ",")):
            expression = operand[operand.index("(") :].strip()
            lines.append(f"{kind} operand_{number} = {expression};")
            number += 1
    code = "".join(_STRING.findall(template)).strip()
    if code.startswith("{"):
        code = code[1 : code.rindex("}")]
    lines += [_instruction(line.strip()) for line in code.split(";") if line.strip()]
    newlines = "\n" * inside.count("\n")
    return "{ " + " ".join(lines) + " }" + newlines


def _instruction(line: str) -> str:
    if register := _REGISTER.fullmatch(line):
        return f"{_REGISTER_TYPES[register[1]]} {register[2]};"
    name, _, rest = line.partition(" ")
    name = re.sub(r"\W", "_", _WGMMA_SHAPE.sub("m64nNk16", name))
    listed = _split(rest.replace("|", ","), ",")  # a|b are two results
    operands = ", ".join(_operand(x.strip()) for x in listed if x.strip())
    return f"ptx::{name}({operands});"


def _operand(text: str) -> str:
    if text.startswith("{"):
        return f"ptx::list({', '.join(_operand(x.strip()) for x in text[1:-1].split(','))})"
    if text.startswith("["):
        return _operand(text[1:-1])
    return f"operand_{text[1:]}" if text.startswith("%") else text
