"""The Ray Serve application: a front that takes requests, and replicas that come and go by load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from minfer.deploy.calls import Call
from minfer.deploy.front import Answering, Front
from minfer.deploy.replica import Replica
from minfer.errors import RequestError, ServerError
from minfer.server import ServerConfig

REPLICA = "minfer-replica"
FRONT = "minfer-front"


def application(
    model: str,
    *,
    replicas: int = 1,
    max_replicas: int | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    fronts: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    config: ServerConfig | None = None,
    **options: Any,
) -> Any:
    """An application for `ray.serve.run`, with prefix-affine routing, autoscaling and health.

    Args:
        model: any name of a model; every machine must be able to resolve it.
        replicas: copies of the model, or the fewest of them.
        max_replicas: the most of them; more than `replicas` lets their number follow the load.
        autoscaling: how it follows, as Ray's `AutoscalingConfig` has it: `upscale_delay_s`, ...
        fronts: processes that take requests in.
        cpus, gpus: of a replica, for Ray's placement.
        config: limits, keys and names, as for one server.
        options: further arguments of `LLM`, such as `n_ctx` or `max_sequences`.

    Raises:
        ServerError: if Ray is not installed.
        RequestError: for numbers that make no sense.
    """
    try:
        from ray import serve
        from ray.serve.config import RequestRouterConfig
    except ModuleNotFoundError as error:
        raise ServerError(
            f"the package {error.name!r} is missing",
            where="deploy",
            remedy="Install it with `pip install 'minfer[ray,server]'`",
        ) from None
    config = config or ServerConfig()
    running = int(options.get("max_sequences", 8))
    copies = serve.deployment(
        name=REPLICA,
        max_ongoing_requests=running + config.max_waiting,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=config.drain_timeout,
        request_router_config=RequestRouterConfig(
            request_router_class="minfer.deploy.routing.PrefixRouter"
        ),
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        **how_many(replicas, max_replicas, running, autoscaling or {}),
    )(Replica).bind(model, config, options)

    def build_front() -> Front:
        from ray.exceptions import RayActorError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        handle = serve.get_deployment_handle(REPLICA).options(
            method_name=Replica.answer.__name__, stream=True
        )

        def ask(call: Call) -> Answering:
            answer: Answering = handle.remote(call)
            return answer

        return Front(
            ask, config, lost=(RayActorError, DeploymentUnavailableError), full=(BackPressureError,)
        )

    door = serve.ingress(build_front)()
    front = serve.deployment(
        name=FRONT,
        num_replicas=fronts,
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=config.drain_timeout,
        ray_actor_options={"num_cpus": 0},
    )(door)
    return front.bind(copies)


def how_many(
    least: int, most: int | None, running: int, autoscaling: Mapping[str, Any]
) -> dict[str, Any]:
    """A deployment's options on the number of its replicas.

    They are so many that each has about as many requests as it computes at the same time: with
    fewer some would wait, with more the steps of each would be smaller.

    Args:
        least, most: replicas; no `most` is no more than the least.
        running: sequences that a replica computes at the same time.
        autoscaling: further settings of Ray's `AutoscalingConfig`.

    Raises:
        RequestError: for numbers that make no sense.
    """
    if not 1 <= least <= (least if most is None else most):
        raise RequestError(f"{least} to {most} replicas make no sense", where="replicas")
    if most is None or most == least:
        if autoscaling:
            raise RequestError(
                f"the number of replicas is fixed at {least}",
                where="autoscaling",
                remedy="Set max_replicas to more than that",
            )
        return {"num_replicas": least}
    settings = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": running}
    return {"autoscaling_config": {**settings, **autoscaling}}


def build(arguments: dict[str, Any]) -> Any:
    """`application` for `serve run minfer.deploy:build model=smollm2 replicas=2` and config files.

    Numbers may be given as text, as they come from a command line.
    """
    own = {f.name for f in fields(ServerConfig)}
    given = {name: _number(value) for name, value in arguments.items()}
    config = ServerConfig(**{name: value for name, value in given.items() if name in own})
    rest = {name: value for name, value in given.items() if name not in own}
    return application(config=config, **rest)


def _number(value: Any) -> Any:
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value
