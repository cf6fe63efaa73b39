"""A schedule as data: what the cluster is like, what clients do when, which faults strike when or upon what.

`plan_of(seed)` draws one. First the kind of the schedule is drawn - most faults are off in most of them - and then
the steps. A plan can be shortened item by item (`shrink`), and replays the same from the same items.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from random import Random

from bkspark.core.relaxed import RelaxedDurability
from tests.simulation.world import MILLISECOND

QUORUMS = (
    *[(3, 3, 2)] * 8,
    *[(3, 2, 2)] * 4,
    *[(2, 2, 2)] * 3,
    *[(3, 3, 3)] * 2,
    *[(4, 3, 2)] * 3,
    *[(5, 3, 2)] * 2,
    *[(3, 2, 1)] * 1,
    *[(2, 2, 1)] * 1,
    *[(4, 4, 3)] * 1,
    *[(2, 1, 1)] * 1,
    (1, 1, 1),
    (6, 2, 2),
)
OWNER = "owner"
FAULTS = (
    *("crash", "crash", "cut", "cut", "isolate", "pause", "pause", "reset", "kill", "clock", "metadata", "metadata"),
    *("stall", "unregister", "refuse", "refuse", "damage"),
)
BEGINNINGS = (
    ("add stored", 6),
    ("acknowledged", 3),
    ("change begins", 2),
    ("change proposed", 2),
    ("change stored", 2),
    ("fenced", 3),
    ("rewritten", 3),
    ("close begins", 1),
)
"""What a recovery may begin upon: a probe, and the highest number of its passing."""
CONTROL_SHARE = 0.12
SPECIAL_EVERY = 100
"""One schedule in this many is an outage, and one only has bookies that refuse load."""
OUTAGE_NS = 1_000 * MILLISECOND
"""Longer than the sessions of bookies that went away live on, and it takes to go on or to give up then."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something done at a time: `what` names a method `do_...` of `Schedule`, with its arguments."""

    when: int
    what: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Trigger:
    """Something done when a probe of a name is passed for the n-th time; "@" in arguments is the bookie there."""

    probe: str
    number: int
    what: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All of a schedule. Times are virtual nanoseconds."""

    seed: int
    quorums: tuple[int, int, int] = (3, 3, 2)
    bookies: int = 4
    is_control: bool = False
    datagrams: bool = False
    loss: float = 0.0
    repeats: float = 0.0
    sync_mean: int = MILLISECOND
    metadata_delay: int = MILLISECOND
    lag: int = 0
    slow: tuple[tuple[str, str, int, float], ...] = ()
    steps: tuple[Step, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    heal_at: int = 600 * MILLISECOND
    begins_quietly: bool = False
    """The first step, an add, is acknowledged before messages are lost and triggers count; the rest comes later."""
    owner_closes: bool = False
    recovers_at_once: bool = False
    delays_changes: bool = False
    """The owner has `delay_ensemble_change`."""
    is_outage: bool = False
    """Bookies go away until the end of the faults, and nothing else happens: an owner must not wait for them."""
    looks_in_the_end: bool = False
    """An owner that is left adds an entry in the end, and a reader of the open ledger looks for those before it."""
    relaxed: RelaxedDurability | None = None
    """The ledger's durability is relaxed (`relaxed_plan_of`)."""
    ensemble: tuple[str, ...] | None = None
    """The first ensemble; None: the first E bookies."""

    @functools.cached_property
    def names(self) -> list[str]:
        return [f"b{i + 1}" for i in range(self.bookies)]

    def describe(self) -> str:
        """Return the plan as text, a line an item."""
        knobs = [
            f"{name}={getattr(self, name)}"
            for name in ("quorums", "bookies", "datagrams", "loss", "repeats", "sync_mean", "metadata_delay", "lag")
        ]
        ends = f"heal_at={self.heal_at} owner_closes={self.owner_closes} recovers_at_once={self.recovers_at_once}"
        ends += f" begins_quietly={self.begins_quietly} delays_changes={self.delays_changes} relaxed={self.relaxed}"
        ends += f" is_outage={self.is_outage} looks_in_the_end={self.looks_in_the_end}"
        items = [f"  {item}" for item in (*self.slow, *self.steps, *self.triggers)]
        return "\n".join([f"seed {self.seed}: " + " ".join(knobs), "  " + ends, *items])


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    random: Random
    plan: Plan
    span: int
    quiet: int = 0
    """Faults begin after this."""
    steps: list[Step] = field(default_factory=list)
    triggers: list[Trigger] = field(default_factory=list)
    recoverers: int = 0

    def sometime(self) -> int:
        """Return a time while the owner writes, mostly after its first acknowledgement."""
        return int(self.quiet + self.random.random() * (self.span - self.quiet))

    def duration(self) -> int:
        """Return how long a fault lasts: around the time-outs, mostly."""
        return int(MILLISECOND * self.random.choice((3, 15, 60, 150, 300, 500)))

    def bookie(self) -> str:
        """Return a bookie, one of the first ensemble mostly."""
        names = self.plan.names
        return self.random.choice(names[: self.plan.quorums[0]] if self.random.random() < 0.8 else names)

    def client(self) -> str:
        return self.random.choice([OWNER, OWNER, *(f"recoverer{i}" for i in range(self.recoverers)), "reader0"])

    def recoverer(self) -> str:
        return f"recoverer{self.random.randrange(max(1, self.recoverers))}"


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    random = Random(seed)
    quorums = random.choice(QUORUMS)
    plan = Plan(
        seed,
        quorums,
        quorums[0] + random.choice((0, 1, 1, 1, 2, 2, 3)),
        is_control=random.random() < CONTROL_SHARE,
        sync_mean=int(MILLISECOND * random.choice((0.2, 1, 1, 5, 20))),
        metadata_delay=int(MILLISECOND * random.choice((0.5, 1, 2, 10))),
        owner_closes=random.random() < 0.4,
        recovers_at_once=random.random() < 0.5,
        delays_changes=seed % 18 == 5,
        looks_in_the_end=seed % 16 == 3,
    )
    gap = MILLISECOND * random.choice((0.3, 2, 5, 15))
    draft = _Draft(random, plan, 0)
    if random.random() < 0.92:
        draft.plan = plan = replace(plan, begins_quietly=True)
        draft.quiet = MILLISECOND
    when = 0.0
    for _ in range(random.choice((2, 3, 4, 5, 6))):
        draft.steps.append(Step(int(when), "add", (random.choice((1, 1, 2, 3)),)))
        when += random.expovariate(1 / gap) + (draft.quiet if when == 0.0 else 0)
    draft.span = int(when + gap)
    if random.random() < 0.25:
        draft.steps.append(Step(draft.sometime() + draft.span // 2, "close"))
    if random.random() < 0.3:
        _read_often(draft)
    if plan.is_control:
        if random.random() < 0.3:
            draft.steps.append(Step(draft.sometime(), "recover", ("recoverer0", 3)))
        return _finished(draft, replace(plan, looks_in_the_end=seed % 2 == 0))
    if seed % SPECIAL_EVERY == 1:
        return _with_outage(draft, plan)
    if seed % SPECIAL_EVERY == 2:
        return _with_load(draft, plan)
    return _finished(draft, _with_faults(draft, plan))


def relaxed_plan_of(seed: int) -> Plan:
    """Return the plan of a seed whose ledger has relaxed durability: with syncs, and crashes of all bookies at once.

    Its connections keep their order, as what a bookie says of "all before" is meant for one connection.
    """
    random = Random(seed ^ 0x5C5C5C)
    plan = plan_of(seed)
    span = max(step.when for step in plan.steps) + 10 * MILLISECOND
    steps = list(plan.steps)
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        steps.append(Step(int(random.random() * span), "sync"))
    triggers = list(plan.triggers)
    if not plan.is_control and random.random() < 0.5:
        # What was not synced is lost everywhere, as far as luck will; at a time, or when a sync is half done.
        crash = [("crash", (name, (3 + 2 * i) * MILLISECOND)) for i, name in enumerate(plan.names)]
        probe, number = random.choice((("", 0), ("forced", 1), ("forced", 2), ("acknowledged", 1), ("acknowledged", 2)))
        when = int(random.random() * 2 * span)
        if probe:
            triggers += [Trigger(probe, number, *one) for one in crash]
        else:
            steps += [Step(when, *one) for one in crash]
    relaxed = RelaxedDurability(
        striped=True,
        changes_ensemble=random.random() < 0.5,
        force_interval_s=random.choice((0.1, 0.3)),
    )
    return replace(
        plan,
        steps=tuple(sorted(steps, key=lambda step: step.when)),
        triggers=tuple(triggers),
        datagrams=False,
        relaxed=relaxed,
    )


def _finished(draft: _Draft, plan: Plan) -> Plan:
    steps = tuple(sorted(draft.steps, key=lambda step: step.when))
    heal_at = draft.span + int(MILLISECOND * (20 if plan.is_control else draft.random.choice((60, 200, 450, 700))))
    return replace(plan, steps=steps, triggers=tuple(draft.triggers), heal_at=heal_at)


def _with_outage(draft: _Draft, plan: Plan) -> Plan:
    """Take bookies away at one moment until the faults end: too many of them, or not."""
    random = draft.random
    steps = [step for step in draft.steps if step.what == "add"]
    bookies = plan.quorums[0] + random.choice((0, 0, 0, 1))
    plan = replace(plan, bookies=bookies, is_outage=True, metadata_delay=MILLISECOND)
    when = max(0, random.choice(steps).when - int(MILLISECOND * random.choice((0, 0.2, 1))))
    for name in random.sample(plan.names, random.randint(1, plan.quorums[0])):
        steps.append(Step(when, "outage", (name, random.choice((0, 20, 300)) * MILLISECOND)))
    steps.sort(key=lambda step: step.when)
    return replace(plan, steps=tuple(steps), heal_at=steps[-1].when + OUTAGE_NS, recovers_at_once=False)


def _with_load(draft: _Draft, plan: Plan) -> Plan:
    """Let bookies refuse load while the owner adds, some with answers that come late."""
    random = draft.random
    names = plan.names[: plan.quorums[0]]
    for name in random.sample(names, random.randint(1, len(names))):
        refusal = (name, "ETOOMANYREQUESTS", random.choice((3, 15, 60)) * MILLISECOND)
        draft.steps.append(Step(draft.sometime(), "refuse", refusal))
    late = tuple((OWNER, name, 1, 5.0) for name in random.sample(names, random.randint(0, len(names))))
    return replace(_finished(draft, plan), sync_mean=MILLISECOND // 5, slow=late, recovers_at_once=False)


def _read_often(draft: _Draft) -> None:
    for _ in range(draft.random.choice((1, 2, 3))):
        draft.steps.append(Step(draft.sometime() * 2, "read", ("reader0",)))


def _with_faults(draft: _Draft, plan: Plan) -> Plan:
    random = draft.random
    draft.recoverers = random.choice((0, 1, 1, 1, 1, 1, 2, 2, 3))
    for i in range(draft.recoverers):
        _recover(draft, f"recoverer{i}")
    datagrams = random.random() < 0.4
    loss = random.choice((0.02, 0.1, 0.3)) if random.random() < 0.25 else 0.0
    repeats = 0.2 if random.random() < 0.12 else 0.0
    lag = draft.duration() if random.random() < 0.1 else 0
    slow = _slow_links(draft) if random.random() < 0.5 else ()
    if random.random() < 0.85 and draft.plan.bookies > draft.plan.quorums[0]:
        _lose_a_bookie_early(draft)
    for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
        draft.steps.append(_fault(draft, draft.sometime()))
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        _direct(draft)
    if not loss and not any(step.what in _SURE_TO_STRIKE for step in draft.steps):
        draft.steps.append(Step(draft.sometime(), *_details(draft, random.choice(_SURE_TO_STRIKE), draft.bookie())))
    if random.random() < 0.15 and plan.quorums[2] > 1:
        _lose_for_ever(draft)
    return replace(plan, datagrams=datagrams, loss=loss, repeats=repeats, lag=lag, slow=slow)


_SURE_TO_STRIKE = ("crash", "refuse", "stall", "unregister")


def _recover(draft: _Draft, name: str) -> None:
    """Let a recovery begin while the owner writes: at a time, or upon something that the owner or another one does."""
    attempts = draft.random.choice((1, 2, 3))
    if draft.random.random() < 0.6:
        draft.steps.append(Step(draft.sometime(), "recover", (name, attempts)))
        return
    probe, most = draft.random.choice(BEGINNINGS)
    draft.triggers.append(Trigger(probe, draft.random.randint(1, most), "recover", (name, attempts)))
    draft.steps.append(Step(draft.span, "recover", (name, attempts)))


def _slow_links(draft: _Draft) -> tuple[tuple[str, str, int, float], ...]:
    return tuple(
        (draft.client(), draft.bookie(), draft.random.randrange(2), draft.random.choice((5.0, 30.0, 100.0)))
        for _ in range(draft.random.choice((1, 2, 4)))
    )


def _lose_a_bookie_early(draft: _Draft) -> None:
    """Make an ensemble change likely: a bookie goes just before an add, which finds it gone."""
    bookie = draft.random.choice(draft.plan.names[: draft.plan.quorums[0]])
    adds = [step.when for step in draft.steps if step.what == "add"]
    when = max(0, draft.random.choice(adds[1:]) - int(MILLISECOND * draft.random.choice((0, 0.2, 1, 3))))
    if draft.random.random() < 0.55:
        draft.steps.append(Step(when, "crash", (bookie, draft.duration())))
    else:
        draft.steps.append(Step(when, "refuse", (bookie, draft.random.choice(("EIO", "EREADONLY")), draft.duration())))


def _fault(draft: _Draft, when: int) -> Step:
    """Return some fault at a time."""
    random = draft.random
    kind = random.choice(FAULTS)
    return Step(when, *_details(draft, kind, draft.bookie()))


def _details(draft: _Draft, kind: str, bookie: str) -> tuple[str, tuple[object, ...]]:
    random = draft.random
    arguments: tuple[object, ...]
    if kind == "crash":
        arguments = (bookie, draft.duration())
    elif kind == "cut":
        arguments = (draft.client(), bookie, random.choice(("up", "down", "both")), draft.duration())
    elif kind == "isolate":
        arguments = (draft.client(), bookie, draft.duration())
    elif kind == "pause":
        arguments = (random.choice((OWNER, OWNER, OWNER, draft.client(), bookie)), draft.duration())
    elif kind == "reset":
        arguments = (draft.client(), bookie)
    elif kind == "kill":
        arguments = (draft.recoverer() if random.random() < 0.7 else OWNER,)
    elif kind == "clock":
        arguments = (draft.client(), random.choice((60, 300, 5000)) * MILLISECOND)
    elif kind == "metadata":
        faults = random.choices(("lost before", "lost after", "expired before", "expired after", ""), k=3)
        arguments = (random.choice((OWNER, draft.recoverer())), *faults)
    elif kind == "stall":
        arguments = (draft.duration(),)
    elif kind == "unregister":
        arguments = (bookie, draft.duration())
    elif kind == "refuse":
        arguments = (
            bookie,
            random.choice(("EIO", "EREADONLY", "ETOOMANYREQUESTS", "ETOOMANYREQUESTS")),
            draft.duration(),
        )
    else:
        assert kind == "damage"
        arguments = (bookie,)
    return kind, arguments


DIRECTED = (
    # A recovery's requests meet bookies one by one: strike between them.
    ("fenced", 4, ("crash", "pause owner", "isolate recoverer", "cut owner", "pause", "kill recoverer", "hold adds")),
    ("fence answered", 4, ("crash", "pause owner", "isolate recoverer", "kill recoverer", "cut recoverer")),
    ("claimed", 2, ("pause owner", "cut owner", "kill recoverer", "hold adds", "isolate owner")),
    ("recovery reads", 5, ("crash", "cut recoverer", "kill recoverer", "pause")),
    ("recovery read", 5, ("crash", "kill recoverer", "isolate recoverer", "cut owner")),
    ("rewritten", 5, ("crash", "kill recoverer", "cut recoverer", "kill recoverer", "refuse")),
    ("recovery writes metadata", 3, ("kill recoverer", "metadata recoverer", "pause recoverer")),
    # The owner changes its ensemble: strike between decision, compare-and-set and resending.
    ("change begins", 3, ("crash any", "pause owner", "stall", "metadata owner", "refuse any")),
    ("change proposed", 3, ("crash any", "pause owner", "stall", "metadata owner", "kill owner", "refuse any")),
    ("change stored", 3, ("crash any", "pause owner", "kill owner", "refuse any")),
    ("add stored", 8, ("crash", "pause owner", "cut owner", "isolate owner", "refuse")),
    ("acknowledged", 4, ("crash any", "pause owner", "kill owner", "isolate owner", "refuse any")),
    ("close begins", 1, ("metadata owner", "pause owner", "kill owner")),
)


def _direct(draft: _Draft) -> None:
    """Aim a fault at a moment that matters: uniform ones alone miss what fences are for."""
    random = draft.random
    if random.random() < 0.2:
        random.choice((_race_the_fence, _forget_the_fence))(draft)
        return
    probe, most, kinds = random.choice(DIRECTED)
    kind = random.choice(kinds)
    number = random.randint(1, most)
    recoverer = draft.recoverer()
    what, arguments = {
        "crash": ("crash", ("@", draft.duration())),
        "crash any": ("crash", (draft.bookie(), draft.duration())),
        "pause": ("pause", ("@", draft.duration())),
        "pause owner": ("pause", (OWNER, draft.duration())),
        "pause recoverer": ("pause", (recoverer, draft.duration())),
        "kill recoverer": ("kill", (recoverer,)),
        "kill owner": ("kill", (OWNER,)),
        "isolate recoverer": ("isolate", (recoverer, "@", draft.duration())),
        "isolate owner": ("isolate", (OWNER, draft.bookie(), draft.duration())),
        "cut recoverer": ("cut", (recoverer, "@", random.choice(("up", "down", "both")), draft.duration())),
        "cut owner": ("cut", (OWNER, "@", random.choice(("up", "down", "both")), draft.duration())),
        "hold adds": ("hold", (OWNER, draft.bookie(), draft.duration())),
        "refuse": ("refuse", ("@", "EIO", draft.duration())),
        "refuse any": ("refuse", (draft.bookie(), "EIO", draft.duration())),
        "stall": ("stall", (draft.duration(),)),
        "metadata owner": ("metadata", (OWNER, random.choice(("lost before", "lost after", "expired after")))),
        "metadata recoverer": ("metadata", (recoverer, random.choice(("lost before", "lost after", "expired after")))),
    }[kind]
    draft.triggers.append(Trigger(probe, number, what, arguments))


def _race_the_fence(draft: _Draft) -> None:
    """Let adds of the owner wait on their way to some bookies while a recovery fences, and its fence miss one."""
    random = draft.random
    recoverer = draft.recoverer()
    held = random.sample(draft.plan.names[: draft.plan.quorums[0]], min(2, draft.plan.quorums[0]))
    for bookie in held:
        hold = (OWNER, bookie, random.choice((5, 15, 60)) * MILLISECOND)
        draft.triggers.append(Trigger("recovery begins", 1, "hold", hold))
    draft.triggers.append(Trigger("recovery begins", 1, "add", (1,)))
    missed = (recoverer, held[0], "up", random.choice((2, 4, 15)) * MILLISECOND)
    draft.triggers.append(Trigger("claimed", 1, "cut", missed))


def _forget_the_fence(draft: _Draft) -> None:
    """Restart bookies that were fenced, then let the owner add."""
    random = draft.random
    probe = random.choice(("fence answered", "recovered", "recovery read"))
    number = 1 if probe == "recovered" else random.randint(1, 3)
    for bookie in random.sample(draft.plan.names, random.randint(1, draft.plan.bookies)):
        draft.triggers.append(Trigger(probe, number, "crash", (bookie, 3 * MILLISECOND)))
    later = random.choice((5, 15, 40)) * MILLISECOND
    draft.triggers.append(Trigger(probe, number, "later", (later, "add", 1)))


def _lose_for_ever(draft: _Draft) -> None:
    """Take as many bookies away for good as the quorums survive, while an ensemble's worth is left."""
    plan = draft.plan
    most = min(plan.quorums[2] - 1, plan.bookies - plan.quorums[0])
    names = draft.random.sample(plan.names, draft.random.randint(0, max(0, most)))
    for name in names:
        draft.steps.append(Step(draft.sometime(), "lose", (name,)))
