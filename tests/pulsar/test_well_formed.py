"""Which entries of a batch are left where some of them are malformed."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.pulsar import message_columns as columns
from bkspark.pulsar.entries import MalformedEntry, decode_entries, well_formed
from bkspark.pulsar.messages import messages_of
from tests.pulsar.entries import Message, batch, single

GOOD = [single(Message(b"a", "key", [("p", "v")]), 1), batch([Message(b"b"), Message(b"c")])]
FIELDS = b"\x0a\x01p\x10\x01\x18\x02"
"""A producer, a sequence id and a publish time."""


def of_metadata(fields: bytes) -> bytes:
    return struct.pack(">I", len(fields)) + fields


MALFORMED = [
    b"",
    b"?",
    GOOD[0][:-1],
    GOOD[0][:-1] + b"?",
    struct.pack(">HH", 0x0E01, 0),
    struct.pack(">HI", 0x0E02, 9),
    of_metadata(b""),
    of_metadata(FIELDS[:3]),
    *(of_metadata(FIELDS + b"\x20\x01" * steps + b"\x0c") for steps in range(40)),
    of_metadata(FIELDS + b"\x20" + b"\xff" * 12),
    of_metadata(FIELDS + b"\x58\x09"),
]


@pytest.mark.parametrize("entry", MALFORMED)
def test_each_of_them_is_malformed(entry: bytes) -> None:
    with pytest.raises(MalformedEntry):
        decode_entries(EntryBatch.of([entry]))


@pytest.mark.parametrize("seed", range(20))
def test_the_others_are_left_in_order(seed: int) -> None:
    chance = random.Random(seed)
    share = chance.choice((0.02, 0.5, 0.98, 1))
    stored = [chance.choice(MALFORMED if chance.random() < share else GOOD) for _ in range(300)]
    first = 7
    parts = list(well_formed(EntryBatch.of(stored, 4, first)))
    found = [int(entry_id) for part in parts for entry_id in part.entry_ids]
    assert found == [first + place for place, entry in enumerate(stored) if entry in GOOD]
    assert all(part.ledger_ids.tolist() == [4] * len(part) for part in parts)
    for part in parts:
        wanted = [stored[entry_id - first] == GOOD[1] for entry_id in part.entry_ids.tolist()]
        assert part.is_batch.tolist() == wanted
        assert all(before < after for before, after in pairwise(part.entry_ids.tolist()))


def test_some_of_a_batch_can_be_decoded() -> None:
    found = decode_entries(EntryBatch.of([GOOD[0], b"?", GOOD[1], b""], 4, 7), only=np.array([0, 2]))
    assert found.entry_ids.tolist() == [7, 9]
    assert found.is_batch.tolist() == [False, True]


@pytest.mark.parametrize("seed", range(5))
def test_part_of_some_entries_is_as_if_these_alone_were_decoded(seed: int) -> None:
    chance = random.Random(seed)
    bytes_as_key = {"partition_key_b64_encoded": True}
    kinds = [
        *GOOD,
        single(Message(b"no key"), 3, txnid_most_bits=1, txnid_least_bits=2),
        single(Message(b"c", "a2V5", [("q", "w"), ("r", "")], event_time=5, more=bytes_as_key), broker=(7, 8)),
    ]
    stored = [chance.choice(kinds) for _ in range(50)]
    chosen = np.array(sorted(chance.sample(range(50), 20)))
    whole = EntryBatch.of(stored, 4, 100)
    part, alone = decode_entries(whole).part(chosen), decode_entries(whole, only=chosen)
    assert part.rows.tolist() == alone.rows.tolist() == chosen.tolist()
    for name in ("ledger_ids", "entry_ids", "payload_starts", "payload_ends", "broker_times", "indexes", "is_batch"):
        assert getattr(part, name).tolist() == getattr(alone, name).tolist(), name
    rows = np.arange(len(chosen))
    for column in (columns.keys, columns.values, columns.properties, columns.event_times, columns.transactions):
        assert column(messages_of(part, rows, {})).equals(column(messages_of(alone, rows, {}))), column.__name__
    again = part.part(np.array([3, 7]))
    assert again.entry_ids.tolist() == (100 + chosen[[3, 7]]).tolist()
