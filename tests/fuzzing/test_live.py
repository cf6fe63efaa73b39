"""Hostile frames for a bookie and hostile replies for the client, a few of each; and what measures them."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from bkspark.entries import EntryBatch
from bkspark.wire.framing import scan_frames
from tests.bookie.serving import Peer, Serving, service_options
from tests.fuzzing import attack as attacking
from tests.fuzzing import live
from tests.fuzzing.attack import STATES, Hang, attack, fill
from tests.fuzzing.frames import Frames
from tests.fuzzing.live import Honest, Result
from tests.fuzzing.replies import Caller, Changer, payload, run_storage
from tests.fuzzing.replies import Result as ReplyResult
from tests.fuzzing.turns import SlowTurn, TurnRecorder, read_turns

FRAMES = 200


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """A bookie that all states attack; it must be there in the end."""
    with Serving(service_options(tmp_path_factory.mktemp("bookie"))) as service:
        fill(service.port)
        yield service
        assert service.failure is None


@pytest.mark.parametrize("state", STATES)
def test_bookie_looks_at_hostile_frames_in_every_state_and_serves_on(serving: Serving, state: str) -> None:
    """`python -m tests.fuzzing.live` sends a million in each state."""
    count = attack(serving.port, state, FRAMES, seed=len(state))
    assert count.looked_at >= FRAMES
    with serving.connect() as peer:
        assert peer.add(1_000_003, len(state), [b"honest"]) == [0]
        assert peer.read(1_000_003, len(state)).status == 0


def test_client_takes_hostile_replies_as_errors_or_finds_what_was_written() -> None:
    """`python -m tests.fuzzing.replies` makes 200,000 for each storage."""
    result = run_storage("sorted", argparse.Namespace(replies=400, seconds=60.0, seed=3, calls=16))
    assert result.replies >= 400
    assert [line for line in result.wrong if "turns above" not in line] == []
    assert sum(result.calls.values()) > 10


# ---- what measures ----


def test_frames_of_one_seed_are_the_same_and_mild_ones_are_framed() -> None:
    for is_v3 in (False, True):
        made = [Frames(5).mild(is_v3) for _ in range(2)]
        assert made[0] == made[1]
        frames = Frames(6)
        together = b"".join(frames.mild(is_v3) for _ in range(200)) + frames.wild(is_v3)
        table = scan_frames(together, len(together))
        assert (len(table), table.consumed) == (201, len(together))


def test_changed_replies_of_one_seed_are_the_same() -> None:
    body = bytes(24)
    changer, other = Changer(4), Changer(4)
    for each in (changer, other):
        each.saw(body)
    assert [changer.changed(body) for _ in range(50)] == [other.changed(body) for _ in range(50)]
    assert sum(changer.changed(body) != len(body).to_bytes(4, "big") + body for _ in range(100)) > 80


@pytest.fixture
def silent_peer():  # type: ignore[no-untyped-def]
    """A server that takes connections and bytes, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_bookie_that_neither_answers_nor_closes_is_a_hang(silent_peer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacking, "ANSWER_S", 0.3)
    for state in ("v2 begun", "half-closed"):
        with pytest.raises(Hang):
            attack(silent_peer, state, 10, seed=1)


def test_honest_client_reports_a_bookie_that_fails_it(silent_peer: int, serving: Serving) -> None:
    with Honest(serving.connect) as honest:
        while len(honest.seconds) < 20:
            time.sleep(0.001)
    assert honest.failure is None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closing = threading.Thread(target=lambda: listener.accept()[0].close())
        closing.start()
        with Honest(partial(Peer, listener.getsockname()[1])) as honest:
            closing.join()
            while honest.failure is None:
                time.sleep(0.001)


@pytest.mark.parametrize(
    ("slow", "rss", "lines", "failure", "wrong"),
    [
        ([SlowTurn(0.08, 0.0, "handle", 0.07, 0.06)], 100, 0, None, "1 turns above 50 ms"),
        ([], live.RSS_MIB_MAX + 1, 0, None, "MiB of memory"),
        ([], 100, 1000, None, "log lines a second"),
        ([], 100, 0, "refused", "the honest client"),
    ],
)
def test_what_a_state_must_not_do_is_wrong(
    slow: list[SlowTurn], rss: int, lines: int, failure: str | None, wrong: str
) -> None:
    honest = Honest(partial(Peer, 1))
    honest.failure = failure
    result = Result("SortedLedgerStorage", "fresh", seconds=10.0, rss_mib=rss)
    live.judge(result, honest, slow, lines)
    assert len(result.wrong) == 1
    assert wrong in result.wrong[0]


def test_entries_that_were_not_asked_for_or_never_written_are_wrong() -> None:
    result = ReplyResult("sorted")
    caller = Caller([], 0, 1, 1, result)
    right = EntryBatch.of([payload(5), payload(6)], ledger_id=0, first_entry=5)
    caller.check(right, 5, 6, "read")
    assert result.wrong == []
    caller.check(right, 5, 5, "read")
    caller.check(EntryBatch.of([b"other"], ledger_id=0, first_entry=5), 5, 5, "read")
    assert ["gave [5, 7)" in result.wrong[0], "never written" in result.wrong[1]] == [True, True]


def _spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    luck = random.Random(1)
    while time.thread_time() < until:
        luck.random()


def test_recorder_tells_which_turn_took_long_and_what_it_ran(tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.001)
        loop.call_soon(_spin, 0.06)
        await asyncio.sleep(0.001)

    recorder = TurnRecorder(tmp_path / "turns")
    try:
        asyncio.run(run())
    finally:
        recorder.stop()
    longest = max(recorder.slow, key=lambda turn: turn.seconds)
    assert longest.seconds >= 0.05
    assert longest.processor_seconds >= 0.05
    assert "_spin" in longest.ran
    assert recorder.turns >= 3
    assert longest in read_turns(tmp_path / "turns")
    turns = recorder.turns
    asyncio.run(run())
    assert recorder.turns == turns, "it records on after stop"


def test_recorder_does_not_write_out_what_a_callback_is_given() -> None:
    """It wrote out 5 MiB of fetched bytes, which took 60 ms: longer than any turn of the bookie."""
    written: list[bool] = []

    class Argument:
        def __repr__(self) -> str:
            written.append(True)
            return "argument"

    async def run() -> None:
        asyncio.get_running_loop().call_soon(lambda argument: _spin(0.06), Argument())
        await asyncio.sleep(0.001)

    recorder = TurnRecorder()
    try:
        asyncio.run(run())
    finally:
        recorder.stop()
    assert "Argument" in max(recorder.slow, key=lambda turn: turn.seconds).ran
    assert written == []


def test_recorder_leaves_other_threads_alone() -> None:
    recorder = TurnRecorder()
    try:
        thread = threading.Thread(target=lambda: asyncio.run(asyncio.sleep(0.001)))
        before = recorder.turns
        thread.start()
        thread.join()
        assert recorder.turns == before
    finally:
        recorder.stop()


def test_slow_turns_are_one_json_object_a_line(tmp_path: Path) -> None:
    (tmp_path / "turns").write_text(
        json.dumps({"seconds": 0.1, "waited_for_cpu": 0, "ran": "x", "ran_seconds": 0, "processor_seconds": 0.1}) + "\n"
    )
    assert read_turns(tmp_path / "turns") == [SlowTurn(0.1, 0, "x", 0, 0.1)]
    assert read_turns(tmp_path / "none") == []
