"""The CUDA kernels on the CPU, thread by thread: a device for tests that need no GPU."""

from emulated.build import Emulator, emulator, reason_against
from emulated.device import AMPERE, HOPPER, EmulatedDevice, emulated_backend

__all__ = [
    "AMPERE",
    "HOPPER",
    "EmulatedDevice",
    "Emulator",
    "emulated_backend",
    "emulator",
    "reason_against",
]
