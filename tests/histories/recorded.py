"""Clients whose calls are recorded: ledgers and logs of `bkspark.client`, each call with its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bkspark.client import Client, LedgerReader, LedgerWriter
from bkspark.core.metadata import LedgerMetadata, LedgerType
from bkspark.errors import LedgerClosed, NoSuchEntry
from bkspark.log.log import Log
from bkspark.log.positions import EARLIEST, Position, PositionRange
from bkspark.log.writer import LogWriter
from tests.histories.recording import Operation, Recorder, value_of


class RecordedWriter:
    """A ledger's writer."""

    def __init__(self, recorder: Recorder, writer: LedgerWriter, name: str = "owner") -> None:
        self._recorder = recorder
        self._writer = writer
        self._name = name
        self._asked: dict[str, object] = {"relaxed": True} if LedgerType(writer.metadata.type_name).is_relaxed else {}
        self._next_entry = 0
        self._is_closed = False

    async def submit(self, payloads: Sequence[bytes]) -> asyncio.Future[int]:
        """`LedgerWriter.submit`."""
        values = [value_of(payload) for payload in payloads]
        operation = self._begin("append", first=self._next_entry, values=values, **self._asked)
        try:
            future = await self._writer.submit(payloads)
        except LedgerClosed as error:
            # A writer that was closed takes nothing; one that has failed may have sent it.
            (operation.failed if self._is_closed else operation.unknown)(error)
            raise
        except BaseException as error:
            operation.unknown(error)
            raise
        self._next_entry += len(payloads)
        future.add_done_callback(lambda done: _acknowledged(operation, done, len(payloads)))
        return future

    async def sync(self) -> int:
        """`LedgerWriter.sync`."""
        operation = self._begin("sync")
        try:
            last_entry = await self._writer.sync()
        except BaseException as error:
            operation.unknown(error)
            raise
        operation.ok(last_entry=last_entry)
        return last_entry

    async def close(self) -> LedgerMetadata:
        """`LedgerWriter.close`."""
        operation = self._begin("close")
        try:
            metadata = await self._writer.close()
        except BaseException as error:
            operation.unknown(error)
            raise
        self._is_closed = True
        operation.ok(last_entry=metadata.last_entry, length=metadata.length)
        return metadata

    def _begin(self, op: str, **facts: object) -> Operation:
        return self._recorder.begin(op, self._name, ledger=self._writer.ledger_id, **facts)


def _acknowledged(operation: Operation, done: asyncio.Future[int], count: int) -> None:
    if operation.result is not None:
        return  # the recording is over
    if done.cancelled() or done.exception() is not None:
        operation.unknown(None if done.cancelled() else done.exception())
    else:
        operation.ok(first=done.result() - count + 1)


async def recover(recorder: Recorder, client: Client, ledger_id: int, name: str = "recoverer") -> LedgerMetadata:
    """`Client.recover`."""
    operation = recorder.begin("recover", name, ledger=ledger_id)
    try:
        metadata = await client.recover(ledger_id)
    except BaseException as error:
        operation.unknown(error)
        raise
    operation.ok(last_entry=metadata.last_entry, length=metadata.length)
    return metadata


class RecordedReader:
    """A ledger's reader, which never fences."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name
        self._reader: LedgerReader | None = None

    async def look(self, client: Client, ledger_id: int) -> None:
        """Open the ledger; later, look again how far it goes."""
        operation = self._recorder.begin("lac", self._name, ledger=ledger_id)
        try:
            if self._reader is None:
                self._reader = await client.open(ledger_id)
            else:
                await self._reader.refresh()
        except BaseException as error:
            operation.failed(error)
            raise
        if self._reader.is_closed:
            operation.op = "end"
            operation.ok(last_entry=self._reader.last_entry, length=self._reader.length)
        else:
            operation.ok(lac=self._reader.last_entry)

    async def read(self) -> None:
        """Read everything up to the LAC that `look` returned last."""
        assert self._reader is not None
        values: list[str] = []
        operation = self._begin_read(0)
        try:
            async for batch in self._reader.batches():
                values += [value_of(payload) for payload in batch]
        except BaseException as error:
            # Earlier reads count nevertheless.
            if values:
                operation.ok(values=values)
                operation = self._begin_read(len(values))
            if not isinstance(error, NoSuchEntry):
                operation.failed(error)
                raise
            operation.denied(entry=len(values) if error.entry_id is None else error.entry_id)
        else:
            operation.ok(values=values)

    def _begin_read(self, first: int) -> Operation:
        assert self._reader is not None
        return self._recorder.begin("read", self._name, ledger=self._reader.ledger_id, first=first)


async def last_look(recorder: Recorder, client: Client, ledger_id: int) -> None:
    """Read all of a ledger that is closed."""
    reader = RecordedReader(recorder, "last reader")
    await reader.look(client, ledger_id)
    await reader.read()


class RecordedLog:
    """A log, as one client has it; `name` is the client's in the history."""

    def __init__(self, recorder: Recorder, log: Log, name: str) -> None:
        self._recorder = recorder
        self._log = log
        self._name = name

    async def open_for_writing(self, writer: str) -> RecordedLogWriter:
        """`Log.open_for_writing`; each call has another `writer`."""
        operation = self._begin("open", writer=writer)
        try:
            opened = await self._log.open_for_writing()
        except BaseException as error:
            operation.unknown(error)
            raise
        operation.ok()
        return RecordedLogWriter(self._recorder, opened, self._name, writer)

    async def recover(self) -> None:
        """`Log.recover`."""
        operation = self._begin("recover")
        try:
            await self._log.recover()
        except BaseException as error:
            operation.unknown(error)
            raise
        operation.ok()

    async def read(self, start: Position | None = None) -> Position | None:
        """Read from a position, or from the log's beginning, to its end; return the position after the last entry
        read."""
        asked = {} if start is None else {"start": place_of(start)}
        operation = self._begin("read", **asked)
        runs: list[dict[str, object]] = []
        end = start
        try:
            async for batch in self._log.read(EARLIEST if start is None else start):
                values = [value_of(payload) for payload in batch]
                runs.append({"from": [batch.ordinal, batch.ledger_id, batch.first_entry], "values": values})
                end = batch.end
        except BaseException as error:
            operation.failed(error)
            raise
        operation.ok(runs=runs)
        return end

    async def truncate(self, before: Position) -> None:
        """`Log.truncate`."""
        operation = self._begin("truncate", at=place_of(before))
        try:
            await self._log.truncate(before)
        except BaseException as error:
            operation.unknown(error)
            raise
        operation.ok()

    def _begin(self, op: str, **facts: object) -> Operation:
        return self._recorder.begin(op, self._name, log=self._log.name, **facts)


class RecordedLogWriter:
    """A log's writer."""

    def __init__(self, recorder: Recorder, writer: LogWriter, client: str, name: str) -> None:
        self._recorder = recorder
        self._writer = writer
        self._client = client
        self._name = name
        self._submitted = 0

    async def submit(self, payloads: Sequence[bytes]) -> asyncio.Future[PositionRange]:
        """`LogWriter.submit`."""
        values = [value_of(payload) for payload in payloads]
        operation = self._begin("append", first=self._submitted, values=values)
        try:
            future = await self._writer.submit(payloads)
        except BaseException as error:
            operation.unknown(error)
            # Nothing may follow what perhaps is not there.
            self._writer.abandon()
            raise
        self._submitted += len(payloads)
        future.add_done_callback(lambda done: _placed(operation, done))
        return future

    async def roll(self) -> None:
        """`LogWriter.roll`: no operation, as only places change."""
        await self._writer.roll()

    async def close(self) -> None:
        """`LogWriter.close`."""
        operation = self._begin("close")
        try:
            await self._writer.close()
        except BaseException as error:
            operation.unknown(error)
            raise
        operation.ok()

    def abandon(self) -> None:
        """`LogWriter.abandon`."""
        self._writer.abandon()

    def _begin(self, op: str, **facts: object) -> Operation:
        return self._recorder.begin(op, self._client, log=self._writer.name, writer=self._name, **facts)


def _placed(operation: Operation, done: asyncio.Future[PositionRange]) -> None:
    if operation.result is not None:
        return  # the recording is over
    if done.cancelled() or done.exception() is not None:
        operation.unknown(None if done.cancelled() else done.exception())
    else:
        operation.ok(at=place_of(done.result()[0]))


def place_of(position: Position) -> list[int]:
    """Return a position as histories have it: [ordinal, ledger, entry]."""
    return [position.ordinal, position.ledger_id, position.entry_id]
