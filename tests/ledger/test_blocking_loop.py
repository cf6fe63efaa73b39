"""The event loop of the blocking calls: what its thread may not do, and what cannot be undone."""

from __future__ import annotations

import asyncio
import threading

from bkspark.blocking.loop import run, submitted


async def done_when(event: asyncio.Event) -> asyncio.Future[str]:
    return asyncio.ensure_future(waited(event))


async def waited(event: asyncio.Event) -> str:
    await event.wait()
    return "stored"


async def new_event() -> asyncio.Event:
    return asyncio.Event()


async def answer() -> str:
    return "answer"


def test_submission_that_is_under_way_cannot_be_cancelled():
    event = run(new_event)
    future = submitted(lambda: done_when(event))
    assert not future.cancel()

    async def let() -> None:
        event.set()

    run(let)
    assert future.result(60) == "stored"


def test_blocking_call_in_a_callback_is_refused_and_others_go_on():
    """It would wait for the thread that it blocks: for ever, and with it every client of the process."""
    event = run(new_event)
    future = submitted(lambda: done_when(event))
    said: list[str] = []
    called = threading.Event()

    def callback(_: object) -> None:
        try:
            said.append(run(answer))
        except RuntimeError as error:
            said.append(str(error))
        called.set()

    future.add_done_callback(callback)

    async def let() -> None:
        event.set()

    run(let)
    assert called.wait(60)
    assert len(said) == 1
    assert said[0].startswith("a blocking call on the client's own thread")
    assert run(answer) == "answer"
