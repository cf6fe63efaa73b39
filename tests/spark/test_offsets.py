import json

import pytest

from bkspark.errors import ConfigurationError
from bkspark.spark.offsets import LogOffset
from bkspark.spark.ranges import Place


def test_offset_text_is_canonical():
    offset = LogOffset("clicks", Place(3, 120), 17)
    text = '{"entry": 120, "ledger": 17, "log": "clicks", "ordinal": 3, "version": 1}'
    assert json.dumps(offset.to_json()) == text
    shuffled = dict(reversed(json.loads(text).items()))
    assert json.dumps(LogOffset.from_json(shuffled, "clicks", "the checkpoint").to_json()) == text


def test_start_of_a_ledger_has_one_text_whether_the_ledger_is_known_or_not():
    assert LogOffset("a", Place(2, 0), 9).to_json() == LogOffset("a", Place(2, 0)).to_json()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"version": 2}, "version 2"),
        ({"version": 1.0}, "version 1.0"),
        ({"entry": -1}, "'entry'"),
        ({"entry": True}, "'entry'"),
        ({"ordinal": 1.5}, "'ordinal'"),
        ({"ledger": 1 << 63}, "'ledger'"),
        ({"ledger": -1}, "'ledger'"),
        ({"log": 5}, "'log'"),
        ({"more": 1}, "exactly the keys"),
        ({"log": "other"}, "log 'other'"),
    ],
)
def test_wrong_offset_is_one_clear_error(change, part):
    value = {"entry": 120, "ledger": 17, "log": "clicks", "ordinal": 3, "version": 1} | change
    with pytest.raises(ConfigurationError, match=part) as caught:
        LogOffset.from_json(value, "clicks", "option 'startingOffsets'")
    assert str(caught.value).startswith("option 'startingOffsets' is")


def test_missing_key_is_one_clear_error():
    with pytest.raises(ConfigurationError, match="exactly the keys"):
        LogOffset.from_json({"entry": 1, "version": 1}, "clicks", "option 'startingOffsets'")
