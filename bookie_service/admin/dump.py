"""Prints a bookie's files: their contents, which checksums hold, and where they are damaged.

    python -m bookie_service.admin.dump journal|entry-log|index|marks|garbage [PATH]...
                                        [--config FILE] [--set KEY=VALUE]... [--ledger ID] [--entry ID] [--json]
                                        [--payloads string|hex]

It reads files of a stopped or running bookie, takes no lock and changes nothing. A record that a running bookie is
still writing is "incomplete", not damaged. Reading continues after damage if the format allows it.

Exit code 0: nothing is damaged; 1: something is, or cannot be read; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bkspark.errors import ConfigurationError, StorageDamaged
from bkspark.secret_files import password_from
from bookie_service.admin.inspection import output, places
from bookie_service.admin.inspection.digests import DigestVerifier
from bookie_service.admin.inspection.entry_log import read_entry_log
from bookie_service.admin.inspection.findings import Damage, Finding
from bookie_service.admin.inspection.garbage import read_garbage_file
from bookie_service.admin.inspection.index import LogLookup, read_index
from bookie_service.admin.inspection.journal import read_journal
from bookie_service.admin.inspection.key_value_index import read_key_value_index
from bookie_service.admin.inspection.ledger_headers import read_ledger_headers
from bookie_service.admin.inspection.marks import highest_mark, read_mark_file
from bookie_service.admin.inspection.output import Counts, Selection
from bookie_service.admin.inspection.payloads import FORMS, Payloads
from bookie_service.admin.inspection.places import BookieFiles
from bookie_service.formats.marks import JournalPosition
from bookie_service.settings.arguments import (
    ServerParser,
    add_configuration,
    describe,
    fail,
    run_reported,
    settings,
    whole_number,
)
from bookie_service.settings.configuration import load
from bookie_service.storage import layout
from bookie_service.storage.io.files import ReadOnlyFiles

_PROGRAM = "bkspark dump"
_WITH_ENTRIES = ("journal", "entry-log")


def main(argv: Sequence[str]) -> int:
    """Print what the arguments name; return the exit code."""
    return run_reported(_PROGRAM, lambda: _main(argv))


def _main(argv: Sequence[str]) -> int:
    try:
        arguments = argument_parser().parse_intermixed_args(argv)
        files = ReadOnlyFiles()
        dump = Dump(files, arguments.kind, _sources(files, arguments), _selection(arguments))
        if arguments.payloads is None:
            return _print(arguments, dump, None)
        if arguments.kind not in _WITH_ENTRIES:
            raise ConfigurationError(f"--payloads: files of kind {arguments.kind} have no payloads")
        with Payloads(files, password_from(os.environ), arguments.payloads) as payloads:
            return _print(arguments, dump, payloads)
    except ConfigurationError as error:
        return fail(_PROGRAM, error, 2)
    except (StorageDamaged, OSError) as error:
        return fail(_PROGRAM, describe(error), 1)
    except KeyboardInterrupt:
        return fail(_PROGRAM, "interrupted", 1)


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments of `bkspark dump`."""
    parser = ServerParser(prog=_PROGRAM, description="Print a bookie's files and check them; see bkspark dump --help.")
    parser.add_argument("kind", choices=list(places.KINDS), metavar="|".join(places.KINDS))
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a file, a directory of a bookie, or its folder")
    parser.add_argument("--ledger", type=whole_number, metavar="ID", help="only this ledger")
    parser.add_argument("--entry", type=whole_number, metavar="ID", help="only this entry of every ledger shown")
    parser.add_argument("--payloads", choices=FORMS, help="also print each entry's payload; with --json as base64")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    add_configuration(parser)
    return parser


def _selection(arguments: argparse.Namespace) -> Selection:
    return Selection(arguments.ledger, arguments.entry)


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one directory of a bookie."""

    directory: str
    paths: Sequence[str]
    bookie: BookieFiles


def _sources(files: ReadOnlyFiles, arguments: argparse.Namespace) -> list[Source]:
    """Return the files to read.

    Raises:
        ConfigurationError: no path was given, or a path does not exist or has no file of the kind.
    """
    if not arguments.paths:
        return _configured(files, arguments)
    if _is_configured(arguments):
        raise ConfigurationError("name either files or a configuration, not both")
    paths = map(os.path.abspath, arguments.paths)
    return [source for path in paths for source in _named(files, path, arguments.kind, arguments.ledger)]


def _is_configured(arguments: argparse.Namespace) -> bool:
    return arguments.config is not None or arguments.environment or bool(arguments.set)


def _configured(files: ReadOnlyFiles, arguments: argparse.Namespace) -> list[Source]:
    if not _is_configured(arguments):
        raise ConfigurationError("name a file, a directory of a bookie, or its configuration with --config or --set")
    service = load(arguments.config, settings(arguments)).service
    bookie = BookieFiles(
        tuple(map(layout.current, service.journal_directories)), tuple(map(layout.current, service.ledger_directories))
    )
    directories = bookie.journals if arguments.kind == "journal" else bookie.ledgers
    for directory in directories:
        if not files.is_directory(directory):
            raise ConfigurationError(f"{directory} does not exist: no bookie with this configuration ever ran here")
    return [
        Source(each, list(places.files_of(files, [each], arguments.kind, arguments.ledger)), bookie)
        for each in directories
    ]


def _named(files: ReadOnlyFiles, path: str, kind: str, ledger_id: int | None) -> list[Source]:
    if files.exists(path) and not files.is_directory(path):
        if not places.KINDS[kind](os.path.basename(path)):
            raise ConfigurationError(f"{path} is not named like a file of kind {kind}; see bkspark dump --help")
        directory = os.path.dirname(path)
        if kind == "index" and not places.is_ledger_headers(path):
            # <current>/<hex>/<hex>/<hex ledger id>.idx
            directory = os.path.dirname(os.path.dirname(directory))
        return [Source(directory, [path], places.bookie_of(files, directory, [directory]))]
    if kind == "index" and places.is_key_value_index(path):
        directory = os.path.dirname(path)
        return [Source(directory, [path], places.bookie_of(files, directory, [directory]))]
    directories = places.directories_below(files, path)
    sources = [
        Source(each, list(places.files_of(files, [each], kind, ledger_id)), places.bookie_of(files, each, directories))
        for each in directories
    ]
    found = [source for source in sources if source.paths]
    if not found and kind not in places.SOMETIMES:
        whose = f" of ledger {ledger_id}" if kind == "index" and ledger_id is not None else ""
        raise ConfigurationError(f"{path} holds no {kind} files{whose}: looked in {', '.join(directories)}")
    return found


@dataclass(frozen=True, slots=True)
class Dump:
    """Which files are read, and which findings are shown."""

    files: ReadOnlyFiles
    kind: str
    """What kind of files they are: "journal", "entry-log", "index" or "marks"."""
    sources: Sequence[Source]
    selection: Selection

    def each_file(self) -> Iterator[tuple[str, Iterator[Finding]]]:
        """Yield (path, findings) for every file."""
        verifier = DigestVerifier(password_from(os.environ))
        for source in self.sources:
            lookup = LogLookup(self.files, source.bookie.ledgers) if self.kind == "index" else None
            for path in source.paths:
                yield path, self._guarded(path, self._findings(path, source, verifier, lookup))
            if lookup is not None:
                lookup.close()

    def _findings(
        self, path: str, source: Source, verifier: DigestVerifier, lookup: LogLookup | None
    ) -> Iterator[Finding]:
        if lookup is not None and places.is_key_value_index(path):
            return read_key_value_index(self.files, path, lookup, self.selection.ledger_id, self.selection.entry_id)
        if lookup is not None and places.is_ledger_headers(path):
            return read_ledger_headers(self.files, path, source.bookie.ledgers)
        if lookup is not None:
            return read_index(self.files, path, lookup, self.selection.entry_id)
        if self.kind == "journal":
            return read_journal(self.files, path, self._mark(source))
        if self.kind == "entry-log":
            return read_entry_log(self.files, path, verifier)
        if self.kind == "garbage":
            return read_garbage_file(self.files, path)
        return read_mark_file(self.files, path)

    def _mark(self, source: Source) -> JournalPosition | None:
        journal_index = source.bookie.journal_index(source.directory)
        return None if journal_index is None else highest_mark(self.files, source.bookie.ledgers, journal_index)

    def _guarded(self, path: str, findings: Iterator[Finding]) -> Iterator[Finding]:
        """Yield the findings. A file that a running bookie deletes meanwhile simply ends."""
        try:
            yield from findings
        except FileNotFoundError:
            return
        except OSError as error:
            yield Damage(path, 0, None, f"cannot be read: {describe(error)}")


def _print(arguments: argparse.Namespace, dump: Dump, payloads: Payloads | None) -> int:
    counts = Counts()
    for path, findings in dump.each_file():
        counts.files += 1
        counted = _counting(findings, counts)
        if arguments.json:
            output.write_json(counted, dump.selection, sys.stdout, payloads)
        else:
            output.write_table(path, counted, dump.selection, sys.stdout, payloads)
    if arguments.json:
        output.write_row(counts.row(), sys.stdout)
    else:
        print(output.summary_line(counts))
    sys.stdout.flush()
    return 1 if counts.damaged else 0


def _counting(findings: Iterator[Finding], counts: Counts) -> Iterator[Finding]:
    for finding in findings:
        counts.add(finding)
        yield finding


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
