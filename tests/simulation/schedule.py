"""Runs a plan: faults first, then everything heals and must end, then the checkers look at what was seen and stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from bkspark.core.limits import nanoseconds
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.pipeline import WriterState
from bkspark.core.striping import write_set
from bkspark.metadata import encoding, paths
from bkspark.metadata.ledgers import Versioned
from bkspark.metadata.uri import LedgerManager
from bkspark.wire.status import Status
from tests.simulation.bookies import ModelBookie, Stored
from tests.simulation.checkers import violations
from tests.simulation.clients import Client, Site
from tests.simulation.history import Audit, Copies, History, LedgerHistory
from tests.simulation.metadata import ROOT, Metadata
from tests.simulation.network import DOWN, UP, Network
from tests.simulation.owner import OPTIONS, TICK_NS, Owner
from tests.simulation.plan import OWNER, Plan, Trigger
from tests.simulation.reader import Reader
from tests.simulation.recoverer import Recoverer
from tests.simulation.world import MILLISECOND, SECOND, Node, World

LEDGER_ID = 7
END_AFTER_HEAL = 4 * SECOND
ON_ITS_WAY_NS = 80 * MILLISECOND
"""What was sent before arrives meanwhile, unless a fault holds it up."""
SLOW_FACTOR = 5.0
"""A link that is slower than others by more than this may look like a bookie that does not answer."""
LOAD_NS = 15 * MILLISECOND
"""A bookie that refuses load for no longer, once, gets in the end what it refused."""
MARKER_DELAY_NS = nanoseconds(OPTIONS.refusal_pause_s_max) + 4 * TICK_NS
"""How long an owner may take to send again what bookies refused for their load."""
PROMPT_NS = 190 * MILLISECOND
"""What an add may take where no fault is silent: less than any time-out."""
PROMPT_SYNC_MEAN = 5 * MILLISECOND
PROMPT_METADATA_DELAY = MILLISECOND
"""In a slower cluster an ensemble change may take longer than that."""
QUIET_DELAYS = 30
QUIET_NS = 40 * MILLISECOND
"""Without faults an add, a recovery or a close takes at most this many mean delays of a journal and of the metadata
store, plus this time. In 14,600 of them the slowest stayed 30 ms below."""
REPORTED_AT_ONCE = frozenset({"crash", "reset", "lost for ever", "EIO", "EREADONLY", "damage", "session expired"})
"""Faults that clients learn of without a time-out."""
EVENTS_MAX = 20_000
QUIET_MOST = SECOND
"""How long a schedule that begins quietly waits for its first acknowledgement."""
_DIRECTIONS = {"up": (UP,), "down": (DOWN,), "both": (UP, DOWN)}


@dataclass(slots=True)
class Outcome:
    """What came of a plan."""

    violations: list[str]
    ledger: LedgerHistory
    history: History
    events: int
    acknowledged: int
    trace: list[tuple[int, str, str]] | None = None

    @property
    def faults(self) -> int:
        return self.history.faults.total()


def run_plan(plan: Plan, *, trace: bool = False) -> Outcome:
    """Run a plan to its end; an exception out of a core counts as a violation."""
    schedule = Schedule(plan)
    if trace:
        schedule.world.trace = []
    try:
        schedule.run()
        found = violations(schedule.ledger)
    except _TooManyEvents:
        found = [f"C12: more than {EVENTS_MAX} events"]
    except Exception as error:  # an assertion of a core, or a defect: both are findings
        found = [f"exception: {type(error).__name__}: {error}"]
    return Outcome(
        found,
        schedule.ledger,
        schedule.history,
        schedule.world.events,
        schedule.ledger.last_acknowledged + 1,
        schedule.world.trace,
    )


class _TooManyEvents(Exception):
    """A schedule does not come to rest."""


@dataclass(slots=True)
class _Probes:
    """Triggers by probe, and how often each probe was passed."""

    triggers: dict[str, list[Trigger]] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)


class Schedule:
    """One plan under way. Methods `do_...` are the vocabulary of steps and triggers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World()
        self.history = History()
        self.ledger = self.history.ledger(LEDGER_ID)
        salt = plan.seed * 2_654_435_761 & 0xFFFFFFFF
        self.bookies = {
            name: ModelBookie(self.world, self.history, name, salt + 101 * i, plan.sync_mean)
            for i, name in enumerate(plan.names)
        }
        self.network = Network(self.world, self.history, self.bookies, salt)
        self.network.datagrams = plan.datagrams
        self.network.slow = {(client, bookie, way): factor for client, bookie, way, factor in plan.slow}
        self.network.disturbed = self.ledger.disturbed
        self.network.disturbed.update((it[0], it[1]) for it in plan.slow if it[3] > SLOW_FACTOR)
        self.metadata = Metadata(self.world, self.history, salt ^ 0x1234567)
        self.metadata.delay_mean = plan.metadata_delay
        self.metadata.lag = plan.lag
        self.metadata.on_change = self._changed
        for name in plan.names:
            self.metadata.register(name)
        self._probes = _Probes()
        self.lost: set[str] = set()
        self.site = Site(
            self.world,
            self.history,
            self.network,
            self.metadata,
            LEDGER_ID,
            Random(plan.seed ^ 0x5EED),
            self._probe,
            self._audit_acknowledged,
        )
        self.owner = Owner(self.site, OWNER, self._create(), delays_changes=plan.delays_changes, relaxed=plan.relaxed)
        self.clients: dict[str, Client] = {OWNER: self.owner}

    def _create(self) -> Versioned:
        plan = self.plan
        bookies = plan.ensemble or tuple(plan.names[: plan.quorums[0]])
        metadata = LedgerMetadata(*plan.quorums, (Fragment(0, bookies),))
        # The owner has created its ledger before the schedule begins.
        path = ROOT + paths.ledger_path(LEDGER_ID, LedgerManager.FLAT)
        _, stat = self.metadata.create(OWNER, path, encoding.encode(metadata))
        return Versioned(replace(metadata, creation=stat.creation), stat.version, stat.ctime_ms, stat.mtime_ms)

    # ---- the phases ----

    def run(self) -> None:
        world, plan = self.world, self.plan
        steps = plan.steps
        if plan.begins_quietly and steps and steps[0].what == "add":
            self._do(steps[0].what, steps[0].arguments)
            world.run(QUIET_MOST, lambda: self.ledger.last_acknowledged >= 0)
            steps = steps[1:]
        for trigger in plan.triggers:
            self._probes.triggers.setdefault(trigger.probe, []).append(trigger)
        self.network.loss, self.network.repeats = plan.loss, plan.repeats
        began = world.now
        for step in steps:
            world.at(began + step.when, None, self._do, step.what, step.arguments)
        world.run(began + plan.heal_at, self._is_too_long)
        if plan.is_outage and self.owner.node.is_up and self.owner.is_waiting:
            self.ledger.pending.append("the owner waits for bookies that have been away for long")
        self._audit("when the faults end", -1)
        self._heal()
        if plan.recovers_at_once:
            self._recover_finally()
        self._await(self._are_all_done)
        self._settle()
        if plan.looks_in_the_end:
            self._look_at_the_open_ledger()
        if plan.owner_closes and self.owner.node.is_up and self.owner.core.state is WriterState.ACTIVE:
            self.owner.close()
            self._await(lambda: self.owner.is_done)
        if not self.metadata.current(LEDGER_ID).metadata.is_closed:
            self._recover_finally()
            self._await(self._are_all_done)
        self._check_end()

    @property
    def _is_owner_active(self) -> bool:
        """Whether the ledger is still the owner's, and nothing is under way that would keep it from closing it."""
        is_open = self.metadata.current(LEDGER_ID).metadata.state is LedgerState.OPEN
        return is_open and self.owner.node.is_up and self.owner.core.state is WriterState.ACTIVE

    def _settle(self) -> None:
        """Where bookies refused load: give the owner the time to send them again what they refused."""
        if self.ledger.loaded and self._is_owner_active:
            self.world.run(self.world.now + MARKER_DELAY_NS, self._is_too_long)
            self.ledger.is_settled = self._is_owner_active

    def _look_at_the_open_ledger(self) -> None:
        """Add one entry more, while nothing else happens: readers must see all entries but that one confirmed."""
        if not self._is_owner_active:
            return
        self.owner.sync()
        self._await(lambda: self.owner.is_done)
        self.owner.add(1)
        self._await(lambda: self.owner.is_done)
        reader = Reader(self.site, "reader of the open ledger")
        self.clients[reader.name] = reader
        reader.start()
        self._await(lambda: reader.is_done)

    def _check_end(self) -> None:
        stored = self.metadata.current(LEDGER_ID).metadata
        if not stored.is_closed:
            self.ledger.pending.append(f"the ledger is still {stored.state.name}")
            return
        reader = Reader(self.site, "last reader")
        self.clients[reader.name] = reader
        reader.start()
        self._await(lambda: reader.is_done)
        read = {entry_id for who, entry_id, _ in self.ledger.reads if who == reader.name}
        missing = sorted(set(range(stored.last_entry + 1)) - read)
        if missing and not any(bookie.damaged for bookie in self.bookies.values()):
            self.ledger.pending.append(f"entries {missing} cannot be read in the end")
        self.world.run(self.world.now + ON_ITS_WAY_NS, self._is_too_long)
        self._audit("in the end", stored.last_entry)
        self._note_what_is_missing(stored)
        self._note_how_prompt_all_must_be()

    def _is_too_long(self) -> bool:
        if self.world.events > EVENTS_MAX:
            raise _TooManyEvents
        return False

    def _are_all_done(self) -> bool:
        return all(client.is_done or not client.node.is_up for client in self.clients.values())

    def _await(self, is_over: Callable[[], bool]) -> None:
        world = self.world

        def check() -> bool:
            return is_over() or self._is_too_long()

        if not is_over():
            world.run(world.now + END_AFTER_HEAL, check)
        if not is_over():
            waiting = [name for name, client in self.clients.items() if client.node.is_up and not client.is_done]
            self.ledger.pending.append(f"{', '.join(waiting)} did not end")

    def _heal(self) -> None:
        world, network, metadata = self.world, self.network, self.metadata
        network.cut.clear()
        network.slow.clear()
        network.loss = network.repeats = 0.0
        metadata.planned.clear()
        metadata.stalled_until = metadata.lag = 0
        self._probes.triggers.clear()
        for name, bookie in self.bookies.items():
            bookie.refuses_until = 0
            bookie.node.paused_until = world.now
            if name not in self.lost:
                self._restart(name)
        for client in self.clients.values():
            client.node.paused_until = world.now

    def _recover_finally(self) -> None:
        recoverer = Recoverer(self.site, "last recoverer", 8)
        self.clients[recoverer.name] = recoverer
        recoverer.start()

    # ---- audits ----

    def _changed(self, path: str, stored: Versioned, by: str) -> None:
        metadata = stored.metadata
        if by == OWNER and len(self.ledger.changes) > 1 and not metadata.is_closed:
            self.history.changes_of_ensemble += 1
        if metadata.is_closed:
            if metadata.fragments != self.ledger.changes[-2][1].metadata.fragments:
                self.history.changes_of_ensemble += 1
            self._audit(f"when {by} closed it", metadata.last_entry)
            if by != OWNER:
                self._audit_fences(self.ledger.changes[-2][1].metadata)
        elif by != OWNER and self.owner.node.is_up and self.owner.core.error is None:
            self.history.is_raced = self.history.is_raced or self.owner.core.pending.next_entry > 0

    def _audit(self, what: str, last_entry: int) -> None:
        metadata = self.metadata.current(LEDGER_ID).metadata
        durable = {name: bookie.durable(LEDGER_ID) for name, bookie in self.bookies.items()}
        highest = max((max(entries, default=-1) for entries in durable.values()), default=-1)
        copies = [self._copies(metadata, durable, entry_id) for entry_id in range(max(highest, last_entry) + 1)]
        self.ledger.audits.append(Audit(self.world.now, what, last_entry, metadata.ack_quorum, copies))

    def _audit_acknowledged(self, first: int, last: int) -> None:
        metadata = self.metadata.current(LEDGER_ID).metadata
        durable = {name: bookie.durable(LEDGER_ID) for name, bookie in self.bookies.items()}
        for entry_id in range(first, last + 1):
            copies = self._copies(metadata, durable, entry_id)
            self.ledger.copies_at_ack.append((entry_id, metadata.ack_quorum, copies))

    def _audit_fences(self, before: LedgerMetadata) -> None:
        audit = self.ledger.audits[-1]
        audit.fenced = tuple(self.bookies[bookie].is_fenced(LEDGER_ID) for bookie in before.last_fragment.bookies)
        audit.write_quorum = before.write_quorum

    def _copies(self, metadata: LedgerMetadata, durable: dict[str, dict[int, Stored]], entry_id: int) -> Copies:
        bookies = metadata.fragment_of(entry_id).bookies
        copies = Copies(0)
        payloads = set()
        for slot in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
            stored = durable[bookies[slot]].get(entry_id)
            if stored is None:
                continue
            if (LEDGER_ID, entry_id) in self.bookies[bookies[slot]].damaged:
                copies.damaged += 1
                continue
            copies.valid += 1
            if bookies[slot] not in self.lost:
                payloads.add(stored.payload)
        copies.payloads = frozenset(payloads)
        return copies

    def _note_what_is_missing(self, metadata: LedgerMetadata) -> None:
        """Tell the checkers which bookies do not hold what they should, and what may explain it."""
        for entry_id, copies in enumerate(self.ledger.audits[-1].copies[: metadata.last_entry + 1]):
            bookies = metadata.fragment_of(entry_id).bookies
            slots = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
            named = [bookies[slot] for slot in slots]
            copies.missing = tuple(name for name in named if not self.bookies[name].holds(LEDGER_ID, entry_id))
        for name, bookie in self.bookies.items():
            if bookie.was_slow:
                self.ledger.disturbed.add(("", name))
            self.ledger.fenced_out.update((name, entry_id) for _, entry_id in bookie.fenced_out)

    def _note_how_prompt_all_must_be(self) -> None:
        plan = self.plan
        if plan.relaxed is not None or plan.slow or plan.is_outage:
            return
        is_quick = plan.sync_mean <= PROMPT_SYNC_MEAN and plan.metadata_delay <= PROMPT_METADATA_DELAY
        if not self.history.faults:
            self.ledger.prompt_ns = QUIET_DELAYS * (plan.sync_mean + plan.metadata_delay) + QUIET_NS
        elif is_quick and self.history.faults.keys() <= REPORTED_AT_ONCE and self._enough_bookies_are_well():
            self.ledger.prompt_ns = PROMPT_NS
            self.ledger.prompt_adds_only = True

    def _enough_bookies_are_well(self) -> bool:
        """Return whether every write set had an ack quorum, or a whole ensemble was left, in spite of all faults."""
        ensemble_size, write_quorum, ack_quorum = self.plan.quorums
        struck = sum(("", name) in self.ledger.disturbed for name in self.bookies)
        return struck <= write_quorum - ack_quorum or len(self.bookies) - struck >= ensemble_size

    # ---- what steps and triggers do ----

    def _do(self, what: str, arguments: tuple[object, ...]) -> None:
        getattr(self, f"do_{what}")(*arguments)

    def _probe(self, what: str, client: str, bookie: str) -> None:
        triggers = self._probes.triggers.get(what)
        if not triggers:
            return
        number = self._probes.passed[what] = self._probes.passed.get(what, 0) + 1
        for trigger in triggers:
            if trigger.number == number:
                arguments = tuple((bookie or self.plan.names[0]) if item == "@" else item for item in trigger.arguments)
                # After the event that passed the probe, as nothing happens in the middle of one.
                self.world.at(self.world.now, None, self._do, trigger.what, arguments)

    def do_later(self, delay: int, what: str, *arguments: object) -> None:
        self.world.at(self.world.now + delay, None, self._do, what, arguments)

    def do_add(self, count: int) -> None:
        self.world.at(self.world.now, self.owner.node, self.owner.add, count)

    def do_sync(self) -> None:
        self.world.at(self.world.now, self.owner.node, self.owner.sync)

    def do_close(self) -> None:
        self.world.at(self.world.now, self.owner.node, self.owner.close)

    def do_recover(self, name: str, attempts: int) -> None:
        if name not in self.clients:
            recoverer = Recoverer(self.site, name, attempts)
            self.clients[name] = recoverer
            recoverer.start()

    def do_read(self, name: str) -> None:
        reader = self.clients.get(name)
        if reader is None:
            reader = self.clients[name] = Reader(self.site, name)
            reader.start()
        elif isinstance(reader, Reader) and reader.is_done:
            reader.start()

    def do_crash(self, name: str, down_for: int) -> None:
        if self.bookies[name].node.is_up:
            # Its session lasts a little longer than it.
            self.do_outage(name, down_for // 2)
            self.world.at(self.world.now + down_for, None, self._restart, name)

    def do_outage(self, name: str, session_lasts: int) -> None:
        """A bookie dies, and stays away until all is healed."""
        bookie = self.bookies[name]
        if not bookie.node.is_up:
            return
        self.history.count_fault("crash")
        self.ledger.disturbed.add(("", name))
        bookie.die()
        self._lose_connections(name)
        self.world.at(self.world.now + session_lasts, None, self._expire, name, bookie.node.life)

    def _lose_connections(self, name: str, client: str | None = None) -> None:
        for connection in self.network.open_to(name):
            if client is None or connection.client.name == client:
                connection.lose()

    def _expire(self, name: str, life: int) -> None:
        if self.bookies[name].node.life == life and not self.bookies[name].node.is_up:
            self.metadata.unregister(name)

    def _restart(self, name: str) -> None:
        if name not in self.lost and not self.bookies[name].node.is_up:
            self.bookies[name].start()
        if name not in self.lost:
            self.metadata.register(name)

    def do_lose(self, name: str) -> None:
        self.history.count_fault("lost for ever")
        self.ledger.disturbed.add(("", name))
        self.lost.add(name)
        if self.bookies[name].node.is_up:
            self.bookies[name].die()
        self._lose_connections(name)
        self.metadata.unregister(name)

    def do_cut(self, client: str, bookie: str, way: str, duration: int) -> None:
        ways = {(client, bookie, direction) for direction in _DIRECTIONS[way]}
        self.network.cut |= ways
        self.ledger.disturbed.add((client, bookie))
        self.world.at(self.world.now + duration, None, self._mend, ways)

    def _mend(self, ways: set[tuple[str, str, int]]) -> None:
        self.network.cut -= ways

    def do_isolate(self, client: str, but: str, duration: int) -> None:
        """Cut a client from every bookie but one."""
        for bookie in self.bookies:
            if bookie != but:
                self.do_cut(client, bookie, "both", duration)

    def do_hold(self, client: str, bookie: str, duration: int) -> None:
        """Keep what a client sends to a bookie on its way, what was sent before included, as a clogged link does."""
        self.history.count_fault("hold")
        for connection in self.network.open_to(bookie):
            if connection.client.name == client:
                connection.clog(self.world.now + duration)

    def do_pause(self, name: str, duration: int) -> None:
        node = self._node(name)
        if node is not None and node.is_up:
            self.history.count_fault("pause")
            self.ledger.disturbed.add(("", name) if name in self.bookies else (name, ""))
            node.paused_until = max(node.paused_until, self.world.now + duration)

    def _node(self, name: str) -> Node | None:
        if name in self.bookies:
            return self.bookies[name].node
        return self.clients[name].node if name in self.clients else None

    def do_reset(self, client: str, bookie: str) -> None:
        self.history.count_fault("reset")
        self._lose_connections(bookie, client)

    def do_kill(self, name: str) -> None:
        node = self._node(name)
        if node is not None and node.is_up:
            self.history.count_fault("kill")
            self.world.kill(node)

    def do_clock(self, client: str, jump: int) -> None:
        node = self._node(client)
        if node is not None:
            self.history.count_fault("clock jump")
            self.ledger.disturbed.add((client, ""))
            node.clock_ahead += jump

    def do_metadata(self, client: str, *faults: str) -> None:
        self.metadata.planned.setdefault(client, []).extend(faults)

    def do_stall(self, duration: int) -> None:
        self.history.count_fault("stall")
        self.metadata.stalled_until = max(self.metadata.stalled_until, self.world.now + duration)

    def do_unregister(self, bookie: str, duration: int) -> None:
        self.history.count_fault("session expired")
        self.metadata.unregister(bookie)
        self.world.at(self.world.now + duration, None, self._register, bookie)

    def _register(self, bookie: str) -> None:
        if self.bookies[bookie].node.is_up:
            self.metadata.register(bookie)

    def do_refuse(self, bookie: str, status: str, duration: int) -> None:
        self.history.count_fault(status)
        is_short = status == "ETOOMANYREQUESTS" and duration <= LOAD_NS and bookie not in self.ledger.loaded
        # Over a slow link the probes and their answers take so long that the refusal lasts longer for the owner.
        is_near = not any((OWNER, bookie) == slow[:2] for slow in self.plan.slow)
        if is_short and is_near:
            self.ledger.loaded.add(bookie)
        else:
            # One that refuses load for long is left out, and gets no copies of what is acknowledged meanwhile.
            self.ledger.disturbed.add(("", bookie))
        self.bookies[bookie].refusal = Status[status]
        self.bookies[bookie].refuses_until = self.world.now + duration

    def do_damage(self, bookie: str) -> None:
        """Damage one entry on one bookie, if the quorums survive that on top of what was lost for ever."""
        held = self.bookies[bookie].durable(LEDGER_ID)
        lost = any(step.what == "lose" for step in self.plan.steps)
        if self.plan.quorums[2] < 2 or lost or not held or any(it.damaged for it in self.bookies.values()):
            return
        self.history.count_fault("damage")
        self.ledger.disturbed.add(("", bookie))
        self.bookies[bookie].damaged.add((LEDGER_ID, max(held)))
