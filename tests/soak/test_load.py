"""The load of a soak notices what is lost, twice, or not what was written; floods reach a bookie, which goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from bkspark.client import Client
from bkspark.wire.status import Status
from tests.bookie.serving import Serving, service_options
from tests.cluster import Cluster
from tests.crash.kills import payload
from tests.polling import until
from tests.soak import floods
from tests.soak.load import KINDS, Ledger, Load
from tests.soak.rows import number_of, row

DURABLE = KINDS[0]


def test_a_row_is_known_by_its_bytes() -> None:
    assert [number_of(row(number)) for number in (0, 7, 12_345)] == [0, 7, 12_345]
    row(7).decode("ascii")
    for other in (b"", b"7", row(7)[:-1], row(7).replace(b"7", b"8", 1)):
        with pytest.raises(ValueError):
            number_of(other)


def copied(cluster: Cluster, folder: Path, log: str, numbers: Iterable[int]) -> tuple[int, list[str]]:
    """Have a load follow a copy that has these rows; return how many it found, and what it complained of."""
    rows = [row(number) for number in numbers]

    async def act() -> tuple[int, list[str]]:
        async with Client(cluster.uri) as client:
            async with await client.log(log).open_for_writing() as writer:
                await writer.append_many(rows)
            load = Load(client, folder, [log])
            following = asyncio.ensure_future(load.verify_copy(log))
            await until(lambda: load.seen_of(log) == len(rows), "the copy to be read")
            following.cancel()
            return load.report.copied[log], load.report.violations

    return asyncio.run(act())


@pytest.mark.cluster
def test_a_copy_with_every_row_once_and_in_order_is_right(cluster: Cluster, tmp_path: Path) -> None:
    assert copied(cluster, tmp_path, "soak-right", range(5)) == (5, [])


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "numbers", "complaint"),
    [
        ("lost", [0, 1, 3], "row 3 follows row 1"),
        ("twice", [0, 1, 1, 2], "row 1 follows row 1"),
        ("reordered", [0, 2, 1, 3], "row 2 follows row 0"),
    ],
)
def test_a_copy_that_lost_doubled_or_reordered_a_row_is_noticed(
    cluster: Cluster, tmp_path: Path, name: str, numbers: list[int], complaint: str
) -> None:
    _, violations = copied(cluster, tmp_path, f"soak-{name}", numbers)
    assert complaint in violations[0]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("entries", "length", "complaint"),
    [
        (lambda ledger_id: [payload(ledger_id, n) for n in range(3)], 3, None),
        (lambda ledger_id: [payload(ledger_id, n) for n in range(3)], 4, "was closed with 4 entries: 3"),
        (lambda ledger_id: [payload(ledger_id, n) for n in (0, 2, 1)], 3, "entry 1 reads"),
    ],
    ids=["right", "lost", "reordered"],
)
def test_a_ledger_that_is_not_as_it_was_written_is_noticed(cluster, tmp_path, entries, length, complaint) -> None:
    async def act() -> list[str]:
        async with Client(cluster.uri) as client:
            async with await client.create() as writer:
                await writer.append_many(entries(writer.ledger_id))
            load = Load(client, tmp_path, [])
            await load.reread(Ledger(writer.ledger_id, DURABLE, length=length))
            return load.report.violations

    violations = asyncio.run(act())
    assert violations == [] if complaint is None else complaint in violations[0]


@pytest.mark.cluster
def test_a_part_of_the_load_that_ends_by_a_defect_is_a_finding(cluster: Cluster, tmp_path: Path) -> None:
    async def defect() -> None:
        raise ZeroDivisionError

    async def act() -> list[str]:
        async with Client(cluster.uri) as client:
            load = Load(client, tmp_path, [])
            await load.guarded(defect())
            return load.report.violations

    assert "defect ended with ZeroDivisionError()" in asyncio.run(act())[0]


@pytest.mark.parametrize("kind", floods.KINDS)
def test_a_flood_reaches_a_bookie_which_serves_others_afterwards(tmp_path: Path, kind: str) -> None:
    with Serving(service_options(tmp_path)) as service:
        assert floods.run(kind, service.port, 0.3) > 10_000
        with service.connect() as peer:
            assert peer.add(1, 0, [b"honest"]) == [Status.EOK]
            assert peer.read(1, 0).body.endswith(b"honest")
