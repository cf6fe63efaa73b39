import json

import pytest

from bkspark.errors import ConfigurationError
from bkspark.log.positions import Position
from bkspark.spark.offsets import LogOffset, ManyLogs, OneLog, position_of
from bkspark.spark.topic_stream import ManyTopics

VALUE = {"entry": 120, "ledger": 17, "log": "clicks", "log_id": "00000000000000aa", "ordinal": 3, "version": 1}


def test_offset_text_is_canonical():
    offset = LogOffset("clicks", "00000000000000aa", Position(3, 17, 120))
    assert json.dumps(offset.to_json()) == json.dumps(VALUE)
    shuffled = dict(reversed(VALUE.items()))
    assert LogOffset.from_json(shuffled, "clicks", "the checkpoint") == offset


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"version": 2}, "version 2"),
        ({"entry": -1}, "entry"),
        ({"entry": True}, "entry"),
        ({"ordinal": 1.5}, "ordinal"),
        ({"ledger": 1 << 63}, "ledger"),
        ({"ledger": -1}, "ledger"),
        ({"more": 1}, "exactly the members"),
        ({"log": 5}, "'log'"),
        ({"log_id": None}, "'log_id'"),
        ({"log": "other"}, "log 'other'"),
    ],
)
def test_wrong_offset_is_one_clear_error(change, part):
    with pytest.raises(ConfigurationError, match=part) as caught:
        LogOffset.from_json(VALUE | change, "clicks", "the checkpoint")
    assert str(caught.value).startswith("the checkpoint")


@pytest.mark.parametrize("form", [OneLog("clicks"), ManyLogs()])
@pytest.mark.parametrize("value", [15, [1], "x", None, {"logs": {"clicks": 15}, "version": 1}])
def test_offset_of_another_source_is_one_clear_error(form, value):
    with pytest.raises(ConfigurationError, match="the checkpoint is"):
        form.from_json(value, "the checkpoint")


def test_wrong_position_names_the_option():
    with pytest.raises(ConfigurationError, match="option 'startingOffsets': position"):
        position_of({"entry": 1, "version": 1}, "option 'startingOffsets'")


TOPIC = "persistent://public/default/clicks"
PLACE = {"entry": 3, "ledger": 12}


@pytest.mark.parametrize(
    "topics",
    [
        {TOPIC: {"-1": PLACE}, "clicks": {"-1": PLACE}},
        {TOPIC: {"0": PLACE, "00": PLACE}},
        {TOPIC: {"0": PLACE}, f"{TOPIC}-partition-0": {"-1": PLACE}},
    ],
)
def test_offset_with_two_positions_of_one_topic_is_refused(topics):
    """One of them would be used, and what lies between them read twice, or not at all."""
    with pytest.raises(ConfigurationError, match="the checkpoint has two positions of topic persistent://"):
        ManyTopics().from_json({"topics": topics, "version": 1}, "the checkpoint")


@pytest.mark.parametrize("partition", ["-2", "--1", "", "x", "1.0", " 1", "1234567890", "+1", "\u0663"])
def test_offset_of_an_impossible_partition_is_refused(partition):
    with pytest.raises(ConfigurationError, match="are not partitions of topic"):
        ManyTopics().from_json({"topics": {TOPIC: {partition: PLACE}}, "version": 1}, "the checkpoint")
