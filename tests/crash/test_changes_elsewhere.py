"""What a full or late store lacks is durable in another directory, and the defects that only show there."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_service.storage.index.kept_files import KeptFiles
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.io.kept_key_values import KeptKeyValues
from tests.crash.audit import Violation
from tests.crash.changes_elsewhere import (
    crash_beside,
    remove_after_the_file,
    return_attempt,
    return_old_file,
    scripts,
)
from tests.planting import Plant, around, changed, replaced


@pytest.mark.parametrize(("place", "is_late"), [(0, False), (1, False), (0, True)])
def test_crash_beside_a_full_or_late_directory_loses_nothing(place: int, *, is_late: bool) -> None:
    assert crash_beside(2, place, is_late=is_late, share=0.04) > 10


@pytest.mark.long(
    reason="crashes of ten scripts, each with every disk failing after it; the module's command has all crashes"
)
@pytest.mark.parametrize(("name", "script"), scripts(), ids=lambda each: each if isinstance(each, str) else "")
def test_crash_of_each_script_beside_a_full_or_late_directory_loses_nothing(name: str, script: Any) -> None:
    assert script(0.15) > 20


def _marks_without_the_file() -> Plant:
    """The marks advance, though no directory has what a full store lacks."""
    return replaced(KeptFiles, "save", lambda self, files, disks, changes, avoided: True)


def _file_removed_at_once() -> Plant:
    """The file is removed before its store has what it had."""
    return changed(
        KeptFiles,
        "save",
        lambda old: (
            lambda self, files, disks, changes, avoided: (
                old(self, files, disks, changes, avoided),
                self.remove(files, disks, changes.home),
                True,
            )[2]
        ),
    )


def _file_without_what_was_written() -> Plant:
    """The file has only what was never given to the store, not what the store's memory has."""

    def saved(old: Any, self: KeptKeyValues) -> Any:
        number, _, _ = old(self)
        kept = {key: value for items in self._kept.values() for key, value in items.items()}
        return number, [range_of for range_of, _ in self._removed.values()], kept

    return around(KeptKeyValues, "saved", saved)


def _removals_go_to_the_store() -> Plant:
    """What is removed after the file was written is removed from the store at once."""

    def make(old: Any) -> Any:
        def write(self: KeptKeyValues, puts: Any, removed: Any = ()) -> None:
            if removed and self.is_saved and not self.keeps_any:
                self._store.write(puts, removed)
            else:
                old(self, puts, removed)

        return write

    return changed(KeptKeyValues, "write", make)


def _old_file_counts() -> Plant:
    """A start takes the file over what the store got later."""

    def make(old: Any) -> Any:
        def init(self: KeyValueIndex, *arguments: Any, saved: Any = None, **named: Any) -> None:
            old(self, *arguments, saved=saved, **named)
            if saved is not None and not self.needs_saved:
                assert self._kept is not None
                self._kept.begin(self._commit_number, saved)

        return init

    return changed(KeyValueIndex, "__init__", make)


def _unreadable_file_is_none() -> Plant:
    """A start without the disk of a file does not know that its home lacks something."""

    def find(old: Any, self: KeptFiles, files: Any, home: int) -> None:
        old(self, files, home)
        self.unreadable.clear()

    return around(KeptFiles, "_find", find)


@pytest.mark.parametrize(
    ("plant", "directories"),
    [
        (_marks_without_the_file, 2),
        (_file_removed_at_once, 2),
        (_file_without_what_was_written, 2),
        (_unreadable_file_is_none, 3),
    ],
)
def test_planted_defect_of_changes_elsewhere_is_found(plant: Any, directories: int) -> None:
    with plant(), pytest.raises(Violation):
        crash_beside(directories, 1, is_late=False, share=0.15)


def test_planted_marks_without_the_file_are_found_beside_late_directories() -> None:
    with _marks_without_the_file(), pytest.raises(Violation):
        crash_beside(2, 0, is_late=True, share=0.1)


def test_ledger_that_is_removed_after_the_file_was_made_never_comes_back_in_part() -> None:
    remove_after_the_file()


def test_planted_removal_that_goes_to_the_store_at_once_is_found() -> None:
    with _removals_go_to_the_store(), pytest.raises(Violation):
        remove_after_the_file()


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(("directories", "place"), [(2, 0), (2, 1), (3, 1)])
def test_old_file_that_comes_back_with_its_disk_is_ignored(directories: int, place: int, *, is_recorded: bool) -> None:
    return_old_file(directories, place, is_recorded=is_recorded)


def test_planted_trust_in_an_old_file_is_found() -> None:
    with _old_file_counts(), _no_record_is_needed(), pytest.raises(Violation):
        return_old_file(2, 1, is_recorded=False)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_file_of_an_attempt_that_was_not_recorded_never_counts(*, is_recorded: bool) -> None:
    return_attempt(is_recorded=is_recorded)


def _no_record_is_needed() -> Plant:
    """Without a record of places, the file with the highest number counts."""
    return replaced(KeptFiles, "check_recorded", lambda self, home: None)


def test_planted_trust_in_a_file_without_a_record_is_found() -> None:
    with _no_record_is_needed(), pytest.raises(Violation):
        return_attempt(is_recorded=False)


def _file_counts_without_a_record() -> Plant:
    """The file with the highest number counts, wherever it is."""

    def find(old: Any, self: KeptFiles, files: Any, home: int) -> None:
        had_record, self._had_record = self._had_record, False
        old(self, files, home)
        self._had_record = had_record

    return around(KeptFiles, "_find", find)


def test_planted_trust_in_a_file_that_was_not_recorded_is_found() -> None:
    with _file_counts_without_a_record(), pytest.raises(Violation):
        return_attempt()
