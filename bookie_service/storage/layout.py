"""Every directory and file name of a bookie, as Apache's bookies lay them out.

<journal directory>/current/   VERSION (cookie), place, <id>.txn, DIRTY; only in the first one: filePlaces and,
                               while an index is converted, conversion
<ledger directory>/current/    VERSION, place, DIRTY, lastMark, lastMark.<i>, lastId, <hex>.log,
                               <hex>/<hex>/<hex>.idx, and BOOKIE_STATUS after an operator made the bookie read-only
                               or writable.
                               With DbLedgerStorage positions/ and positions.commit.
                               Only in the first one: fencedDeleted, indexFiles, ledgerHeaders, limbo; compaction
                               while one runs; positions/ and positions.commit of a bookie with one index for all
                               directories.
                               While an index is rebuilt: <hex>.idx.rebuilt or positions.rebuilt/, and afterwards
                               positions.replaced/
"""

from __future__ import annotations

import os

CURRENT = "current"
COOKIE_NAME = "VERSION"
PLACE_NAME = "place"
"""Name of the file that contains the configured path of its directory, as text. The cookies in all directories are
equal, so they do not distinguish directories."""
CONVERSION_NAME = "conversion"
"""Name of the file that is in the first journal directory while the index is converted. It contains the name of the new
storage class, as text, or of the command. Earlier builds made it in the first ledger directory."""


STORES_COUNT = b"the new stores count\n"
"""The end of that file once the new key-value stores count, one in each ledger directory."""
REBUILDING = b"--rebuild-index\n"
"""The beginning of that file if a rebuild has made the new stores."""


def current(directory: str) -> str:
    """Return the directory that contains the files of a configured directory."""
    return os.path.join(directory, CURRENT)


def cookie_path(directory: str) -> str:
    return os.path.join(directory, CURRENT, COOKIE_NAME)


def place_path(directory: str) -> str:
    return os.path.join(directory, CURRENT, PLACE_NAME)


def encode_place(directory: str) -> bytes:
    return f"{directory}\n".encode("utf-8", "surrogateescape")


def decode_place(data: bytes) -> str:
    """Return the contents of a `place` file, whatever they are."""
    return data.decode("utf-8", "surrogateescape").removesuffix("\n")
