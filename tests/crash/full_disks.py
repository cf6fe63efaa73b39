"""One ledger directory of several is full, or fails, when a bookie starts: every kill of a script, every such start.

`python -m tests.crash.full_disks [--seed S] [--processes P]` runs `recoveries.RichScript` and stops at every operation
boundary, as a kill and as a power cut leave the disk. It starts a bookie there of which the first, the second, or every
ledger directory takes nothing any more, for want of space; or one is nearly full, and still writable:

* it starts, read-only where it must; only a first start may be refused, and one without space for the only store;
* all that was promised is read from it, the full directory included;
* what it is given then it takes and keeps; only where no directory has room it may be read-only;
* it may crash, and starts once more on a disk with space: everything is there.

It prints one JSON line of counts.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from dataclasses import dataclass
from random import Random

from bookie_service.formats.compaction import SUFFIX
from bookie_service.storage import layout
from bookie_service.storage.disks import FileSystemSpace
from tests.crash.audit import Violation, audit
from tests.crash.campaign import reopened
from tests.crash.faults import TAKING_SPACE
from tests.crash.images import Fingerprint, Loss, crash_image, fingerprint
from tests.crash.parallel import campaign_parser, counts_of, report
from tests.crash.recoveries import KINDS, RichScript, script_of
from tests.crash.scripts import Script
from tests.crash.simulated_files import SimulatedDisk, os_error
from tests.crash.twins import BookieTwin

_REFUSED = TAKING_SPACE - {"sync_data"}
"""What was written has its space. After a sync that fails it is unknown what is there, so that start is refused."""


_FULL, _NEARLY_FULL = (FileSystemSpace(2, 1 << 40, free) for free in (0, 1 << 30))


@dataclass(frozen=True, slots=True)
class Trouble:
    """Which ledger directories are full, and what they say to who writes there; code 0: they still take it."""

    places: tuple[str, ...]
    code: int

    def begin(self, disk: SimulatedDisk) -> None:
        disk.fault = self.fault
        disk.spaces = dict.fromkeys(self.places, _FULL if self.code else _NEARLY_FULL)

    @staticmethod
    def end(disk: SimulatedDisk) -> None:
        disk.fault = None
        disk.spaces = {}

    def fault(self, operation: str, path: str) -> OSError | None:
        is_there = any(path.startswith(place) for place in self.places)
        return os_error(self.code, path) if self.code and is_there and operation in _REFUSED else None


TROUBLES = (
    Trouble(("/ledgers0",), errno.ENOSPC),
    Trouble(("/ledgers1",), errno.ENOSPC),
    Trouble(("/ledgers0", "/ledgers1"), errno.ENOSPC),
    Trouble(("/ledgers0",), 0),
    Trouble(("/ledgers1",), 0),
)


def _may_refuse(script: RichScript, trouble: Trouble) -> bool:
    """Say whether a start may be refused: the first one, or one without space where the only store lies."""
    return script.act == RichScript.act or _is_only_store_full(script, trouble)


def _has_no_room(script: RichScript, trouble: Trouble) -> bool:
    """Say whether what is added can only stay in the journal."""
    return len(trouble.places) == len(script.setup.ledger_paths) or _is_only_store_full(script, trouble)


def _is_only_store_full(script: RichScript, trouble: Trouble) -> bool:
    return script.setup.has_one_store and script.setup.ledger_paths[0] in trouble.places


class FullStarts:
    """Counts what was done; states that are alike count once."""

    def __init__(self, share: float = 1.0) -> None:
        """`share`: of the kills, chosen by the seed."""
        self._share = share
        self.counts: Counter[str] = Counter()
        self._seen: set[tuple[Fingerprint, int, Trouble]] = set()

    def run_script(self, seed: int, kind: str) -> None:
        """Start on a full disk at every boundary of one script.

        Raises:
            Violation: naming kind, seed, kill, policy and the full directories.
        """
        random = Random(seed)
        kills = 0

        def hook(script: Script) -> None:
            nonlocal kills
            assert isinstance(script, RichScript)
            kills += 1
            self.counts["due"] += 1
            if random.random() >= self._share:
                return
            self.counts["kills"] += 1
            for loss in (Loss.KEPT, Loss.LOST):
                for trouble in TROUBLES:
                    try:
                        self._start(script, loss, trouble, random)
                    except Violation as violation:
                        where = f"{kind}, seed {seed}, kill {kills} ({script.act}), {loss.value}"
                        raise Violation(f"{where}, {trouble}: {violation}") from violation

        script_of(kind, seed, hook).run()
        self.counts["scripts"] += 1

    def _start(self, script: RichScript, loss: Loss, trouble: Trouble, random: Random) -> None:
        disk = crash_image(script.disk, loss, random)
        state = (fingerprint(disk), script.history.promises, trouble)
        if state in self._seen:
            return
        self._seen.add(state)
        self.counts["starts"] += 1
        history = script.history.after_crash()
        before = set(disk.visible_files())
        trouble.begin(disk)
        try:
            twin = BookieTwin(disk, script.setup, history)
        except OSError as error:
            if error.errno != trouble.code or not _may_refuse(script, trouble):
                raise Violation(f"did not start: {error}") from error
            self.counts["refused"] += 1
        else:
            self.counts["read-only"] += twin.disks.is_read_only
            audit(twin, history)
            self._use(twin, trouble, before, random)
            if twin.disks.is_read_only and not _has_no_room(script, trouble):
                raise Violation(f"read-only, though one directory has room: {twin.disks.verdict.refusal}")
        trouble.end(disk)
        for again in (Loss.KEPT, Loss.LOST):
            image = crash_image(disk, again, random)
            after = history.after_crash()
            audit(reopened(image, script.setup, after), after)

    def _use(self, twin: BookieTwin, trouble: Trouble, before: set[str], random: Random) -> None:
        """Add and fence, have a checkpoint tried, and get space."""
        end = 1 + max(twin.history.ledger(1).entries, default=-1)
        twin.add(1, [(end, random.randbytes(40))])
        twin.fence(4)
        twin.settle()
        twin.bookie.checkpoint()
        twin.settle()
        audit(twin, twin.history)
        self._check_places(twin, trouble, before)
        if random.random() < 0.5:
            return
        trouble.end(twin.disk)
        twin.settle()
        twin.bookie.look_at_disks()
        if twin.disks.is_read_only:
            raise Violation(f"there is space again, and it is still read-only: {twin.disks.verdict.refusal}")
        self.counts["writable again"] += 1
        audit(twin, twin.history)

    def _check_places(self, twin: BookieTwin, trouble: Trouble, before: set[str]) -> None:
        """Raise a Violation if new entries go to a full directory although another one has room. `before`: all files at
        the start."""
        full = {layout.current(place) for place in trouble.places}
        if not twin.disks.verdict.full >= full:
            raise Violation(f"{full} are full, and are not found to be")
        if full < set(twin.setup.current_ledger_paths):
            new = twin.disk.visible_files().keys() - before
            found = [path for path in new if path.endswith(".log") and os.path.dirname(path) in full]
            # A start finishes a compaction: the log is there with its temporary name.
            found = [path for path in found if path + SUFFIX not in before]
            if found:
                raise Violation(f"entries go to {found[0]}, though another directory has room")


@dataclass(frozen=True, slots=True)
class _Part:
    seed: int
    kind: str
    share: float

    def run(self) -> Counter[str]:
        starts = FullStarts(self.share)
        starts.run_script(self.seed, self.kind)
        return starts.counts


def run(seed: int, share: float = 1.0, processes: int = 1) -> Counter[str]:
    """Run a script of each kind; return the counts.

    Raises:
        Violation: of the first that has one.
    """
    return sum(counts_of([_Part(seed, kind, share) for kind in KINDS], processes), Counter())


def main(arguments: list[str] | None = None) -> int:
    options = campaign_parser("full_disks", __doc__, share_of="the kills").parse_args(arguments)
    return report(options.seed, lambda: run(options.seed, options.share, options.processes), done="kills")


if __name__ == "__main__":
    sys.exit(main())
