"""Ray's choice of a replica: the one that knows a request's beginning, else the next in rank."""

from __future__ import annotations

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from minfer.deploy.prefix import ranked


class PrefixRouter(RequestRouter):  # type: ignore[misc] # ray has no types here
    """Ranks replicas for each request; a full one is passed over, so no replica is overrun."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """One rank a replica, best first."""
        by_name = {str(replica.replica_id): replica for replica in candidate_replicas}
        key = ""
        if pending_request is not None and pending_request.args:
            key = getattr(pending_request.args[0], "key", "")
        if not key:
            names = list(by_name)
            random.shuffle(names)
        else:
            names = ranked(key, by_name)
        return [[by_name[name]] for name in names]
