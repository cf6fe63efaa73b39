"""One disk of several that fails in some or all calls: a part of what `tests.crash.failing_disks` enumerates."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bookie_service.storage.index.index_writer import IndexWriter
from bookie_service.storage.io import files as files_module
from bookie_service.storage.io.files import DISK_FAILURES
from bookie_service.storage.io.placed_file import PlacedFile
from bookie_service.storage.logs.entry_log import EntryLogs
from tests.crash.audit import Violation
from tests.crash.failing_disks import CALLS, CODES, KINDS, Case, cases, run_case
from tests.planting import Plant, around, replaced

SINGLY, OF_FILE_SYSTEMS, OF_KEY_VALUES, OF_SMALL_TABLES, OF_ONE_STORE = KINDS


def run_some(calls: str, code: int, kind: str = SINGLY, share: float = 0.0) -> Counter[str]:
    """Run the cases of a kind of call and script, in every directory, at the first moment and a share of the others."""
    counts: Counter[str] = Counter()
    for case in cases((code,)):
        if (case.calls, case.kind) == (calls, kind):
            run_case(case, Random(str(case)), counts, share)
    return counts


@pytest.mark.long_except("EIO", "EUCLEAN", "EROFS", reason="the bookie treats all errors of the list alike")
@pytest.mark.parametrize("name", DISK_FAILURES)
def test_every_error_that_means_a_failing_disk_leaves_the_other_disks_alone(name: str) -> None:
    assert run_some("every call", getattr(errno, name))["starts"] >= 9


@pytest.mark.long_except(
    *(f"{SINGLY}-{calls}" for calls in ("read", "write", "fdatasync", "every call")),
    f"{OF_FILE_SYSTEMS}-syncfs",
    f"{OF_KEY_VALUES}-every call",
    f"{OF_SMALL_TABLES}-every change",
    f"{OF_ONE_STORE}-every call",
    reason="all calls fail in one of these, and each planted defect is found below in the calls that it concerns",
)
@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        *((SINGLY, calls) for calls in CALLS if calls != "syncfs"),
        *((OF_FILE_SYSTEMS, calls) for calls in ("syncfs", "every change", "every call")),
        *((OF_KEY_VALUES, calls) for calls in ("read", "every change", "every call")),
        *((OF_SMALL_TABLES, calls) for calls in ("every change", "every call")),
        *((OF_ONE_STORE, calls) for calls in ("every change", "every call")),
    ],
)
def test_disk_that_fails_in_one_kind_of_call_leaves_the_other_disks_alone(kind: str, calls: str) -> None:
    code = CODES[list(CALLS).index(calls) % len(CODES)]
    assert run_some(calls, code, kind, 0.005)["moments"] > 0


# ---- planted defects ----


def _known_errors(*names: str) -> Plant:
    """Other errors of disks end the process."""
    return replaced(files_module, "_DISK_FAILURES", frozenset(getattr(errno, name) for name in names))


def _few_errors() -> Plant:
    return _known_errors("EIO", "EROFS", "ENXIO", "ENODEV")


def _first_directory_of_a_hidden_file() -> Plant:
    """A file that its disk hides is looked for in the first directory."""

    def file_path(self: EntryLogs, log_id: int, suffix: str) -> str:
        paths = [os.path.join(each, f"{log_id:x}.log{suffix}") for each in self._directories]
        for path in paths:
            with contextlib.suppress(OSError):
                if self.files.exists(path):
                    return path
        return paths[0]

    return replaced(EntryLogs, "file_path", file_path)


def _length_of_a_hidden_file() -> Plant:
    """The bookie ends if it cannot read the length of a file that it has synced."""

    def size(old: Any, self: IndexWriter, ledger_id: int, end: int) -> int:
        return max(int(old(self, ledger_id, end)), self.file_size(ledger_id))

    return around(IndexWriter, "_size", size)


def _reach_by_name() -> Plant:
    """A file of the whole bookie stays on a disk that has its name and does not read it."""

    def is_out_of_reach(self: PlacedFile, files: Any) -> bool:
        try:
            files.exists(self.path)
        except OSError:
            return True
        return False

    return replaced(PlacedFile, "is_out_of_reach", is_out_of_reach)


@pytest.mark.parametrize(
    ("plant", "case"),
    [
        (_few_errors, Case(SINGLY, 1, "every call", errno.EUCLEAN)),
        (_first_directory_of_a_hidden_file, Case(SINGLY, 2, "stat", errno.EIO)),
        (_length_of_a_hidden_file, Case(SINGLY, 1, "open", errno.EIO)),
        (_reach_by_name, Case(SINGLY, 0, "read", errno.EIO)),
    ],
)
def test_planted_defect_is_found(plant: Callable[[], Plant], case: Case) -> None:
    with plant(), pytest.raises(Violation):
        run_case(case, Random(1), Counter(), 0.0)
