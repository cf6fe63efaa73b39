"""Cookies: they say to which bookie directories belong. The same text is in file `VERSION` of every directory and in
the bookie's cookie node.

    line 1   layout version
    layout 3 three lines: bookie id, journal directories, ledger directories
    layout 4 CookieFormat (dataformats.proto) as protobuf text, without indexDirs
    layout 5 the same with all fields; `indexDirs` only if index directories are configured separately. This layout is
    written.

Journal directories are joined by commas; ledger and index directories are `<count>` and the paths, TAB between. Paths
are the configured ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf import text_format

from bkspark.errors import MetadataFormat
from bkspark.metadata.dataformats_pb2 import CookieFormat

LAYOUT_VERSION = 5
LAYOUT_VERSION_MIN = 3
_VERSION = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Cookie:
    """The identity of a bookie's directories. `instance_id` None: the cluster has no id."""

    bookie_id: str
    journal_directories: tuple[str, ...]
    """As configured, in order."""
    ledger_directories: tuple[str, ...]
    """As configured, in order."""
    instance_id: str | None = None
    index_directories: tuple[str, ...] | None = None
    """Directories of Apache's index; None: they are the ledger directories."""

    def differences(self, other: Cookie) -> list[str]:
        """Return a phrase for each fact that differs, `other` being the one found."""
        pairs = [
            ("bookie id", self.bookie_id, other.bookie_id),
            ("journal directories", self.journal_directories, other.journal_directories),
            ("ledger directories", self.ledger_directories, other.ledger_directories),
            ("cluster instance id", self.instance_id, other.instance_id),
            # A cookie without index directories means that they are the ledger directories.
            (
                "index directories",
                self.index_directories or self.ledger_directories,
                other.index_directories or other.ledger_directories,
            ),
        ]
        return [
            f"{what} {_shown(found)} instead of {_shown(expected)}"
            for what, expected, found in pairs
            if expected != found
        ]


def encode(cookie: Cookie) -> bytes:
    """Return the cookie's text, layout 5."""
    message = CookieFormat(
        bookieHost=cookie.bookie_id,
        journalDir=",".join(cookie.journal_directories),
        ledgerDirs=_counted(cookie.ledger_directories),
    )
    if cookie.instance_id is not None:
        message.instanceId = cookie.instance_id
    if cookie.index_directories is not None:
        message.indexDirs = _counted(cookie.index_directories)
    return f"{LAYOUT_VERSION}\n{text_format.MessageToString(message)}".encode()


def decode(data: bytes, where: str) -> Cookie:
    """Return the cookie in a file or node; `where` names it in messages.

    Raises:
        MetadataFormat: damaged, or of an unknown layout.
    """
    try:
        first, _, rest = data.decode().partition("\n")
        if not _VERSION.fullmatch(first):
            raise ValueError(f"its first line is {first[:20]!r}, not a layout version such as {LAYOUT_VERSION}")
        version = int(first)
        if not LAYOUT_VERSION_MIN <= version <= LAYOUT_VERSION:
            raise ValueError(f"its layout version is {version}, known are {LAYOUT_VERSION_MIN} to {LAYOUT_VERSION}")
        if version == LAYOUT_VERSION_MIN:
            bookie_id, journals, ledgers = rest.split("\n")[:3]
            return Cookie(bookie_id, tuple(journals.split(",")), _uncounted(ledgers))
        message = text_format.Parse(rest, CookieFormat())
        return Cookie(
            message.bookieHost,
            tuple(message.journalDir.split(",")),
            _uncounted(message.ledgerDirs),
            message.instanceId if message.HasField("instanceId") else None,
            _uncounted(message.indexDirs) if message.HasField("indexDirs") else None,
        )
    except (ValueError, text_format.ParseError) as error:
        raise MetadataFormat(f"the cookie in {where} cannot be read: {error}") from None


def _counted(directories: Sequence[str]) -> str:
    return "\t".join((str(len(directories)), *directories))


def _uncounted(text: str) -> tuple[str, ...]:
    count, *directories = text.split("\t")
    if int(count) != len(directories):
        raise ValueError(f"it says {count} directories and lists {len(directories)}")
    return tuple(directories)


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
