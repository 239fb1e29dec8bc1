"""What is said when CUDA is missing or fails; needs no GPU."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any

import pytest

from minfer.backends import create_backend, cuda
from minfer.backends.cuda import device, driver, nvrtc
from minfer.backends.cuda.device import Faults, arch_name
from minfer.errors import BackendError
from minfer.settings import Settings


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "cuda" or name.startswith("cuda."):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("without_packages")
def test_missing_packages_are_named_with_their_remedy() -> None:
    for ask in (
        driver.bindings,
        driver.core,
        nvrtc.version,
        lambda: create_backend("cuda", Settings()),
    ):
        with pytest.raises(BackendError, match=r"missing.*pip install 'minfer\[cuda\]'"):
            ask()


@pytest.mark.usefixtures("without_packages")
def test_doctor_has_a_line_for_each_part() -> None:
    found = cuda.doctor(Settings())
    assert found["NVRTC"].startswith("missing:")
    assert found["driver"].startswith("missing:")
    assert "pip install" in found["driver"]
    assert found["GPU"] == "missing: as the driver is"  # the same words twice help nobody


def fake_driver(
    monkeypatch: pytest.MonkeyPatch, status: str, count: int = 1, cuda: int = 13000
) -> None:
    class Status(int):
        name = status

    code = Status(0 if status == "CUDA_SUCCESS" else 100)
    bindings = SimpleNamespace(
        cuInit=lambda flags: (code,),
        cuDeviceGetCount=lambda: (code, count),
        cuDriverGetVersion=lambda: (Status(0), cuda),
    )
    monkeypatch.setattr(driver, "bindings", lambda: bindings)


def test_a_driver_without_gpus_is_told_from_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, "CUDA_SUCCESS", 2)
    assert driver.initialise() == 2
    fake_driver(monkeypatch, "CUDA_ERROR_NO_DEVICE")
    with pytest.raises(BackendError, match="no NVIDIA GPU"):
        driver.initialise()
    fake_driver(monkeypatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    with pytest.raises(BackendError, match="SYSTEM_DRIVER_MISMATCH"):
        driver.initialise()


def test_a_machine_without_a_driver_is_told_so_in_plain_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_found(flags: int) -> None:
        raise RuntimeError('"cuda" is an NVIDIA driver library\nand much more')

    monkeypatch.setattr(driver, "bindings", lambda: SimpleNamespace(cuInit=not_found))
    with pytest.raises(BackendError) as caught:
        driver.initialise()
    assert "no NVIDIA driver was found" in caught.value.what
    assert "much more" not in str(caught.value)  # but in a traceback, for who wants to know
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("cuda", "compiler", "loads"),
    [
        (13000, (13, 0), True),
        (13000, (13, 5), True),
        (13010, (12, 9), True),
        (12040, (13, 0), False),
    ],
)
def test_a_driver_too_old_for_the_compiler_is_told_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, cuda: int, compiler: tuple[int, int], loads: bool
) -> None:
    fake_driver(monkeypatch, "CUDA_SUCCESS", cuda=cuda)
    if loads:
        driver.check_compiler(compiler)
        return
    with pytest.raises(BackendError, match=r"CUDA 12\.4 .*NVRTC 13\.0.*Update the NVIDIA driver"):
        driver.check_compiler(compiler)


@pytest.mark.cuda
def test_doctor_says_what_the_gpu_is() -> None:
    found = cuda.doctor(Settings())
    if found["GPU"].startswith("missing:"):
        pytest.skip(found["driver"])
    assert not [name for name, line in found.items() if line.startswith("missing:")]
    assert "sm_" in found["GPU"] and "MiB free" in found["GPU"]
    assert "for CUDA" in found["driver"]


class Hung:
    """A driver whose device never gets done."""

    class NotReady(int):
        name = "CUDA_ERROR_NOT_READY"

    def cuStreamQuery(self, stream: int) -> tuple[int]:
        return (self.NotReady(600),)


def test_a_device_that_never_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "PATIENCE_S", 0.05)
    hung = device.Device.__new__(device.Device)
    vars(hung).update(_cuda=Hung(), _handle=0, faults=Faults())
    with pytest.raises(BackendError, match="did not answer within 0 s"):
        hung._wait("waiting for the device", None)


@pytest.mark.parametrize("name", driver.STICKY)
def test_sticky_errors_say_that_the_process_is_lost(name: str) -> None:
    error = driver.explain(name, "replaying a graph")
    assert "all further work" in str(error)
    assert name in str(error)
    assert "replaying a graph" in str(error)
    assert "again" in str(error.remedy)


def test_other_errors_name_what_was_done() -> None:
    class Status(int):
        name = "CUDA_ERROR_INVALID_VALUE"

    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE while copying"):
        driver.check((Status(1),), "copying")
    assert driver.check((Status(0), 5), "asking") == 5
    assert driver.check((Status(0), 5, 6), "asking") == (5, 6)
    assert driver.check((Status(0),), "asking") is None


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "80"), ((8, 9), "89"), ((9, 0), "90a"), ((10, 0), "100a"), ((12, 0), "120a")],
)
def test_architectures_with_own_instructions_are_named_so(
    capability: tuple[int, int], arch: str
) -> None:
    assert arch_name(capability) == arch


def test_a_planted_failure_happens_as_often_as_asked() -> None:
    faults = Faults()
    faults.pass_through("launch")
    faults.arm("launch", 2)
    for _ in range(2):
        with pytest.raises(BackendError, match="launch"):
            faults.pass_through("launch")
    faults.pass_through("launch")
