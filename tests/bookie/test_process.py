"""A bookie as a process, with a real ZooKeeper: starting, stopping, being killed, and refusing to start."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client
from bkspark.cli.bookie import bookie_command
from bkspark.cli.child_process import ChildProcess
from bkspark.cli.ports import free_ports
from bkspark.errors import LedgerRecoveryFailed
from bkspark.metadata import cookies
from bkspark.metadata.cookies import Cookie
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.formats.index import LAYOUT
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.child import START_S, STOP_S, BookieChild
from tests.bookie.serving import adds, stored
from tests.crash import kills
from tests.polling import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def bookie(tmp_path: Path, uri: str) -> BookieChild:
    return BookieChild(tmp_path / "bookie", uri)


# ---- starting and stopping ----


def test_bookie_registers_serves_and_takes_its_registration_back(bookie: BookieChild) -> None:
    with bookie.running() as process:
        (registered,) = bookie.ask_registry(lambda registry: registry.writable()).items()
        assert registered[0] == bookie.id
        assert registered[1] is not None
        assert (registered[1].host, registered[1].port) == ("127.0.0.1", bookie.port)
        with bookie.connect() as peer:
            assert peer.add(5, 0, [b"x"]) == [Status.EOK]
        process.signal(signal.SIGTERM)
        assert process.wait(STOP_S)
        assert process.exit_code == 0
    assert bookie.ask_registry(lambda registry: registry.writable()) == {}
    with bookie.running(), bookie.connect() as peer:
        assert peer.read(5, 0).body == stored(5, 0, b"x")


def test_bookie_has_no_huge_pages_which_delay_its_event_loop(bookie: BookieChild) -> None:
    with bookie.running() as process:
        assert "THP_enabled:\t0\n" in Path(f"/proc/{process.pid}/status").read_text()


def test_clean_stop_leaves_nothing_to_replay(bookie: BookieChild) -> None:
    with bookie.running(), bookie.connect() as peer:
        assert set(peer.add(5, 0, [b"x"] * 100)) == {Status.EOK}
    (index,) = (bookie.directory / "ledgers").glob("current/*/*/5.idx")
    assert index.stat().st_size == LAYOUT.position_at(100)


def test_cookie_is_in_directories_and_metadata_as_apaches_are(bookie: BookieChild) -> None:
    with bookie.running():
        stored_cookie = bookie.ask_registry(lambda registry: registry.read_cookie(bookie.id))
        instance = bookie.ask_registry(lambda registry: registry.instance_id())
    expected = Cookie(
        bookie.id, (bookie.settings["journalDirectories"],), (bookie.settings["ledgerDirectories"],), instance
    )
    assert stored_cookie is not None
    assert stored_cookie.cookie == expected
    for name in ("journal", "ledgers"):
        assert (bookie.directory / name / "current" / "VERSION").read_bytes() == cookies.encode(expected)


def test_configuration_file_has_apaches_syntax_and_set_wins(bookie: BookieChild, tmp_path: Path) -> None:
    wrong = {**bookie.settings, "bookiePort": "1", "numAddWorkerThreads": "3"}
    path = tmp_path / "bk_server.conf"
    path.write_text("# comment\n" + "".join(f"{key} = {value}\n" for key, value in wrong.items()))
    command = [sys.executable, "-m", "bookie_service", "--config", str(path), "--set", f"bookiePort={bookie.port}"]
    process = ChildProcess("bookie", command, tmp_path / "log")
    try:
        line = next(process.lines(time.monotonic() + START_S))
        assert line == f"bookie {bookie.id} serves at {bookie.id} (pid {process.pid})"
        assert "without effect in this bookie: numAddWorkerThreads\n" in (tmp_path / "log").read_text()
    finally:
        process.stop(STOP_S)


def test_read_only_bookie_registers_as_such(tmp_path: Path, uri: str) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri, forceReadOnlyBookie="true")
    with bookie.running(), bookie.connect() as peer:
        assert set(bookie.ask_registry(lambda registry: registry.read_only())) == {bookie.id}
        assert bookie.ask_registry(lambda registry: registry.writable()) == {}
        assert peer.add(5, 0, [b"x"]) == [Status.EREADONLY]


def test_bookie_whose_session_expired_registers_again(tmp_path: Path, uri: str) -> None:
    """A process that was suspended for longer than its session lives: trap 18 of docs/compatibility.md."""
    bookie = BookieChild(tmp_path / "bookie", uri, zkTimeout="1000")
    with bookie.running() as process:
        process.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: not bookie.ask_registry(lambda registry: registry.writable()), "the session's end")
        finally:
            process.signal(signal.SIGCONT)
        wait_until(lambda: bookie.ask_registry(lambda registry: registry.writable()), "the registration")
        with bookie.connect() as peer:
            assert peer.add(5, 0, [b"x"]) == [Status.EOK]


# ---- being killed ----


@pytest.mark.parametrize("storage", [StorageClass.SORTED.short_name, StorageClass.DB.value])
def test_killed_bookie_has_every_acknowledged_entry_and_fence(tmp_path: Path, uri: str, storage: str) -> None:
    """Ten SIGKILLs at random moments; `python -m tests.crash.kills` does any number."""
    counts = kills.run(tmp_path / "bookie", uri, kills=5, seed=int(os.environ.get("BKSPARK_SEED", 4)), storage=storage)
    assert counts["kills"] == 5
    assert counts["entries"]


# ---- collecting garbage ----

ENTRIES = [bytes([i % 251]) * 4096 for i in range(300)]


def write_ledgers(uri: str, count: int) -> list[int]:
    """Write ENTRIES to each of several ledgers concurrently, so that every entry log has entries of all."""
    with Client(uri) as client, contextlib.ExitStack() as closing:
        writers = [closing.enter_context(client.create(ensemble=1, write_quorum=1, ack_quorum=1)) for _ in range(count)]
        for first in range(0, len(ENTRIES), 50):
            for writer in writers:
                writer.append_many(ENTRIES[first : first + 50])
        return [writer.ledger_id for writer in writers]


def assert_whole(uri: str, ledger_id: int) -> None:
    with Client(uri) as client:
        reader = client.open(ledger_id, recover=False)
        batch = reader.read(0, reader.last_entry)
        assert [bytes(batch[i]) for i in range(len(batch))] == ENTRIES


def delete_ledgers(uri: str, ledger_ids: list[int]) -> None:
    with Client(uri) as client:
        for ledger_id in ledger_ids:
            client.delete(ledger_id)


def collecting_bookie(tmp_path: Path, uri: str, **settings: str) -> BookieChild:
    sizes = {"logSizeLimit": str(1 << 20), "skipListSizeLimit": str(12 << 20), "dbStorage_writeCacheMaxSizeMb": "24"}
    sizes["flushInterval"] = "100"
    return BookieChild(tmp_path / "bookie", uri, **sizes, **settings)


def collected(bookie: BookieChild) -> dict[str, Any]:
    """Have the running bookie collect garbage, as an operator does, and return what it says came of it."""
    command = [sys.executable, "-m", "bkspark.cli", "bookie", "--collect", "--json"]
    command += ["--set", f"ledgerDirectories={bookie.settings['ledgerDirectories']}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def log_bytes(bookie: BookieChild) -> int:
    logs = (bookie.directory / "ledgers" / "current").glob("*.log")
    return sum(path.stat().st_size for path in logs if path.exists())


def test_space_of_deleted_ledgers_returns_when_bkspark_asks_for_it(tmp_path: Path, uri: str) -> None:
    bookie = collecting_bookie(tmp_path, uri, compactionRateByEntries="0")
    with bookie.running():
        kept, *deleted = write_ledgers(uri, 4)
        with bookie.connect() as peer:
            assert peer.read(deleted[0], 0, v2.DO_FENCING).status == Status.EOK
        delete_ledgers(uri, deleted)
        report = collected(bookie)
        assert report["dropped_ledgers"] == len(deleted)
        assert report["removed_logs"] + report["compacted_logs"] > 0
        assert (report["damaged_logs"], report["kept_because"]) == (0, "")
        live = len(ENTRIES) * len(ENTRIES[0])
        assert log_bytes(bookie) <= 1.05 * live / 0.8
        assert_whole(uri, kept)
        with bookie.connect() as peer:
            assert peer.read(deleted[1], 0).status == Status.ENOLEDGER
            assert peer.add(deleted[0], len(ENTRIES), [b"late"]) == [Status.EFENCED]
    with bookie.running():
        assert_whole(uri, kept)
        with bookie.connect() as peer:
            assert peer.add(deleted[0], len(ENTRIES), [b"late"]) == [Status.EFENCED]


@pytest.mark.parametrize("storage", [StorageClass.SORTED.short_name, StorageClass.DB.short_name])
def test_kill_in_the_middle_of_a_compaction_loses_nothing_and_leaks_nothing(
    tmp_path: Path, uri: str, storage: str
) -> None:
    bookie = collecting_bookie(tmp_path, uri, compactionRateByEntries="50", ledgerStorageClass=storage)
    current = bookie.directory / "ledgers" / "current"
    with bookie.running() as process:
        kept, *deleted = write_ledgers(uri, 3)
        delete_ledgers(uri, deleted)
        with subprocess.Popen(
            [*bookie_command(bookie.settings, json=True), "--collect"], stderr=subprocess.PIPE, text=True
        ) as asking:
            wait_until(lambda: any(current.glob("*.compacting")), "a compaction that is under way")
            process.kill()
            _, said = asking.communicate(timeout=START_S)
        assert (asking.returncode, said) == (1, "bookie: the bookie ended before it answered\n")
        assert any(current.glob("*.compacting"))
    bookie.settings["compactionRateByEntries"] = "0"
    with bookie.running() as process:
        assert not any(current.glob("*.compacting"))
        assert_whole(uri, kept)
        collected(bookie)
        assert log_bytes(bookie) <= 1.05 * len(ENTRIES) * len(ENTRIES[0]) / 0.8
        assert_whole(uri, kept)
        process.signal(signal.SIGTERM)
        assert process.wait(STOP_S)
        assert process.exit_code == 0
    command = [*bookie_command(bookie.settings, json=True), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert (result.returncode, json.loads(result.stdout)["damage"]) == (0, [])


# ---- refusing to start ----


def test_port_in_use(bookie: BookieChild) -> None:
    with socket.create_server(("127.0.0.1", bookie.port)):
        code, line = bookie.refusal()
    assert code == 1
    assert f"bookiePort={bookie.port}" in line
    assert not (bookie.directory / "journal").exists()


def test_metadata_store_away(bookie: BookieChild) -> None:
    port = free_ports(1)[0]
    code, line = bookie.refusal(metadataServiceUri=f"zk://127.0.0.1:{port}/ledgers", zkTimeout="500")
    assert code == 1
    assert f"no ZooKeeper answers at 127.0.0.1:{port}" in line


def test_no_cluster_at_the_root(bookie: BookieChild) -> None:
    code, line = bookie.refusal(metadataServiceUri=bookie.uri + "/none")
    assert code == 1
    assert "there is no cluster at" in line
    assert not (bookie.directory / "journal").exists()


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("bookiePrt", "1", "did you mean bookiePort?"),
        ("bookiePort", "many", "bookiePort=many: it must be a whole number"),
        ("metadataServiceUri", "etcd://x", "must begin with zk://"),
        ("diskUsageThreshold", "1", "diskUsageThreshold 1 must lie between 0 and 1"),
        ("permittedFileGroup", "99999999999", "permittedFileGroup=99999999999: the number of a group is at most"),
        ("permittedStartupUsers", "nobody-else", "permittedStartupUsers does not name the user"),
    ],
)
def test_wrong_configuration(bookie: BookieChild, key: str, value: str, complaint: str) -> None:
    code, line = bookie.refusal(**{key: value})
    assert code == 2
    assert complaint in line


def test_more_memory_than_there_is(bookie: BookieChild) -> None:
    code, line = bookie.refusal(skipListSizeLimit=str(10**15))
    assert code == 1
    assert "out of memory" in line
    assert "lower skipListSizeLimit" in line


def test_second_process_on_the_same_directories(bookie: BookieChild) -> None:
    """Operator error O3."""
    with bookie.running():
        code, line = bookie.refusal(bookiePort=str(free_ports(1)[0]))
    assert code == 1
    assert "is in use by another process" in line


def test_directories_of_another_bookie(bookie: BookieChild) -> None:
    """Operator errors O1 and O10."""
    with bookie.running():
        pass
    other_port = free_ports(1)[0]
    code, line = bookie.refusal(bookiePort=str(other_port))
    assert code == 1
    assert f"bookie id {bookie.id} instead of 127.0.0.1:{other_port}" in line
    with bookie.running():
        pass


@pytest.mark.parametrize("lost", ["journal", "ledgers"])
def test_lost_directory(bookie: BookieChild, lost: str) -> None:
    """Faults D11 and D12, scenario S32: a wiped disk is not a new bookie."""
    with bookie.running():
        pass
    (bookie.directory / lost).rename(bookie.directory / "elsewhere")
    code, line = bookie.refusal()
    assert code == 1
    assert "has lost its contents" in line
    assert not (bookie.directory / lost).exists()


def test_p27_wiped_bookie_does_not_serve_and_so_denies_no_ledger(bookie: BookieChild) -> None:
    """#2612: "no such ledger" of a bookie that lost its disks would count in the LAC read and in recoveries."""
    with bookie.running(), bookie.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
    for place in ("journal", "ledgers"):
        shutil.rmtree(bookie.directory / place)
    code, line = bookie.refusal()
    assert code == 1
    assert "has lost its contents" in line


@pytest.mark.parametrize(
    ("place", "code", "complaint"),
    [
        ("ledgers", 1, "has lost its contents (no lastMark)"),
        ("journal", 1, "where replay begins, is missing"),
    ],
)
def test_emptied_directory(bookie: BookieChild, place: str, code: int, complaint: str) -> None:
    """Faults D11 and D12: everything is gone but the cookie."""
    with bookie.running(), bookie.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
    current = bookie.directory / place / "current"
    cookie = (current / "VERSION").read_bytes()
    shutil.rmtree(current)
    current.mkdir(mode=0o700)
    (current / "VERSION").write_bytes(cookie)
    assert bookie.refusal()[0] == code
    assert complaint in bookie.refusal()[1]


def test_lost_cookie(bookie: BookieChild) -> None:
    """Operator error O2, the other way round."""
    with bookie.running(), bookie.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
    (bookie.directory / "ledgers" / "current" / "VERSION").unlink()
    code, line = bookie.refusal()
    assert code == 1
    assert "holds a bookie's files but no cookie VERSION: restore it" in line


def test_swapped_directories(tmp_path: Path, uri: str) -> None:
    """Operator error O10: two ledger directories in another order; a disk of another bookie in place of one."""
    paths = [str(tmp_path / "bookie" / name) for name in ("a", "b")]
    bookie = BookieChild(tmp_path / "bookie", uri, ledgerDirectories=",".join(paths))
    other = BookieChild(tmp_path / "other", uri, ledgerDirectories=str(tmp_path / "other" / "a"))
    with bookie.running(), other.running():
        pass
    code, line = bookie.refusal(ledgerDirectories=",".join(reversed(paths)))
    assert code == 1
    assert "ledger directories" in line
    (tmp_path / "bookie" / "a").rename(tmp_path / "away")
    (tmp_path / "other" / "a").rename(tmp_path / "bookie" / "a")
    code, line = bookie.refusal()
    assert code == 1
    assert f"directory {paths[0]} belongs to another bookie or cluster: bookie id {other.id} instead of" in line
    assert other.refusal()[0] == 1


@pytest.mark.parametrize("key", ["journalDirectories", "ledgerDirectories"])
def test_directories_at_each_others_places(bookie: BookieChild, key: str) -> None:
    """Their cookies are alike: without more, ledgers would not be found, and be called unknown."""
    first, second = bookie.directory / "one", bookie.directory / "two"
    bookie.settings[key] = f"{first},{second}"
    with bookie.running(), bookie.connect() as peer:
        for ledger_id in range(8):
            assert peer.add(ledger_id, 0, [b"x"]) == [Status.EOK]
    for source, target in ((first, "three"), (second, "one"), (bookie.directory / "three", "two")):
        source.rename(bookie.directory / target)
    code, line = bookie.refusal()
    assert code == 1
    assert f"directory {first} holds what belongs at {second}" in line
    command = [*bookie_command(bookie.settings, json=True), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert checked.returncode == 1
    assert f"belongs at {second}" in checked.stdout
    for source, target in ((first, "three"), (second, "one"), (bookie.directory / "three", "two")):
        source.rename(bookie.directory / target)
    with bookie.running(), bookie.connect() as peer:
        assert [peer.read(ledger_id, 0).status for ledger_id in range(8)] == [Status.EOK] * 8


def test_added_directory(bookie: BookieChild) -> None:
    with bookie.running():
        pass
    more = f"{bookie.settings['ledgerDirectories']},{bookie.directory / 'more'}"
    code, line = bookie.refusal(ledgerDirectories=more)
    assert code == 1
    assert "ledger directories" in line


def test_bookie_that_the_cluster_does_not_know(bookie: BookieChild) -> None:
    """Operator error O2, scenario S33."""
    with bookie.running():
        pass
    bookie.ask_registry(lambda registry: registry.delete_cookie(bookie.id))
    code, line = bookie.refusal()
    assert code == 1
    assert f"the cluster does not know bookie {bookie.id}" in line


def test_x05_first_boot_that_a_crash_interrupted_is_finished(bookie: BookieChild) -> None:
    """Operator error O5, hazard X5: stamped directories, no metadata cookie, no data."""
    instance = bookie.ask_registry(lambda registry: registry.instance_id())
    journal, ledgers = (bookie.settings[key] for key in ("journalDirectories", "ledgerDirectories"))
    stamp = cookies.encode(Cookie(bookie.id, (journal,), (ledgers,), instance))
    current = Path(journal) / "current"
    current.mkdir(parents=True)
    (current / "VERSION").write_bytes(stamp)
    with bookie.running(), bookie.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"5\nbookieHost: 1", b"9\n"])
def test_unreadable_cookie_refuses_with_file_and_remedy(bookie: BookieChild, content: bytes) -> None:
    with bookie.running():
        pass
    path = bookie.directory / "ledgers" / "current" / "VERSION"
    stamp = path.read_bytes()
    path.write_bytes(content)
    code, line = bookie.refusal()
    assert code == 1
    assert f"the cookie in {path} cannot be read" in line
    assert "restore it" in line
    path.write_bytes(stamp)
    with bookie.running():
        pass


def test_damaged_journal_refuses_with_file_offset_and_remedy(bookie: BookieChild) -> None:
    with bookie.running() as process, bookie.connect() as peer:
        for entry_id in range(3):
            assert peer.add(5, entry_id, [b"x" * 100]) == [Status.EOK]
        process.kill()
    path = max((bookie.directory / "journal" / "current").glob("*.txn"))
    content = bytearray(path.read_bytes())
    content[content.index(b"x" * 100)] ^= 1
    path.write_bytes(content)
    code, line = bookie.refusal()
    assert code == 1
    assert f"{path} offset" in line
    assert "restore the file from a backup" in line


# ---- a disk that fails, and promises given up ----


def test_full_disk_ends_the_bookie_and_every_acknowledged_entry_is_there(tmp_path: Path, uri: str) -> None:
    """B1, B9: a journal write that fails is not tried again, and nothing is answered after it."""
    bookie = BookieChild(tmp_path / "bookie", uri, journalPreAllocSizeMB="1")
    acknowledged = 0
    with bookie.running() as process, bookie.connect() as peer:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for entry_id in range(1100):
            peer.send(adds(5, entry_id, [b"x" * 1000]))
            if peer.frame() is None:
                break
            acknowledged += 1
        assert 200 < acknowledged < 1100, "a group takes a physical block of the disk, or more"
        assert process.wait(STOP_S)
        assert process.exit_code == 1
        assert "File too large" in process.last_log_line()
        assert ".txn" in process.last_log_line()
    with bookie.running(), bookie.connect() as peer:
        assert peer.read(5, acknowledged - 1).status == Status.EOK
        assert peer.read(5, 0).status == Status.EOK


def test_bookie_that_does_not_sync_says_so_and_survives_a_kill(tmp_path: Path, uri: str) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri, journalSyncData="false")
    with bookie.running() as process, bookie.connect() as peer:
        assert peer.add(5, 0, [b"x"] * 10) == [Status.EOK] * 10
        process.kill()
    assert "journalSyncData=false is DANGEROUS" in (bookie.directory / "bookie.log").read_text()
    with bookie.running(), bookie.connect() as peer:
        assert peer.read(5, 9).status == Status.EOK


def test_bookie_that_does_not_journal_entries_says_so_and_keeps_them_when_stopped(tmp_path: Path, uri: str) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri, journalWriteData="false")
    with bookie.running(), bookie.connect() as peer:
        assert peer.add(5, 0, [b"payload" * 9] * 10) == [Status.EOK] * 10
        peer.read(6, 0, v2.DO_FENCING)
        journals = b"".join(path.read_bytes() for path in (bookie.directory / "journal" / "current").glob("*.txn"))
    assert b"payload" not in journals
    assert "journalWriteData=false is DANGEROUS" in (bookie.directory / "bookie.log").read_text()
    with bookie.running(), bookie.connect() as peer:
        assert peer.read(5, 9).status == Status.EOK
        assert peer.add(6, 0, [b"late"]) == [Status.EFENCED]


def test_ledgers_in_limbo_are_those_that_the_metadata_name_until_they_are_whole(tmp_path: Path, uri: str) -> None:
    """B2, P29: an add that only memory held is not answered "no such entry" after a crash."""
    bookie = BookieChild(tmp_path / "bookie", uri, journalWriteData="false", gcWaitTime="200", zkTimeout="1500")
    for name in ("minor", "major"):
        bookie.settings[f"{name}CompactionThreshold"] = "0"
    with bookie.running() as process, Client(uri) as client:
        writer = client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        writer.append(b"lost")
        ledger_id = writer.ledger_id
        process.kill()
    with bookie.running(), bookie.connect() as peer:
        assert peer.read(ledger_id, 0).status == Status.EIO
        assert peer.read(ledger_id, v2.LAST_ENTRY).status == Status.EIO
        assert peer.read(ledger_id + 1, 0).status == Status.ENOLEDGER
        with Client(uri) as client:
            with pytest.raises(LedgerRecoveryFailed):
                client.recover(ledger_id)
            client.delete(ledger_id)
        wait_until(lambda: peer.read(ledger_id, 0).status == Status.ENOLEDGER, "the end of limbo")
    assert "1 ledgers are in limbo" in (bookie.directory / "bookie.log").read_text()
