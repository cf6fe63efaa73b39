"""Decides which requests of a connection are served: the rules, applied to the metadata of ledgers. No clock, no file.

Each connection has its `ConnectionRights`. They judge requests after they are decoded and before any other code sees
them, so a refused request touches no storage. They remember the principal's rights on each ledger, so an allowed
request usually costs one look-up in a dict.

A ledger that the bookie meets for the first time is looked up in the metadata store. Meanwhile the connection waits, as
it does for room; other connections continue. A ledger that exists is remembered, by the connection and by
`Authorization` for all connections. The answer that a ledger does not exist is not remembered, because the ledger may
be created at any time. It counts only for requests that had arrived before the look-up began.

New rules, and a new principal of the connection, apply to every request that is judged afterwards, and to long polls
and lists of entries that wait.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from bkspark.options import COUNT_MAX, bounded, check
from bkspark.security.authorization import READ, LedgerFacts, Rules
from bkspark.security.principal import Principal
from bkspark.wire.status import Status

_LOOK_ROWS = 32
_LOOK_MORE = 8


@dataclass(frozen=True, slots=True)
class AuthorizationLimits:
    """How many ledgers are remembered and looked up.

    ledgers_max: ledgers that are remembered for all connections.
    connection_ledgers_max: those that one connection remembers.
    connection_lookups_max: look-ups of one connection that run at the same time.
    """

    ledgers_max: int = bounded(65_536, 4, COUNT_MAX)
    connection_ledgers_max: int = bounded(8192, 1, COUNT_MAX)
    connection_lookups_max: int = bounded(32, 1, COUNT_MAX)

    def __post_init__(self) -> None:
        check(self)


KnownStatusOf = Callable[[Hashable, int], Status | None]
"""Returns EOK if a connection may still read a ledger; None: the ledger must be looked up first."""


def always_allowed(client: Hashable, ledger_id: int) -> Status:
    """Return EOK: there is no authorization."""
    return Status.EOK


class Unfound(enum.Enum):
    """Why nothing was found about a ledger."""

    ABSENT = "the ledger does not exist in the metadata"
    UNKNOWN = "the metadata store did not answer"


def _are_equal(ledgers: np.ndarray) -> bool:
    """Return whether all ids are equal. For few ids, comparing bytes is much faster than comparing arrays."""
    return bool(ledgers.tobytes() == ledgers[:1].tobytes() * len(ledgers))


class Verdict(enum.Enum):
    """What happens to a request. UNVERIFIED: it is answered EIO, because the metadata store did not answer."""

    ALLOWED = enum.auto()
    REFUSED = enum.auto()
    UNVERIFIED = enum.auto()
    WAIT = enum.auto()

    @property
    def status(self) -> Status:
        """The status that answers a request which is judged now and cannot wait."""
        if self is Verdict.ALLOWED:
            return Status.EOK
        return Status.EUA if self is Verdict.REFUSED else Status.EIO


ALLOWED = Verdict.ALLOWED
"""A constant of the module, because looking up a member of an enum is slow."""
Found = LedgerFacts | Unfound
LookUp = Callable[[int, Callable[[Found], None], str], None]
"""Looks a ledger up for an address or a principal, which take turns, and calls back with the result, in a later call.
The look-up begins after the call."""


class RightsClient(Hashable, Protocol):
    """The part of a connection that its rights use."""

    @property
    def principal(self) -> Principal:
        """The identity that the peer has proved."""

    @property
    def address(self) -> str:
        """The address of the peer's machine."""

    def resume(self) -> None:
        """Continue with the requests that waited."""


@dataclass(frozen=True, slots=True)
class RefusedRequests:
    """Refused requests of one step. `needed`: the rights that they need; `ledger_id`: None: they name no ledger."""

    principal: Principal
    address: str
    """The address of the client's machine."""
    needed: int
    ledger_id: int | None
    requests: int
    why: str
    """For the audit log: that no rule allows it, or that the ledger does not exist."""


NO_RULE = "no rule allows it"


class Authorization:
    """The rules in force, and the ledgers that are known. For one event loop."""

    def __init__(
        self,
        rules: Rules,
        look_up: LookUp,
        on_refused: Callable[[RefusedRequests], None],
        limits: AuthorizationLimits | None = None,
    ) -> None:
        """`on_refused` is called once for requests that came together and are refused for one reason."""
        self.limits = limits or AuthorizationLimits()
        self.rules = rules
        """The rules in force; changed by `set_rules` alone."""
        self.look_up = look_up
        self.on_refused = on_refused
        self.on_change: Callable[[], None] = lambda: None
        """Called when the rules have changed."""
        self._facts: dict[int, LedgerFacts] = {}
        """Ledgers that exist; at most `limits.ledgers_max`."""
        self._connections: dict[Hashable, ConnectionRights] = {}
        """The rights of each open connection."""

    def set_rules(self, rules: Rules) -> None:
        """Judge by other rules from now on."""
        self.rules = rules
        self.on_change()

    def enter(self, client: RightsClient) -> ConnectionRights:
        """Return the rights of a new connection, until `forget`."""
        found = self._connections[client] = ConnectionRights(self, client)
        return found

    def forget(self, client: RightsClient) -> None:
        """Forget a connection that is closed."""
        self._connections.pop(client, None)

    def may(self, principal: Principal, address: str, needed: int) -> bool:
        """Return whether a principal has these rights on every ledger, or on the bookie itself; report a refusal."""
        if not needed & ~self.rules.of(principal).everywhere:
            return True
        self.on_refused(RefusedRequests(principal, address, needed, None, 1, NO_RULE))
        return False

    def known_status_of(self, client: Hashable, ledger_id: int) -> Status | None:
        """Return EOK if a connection may still read a ledger that it was allowed to read; reports a refusal.

        None: it is not known before `find` has called back.
        """
        rights = self._connections.get(client)
        return Status.EUA if rights is None else rights.known_status_of(ledger_id)

    def find(self, client: Hashable, ledger_ids: Sequence[int], on_found: Callable[[], None]) -> None:
        """Look up some ledgers of which a connection's status is not known, and call back in a later call.

        By then the status of one at least is known. Call again for the others.
        """
        self._connections[client].find(ledger_ids, on_found)

    def expected_key(self, client: Hashable, ledger_id: int) -> bytes | None:
        """Return the master key of a ledger according to its metadata; None: the ledger, or its key, is not known."""
        rights = self._connections.get(client)
        facts = None if rights is None else rights.facts(ledger_id)
        return None if facts is None else facts.master_key

    def facts(self, ledger_id: int) -> LedgerFacts | None:
        """Return the facts of a ledger from its metadata; None: it is not known."""
        return self._facts.get(ledger_id)

    def forget_ledger(self, ledger_id: int) -> None:
        """Look a ledger up again when it is next used: it was deleted, and its id may be created again."""
        self._facts.pop(ledger_id, None)
        for rights in self._connections.values():
            rights.forget(ledger_id)

    def remember(self, facts: LedgerFacts) -> None:
        """Remember a ledger; forget the oldest ones beyond `limits.ledgers_max`."""
        if len(self._facts) >= self.limits.ledgers_max:
            for ledger_id in list(islice(self._facts, self.limits.ledgers_max // 4)):
                del self._facts[ledger_id]
        self._facts[facts.ledger_id] = facts


class ConnectionRights:
    """Judges the requests of one connection."""

    __slots__ = (
        "_authorization",
        "_client",
        "_facts",
        "_looked_up",
        "_mine",
        "_on_found_all",
        "_principal",
        "_rights",
        "_unfound",
        "_unknown",
        "rules",
    )

    def __init__(self, authorization: Authorization, client: RightsClient) -> None:
        self._authorization = authorization
        self._client = client
        self.rules = authorization.rules
        """The rules of the rights below. Changed by `_refresh`, together with `_principal`, `_mine` and `_unknown`."""
        self._principal = client.principal
        """The principal of the rights below."""
        self._mine = self.rules.of(self._principal)
        """All rights of this principal under these rules."""
        self._unknown = self._mine.everywhere & READ
        """The rights on a ledger that was not looked up. READ suffices: an absent ledger has nothing to read."""
        self._rights: dict[int, int] = {}
        """The principal's rights on ledgers that exist. Emptied by `_refresh`; filled by `_remember`."""
        self._facts: dict[int, LedgerFacts] = {}
        """Ledgers that requests of this connection named. Filled by `_remember`."""
        self._unfound: dict[int, Unfound] = {}
        """Ledgers whose look-up found nothing. It counts only for requests that had come: see `begin_requests`."""
        self._looked_up: set[int] = set()
        """Ledgers whose look-up is not answered yet."""
        self._on_found_all: list[Callable[[], None]] = []
        """What is called when all of these are answered, before the client is resumed."""

    def begin_requests(self) -> None:
        """Forget which ledgers were not found: new requests have arrived, and ledgers may have been created."""
        if self._unfound:
            self._unfound = {}

    def allows(self, ledger_id: int, needed: int) -> bool:
        """Return whether requests are known to be allowed; otherwise `judge` says what happens to them."""
        if self.rules is not self._authorization.rules or self._principal is not self._client.principal:
            return False
        return not needed & ~self._rights.get(ledger_id, self._unknown)

    def judge(self, needed: int, ledgers: int | np.ndarray | None, count: int) -> tuple[Verdict, int]:
        """Return the verdict on the first of `count` requests, and how many of the next ones share it.

        WAIT: look-ups were begun, and the client is resumed when they are answered.

        Args:
            ledgers: the ledger of all requests, or the ledger of each; None: they name no ledger.
        """
        first = ledgers.item(0) if isinstance(ledgers, np.ndarray) else ledgers
        is_alike = not isinstance(ledgers, np.ndarray) or _are_equal(ledgers)
        if is_alike and first is not None and self.allows(first, needed):
            return ALLOWED, count
        self._refresh()
        verdict = self._verdict(needed, first)
        if isinstance(ledgers, np.ndarray) and not is_alike:
            count = self._count_alike(needed, ledgers, verdict)
        if verdict is Verdict.WAIT:
            # Requests that name no ledger never wait.
            assert ledgers is not None
            most = 8 * self._authorization.limits.connection_lookups_max
            self._begin_lookups(needed, ledgers[:most].tolist() if isinstance(ledgers, np.ndarray) else [ledgers])
        elif verdict is Verdict.REFUSED:
            self._report(needed, first, count)
        return verdict, count

    def known_status_of(self, ledger_id: int) -> Status | None:
        """See `Authorization.known_status_of`."""
        if self.allows(ledger_id, READ):
            return Status.EOK
        self._refresh()
        verdict = self._verdict(READ, ledger_id)
        if verdict is Verdict.REFUSED:
            self._report(READ, ledger_id, 1)
        return None if verdict is Verdict.WAIT else verdict.status

    def find(self, ledger_ids: Sequence[int], on_found: Callable[[], None]) -> None:
        """See `Authorization.find`."""
        self._begin_lookups(READ, ledger_ids)
        self._on_found_all.append(on_found)

    def facts(self, ledger_id: int) -> LedgerFacts | None:
        """Return the facts of a ledger, as `Authorization.facts`."""
        return self._facts.get(ledger_id) or self._authorization.facts(ledger_id)

    def forget(self, ledger_id: int) -> None:
        """Forget what is known of a ledger."""
        self._facts.pop(ledger_id, None)
        self._rights.pop(ledger_id, None)

    def _refresh(self) -> None:
        rules, principal = self._authorization.rules, self._client.principal
        if self.rules is not rules or self._principal is not principal:
            self.rules, self._principal = rules, principal
            self._mine = rules.of(principal)
            self._unknown = self._mine.everywhere & READ
            self._rights = {}

    def _verdict(self, needed: int, ledger_id: int | None) -> Verdict:
        if ledger_id is None:
            return Verdict.ALLOWED if self._mine.may_ever(needed) else Verdict.REFUSED
        rights = self._rights.get(ledger_id)
        if rights is None:
            if not self._mine.may_ever(needed):
                return Verdict.REFUSED
            if not needed & ~self._unknown:
                return Verdict.ALLOWED
            facts = self.facts(ledger_id)
            if facts is None:
                unfound = self._unfound.get(ledger_id)
                if unfound is None:
                    return Verdict.WAIT
                return Verdict.REFUSED if unfound is Unfound.ABSENT else Verdict.UNVERIFIED
            rights = self._remember(facts)
        return Verdict.REFUSED if needed & ~rights else Verdict.ALLOWED

    def _remember(self, facts: LedgerFacts) -> int:
        if len(self._facts) >= self._authorization.limits.connection_ledgers_max:
            self._facts, self._rights = {}, {}
        self._facts[facts.ledger_id] = facts
        rights = self._rights[facts.ledger_id] = self._mine.rights(facts)
        return rights

    def _count_alike(self, needed: int, ledgers: np.ndarray, verdict: Verdict) -> int:
        """Return how many of the ledgers from the first one on have the same verdict.

        Fewer, if this connection cannot remember all of them: `expected_key` needs the facts of those that are allowed.
        """
        at, look, last = 0, _LOOK_ROWS, ledgers.item(0)
        ledgers_max = self._authorization.limits.connection_ledgers_max
        is_allowed = verdict is ALLOWED
        while at < len(ledgers):
            some = ledgers[at : at + look].tolist()
            rights_of, unknown = self._rights.get, self._unknown
            for row, ledger_id in enumerate(some):
                # Nearly all are allowed, as the first one was.
                if is_allowed and not needed & ~rights_of(ledger_id, unknown):
                    continue
                if ledger_id != last:
                    if is_allowed and len(self._facts) >= ledgers_max and ledger_id not in self._facts:
                        return at + row
                    if self._verdict(needed, ledger_id) is not verdict:
                        return at + row
                last = ledger_id
            at += len(some)
            look *= _LOOK_MORE
        return len(ledgers)

    def _begin_lookups(self, needed: int, ledger_ids: Iterable[int]) -> None:
        most = self._authorization.limits.connection_lookups_max
        for ledger_id in dict.fromkeys(ledger_ids):
            if len(self._looked_up) >= most:
                return
            if ledger_id not in self._looked_up and self._verdict(needed, ledger_id) is Verdict.WAIT:
                self._looked_up.add(ledger_id)
                self._authorization.look_up(ledger_id, self._on_found(ledger_id), self._client.address)

    def _on_found(self, ledger_id: int) -> Callable[[Found], None]:
        def on_found(found: Found) -> None:
            self._looked_up.discard(ledger_id)
            if isinstance(found, LedgerFacts):
                self._authorization.remember(found)
                self._refresh()
                self._remember(found)
            else:
                self._unfound[ledger_id] = found
            if not self._looked_up:
                called, self._on_found_all = self._on_found_all, []
                for on_found_all in called:
                    on_found_all()
                self._client.resume()

        return on_found

    def _report(self, needed: int, ledger_id: int | None, count: int) -> None:
        unfound = None if ledger_id is None else self._unfound.get(ledger_id)
        is_absent = unfound is Unfound.ABSENT and self._mine.may_ever(needed)
        why = Unfound.ABSENT.value if is_absent else NO_RULE
        client = self._client
        self._authorization.on_refused(RefusedRequests(self._principal, client.address, needed, ledger_id, count, why))
