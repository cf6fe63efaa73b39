"""`bkspark ledger dump` and `ledger restore`: a ledger's metadata in a file, in the form in which they are stored.

The file also has the time at which the ledger was created, in Apache's field `ctime`, because a restored node has a new
one: a stream of ledgers would take the ledger for another one. Metadata of format version 1 have no such field.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bkspark.cli import private_files
from bkspark.cli.changes import record_blocking
from bkspark.cli.connecting import connect
from bkspark.cli.output import print_result
from bkspark.errors import ConfigurationError, MetadataFormat

if TYPE_CHECKING:
    from bkspark.metadata.ledgers import Versioned

FILE_BYTES_MAX = 1 << 20


def dump(arguments: argparse.Namespace) -> int:
    """Write a ledger's metadata to a file, password included: the file is readable by its owner alone."""
    from bkspark.blocking import run
    from bkspark.metadata import encoding

    with connect(arguments) as client:

        async def read() -> Versioned:
            return await (await client.asynchronous.context()).ledgers.read(arguments.ledger)

        stored = run(read)
    created_ms = stored.ctime_ms if stored.metadata.ctime is None else stored.metadata.ctime
    data = encoding.encode(replace(stored.metadata, ctime=created_ms))
    try:
        private_files.put(arguments.file, data)
    except OSError as error:
        raise ConfigurationError(f"FILE {str(arguments.file)!r} cannot be written: {error.strerror}") from error
    _print_outcome(arguments, f"the metadata of ledger {arguments.ledger} are in {arguments.file}")
    return 0


def restore(arguments: argparse.Namespace) -> int:
    """Store the metadata in a file as those of a ledger that does not exist, or with --update of one that does."""
    from bkspark.blocking import run
    from bkspark.metadata import encoding

    try:
        with open(arguments.file, "rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"FILE {str(arguments.file)!r} cannot be read: {error.strerror}") from error
    try:
        metadata = encoding.decode(data, arguments.ledger)
    except MetadataFormat as error:
        raise ConfigurationError(f"FILE {str(arguments.file)!r} does not hold metadata of a ledger: {error}") from None
    with connect(arguments) as client:

        async def write() -> None:
            ledgers = (await client.asynchronous.context()).ledgers
            if arguments.update:
                stored = await ledgers.read(arguments.ledger)
                # The file may be of another ledger, or of one that was deleted. The node is the one just read.
                changed = replace(metadata, creation=stored.metadata.creation)
                await ledgers.write(arguments.ledger, changed, stored.version)
            else:
                await ledgers.create(metadata, ledger_id=arguments.ledger)

        run(write)
        how = "replace" if arguments.update else "store"
        record_blocking(client, f"{how} the metadata of ledger {arguments.ledger} from {arguments.file}")
    _print_outcome(arguments, f"ledger {arguments.ledger} has the metadata of {arguments.file}")
    return 0


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the argument FILE."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the file")


def _print_outcome(arguments: argparse.Namespace, sentence: str) -> None:
    print_result({"ledger": arguments.ledger, "file": str(arguments.file)}, sentence, as_json=arguments.json)
