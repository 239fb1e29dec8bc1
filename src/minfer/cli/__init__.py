"""The command line. `app` has the table of verbs, a file each; `report` says how commands end.

Verbs import the engine only when they run, so that `minfer --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Carry out the command line of this process."""
    try:
        from minfer.cli.app import call
        from minfer.cli.report import leave
    except KeyboardInterrupt:  # before there is a command that could say so
        sys.exit(130)
    code = call(sys.argv[1:])
    if sys.argv[1:2] == ["serve"]:
        leave(code)
    sys.exit(code)
