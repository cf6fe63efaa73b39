"""Arrays over slices of a buffer, compared with slices by Python."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.pulsar import slices
from bkspark.pulsar.slices import RUN_MIN, binary_array

DATA = np.random.default_rng(5).integers(0, 256, 20_000, np.uint8)


def check(starts: np.ndarray, sizes: np.ndarray, is_valid: np.ndarray | None = None) -> None:
    held = DATA.tobytes()
    wanted = [held[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist())]
    found = binary_array(DATA.data, starts, starts + sizes, is_valid)
    found.validate(full=True)
    nulls = [False] * len(wanted) if is_valid is None else (~is_valid).tolist()
    assert found.to_pylist() == [None if is_null else each for each, is_null in zip(wanted, nulls)]


@pytest.mark.parametrize("gap", [0, 1, 7])
@pytest.mark.parametrize("size", [0, 1, 30])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 500])
def test_slices_of_one_size_at_equal_distances(count, size, gap):
    check(np.arange(count) * (size + gap), np.full(count, size))


@pytest.mark.parametrize("run", [1, 2, RUN_MIN, 40, 150])
def test_slices_of_one_size_in_runs(run):
    starts = np.cumsum(np.where(np.arange(300) % run == 0, 31, 25))
    check(starts, np.full(300, 20))


def test_slices_that_end_with_the_data():
    starts = len(DATA) - 25 * np.arange(200, 0, -1) + 5
    check(starts, np.full(200, 20))


@pytest.mark.parametrize("seed", range(20))
def test_slices_of_any_size_with_nulls(seed):
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 3 + seed, 200)
    starts = np.cumsum(random.integers(0, 3, 200) + np.append(0, sizes[:-1]))
    check(starts, sizes)
    check(starts, sizes, random.random(200) < 0.8)


def test_slice_beyond_the_data_is_an_error():
    starts = len(DATA) - 25 * np.arange(200, 0, -1) + 10
    with pytest.raises(ValueError, match="broadcast"):
        binary_array(DATA.data, starts, starts + 20)


def test_array_has_as_many_bytes_as_its_offsets_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "ARROW_DATA_BYTES_MAX", 4)
    data = memoryview(b"abcdef")
    found = binary_array(data, np.array([1, 3]), np.array([3, 5]))
    assert found.to_pylist() == [b"bc", b"de"]
    with pytest.raises(ValueError, match="5 bytes of payload do not fit one Arrow array"):
        binary_array(data, np.array([1, 3]), np.array([3, 6]))
