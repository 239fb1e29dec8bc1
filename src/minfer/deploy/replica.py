"""One model on one machine: the whole server without its port."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from minfer.deploy.calls import Call, Head, run
from minfer.errors import ServerError
from minfer.llm import LLM
from minfer.server import ServerConfig, create_app


class Replica:
    """Loads the model when it is made, and answers calls until it is told to stop."""

    async def __init__(  # type: ignore[misc] # Ray awaits it
        self, model: str, config: ServerConfig, options: dict[str, Any]
    ) -> None:
        """Load the model.

        Args:
            model: any name of a model.
            config: the server's; its address is not used.
            options: further arguments of `LLM`.
        """
        self._app = create_app(lambda: LLM(model, **options), config)
        self._life = self._app.router.lifespan_context(self._app)
        await self._life.__aenter__()

    async def answer(self, call: Call) -> AsyncGenerator[Head | bytes, None]:
        """Answer a call: how the response begins, then its body as it comes."""
        async for part in run(self._app, call):
            yield part

    def check_health(self) -> None:
        """Tell Ray whether to replace this replica.

        Raises:
            ServerError: if its engine has failed.
        """
        failure = self._app.state.service.worker.failure
        if failure is not None:
            raise ServerError(f"the engine has failed: {failure}", where="replica")

    async def __del__(self) -> None:
        await self._life.__aexit__(None, None, None)
