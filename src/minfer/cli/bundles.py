"""Options in bundles: a verb takes a dataclass, the command line shows its fields.

Verbs that run a model share dozens of options. Each is stated once, as a field of a dataclass
annotated with `typer.Option`; `flat` gives typer the flat signature it wants and hands the verb
the dataclass. A field without a default is a required argument.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def flat(verb: Callable[..., None]) -> Callable[..., None]:
    """A function with the verb's parameters, where each dataclass is replaced by its fields."""
    hints = get_type_hints(verb, include_extras=True)
    hints.pop("return", None)
    bundles: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.name in bundles:
            parameters += _fields(bundles[parameter.name])
        else:
            annotation = hints[parameter.name]
            parameters.append(_parameter(parameter.name, parameter.default, annotation))

    @functools.wraps(verb)
    def call(**given: Any) -> None:
        for name, bundle in bundles.items():
            given[name] = bundle(**{f.name: given.pop(f.name) for f in fields(bundle)})
        verb(**given)

    del call.__wrapped__  # typer would follow it to the old signature
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _fields(bundle: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    return [
        _parameter(
            field.name,
            inspect.Parameter.empty if field.default is MISSING else field.default,
            hints[field.name],
        )
        for field in fields(bundle)
    ]


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
