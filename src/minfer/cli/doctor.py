"""`minfer doctor`: what minfer found on this machine, and what is missing and how to get it."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys

from minfer import __version__
from minfer.cli.options import Debug
from minfer.cli.terminal import table
from minfer.settings import ROWS, Settings


def doctor(debug: Debug = False) -> None:
    """Show what minfer finds on this machine and what it misses."""
    from minfer.backends.cuda import doctor as cuda

    settings = Settings.load()
    changed = [
        f"{row.name}={getattr(settings, row.name)}"
        for row in ROWS
        if getattr(settings, row.name) != row.default
    ]
    has_pip = importlib.util.find_spec("pip") is not None
    rows = [
        ("minfer", __version__),
        ("Python", f"{platform.python_version()} at {sys.executable}"),
        ("machine", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("CPUs", f"{_usable_cpus()} of {os.cpu_count()} may be used"),
        ("pip", "found" if has_pip else "missing: run `python -m ensurepip`"),
        ("cache", str(settings.cache)),
        ("settings", ", ".join(changed) or "all as by default"),
        *cuda(settings).items(),
    ]
    print(table(rows))


def _usable_cpus() -> int | None:
    """CPUs this process may run on, where the system tells, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
