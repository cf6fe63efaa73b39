"""`bkspark log`: list, show, create, append to, read, truncate, delete and vacuum named logs.

`log_retention` has the commands for retention.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from bkspark.cli import log_retention
from bkspark.cli.arguments import (
    INPUT_FORMATS,
    OUTPUT_FORMATS,
    Commands,
    Run,
    add_command,
    add_credentials,
    add_quorums,
    key_value,
    place_or_time,
    quorums,
    seconds,
)
from bkspark.cli.changes import record_blocking
from bkspark.cli.connecting import connect
from bkspark.cli.ledger import opened
from bkspark.cli.output import human_bytes, print_json, print_table
from bkspark.errors import ConfigurationError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from bkspark.blocking import LogWriter
    from bkspark.entries import EntryBatch
    from bkspark.log import LogBatch, PositionRange


def add_parser(commands: Commands) -> None:
    """Add `bkspark log` and its commands."""
    group = commands.add_parser("log", help="list, show, write, read, truncate, expire, delete, vacuum named logs")
    logs = group.add_subparsers(metavar="COMMAND", required=True, dest="log_command")
    _add(logs, "list", list_logs, "list the names of all logs", takes_name=False)
    _add(logs, "show", show, "show a log's ledgers, schemas, and which versions (txnAppId) were published last")
    _add(logs, "create", create, "create an empty log")
    _add_appending(_add(logs, "append", append, "append a file's entries to a log, which is created if necessary"))
    _add_reading(_add(logs, "read", read, "print a log's entries"))
    truncating = _add(logs, "truncate", truncate, "delete the ledgers before a position or a time")
    truncating.add_argument(
        "--before",
        required=True,
        type=place_or_time,
        metavar="POSITION|TIME",
        help="the first entry to keep; or an age (7d, 12h) or time (ISO 8601): later entries are kept",
    )
    log_retention.add_retention(
        _add(logs, "retention", log_retention.retention, "show or set how long a log keeps its ledgers")
    )
    log_retention.add_expire(
        _add(logs, "expire", log_retention.expire, "delete the ledgers that retention does not keep", takes_name=False)
    )
    log_retention.add_consumers(
        _add(logs, "consumers", log_retention.consumers, "show the registered readers of a log and their lag")
    )
    _add(logs, "delete", delete, "delete a log and its ledgers")
    vacuuming = _add(logs, "vacuum", vacuum, "delete the ledgers that dead jobs left over")
    vacuuming.add_argument("--older-than", type=seconds, metavar="SECONDS", help="age of a dead job (default: a day)")


def _add(logs: Commands, name: str, run: Run, description: str, *, takes_name: bool = True) -> argparse.ArgumentParser:
    parser = add_command(logs, name, run, description)
    if takes_name:
        parser.add_argument("log", metavar="NAME", help="name of the log")
    add_credentials(parser)
    return parser


def _add_appending(parser: argparse.ArgumentParser) -> None:
    add_quorums(parser)
    parser.add_argument(
        "--metadata", type=key_value, action="append", default=[], metavar="K=V", help="custom metadata of its ledgers"
    )
    parser.add_argument(
        "--format", choices=INPUT_FORMATS, default="lines", help="how the file divides entries (default: %(default)s)"
    )
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="file to append (default: -, stdin)")


def _add_reading(parser: argparse.ArgumentParser) -> None:
    place = "earliest, latest or a position as --json prints it"
    parser.add_argument("--from", default="earliest", dest="start", metavar="POSITION", help=place)
    parser.add_argument("--to", default="latest", dest="end", metavar="POSITION", help="where to stop, not included")
    parser.add_argument(
        "--format", choices=OUTPUT_FORMATS, help="how entries are printed (default: lines; json with --json)"
    )
    parser.add_argument("--recover", action="store_true", help="fence the log's writer and close its ledgers first")
    parser.add_argument("--follow", action="store_true", help="wait for new entries until Ctrl-C")


# ---- the list of ledgers ----


def list_logs(arguments: argparse.Namespace) -> int:
    """Print the names of all logs, sorted."""
    with connect(arguments) as client:
        names = client.logs()
    if arguments.json:
        print_json({"logs": names})
    else:
        sys.stdout.write("".join(f"{name}\n" for name in names))
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print a log's ledgers in order, its retention, the last version of each name that published, and its schemas."""
    with connect(arguments) as client:
        facts = client.log(arguments.log).show()
    if arguments.json:
        print_json(facts)
        return 0
    print(f"log {facts['log']}, version {facts['version']}\n")
    columns = ("ledger", "first_entry", "last_entry", "state", "length")
    print_table([name.replace("_", " ") for name in columns], [[each[c] for c in columns] for each in facts["ledgers"]])
    from bkspark.log import Retention

    kept = Retention.from_json(facts["retention"])
    print(f"\nit keeps {log_retention.shown(kept)}")
    if facts["published"]:
        print("\nlast published version of each name (txnAppId, or the id of a query without one), latest last\n")
        rows = [[each["name"], each["version"], each["query"] or "-"] for each in facts["published"]]
        print_table(["name", "version", "query"], rows)
    for each in facts["schemas"]:
        print(f"\nschema {each['number']}, from ordinal {each['first_ordinal']} on, payload format {each['format']}\n")
        fields = [
            [column["name"], _type_shown(column["type"]), _null_shown(column)] for column in each["schema"]["fields"]
        ]
        print_table(["column", "type", "null"], fields)
    return 0


def _type_shown(kind: object) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind, separators=(",", ":"))


def _null_shown(column: Mapping[str, object]) -> str:
    return "yes" if column["nullable"] else "no"


def create(arguments: argparse.Namespace) -> int:
    """Create an empty log."""
    with connect(arguments) as client:
        client.log(arguments.log).create()
        record_blocking(client, f"create log {arguments.log}")
    return _done(arguments, {}, "created")


def truncate(arguments: argparse.Namespace) -> int:
    """Move a log's start to a position, or to a time."""
    with connect(arguments) as client:
        deleted = client.log(arguments.log).truncate(arguments.before)
        record_blocking(client, f"truncate log {arguments.log} before {arguments.before}, {deleted} ledgers deleted")
    return _done(arguments, {"deleted": deleted}, f"truncated, {deleted} ledgers deleted")


def delete(arguments: argparse.Namespace) -> int:
    """Delete a log and its ledgers."""
    with connect(arguments) as client:
        client.log(arguments.log).delete()
        record_blocking(client, f"delete log {arguments.log}")
    return _done(arguments, {}, "deleted")


def vacuum(arguments: argparse.Namespace) -> int:
    """Delete the ledgers of dead attempts."""
    with connect(arguments) as client:
        log = client.log(arguments.log)
        age_s = arguments.older_than
        deleted = log.vacuum() if age_s is None else log.vacuum(older_than_s=age_s)
        record_blocking(client, f"vacuum log {arguments.log}, {deleted} ledgers deleted")
    return _done(arguments, {"deleted": deleted}, f"vacuumed, {deleted} ledgers deleted")


def _done(arguments: argparse.Namespace, facts: dict[str, object], what: str) -> int:
    if arguments.json:
        print_json({"log": arguments.log, **facts})
    else:
        print(f"log {arguments.log} {what}")
    return 0


# ---- append ----


def append(arguments: argparse.Namespace) -> int:
    """Append the entries of a file or of stdin, as the log's only writer."""
    ensemble, write_quorum, ack_quorum = quorums(arguments)
    with opened(arguments.file) as source, connect(arguments) as client:
        batches = _parsed(source, arguments)
        # Read the first entries before opening the log: input that is wrong from the start must not create a log or
        # fence its writer.
        first = list(itertools.islice(batches, 1))
        with client.log(arguments.log).open_for_writing(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, metadata=dict(arguments.metadata)
        ) as writer:
            appended = _append_all(writer, itertools.chain(first, batches))
    size = human_bytes(appended.bytes)
    return _done(arguments, appended._asdict(), f"has {appended.entries} more entries, {size}")


class _Appended(NamedTuple):
    """What was appended: entries, bytes of their payloads, and the last one's position, None without entries."""

    entries: int
    bytes: int
    last_position: dict[str, int] | None
    """As JSON shows it."""


def _parsed(source: BinaryIO, arguments: argparse.Namespace) -> Iterator[EntryBatch]:
    from bkspark.cli import entry_formats

    name = "stdin" if arguments.file == "-" else repr(arguments.file)
    return entry_formats.read_entries(source, arguments.format, name)


def _append_all(writer: LogWriter, batches: Iterator[EntryBatch]) -> _Appended:
    """Append every entry, pipelined; return what was appended when all entries are acknowledged."""
    entry_count = byte_count = 0
    last: Future[PositionRange] | None = None
    try:
        for batch in batches:
            # Waits for room in the writer's window; entries are acknowledged in order, so the last one confirms all.
            last = writer.submit(batch)
            entry_count += len(batch)
            byte_count += batch.payload_bytes
    except ConfigurationError as error:
        if last is not None:
            last.result()
        writer.close()
        raise ConfigurationError(f"{error}; the {entry_count} entries before it are appended") from error
    position = last.result()[-1].to_json() if last is not None else None
    return _Appended(entry_count, byte_count, position)


# ---- read ----


def read(arguments: argparse.Namespace) -> int:
    """Print entries from one position to another, or as they come."""
    from bkspark.cli import entry_formats

    if arguments.follow and arguments.end != "latest":
        raise ConfigurationError(f"--to {arguments.end} and --follow exclude each other: choose one")
    _check_order(arguments.start, arguments.end)
    name = arguments.format or ("json" if arguments.json else "lines")
    format_batch = format_positions if name == "json" else entry_formats.formatter(name)
    with connect(arguments) as client:
        log = client.log(arguments.log)
        if arguments.recover:
            log.recover()
        batches = log.follow(arguments.start) if arguments.follow else log.read(arguments.start, arguments.end)
        for batch in batches:
            sys.stdout.buffer.write(format_batch(batch))
            if arguments.follow:
                sys.stdout.buffer.flush()
    return 0


def _check_order(start: str, end: str) -> None:
    """Raise ConfigurationError if no log has an entry between two places, because the first is after the second."""
    from bkspark.log.positions import EARLIEST, LATEST, Position, check_offset

    first, last = check_offset("start", start), check_offset("end", end)
    is_wrong = (first, last) == (LATEST, EARLIEST)
    if isinstance(first, Position) and isinstance(last, Position):
        is_wrong = first.ordinal > last.ordinal or (first.ordinal == last.ordinal and first.entry_id > last.entry_id)
    if is_wrong:
        raise ConfigurationError(f"--from {start} lies after --to {end}; swap them")


def format_positions(batch: LogBatch) -> bytes:
    """Return one JSON object a line for each entry: its ledger, entry id, position, and the payload in base64."""
    from bkspark.cli import entry_formats

    return b"".join(
        json.dumps(
            {
                "ledger": batch.ledger_id,
                "entry": position.entry_id,
                "position": position.to_json(),
                **entry_formats.json_value(value, batch),
            }
        ).encode()
        + b"\n"
        for position, value in zip(batch.positions, batch, strict=True)
    )
