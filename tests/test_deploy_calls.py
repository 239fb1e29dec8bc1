"""A call is answered by the real application, in parts, and can be given up."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

from serving import tiny

from minfer.deploy.calls import Call, Head, run
from minfer.server import ServerConfig, create_app


def call(path: str, body: dict[str, object]) -> Call:
    return Call(
        method="POST",
        path=path,
        query=b"",
        headers=[(b"content-type", b"application/json")],
        client=("127.0.0.1", 1),
        body=json.dumps(body).encode(),
        key="",
    )


ASK: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
CHAT = "/v1/chat/completions"


def test_whole_and_streamed_answers() -> None:
    async def main() -> None:
        app = create_app(tiny, ServerConfig())
        async with app.router.lifespan_context(app):
            for body in (ASK, {**ASK, "stream": True}):
                head, *parts = [part async for part in run(app, call(CHAT, body))]
                assert isinstance(head, Head)
                assert head.status == 200
                text = b"".join(part for part in parts if isinstance(part, bytes)).decode()
                assert '"length"' in text
            head, *_ = [part async for part in run(app, call(CHAT, {}))]
            assert isinstance(head, Head)
            assert head.status == 400

    asyncio.run(main())


def test_giving_up_ends_the_work() -> None:
    async def main() -> None:
        app = create_app(tiny, ServerConfig())
        async with app.router.lifespan_context(app):
            body = {**ASK, "stream": True, "max_tokens": 900, "ignore_eos": True}
            async with aclosing(run(app, call(CHAT, body))) as parts:
                await anext(parts)
                await anext(parts)
            worker = app.state.service.worker
            assert await worker.call(lambda engine: engine.n_running) == 0
            assert worker.n_open == 0

    asyncio.run(main())
