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
from bookie_service.engine.authorization import AuthorizationLimits
from bookie_service.engine.single_reads import SingleReads
from bookie_service.settings.rules_file import RulesFile
from tests.bookie.serving import KEY, adds
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
