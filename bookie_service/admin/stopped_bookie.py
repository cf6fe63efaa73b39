"""The files of a bookie that does not run, for commands that change its index."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.metadata import cookies
from bkspark.metadata.cookies import Cookie
from bookie_service.admin.check import locked
from bookie_service.settings.configuration import Configuration
from bookie_service.settings.users import user_name
from bookie_service.storage import layout
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles, is_disk_failure
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.ledgers.storage_class import StorageClass


@dataclass(frozen=True, slots=True)
class StoppedBookie:
    """Where the files are, and how the configured storage stores them. No other process may change them meanwhile.

    journals, ledgers: the `current` directories, in configured order.
    key_values: the options of the store of `DbLedgerStorage`.
    """

    files: LocalFiles
    journals: Sequence[str]
    ledgers: Sequence[str]
    storage_class: StorageClass
    key_values: KeyValueOptions


@contextlib.contextmanager
def holding(configuration: Configuration, purpose: str, *, leaves_out_failing: bool = False) -> Iterator[StoppedBookie]:
    """Hold the directory locks of the configured bookie.

    Args:
        purpose: a verb for messages.
        leaves_out_failing: do not lock ledger directories whose disks fail, except for the first one.

    Raises:
        ConfigurationError: a directory does not exist, or a bookie runs on it.
        OSError: a disk fails.
    """
    service = configuration.service
    files = LocalFiles(configuration.file_group)
    may_fail = service.ledger_directories[1:] if leaves_out_failing else ()
    with locked(files, [*service.journal_directories, *service.ledger_directories], purpose, may_fail):
        yield StoppedBookie(
            files,
            [layout.current(each) for each in service.journal_directories],
            [layout.current(each) for each in service.ledger_directories],
            service.store.storage_class,
            service.store.key_values,
        )


def check_directories(configuration: Configuration, option: str) -> None:
    """Check that the configured directories are those of one bookie of this user.

    `option`: what is run, for the message.

    Raises:
        ConfigurationError: a directory belongs to another user, who could not read what is made here, or to another
            bookie.
        OSError: the disk of a journal fails.
    """
    service = configuration.service
    files = LocalFiles(configuration.file_group)
    for directory in map(layout.current, [*service.journal_directories, *service.ledger_directories]):
        owner = files.other_owner(directory)
        if owner is not None:
            raise ConfigurationError(
                f"directory {directory} belongs to user {user_name(owner)}: run {option} as this user, "
                "otherwise the bookie cannot read the files that it makes"
            )
    check_stamps(files, service.journal_directories, service.ledger_directories, configuration.address.bookie_id)


def check_stamps(
    files: ReadOnlyFiles, journals: Sequence[str], ledgers: Sequence[str], bookie_id: str | None = None
) -> None:
    """Check that all directories belong to one bookie, and each to its place, as a start does (B10).

    A ledger directory whose disk fails is left out: what needs it fails later. Directories none of which has a cookie
    are accepted.

    Args:
        journals, ledgers: as configured, in order.
        bookie_id: the configured id; None: none is configured.

    Raises:
        ConfigurationError: they do not. The message names the directory and the difference.
        OSError: the disk of a journal fails.
    """
    found: dict[str, Cookie | None] = {}
    for directory in dict.fromkeys([*journals, *ledgers]):
        try:
            _check_place(files, directory)
            found[directory] = _cookie(files, directory)
        except OSError as error:
            if directory in journals or not is_disk_failure(error):
                raise
    first = next((cookie for cookie in found.values() if cookie is not None), None)
    if first is None:
        return
    expected = replace(
        first,
        bookie_id=first.bookie_id if bookie_id is None else bookie_id,
        journal_directories=tuple(journals),
        ledger_directories=tuple(ledgers),
    )
    for directory, cookie in found.items():
        if cookie is None:
            raise ConfigurationError(
                f"directory {directory} has no cookie {layout.COOKIE_NAME}, and another one of this bookie has: mount "
                "the right disk, or restore the cookie"
            )
        if differences := expected.differences(cookie):
            raise ConfigurationError(
                f"directory {directory} belongs to another bookie or cluster: {'; '.join(differences)}. Name the "
                "directories of one bookie, as its configuration does"
            )


def _check_place(files: ReadOnlyFiles, directory: str) -> None:
    path = layout.place_path(directory)
    if files.exists(path) and (place := layout.decode_place(files.read_all(path))) != directory:
        raise ConfigurationError(
            f"directory {directory} holds what belongs at {place}: mount or move each where it was"
        )


def _cookie(files: ReadOnlyFiles, directory: str) -> Cookie | None:
    path = layout.cookie_path(directory)
    if not files.exists(path):
        return None
    try:
        return cookies.decode(files.read_all(path), path)
    except MetadataFormat as error:
        raise ConfigurationError(f"{error}: restore it (the other directories of this bookie hold the same)") from None


def show_progress(line: str) -> None:
    """Print a line for people who wait for the command."""
    print(line, file=sys.stderr, flush=True)
