"""`bkspark dump`: what is in a bookie's files, which checksums hold, what is damaged and where.

The reader belongs to the server's package, which this one must not import: the process is replaced by it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bkspark.cli.arguments import Commands, add_environment, add_json, key_value, not_negative

_DESCRIPTION = """\
Print a bookie's files and check every checksum in them, entry by entry. Takes no lock and changes nothing, so a running
bookie can be looked at; what it is just writing is shown as incomplete.

exit code: 0 nothing is damaged, 1 something is (each with file and offset), 2 wrong usage"""

_KINDS = {
    "journal": (
        "journal files (*.txn)",
        "Records of a journal in order: ledger keys, fences, explicit LACs, entries. A record that was durable\n"
        "once and fails its checksum is damage; a last one that is not complete was never acknowledged.",
    ),
    "entry-log": (
        "entry logs (*.log)",
        "Entries of an entry log. Each is checked against the digest that its writer sealed it with (CRC32C, CRC32,\n"
        "or a MAC with the password of BKSPARK_PASSWORD or BKSPARK_PASSWORD_FILE); '-' where a ledger has another\n"
        "one, or none.",
    ),
    "index": (
        "index files of ledgers (*.idx)",
        "Headers and positions of ledgers. Each position is followed to its entry log: it must point to that entry.",
    ),
    "marks": (
        "last log marks and last log ids",
        "Where replay of each journal would begin, and the number of the newest entry log.",
    ),
    "garbage": (
        "files of garbage collection (compaction, fencedDeleted)",
        "The compaction that is under way, or that the next start finishes; ledgers that were fenced and are deleted.\n"
        "A bookie without either is in order.",
    ),
}

_WITH_ENTRIES = ("journal", "entry-log")

_EXAMPLES = """\
examples:
  bkspark dump {kind} /data/bookie1                a bookie's folder: all of them below it
  bkspark dump {kind} --config bk_server.conf      the directories that a configuration names
  bkspark dump {kind} --ledger 17 --entry 4 DIR    only this entry"""


def add_parser(commands: Commands) -> None:
    """Add `bkspark dump` and its kinds."""
    parser = commands.add_parser("dump", help="print and check a bookie's files", description=_DESCRIPTION)
    kinds = parser.add_subparsers(metavar="KIND", required=True, dest="kind")
    for kind, (what, description) in _KINDS.items():
        each = kinds.add_parser(kind, help=what, description=description, epilog=_EXAMPLES.format(kind=kind))
        each.add_argument("paths", nargs="*", metavar="PATH", help=f"{what}, or a directory or folder of a bookie")
        each.add_argument("--ledger", type=not_negative, metavar="ID", help="only this ledger")
        each.add_argument("--entry", type=not_negative, metavar="ID", help="only this entry of every ledger shown")
        each.add_argument("--config", type=Path, metavar="FILE", help="take the directories from a bk_server.conf")
        add_environment(each)
        each.add_argument(
            "--set",
            type=key_value,
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="one key; overrides the file",
        )
        add_json(each)
        if kind in _WITH_ENTRIES:
            each.add_argument(
                "--payloads", choices=("string", "hex"), help="also print each entry's payload; with --json as base64"
            )
        each.set_defaults(run=run, payloads=None)


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the reader; never returns."""
    command = [sys.executable, "-m", "bookie_service.admin.dump", arguments.kind]
    for name in ("ledger", "entry", "config", "payloads"):
        value = getattr(arguments, name)
        command += [] if value is None else [f"--{name}", str(value)]
    command += ["--environment"] if arguments.environment else []
    for key, value in arguments.set:
        command += ["--set", f"{key}={value}"]
    command += ["--json"] if arguments.json else []
    os.execv(command[0], [*command, "--", *arguments.paths])
