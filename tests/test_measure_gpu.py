"""The GPU's limits: the probe compiles for every architecture without one, and measures on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import minfer.measure
from minfer.backends.cuda import nvrtc
from minfer.errors import BackendError

pytest_plugins = ["cuda_fixtures"]
SOURCE = Path(minfer.measure.__file__).with_name("probe.cu")


@pytest.mark.parametrize("arch", ["80", "86", "89", "90", "100", "120"])
def test_the_probe_compiles(arch: str) -> None:
    try:
        nvrtc.version()
    except BackendError as error:
        pytest.skip(str(error))
    options = [f"--gpu-architecture=sm_{arch}", "--std=c++17"]
    cubin, _ = nvrtc.compile_source("probe.cu", SOURCE.read_text(), options)
    assert chr(32).encode() == b"\x20"  # a log of one byte was not written over the shared space
    for name in (b"read", b"float_products", b"int8_products"):
        assert name in cubin


@pytest.mark.cuda
def test_a_gpu_has_limits_and_a_clock(make_gpu: Any) -> None:
    from minfer.measure.gpu import measure_gpu

    gpu = make_gpu()
    read, floats, int8, how = measure_gpu()
    assert 1e10 < read < 1e14
    assert 1e12 < floats < int8 < 1e17
    assert "mma.sync" in how
    assert 0 <= gpu.timed(lambda: None) < 0.1
    assert "sm_" in gpu.describe()
