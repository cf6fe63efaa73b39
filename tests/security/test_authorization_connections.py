"""How a bookie applies rules to connections: look-ups at first contact, what is remembered, changes of the rules."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bkspark import tracing
from bkspark.security.authorization import ADMIN, Rules, parse_rules
from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.framing import scan_frames
from bkspark.wire.status import Status
from bookie_service.engine.authorization import (
    NO_RULE,
    Authorization,
    AuthorizationLimits,
    RefusedRequests,
    Unfound,
)
from bookie_service.engine.reads import Reading
from bookie_service.metrics.requests import READ_ENTRY, RequestTimes
from bookie_service.network.changes import JudgedChange, StateChange
from tests.bookie.serving import KEY, adds, stored
from tests.bookie.v3_peer import PIGGYBACK, request
from tests.security.authorized import ALL_RIGHTS, OTHER_KEY, ROOT, AuthorizedBookie, Metadata, facts, statuses

USER = Principal("user", "digest")
MINE = "digest:user read,write,fence log:mine"


def bookie_with(
    *ledger_ids: int, rules: str = f"{ALL_RIGHTS}\n{MINE}", limits: AuthorizationLimits | None = None
) -> AuthorizedBookie:
    """Return a bookie whose metadata have ledgers of the log `mine`."""
    return AuthorizedBookie(rules, Metadata(facts(ledger_id, "mine") for ledger_id in ledger_ids), limits)


def reads(*ledger_ids: int) -> bytes:
    return b"".join(v2.encode_reads(ledger_id, np.array([0])) for ledger_id in ledger_ids)


@pytest.mark.parametrize("rights", ["write", "write,fence"])
def test_adds_that_come_one_by_one_need_the_rights_of_their_kind(rights: str) -> None:
    """An add that comes alone takes a short cut from the second one on. One of a recovery needs the right to fence."""
    bookie = bookie_with(1, rules=f"digest:user {rights} log:mine")
    writer = bookie.connect(USER)
    for entry_id in range(3):
        assert statuses(bookie.ask(writer, adds(1, entry_id, [b"x"]))) == [Status.EOK]
    for entry_id in (3, 4):
        recovered = statuses(bookie.ask(writer, adds(1, entry_id, [b"x"], v2.RECOVERY_ADD)))
        assert recovered == [Status.EOK if "fence" in rights else Status.EUA]
    assert bookie.served.failures == []


def poll(ledger_id: int, previous_lac: int, seconds: float = 60.0) -> bytes:
    """Return a long poll for an entry after this LAC."""
    return v3.encode_message(
        request(
            protocol.READ_ENTRY,
            9,
            ledgerId=ledger_id,
            entryId=-1,
            flag=PIGGYBACK,
            previousLAC=previous_lac,
            timeOut=int(seconds * 1000),
        )
    )


def test_ledger_is_looked_up_at_first_contact_and_never_again() -> None:
    bookie = bookie_with(1)
    peer = bookie.connect(USER)
    for entry_id in range(20):
        assert statuses(bookie.ask(peer, adds(1, entry_id, [b"x"]))) == [Status.EOK]
    assert statuses(bookie.ask(bookie.connect(USER), reads(1, 1))) == [Status.EOK] * 2
    assert bookie.metadata.asked == [1]


def test_requests_that_no_rule_allows_are_counted_as_failures() -> None:
    """Refused adds were, and refused reads were not: the dashboards' share of successful reads stayed at 1."""
    times = RequestTimes(lambda: 5_000_000_000)
    bookie = AuthorizedBookie(f"{ALL_RIGHTS}\n{MINE}", Metadata([facts(1, "theirs")]), times=times)
    peer = bookie.connect(USER)
    fencing = v2.encode_reads(1, np.array([-1]), v2.DO_FENCING, KEY)
    for frames, adds_, reads_ in (
        (reads(1, 1, 1), 0, 3),
        (fencing, 0, 4),
        (v2.encode_batch_read(1, 0, 1, 10, 1 << 10), 0, 5),
        (adds(1, 0, [b"x"] * 2), 2, 5),
    ):
        assert set(statuses(bookie.ask(peer, frames))) == {Status.EUA}
        times.fold()
        assert (times.failed_adds.count(0), times.failed.count(READ_ENTRY)) == (adds_, reads_)
    assert times.succeeded.count(READ_ENTRY) == 0


def test_ledger_that_was_dropped_is_looked_up_again() -> None:
    """Its id may be created again, by another client: the earlier metadata must not give it to the earlier owner."""
    bookie = bookie_with(1, 2)
    peer = bookie.connect(USER)
    assert statuses(bookie.ask(peer, adds(1, 0, [b"x"]))) == [Status.EOK]
    bookie.metadata.ledgers[1] = facts(1, "theirs")
    assert statuses(bookie.ask(peer, reads(1))) == [Status.EOK], "it is still the one that was looked up"
    for dropped in (1, 7):
        bookie.authorization.forget_ledger(dropped)
    assert statuses(bookie.ask(peer, reads(1, 2))) == [Status.EUA, Status.ENOLEDGER]
    assert bookie.metadata.asked == [1, 1, 2]


def test_ledger_that_was_dropped_is_looked_up_again_for_every_connection() -> None:
    bookie = bookie_with(1)
    peers = [bookie.connect(USER) for _ in range(3)]
    for entry_id, peer in enumerate(peers):
        assert statuses(bookie.ask(peer, adds(1, entry_id, [b"x"]))) == [Status.EOK]
    bookie.metadata.ledgers[1] = facts(1, "theirs")
    bookie.authorization.forget_ledger(1)
    assert [statuses(bookie.ask(peer, reads(1))) for peer in peers] == [[Status.EUA]] * 3


def test_who_hears_of_new_rules_finds_them_in_force() -> None:
    found: list[Rules] = []
    authorization = Authorization(Rules(()), lambda ledger_id, on_found, asker: None, lambda refused: None)
    authorization.on_change = lambda: found.append(authorization.rules)
    rules = parse_rules(b"token:user read *")
    authorization.set_rules(rules)
    assert found == [rules]


@pytest.mark.parametrize("principal", [ROOT, USER], ids=str)
def test_id_of_a_ledger_that_does_not_exist_cannot_be_taken(principal: Principal) -> None:
    """An attacker that adds to, or fences, the next ids with keys of its own would own them on this bookie."""
    bookie = bookie_with()
    attacker, before = bookie.connect(principal), bookie.uses
    fence = v2.encode_reads(7, np.array([-1]), v2.DO_FENCING, OTHER_KEY)
    assert statuses(bookie.ask(attacker, adds(7, 0, [b"x"], key=OTHER_KEY) + fence)) == [Status.EUA] * 2
    assert bookie.uses == before
    assert {refused.why for refused in bookie.refused} == {Unfound.ABSENT.value}
    # Its owner creates the ledger, and adds.
    bookie.metadata.ledgers[7] = facts(7, "mine")
    assert statuses(bookie.ask(bookie.connect(USER), adds(7, 0, [b"x"]))) == [Status.EOK]
    # The same connection sees it, too.
    assert statuses(bookie.ask(attacker, adds(7, 1, [b"y"]))) == [Status.EOK]


def test_flood_of_guesses_does_not_keep_a_new_ledger_from_its_owner() -> None:
    """A remembered "does not exist" would let an attacker bar ids that are created later."""
    bookie = bookie_with()
    attacker = bookie.connect(USER)
    for ledger_id in range(50):
        bookie.ask(attacker, adds(ledger_id, 0, [b"x"]), turns=2)
        bookie.metadata.ledgers[ledger_id] = facts(ledger_id, "mine")
        assert statuses(bookie.ask(bookie.connect(USER), adds(ledger_id, 0, [b"x"]))) == [Status.EOK]


def test_first_key_must_be_that_of_the_metadata_whatever_request_brings_it() -> None:
    bookie = bookie_with(1)
    attacker = bookie.connect(USER)
    frames = (
        adds(1, 0, [b"x"], key=OTHER_KEY),
        adds(1, 0, [b"x", b"y"], key=OTHER_KEY),
        v2.encode_reads(1, np.array([-1]), v2.DO_FENCING, OTHER_KEY),
        v3.encode_message(
            request(protocol.WRITE_LAC, 1, ledgerId=1, lac=0, masterKey=OTHER_KEY, body=struct.pack(">qq", 1, 0))
        ),
    )
    for frame in frames:
        # V3 after V2 is not spoken on one connection.
        assert set(statuses(bookie.ask(bookie.connect(USER), frame))) == {Status.EUA}
    assert bookie.served.twin.store.ledger(1) is None
    assert statuses(bookie.ask(attacker, adds(1, 0, [b"x"]))) == [Status.EOK]


def test_first_key_must_be_that_of_the_metadata_in_an_add_that_has_a_span() -> None:
    """Adds of a traced client are answered through an object around their connection."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider

    pair = protocol.ContextPair(key=tracing.TRACEPARENT, value=f"00-{'a' * 32}-{'b' * 16}-01")
    tracing.start(TracerProvider())
    try:
        bookie = bookie_with(1)
        peer = bookie.connect(USER)
        for count in (1, 5):
            frames = b"".join(
                v3.encode_message(
                    protocol.Request(
                        header=v3.header(protocol.ADD_ENTRY, 7 + entry_id),
                        addRequest=protocol.AddRequest(
                            ledgerId=1, entryId=entry_id, masterKey=OTHER_KEY, body=stored(1, entry_id, b"x")
                        ),
                        requestContext=[pair],
                    )
                )
                for entry_id in range(count)
            )
            assert statuses(bookie.ask(peer, frames)) == [Status.EUA] * count
    finally:
        tracing.stop()


def test_first_key_is_believed_where_the_metadata_have_no_password() -> None:
    bookie = AuthorizedBookie(MINE, Metadata([facts(1, "mine", key=None)]))
    peer = bookie.connect(USER)
    assert statuses(bookie.ask(peer, adds(1, 0, [b"x"], key=OTHER_KEY))) == [Status.EOK]
    assert statuses(bookie.ask(peer, adds(1, 1, [b"x"], key=KEY))) == [Status.EUA]


def test_requests_that_came_together_are_answered_each_by_its_own_ledger() -> None:
    bookie = bookie_with(1, 3)
    bookie.metadata.ledgers[2] = facts(2, "theirs")
    root = bookie.connect(ROOT)
    assert set(statuses(bookie.ask(root, b"".join(adds(ledger_id, 0, [b"x"]) for ledger_id in (1, 2, 3))))) == {0}
    frames = reads(1, 2, 3, 2, 2, 1, 9, 1)
    answer = bookie.ask(bookie.connect(USER), frames, turns=40)
    replies = v2_replies(answer)
    found = sorted(zip(replies.ledger_ids.tolist(), replies.statuses.tolist()))
    expected = [(1, 0)] * 3 + [(2, Status.EUA)] * 3 + [(3, 0), (9, Status.EUA)]
    assert found == expected


@pytest.mark.parametrize("first", ["mine", "theirs"])
def test_long_run_of_requests_is_judged_ledger_by_ledger(first: str) -> None:
    """More than are looked at together at first, with a verdict that changes long after the first one."""
    second = "theirs" if first == "mine" else "mine"
    bookie = AuthorizedBookie(f"{ALL_RIGHTS}\n{MINE}", Metadata([facts(1, first), facts(2, first), facts(3, second)]))
    root = bookie.connect(ROOT)
    assert set(statuses(bookie.ask(root, b"".join(adds(ledger_id, 0, [b"x"]) for ledger_id in (1, 2, 3))))) == {0}
    asked = [1 + number % 2 for number in range(150)] + [3] + [1 + number % 2 for number in range(150)]
    replies = v2_replies(bookie.ask(bookie.connect(USER), reads(*asked), turns=200))
    found = sorted(zip(replies.ledger_ids.tolist(), replies.statuses.tolist()))
    status = {"mine": Status.EOK, "theirs": Status.EUA}
    assert found == [(1, status[first])] * 150 + [(2, status[first])] * 150 + [(3, status[second])]


def v2_replies(answer: bytes) -> v2.Replies:
    return v2.decode_replies(answer, scan_frames(answer, len(answer)))


def test_adds_of_one_read_are_judged_by_their_recovery_flag() -> None:
    bookie = bookie_with(1, rules="digest:user write log:mine")
    peer = bookie.connect(USER)
    frames = [adds(1, entry_id, [b"x"], v2.RECOVERY_ADD if entry_id % 3 else 0) for entry_id in range(30)]
    answer = bookie.ask(peer, b"".join(frames), turns=60)
    replies = v2_replies(answer)
    expected = {entry_id: Status.EUA if entry_id % 3 else Status.EOK for entry_id in range(30)}
    assert dict(zip(replies.entry_ids.tolist(), replies.statuses.tolist())) == expected


def test_add_of_a_recovery_that_comes_alone_needs_the_right_to_fence_too() -> None:
    bookie = bookie_with(1, rules="digest:user write log:mine")
    peer = bookie.connect(USER)
    assert statuses(bookie.ask(peer, adds(1, 0, [b"x"]))) == [Status.EOK]
    assert statuses(bookie.ask(peer, adds(1, 1, [b"x"], v2.RECOVERY_ADD))) == [Status.EUA]
    assert statuses(bookie.ask(peer, adds(1, 1, [b"x"]))) == [Status.EOK]


def test_connection_waits_for_its_look_up_and_others_go_on() -> None:
    bookie = bookie_with(1, 2)
    other = bookie.connect(USER)
    assert statuses(bookie.ask(other, adds(2, 0, [b"x"]))) == [Status.EOK]
    bookie.metadata.is_held = True
    peer, before = bookie.connect(USER), bookie.uses
    assert bookie.ask(peer, adds(1, 0, [b"x", b"y"])) == b""
    assert bookie.uses == before
    assert statuses(bookie.ask(other, adds(2, 1, [b"x"]))) == [Status.EOK]
    bookie.metadata.release()
    assert statuses(bookie.ask(peer, b"")) == [Status.EOK] * 2


def test_connection_that_is_gone_takes_no_answer_of_its_look_up() -> None:
    bookie = bookie_with(1)
    bookie.metadata.is_held = True
    peer = bookie.connect(USER)
    bookie.ask(peer, adds(1, 0, [b"x"]))
    bookie.served.connections[peer].close()
    bookie.metadata.release()
    assert bookie.ask(peer, b"") == b""
    assert not bookie.served.failures
    assert not bookie.authorization._connections


def test_store_that_does_not_answer_makes_eio_and_is_asked_again() -> None:
    """EUA would end the writer. The store may answer later."""
    bookie = bookie_with()
    bookie.metadata.ledgers[1] = Unfound.UNKNOWN
    peer = bookie.connect(USER)
    assert statuses(bookie.ask(peer, adds(1, 0, [b"x"]))) == [Status.EIO]
    assert not bookie.refused
    bookie.metadata.ledgers[1] = facts(1, "mine")
    assert statuses(bookie.ask(peer, adds(1, 0, [b"x"]))) == [Status.EOK]


def test_run_of_many_new_ledgers_is_looked_up_a_few_at_once_and_served_whole() -> None:
    at_once = AuthorizationLimits().connection_lookups_max
    count = 5 * at_once
    bookie = bookie_with(*range(count))
    bookie.metadata.is_held = True
    peer = bookie.connect(USER)
    bookie.ask(peer, reads(*range(count)))
    assert len(bookie.metadata.asked) == at_once
    bookie.metadata.release()
    assert len(statuses(bookie.ask(peer, b"", turns=200))) == count
    assert sorted(bookie.metadata.asked) == list(range(count))


def test_reader_of_everything_needs_no_look_up() -> None:
    bookie = bookie_with(rules="* read *")
    assert statuses(bookie.ask(bookie.connect(ANONYMOUS), reads(5))) == [Status.ENOLEDGER]
    assert statuses(bookie.ask(bookie.connect(ANONYMOUS), reads(5, 6, 7))) == [Status.ENOLEDGER] * 3
    assert not bookie.metadata.asked


def test_right_to_write_everything_does_not_give_a_connection_ledgers_that_do_not_exist() -> None:
    """The rights that a connection begins with, before it has proved anything."""
    bookie = bookie_with(rules="* read,write,fence *")
    peer = bookie.connect(ANONYMOUS)
    assert statuses(bookie.ask(peer, adds(7, 0, [b"x"]))) == [Status.EUA]
    assert bookie.metadata.asked == [7]


def test_ledgers_of_a_run_that_are_known_are_not_looked_up_again() -> None:
    bookie = bookie_with(1, 2, 3)
    peer = bookie.connect(USER)
    assert statuses(bookie.ask(peer, adds(1, 0, [b"x"]))) == [Status.EOK]
    assert statuses(bookie.ask(peer, reads(2, 1, 3, 2, 1), turns=40)).count(Status.EOK) == 2
    assert sorted(bookie.metadata.asked) == [1, 2, 3]


def test_what_is_remembered_is_bounded() -> None:
    bookie = bookie_with(*range(100), limits=AuthorizationLimits(ledgers_max=16, connection_ledgers_max=8))
    peer = bookie.connect(USER)
    (rights,) = bookie.authorization._connections.values()
    remembered = []
    for ledger_id in range(100):
        assert statuses(bookie.ask(peer, adds(ledger_id, 0, [b"x"]))) == [Status.EOK]
        assert len(rights._facts) == len(rights._rights)
        assert ledger_id in rights._facts
        known = [each for each in range(100) if bookie.authorization.facts(each) is not None]
        remembered.append((len(rights._facts), len(known)))
    # At its limit a connection forgets all ledgers, and the bookie the oldest quarter.
    assert [mine for mine, _ in remembered] == [1 + number % 8 for number in range(100)]
    assert [all_ for _, all_ in remembered] == [*range(1, 17), *[13 + number % 4 for number in range(84)]]
    assert bookie.authorization.facts(99) is not None
    # Forgotten ledgers are looked up again.
    assert statuses(bookie.ask(peer, adds(0, 1, [b"x"]))) == [Status.EOK]


def test_refusal_of_a_request_about_the_bookie_itself_names_client_and_request() -> None:
    bookie = bookie_with()
    assert not bookie.authorization.may(USER, "10.0.0.9", ADMIN)
    assert bookie.refused == [RefusedRequests(USER, "10.0.0.9", ADMIN, None, 1, NO_RULE)]
    bookie.set_rules("digest:user admin")
    assert bookie.authorization.may(USER, "10.0.0.9", ADMIN)
    assert len(bookie.refused) == 1


def test_requests_of_several_ledgers_that_are_refused_together_are_one_report() -> None:
    bookie = AuthorizedBookie(MINE, Metadata([facts(1, "theirs"), facts(2, "theirs")]))
    assert statuses(bookie.ask(bookie.connect(USER), reads(1, 2, 1), turns=40)) == [Status.EUA] * 3
    assert [(refused.ledger_id, refused.requests) for refused in bookie.refused] == [(1, 3)]


# ---- changes ----


def test_new_rules_apply_to_the_next_request_of_a_connection_that_exists() -> None:
    bookie = bookie_with(1)
    peer = bookie.connect(USER)
    assert statuses(bookie.ask(peer, adds(1, 0, [b"x"]))) == [Status.EOK]
    bookie.set_rules("digest:user read log:mine")
    assert statuses(bookie.ask(peer, adds(1, 1, [b"x"]))) == [Status.EUA]
    assert statuses(bookie.ask(peer, reads(1))) == [Status.EOK]
    bookie.set_rules(MINE)
    assert statuses(bookie.ask(peer, adds(1, 1, [b"x"]))) == [Status.EOK]
    assert bookie.metadata.asked == [1]


def test_new_principal_of_a_connection_has_its_own_rights() -> None:
    bookie = bookie_with(1)
    peer = bookie.connect(ANONYMOUS)
    assert statuses(bookie.ask(peer, adds(1, 0, [b"x"]))) == [Status.EUA]
    bookie.served.connections[peer].principal = USER
    assert statuses(bookie.ask(peer, adds(1, 0, [b"x"]))) == [Status.EOK]
    bookie.served.connections[peer].principal = Principal("x", "digest")
    assert statuses(bookie.ask(peer, adds(1, 1, [b"x"]))) == [Status.EUA]


def test_long_poll_that_waits_is_refused_when_the_rules_change() -> None:
    bookie = bookie_with(1)
    writer, reader = bookie.connect(ROOT), bookie.connect(USER)
    bookie.ask(writer, adds(1, 0, [b"x", b"y"]))
    assert bookie.ask(reader, poll(1, 0)) == b""
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user write log:mine")
    assert statuses(bookie.ask(reader, b"")) == [Status.EUA]
    assert bookie.refused[-1].why == NO_RULE
    assert not len(bookie.served.bookie.long_polls)
    bookie.ask(writer, adds(1, 2, [b"z"]))
    assert bookie.ask(reader, b"") == b""


def test_long_poll_that_may_still_wait_goes_on_when_the_rules_change() -> None:
    bookie = bookie_with(1)
    reader = bookie.connect(USER)
    writer = bookie.connect(ROOT)
    bookie.ask(writer, adds(1, 0, [b"x"]))
    assert bookie.ask(reader, poll(1, 5)) == b""
    bookie.set_rules(f"{ALL_RIGHTS}\ndigest:user read id:1")
    assert bookie.ask(reader, b"") == b""
    assert not bookie.refused
    bookie.served.loop.now += 61
    assert statuses(bookie.ask(reader, b"")) == [Status.EOK]


@pytest.mark.parametrize("how", ["time", "lac"])
def test_long_poll_that_ends_before_it_was_reviewed_is_refused(how: str) -> None:
    bookie = bookie_with(1)
    writer, reader = bookie.connect(ROOT), bookie.connect(USER)
    bookie.ask(writer, adds(1, 0, [b"x"]))
    assert bookie.ask(reader, poll(1, -1)) == b""
    # Both happen before the event loop reviews the polls.
    if how == "time":
        bookie.served.loop.now += 61
    else:
        bookie.served.bookie.long_polls.touch(1, is_fenced=True)
    bookie.set_rules(ALL_RIGHTS)
    assert statuses(bookie.ask(reader, b"")) == [Status.EUA]


def test_list_of_entries_that_waits_is_refused_when_the_rules_change() -> None:
    bookie = bookie_with(1)
    peer = bookie.connect(USER)
    bookie.ask(bookie.connect(ROOT), adds(1, 0, [b"x"]))
    frame = v3.encode_message(request(protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, 3, ledgerId=1))
    before = statuses(bookie.ask(peer, frame * 20, turns=1))
    waiting = len(bookie.served.bookie.entry_lists)
    assert waiting > 10
    assert set(before) <= {Status.EOK}
    bookie.set_rules(ALL_RIGHTS)
    after = statuses(bookie.ask(peer, b"", turns=2000))
    assert len(before) + len(after) == 20
    # One was being made.
    assert after.count(Status.EUA) >= waiting - 1


def test_every_kind_of_request_says_which_rights_it_needs() -> None:
    """One that does not would not be judged. An allowed add has been judged, and a connection may change itself."""
    unjudged = set(subclasses(StateChange)) - set(subclasses(JudgedChange)) - {JudgedChange}
    assert {kind.__name__ for kind in unjudged} == {"AllowedSingleAdd", "ConnectionChange"}
    kinds = [*subclasses(Reading), *subclasses(JudgedChange)]
    assert len(kinds) >= 9
    for kind in kinds:
        if not getattr(kind, "__abstractmethods__", None):
            assert hasattr(kind, "needed"), kind


def subclasses(kind: type) -> list[type]:
    found = kind.__subclasses__()
    return [*found, *(below for each in found for below in subclasses(each))]
