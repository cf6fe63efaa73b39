"""Long work of operators: its ids, and the limits of what is remembered."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.errors import BookKeeperError, TooManyRequests
from bookie_service.operation.long_operations import REMEMBERED_MAX, UNFINISHED_MAX, LongOperation, LongOperations, Work
from tests.polling import until


async def nothing(operation: LongOperation) -> dict[str, object]:
    return {"subject": operation.subject}


def test_id_of_an_earlier_process_names_no_operation_of_the_next_one() -> None:
    """Both began with `drain-1`: a client that asked for it after a restart got the outcome of another drain."""

    async def test() -> None:
        before, after = LongOperations(), LongOperations()
        old = [before.begin("drain", f"b{number}:1", "a test", "repair", nothing).id for number in range(3)]
        new = [after.begin("drain", f"b{number}:1", "a test", "repair", nothing).id for number in range(3)]
        assert len({*old, *new}) == 6
        assert all(after.find(each) is None for each in old)
        await before.close()
        await after.close()

    asyncio.run(test())


def test_oldest_finished_operations_are_forgotten() -> None:
    async def test() -> None:
        operations = LongOperations()
        ids = []
        for number in range(REMEMBERED_MAX + 5):
            operation = operations.begin("collect", str(number), "a test", "collection", nothing)
            ids.append(operation.id)
            while not operation.is_finished:
                await asyncio.sleep(0)
        operations.begin("collect", "last", "a test", "collection", nothing)
        assert [each for each in ids if operations.find(each) is None] == ids[:5]
        assert operations.find(ids[5]).result == {"subject": "5"}  # type: ignore[union-attr]
        await operations.close()

    asyncio.run(test())


async def for_ever(operation: LongOperation) -> dict[str, object]:
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


async def failing(operation: LongOperation) -> dict[str, object]:
    raise BookKeeperError("no spare bookie")


def test_no_more_operations_wait_than_the_limit_and_the_end_of_the_process_ends_them() -> None:
    async def test() -> None:
        operations = LongOperations()
        begun = [
            operations.begin("drain", str(number), "a test", "repair", for_ever) for number in range(UNFINISHED_MAX)
        ]
        with pytest.raises(TooManyRequests):
            operations.begin("drain", "one more", "a test", "repair", for_ever)
        await asyncio.sleep(0)
        assert [each.state for each in begun] == ["running"] + ["waiting"] * (UNFINISHED_MAX - 1)
        await operations.close()
        assert {(each.state, each.error) for each in begun} == {("failed", "the process ended")}
        assert operations.unfinished() == []

    asyncio.run(test())


async def without_disk(operation: LongOperation) -> dict[str, object]:
    raise OSError("no space left")


async def defective(operation: LongOperation) -> dict[str, object]:
    raise KeyError("log")


@pytest.mark.parametrize(
    ("work", "state", "error"),
    [
        (nothing, "done", ""),
        (failing, "failed", "no spare bookie"),
        (without_disk, "failed", "no space left"),
        (defective, "failed", "a defect: 'log'"),
    ],
)
def test_finished_operation_has_its_outcome_and_its_times(work: Work, state: str, error: str) -> None:
    async def test() -> None:
        operations = LongOperations()
        operation = operations.begin("drain", "b:1", "a test", "repair", work)
        await until(lambda: operation.is_finished, "the operation to end")
        found = operation.as_json()
        assert (found["state"], found["error"]) == (state, error)
        assert 0 < operation.began_ms <= operation.ended_ms
        await operations.close()

    asyncio.run(test())


def test_operations_of_another_lane_do_not_wait_and_the_next_one_of_a_lane_follows_a_failed_one() -> None:
    async def test() -> None:
        operations = LongOperations()
        drain = operations.begin("drain", "b:1", "a test", "repair", for_ever)
        collect = operations.begin("collect", "b:1", "a test", "collection", failing)
        again = operations.begin("collect", "b:1", "a test", "collection", nothing)
        await until(lambda: again.is_finished, "the operation to end")
        assert [each.state for each in (drain, collect, again)] == ["running", "failed", "done"]
        await operations.close()

    asyncio.run(test())
