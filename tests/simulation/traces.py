"""The trace of a schedule: every event that a core got, and the effects that it returned, in order.

`python -m tests.simulation.traces KIND [--first N] [--count N]` prints a line `seed hash` for each schedule;
`--show SEED` prints the trace itself. A change that only moves code leaves every hash as it was: print them before and
after it, and compare the two lists. Where they differ, compare the two traces of the first seed that does.

A trace holds what the cores decide, and no name of their parts. PYTHONHASHSEED must be the same for both lists.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import logging
import operator
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from bkspark.core.explicit_lac import ExplicitLac
from bkspark.core.recovery import RecoveryCore
from bkspark.core.tail import Tail
from bkspark.core.writer import WriterCore
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError
from bkspark.wire.digest import SealedEntries
from tests.planting import Plant, both, changed
from tests.simulation.full_gray import GraySchedule
from tests.simulation.full_logs import LogSchedule
from tests.simulation.full_repairs import RepairSchedule
from tests.simulation.full_schedule import FullSchedule
from tests.simulation.full_tails import TailSchedule
from tests.simulation.plan import plan_of, relaxed_plan_of
from tests.simulation.schedule import run_plan

KINDS: Mapping[str, Callable[[int], object]] = {
    "protocol": lambda seed: run_plan(plan_of(seed)),
    "relaxed": lambda seed: run_plan(relaxed_plan_of(seed)),
    "full": lambda seed: FullSchedule(seed).run(),
    "gray": lambda seed: GraySchedule(seed).run(),
    "tails": lambda seed: TailSchedule(seed).run(),
    "logs": lambda seed: LogSchedule(seed).run(),
    "repairs": lambda seed: RepairSchedule(seed).run(),
}
"""Schedules by name."""

EVENTS: Mapping[type, str] = {
    WriterCore: (
        "add on_add_replies on_bookie_failed on_silent on_tick on_writable_bookies on_metadata_written "
        "on_metadata_conflict on_metadata_seen on_metadata_failed sync on_forced on_force_lost close give_up"
    ),
    RecoveryCore: (
        "start on_metadata_written on_metadata_conflict on_metadata_failed on_fence_answer on_read_answers "
        "on_backoff_over on_rewritten on_rewrite_failed on_length"
    ),
    Tail: "wait on_polled on_proven on_poll_failed on_metadata_changed on_refreshed on_refresh_failed on_tick",
    ExplicitLac: "on_interval",
}
"""The events of each core; one that a core gets from within another event is part of that."""

FACTS: Mapping[type, str] = {
    WriterCore: (
        "state lac pending.acknowledged pending.next_entry pending.kept_bytes slots.outstanding_max length "
        "slots.ensemble change.fragments version"
    ),
    RecoveryCore: "state lac last_entry length",
    Tail: "lac is_closed is_waiting",
    ExplicitLac: "",
}
"""What is known of a core after each event: names of attributes, of its parts too. The last name is shown."""


class Recorder:
    """Writes down what happens to the cores while it is planted."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._is_inside = False
        # A client that another test left open has cores, too, on a thread of its own.
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record all events within this context."""
        with both(*(self._plant(kind, name) for kind, names in EVENTS.items() for name in names.split())):
            yield

    def _plant(self, kind: type, name: str) -> Plant:
        facts = FACTS[kind].split()
        return changed(kind, name, lambda old: functools.wraps(old)(self._recorded(old, name, facts)))

    def _recorded(self, old: Callable[..., Any], name: str, facts: Collection[str]) -> Callable[..., Any]:
        def event(core: Any, *arguments: Any, **named: Any) -> Any:
            if self._is_inside or threading.get_ident() != self._thread:
                return old(core, *arguments, **named)
            self._is_inside = True
            # Before the event: some arguments are buffers that change later.
            what = f"{name} {describe(arguments)} {describe(named)}"
            try:
                done = old(core, *arguments, **named)
            finally:
                self._is_inside = False
            self.lines.append(what)
            self.lines += [f"    {describe(effect)}" for effect in done]
            known = ((fact.rpartition(".")[2], operator.attrgetter(fact)(core)) for fact in facts)
            self.lines.append("    = " + " ".join(f"{fact}={describe(value)}" for fact, value in known))
            return done

        return event


def describe(value: Any) -> str:
    """Return a value as traces show it."""
    if isinstance(value, np.ndarray):
        return str(value.tolist())
    if isinstance(value, (bytes, memoryview)):
        return f"{bytes(value)!r}"
    if isinstance(value, SealedEntries):
        return f"entries({value.first_entry}, {len(value)}, {len(value.buffer)} bytes)"
    if isinstance(value, EntryBatch):
        return f"batch({value.first_entry}, {len(value)}, {value.payload_bytes} bytes)"
    if isinstance(value, BookKeeperError):
        return f"{type(value).__name__}({value})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{describe(key)}: {describe(it)}" for key, it in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(describe, value))) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(describe, value)) + "]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f"{field.name}={describe(getattr(value, field.name))}" for field in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(fields)})"
    return str(value)


def trace(kind: str, seed: int) -> list[str]:
    """Return the trace of one schedule."""
    recorder = Recorder()
    with recorder.recording():
        KINDS[kind](seed)
    return recorder.lines


def trace_hash(kind: str, seed: int) -> str:
    """Return the hash of the trace of one schedule."""
    return hashlib.sha256("\n".join(trace(kind, seed)).encode()).hexdigest()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.traces", description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=[*KINDS])
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--count", type=int, default=100, help="how many schedules (default 100)")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the trace of one schedule")
    options = parser.parse_args(arguments)
    # Bookies log each error that they answer.
    logging.disable()
    if options.show is not None:
        print("\n".join(trace(options.kind, options.show)))
        return 0
    for seed in range(options.first, options.first + options.count):
        print(seed, trace_hash(options.kind, seed), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
