"""Random lives of logs: rows are delivered exactly once and in order, or the loss is reported."""

from __future__ import annotations

import uuid

import pytest

from tests.spark.lifecycles import Life

pytestmark = pytest.mark.cluster


def live(client, cluster, seed: int, steps: int) -> None:
    log = f"life-{seed}-{uuid.uuid4().hex[:8]}"
    try:
        Life(client, cluster.uri, log, seed).live(steps)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


def test_rows_of_a_random_life_are_delivered_once_or_their_loss_is_reported(cluster, client):
    for seed in range(2):
        live(client, cluster, seed, 40)


@pytest.mark.long(reason="more seeds of an ordinary test")
def test_rows_of_many_random_lives_are_delivered_once_or_their_loss_is_reported(cluster, client):
    for seed in range(100, 140):
        live(client, cluster, seed, 80)
