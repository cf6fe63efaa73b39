"""Requests that are in flight when the rules change, and bursts that name more ledgers than are remembered."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bkspark.errors import ConfigurationError
from bkspark.security.principal import Principal
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from bookie_service.engine.authorization import AuthorizationLimits, Unfound
from bookie_service.engine.single_reads import SingleReads
from bookie_service.settings.rules_file import RulesFile
from tests.bookie.serving import KEY, adds
from tests.bookie.simulated_connections import SimulatedSocket, replies
from tests.bookie.v3_peer import request
from tests.planting import around
from tests.security.authorized import ALL_RIGHTS, OTHER_KEY, ROOT, AuthorizedBookie, Metadata, facts, statuses

USER = Principal("user", "digest")
MINE = "digest:user read,write,fence log:mine"
BOTH = f"{ALL_RIGHTS}\n{MINE}\ndigest:user read log:shared"
MANY = 1 << 40


def test_first_key_must_be_that_of_the_metadata_in_a_burst_of_more_ledgers_than_are_remembered() -> None:
    """docs/security.md: "The first master key that a bookie gets for a ledger must be that of the password in its
    metadata." The later ledgers of the burst pushed the facts of the first one out, and any key was its first then."""
    limits = AuthorizationLimits(ledgers_max=4, connection_ledgers_max=1)
    bookie = AuthorizedBookie(MINE, Metadata(facts(ledger_id, "mine") for ledger_id in range(1, 8)), limits)
    attacker, other = bookie.connect(USER), bookie.connect(USER)
    # The attacker's connection remembers ledger 1. The bookie itself forgets it when others use more ledgers.
    assert statuses(bookie.ask(attacker, adds(1, 0, [b"x"], key=OTHER_KEY))) == [Status.EUA]
    for ledger_id in (3, 4, 5, 6, 7):
        assert statuses(bookie.ask(other, adds(ledger_id, 0, [b"x"]))) == [Status.EOK]
    assert bookie.authorization.facts(1) is None
    burst = (adds(1, 0, [b"x"], key=OTHER_KEY) + adds(7, 1, [b"y"])) * 3
    assert sorted(statuses(bookie.ask(attacker, burst, turns=60))) == [Status.EOK] * 3 + [Status.EUA] * 3
    assert bookie.served.twin.store.ledger(1) is None
    assert statuses(bookie.ask(attacker, adds(1, 0, [b"x"], key=KEY))) == [Status.EOK]


# ---- the rules change ----


def reads(count: int, ledger_ids: tuple[int, ...]) -> bytes:
    return b"".join(v2.encode_reads(ledger_ids[number % len(ledger_ids)], np.array([0])) for number in range(count))


def lac_reads(count: int, ledger_ids: tuple[int, ...]) -> bytes:
    return b"".join(
        v3.encode_message(request(protocol.READ_LAC, number, ledgerId=ledger_ids[number % len(ledger_ids)]))
        for number in range(count)
    )


def batch_reads(count: int, ledger_ids: tuple[int, ...]) -> bytes:
    return b"".join(
        v2.encode_batch_read(ledger_ids[number % len(ledger_ids)], 0, number, 1, 1 << 20) for number in range(count)
    )


def fencing_reads(count: int, ledger_ids: tuple[int, ...]) -> bytes:
    return v2.encode_reads(ledger_ids[0], np.zeros(count, np.int64), v2.DO_FENCING, KEY)


def bookie_of_two_ledgers() -> AuthorizedBookie:
    bookie = AuthorizedBookie(BOTH, Metadata([facts(1, "mine"), facts(2, "shared")]))
    writer = bookie.connect(ROOT)
    for ledger_id in (1, 2):
        assert statuses(bookie.ask(writer, adds(ledger_id, 0, [bytes(20_000)]), turns=40)) == [Status.EOK]
    return bookie


@pytest.mark.parametrize("frames", [reads, lac_reads, batch_reads, fencing_reads])
def test_reads_that_wait_for_their_peer_are_refused_after_the_right_was_withdrawn(
    frames: Callable[[int, tuple[int, ...]], bytes],
) -> None:
    """docs/security.md: "New rules apply to the next request of every connection." A peer that took no replies kept
    reads waiting, thousands of those that fence, and got their entries whenever it liked."""
    bookie = bookie_of_two_ledgers()
    reader = bookie.connect(USER)
    reader.takes = 0
    assert bookie.ask(reader, frames(1500, (1,)), turns=100) == b""
    bookie.set_rules(ALL_RIGHTS)
    reader.takes = MANY
    found = statuses(bookie.ask(reader, b"", turns=400))
    assert len(found) == 1500
    # Some responses were made before, and wait in the connection's buffer.
    assert set(found) == {Status.EOK, Status.EUA}
    assert found.count(Status.EOK) < 100
    assert bookie.refused[-1].principal == USER


@pytest.mark.parametrize("frames", [reads, lac_reads])
def test_waiting_reads_of_ledgers_that_are_still_allowed_are_answered(
    frames: Callable[[int, tuple[int, ...]], bytes],
) -> None:
    bookie = bookie_of_two_ledgers()
    reader = bookie.connect(USER)
    reader.takes = 0
    bookie.ask(reader, frames(1000, (1, 2)), turns=100)
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read log:shared")
    reader.takes = MANY
    found = statuses(bookie.ask(reader, b"", turns=400))
    assert len(found) == 1000
    assert 500 <= found.count(Status.EOK) < 600
    assert found.count(Status.EUA) == 1000 - found.count(Status.EOK)


@contextmanager
def no_more_open_files() -> Iterator[None]:
    """Let the process open no further file, as under a flood of connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_changed_rules_that_could_not_be_read_at_first_are_read_later(tmp_path: Path) -> None:
    """docs/security.md: "The bookie reads the file again within a second of a change." With too many open files it
    could not, and a right that the change withdrew stayed in force until the next change."""
    path = tmp_path / "rules"
    path.write_text("* read,write *\n")
    file = RulesFile(str(path))
    assert len(file.read()) == 1
    path.write_text("* read *\n* write id:1\n")
    with no_more_open_files():
        with pytest.raises(ConfigurationError, match="the file cannot be read: Too many open files"):
            file.read_if_changed()
        # It is reported once.
        assert file.read_if_changed() is None
    changed = file.read_if_changed()
    assert changed is not None
    assert len(changed) == 2
    assert file.read_if_changed() is None


def test_rules_that_are_wrong_when_they_can_be_read_at_last_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "rules"
    path.write_text("* raed *\n")
    file = RulesFile(str(path))
    with no_more_open_files(), pytest.raises(ConfigurationError, match="Too many open files"):
        file.read()
    with pytest.raises(ConfigurationError, match="line 1: 'raed' is not a right"):
        file.read_if_changed()
    assert file.read_if_changed() is None


def test_rules_that_were_written_over_with_the_old_time_and_length_are_read(tmp_path: Path) -> None:
    """Programs that copy files with their times do that."""
    path = tmp_path / "rules"
    path.write_text("token:amy read *\n")
    file, before = RulesFile(str(path)), path.stat()
    file.read()
    path.write_text("token:bob read *\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = file.read_if_changed()
    assert changed is not None
    assert changed.of(Principal("bob", "token")).everywhere
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match="every user of this host can change it"):
        file.read_if_changed()


def test_defect_in_judging_waiting_reads_again_is_answered_eio_and_gives_nothing_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`reads`: "an error in a reading leaves the bookie unchanged: the request is answered EIO". It ended the process,
    because the audit log is written and the requests are sorted before the reading proceeds."""
    bookie = bookie_of_two_ledgers()
    reader = bookie.connect(USER)
    reader.takes = 0
    bookie.ask(reader, reads(1000, (1, 2)), turns=100)
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read log:shared")
    reader.takes = MANY

    def fail(old: object, reading: SingleReads, order: np.ndarray) -> None:
        raise AssertionError("a defect")

    with around(SingleReads, "arrange", fail):
        answer = bookie.ask(reader, b"", turns=400)
    found = statuses(answer)
    assert len(found) == 1000
    assert found.count(Status.EIO) > 400, "no request may be answered that was not judged"
    # Some responses were made before, and wait in the connection's buffer.
    assert answer.count(struct.pack(">iqq", Status.EOK, 1, 0)) < 100
    assert "this is a defect of the bookie" in caplog.text


def bookie_that_knows_no_ledger(ledgers: int, limits: AuthorizationLimits | None = None) -> AuthorizedBookie:
    """Return a bookie whose user may read everything, so that no read needed the metadata of a ledger."""
    known = [facts(ledger_id, "theirs" if ledger_id == 3 else "mine") for ledger_id in range(1, ledgers + 1)]
    bookie = AuthorizedBookie(f"{ALL_RIGHTS}\ndigest:user read *", Metadata(known), limits)
    writer = bookie.connect(ROOT)
    for ledger_id in range(1, ledgers + 1):
        assert statuses(bookie.ask(writer, adds(ledger_id, 0, [bytes(20_000)]), turns=40)) == [Status.EOK]
        bookie.authorization.forget_ledger(ledger_id)
    bookie.metadata.asked.clear()
    return bookie


def reader_beside_new_rules(bookie: AuthorizedBookie, frames: bytes) -> SimulatedSocket:
    """Return a reader whose reads wait, after a change to rules for which ledgers must be looked up.

    `metadata.release` answers the look-ups.
    """
    reader = bookie.connect(USER)
    reader.takes = 0
    bookie.ask(reader, frames, turns=100)
    bookie.metadata.is_held = True
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read log:mine")
    reader.takes = MANY
    return reader


@pytest.mark.parametrize("frames", [reads, lac_reads])
@pytest.mark.parametrize("is_asking", [False, True], ids=["silent", "asking"])
def test_waiting_reads_wait_on_until_the_ledgers_that_new_rules_name_are_looked_up(
    frames: Callable[[int, tuple[int, ...]], bytes], *, is_asking: bool
) -> None:
    """docs/security.md: "If ZooKeeper does not answer within 4 s, the request is answered EIO". Reads that waited were
    answered EIO at once, on all bookies at about the same moment, although the new rules allow them."""
    bookie = bookie_that_knows_no_ledger(3)
    reader = reader_beside_new_rules(bookie, frames(900, (1, 2, 3)))
    before = statuses(bookie.ask(reader, b"", turns=400))
    assert set(before) == {Status.EOK}, "made before the rules changed"
    assert sorted(bookie.metadata.asked) == [1, 2, 3]
    bookie.metadata.release()
    found = statuses(bookie.ask(reader, frames(3, (1, 2, 3)) * is_asking, turns=400))
    assert len(before) + len(found) == 900 + 3 * is_asking
    assert len(before) < 100
    assert set(found) == {Status.EOK, Status.EUA}
    assert found.count(Status.EUA) > 250
    assert bookie.served.bookie.reads.waiting == 0


def test_waiting_reads_of_more_ledgers_than_are_looked_up_or_remembered_at_once_are_answered() -> None:
    limits = AuthorizationLimits(ledgers_max=4, connection_ledgers_max=1, connection_lookups_max=2)
    bookie = bookie_that_knows_no_ledger(9, limits)
    reader = bookie.connect(USER)
    reader.takes = 0
    bookie.ask(reader, reads(400, tuple(range(1, 11))), turns=100)
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read log:mine")
    reader.takes = MANY
    found = statuses(bookie.ask(reader, b"", turns=4000))
    assert len(found) == 400
    # Ledger 3 is another's, and ledger 10 does not exist.
    assert set(found) - {Status.ENOLEDGER} == {Status.EOK, Status.EUA}
    assert found.count(Status.EUA) > 50


def test_reads_that_wait_for_a_look_up_end_with_their_connection() -> None:
    bookie = bookie_that_knows_no_ledger(3)
    reader = reader_beside_new_rules(bookie, reads(900, (1, 2, 3)))
    bookie.ask(reader, b"", turns=400)
    assert bookie.served.bookie.reads.waiting > 0
    bookie.served.connections[reader].close()
    bookie.metadata.release()
    bookie.served.turn()
    assert bookie.served.bookie.reads.waiting == 0
    assert list(bookie.served.bookie.reads.clients()) == []


@pytest.mark.parametrize("answer", ["found", "unknown"])
def test_rules_that_change_again_during_the_look_up_are_the_ones_that_count(answer: str) -> None:
    bookie = bookie_that_knows_no_ledger(3)
    reader = reader_beside_new_rules(bookie, reads(900, (1, 2, 3)))
    before = statuses(bookie.ask(reader, b"", turns=400))
    if answer == "unknown":
        bookie.metadata.ledgers = dict.fromkeys(bookie.metadata.ledgers, Unfound.UNKNOWN)
    else:
        bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read log:theirs")
    bookie.metadata.release()
    found = statuses(bookie.ask(reader, b"", turns=400))
    assert len(before) + len(found) == 900
    expected = {Status.EIO} if answer == "unknown" else {Status.EOK, Status.EUA}
    assert set(found) == expected
    assert found.count(Status.EUA) > (500 if answer == "found" else -1)


@pytest.mark.parametrize(("ledger_id", "status"), [(1, Status.EOK), (3, Status.EUA)], ids=["allowed", "another's"])
def test_long_poll_waits_on_until_new_rules_can_be_applied_to_its_ledger(ledger_id: int, status: int) -> None:
    """All waiting long polls of a cluster were answered EIO when such rules came into force."""
    bookie = bookie_that_knows_no_ledger(3)
    reader = bookie.connect(USER)
    poll = request(protocol.READ_ENTRY, 7, ledgerId=ledger_id, entryId=0, previousLAC=0, timeOut=60_000)
    assert bookie.ask(reader, v3.encode_message(poll)) == b""
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read log:mine")
    assert bookie.ask(reader, b"") == b""
    bookie.served.loop.now += 61
    bookie.metadata.is_held = True
    assert bookie.ask(reader, b"") == b""
    bookie.metadata.release()
    (found,) = statuses(bookie.ask(reader, b"", turns=40))
    assert (found, bookie.metadata.asked) == (status, [ledger_id])
    assert bookie.served.bookie.reads.waiting == 0


def test_peer_that_takes_no_replies_after_the_look_up_gets_them_later() -> None:
    bookie = AuthorizedBookie(f"{ALL_RIGHTS}\ndigest:user read,fence *", Metadata([facts(1, "mine")]))
    assert statuses(bookie.ask(bookie.connect(ROOT), adds(1, 0, [bytes(20_000)]), turns=40)) == [Status.EOK]
    reader = bookie.connect(USER)
    reader.takes = 0
    bookie.ask(reader, fencing_reads(900, (1,)), turns=100)
    bookie.authorization.forget_ledger(1)
    bookie.metadata.is_held = True
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read,fence log:mine")
    reader.takes = MANY
    before = statuses(bookie.ask(reader, b"", turns=400))
    reader.takes = 0
    bookie.metadata.release()
    assert bookie.ask(reader, b"", turns=400) == b""
    assert bookie.served.bookie.reads.waiting > 0
    reader.takes = MANY
    found = statuses(bookie.ask(reader, b"", turns=400))
    assert len(before) < 100
    assert [*before, *found] == [Status.EOK] * 900
    assert bookie.served.bookie.reads.waiting == 0


def entry_lists(ledger_ids: tuple[int, ...]) -> bytes:
    return b"".join(
        v3.encode_message(request(protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, number, ledgerId=ledger_id))
        for number, ledger_id in enumerate(ledger_ids)
    )


@pytest.mark.parametrize("answer", ["found", "unknown"])
def test_lists_of_entries_wait_on_until_the_ledgers_that_new_rules_name_are_looked_up(answer: str) -> None:
    """docs/security.md: "If ZooKeeper does not answer within 4 s, the request is answered EIO". Lists that waited for
    their turn were answered EIO at once, although the new rules allow them."""
    bookie = bookie_that_knows_no_ledger(3)
    auditor = bookie.connect(USER)
    auditor.received += entry_lists((1, 2, 3))
    bookie.served.turns_until(lambda: replies(auditor) == 1)
    bookie.metadata.is_held = True
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read log:mine")
    assert statuses(bookie.ask(auditor, b"", turns=400)) == [Status.EOK], "made before the rules changed"
    lists = bookie.served.bookie.entry_lists
    connection = bookie.served.connections[auditor]
    assert (len(lists), lists.clients(), sorted(bookie.metadata.asked)) == (2, [connection] * 2, [2, 3])
    if answer == "unknown":
        bookie.metadata.ledgers = dict.fromkeys(bookie.metadata.ledgers, Unfound.UNKNOWN)
    bookie.metadata.release()
    found = statuses(bookie.ask(auditor, b"", turns=400))
    assert sorted(found) == ([Status.EOK, Status.EUA] if answer == "found" else [v3.StatusCode.EIO] * 2)
    assert (len(lists), lists.clients()) == (0, [])


def test_lists_that_wait_for_a_look_up_end_with_their_connection() -> None:
    bookie = bookie_that_knows_no_ledger(3)
    auditor = bookie.connect(USER)
    auditor.received += entry_lists((1, 2))
    bookie.served.turns_until(lambda: replies(auditor) == 1)
    bookie.metadata.is_held = True
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read log:mine")
    bookie.ask(auditor, b"", turns=40)
    lists = bookie.served.bookie.entry_lists
    assert len(lists) == 1
    bookie.served.connections[auditor].close()
    bookie.metadata.release()
    bookie.ask(auditor, b"", turns=40)
    assert (len(lists), lists.clients()) == (0, [])
    other = bookie.connect(ROOT)
    assert statuses(bookie.ask(other, entry_lists((1,)), turns=40)) == [Status.EOK]
