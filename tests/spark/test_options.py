import pytest

from bkspark.core.metadata import LedgerType
from bkspark.errors import ConfigurationError
from bkspark.ids import DIGESTS, LEDGER_TYPES
from bkspark.spark.option_values import IdRange, parse_ledgers
from bkspark.spark.options import OPTIONS, SourceOptions
from bkspark.wire.digest import DigestType

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
    for name in ("ledgermetadata", "ledgermetadat.team", "ledgersmetadata.team"):
        assert "did you mean 'ledgerMetadata.KEY'" in refused(**{"ledgers": "*", name: "x"})


@pytest.mark.parametrize("name", [option.name for option in OPTIONS if len(option.name) > 4])
def test_any_letter_left_out_or_exchanged_is_found_again(name):
    for at in range(1, len(name) - 1):
        for typo in (name[:at] + name[at + 1 :], name[:at] + name[at + 1] + name[at] + name[at + 2 :]):
            if typo.lower() != name.lower():
                assert f"did you mean '{name}'" in refused(**{typo: "1"})


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


HOSTILE = [
    "", " ", "\0", "\n", "x", "-1", "0", "1e400", "NaN", "null", "[]", "{}", '{"a": 1}', "[" * 5000, "(" * 5000,
    "9" * 400, "-" + "9" * 400 + "d", "9" * 30 + "d", "1" * 5000, "é" * 300, "1,2", "-", "*", "١٢", "0x10", "1_000",
    "+5", "-0", "\ud800",
]  # fmt: skip


def told(action) -> str | None:
    """Return the error message, None if the option is accepted."""
    try:
        action()
    except ConfigurationError as error:
        return str(error)
    return None


@pytest.mark.filterwarnings("ignore:Possible nested set")
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_any_text_is_a_value_or_refused_in_one_line_that_names_the_option(option):
    """Bad input: wrong type and out of range, of every option and in every use; never another exception."""
    chosen = {} if option.name in ("ledgers", "logsPattern", "inspect") else {"log": "a"}
    for text in HOSTILE:
        given = chosen | {option.name: text}
        reason = told(lambda given=given: parse(**given))
        if reason is None:
            parsed = parse(**given)
            uses = (parsed.for_batch_read, parsed.for_stream_read, parsed.for_stream_write)
            assert all("\n" not in (told(use) or "") for use in uses)
        else:
            assert option.name in reason
            assert "\n" not in reason
            assert len(reason) < 1_000


def test_sizes_take_units():
    for text, size in {"512": 512, "64k": 65536, "2MiB": 2 << 20, "3mb": 3 << 20, "1G": 1 << 30, "1t": 1 << 40}.items():
        assert parse(log="a", maxLedgerBytes=text).ledger_bytes_max == size


def test_log_and_ledgers_exclude_each_other_and_one_is_needed():
    assert "exclude each other" in refused(log="a", ledgers="5")
    assert "give option 'log', 'logsPattern', 'ledgers' or 'inspect'" in refused()


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("5", [(5, 6)]),
        ("5,7", [(5, 6), (7, 8)]),
        (" 5 - 9 , 2", [(5, 10), (2, 3)]),
        ("[5, 7]", [(5, 6), (7, 8)]),
        ("5:10-99, 7:0-", [(5, 6, 10, 100), (7, 8, 0, None)]),
        ("*", [(0, 1 << 63)]),
    ],
)
def test_ledgers_as_ids_ranges_and_json(text, ranges):
    assert parse_ledgers(text) == tuple(IdRange(*bounds) for bounds in ranges)


@pytest.mark.parametrize(
    "text", ["", "x", "5-", "9-5", "5,5", "5-9,7", "-1", "[", "[]", "[1.5]", "[true]", "1" * 30, "5:3", "5:3-2"]
)
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
    with pytest.raises(ConfigurationError, match=r"'ledgerType' VD_JOURNAL .* now 3 and 2"):
        parse(log="a", ledgerType="vd_journal", writeQuorum="2").for_write()
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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"log": "a", "startingOffsets": "-5", "startingTimestamp": "0"}, "exclude each other"),
        ({"log": "a", "endingOffsets": "-5", "endingTimestamp": "0"}, "exclude each other"),
        ({"log": "a", "unconfirmed": "true"}, "'unconfirmed' is for 'ledgers'"),
        ({"log": "a", "ledgerMetadata.k": "v"}, "a log is read whole"),
        ({"inspect": "logs", "mode": "PERMISSIVE"}, "'mode' has no effect on a read of 'inspect'"),
        ({"inspect": "logs", "log": "a"}, "'log' and 'inspect' exclude each other"),
        ({"logsPattern": "("}, "is no regular expression"),
        ({"inspect": "entries"}, "none of ledgers, logs, bookies, fragments"),
        ({"ledgers": "*", "recover": "true", "unconfirmed": "true"}, "exclude each other"),
    ],
)
def test_impossible_batch_reads_are_refused(options, reason):
    with pytest.raises(ConfigurationError, match=reason):
        parse(**options).for_batch_read()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"maxTriggerDelay": "1m"}, "needs 'minEntriesPerTrigger'"),
        ({"minEntriesPerTrigger": "9", "maxEntriesPerTrigger": "8"}, "lower it"),
        ({"startingOffsets": "-5", "startingTimestamp": "0"}, "exclude each other"),
        ({"endingTimestamp": "0"}, "has no effect on a stream read"),
    ],
)
def test_impossible_streams_are_refused(options, reason):
    with pytest.raises(ConfigurationError, match=reason):
        parse(log="a", **options).for_stream_read()


def test_transaction_options_belong_together():
    assert parse(log="a", txnAppId="x", txnVersion="0").for_batch_write().txn_version == 0
    assert parse(log="a", txnAppId="x").for_write().txn_version is None
    for given in ({"txnAppId": "x"}, {"txnVersion": "1"}):
        with pytest.raises(ConfigurationError, match="belong together"):
            parse(log="a", **given).for_batch_write()
    with pytest.raises(ConfigurationError, match="needs 'txnAppId'"):
        parse(log="a", txnVersion="1").for_write()


def test_what_a_log_with_content_does_is_said_once():
    assert parse(log="a", ifExists="ERROR").for_batch_write().if_exists == "error"
    with pytest.raises(ConfigurationError, match="mode overwrite says otherwise"):
        parse(log="a", ifExists="error").for_batch_write(is_overwrite=True)
    with pytest.raises(ConfigurationError, match="'txnAppId' says otherwise"):
        parse(log="a", ifExists="ignore", txnAppId="x", txnVersion="1").for_batch_write()
    with pytest.raises(ConfigurationError, match="'ifExists' has no effect on a streaming write"):
        parse(log="a", ifExists="append").for_stream_write()
    assert "is none of append, error, ignore" in refused(log="a", ifExists="replace")


def test_only_the_options_of_a_created_table_count():
    properties = {"provider": "bookkeeper", "owner": "x", "p": "q", "uri": URI, "log": "a"}
    found = SourceOptions.parse({**properties, "option.uri": URI, "option.log": "a"}, {})
    assert (found.uri, found.log, found.given) == (URI, "a", {"uri", "log"})
    with pytest.raises(ConfigurationError, match="none of a table's OPTIONS"):
        SourceOptions.parse({}, {"BKSPARK_URI": URI})


def test_ledger_metadata_is_many_options():
    read = parse(ledgers="*", **{"ledgermetadata.Team": "x", "ledgerMetadata.app": "y"}).for_batch_read()
    assert read.ledger_metadata == {"team": "x", "app": "y"}
    for name in ("ledgerMetadata.log", "ledgerMetadata.bkspark.owner"):
        with pytest.raises(ConfigurationError, match="choose another key"):
            parse(log="a", **{name: "x"}).for_write()
    with pytest.raises(ConfigurationError, match="names no key"):
        parse(log="a", **{"ledgerMetadata.": "x"})
    with pytest.raises(ConfigurationError, match="no effect on a stream read"):
        parse(log="a", **{"ledgerMetadata.x": "x"}).for_stream_read()


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1763700000000", 1763700000000),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-01T00:00:01.001Z", 1001),
        ("1970-01-02", 86_400_000),
        ("-10m", -600_000),
        ("-2 h", -7_200_000),
        ("-0m", -1),
        ("1969-12-31T23:00:00Z", 0),
    ],
)
def test_times_are_milliseconds_iso_text_or_ago(text, milliseconds):
    assert parse(log="a", startingTimestamp=text).starting_timestamp == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "-10x", "1.5", "99999999999999999999"])
def test_other_times_are_refused(text):
    with pytest.raises(ConfigurationError, match="'startingTimestamp'"):
        parse(log="a", startingTimestamp=text)


def test_password_is_never_shown():
    assert "s3cret" not in repr(parse(log="a", password="s3cret"))


def test_every_default_is_the_one_of_the_table():
    """No field has a default of its own: an option without one in the table is None when it is not given."""
    default = parse(log="z")
    for option in OPTIONS:
        if option.name not in ("uri", "log"):
            expected = None if option.default is None else option.check(option.default)
            assert getattr(default, option.field) == expected, option.name


def test_digests_and_ledger_types_are_those_that_there_are():
    choices = {option.name: option.choices for option in OPTIONS}
    assert choices["digestType"] == DIGESTS
    assert {name.upper() for name in DIGESTS} == set(DigestType.__members__)
    assert choices["ledgerType"] == LEDGER_TYPES == tuple(it.value for it in LedgerType)


def test_every_option_fills_its_field():
    values = {
        "uri": URI, "log": "a", "ledgers": "1", "password": "p", "startingOffsets": "latest", "endingOffsets": "latest",
        "payloadFormat": "JSON", "mode": "permissive", "includeMetadata": "true", "failOnDataLoss": "false",
        "recover": "true", "maxPartitionBytes": "2", "minPartitions": "3", "maxEntriesPerTrigger": "4",
        "maxBytesPerTrigger": "5", "digestType": "MAC", "ensembleSize": "6", "writeQuorum": "7", "ackQuorum": "8",
        "maxLedgerBytes": "9", "entryTargetBytes": "10", "startingTimestamp": "11", "endingTimestamp": "-10m",
        "unconfirmed": "true", "maxEntriesPerPartition": "12", "minEntriesPerTrigger": "13", "maxTriggerDelay": "14s",
        "txnAppId": "app", "txnVersion": "15", "inspect": "LOGS", "logsPattern": "a.*",
        "ifExists": "ignore", "maxLedgerAge": "1s", "inlineBytes": "0", "ledgerType": "vd_journal",
        "ifPublished": "skip",
    }  # fmt: skip
    assert set(values) == {option.name for option in OPTIONS}
    default = parse(log="z")
    for option in OPTIONS:
        selection = {} if option.name in ("log", "logsPattern", "ledgers", "inspect") else {"log": "z"}
        found = parse(**(selection | {option.name: values[option.name]}))
        if option.name not in ("uri", "endingOffsets"):
            assert getattr(found, option.field) != getattr(default, option.field), option.name
    assert parse(log="a", digestType="mac").digest == "mac"
