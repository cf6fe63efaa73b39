"""A streaming copy goes through kills at named stages of its micro-batches: nothing lost, nothing twice, all in order.

Every combination of stage and victim, many times: `python -m tests.spark.kills`.
"""

from __future__ import annotations

import pytest

from tests.spark.copy_job import start
from tests.spark.kills import Campaign

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

KILLS = (
    ("source.read", "task"),
    ("task.wrote", "bookie"),
    ("commit.begun", "connection"),
    ("commit.appended", "worker"),
    ("source.planned", "worker"),
    ("commit.published", "driver"),
)
SECONDS = 300


@pytest.mark.admission_control
def test_stream_through_kills_copies_every_entry_once_and_in_order(spark, cluster, client, tmp_path):
    """Driver, Python worker, executor task, bookie, ZooKeeper connection."""
    with Campaign(cluster, client, tmp_path, f"kills-{tmp_path.name}", seed=11, epochs=(2, 3)) as campaign:
        campaign.start()
        for stage, victim in KILLS:
            campaign.kill(stage, victim)
            if victim != "driver":
                campaign.go_on(victim)
    # Another driver goes on: the session at hand, whose start costs nothing.
    logs = (campaign.source, campaign.target)
    query = start(spark, cluster.uri, *logs, tmp_path, "512k", campaign.application, availableNow=True)
    assert query.awaitTermination(SECONDS)
    result = campaign.check()
    assert result.faults == []
    assert result.kills == len(KILLS)
    assert result.micro_batches >= 2 * len(KILLS)
