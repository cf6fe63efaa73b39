"""Limits an unexpected error to one request, or to its connection, in code that changes no state.

This is for code that reads or decodes. An unexpected error of code that changes the bookie's state must not be caught
here: it ends the process, because the state may be half changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)


class Disconnectable(Protocol):
    """The part of a connection that containment uses."""

    def give_up(self, why: str) -> None:
        """Close the connection and log the reason."""


def refuse_after(error: Exception, client: Disconnectable, refuse: Callable[[], None]) -> None:
    """Log an unexpected error of a request, and refuse the request. If the refusal fails, close the connection."""
    logger.error("a request failed, and is answered EIO: this is a defect of the bookie", exc_info=error)
    try:
        refuse()
    except Exception:
        logger.exception("a refusal failed: this is a defect of the bookie")
        client.give_up("one of its requests failed, and cannot be refused")


def end_undecodable(client: Disconnectable, error: Exception) -> None:
    """Log an unexpected error of decoding, and close the connection.

    Callers raise a `ProtocolError` again by themselves. If this function did, the error would keep its frame, and the
    frame the error: a cycle that only Python's garbage collection frees.
    """
    logger.error("bytes of a peer cannot be decoded: this is a defect of the bookie", exc_info=error)
    client.give_up("its bytes cannot be decoded")
