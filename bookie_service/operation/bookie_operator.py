"""What operators can see of a running bookie and do to it. No sockets are here.

The control socket, the HTTP API and the command line use `BookieOperator`. It checks each change, and writes one line
for it into the audit log. A command that cannot be carried out raises `Refused` with the reason.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bkspark.errors import BookKeeperError
from bkspark.metadata.bookie_plans import QUARANTINE, BookiePlan, DamagedPlan
from bkspark.one_line import one_line
from bkspark.version import VERSION
from bkspark.wall_clock import wall_clock_ms
from bookie_service.formats.bookie_status import BookieStatus
from bookie_service.gc.collection_status import CollectionStatus, PassReport
from bookie_service.operation.audit import audit
from bookie_service.operation.changes import Changes
from bookie_service.operation.live_keys import LiveKeys
from bookie_service.service import BookieService
from bookie_service.storage import layout
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.files import LocalFiles, is_disk_failure
from bookie_service.storage.status_file import StatusFile

logger = logging.getLogger(__name__)

OPERATORS_REASON_MAX = 200
"""At most this many characters of an operator's reason are kept."""
RESTARTED_FOR = "BKSPARK_RESTARTED_FOR"
"""The environment variable with the word of the plan that this process was restarted for."""


async def _nothing_to_reload(who: str) -> None:
    """Do nothing: there is no authorization."""


class Refused(BookKeeperError):
    """A command cannot be carried out; the message says why, in one line."""


class NotServing(Refused):
    """The bookie does not serve yet, or no longer."""


class Registered(Protocol):
    """The part of the registration that commands use."""

    @property
    def is_registered(self) -> bool:
        """Whether the cluster knows the bookie."""

    async def settled(self) -> None:
        """Return when the cluster knows the bookie's current state, or when that takes too long."""


@dataclass(frozen=True, slots=True)
class DirectoryUsage:
    """A directory of a bookie. kind: journal or ledgers. used_percent: of its disk, at the last check."""

    directory: str
    kind: str
    used_percent: float


@dataclass(frozen=True, slots=True)
class BookieState:
    """The state of the bookie `id` at one moment.

    version: of bkspark. phase: starting, serving or stopping. reason: why the bookie is read-only; "": it is not.
    set_by_operator: an operator made it read-only. plan: maintenance, drain or quarantine; "": there is none.
    limbo_ledgers: how many ledgers may have lost entries here. log_level: of the process. index_problems: a line for
    each ledger directory whose index fails, is full or late.
    """

    id: str
    version: str
    pid: int
    """The process, and when it started: `started_ms`, since 1970."""
    started_ms: int
    phase: str
    registered: bool
    """Whether clients can find it: its node in the metadata store exists."""
    read_only: bool
    """Whether it refuses ordinary adds."""
    reason: str
    set_by_operator: bool
    plan: str
    takes_recovery_adds: bool
    """Whether it has room for the adds of recoveries."""
    connections: int
    """How many clients are connected."""
    limbo_ledgers: int
    index_problems: tuple[str, ...]
    free_bytes: int
    """Free space for its ledgers, of `total_bytes` in all."""
    total_bytes: int
    directories: tuple[DirectoryUsage, ...]
    """How full each ledger and journal directory is."""
    compaction_suspended: tuple[str, ...]
    """The kinds of compaction that an operator suspended: "minor", "major"."""
    collection_suspended: bool
    """Whether an operator suspended garbage collection."""
    log_level: str


class BookieOperator:
    """The commands of one bookie. For its event loop."""

    def __init__(
        self, bookie_id: str, service: BookieService, keys: LiveKeys, files: LocalFiles, changes: Changes
    ) -> None:
        self.bookie_id = bookie_id
        self.keys = keys
        self.phase = "starting"
        """"starting", "serving" or "stopping", in this order."""
        self._service = service
        self._files = files
        self._changes = changes
        self._status_file = StatusFile(files, list(map(layout.current, service.options.ledger_directories)))
        self._registration: Registered | None = None
        """The registration; None until `serve`."""
        self._started_ms = wall_clock_ms()
        """When it was made, in ms since 1970. Constant."""
        self._changing = asyncio.Lock()
        """Held while the mode of the bookie is changed and recorded."""
        self._plan: BookiePlan | None = None
        """The plan for this bookie that was last followed; None: there is none."""
        self.on_restart: Callable[[], None] = lambda: None
        """Called when the process must restart."""
        self.reload_rules: Callable[[str], Awaitable[None]] = _nothing_to_reload
        """Reads the authorization rules again, for the named operator. Raises ConfigurationError."""
        self.restart_word: str | None = None
        """The word of the plan that requested a restart; "": no plan did; None: no restart was requested."""

    # ---- what the process reports to it ----

    def restore_status(self) -> None:
        """Make the bookie read-only if an operator had done so before the last restart."""
        if not self.keys.configuration.keeps_status:
            return
        status = self._status_file.read()
        if status is not None and status.is_read_only:
            day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.changed_ms / 1000))
            self._service.disks.set_read_only(f"an operator set it read-only at {day}")

    def serve(self, registration: Registered) -> None:
        """Note that the bookie serves from now on."""
        self._registration = registration
        self.phase = "serving"
        self._restart_if_planned()

    # ---- plans in the metadata store ----

    def follow(self, plan: BookiePlan | DamagedPlan | None) -> None:
        """Do what an operator planned for this bookie. None: there is no plan, or it is over.

        A plan that cannot be read sets the bookie read-only: what it demanded of a bookie before it started is unknown.

        Raises:
            OSError: a disk cannot be checked.
        """
        if isinstance(plan, DamagedPlan):
            self._set_planned(plan.problem)
            return
        before, self._plan = self._plan, plan
        self._set_planned("" if plan is None or not plan.sets_read_only else _planned(plan))
        if plan is not None and (before is None or _planned(before) != _planned(plan)):
            audit(plan.who, f"plan {_planned(plan)}", kind=plan.kind, reason=plan.reason, until_ms=plan.until_ms)
        elif plan is None and before is not None:
            # The node does not say who deleted it, or its time was over. A command that ends a plan has its own record.
            audit("plan", f"the plan for this bookie is over: {_planned(before)}")
        self._restart_if_planned()

    def _set_planned(self, reason: str) -> None:
        if self.phase == "starting":
            self._service.disks.set_planned(reason)
        elif self.phase == "serving":
            self._service.set_planned(reason)
            self._service.on_mode_change()

    def _restart_if_planned(self) -> None:
        plan = self._plan
        if plan is not None and self.phase == "serving" and plan.restart not in ("", os.environ.get(RESTARTED_FOR)):
            self.restart(plan.who, plan.restart)

    def restart(self, who: str, word: str = "") -> None:
        """Stop the process in order and start it again, with the same command line. Raises NotServing."""
        self.service  # noqa: B018  raises where nothing is to be restarted
        if self.restart_word is None:
            with self._changes.half_done():
                audit(who, "restart the bookie")
                self.restart_word = word
                self.on_restart()

    @property
    def is_registered_read_only(self) -> bool:
        """Whether new ledgers must not choose this bookie: it is read-only, or in quarantine."""
        return self.is_read_only or (self._plan is not None and self._plan.kind == QUARANTINE)

    @property
    def reason(self) -> str:
        """Why new ledgers must not choose this bookie; "": they may."""
        if self.is_read_only or self._plan is None or self._plan.kind != QUARANTINE:
            return self._service.disks.reason
        return _planned(self._plan)

    @property
    def service(self) -> BookieService:
        """The running service.

        Raises:
            NotServing: the service does not run.
        """
        if self.phase != "serving":
            raise NotServing("Bookie is not fully started yet" if self.phase == "starting" else "the bookie stops")
        return self._service

    # ---- what can be seen ----

    @property
    def is_registered(self) -> bool:
        """Whether the cluster knows the bookie, as far as this process can tell."""
        return self._registration is not None and self._registration.is_registered

    @property
    def is_read_only(self) -> bool:
        return self._service.is_read_only

    @property
    def index_problems(self) -> Sequence[str]:
        """A line for each ledger directory whose index fails, is full or late. Only once the storage is open."""
        return self._service.storage.store.index.problems

    def space(self) -> FileSystemSpace:
        """Return the total space of the ledger directories. Raises OSError."""
        return self._service.disks.ledger_space()

    def state(self) -> BookieState:
        """Return the state now."""
        service, disks = self._service, self._service.disks
        is_serving = self.phase == "serving"
        try:
            space = disks.known_space()
        except OSError:
            space = FileSystemSpace(0, 0, 0)
        collection = self.collection() if is_serving else CollectionStatus()
        suspended = (("minor", collection.is_minor_suspended), ("major", collection.is_major_suspended))
        return BookieState(
            self.bookie_id,
            VERSION,
            os.getpid(),
            self._started_ms,
            self.phase,
            self.is_registered,
            disks.is_read_only,
            self.reason,
            disks.is_set_read_only,
            "" if self._plan is None else self._plan.kind,
            disks.takes_recovery_adds,
            service.connection_count,
            len(service.storage.store.limbo) if is_serving else 0,
            tuple(self.index_problems) if is_serving else (),
            space.free_bytes,
            space.total_bytes,
            tuple(self._directories()),
            tuple(name for name, is_suspended in suspended if is_suspended),
            collection.is_suspended,
            logging.getLevelName(logging.getLogger().level).lower(),
        )

    def _directories(self) -> Iterator[DirectoryUsage]:
        options, usage = self._service.options, self._service.disks.usage
        for kind, paths in (("journal", options.journal_directories), ("ledgers", options.ledger_directories)):
            for path in paths:
                yield DirectoryUsage(path, kind, round(usage.get(layout.current(path), 0.0), 2))

    def collection(self) -> CollectionStatus:
        """Return what garbage collection does and has done. Raises NotServing."""
        collector = self.service.collector
        if collector is None:
            raise NotServing("Bookie is not fully started yet")
        return collector.status

    def limbo(self, after: int, count_max: int) -> list[int]:
        """Return ledgers above the id `after` that may have lost entries here, ascending. Raises NotServing."""
        ledger_ids = self.service.storage.store.limbo.ledger_ids
        begin = int(ledger_ids.searchsorted(after, side="right"))
        found: list[int] = ledger_ids[begin : begin + count_max].tolist()
        return found

    def last_marks(self) -> list[tuple[str, int, int]]:
        """Return (directory, file id, offset) of each journal's mark. Raises NotServing."""
        marks, journals = self.service.storage.marks, self.service.options.journal_directories
        found = [(directory, marks.read(index)) for index, directory in enumerate(journals)]
        return [(directory, *((0, 0) if mark is None else (mark.file_id, mark.offset))) for directory, mark in found]

    def disk_files(self, kind: str) -> list[str]:
        """Return the names of the files of a kind (journal, entrylog or index), sorted. Reads directories."""
        options = self._service.options
        if kind == "journal":
            return self._names(options.journal_directories, ".txn", 0)
        suffix, depth = (".log", 0) if kind == "entrylog" else (".idx", 2)
        return self._names(options.ledger_directories, suffix, depth)

    def _names(self, directories: Sequence[str], suffix: str, depth: int) -> list[str]:
        found: list[str] = []
        for directory in map(layout.current, directories):
            try:
                found += self._names_below(directory, suffix, depth)
            except OSError as error:
                if not is_disk_failure(error):
                    raise
                logger.warning("the files of %s are not listed: %s", directory, error)
        return sorted(found)

    def _names_below(self, directory: str, suffix: str, depth: int) -> list[str]:
        found = [directory]
        for _ in range(depth):
            found = [
                os.path.join(path, name)
                for path in found
                for name in self._files.names(path)
                if self._files.is_directory(os.path.join(path, name))
            ]
        return [name for path in found for name in self._files.names(path) if name.endswith(suffix)]

    # ---- what can be changed ----

    async def set_read_only(self, is_read_only: bool, who: str, reason: str = "") -> bool:
        """Make the bookie read-only, or let it take adds again if its disks allow it; return whether it is read-only.

        When this returns, the cluster knows it, unless the metadata store does not answer. It also holds after a
        restart (persistBookieStatusEnabled).

        Raises:
            Refused: the configuration does not allow it.
            OSError: the status cannot be stored, and nothing was changed.
        """
        service, disks = self.service, self._service.disks
        if disks.is_forced and is_read_only:
            return True
        if disks.is_forced:
            raise Refused("the configuration makes the bookie read-only: forceReadOnlyBookie is true")
        if is_read_only and not service.options.disks.read_only_mode:
            raise Refused("the configuration does not allow it: readOnlyModeEnabled is false")
        reason = one_line(reason)[:OPERATORS_REASON_MAX]
        async with self._changing:
            is_changed = is_read_only != disks.is_set_read_only
            if is_changed or (is_read_only and reason):
                with self._changes.half_done():
                    if is_changed and self.keys.configuration.keeps_status:
                        status = BookieStatus(is_read_only, wall_clock_ms())
                        await asyncio.to_thread(self._status_file.write, status)
                    reason = reason or f"set by {who}"
                    service.set_read_only(reason if is_read_only else "")
                    # The reason alone may be new.
                    service.on_mode_change()
                    what = f"set read-only ({reason})" if is_read_only else "set writable"
                    audit(who, what, read_only=is_read_only, reason=reason)
        if self._registration is not None:
            # Another change need not wait for this one's.
            await self._registration.settled()
        return self.is_read_only

    async def collect(self, who: str, *, major: bool = True, minor: bool = True) -> PassReport:
        """Collect garbage now, with a major compaction, a minor one, or no compaction; return what was done.

        Raises:
            BookKeeperError: collection is suspended, or the bookie stopped before it was done.
        """
        service = self.service
        status = self.collection()
        if status.is_suspended:
            raise Refused("garbage collection is suspended; resume it first")
        major, minor = major and not status.is_major_suspended, minor and not status.is_minor_suspended
        with_what = "with a major compaction" if major else "with a minor compaction" if minor else "without compaction"
        audit(who, f"collect garbage, {with_what}", major=major, minor=minor)
        return await service.collect_garbage(major=major, minor=minor)

    def suspend(self, who: str, *, minor: bool = False, major: bool = False, collection: bool = False) -> None:
        """Begin no compaction of these levels, or no garbage collection at all, until `resume`. Raises NotServing."""
        self._set_suspended(who, True, minor=minor, major=major, collection=collection)

    def resume(self, who: str, *, minor: bool = False, major: bool = False, collection: bool = False) -> None:
        """End what `suspend` began. Raises NotServing."""
        self._set_suspended(who, False, minor=minor, major=major, collection=collection)

    def _set_suspended(self, who: str, value: bool, *, minor: bool, major: bool, collection: bool) -> None:
        status = self.collection()
        verb = "suspend" if value else "resume"
        with self._changes.half_done():
            for is_meant, field, what in (
                (minor, "is_minor_suspended", "minor compaction"),
                (major, "is_major_suspended", "major compaction"),
                (collection, "is_suspended", "garbage collection"),
            ):
                if is_meant and getattr(status, field) is not value:
                    setattr(status, field, value)
                    audit(who, f"{verb} {what}", what=what, suspended=value)


def _planned(plan: BookiePlan) -> str:
    """Return a plan as one line."""
    until = ""
    if plan.until_ms:
        until = time.strftime(" until %Y-%m-%dT%H:%M:%SZ", time.gmtime(plan.until_ms / 1000))
    because = f": {one_line(plan.reason)[:OPERATORS_REASON_MAX]}" if plan.reason else ""
    return f"{plan.kind} by {one_line(plan.who)[:OPERATORS_REASON_MAX]}{until}{because}"


def as_json(state: BookieState | PassReport | CollectionStatus) -> dict[str, object]:
    """Return the fields of a state or report."""
    return dataclasses.asdict(state)
