"""A compiler process: jobs as JSON lines on standard input, an answer a line on standard output.

Run by `compile` as a program of its own, so that a user's script needs no main guard.
"""

from __future__ import annotations

import json
import sys

from minfer.backends.cuda.compile import Job, write_cubin
from minfer.errors import BackendError


def main() -> None:
    """Compile every job read; answer `[name, error or null]` for each."""
    for line in sys.stdin:
        name, source, options, target = json.loads(line)
        error = None
        try:
            write_cubin(Job(name, source, tuple(options), target))
        except BackendError as failure:
            error = str(failure)
        print(json.dumps([name, error]), flush=True)
