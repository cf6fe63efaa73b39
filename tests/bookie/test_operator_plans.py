"""What a bookie does for plans in the metadata store, and what it remembers of its operator after a restart."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.metadata.bookie_plans import DRAIN, MAINTENANCE, QUARANTINE, BookiePlan, DamagedPlan
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.formats.bookie_status import STATUS_NAME
from bookie_service.operation.bookie_operator import RESTARTED_FOR, BookieOperator, NotServing, Refused
from bookie_service.operation.changes import Changes
from bookie_service.operation.live_keys import LiveKeys
from bookie_service.service import BookieService
from bookie_service.settings.configuration import configure
from bookie_service.storage.io.files import LocalFiles
from tests.bookie.operator_parts import STEADY, URI, Registration, audited
from tests.bookie.serving import no_suspects, service_options
from tests.disks import ROOMY_DISKS
from tests.polling import until

PLAN = BookiePlan("b:1", MAINTENANCE, "amy", 1000, reason="new disk")


class Started:
    """A bookie whose operator hears what a process reports to it."""

    def __init__(self, directory: Path, values: dict[str, str] | None = None, **disks: bool) -> None:
        options = service_options(directory, disks=replace(ROOMY_DISKS, **disks))
        self.service = BookieService(LocalFiles(), options)
        changes = Changes(self.service.fail)
        keys = LiveKeys(configure(values or {}), None, {}, changes)
        self.operator = BookieOperator("b:1", self.service, keys, LocalFiles(), changes)
        self.modes: list[bool] = []
        """What the cluster was to hear about, in order: whether new ledgers must not choose the bookie."""
        self.restarts = 0
        self.operator.on_restart = self._restart
        self.registration = Registration()

    def _restart(self) -> None:
        self.restarts += 1

    async def serve(self) -> None:
        await self.service.start(no_suspects)
        self.service.on_mode_change = lambda: self.modes.append(self.operator.is_registered_read_only)
        self.service.listen(socket.create_server(("127.0.0.1", 0)))
        tree = MemoryStore().session()
        await BookieRegistry(tree, URI).initialize_cluster()
        metadata_view = LedgerMetadataView(tree, URI, "b:1")
        await metadata_view.open()
        self.service.start_collecting(metadata_view)
        self.operator.serve(self.registration)


def run(started: Callable[[], Started], test: Callable[[Started], Awaitable[None]]) -> None:
    """Run a test with a bookie that does not serve yet; stop it if it serves."""

    async def call() -> None:
        bookie = started()
        try:
            await test(bookie)
        finally:
            if bookie.operator.phase == "serving":
                await bookie.service.stop(30.0)

    asyncio.run(call())


def restored(directory: Path, values: dict[str, str] | None = None) -> tuple[bool, str]:
    """Start the bookie of a directory again; return whether it is read-only, and why."""
    found: list[tuple[bool, str]] = []

    async def test(bookie: Started) -> None:
        bookie.operator.restore_status()
        await bookie.serve()
        state = bookie.operator.state()
        found.append((state.read_only, state.reason))

    run(lambda: Started(directory, values), test)
    return found[0]


# ---- what an operator set ----


@pytest.mark.parametrize("keeps", ["true", "false"])
def test_bookie_that_an_operator_made_read_only_stays_so_after_a_restart_if_it_keeps_its_status(
    tmp_path: Path, keeps: str
) -> None:
    values = {"persistBookieStatusEnabled": keeps}

    async def test(bookie: Started) -> None:
        await bookie.serve()
        assert await bookie.operator.set_read_only(True, "amy")

    run(lambda: Started(tmp_path, values), test)
    read_only, reason = restored(tmp_path)
    assert (read_only, reason.startswith("an operator set it read-only at 20")) == (keeps == "true", keeps == "true")
    assert restored(tmp_path, {"persistBookieStatusEnabled": "false"}) == (False, "")


def test_bookie_that_an_operator_made_writable_again_is_so_after_a_restart(tmp_path: Path) -> None:
    async def test(bookie: Started) -> None:
        await bookie.serve()
        assert await bookie.operator.set_read_only(True, "amy")
        assert not await bookie.operator.set_read_only(False, "amy")
        assert bookie.modes == [True, True, False, False], "the change is reported, and then the reason"

    run(lambda: Started(tmp_path), test)
    assert restored(tmp_path) == (False, "")


def test_new_reason_alone_is_a_change_and_no_other_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bookie_service.audit")

    async def test(bookie: Started) -> None:
        await bookie.serve()
        status = tmp_path / "ledgers" / "current" / "BOOKIE_STATUS"
        await bookie.operator.set_read_only(False, "amy", "for nothing")
        assert (audited(caplog), status.exists()) == ([], False)
        await bookie.operator.set_read_only(True, "amy")
        first = status.read_bytes()
        await bookie.operator.set_read_only(True, "bob", "new disk")
        assert bookie.operator.state().reason == "new disk"
        assert status.read_bytes() == first, "the time is that of the change"
        assert len(audited(caplog)) == 2

    run(lambda: Started(tmp_path), test)


class HeldStatus(LocalFiles):
    """Files of which the status is written when the test says so."""

    def __init__(self) -> None:
        self.is_asked, self.may_write = threading.Event(), threading.Event()

    def replace(self, path: str, data: bytes) -> None:
        if path.endswith(STATUS_NAME):
            self.is_asked.set()
            assert self.may_write.wait(60)
        super().replace(path, data)


def test_last_of_two_changes_counts_though_the_first_one_is_still_being_stored(tmp_path: Path) -> None:
    """Otherwise the second one finds nothing to change, and then the first one takes effect."""

    async def test(bookie: Started) -> None:
        await bookie.serve()
        files = HeldStatus()
        operator = BookieOperator("b:1", bookie.service, bookie.operator.keys, files, STEADY)
        operator.serve(bookie.registration)
        first = asyncio.ensure_future(operator.set_read_only(True, "amy"))
        await until(files.is_asked.is_set, "the write of the first status")
        second = asyncio.ensure_future(operator.set_read_only(False, "bob"))
        for _ in range(3):
            await asyncio.sleep(0)
        files.may_write.set()
        await asyncio.gather(first, second)
        assert not operator.is_read_only

    run(lambda: Started(tmp_path), test)
    assert restored(tmp_path) == (False, "")


def test_configuration_alone_decides_where_it_makes_the_bookie_read_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bookie_service.audit")

    async def test(bookie: Started) -> None:
        await bookie.serve()
        assert await bookie.operator.set_read_only(True, "amy", "new disk")
        assert bookie.operator.state().reason == "forceReadOnlyBookie is true"
        with pytest.raises(Refused, match="forceReadOnlyBookie is true"):
            await bookie.operator.set_read_only(False, "amy")
        assert audited(caplog) == []

    run(lambda: Started(tmp_path, is_forced_read_only=True), test)


def test_bookie_that_may_not_be_read_only_may_be_set_writable(tmp_path: Path) -> None:
    async def test(bookie: Started) -> None:
        await bookie.serve()
        with pytest.raises(Refused, match="readOnlyModeEnabled is false"):
            await bookie.operator.set_read_only(True, "amy")
        assert not await bookie.operator.set_read_only(False, "amy")

    run(lambda: Started(tmp_path, read_only_mode=False), test)


# ---- plans ----


@pytest.mark.parametrize(("kind", "read_only"), [(MAINTENANCE, True), (DRAIN, True), (QUARANTINE, False)])
@pytest.mark.parametrize("is_first", [True, False], ids=["before it serves", "while it serves"])
def test_plan_takes_effect_whenever_it_comes_and_ends_with_it(
    tmp_path: Path, kind: str, read_only: bool, is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Writers that use a bookie in quarantine may continue: only new ledgers do not choose it."""
    caplog.set_level("INFO", "bookie_service.audit")
    plan = replace(PLAN, kind=kind)

    async def test(bookie: Started) -> None:
        operator = bookie.operator
        if is_first:
            operator.follow(plan)
            await bookie.serve()
        else:
            await bookie.serve()
            operator.follow(plan)
            assert bookie.modes[-1]
        state = operator.state()
        assert (state.read_only, operator.is_registered_read_only, state.plan) == (read_only, True, kind)
        assert state.reason == f"{kind} by amy: new disk"
        operator.follow(None)
        assert (operator.is_read_only, operator.is_registered_read_only, operator.state().reason) == (False, False, "")
        assert not bookie.modes[-1]
        assert audited(caplog) == [
            f"audit: amy: plan {kind} by amy: new disk",
            f"audit: plan: the plan for this bookie is over: {kind} by amy: new disk",
        ]

    run(lambda: Started(tmp_path), test)


def test_bookie_whose_plan_cannot_be_read_at_its_start_is_read_only_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have been drained or maintained before. No operator changed anything, so the audit log has no line."""
    caplog.set_level("INFO", "bookie_service.audit")
    damaged = DamagedPlan("b:1", "the plan for bookie b:1 cannot be read: `bkspark cluster plans --end b:1` removes it")

    async def test(bookie: Started) -> None:
        bookie.operator.follow(damaged)
        await bookie.serve()
        state = bookie.operator.state()
        assert (state.read_only, state.reason, state.plan) == (True, damaged.problem, "")
        assert not state.set_by_operator
        bookie.operator.follow(None)
        assert (bookie.operator.is_read_only, bookie.modes[-1]) == (False, False)
        assert audited(caplog) == []

    run(lambda: Started(tmp_path), test)


def test_reason_of_an_operator_comes_before_that_of_a_quarantine(tmp_path: Path) -> None:
    async def test(bookie: Started) -> None:
        await bookie.serve()
        bookie.operator.follow(replace(PLAN, kind=QUARANTINE))
        await bookie.operator.set_read_only(True, "bob", "it is slow")
        assert bookie.operator.state().reason == "it is slow"

    run(lambda: Started(tmp_path), test)


def test_plan_that_changes_is_audited_and_its_progress_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bookie_service.audit")

    async def test(bookie: Started) -> None:
        drain = replace(PLAN, kind=DRAIN)
        for plan in (drain, replace(drain, progress={"ledgers": 5}), replace(drain, reason="old disk")):
            bookie.operator.follow(plan)
        assert audited(caplog) == [
            "audit: amy: plan drain by amy: new disk",
            "audit: amy: plan drain by amy: old disk",
        ]

    run(lambda: Started(tmp_path), test)


@pytest.mark.parametrize("is_first", [True, False], ids=["before it serves", "while it serves"])
def test_bookie_restarts_once_for_each_restart_that_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The next process has the word, and does not restart for it again."""
    plan = replace(PLAN, restart="word")

    async def test(bookie: Started) -> None:
        if is_first:
            bookie.operator.follow(plan)
            assert bookie.restarts == 0, "nothing is to be stopped yet"
        await bookie.serve()
        assert bookie.restarts == is_first
        bookie.operator.follow(plan)
        assert (bookie.restarts, bookie.operator.restart_word) == (1, "word")

    run(lambda: Started(tmp_path), test)
    monkeypatch.setenv(RESTARTED_FOR, "word")

    async def again(bookie: Started) -> None:
        await bookie.serve()
        bookie.operator.follow(plan)
        assert (bookie.restarts, bookie.operator.restart_word) == (0, None)
        bookie.operator.follow(replace(plan, restart="next"))
        assert (bookie.restarts, bookie.operator.restart_word) == (1, "next")

    run(lambda: Started(tmp_path), again)


def test_bookie_that_does_not_serve_is_not_restarted(tmp_path: Path) -> None:
    async def test(bookie: Started) -> None:
        with pytest.raises(NotServing):
            bookie.operator.restart("amy")
        assert (bookie.restarts, bookie.operator.restart_word) == (0, None)

    run(lambda: Started(tmp_path), test)


# ---- files ----


class DeniedFiles(LocalFiles):
    """Files of which a directory cannot be listed."""

    def __init__(self, code: int) -> None:
        self.code = code

    def names(self, path: str) -> list[str]:
        if "ledgers" in path:
            raise OSError(self.code, os.strerror(self.code), path)
        return super().names(path)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_files_of_a_failing_disk_are_left_out_and_another_error_is_one(tmp_path: Path, code: int) -> None:
    async def test(bookie: Started) -> None:
        await bookie.serve()
        operator = BookieOperator("b:1", bookie.service, bookie.operator.keys, DeniedFiles(code), STEADY)
        assert operator.disk_files("journal")
        if code == errno.EIO:
            assert operator.disk_files("index") == []
        else:
            with pytest.raises(PermissionError):
                operator.disk_files("index")

    run(lambda: Started(tmp_path), test)
