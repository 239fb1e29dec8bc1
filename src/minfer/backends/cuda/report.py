"""What `minfer doctor` says of CUDA: each part found, or what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from minfer.backends.cuda import driver, nvrtc
from minfer.backends.cuda.device import Device
from minfer.errors import BackendError
from minfer.settings import Settings

PACKAGES = ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc")


def report(settings: Settings) -> dict[str, str]:
    """A line for each part, by name; a missing part's line starts with `missing:`."""
    found = {package: _package(package) for package in PACKAGES}
    found["NVRTC"] = _part(lambda: ".".join(map(str, nvrtc.version())))
    found["headers"] = "none are needed"
    found["driver"] = _part(_driver)
    gpu = _part(lambda: _device(settings))
    found["GPU"] = "missing: as the driver is" if gpu == found["driver"] else gpu
    folder = settings.cache / "cubin"
    found["compiled kernels"] = f"{len(list(folder.glob('*.cubin')))} in {folder}"
    return found


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return f"missing: {nvrtc.REMEDY}"


def _part(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except BackendError as error:
        return f"missing: {error}"


def _driver() -> str:
    count = driver.initialise()
    major, minor = driver.version()
    return f"for CUDA {major}.{minor}, {count} GPU{'s' * (count != 1)}"


def _device(settings: Settings) -> str:
    device = Device(settings)
    facts, (free, total) = device.facts, device.memory()
    device.close()
    return (
        f"{facts.name}, sm_{facts.arch}, {facts.n_sms} multiprocessors, "
        f"{free >> 20} of {total >> 20} MiB free"
    )
