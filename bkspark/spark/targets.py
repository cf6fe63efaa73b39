"""One log as the target of rows: whether it accepts them, how they are encoded, and the options of its ledgers."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import (
    ConfigurationError,
    LogExists,
    MalformedPayload,
    NoSuchLog,
    NotEnoughBookies,
    UnauthorizedAccess,
)
from bkspark.log.formats import SegmentOwner
from bkspark.log.log import Log
from bkspark.log.schemas import encode_schema
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.writer import LedgerOptions
from bkspark.spark.columns import arrow_schema
from bkspark.spark.connection import connect
from bkspark.spark.formats.compression import Compression
from bkspark.spark.formats.decoding import check_nulls, forbids_null
from bkspark.spark.formats.registry import encoder_of
from bkspark.spark.log_schemas import PAYLOAD_FORMAT_KEY, WritePlan, new_log_plan, planned_write, renamed
from bkspark.spark.options import SourceOptions
from bkspark.spark.stored_ledgers import stored_ledgers
from bkspark.spark.write_options import APPEND, ERROR, check_compression
from bkspark.wire.framing import FRAME_BYTES_MAX

ENTRY_OVERHEAD_BYTES = 1024
"""Bytes of a frame that are reserved for an entry's header, digest and keys, with a margin."""

ENTRY_LIMIT_BYTES = FRAME_BYTES_MAX - ENTRY_OVERHEAD_BYTES

PASSWORDS_MAX = 1000
"""Logs for which a process caches a verified password; above it, the cache is cleared."""

_passwords: dict[tuple[str, str], tuple[list[int], bytes]] = {}
"""By cluster and log: the newest ledger whose password this process has verified."""


@dataclass(frozen=True)
class LogTarget:
    """How rows are written to one log, which option `log` names. It is small and part of every task."""

    options: SourceOptions
    rows: StructType
    plan: WritePlan

    @property
    def log(self) -> str:
        return self.options.log or ""

    def named_log(self) -> Log:
        """Return the log, by this process's client."""
        return Log(connect(self.options).asynchronous, self.log)

    def encoder(self) -> Callable[[pa.RecordBatch], Iterator[EntryBatch]]:
        """Return the function that turns a batch of rows into entries. It raises MalformedPayload as encoders do."""
        plan, options = self.plan, self.options
        kinds = arrow_schema(renamed(self.rows, plan.entries.names))
        codec = Compression(options.compression, options.compression_level)
        encode = encoder_of(plan.payload_format, kinds, options.entry_bytes_target, ENTRY_LIMIT_BYTES, codec).encode
        required = arrow_schema(plan.entries)
        # Spark believes a schema that says NOT NULL, whatever the rows are.
        if not any(map(forbids_null, required)):
            return lambda batch: encode(batch.rename_columns(kinds.names))

        def checked(batch: pa.RecordBatch) -> Iterator[EntryBatch]:
            batch = batch.rename_columns(kinds.names)
            for values, column in zip(batch.columns, required):
                try:
                    check_nulls(values, column)
                except ValueError:
                    raise MalformedPayload(
                        f"column '{column.name}' holds a null that log {self.log} does not take (NOT NULL): filter it "
                        "out, or replace the log (mode overwrite with overwriteSchema=true)"
                    ) from None
            return encode(batch)

        return checked

    def ledger_options(self, owner: SegmentOwner, *, is_shared: bool = False) -> LedgerOptions:
        """Return the options of an attempt's ledgers, or of those that commits share.

        Shared ones are published while they are open, so their acknowledged entries must be durable for any
        `ledgerType`.
        """
        options = self.options
        return LedgerOptions(
            options.ensemble_size,
            options.write_quorum,
            options.ack_quorum,
            "PD_JOURNAL" if is_shared else options.ledger_type,
            metadata={
                **options.ledger_metadata,
                "bkspark.owner": f"{owner.kind}:{owner.owner_id}",
                PAYLOAD_FORMAT_KEY: self.plan.payload_format,
            },
        )


def checked_default(options: SourceOptions, rows: StructType) -> LogTarget:
    """Return how rows are written to a new log.

    Raises:
        ConfigurationError: there is no column, or one that the payload format cannot hold, or no key to encrypt with.
    """
    if not len(rows):
        raise ConfigurationError("the data has no column, so its rows would be lost: select at least one")
    target = LogTarget(options, rows, new_log_plan(options, rows))
    target.encoder()  # a column that the format cannot hold raises here, on the driver
    options.encryption.check_keys()
    return target


async def check_bookies(client: Client, options: SourceOptions) -> None:
    """Raise NotEnoughBookies if fewer bookies accept writes than the ensemble needs."""
    registry = (await client.context()).registry
    writable = await registry.writable()
    if len(writable) < options.ensemble_size:
        read_only = len(await registry.read_only())
        others = f" ({read_only} more are read-only: check their disks)" if read_only else ""
        raise NotEnoughBookies(
            f"option 'ensembleSize' is {options.ensemble_size}, but only {len(writable)} bookies take "
            f"writes{others}: start more, or lower ensembleSize, writeQuorum and ackQuorum"
        )


async def snapshot_if_any(log: Log) -> LogSnapshot | None:
    """Return the log's current list; None if it does not exist."""
    try:
        return await log.snapshot()
    except NoSuchLog:
        return None


async def plan_of(
    client: Client, options: SourceOptions, rows: StructType, snapshot: LogSnapshot | None, *, is_overwrite: bool
) -> WritePlan | None:
    """Return how rows are written to the log that option `log` names; None if nothing is to be written.

    Args:
        snapshot: the log's list, None if it does not exist.

    Raises:
        UnauthorizedAccess: the log's ledgers have another password: with two passwords no client could read all of it.
        LogExists: the log has ledgers, and option ifExists is error.
        SchemaMismatch: the log has another payload format, or columns that the rows do not fit.
        ConfigurationError: the schema is larger than a log can remember.
    """
    if snapshot is not None and not is_overwrite:
        await _check_password(client, options, snapshot)
        if _is_not_wanted(options, snapshot):
            return None
    found = None
    if snapshot is not None and not snapshot.schemas and not is_overwrite:
        from bkspark.spark.inference import shown_by_entries  # tasks import this module, and need nothing of it

        found = await shown_by_entries(client, options, rows, snapshot)
    plan = await planned_write(options, rows, snapshot, found, is_overwrite=is_overwrite)
    check_compression(options, plan.payload_format)
    if plan.is_news:
        encode_schema(plan.change.stored)  # one that is too large raises before any task
    LogTarget(options, rows, plan).encoder()
    return plan


def _is_not_wanted(options: SourceOptions, snapshot: LogSnapshot) -> bool:
    if options.if_exists == APPEND or not len(snapshot):
        return False
    if options.if_exists == ERROR:
        raise LogExists(
            f"log {snapshot.name} holds ledgers already, and option 'ifExists' is error: "
            "write to another log, or use mode overwrite or ifExists append"
        )
    return True


async def _check_password(client: Client, options: SourceOptions, snapshot: LogSnapshot) -> None:
    """Compare the password with that of the log's newest ledger."""
    newest = [listed.ledger_id for listed in await snapshot.ledgers(snapshot.end_ordinal - 1)]
    # A ledger keeps its password.
    key = (options.uri, snapshot.name)
    given, known = options.password, _passwords.get(key)
    if known is not None and known[0] == newest and hmac.compare_digest(known[1], given):
        return
    async for ledger_id, stored in stored_ledgers(client, newest):
        password = stored.metadata.password
        if password is not None and not hmac.compare_digest(password, given):
            raise UnauthorizedAccess(
                f"option '{options.ledger_password.option}' is not the one that log {snapshot.name} is written "
                f"with (its ledger {ledger_id}), and a log is read with one password: set that, or write to "
                "another log",
                ledger_id=ledger_id,
            )
    if len(_passwords) >= PASSWORDS_MAX:
        _passwords.clear()
    _passwords[key] = (newest, given)
