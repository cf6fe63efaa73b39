import json

import pytest

from bkspark.errors import ConfigurationError
from bkspark.log.positions import Position
from bkspark.spark.offsets import LogOffset, ManyLogs, OneLog, position_of

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
