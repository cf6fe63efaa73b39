"""Random histories of rules, ledgers and requests, judged a second time by a short model.

Rules change, also to texts that are not rules; ledgers are created, deleted, and created again by others; and bursts of
all kinds of requests come in pieces, over connections that stay. After each piece the model says how many requests were
refused, and for which ledgers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bkspark.security.authorization import RulesError, parse_rules
from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.wire.status import Status
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import SimulatedSocket
from tests.fuzzing.mutated_bytes import mutated
from tests.security.authorized import (
    ALL_RIGHTS,
    KEY,
    OPERATIONS,
    OTHER_KEY,
    ROOT,
    AuthorizedBookie,
    Metadata,
    Operation,
    facts,
    frames_in,
    statuses,
)

HISTORIES, EVENTS = 8, 50
PIECE_TURNS = 80
MUTATED_BURSTS = 600
LEDGERS = range(1, 7)
PRINCIPALS = (Principal("user", "digest"), Principal("CN=job", "certificate"), ANONYMOUS)
RIGHTS = ("read", "write", "fence")
LOGS = ("mine", "theirs")
SELECTORS = ("*", "id:2-4", *(f"log:{log}" for log in LOGS))
NO_RULES = (
    b"",
    b"stranger",
    b"digest:user read",
    b"digest:user rd log:mine",
    b"digest:user read log:mine\n\xff",
    b"* admin id:1",
)


@dataclass(frozen=True)
class Rule:
    """A line of the rules file."""

    principal: Principal
    rights: frozenset[str]
    selector: str

    def __str__(self) -> str:
        return f"{self.principal} {','.join(sorted(self.rights))} {self.selector}"

    def selects(self, ledger_id: int, log: str) -> bool:
        return self.selector in ("*", f"log:{log}") or (self.selector == "id:2-4" and 2 <= ledger_id <= 4)


class Model:
    """What a bookie must decide: by the rules in force, and by the metadata that it read first."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.logs: dict[int, str] = {}
        """The ledgers that exist, and the log of each."""
        self._known: dict[int, str] = {}
        """What the bookie has read of them, until it drops the ledger."""

    def drop(self, ledger_id: int) -> None:
        self._known.pop(ledger_id, None)

    def allows(self, principal: Principal, operation: Operation, ledger_id: int) -> bool:
        mine = [rule for rule in self.rules if rule.principal == principal]
        if not operation.needs <= _union(mine):
            return False
        if operation.needs <= _union([rule for rule in mine if rule.selector == "*"]) & {"read"}:
            # A ledger that does not exist has nothing to read.
            return True
        if ledger_id not in self._known:
            if ledger_id not in self.logs:
                return False
            self._known[ledger_id] = self.logs[ledger_id]
        return operation.needs <= _union([rule for rule in mine if rule.selects(ledger_id, self._known[ledger_id])])


def _union(rules: list[Rule]) -> frozenset[str]:
    return frozenset[str]().union(*(rule.rights for rule in rules))


class History:
    """One bookie, its model, and what happens to both."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._model = Model()
        self._metadata = Metadata()
        self._bookie = AuthorizedBookie(ALL_RIGHTS, self._metadata)
        self._connections: dict[tuple[Principal, str], SimulatedSocket] = {}
        self._fill()

    def _fill(self) -> None:
        """Let the ledgers exist, with entries: all but the last two."""
        root = self._bookie.connect(ROOT)
        for ledger_id in LEDGERS[:-2]:
            self._create(ledger_id)
            assert set(statuses(self._bookie.ask(root, adds(ledger_id, 0, [b"a", b"b"])))) == {Status.EOK}
            self._collect(ledger_id)

    def _create(self, ledger_id: int) -> None:
        log = self._draw.choice(LOGS)
        self._model.logs[ledger_id] = log
        self._metadata.ledgers[ledger_id] = facts(ledger_id, log)

    def _collect(self, ledger_id: int) -> None:
        self._bookie.authorization.forget_ledger(ledger_id)
        self._model.drop(ledger_id)

    def happen(self) -> None:
        """Change the rules, or what ledgers there are."""
        ledger_id = self._draw.choice(LEDGERS)
        match self._draw.randrange(6):
            case 0 | 1:
                self._change_rules()
            case 2:
                with pytest.raises(RulesError):
                    self._bookie.authorization.set_rules(parse_rules(self._draw.choice(NO_RULES)))
            case 3:
                # Deleted in the metadata; the bookie still has it.
                self._model.logs.pop(ledger_id, None)
                self._metadata.ledgers.pop(ledger_id, None)
            case 4:
                self._collect(ledger_id)
            case _:
                self._create(ledger_id)

    def _change_rules(self) -> None:
        self._model.rules = [
            Rule(principal, frozenset(rights), self._draw.choice(SELECTORS))
            for principal in PRINCIPALS
            for rights in ([right for right in RIGHTS if self._draw.random() < 0.5] for _ in range(2))
            if rights
        ]
        self._bookie.set_rules("\n".join([ALL_RIGHTS, *map(str, self._model.rules)]))

    def send_a_burst(self) -> None:
        """Send requests in pieces; between two pieces something may happen."""
        draw = self._draw
        principal, version = draw.choice(PRINCIPALS), draw.choice(("V2", "V3", "V3 and then V2"))
        burst = list(self._requests(version))
        data = b"".join(frames for _, _, frames in burst)
        peer = self._peer(principal, version)
        at = judged = 0
        while at < len(data):
            end = min(len(data), at + draw.randint(1, len(data)))
            uses = self._bookie.uses
            answer = self._bookie.ask(peer, data[at:end], PIECE_TURNS)
            whole = frames_in_whole(data[:end])
            refused = Counter(
                ledger_id
                for operation, ledger_id in _each(burst)[judged:whole]
                if not self._model.allows(principal, operation, ledger_id)
            )
            self._check(answer, refused, whole - judged)
            if refused.total() == whole - judged:
                assert self._bookie.uses == uses, "a refused request has used the storage"
            at, judged = end, whole
            if draw.random() < 0.5:
                self.happen()
        assert judged == len(_each(burst))

    def _check(self, answer: bytes, refused: Counter[int], count: int) -> None:
        found = statuses(answer)
        reported = [(each.ledger_id, each.requests) for each in self._bookie.refused]
        self._bookie.refused.clear()
        assert (len(found), found.count(Status.EUA)) == (count, refused.total())
        # Requests of several ledgers that are refused together are one report, with the first ledger.
        assert sum(requests for _, requests in reported) == refused.total()
        assert {ledger_id for ledger_id, _ in reported} <= set(refused)

    def _requests(self, version: str) -> Iterator[tuple[Operation, int, bytes]]:
        for part in version.split(" and then "):
            kinds = [each for each in OPERATIONS if each.has_ledger and each.name.startswith(part)]
            for _ in range(self._draw.randint(1, 12)):
                operation, ledger_id = self._draw.choice(kinds), self._draw.choice(LEDGERS)
                yield operation, ledger_id, operation.frame(ledger_id, KEY)

    def _peer(self, principal: Principal, version: str) -> SimulatedSocket:
        if version == "V3 and then V2":
            # V3 after V2 is not spoken on one connection.
            return self._bookie.connect(principal)
        if (principal, version) not in self._connections:
            self._connections[principal, version] = self._bookie.connect(principal)
        return self._connections[principal, version]


def _each(burst: list[tuple[Operation, int, bytes]]) -> list[tuple[Operation, int]]:
    """Return the operation and the ledger of each frame."""
    return [(operation, ledger_id) for operation, ledger_id, frames in burst for _ in range(frames_in(frames))]


def frames_in_whole(data: bytes) -> int:
    """Return how many frames have come completely."""
    count = at = 0
    while at + 4 <= len(data) and at + 4 + int.from_bytes(data[at : at + 4], "big") <= len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        count += 1
    return count


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_each_request_of_a_history_is_judged_by_the_rules_and_ledgers_of_its_time(seed: int) -> None:
    history = History(seed)
    for _ in range(EVENTS):
        history.happen()
        history.send_a_burst()


def test_request_that_waits_for_a_lookup_is_decided_by_the_rules_in_force_afterwards() -> None:
    user = PRINCIPALS[0]
    metadata = Metadata([facts(1, "mine")])
    bookie = AuthorizedBookie(f"{ALL_RIGHTS}\n{user} write log:mine", metadata)
    peer = bookie.connect(user)
    metadata.is_held = True
    before = bookie.uses
    assert bookie.ask(peer, adds(1, 0, [b"x"])) == b""
    bookie.set_rules(f"{ALL_RIGHTS}\n{user} read log:mine")
    metadata.release()
    assert statuses(bookie.ask(peer, b"")) == [Status.EUA]
    assert bookie.uses == before


def test_id_that_is_created_again_after_its_collection_belongs_to_its_new_owner_alone() -> None:
    old, new = PRINCIPALS[:2]
    metadata = Metadata([facts(1, "mine")])
    bookie = AuthorizedBookie(f"{ALL_RIGHTS}\n{old} read,write log:mine\n{new} read,write log:theirs", metadata)
    first, second = bookie.connect(old), bookie.connect(new)
    assert statuses(bookie.ask(first, adds(1, 0, [b"x"]))) == [Status.EOK]
    metadata.ledgers.pop(1)
    bookie.authorization.forget_ledger(1)
    # No client can take the id while no ledger has it.
    for peer in (first, second):
        assert statuses(bookie.ask(peer, adds(1, 1, [b"x"]))) == [Status.EUA]
    metadata.ledgers[1] = facts(1, "theirs")
    assert statuses(bookie.ask(first, adds(1, 1, [b"x"]))) == [Status.EUA]
    assert statuses(bookie.ask(second, adds(1, 1, [b"x"]))) == [Status.EOK]


@pytest.mark.parametrize("rule", ["", "digest:user read,write,fence log:none"], ids=["no rule", "no ledger"])
def test_whatever_bytes_come_from_a_peer_without_rights_no_storage_is_used(rule: str) -> None:
    """Mutated requests of all kinds, which exist in the metadata or not, with right and wrong keys."""
    draw = random.Random(rule)
    metadata = Metadata([facts(1, "mine"), facts(2, "theirs")])
    bookie = AuthorizedBookie(f"{ALL_RIGHTS}\n{rule}", metadata)
    root = bookie.connect(ROOT)
    bookie.ask(root, adds(1, 0, [b"a", b"b"]) + adds(2, 0, [b"a", b"b"]))
    used, asked = bookie.uses, len(metadata.asked)
    # A request for disk space needs any rule, and names no ledger.
    kinds = [each for each in OPERATIONS if each.has_ledger or not rule]
    for _ in range(MUTATED_BURSTS):
        frames = [draw.choice(kinds).frame(draw.choice((1, 2, 3, -1, 1 << 62)), draw.choice((KEY, OTHER_KEY)))]
        frames += [draw.choice(kinds).frame(1, KEY) for _ in range(draw.randrange(4))]
        data = b"".join(each if draw.random() < 0.5 else mutated(each, draw) for each in frames)
        peer = bookie.connect(PRINCIPALS[0])
        bookie.ask(peer, data)
        bookie.served.connections.pop(peer).close()
    assert bookie.uses == used
    assert not bookie.served.failures
    assert rule or len(metadata.asked) == asked
    assert statuses(bookie.ask(root, adds(1, 2, [b"c"]))) == [Status.EOK]
