"""Encryption of ledgers at the client: the key file, and keys of single ledgers. The format is
`bkspark.wire.encrypted_entries`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from bkspark.changed_files import is_pipe
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, DecryptionFailed
from bkspark.options import check
from bkspark.secret_files import read_file
from bkspark.wire.encrypted_entries import KEY_BYTES, RECORD_KEY, EncryptionRecord, EntryOpener, EntrySealer, KeyRing


@dataclass(frozen=True, slots=True)
class EncryptionOptions:
    """How a client encrypts new ledgers, and opens encrypted ones. Raises ConfigurationError if a field is wrong.

    The key file is read again for each ledger that is created or opened, so an appended key is used at once.

    Args:
        key_file: file of key-encryption keys; new ledgers are encrypted with its last key. None: new ledgers are clear,
            and encrypted ones cannot be read.
        option: the name of the key file's option in messages.
        shows_sealed: True: if the key of a ledger is not in the file, its entries are returned as they are stored, in
            batches with `sealed_with`. False: reading them is an error.
    """

    key_file: str | None = None
    option: str = "encryption_key_file"
    shows_sealed: bool = False

    def __post_init__(self) -> None:
        check(self)

    def check_keys(self) -> None:
        """Read the key file.

        Raises:
            ConfigurationError: it cannot be read, or a line is not a key; or the package `cryptography` is missing.
        """
        if self.key_file is not None:
            self._ring()[0].wrap(bytes(KEY_BYTES))

    def new_ledger(self) -> NewLedgerKey | None:
        """Return a key for a ledger that is about to be created; None: it will be clear. Raises as `check_keys`."""
        if self.key_file is None:
            return None
        key = secrets.token_bytes(KEY_BYTES)
        return NewLedgerKey(key, self._ring()[0].wrap(key))

    def opener(self, ledger_id: int, custom_metadata: Mapping[str, bytes]) -> LedgerOpener:
        """Return the opener of a ledger's entries; the key file is not read yet."""
        return LedgerOpener(self, ledger_id, custom_metadata)

    def ledger_key(self, record: EncryptionRecord) -> bytes:
        """Return a ledger's key. Raises DecryptionFailed if the file lacks the key that it was wrapped with."""
        if self.key_file is None:
            raise DecryptionFailed(
                f"ledger {record.ledger_id} is encrypted with key {record.key_id!r}, and no key file is given: give "
                f"{self.option}",
                ledger_id=record.ledger_id,
            )
        ring, shown = self._ring()
        return ring.unwrap(record, shown)

    def has(self, key_id: str) -> bool:
        """Return whether the key file has a key of this id."""
        return self.key_file is not None and key_id in self._ring()[0]

    def _ring(self) -> tuple[KeyRing, str]:
        assert self.key_file is not None
        shown = f"{self.option} {self.key_file}"
        if is_pipe(self.key_file):
            raise ConfigurationError(
                f"{shown}: it is a pipe, which has its keys once, and they are read for each ledger: give a file"
            )
        return KeyRing.parse(read_file(self.key_file, shown, is_secret=True), shown), shown


NO_KEYS = EncryptionOptions()


def opening_metadata(custom_metadata: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the part of a ledger's custom metadata that is needed to open its entries."""
    return {RECORD_KEY: custom_metadata[RECORD_KEY]} if RECORD_KEY in custom_metadata else {}


class NewLedgerKey:
    """The key of a ledger that is being created, for its writer alone."""

    def __init__(self, key: bytes, record: bytes) -> None:
        self._key = key
        self.record = record
        """The ledger's custom metadata under RECORD_KEY."""

    def sealer(self, ledger_id: int) -> EntrySealer:
        """Return the sealer of the ledger's entries. Call it once: two sealers would use the same nonces."""
        return EntrySealer(ledger_id, self._key)


class LedgerOpener:
    """Opens the entries of one ledger; those of a ledger that is not encrypted are returned as they are.

    The key is looked for when the first entries come.
    """

    def __init__(self, options: EncryptionOptions, ledger_id: int, custom_metadata: Mapping[str, bytes]) -> None:
        self._options = options
        self._ledger_id = ledger_id
        self._custom_metadata = custom_metadata
        """The ledger's. They have its encryption record, if it is encrypted."""
        self._entries: EntryOpener | None = None
        """Opens entries; None in a clear ledger and without the key. Set once, by the first entries."""
        self._sealed_with: str | None = None
        """The id of the missing key, if entries are returned as they are stored; otherwise None. Set once."""
        self._is_ready = False
        """Whether the key was looked for. Set once."""

    def check(self) -> None:
        """Raise if entries could not be opened.

        Raises:
            DecryptionFailed: the key is missing or wrong, or the record in the metadata is damaged.
            ConfigurationError: the key file cannot be used.
        """
        if self._is_ready:
            return
        record = EncryptionRecord.of(self._ledger_id, self._custom_metadata)
        if record is not None:
            if self._options.shows_sealed and not self._options.has(record.key_id):
                self._sealed_with = record.key_id
            else:
                self._entries = EntryOpener(self._ledger_id, self._options.ledger_key(record))
        self._is_ready = True

    def open(self, batch: EntryBatch) -> EntryBatch:
        """Return the entries with clear payloads. Raises as `check`, and DecryptionFailed if one was altered."""
        self.check()
        if self._entries is not None:
            return self._entries.open(batch)
        if self._sealed_with is not None:
            return EntryBatch(batch.buffer, batch.offsets, batch.ledger_id, batch.first_entry, self._sealed_with)
        return batch
