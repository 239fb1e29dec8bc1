"""What an NVIDIA GPU allows at most: a read of memory, and tensor-core products in registers.

The kernels are in `probe.cu`, compiled here with NVRTC for the card at hand; no kernel of minfer is
used. `mma.sync` is what every card since sm_80 has; sm_90 reaches more with `wgmma`, so there the
compute figures are a floor's floor, and `how` says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from minfer.errors import BackendError

READ_BYTES = 4 << 30
BLOCKS_PER_SM = 8
THREADS = 256
ROUNDS = 4096
BEST_OF = 5
MMAS = 4
"""Independent products a warp keeps in flight; `probe.cu` has the same number."""
FLOAT_OPS = 2 * 16 * 8 * 16
INT8_OPS = 2 * 16 * 8 * 32
"""Operations of one `mma.sync` of a warp: m16n8k16 of halves, m16n8k32 of bytes."""


def measure_gpu() -> tuple[float, float, float, str]:
    """Bytes read, float and 8-bit operations a second of the first GPU, and how it was found.

    Raises:
        BackendError: if the packages are missing or the device fails.
    """
    try:
        from cuda.core import Device, EventOptions, LaunchConfig, Program, ProgramOptions, launch
    except ImportError as error:
        raise BackendError(
            f"the GPU cannot be measured: {error}", where="--floor", remedy="Install minfer[cuda]"
        ) from None
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    source = Path(__file__).with_name("probe.cu").read_text(encoding="utf-8")
    arch = "".join(map(str, device.compute_capability))
    options = ProgramOptions(std="c++17", arch=f"sm_{arch}")
    kernels = Program(source, "c++", options=options).compile("cubin")
    n_blocks = device.properties.multiprocessor_count * BLOCKS_PER_SM
    nbytes = min(READ_BYTES, _free_bytes() // 2)
    memory = device.allocate(nbytes, stream=stream)
    sink = device.allocate(256, stream=stream)

    def best(name: str, *arguments: Any) -> float:
        config = LaunchConfig(grid=n_blocks, block=THREADS)
        kernel = kernels.get_kernel(name)
        times = []
        for _ in range(BEST_OF):
            begin = stream.record(options=EventOptions(timing_enabled=True))
            launch(stream, config, kernel, *arguments)
            end = stream.record(options=EventOptions(timing_enabled=True))
            end.sync()
            times.append((end - begin) / 1e3)
        return float(min(times))

    try:
        read = nbytes / best("read", memory, np.int64(nbytes // 16), sink)
        products = n_blocks * THREADS // 32 * ROUNDS * MMAS
        floats = products * FLOAT_OPS / best("float_products", np.int32(ROUNDS), sink)
        int8 = products * INT8_OPS / best("int8_products", np.int32(ROUNDS), sink)
    finally:
        memory.close(stream)
        sink.close(stream)
        stream.sync()
    return read, floats, int8, "reads, and mma.sync of halves and bytes in registers"


def _free_bytes() -> int:
    from cuda.bindings import driver

    status, free, _ = driver.cuMemGetInfo()
    if int(status):
        raise BackendError(f"asking for free memory: {status.name}", where="--floor")
    return int(free)
