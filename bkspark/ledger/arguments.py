"""Checks of the arguments of public calls, made before any I/O; every message names the argument and its value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bkspark import options
from bkspark.core.metadata import check_quorums
from bkspark.core.striping import ENSEMBLE_SIZE_MAX
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError
from bkspark.options import flag, instance, whole_number

__all__ = ["custom_metadata", "flag", "instance", "quorums", "seconds", "whole_number"]


def seconds(name: str, value: object, least: float, most: float) -> float:
    """Return an argument that is a number of seconds in bounds; see `options.number`."""
    return options.number(name, value, least, most, "seconds")


def quorums(ensemble: object, write_quorum: object, ack_quorum: object) -> tuple[int, int, int]:
    """Return (E, Qw, Qa) as `int`.

    Raises:
        ConfigurationError: one is not a number of bookies, or E >= Qw >= Qa >= 1 does not hold.
    """
    size = whole_number("ensemble", ensemble, 1, ENSEMBLE_SIZE_MAX)
    write = whole_number("write_quorum", write_quorum, 1, ENSEMBLE_SIZE_MAX)
    ack = whole_number("ack_quorum", ack_quorum, 1, ENSEMBLE_SIZE_MAX)
    try:
        check_quorums(size, write, ack)
    except ValueError as error:
        raise ConfigurationError(f"{error}: E >= Qw >= Qa >= 1 must hold") from None
    return size, write, ack


def custom_metadata(metadata: Mapping[str, bytes | str] | None, argument: str = "metadata") -> dict[str, bytes]:
    """Return custom metadata as it is stored: text as UTF-8. `argument`: its name, for messages.

    Raises:
        ConfigurationError: `metadata` is not a mapping of text to bytes or text.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ConfigurationError(f"{argument} must be a mapping of text to bytes or text, not {metadata!r:.80}")
    stored: dict[str, bytes] = {}
    for name, value in metadata.items():
        if not isinstance(name, str):
            raise ConfigurationError(f"{argument}: the name {name!r} is not text")
        if not isinstance(value, (str, bytes, bytearray, memoryview)):
            raise ConfigurationError(f"{argument}: the value of {name!r} must be bytes or text, not {value!r:.80}")
        try:
            name.encode()
            stored[name] = value.encode() if isinstance(value, str) else bytes(value)
        except UnicodeEncodeError:
            raise ConfigurationError(f"{argument}: {name!r} or its value is not valid Unicode") from None
    return stored


def check_entry_sizes(batch: EntryBatch, limit: int) -> None:
    """Raise ValueError if an entry of the batch has more than `limit` bytes."""
    if batch.payload_bytes > limit:
        largest = int(np.diff(batch.offsets).max())
        if largest > limit:
            raise too_large(largest, limit)


def too_large(entry_bytes: int, limit: int) -> ValueError:
    """Return the error for an entry of more than `limit` bytes."""
    return ValueError(f"an entry of {entry_bytes} bytes is above the limit of {limit} (nettyMaxFrameSizeBytes)")
