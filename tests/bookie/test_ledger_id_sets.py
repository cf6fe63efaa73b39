"""Sets of ledger ids agree with Python's own sets, and no function of them uses numpy's hashes."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bookie_service.storage.ledger_id_sets import common, last_of_each, union, unique, without

ROOT = Path(__file__).parents[2]
OF_ALL_LEDGERS = [
    "gc/gc_policy.py",
    "gc/garbage_collector.py",
    "gc/deletion_proofs.py",
    "storage/index/index.py",
    "storage/index/index_file.py",
    "storage/index/ledger_headers.py",
    "storage/index/manifest.py",
    "storage/index/per_ledger.py",
    "storage/ledger_id_sets.py",
    "storage/ledgers/limbo.py",
]
"""Modules that handle the ids of all ledgers of a bookie."""
HASHING = {"unique", "union1d", "setdiff1d", "setxor1d", "intersect1d", "isin"}


def array(ids: set[int]) -> np.ndarray:
    return np.array(sorted(ids), np.int64)


@pytest.mark.parametrize(
    ("function", "expected"), [(union, set.union), (common, set.intersection), (without, set.difference)]
)
def test_sets_of_ids_are_what_pythons_sets_are(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray], expected: Callable[[set[int], set[int]], set[int]]
) -> None:
    chance = random.Random(1)
    for _ in range(300):
        first, second = (set(chance.choices(range(12), k=chance.randrange(8))) for _ in range(2))
        found = function(array(first), array(second))
        assert found.dtype == np.int64
        assert found.tolist() == sorted(expected(first, second))


def test_ids_in_any_order_come_once_each() -> None:
    assert unique(np.array([5, 1 << 62, 5, 0, 1 << 62], np.int64)).tolist() == [0, 5, 1 << 62]
    assert unique(np.empty(0, np.int64)).tolist() == []


def test_last_of_each_id_is_found_in_the_order_of_the_ids() -> None:
    assert last_of_each(np.array([5, 1 << 62, 5, 0, 1 << 62, 7], np.int64)).tolist() == [3, 2, 5, 4]
    assert last_of_each(np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize("module", OF_ALL_LEDGERS)
def test_no_function_that_keeps_the_interpreters_lock_sees_all_ledgers(module: str) -> None:
    """np.unique of a million ids keeps every thread from running for a quarter of a second."""
    tree = ast.parse((ROOT / "bookie_service" / module).read_text())
    called = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
    }
    assert not called & HASHING
