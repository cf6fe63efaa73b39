"""Crash-point campaigns: every operation boundary of seeded scripts, under every loss policy, reopened and audited.

`python -m tests.crash.campaign --seed S --images N | --seconds T [--storage CLASS] [--fences] [--processes P]` prints
one JSON line of counts; a violation ends it with exit code 1 and a line that names seed, boundary, policy and what was
broken.

Scripts take turns: one of each storage, one with an entry log per ledger. `coverage` says for each of these which part
of the pairs (boundary, policy) of its finished scripts was crashed; boundaries are counted by the simulated disks.

One image in `DEEP_EVERY` goes on: boundaries of its recovery are crashed again, and so is what it writes after that.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bkspark.errors import StorageDamaged
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.audit import Violation, audit, audit_space, observe
from tests.crash.history import History
from tests.crash.images import VARIANTS, Fingerprint, Loss, crash_image, fingerprint
from tests.crash.parallel import campaign_parser, counts_of, processor_seconds
from tests.crash.scripts import FencingScript, Script, write_more
from tests.crash.simulated_files import SimulatedDisk
from tests.crash.twins import BookieTwin, Remembered, Setup

DEEP_EVERY = 40
STEPS = 14
_OPENED_MAX = 300
"""Restarted bookies that are kept: memory against the chance that a later boundary leaves the same bytes."""
_DEEP_SHARES = (0.03, 0.15, 0.5)
"""Part of the boundaries there that are crashed again, up to `_DEEP_MAX`; the small ones reach the late boundaries."""
_DEEP_MAX = 12

LOG_PER_LEDGER = "log per ledger"
SEVERAL = "several ledger directories"
_CRASHED, _DUE = "crashed: ", "due: "
_SPACE_SHARE = 0.5
"""Part of these in which garbage is collected, too, and nothing must be left over."""


class Campaign:
    """Counts what was done; `images` are those audited, without the ones that equal another of their script."""

    def __init__(
        self,
        stop: Callable[[Campaign], bool] = lambda campaign: False,
        deep_every: int = DEEP_EVERY,
        storage_class: StorageClass | None = None,
        script: type[Script] = Script,
        share: float = 1.0,
        log_per_ledger: bool | None = None,
    ) -> None:
        """Crash scripts of one kind.

        Args:
            stop: asked at every boundary; True ends the script there.
            deep_every: one image in this many is crashed again.
            storage_class, log_per_ledger: None lets each have its share.
            share: of the boundaries, chosen by the seed.
        """
        self._log_per_ledger = log_per_ledger
        self._script = script
        self._share = share
        self._storage_class = storage_class
        self._deep_every = deep_every
        self.counts: Counter[str] = Counter()
        self._stop = stop
        self._seen: set[tuple[Fingerprint, int]] = set()

    @property
    def images(self) -> int:
        return self.counts["images"]

    def run_script(self, seed: int, steps: int = STEPS) -> None:
        """Crash one script at every boundary.

        Raises:
            Violation: naming the seed, the boundary and the policy.
        """
        self._seen.clear()
        starts = Starts(self.counts)
        random = Random(seed)
        boundary = 0

        def hook(script: Script) -> None:
            nonlocal boundary
            if self._stop(self):
                raise _Enough
            boundary += 1
            if self._share < 1 and random.random() >= self._share:
                return
            self.counts["boundaries"] += 1
            for loss in Loss:
                for _ in range(VARIANTS.get(loss, 1)):
                    try:
                        self._crash(script, loss, random, starts)
                    except Violation as violation:
                        raise Violation(f"seed {seed}, boundary {boundary}, {loss.value}: {violation}") from violation

        script = self._script(seed, steps, hook, self._storage_class, log_per_ledger=self._log_per_ledger)
        crashed = self.counts["boundaries"]
        try:
            script.run()
        except _Enough:
            return
        except (StorageDamaged, OSError) as error:
            raise Violation(f"seed {seed}, boundary {boundary}: did not start, or ended: {error}") from error
        self.counts["scripts"] += 1
        for kind in kinds_of(script.setup):
            self.counts[f"{_CRASHED}{kind}"] += len(Loss) * (self.counts["boundaries"] - crashed)
            self.counts[f"{_DUE}{kind}"] += len(Loss) * (script.operations + 1)

    def _crash(self, script: Script, loss: Loss, random: Random, starts: Starts) -> None:
        self.counts["attempts"] += 1
        setup, history = script.setup, script.history
        image = crash_image(script.disk, loss, random)
        found = fingerprint(image)
        if (found, history.promises) in self._seen:
            return
        self._seen.add((found, history.promises))
        self.counts["images"] += 1
        self.counts[loss.value] += 1
        self.counts[setup.store.storage_class.short_name] += 1
        if self.images % self._deep_every == 0:
            self._crash_again(image, setup, history, random)
        else:
            starts.audit(image, setup, history, found)

    def _crash_again(self, image: SimulatedDisk, setup: Setup, history: History, random: Random) -> None:
        """Crash inside the recovery of an image, and inside what is written after it."""
        history = history.after_crash()
        opened = False
        share = random.choice(_DEEP_SHARES)
        left = _DEEP_MAX

        def crash(operation: str, path: str) -> None:
            nonlocal left
            if left and random.random() < share:
                left -= 1
                self.counts["double"] += 1
                self.counts["images"] += 1
                loss = random.choice(list(Loss))
                again = crash_image(image, loss, random)
                try:
                    audit(reopened(again, setup, history), history)
                except Violation as violation:
                    where = "after" if opened else "inside"
                    raise Violation(f"{loss.value} {where} the next recovery: {violation}") from violation

        image.before_operation = crash
        twin = reopened(image, setup, history)
        audit(twin, history)
        observe(twin, history)
        opened = True
        if random.random() < _SPACE_SHARE:
            # Ledgers without any acknowledgement may exist nevertheless.
            audit_space(twin, {*history.ledgers})
            audit(twin, history)
            self.counts["space"] += 1
        write_more(twin, random)
        crash("end", "")


class Starts:
    """Starts a bookie on images of one script, and holds it against what it promised.

    A start that is not crashed sees no difference between images with the same bytes: they are started once, and what
    was promised is audited once.
    """

    def __init__(self, counts: Counter[str] | None = None, opened_max: int = _OPENED_MAX) -> None:
        """`counts`: where the `starts` are counted. `opened_max`: of the bookies that are kept."""
        self._counts = Counter[str]() if counts is None else counts
        self._opened_max = opened_max
        self._audited: set[tuple[int, int, int]] = set()
        self._opened: OrderedDict[int, Remembered] = OrderedDict()

    def audit(self, image: SimulatedDisk, setup: Setup, history: History, found: Fingerprint | None = None) -> bool:
        """Return whether the image is unlike the earlier ones. `found`: its fingerprint, if it is known.

        Raises:
            Violation: it does not start, or breaks a promise.
        """
        seen = (found or fingerprint(image)).seen
        promised = (seen, history.promises, len(history.deleted))
        if promised in self._audited:
            return False
        self._audited.add(promised)
        answers = self._opened.get(seen)
        if answers is None:
            self._counts["starts"] += 1
            answers = self._opened[seen] = Remembered(reopened(image, setup, history))
            if len(self._opened) > self._opened_max:
                self._opened.popitem(last=False)
        audit(answers, history)
        return True


class _Enough(Exception):
    """The budget of a campaign is used up."""


def reopened(image: SimulatedDisk, setup: Setup, history: History) -> BookieTwin:
    """Open the storage on a crash image.

    Raises:
        Violation: it does not start, or regards durable data as lost.
    """
    try:
        twin = BookieTwin(image, setup, history)
    except Violation:
        # State of a hook that read another disk.
        raise
    except Exception as error:
        raise Violation(f"did not start: {type(error).__name__}: {error}") from error
    if twin.is_in_doubt:
        raise Violation(f"every ledger is in doubt, although nothing durable is lost: {'; '.join(twin.notices)}")
    return twin


def kinds_of(setup: Setup) -> list[str]:
    """Return what a script counts for in the coverage: its storage, whether a ledger has a log of its own, and whether
    there are several ledger directories.
    """
    found = [setup.store.storage_class.short_name]
    if setup.store.append.log_per_ledger:
        found.append(LOG_PER_LEDGER)
    if setup.ledger_directories > 1:
        found.append(SEVERAL)
    return found


def coverage(counts: Counter[str]) -> dict[str, float]:
    """Return, by kind of script, which part of the pairs (operation boundary, policy) was crashed."""
    due = {name.removeprefix(_DUE): count for name, count in counts.items() if name.startswith(_DUE)}
    return {kind: round(counts[f"{_CRASHED}{kind}"] / count, 4) for kind, count in sorted(due.items())}


@dataclass(frozen=True, slots=True)
class _Part:
    """One script of a campaign. `ends`: by time.monotonic(), which all processes share."""

    seed: int
    steps: int
    storage_class: StorageClass | None
    ends: float | None
    script: type[Script]

    def run(self) -> Counter[str]:
        kind = self.seed % (len(StorageClass) + 1)
        storage_class = self.storage_class or [*StorageClass, None][kind]
        campaign = Campaign(
            lambda campaign: self.ends is not None and time.monotonic() >= self.ends,
            storage_class=storage_class,
            script=self.script,
            log_per_ledger=kind == len(StorageClass),
        )
        campaign.run_script(self.seed, self.steps)
        return campaign.counts


def run(
    seed: int,
    images: int | None,
    seconds: float | None = None,
    storage_class: StorageClass | None = None,
    *,
    steps: int = STEPS,
    processes: int = 1,
    script: type[Script] = Script,
) -> Counter[str]:
    """Run whole scripts of seeds from `seed` on until there are `images`, or for `seconds`; return the counts.

    They are the same for any number of processes, unless time ends them.

    Raises:
        Violation: of the lowest seed that has one.
    """
    ends = None if seconds is None else time.monotonic() + seconds
    parts = (_Part(each, steps, storage_class, ends, script) for each in itertools.count(seed))
    total: Counter[str] = Counter()
    with contextlib.closing(counts_of(parts, processes)) as found:
        for counts in found:
            total += counts
            if (images is not None and total["images"] >= images) or (ends is not None and time.monotonic() >= ends):
                return total
    raise AssertionError("seeds do not end")


def main(arguments: list[str] | None = None) -> int:
    parser = campaign_parser("campaign", __doc__)
    parser.add_argument("--storage", type=StorageClass.parse, help="one ledgerStorageClass only (default: all in turn)")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--images", type=int, help="audit this many images (default 150000)")
    budget.add_argument("--seconds", type=float, help="run for this long")
    parser.add_argument(
        "--fences", action="store_true", help="scripts of ledgers with fences and explicit LACs, and few entries"
    )
    options = parser.parse_args(arguments)
    if options.processes < 1:
        parser.error(f"--processes {options.processes}: it must be at least 1")
    images = options.images if options.images or options.seconds else 150_000
    # Each pass of garbage collection says what it keeps.
    logging.disable()
    script = FencingScript if options.fences else Script
    try:
        counts = run(options.seed, images, options.seconds, options.storage, processes=options.processes, script=script)
    except Violation as violation:
        print(violation, file=sys.stderr)
        return 1
    shown = {name: count for name, count in counts.items() if not name.startswith((_CRASHED, _DUE))}
    report = {"seed": options.seed, **shown, "coverage": coverage(counts), "violations": 0}
    print(json.dumps({**report, "processor_seconds": processor_seconds()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
