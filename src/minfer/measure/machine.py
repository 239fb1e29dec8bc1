"""Which machine and which build a figure belongs to."""

from __future__ import annotations

import functools
import platform
import subprocess
from pathlib import Path


@functools.cache
def cpu_name() -> str:
    """Model of this machine's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # another system: Python's own answer serves
    return platform.processor() or platform.machine()


@functools.cache
def commit() -> str:
    """Short hash of the checkout this runs from, with `+` where it differs; "" outside of one."""
    package = Path(__file__).resolve().parents[1]
    git = ["git", "-C", str(package)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        # an installed package may lie below somebody else's repository
        known = subprocess.run(
            [*git, "ls-files", "--error-unmatch", str(package / "__init__.py")],
            capture_output=True,
        )
        if known.returncode:
            return ""
        changes = subprocess.run(
            [*git, "status", "--porcelain", "--", str(package)], capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")
