"""The files of a bookie that does not run, for commands that change its index."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bkspark.errors import ConfigurationError
from bookie_service.admin.check import locked
from bookie_service.settings.configuration import Configuration
from bookie_service.settings.users import user_name
from bookie_service.storage import layout
from bookie_service.storage.io.files import LocalFiles
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
def holding(configuration: Configuration, purpose: str) -> Iterator[StoppedBookie]:
    """Hold the directory locks of the configured bookie. `purpose`: a verb for messages.

    Raises:
        ConfigurationError: a directory does not exist, or a bookie runs on it.
    """
    service = configuration.service
    files = LocalFiles(configuration.file_group)
    with locked(files, [*service.journal_directories, *service.ledger_directories], purpose):
        yield StoppedBookie(
            files,
            [layout.current(each) for each in service.journal_directories],
            [layout.current(each) for each in service.ledger_directories],
            service.store.storage_class,
            service.store.key_values,
        )


def check_owner(configuration: Configuration, option: str) -> None:
    """Raise ConfigurationError if the bookie's files belong to another user, who could not read what is made here.

    `option`: what is run, for the message.
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


def show_progress(line: str) -> None:
    """Print a line for people who wait for the command."""
    print(line, file=sys.stderr, flush=True)
