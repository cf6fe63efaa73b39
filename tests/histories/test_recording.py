"""Recorded histories are what docs/histories.md says, whether or not this machine can judge them."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bkspark.client import Client
from bkspark.errors import LedgerClosed
from tests.chaos.observed import ledger_history
from tests.cluster import Cluster
from tests.histories import recorded
from tests.histories.recorded import RecordedLog, RecordedReader, RecordedWriter
from tests.histories.recording import Operation, Recorder, value_of
from tests.simulation.checkers import violations

DOCS = Path(__file__).parents[2] / "docs" / "histories.md"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_first_line_is_a_header_and_each_operation_is_a_line_when_it_ends(tmp_path: Path) -> None:
    ticks = itertools.count(100)
    with Recorder(tmp_path / "h", {"seed": 5}, lambda: next(ticks)) as recorder:
        slow = recorder.begin("append", "owner", ledger=3, first=0, values=["1:aa"])
        recorder.begin("lac", "reader", ledger=3).ok(lac=-1)
        slow.ok()
    header, lac, append = lines(tmp_path / "h")
    assert header == {"history": 1, "clock": "ns, monotonic", "seed": 5}
    assert lac == {"op": "lac", "client": "reader", "ledger": 3, "call": 101, "return": 102, "result": "ok", "lac": -1}
    assert (append["call"], append["return"], append["values"]) == (100, 103, ["1:aa"])


def test_what_is_under_way_at_the_end_has_an_unknown_outcome_and_never_returns(tmp_path: Path) -> None:
    with Recorder(tmp_path / "h") as recorder:
        recorder.begin("append", "owner", log="clicks", writer="a", first=0, values=["1:aa"])
    (append,) = lines(tmp_path / "h")[1:]
    assert (append["result"], append["return"], append["log"]) == ("unknown", None, "clicks")
    assert "ledger" not in append


def test_an_operation_ends_once_and_its_error_is_kept() -> None:
    recorder = Recorder()
    operation = recorder.begin("recover", "recoverer", ledger=1)
    operation.unknown(TimeoutError("no answer"))
    assert operation.facts == {"error": "TimeoutError: no answer"}
    with pytest.raises(AssertionError, match="has ended before"):
        operation.ok()


def test_a_value_tells_size_and_content_apart() -> None:
    assert len({value_of(b""), value_of(b"a"), value_of(b"b"), value_of(b"aa")}) == 4
    assert re.fullmatch(r"2:[0-9a-f]{16}", value_of(b"aa"))
    assert value_of(memoryview(b"aa")) == value_of(b"aa")


def test_the_simulators_checkers_find_the_same_in_a_recorded_history() -> None:
    recorder = Recorder()
    payloads = [b"one", b"two", b"three"]
    values = [value_of(payload) for payload in payloads]
    recorder.begin("append", "owner", ledger=1, first=0, values=values).ok()
    recorder.begin("lac", "reader", ledger=1).ok(lac=2)
    recorder.begin("lac", "reader", ledger=1).ok(lac=1)
    recorder.begin("read", "reader", ledger=1, first=0).denied(entry=0)
    recorder.begin("recover", "recoverer", ledger=1).ok(last_entry=1, length=6)
    ((_, operations),) = recorder.of_ledgers()
    assert {line[:2] for line in violations(ledger_history(operations))} == {"C1", "C4"}


@pytest.mark.cluster
def test_every_call_of_recorded_clients_is_in_the_history_with_its_outcome(tmp_path: Path, cluster: Cluster) -> None:
    async def act(recorder: Recorder) -> int:
        async with Client(cluster.uri) as client:
            writer = await client.create()
            owner, reader = RecordedWriter(recorder, writer), RecordedReader(recorder, "reader")
            await (await owner.submit([b"one", b"two"]))
            await reader.look(client, writer.ledger_id)
            await owner.close()
            with pytest.raises(LedgerClosed):
                await owner.submit([b"late"])
            await reader.look(client, writer.ledger_id)
            await reader.read()
            await recorded.recover(recorder, client, writer.ledger_id)

            log = RecordedLog(recorder, client.log("recorded"), "leader")
            leader = await log.open_for_writing("a")
            await (await leader.submit([b"first"]))
            await leader.close()
            end = await log.read()
            assert end is not None
            await log.truncate(end)
            await log.recover()
            return writer.ledger_id

    with Recorder(tmp_path / "h") as recorder:
        ledger_id = asyncio.run(act(recorder))
    of_ledger = [operation for operation in recorder.operations if operation.ledger == ledger_id]
    assert [(operation.op, operation.result) for operation in of_ledger] == [
        ("append", "ok"),
        ("lac", "ok"),
        ("close", "ok"),
        ("append", "failed"),
        ("end", "ok"),
        ("read", "ok"),
        ("recover", "ok"),
    ]
    assert of_ledger[5].facts == {"first": 0, "values": [value_of(b"one"), value_of(b"two")]}
    assert of_ledger[6].facts == of_ledger[2].facts == {"last_entry": 1, "length": 6}
    of_log = [operation for operation in recorder.operations if operation.log == "recorded"]
    assert [operation.op for operation in of_log] == ["open", "append", "close", "read", "truncate", "recover"]
    ordinal, ledger, entry = of_log[1].facts["at"]
    assert of_log[3].facts["runs"] == [{"from": [ordinal, ledger, entry], "values": [value_of(b"first")]}]
    assert of_log[4].facts["at"] == [ordinal, ledger, entry + 1]
    assert not violations(ledger_history(of_ledger))
    _all_documented(recorder.operations)


@pytest.mark.cluster
def test_synced_entries_of_a_relaxed_ledger_count_as_promised(tmp_path: Path, cluster: Cluster) -> None:
    async def act(recorder: Recorder) -> None:
        async with Client(cluster.uri) as client:
            writer = await client.create(ledger_type="VD_JOURNAL")
            owner = RecordedWriter(recorder, writer)
            await (await owner.submit([b"one", b"two"]))
            await owner.sync()
            await (await owner.submit([b"three"]))
            writer.abandon()

    with Recorder(tmp_path / "h") as recorder:
        asyncio.run(act(recorder))
    appended, synced, later = recorder.operations
    assert [operation.op for operation in (appended, synced, later)] == ["append", "sync", "append"]
    assert appended.facts["relaxed"]
    assert synced.facts == {"last_entry": 1}
    assert [last for last, _ in ledger_history(recorder.operations).acknowledged] == [1]
    _all_documented(recorder.operations)


def _all_documented(operations: list[Operation]) -> None:
    """Every operation, result and member that was recorded is named by docs/histories.md."""
    page = DOCS.read_text()
    for operation in operations:
        for word in (operation.op, operation.result, *operation.to_json()):
            assert f"`{word}`" in page, f"docs/histories.md does not name {word!r}"
