"""A stream of tiny epochs leaves a ledger for each process that committed, whatever their number; 10,000 of them by
`python -m tests.spark.many_epochs`."""

import pytest

from tests.spark.many_epochs import run_epochs

pytestmark = pytest.mark.cluster


def test_tiny_epochs_leave_a_ledger_for_each_worker_that_committed(cluster, client, tmp_path):
    """10,000 epochs of 100 rows must not leave 10,000 ledgers."""
    left = run_epochs(client, cluster.uri, f"many-{tmp_path.name}", epochs=50, rows=10, partitions=2, worker_epochs=30)
    assert left.is_equal
    assert (left.listed, left.items, left.made, left.pending) == (2, 2, 2, 2)
    assert left.znode_bytes < 4_000  # most of it is the latest times
