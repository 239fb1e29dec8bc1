"""What the Ray application is told about replicas, without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from minfer.deploy.application import build, how_many
from minfer.errors import MinferError, RequestError, ServerError

try:
    import ray  # noqa: F401
except ImportError:
    HAS_RAY = False
else:
    HAS_RAY = True


def test_a_fixed_number() -> None:
    assert how_many(2, None, 8, {}) == {"num_replicas": 2}
    assert how_many(2, 2, 8, {}) == {"num_replicas": 2}


def test_a_number_that_follows_the_load() -> None:
    assert how_many(1, 4, 16, {"upscale_delay_s": 5}) == {
        "autoscaling_config": {
            "min_replicas": 1,
            "max_replicas": 4,
            "target_ongoing_requests": 16,  # what a replica computes in one step
            "upscale_delay_s": 5,
        }
    }
    changed = how_many(1, 4, 16, {"target_ongoing_requests": 3})
    assert changed["autoscaling_config"]["target_ongoing_requests"] == 3


@pytest.mark.parametrize(
    ("least", "most", "autoscaling", "where"),
    [
        (0, None, {}, "replicas"),
        (0, 4, {}, "replicas"),
        (3, 2, {}, "replicas"),
        (1, 0, {}, "replicas"),
        (2, None, {"upscale_delay_s": 5}, "autoscaling"),
        (2, 2, {"upscale_delay_s": 5}, "autoscaling"),
    ],
)
def test_numbers_without_sense(
    least: int, most: int | None, autoscaling: dict[str, Any], where: str
) -> None:
    with pytest.raises(RequestError) as refused:
        how_many(least, most, 8, autoscaling)
    assert refused.value.where == where


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_it_says_what_to_install() -> None:
    with pytest.raises(ServerError, match="ray"):
        build({"model": "m"})


@pytest.mark.skipif(not HAS_RAY, reason="needs the extra `ray`")
@pytest.mark.filterwarnings("ignore")
def test_what_ray_is_given_from_a_command_line() -> None:
    given = {"model": "m", "replicas": "1", "max_replicas": "3", "max_sequences": "4"}
    front = build({**given, "timeout": "5", "autoscaling": {"upscale_delay_s": 1}})
    (copies,) = front._bound_deployment.init_args
    replicas = copies._bound_deployment
    scaling = replicas._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 3)
    assert (scaling.target_ongoing_requests, scaling.upscale_delay_s) == (4, 1)
    assert replicas._deployment_config.max_ongoing_requests == 4 + 64
    assert replicas.init_args[1].timeout == 5
    for wrong in ({"replicas": "5", "max_replicas": "3"}, {"timeout": "0"}):
        with pytest.raises(MinferError):
            build({**given, **wrong})
