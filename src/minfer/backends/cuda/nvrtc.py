"""NVRTC, the run-time compiler: source text and options to a cubin. Needs no driver and no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minfer.errors import BackendError

REMEDY = "Install it with: pip install 'minfer[cuda]'"


def _library() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise BackendError(
            f"the CUDA Python bindings are missing ({error})", where="cuda", remedy=REMEDY
        ) from None
    return nvrtc


def version() -> tuple[int, int]:
    """Version of the NVRTC library, e.g. (13, 0).

    Raises:
        BackendError: when the bindings or the library are missing, with what to install.
    """
    library = _library()
    try:
        status, major, minor = library.nvrtcVersion()
    except RuntimeError as error:  # the bindings' answer when libnvrtc cannot be found
        raise BackendError(
            f"the run-time compiler libnvrtc cannot be loaded ({error})",
            where="NVRTC",
            remedy=REMEDY,
        ) from None
    if status != library.nvrtcResult.NVRTC_SUCCESS:
        raise BackendError(f"nvrtcVersion failed: {status}", where="NVRTC", remedy=REMEDY)
    return int(major), int(minor)


def compile_source(name: str, source: str, options: Sequence[str]) -> tuple[bytes, str]:
    """Compile to a cubin.

    Returns:
        The cubin and the compiler's messages.

    Raises:
        BackendError: with the messages, when it does not compile.
    """
    library = _library()
    version()

    def call(function: Any, *args: Any) -> Any:
        status, *values = function(*args)
        if status != library.nvrtcResult.NVRTC_SUCCESS:
            raise BackendError(f"{function.__name__} failed: {status}", where=name)
        return values[0] if values else None

    program = call(library.nvrtcCreateProgram, source.encode(), name.encode(), 0, [], [])
    try:
        encoded = [o.encode() for o in options]
        (status,) = library.nvrtcCompileProgram(program, len(encoded), encoded)
        # NVRTC writes into the bytes themselves. An empty log is one zero, and bytes of length 1
        # are shared by the whole process: they must be that zero already.
        log = bytes(call(library.nvrtcGetProgramLogSize, program))
        call(library.nvrtcGetProgramLog, program, log)
        text = log.rstrip(b"\0 \n").decode(errors="replace")
        if status != library.nvrtcResult.NVRTC_SUCCESS:
            raise BackendError(f"the kernel does not compile ({status}):\n{text}", where=name)
        cubin = bytes(call(library.nvrtcGetCUBINSize, program))
        call(library.nvrtcGetCUBIN, program, cubin)
        return cubin, text
    finally:
        library.nvrtcDestroyProgram(program)
