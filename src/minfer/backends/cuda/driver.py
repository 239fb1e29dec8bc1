"""The CUDA driver's calls with every status checked, and its errors explained.

The only file that knows the bindings' private corners. Nothing here holds state.
"""

from __future__ import annotations

from typing import Any

from minfer.errors import BackendError

INSTALL = "Install the bindings with: pip install 'minfer[cuda]'"
DRIVER = (
    "Install the NVIDIA driver, and in a container start it with GPU access (docker: --gpus all)"
)

STICKY = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel read or wrote outside of its memory",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "a kernel used a misaligned address",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "a kernel executed an illegal instruction",
    "CUDA_ERROR_INVALID_PC": "a kernel jumped to an invalid address",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "a kernel mixed up address spaces",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "a kernel overflowed its stack",
    "CUDA_ERROR_LAUNCH_FAILED": "a kernel failed",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "a kernel ran into the display driver's time limit",
    "CUDA_ERROR_ASSERT": "a kernel's assertion failed",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "the device's memory has an uncorrectable error",
}
"""Errors after which every later call in the process fails too."""


def bindings() -> Any:
    """The driver API's bindings.

    Raises:
        BackendError: when they are not installed.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BackendError(
            f"the CUDA Python bindings are missing ({error})", where="cuda", remedy=INSTALL
        ) from None
    return driver


def core() -> Any:
    """The module `cuda.core`.

    Raises:
        BackendError: when it is not installed.
    """
    try:
        import cuda.core as module
    except ImportError as error:
        raise BackendError(
            f"the package cuda-core is missing ({error})", where="cuda", remedy=INSTALL
        ) from None
    return module


def cuda_errors() -> tuple[type[Exception], ...]:
    """The exceptions that `cuda.core` raises for a failed CUDA call."""
    module = core()
    failed: type[Exception] | None = getattr(module, "CUDAError", None)  # from cuda-core 1.3
    if failed is None:
        from cuda.core._utils import cuda_utils

        failed = cuda_utils.CUDAError
    return (failed, RuntimeError)


def explain(name: str, doing: str) -> BackendError:
    """The error to raise for the CUDA error `name`, met while `doing` something."""
    if name in STICKY:
        return BackendError(
            f"{STICKY[name]} ({name}, seen while {doing}); CUDA refuses all further work of "
            "this process",
            where="cuda",
            remedy="Start the program again; if it happens again, report the model and command",
        )
    return BackendError(f"{name} while {doing}", where="cuda")


def check(result: Any, doing: str) -> Any:
    """Unpack what a driver call answered.

    Args:
        result: status and values, as the bindings return them.
        doing: what was attempted, for the message: `copying to the device`.

    Returns:
        The value, None if there is none, a tuple if there are several.

    Raises:
        BackendError: when the status is not success.
    """
    status, *values = result
    if int(status) != 0:
        raise explain(status.name, doing)
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def initialise() -> int:
    """Start the driver and count the devices.

    Raises:
        BackendError: when there is no driver, or it cannot start, with what to do.
    """
    driver = bindings()
    try:
        (status,) = driver.cuInit(0)
        if int(status) == 0:
            status, count = driver.cuDeviceGetCount()
    except RuntimeError as error:  # the bindings' answer when libcuda cannot be found
        raise BackendError(
            "no NVIDIA driver was found: its library libcuda cannot be loaded",
            where="cuda",
            remedy=DRIVER,
        ) from error
    if status.name == "CUDA_ERROR_NO_DEVICE":
        raise BackendError("the driver sees no NVIDIA GPU", where="cuda", remedy=DRIVER)
    if int(status) != 0:
        raise BackendError(f"the driver cannot start: {status.name}", where="cuda", remedy=DRIVER)
    return int(count)


def version() -> tuple[int, int]:
    """The newest CUDA the driver knows, e.g. (13, 0)."""
    number = int(check(bindings().cuDriverGetVersion(), "asking for the driver's version"))
    return number // 1000, number % 1000 // 10


def check_compiler(compiler: tuple[int, int]) -> None:
    """Refuse kernels of a compiler that is newer than the driver by a major version.

    Within a major version a driver loads what any compiler made.

    Args:
        compiler: NVRTC's version.

    Raises:
        BackendError: with both versions; loading a kernel would fail later, and say less.
    """
    known = version()
    if compiler[0] > known[0]:
        raise BackendError(
            f"the driver is for CUDA {known[0]}.{known[1]} and does not load kernels that NVRTC "
            f"{compiler[0]}.{compiler[1]} compiles",
            where="cuda",
            remedy=f"Update the NVIDIA driver to one for CUDA {compiler[0]} or later",
        )
