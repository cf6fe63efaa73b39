import pytest

from bkspark.errors import ConfigurationError
from bkspark.spark.options import OPTIONS, IdRange, SourceOptions, parse_ledgers

URI = "zk://127.0.0.1:2181/ledgers"


def parse(environment=None, **options):
    return SourceOptions.parse({"uri": URI, **options}, environment or {})


def refused(**options) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse(**options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_are_case_insensitive():
    assert parse(LOG="clicks", MaxPartitionBytes="1m").partition_bytes_max == 1 << 20


def test_unknown_option_offers_the_nearest_name():
    assert "did you mean 'payloadFormat'" in refused(log="a", payloadformt="raw")
    assert "the options are uri, log," in refused(log="a", zzz="1")
    assert "'log' or 'ledgers'" in refused(path="a")


def test_uri_and_password_come_from_the_environment_unless_given():
    environment = {"BKSPARK_URI": "zk://h:1/ledgers", "BKSPARK_PASSWORD": "secret"}
    found = SourceOptions.parse({"log": "a"}, environment)
    assert (found.uri, found.password) == ("zk://h:1/ledgers", b"secret")
    given = SourceOptions.parse({"log": "a", "uri": URI, "password": "other"}, environment)
    assert (given.uri, given.password) == (URI, b"other")


def test_missing_uri_names_the_variable():
    with pytest.raises(ConfigurationError, match="BKSPARK_URI"):
        SourceOptions.parse({"log": "a"}, {})


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("uri", "http://h/ledgers", "zk://"),
        ("log", "", "is empty"),
        ("maxPartitionBytes", "0", "size in bytes"),
        ("maxPartitionBytes", "1x", "size in bytes"),
        ("minPartitions", "-1", "whole number"),
        ("minPartitions", "1.5", "whole number"),
        ("minPartitions", "9" * 30, "whole number"),
        ("includeMetadata", "yes", "true nor false"),
        ("payloadFormat", "avro", "raw, json, msgpack, arrow"),
        ("digestType", "md5", "crc32"),
        ("mode", "IGNORE", "FAILFAST"),
        ("startingOffsets", "first", "earliest, latest"),
        ("startingOffsets", "[1]", "earliest, latest"),
        ("entryTargetBytes", "1g", "4194304"),
    ],
)
def test_wrong_value_names_option_value_and_remedy(name, value, part):
    message = refused(**({"log": "a"} | {name: value}))
    assert f"option '{name}'" in message
    assert repr(value) in message
    assert part in message


def test_sizes_take_units():
    for text, size in {"512": 512, "64k": 65536, "2MiB": 2 << 20, "3mb": 3 << 20, "1G": 1 << 30, "1t": 1 << 40}.items():
        assert parse(log="a", maxLedgerBytes=text).ledger_bytes_max == size


def test_log_and_ledgers_exclude_each_other_and_one_is_needed():
    assert "exclude each other" in refused(log="a", ledgers="5")
    assert "give option 'log' or 'ledgers'" in refused()


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("5", [(5, 6)]),
        ("5,7", [(5, 6), (7, 8)]),
        (" 5 - 9 , 2", [(5, 10), (2, 3)]),
        ("[5, 7]", [(5, 6), (7, 8)]),
    ],
)
def test_ledgers_as_ids_ranges_and_json(text, ranges):
    assert parse_ledgers(text) == tuple(IdRange(*bounds) for bounds in ranges)


@pytest.mark.parametrize("text", ["", "x", "5-", "9-5", "5,5", "5-9,7", "-1", "[", "[]", "[1.5]", "[true]", "1" * 30])
def test_wrong_ledgers_are_refused(text):
    assert "option 'ledgers'" in refused(ledgers=text)


def test_defaults_differ_by_use():
    assert parse(log="a").for_batch_read().starting_offsets == "earliest"
    assert parse(log="a").for_stream_read().starting_offsets == "latest"
    assert parse(log="a").for_batch_read().payload_format == "raw"
    assert parse(log="a").for_write().payload_format is None


def test_option_without_effect_is_refused():
    with pytest.raises(ConfigurationError, match="'ensembleSize' has no effect on a batch read"):
        parse(log="a", ensembleSize="1").for_batch_read()
    with pytest.raises(ConfigurationError, match="'maxPartitionBytes' has no effect on a write"):
        parse(log="a", maxPartitionBytes="1").for_write()
    with pytest.raises(ConfigurationError, match="'ledgers' has no effect on a stream read"):
        parse(ledgers="1").for_stream_read()
    with pytest.raises(ConfigurationError, match="'endingOffsets' has no effect on a stream read"):
        parse(log="a", endingOffsets="latest").for_stream_read()


def test_options_that_spark_adds_are_passed_over():
    parse(log="a", checkpointLocation="/x", queryName="q").for_write()


def test_impossible_combinations_are_refused():
    with pytest.raises(ConfigurationError, match="reads nothing"):
        parse(log="a", endingOffsets="earliest").for_batch_read()
    with pytest.raises(ConfigurationError, match="reads nothing"):
        parse(ledgers="1", startingOffsets="latest").for_batch_read()
    with pytest.raises(ConfigurationError, match="position in a log"):
        parse(ledgers="1", startingOffsets='{"entry": 1}').for_batch_read()
    with pytest.raises(ConfigurationError, match="'recover'"):
        parse(log="a", recover="true").for_batch_read()
    with pytest.raises(ConfigurationError, match="ensembleSize >= writeQuorum"):
        parse(log="a", ensembleSize="2").for_write()


def test_password_is_never_shown():
    assert "s3cret" not in repr(parse(log="a", password="s3cret"))


def test_every_option_fills_its_field():
    values = {
        "uri": URI, "log": "a", "ledgers": "1", "password": "p", "startingOffsets": "latest", "endingOffsets": "latest",
        "payloadFormat": "JSON", "mode": "permissive", "includeMetadata": "true", "failOnDataLoss": "false",
        "recover": "true", "maxPartitionBytes": "2", "minPartitions": "3", "maxEntriesPerTrigger": "4",
        "maxBytesPerTrigger": "5", "digestType": "MAC", "ensembleSize": "6", "writeQuorum": "7", "ackQuorum": "8",
        "maxLedgerBytes": "9", "entryTargetBytes": "10",
    }  # fmt: skip
    assert set(values) == {option.name for option in OPTIONS}
    default = parse(log="z")
    for option in OPTIONS:
        selection = {} if option.name in ("log", "ledgers") else {"log": "z"}
        found = parse(**(selection | {option.name: values[option.name]}))
        if option.name not in ("uri", "endingOffsets"):
            assert getattr(found, option.field) != getattr(default, option.field), option.name
    assert parse(log="a", digestType="mac").digest == "mac"
