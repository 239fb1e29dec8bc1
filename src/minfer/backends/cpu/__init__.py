"""The CPU backend: C++ kernels for AVX-512, AVX2, NEON and plain processors, chosen at run time."""

from minfer.backends.cpu.backend import CpuBackend, available_isas
from minfer.backends.cpu.cores import usable_cores
from minfer.backends.cpu.supports import reason_against
from minfer.settings import Settings


def create(settings: Settings) -> CpuBackend:
    """Make the CPU backend; `threads` and `cpu_isa` of the settings apply.

    Raises:
        UnsupportedError: if this processor lacks the instruction set asked for.
    """
    return CpuBackend(settings)


__all__ = ["CpuBackend", "available_isas", "create", "reason_against", "usable_cores"]
