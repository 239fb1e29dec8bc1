"""How many cores and how much memory this process may use, as the system tells it.

Control groups bound both below what the machine has: a container that runs as many spinning
threads as the machine has cores gets throttled, one that fills the machine's memory gets killed.
Other systems than Linux have no such files; what Python tells of the machine is taken there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from minfer.backends.base import Budget
from minfer.errors import RequestError

MOST_A_CORE, LEAST_LIMIT = 4, 32
"""Threads that may be asked for, a core and in all."""

_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Physical cores this process may run on, within its control group's quota; at least 1."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    # Two hardware threads of a core share its vector units: a second one would only add waiting.
    cores = {_siblings(cpu) for cpu in cpus}
    count = len(cores) or os.cpu_count() or 1
    return max(1, min([count, *_quotas()]))


def n_threads(asked: int, cores: int) -> int:
    """Threads to run: as many as there are cores unless a number was asked for.

    Raises:
        RequestError: for more than `MOST_A_CORE` a core: a step waits for all of its threads, so
            each one that has no core makes it slower, and a thousand leave no machine.
    """
    most = max(LEAST_LIMIT, MOST_A_CORE * cores)
    if asked > most:
        raise RequestError(
            f"value {asked} is more than the {most} threads that {cores} "
            f"core{'s' * (cores > 1)} can serve",
            where="threads",
            remedy=f"Use {cores}, or 0 to take what there is",
        )
    return asked or cores


def memory_budget() -> Budget:
    """Memory that can still be taken: what the system calls available, within the control group."""
    available = _meminfo("MemAvailable")
    limit = min(_cgroup_memory(), default=None)
    if limit is not None and limit < available:
        return Budget(limit, "what the control group's memory limit leaves")
    return Budget(available, "MemAvailable of /proc/meminfo")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None  # the file is another system's way of telling


def _siblings(cpu: int) -> str:
    return _read(_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)


def _quotas() -> Iterator[int]:
    """Whole cores' worth of time, by control group version 2 and 1."""
    v2 = (_read(_CGROUP / "cpu.max") or "max").split()
    if v2[0] != "max":
        yield max(1, round(int(v2[0]) / int(v2[1])))
    quota = _read(_CGROUP / "cpu" / "cpu.cfs_quota_us")
    period = _read(_CGROUP / "cpu" / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        yield max(1, round(int(quota) / int(period)))


def _cgroup_memory() -> Iterator[int]:
    for limit_file, used_file in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (
            _CGROUP / "memory" / "memory.limit_in_bytes",
            _CGROUP / "memory" / "memory.usage_in_bytes",
        ),
    ):
        limit, used = _read(limit_file), _read(used_file)
        if limit and used and limit != "max":
            yield max(0, int(limit) - int(used))


def _meminfo(field: str) -> int:
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
