"""A soak reports bookies with a defect: a lost entry, a leak, a log that is flooded, files that are damaged."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.cli.child_process import ChildProcess
from bkspark.client import Client
from tests.crash.kills import payload
from tests.polling import wait_until
from tests.soak import ending, flatness, happened, planted, sampling
from tests.soak.flatness import Line
from tests.soak.load import KINDS, Ledger, Load
from tests.soak.machines import Machines
from tests.soak.sampling import Role, Samples

ENTRIES = planted.LOST_ENTRY + 10
SAMPLE_S = 0.05
SAMPLES = 60
SECONDS = 60.0


LEAKS = {
    "descriptors": ("descriptors", "RISES"),
    "memory": ("rss_bytes", "RISES"),
    "log": ("log_lines_per_s", "TOO MANY"),
}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Bookies that lose an entry of each ledger that is long enough, and are right otherwise."""
    with Machines(tmp_path_factory.mktemp("machines"), bookies=3, defect="entry") as machines:
        yield machines


def reread(uri: str, folder: Path, entries: int) -> list[str]:
    """Have a load write a ledger and read it once more; return what it complained of."""

    async def act() -> list[str]:
        async with Client(uri) as client:
            writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await writer.append_many([payload(writer.ledger_id, entry_id) for entry_id in range(entries)])
            await writer.close()
            load = Load(client, folder, [])
            await load.reread(Ledger(writer.ledger_id, KINDS[0], length=entries))
            return load.report.violations

    return asyncio.run(act())


def test_processes_that_leak_are_not_flat(tmp_path: Path) -> None:
    """The leaks are faster than in a soak, and so is the look at them."""
    with contextlib.ExitStack() as stack:
        children = {defect: idle(tmp_path, defect) for defect in (None, *LEAKS)}
        for child in children.values():
            stack.callback(child.kill)
        roles = [Role(str(defect), lambda c=child: [c.pid], log=child.log_path) for defect, child in children.items()]
        for child in children.values():
            next(child.lines())  # it says that it serves
        samples = Samples(tmp_path / "samples", roles, SAMPLE_S)
        samples.start()
        wait_until(lambda: len(sampling.load(tmp_path / "samples")) >= SAMPLES * len(roles), "samples", SECONDS)
        samples.stop()
    taken = sampling.load(tmp_path / "samples")
    lines = flatness.judge(taken, taken[-1]["seconds"], warm_s=0)
    assert {line.role: (line.figure, line.verdict) for line in lines if line.is_bad} == LEAKS


def idle(folder: Path, defect: str | None) -> ChildProcess:
    """Start a process that does only what the defect does."""
    options = planted.python_options(defect)
    command = [sys.executable, "-u", *options, "-m", "http.server", "--bind", "127.0.0.1", "0"]
    return ChildProcess(str(defect), command, folder / f"{defect}.log", environment={planted.EVERY_S: "0.01"})


@pytest.mark.long(reason="it shows that the soak's checks notice defects; the soak is not part of make test")
@pytest.mark.cluster
@pytest.mark.xdist_group("planted bookies")
def test_the_last_look_finds_missing_copies_damage_and_ledgers_of_no_log(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reread(machines.uri, tmp_path, planted.LOST_ENTRY) == []
    assert [*ending.not_repaired(machines), *ending.left_by_logs(machines, [])] == []

    orphan = asyncio.run(written_for_a_log(machines.uri))
    (complaint,) = ending.left_by_logs(machines, [])
    assert f"1 ledgers were made for logs, hold entries and are in none: [{orphan}]" in complaint

    monkeypatch.setattr(ending, "REPAIRED_S", 0.0)
    bookie = machines.bookies[0]
    bookie.stop()
    assert list(ending.damaged(bookie)) == []
    assert any("cluster check" in complaint for complaint in ending.not_repaired(machines))

    (log, *_) = sorted(bookie.directories[1].rglob("*.log"), key=lambda path: -path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    (complaint,) = ending.damaged(bookie)
    assert "--check: exit code 1" in complaint
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    bookie.restart()


async def written_for_a_log(uri: str) -> int:
    async with Client(uri) as client:
        writer = await client.create(metadata={"log": b"gone"})
        await writer.append_many([b"entry"])
        await writer.close()
        return writer.ledger_id


@pytest.mark.cluster
@pytest.mark.xdist_group("planted bookies")
def test_an_acknowledged_entry_that_bookies_do_not_keep_is_reported(machines: Machines, tmp_path: Path) -> None:
    (complaint,) = reread(machines.uri, tmp_path, ENTRIES)
    assert f"one of {ENTRIES} entries is lost" in complaint
    assert f"entry {planted.LOST_ENTRY}: none of its bookies" in complaint


def test_what_bookies_collect_and_find_full_is_counted_from_their_logs(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text(
        "2026-11-23 00:00:00,000 INFO garbage collection: 3 ledgers dropped, 2 entry logs removed, 4 rewritten, "
        "0 damaged and kept, 7 bytes freed\n2026-11-23 00:00:01,000 WARNING directory /ledgers is full: 99.9 % used\n"
    )
    other.write_text("INFO garbage collection: 1 ledgers dropped, 0 entry logs removed, 0 rewritten, 0 damaged\n")
    assert happened.of_bookies([one, other]) == {
        "garbage: ledgers dropped": 4,
        "garbage: entry logs removed": 2,
        "compaction: entry logs": 4,
        "disks: found full": 1,
    }


def test_what_never_happened_is_listed() -> None:
    said = {"kinds": {"durable": {"deleted": 0}}, "rows": 5, "copied": {"copy": 5}, "repaired": 1}
    counted = happened.counts({"kill": 2, "pause": 0}, {"fences": 9}, said, {"disks: found full": 1})
    assert happened.never(counted) == ["fault: pause", "durable ledgers: deleted"]


def test_figures_that_were_not_judged_count_as_what_never_happened() -> None:
    lines = [Line("bookie1", "threads", 30, 0, 0, 0, "flat"), Line("load", "threads", 3, 0, 0, 0, flatness.TOO_FEW)]
    assert happened.never(happened.judged(lines)) == ["figures judged: load"]
