"""A verb that takes dataclasses shows a flat signature and gets its dataclasses back."""

import inspect
from dataclasses import dataclass
from typing import Annotated

from minfer.cli.bundles import flat


@dataclass(frozen=True)
class Size:
    """Two fields, one of them required."""

    width: Annotated[int, "how wide"]
    height: int = 2


def test_flat_and_back() -> None:
    seen: list[object] = []

    def verb(name: str, size: Size, loud: bool = False) -> None:
        """Say it."""
        seen.extend((name, size, loud))

    call = flat(verb)
    parameters = inspect.signature(call).parameters
    assert list(parameters) == ["name", "width", "height", "loud"]
    assert parameters["width"].default is inspect.Parameter.empty
    assert parameters["height"].default == 2
    assert parameters["width"].annotation == Annotated[int, "how wide"]
    assert call.__doc__ == "Say it."
    call(name="x", width=1, height=3, loud=True)
    assert seen == ["x", Size(1, 3), True]
