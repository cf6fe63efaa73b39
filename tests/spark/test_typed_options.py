"""Options as a typed value: the same names and checks as those that Spark hands over as texts."""

import json
import typing
from datetime import UTC, datetime

import pytest

import bkspark
from bkspark.errors import ConfigurationError
from bkspark.spark.option_table import OPTIONS
from bkspark.spark.options import SourceOptions
from bkspark.spark.typed_options import Options, OptionTypes

URI = "zk://127.0.0.1:2181/ledgers"


def test_every_option_has_a_type():
    # Names with a point are keys of a mapping: they are not names of Python's.
    plain = {option.name for option in OPTIONS if "." not in option.name}
    assert set(OptionTypes.__annotations__) == plain | {"ledgerMetadata", "bookkeeper", "zookeeper"}
    assert {option.name.partition(".")[0] for option in OPTIONS if "." in option.name} == {"zookeeper"}


def test_typed_values_are_those_of_the_table_where_they_are_few():
    types = typing.get_type_hints(OptionTypes)
    for option in (option for option in OPTIONS if "." not in option.name):
        is_literal = typing.get_origin(types[option.name]) is typing.Literal
        assert (typing.get_args(types[option.name]) if is_literal else ()) == option.choices, option.name


def test_options_of_zookeeper_are_a_mapping_without_their_prefix():
    options = Options(uri=URI, log="a", zookeeper={"client.secure": True, "ssl.trustStore.location": "/t"})
    assert options["zookeeper.client.secure"] == "true"
    assert options["zookeeper.ssl.trustStore.location"] == "/t"
    with pytest.raises(ConfigurationError, match=r"option 'zookeeper\.client\.secure'"):
        Options(uri=URI, log="a", zookeeper={"client.secure": "perhaps"})


def test_values_become_the_texts_that_spark_takes():
    position = {"ordinal": 0, "ledger": 5, "entry": 1, "version": 1}
    options = Options(
        uri=URI,
        log="clicks",
        includeMetadata=True,
        maxPartitionBytes=1 << 20,
        startingOffsets=position,
        endingTimestamp=datetime(2026, 1, 1, tzinfo=UTC),
        ledgerMetadata={"team": "x"},
    )
    assert dict(**options) == {
        "uri": URI,
        "log": "clicks",
        "includeMetadata": "true",
        "maxPartitionBytes": "1048576",
        "startingOffsets": json.dumps(position),
        "endingTimestamp": "2026-01-01T00:00:00+00:00",
        "ledgerMetadata.team": "x",
    }
    parsed = SourceOptions.parse(options)
    assert (parsed.starting_offsets, parsed.ledger_metadata) == (position, {"team": "x"})
    assert Options(uri=URI, ledgers=[5, 7])["ledgers"] == "[5, 7]"
    assert Options(uri=URI, ledgers=range(5, 8))["ledgers"] == "[5, 6, 7]"
    assert Options(uri=URI, log="a", startingOffsets=-5)["startingOffsets"] == "-5"


def test_changed_options_leave_the_first_as_they_were():
    first = Options(uri=URI, log="a")
    assert first.but(log="b", minPartitions=3) == {"uri": URI, "log": "b", "minPartitions": "3"}
    assert first == {"uri": URI, "log": "a"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"log": "a", "payloadFormt": "arrow"}, "did you mean 'payloadFormat'"),
        ({"log": "a", "payloadFormat": "avro"}, "option 'payloadFormat' is 'avro', which is not one of raw"),
        ({"log": "a", "minPartitions": 0}, "option 'minPartitions' is '0', which is not a whole number"),
        ({"log": "a", "minPartitions": 1.5}, "option 'minPartitions' is of type float"),
        ({"log": "a", "ledgers": [1]}, "'log' and 'ledgers' exclude each other"),
        ({"ledgers": {1}}, "option 'ledgers' is of type set: give text, a whole number or a list of ledger ids"),
        ({"ledgers": [None]}, r"option 'ledgers' is '\[null\]', which is not a JSON list"),
        ({"ledgers": [1.5, object]}, "option 'ledgers' is .*, which cannot be made JSON"),
        ({"log": "a", "startingOffsets": {"a": object}}, "option 'startingOffsets' is .* which cannot be made JSON"),
        ({"log": ["a", "b"]}, "option 'log' is of type list: give text"),
        ({"log": "a", "startingTimestamp": 1.5}, "option 'startingTimestamp' is of type float: .* or a datetime"),
        ({"log": "a", "maxLedgerAge": datetime(2026, 1, 1, tzinfo=UTC)}, "option 'maxLedgerAge' is of type datetime"),
        ({"log": "a", "LOG": "b"}, "options 'log' and 'LOG' are the same"),
        ({"log": "a", "ledgerMetadata": {"Team": "x", "team": "y"}}, "'ledgerMetadata.Team' and 'ledgerMetadata.team'"),
        ({"log": "a", "minPartitions": None}, "option 'minPartitions' is of type NoneType"),
        ({"log": "a", "ledgerMetadata": "k=v"}, "option 'ledgerMetadata' is 'k=v', which is not a mapping"),
    ],
)
def test_wrong_options_are_refused_when_they_are_made(options, reason):
    with pytest.raises(ConfigurationError, match=reason):
        Options(uri=URI, **options)


def test_whole_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert Options(uri=URI, log="a", txnAppId="x", txnVersion=numpy.int64(7))["txnVersion"] == "7"
    assert Options(uri=URI, ledgers=list(numpy.arange(2)))["ledgers"] == "[0, 1]"


def test_password_is_not_shown():
    assert "s3cret" not in repr(Options(uri=URI, log="a", password="s3cret"))


def test_the_package_offers_them():
    assert bkspark.Options is Options
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bkspark.nothing
