"""What every backend says of itself: how long work took, and what it runs on."""

from __future__ import annotations

import time

from minfer.backends import create_backend
from minfer.settings import Settings


def test_work_is_run_once_and_timed(backend_name: str) -> None:
    backend = create_backend(backend_name, Settings(threads=2))
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        time.sleep(0.02)

    seconds = backend.timed(work)
    assert runs == [1]
    if backend_name == "cuda":  # what the host does while it enqueues does not count
        assert 0 <= seconds < 0.01
    else:
        assert 0.0195 <= seconds < 2
    backend.close()


def test_a_backend_names_its_device(backend_name: str) -> None:
    backend = create_backend(backend_name, Settings(threads=2))
    said = {"reference": "NumPy", "cpu": "2 threads", "cuda": "sm_"}
    assert said[backend_name] in backend.describe()
    backend.close()
