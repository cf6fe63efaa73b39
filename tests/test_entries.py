"""What callers may give as entries: many shapes of the same bytes, and clear errors for the rest."""

from __future__ import annotations

import array
import pickle

import numpy as np
import pyarrow as pa
import pytest

from bkspark.entries import EntryBatch, as_batch

NUMBERS = np.arange(24, dtype=np.uint8)


@pytest.mark.parametrize(
    "view",
    [
        memoryview(array.array("i", [1, 2, 3])),
        memoryview(NUMBERS)[::2],
        memoryview(NUMBERS.reshape(4, 6)),
        memoryview(NUMBERS.reshape(4, 6).T),
        memoryview(NUMBERS[5:6].reshape(())),
        memoryview(b""),
    ],
)
def test_memory_view_of_any_shape_is_an_entry_of_its_bytes(view):
    assert list(as_batch([b"before", view, bytearray(b"behind")])) == [b"before", bytes(view), b"behind"]


@pytest.mark.parametrize(
    ("buffer", "offsets"),
    [
        (b"abc", [0, 4]),
        (b"abc", [-1, 2]),
        (b"abc", [2, 0]),
        (b"abc", [0, 3, 1, 3]),
        (memoryview(array.array("i", [1, 2, 3])), [0, 3]),
        (memoryview(b"abcdef")[::2], [0, 3]),
    ],
)
def test_batch_whose_offsets_do_not_ascend_in_a_row_of_octets(buffer, offsets):
    with pytest.raises(ValueError, match="of a batch must"):
        as_batch(EntryBatch(buffer, np.array(offsets, np.int64)))


def test_offsets_that_are_not_an_array():
    with pytest.raises(ValueError, match="offsets"):
        EntryBatch(b"abc", [0, 3])


@pytest.mark.parametrize("entries", [None, 5, object()])
def test_what_is_not_a_collection_is_named(entries):
    with pytest.raises(TypeError, match=f"entries must be .* not {type(entries).__name__}"):
        as_batch(entries)


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_arrow_arrays_with_offsets_slices_and_chunks(type_):
    whole = pa.array(["a", None, "ccc", "", "e"], type_)
    assert list(as_batch(whole.slice(2))) == [b"ccc", b"", b"e"]
    assert list(as_batch(pa.chunked_array([whole.slice(2, 1), whole.slice(3)]))) == [b"ccc", b"", b"e"]
    assert list(as_batch(pa.chunked_array([], type_))) == []
    with pytest.raises(ValueError, match="null"):
        as_batch(whole)


@pytest.mark.parametrize(
    "array_", [pa.array([1]), pa.array([b"abc"], pa.binary(3)), pa.array([b"a"]).dictionary_encode()]
)
def test_arrow_array_of_another_type_is_named(array_):
    with pytest.raises(ValueError, match=r"not from (int64|fixed_size_binary|dictionary)"):
        as_batch(array_)


def test_joined_batches_can_be_pickled():
    """A message of a Spark task contains the rows of a small write, joined."""
    joined = EntryBatch.joined([EntryBatch.of([b"a", b"bc"]), EntryBatch.of([b"d"])])
    assert list(pickle.loads(pickle.dumps(joined))) == [b"a", b"bc", b"d"]
