"""Every directory and file name of a bookie, as Apache's bookies lay them out.

<journal directory>/current/   VERSION (cookie), place, <id>.txn
<ledger directory>/current/    VERSION, place, lastMark, lastMark.<i>, lastId, <hex>.log, <hex>/<hex>/<hex>.idx;
                               in the first one fencedDeleted, indexFiles, limbo, positions/ and positions.commit with
                               DbLedgerStorage, and compaction while one runs; <hex>.idx.rebuilt and positions.rebuilt/
                               while an index is rebuilt, positions.replaced/ behind that
"""

from __future__ import annotations

import os

CURRENT = "current"
COOKIE_NAME = "VERSION"
PLACE_NAME = "place"
"""Holds the configured path of its directory, as text: cookies are alike in all, so they do not tell two apart."""


def current(directory: str) -> str:
    """Return where the files of a configured directory lie."""
    return os.path.join(directory, CURRENT)


def cookie_path(directory: str) -> str:
    return os.path.join(directory, CURRENT, COOKIE_NAME)


def place_path(directory: str) -> str:
    return os.path.join(directory, CURRENT, PLACE_NAME)


def encode_place(directory: str) -> bytes:
    return f"{directory}\n".encode("utf-8", "surrogateescape")


def decode_place(data: bytes) -> str:
    """Return what is written in a `place`, whatever it is."""
    return data.decode("utf-8", "surrogateescape").removesuffix("\n")
