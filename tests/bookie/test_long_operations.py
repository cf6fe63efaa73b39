"""Long work of operators: its ids, and the limits of what is remembered."""

from __future__ import annotations

import asyncio

from bookie_service.operation.long_operations import REMEMBERED_MAX, LongOperation, LongOperations


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
