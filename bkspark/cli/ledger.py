"""`bkspark ledger`: create, write, read, show, list, recover and delete ledgers."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from bkspark.cli import ledger_copies, ledger_listing, ledger_metadata
from bkspark.cli.arguments import (
    INPUT_FORMATS,
    OUTPUT_FORMATS,
    Commands,
    Run,
    add_command,
    add_credentials,
    add_quorums,
    bookie_id,
    cluster_uri,
    key_value,
    ledger_password,
    not_negative,
    quorums,
    seconds,
)
from bkspark.cli.changes import record_blocking
from bkspark.cli.cluster import repair_command
from bkspark.cli.connecting import connect
from bkspark.cli.exec_process import exec_replacing_process
from bkspark.cli.output import human_bytes, print_facts, print_json, print_table, progress
from bkspark.errors import ConfigurationError, NoSuchLedger
from bkspark.ids import LEDGER_TYPES

if TYPE_CHECKING:
    from bkspark.blocking import Client, LedgerReader, LedgerWriter
    from bkspark.core.metadata import LedgerMetadata
    from bkspark.entries import EntryBatch
    from bkspark.metadata.ledgers import Versioned


def add_parser(commands: Commands) -> None:
    """Add `bkspark ledger` and its commands."""
    group = commands.add_parser("ledger", help="create, write, read, show, list, recover, delete ledgers")
    ledgers = group.add_subparsers(metavar="COMMAND", required=True, dest="ledger_command")
    _add_creating(_add(ledgers, "create", create, "create a ledger and leave it open"))
    _add_writing(_add(ledgers, "write", write, "write a file's entries to a new ledger"))
    _add_reading(_add(ledgers, "read", read, "print a ledger's entries", takes_id=True))
    _add(ledgers, "show", show, "show what the metadata store knows of a ledger", takes_id=True)
    ledger_listing.add_arguments(_add(ledgers, "list", ledger_listing.list_ledgers, "list ledgers"))
    description = (
        "read every copy of a ledger, and print which bookie has which entries; exit code 1 if a copy is missing"
    )
    _add(ledgers, "locate", ledger_copies.locate, description, takes_id=True)
    repairing = add_command(ledgers, "repair", repair, "find the missing copies of a ledger's entries, and make them")
    repairing.add_argument("ledger", type=not_negative, metavar="ID", help="ledger id")
    description = "write a ledger's metadata to a file, with its password"
    ledger_metadata.add_file(_add(ledgers, "dump", ledger_metadata.dump, description, takes_id=True))
    restoring = _add(
        ledgers, "restore", ledger_metadata.restore, "store the metadata that dump wrote to a file", takes_id=True
    )
    ledger_metadata.add_file(restoring)
    restoring.add_argument("--update", action="store_true", help="replace the metadata of a ledger that exists")
    _add(ledgers, "recover", recover, "fence a ledger against its writer and close it", takes_id=True)
    deleting = _add(ledgers, "delete", delete, "delete a ledger", takes_id=True)
    deleting.add_argument("--if-exists", action="store_true", help="exit with 0 if the ledger does not exist")


def _add(
    ledgers: Commands, name: str, run: Run, description: str, *, takes_id: bool = False
) -> argparse.ArgumentParser:
    parser = add_command(ledgers, name, run, description)
    if takes_id:
        parser.add_argument("ledger", type=not_negative, metavar="ID", help="ledger id")
    add_credentials(parser)
    return parser


def _add_creating(parser: argparse.ArgumentParser) -> None:
    add_quorums(parser)
    parser.add_argument("--id", type=not_negative, metavar="N", help="use this ledger id instead of the next free one")
    parser.add_argument(
        "--metadata", type=key_value, action="append", default=[], metavar="K=V", help="custom metadata of the ledger"
    )
    parser.add_argument(
        "--type",
        choices=[name.lower() for name in LEDGER_TYPES],
        default="pd_journal",
        help="pd_journal: acknowledged when on disk (the default); vd_journal: when in page caches, on disk when the "
        "ledger is closed; vd_bypass_journal: as that, and not written to the journal (docs/relaxed-durability.md)",
    )
    parser.add_argument(
        "--striped", action="store_true", help="let the ensemble of a vd_ ledger be above its write quorum"
    )
    parser.add_argument(
        "--changes-ensemble", action="store_true", help="replace lost bookies of a vd_ ledger, which takes memory"
    )


def _add_writing(parser: argparse.ArgumentParser) -> None:
    _add_creating(parser)
    parser.add_argument(
        "--format", choices=INPUT_FORMATS, default="lines", help="how the file divides entries (default: %(default)s)"
    )
    parser.add_argument("--no-close", action="store_true", help="leave the ledger open")
    parser.add_argument(
        "--explicit-lac-interval",
        type=seconds,
        metavar="SECONDS",
        help="send the last confirmed entry to the bookies after this time without a new entry, so that readers see "
        "the end of a burst (default: with the next entry, or at the close)",
    )
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="file to write (default: -, stdin)")


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", type=not_negative, default=0, dest="first_entry", metavar="A", help="first entry")
    parser.add_argument("--to", type=not_negative, dest="last_entry", metavar="B", help="last entry, included")
    parser.add_argument(
        "--format", choices=OUTPUT_FORMATS, help="how entries are printed (default: lines; json with --json)"
    )
    parser.add_argument("--recover", action="store_true", help="fence the ledger and close it first")
    parser.add_argument(
        "--bookie",
        type=bookie_id,
        metavar="ID",
        help="read only the copies of this bookie; skip entries that it lacks",
    )
    parser.add_argument(
        "--if-exists", action="store_true", help="print the entries of A to B that there are, even if there are none"
    )
    tail = parser.add_mutually_exclusive_group()
    tail.add_argument(
        "--unconfirmed", action="store_true", help="read beyond the last confirmed entry; such entries may disappear"
    )
    tail.add_argument("--follow", action="store_true", help="wait for new entries until the ledger is closed")


# ---- create and write ----


def create(arguments: argparse.Namespace) -> int:
    """Create a ledger; it stays open."""
    ensemble, write_quorum, ack_quorum = quorums(arguments)
    with connect(arguments) as client:
        writer = _create(client, arguments, ensemble, write_quorum, ack_quorum)
        writer.abandon()
        if arguments.json:
            print_json({"ledger": writer.ledger_id})
        else:
            print(f"ledger {writer.ledger_id} created, open")
    return 0


def write(arguments: argparse.Namespace) -> int:
    """Write the entries of a file or of stdin to a new ledger and close it."""
    ensemble, write_quorum, ack_quorum = quorums(arguments)
    interval_s = arguments.explicit_lac_interval
    with opened(arguments.file) as source, connect(arguments, explicit_lac_interval_s=interval_s) as client:
        writer = _create(client, arguments, ensemble, write_quorum, ack_quorum)
        progress(f"writing to ledger {writer.ledger_id}")
        entry_count = _write_entries(client, writer, source, arguments)
        if arguments.no_close:
            writer.abandon()
        else:
            writer.close()
        facts = {
            "ledger": writer.ledger_id,
            "entries": entry_count,
            "bytes": writer.length,
            "last_entry": writer.last_entry,
            "closed": not arguments.no_close,
        }
    if arguments.json:
        print_json(facts)
    else:
        state = "open" if arguments.no_close else "closed"
        print(f"ledger {facts['ledger']}: {entry_count} entries, {human_bytes(facts['bytes'])}, {state}")
    return 0


def _create(
    client: Client, arguments: argparse.Namespace, ensemble: int, write_quorum: int, ack_quorum: int
) -> LedgerWriter:
    from bkspark.core.relaxed import RelaxedDurability

    return client.create(
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        ledger_type=arguments.type.upper(),
        relaxed=RelaxedDurability(striped=arguments.striped, changes_ensemble=arguments.changes_ensemble),
        metadata=dict(arguments.metadata),
        ledger_id=arguments.id,
    )


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """Open a file of entries; `-` is stdin.

    Raises:
        ConfigurationError: it cannot be read.
    """
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        source = open(name, "rb")  # noqa: SIM115 - closed below, outside the try
    except OSError as error:
        raise ConfigurationError(
            f"FILE {name!r} cannot be read: {error.strerror}; name a file, or - for stdin"
        ) from error
    with source:
        yield source


def _write_entries(client: Client, writer: LedgerWriter, source: BinaryIO, arguments: argparse.Namespace) -> int:
    """Append every entry of the source, pipelined; return their count once all are acknowledged.

    If the input is invalid, the new ledger is deleted: no other client knows its id yet.
    """
    from bkspark.cli import entry_formats

    name = "stdin" if arguments.file == "-" else repr(arguments.file)
    entry_count = 0
    try:
        for batch in entry_formats.read_entries(source, arguments.format, name):
            # Waits for room in the writer's window, so memory is bounded; a failure comes up here or in `sync`.
            writer.submit(batch)
            entry_count += len(batch)
        writer.sync()
    except ConfigurationError:
        writer.abandon()
        client.delete(writer.ledger_id)
        raise
    return entry_count


# ---- read ----


def read(arguments: argparse.Namespace) -> int:
    """Print entries up to the last confirmed one, or as they come."""
    from bkspark.cli import entry_formats

    format_batch = entry_formats.formatter(arguments.format or ("json" if arguments.json else "lines"))
    is_empty = arguments.last_entry is not None and arguments.last_entry < arguments.first_entry
    if is_empty and not arguments.if_exists:
        raise ConfigurationError(f"--from {arguments.first_entry} lies after --to {arguments.last_entry}; swap them")
    with connect(arguments) as client:
        if arguments.bookie is not None:
            for batch in _copies(client, arguments):
                sys.stdout.buffer.write(format_batch(batch))
            return 0
        reader = client.open(arguments.ledger, recover=arguments.recover)
        batches = _followed(reader, arguments) if arguments.follow else _present(reader, arguments)
        for batch in batches:
            sys.stdout.buffer.write(format_batch(batch))
            if arguments.follow:
                sys.stdout.buffer.flush()
    return 0


def _present(reader: LedgerReader, arguments: argparse.Namespace) -> Iterator[EntryBatch]:
    last = reader.last_unconfirmed if arguments.unconfirmed else reader.last_entry
    for option, entry in (("--from", arguments.first_entry), ("--to", arguments.last_entry)):
        # Reading an empty ledger from entry 0 on is not an error.
        if entry and entry > last and not arguments.if_exists:
            raise ConfigurationError(
                f"{option} {entry} lies after the last {'held' if arguments.unconfirmed else 'confirmed'} entry of "
                f"ledger {arguments.ledger}, {last}; choose an entry of 0 to {last}, or --follow to wait for it"
            )
    end_entry = last + 1 if arguments.last_entry is None else min(arguments.last_entry, last) + 1
    if end_entry <= arguments.first_entry:
        return iter(())
    return reader.batches(arguments.first_entry, end_entry, unconfirmed=arguments.unconfirmed)


def _copies(client: Client, arguments: argparse.Namespace) -> Iterator[EntryBatch]:
    """Return the entries of one bookie's copy."""
    from bkspark.blocking.loop import iterate

    first, last, password = arguments.first_entry, arguments.last_entry, ledger_password(arguments)
    return iterate(
        lambda: ledger_copies.copies_at(client.asynchronous, arguments.ledger, arguments.bookie, first, last, password)
    )


def _followed(reader: LedgerReader, arguments: argparse.Namespace) -> Iterator[EntryBatch]:
    for batch in reader.follow(arguments.first_entry):
        if arguments.last_entry is None or batch.last_entry < arguments.last_entry:
            yield batch
            continue
        yield batch.slice(0, arguments.last_entry + 1 - batch.first_entry)
        return


# ---- metadata ----


def show(arguments: argparse.Namespace) -> int:
    """Print a ledger's metadata."""
    from bkspark.blocking import run

    with connect(arguments) as client:

        async def read_versioned() -> Versioned:
            context = await client.asynchronous.context()
            return await context.ledgers.read(arguments.ledger)

        stored = run(read_versioned)
    facts = _described(arguments.ledger, stored.metadata, stored.version, stored.ctime_ms)
    if arguments.json:
        print_json(facts)
        return 0
    fragments = facts.pop("fragments")
    custom = facts.pop("custom_metadata")
    facts["ctime"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["ctime"] / 1000))
    print_facts(facts | {f"metadata {name}": value for name, value in custom.items()})
    print()
    rows = [(f["first_entry"], f["last_entry"], f["bookies"]) for f in fragments]
    print_table(("first entry", "last entry", "bookies"), rows)
    return 0


def _described(ledger_id: int, metadata: LedgerMetadata, version: int, ctime_ms: int) -> dict[str, Any]:
    following = [fragment.first_entry for fragment in metadata.fragments[1:]]
    # The last fragment of a ledger that is not closed has no last entry yet.
    lasts = [*(entry - 1 for entry in following), metadata.last_entry if metadata.is_closed else None]
    return {
        "ledger": ledger_id,
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "type": metadata.type_name.lower(),
        "digest": metadata.digest.name.lower(),
        "last_entry": metadata.last_entry,
        "length": metadata.length,
        "fragments": [
            {"first_entry": f.first_entry, "last_entry": last, "bookies": list(f.bookies)}
            for f, last in zip(metadata.fragments, lasts)
        ],
        "custom_metadata": {
            name: bytes(value).decode("utf-8", "backslashreplace") for name, value in metadata.custom_metadata.items()
        },
        "ctime": metadata.ctime if metadata.ctime is not None else ctime_ms,
        "version": version,
    }


def repair(arguments: argparse.Namespace) -> int:
    """Replace this process by the program that checks and repairs; never returns."""
    settings = {"metadataServiceUri": cluster_uri(arguments)}
    command = repair_command("repair", str(arguments.ledger), settings=settings, json=arguments.json)
    if arguments.client_config is not None:
        command[4:4] = ["--config", str(arguments.client_config)]
    exec_replacing_process(command)


def recover(arguments: argparse.Namespace) -> int:
    """Fence a ledger, find its end and close it."""
    with connect(arguments) as client:
        metadata = client.recover(arguments.ledger)
        record_blocking(client, f"close ledger {arguments.ledger} at entry {metadata.last_entry}")
    if arguments.json:
        print_json({"ledger": arguments.ledger, "last_entry": metadata.last_entry, "length": metadata.length})
    else:
        print(f"ledger {arguments.ledger} is closed at entry {metadata.last_entry}, {human_bytes(metadata.length)}")
    return 0


def delete(arguments: argparse.Namespace) -> int:
    """Delete a ledger."""
    is_deleted = True
    with connect(arguments) as client:
        try:
            client.delete(arguments.ledger)
            record_blocking(client, f"delete ledger {arguments.ledger}")
        except NoSuchLedger:
            if not arguments.if_exists:
                raise
            is_deleted = False
    if arguments.json:
        print_json({"ledger": arguments.ledger, "deleted": is_deleted})
    else:
        print(f"ledger {arguments.ledger} {'deleted' if is_deleted else 'does not exist'}")
    return 0
