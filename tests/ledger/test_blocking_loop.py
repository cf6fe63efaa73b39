"""The event loop of the blocking calls: what its thread may not do, what cannot be undone, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from bkspark.blocking import Client
from bkspark.blocking.loop import iterate, run, submitted

IN_A_BLOCK_AT_EXIT = """
from bkspark.blocking import SnapshotReader
from bkspark.blocking.loop import run
from bkspark.core.metadata import Fragment, LedgerMetadata

METADATA = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),))

async def connected():
    return None

def rows():
    with SnapshotReader(ledger_id=1, metadata=METADATA, addresses={}) as reader:
        run(connected)
        yield 1

unfinished = rows()
print(next(unfinished))
"""
CALL_AT_EXIT = """
from bkspark.blocking.loop import run

async def connected():
    return None

class Late:
    def __init__(self):
        self.run, self.connected = run, connected

    def __del__(self):
        self.run(self.connected)

run(connected)
late = Late()
"""


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


def test_ctrl_c_in_an_iteration_is_what_the_caller_gets():
    """The interrupted step was still ending when the generator was closed: RuntimeError replaced KeyboardInterrupt."""
    waits = threading.Event()
    ended_as: list[str] = []

    async def items() -> AsyncIterator[int]:
        try:
            yield 1
            waits.set()
            await asyncio.Event().wait()
        finally:
            ended_as.append("ending")
            for _ in range(1000):
                await asyncio.sleep(0)
            ended_as.append("ended")

    def interrupt() -> None:
        waits.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    numbers = iterate(items)
    assert next(numbers) == 1
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        next(numbers)
    assert ended_as == ["ending", "ended"]


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_generator_that_is_in_a_with_block_at_exit_does_not_hang_the_interpreter():
    """The loop's thread has ended when the interpreter closes it, and the end of the block waited for that thread."""
    done = ended(IN_A_BLOCK_AT_EXIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.slow
def test_blocking_call_at_exit_is_an_error_and_does_not_hang_the_interpreter():
    done = ended(CALL_AT_EXIT)
    assert done.returncode == 0
    assert "RuntimeError: a blocking call at interpreter exit" in done.stderr


def in_child(work: Callable[[], object]) -> object:
    """Return what `work` returns in a child made by fork, or its error as text."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        # Whatever happens, the child must not go on as this test.
        try:
            result = work()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        try:
            os.write(writes, json.dumps(result, default=repr).encode())
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads) as pipe:
        return json.loads(pipe.read())


def test_child_made_by_fork_cannot_use_its_parents_connections(cluster):
    """It sent its entry under the id of the parent's next one, on the parent's connection. Bookies stored it, and kept
    the entry that came last: the child's, although they had acknowledged the parent's."""
    with Client(cluster.uri) as client, client.create() as writer:
        for number in range(2):  # the second one says that the first one is confirmed
            writer.append(b"parent's %d" % number)
        reader = client.open(writer.ledger_id, recover=False)
        batches = reader.batches()
        for call in (
            lambda: writer.append(b"child's"),
            lambda: writer.submit([b"child's"]).result(),
            lambda: next(reader.batches()),
            lambda: next(batches),
            lambda: client.create(),
            client.close,
        ):
            assert "make clients after forking" in in_child(call)

        def leave() -> str:
            with client, writer:
                return "left"

        assert in_child(leave) == "left"
        assert writer.append(b"parent's 2") == 2
        assert list(next(batches)) == [b"parent's 0"]
    with Client(cluster.uri) as client:
        assert list(client.open(writer.ledger_id).read(0, 2)) == [b"parent's %d" % number for number in range(3)]
