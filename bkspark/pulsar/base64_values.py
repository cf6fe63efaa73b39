"""Base64 of many texts at once, as Java's basic decoder reads it. PURE."""

from __future__ import annotations

import re
import string

import numpy as np
import pyarrow as pa

from bkspark.pulsar.malformed import refuse
from bkspark.pulsar.slices import bounds_of

_LETTERS = f"{string.ascii_uppercase}{string.ascii_lowercase}{string.digits}+/"
_PAD, _WRONG = ord("="), 255
_VALUES = np.full(256, _WRONG, np.uint8)
_VALUES[np.frombuffer(_LETTERS.encode(), np.uint8)] = np.arange(64, dtype=np.uint8)
_VALUES[_PAD] = 0
_WHOLE = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def from_base64(texts: pa.Array) -> pa.Array:
    """Return the bytes of each text; null for null. Line breaks and spaces are errors, and padding is required.

    Raises:
        MalformedValues: some texts are not Base64.
    """
    if not len(texts):
        return texts
    try:
        return _decoded(texts)
    except ValueError as error:
        refuse(
            ~np.array([text is None or _WHOLE.fullmatch(text) is not None for text in texts.to_pylist()]), str(error)
        )
        raise


def _decoded(texts: pa.Array) -> pa.Array:
    """As `from_base64`. Raises ValueError if a text is not Base64."""
    data, starts, ends, is_valid = bounds_of(texts)
    low, high = int(starts[0]), int(ends.max())
    if ((ends - starts) % 4).any() or int((ends - starts).sum()) != high - low:
        raise ValueError("its key is not Base64, as its metadata say: its size is not a multiple of four")
    letters = data[low:high]
    pads = np.zeros(len(texts), np.int64)
    if len(letters):
        is_pad = ends > starts
        for back in (1, 2):
            is_pad = is_pad & (data.take(np.maximum(ends - back, 0), mode="clip") == _PAD)
            pads += is_pad
    sextets = _VALUES[letters]
    # If there is padding elsewhere than at the end of a text, there is more of it than the ends have.
    if (sextets == _WRONG).any() or int((letters == _PAD).sum()) != int(pads.sum()):
        raise ValueError("its key is not Base64, as its metadata say")
    groups = sextets.reshape(-1, 4).astype(np.uint32)
    whole = groups[:, 0] << 18 | groups[:, 1] << 12 | groups[:, 2] << 6 | groups[:, 3]
    octets = np.empty((len(whole), 3), np.uint8)
    for place, shift in enumerate((16, 8, 0)):
        octets[:, place] = (whole >> shift) & 0xFF
    sizes = (ends - starts) // 4 * 3
    is_kept = np.ones(octets.size, bool)
    stops = np.cumsum(sizes)
    for back in (1, 2):
        is_kept[(stops - back)[pads >= back]] = False
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(sizes - pads, out=offsets[1:])
    held = pa.py_buffer(octets.reshape(-1)[is_kept])
    bits = None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(texts), [bits, pa.py_buffer(offsets), held])
