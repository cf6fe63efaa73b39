import pickle
import re

import pytest

from bkspark.core.metadata import LedgerType
from bkspark.errors import ConfigurationError
from bkspark.ids import DIGESTS, LEDGER_TYPES
from bkspark.metadata.acls import ALL, READ, Acl
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.security.sasl import SaslClientOptions
from bkspark.spark.lost_times import reference_ms
from bkspark.spark.option_table import OPTIONS
from bkspark.spark.option_values import IdRange, parse_ledgers
from bkspark.spark.options import SourceOptions
from bkspark.spark.sasl_options import SASL_OPTIONS
from bkspark.spark.tls_options import TLS_OPTIONS
from bkspark.spark.zookeeper_options import ZOOKEEPER_OPTIONS
from bkspark.tls.options import StoreType, TlsOptions
from bkspark.wall_clock import wall_clock_ms
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
                # Either 'topic' or 'topics' may be nearer.
                assert f"did you mean '{name.removesuffix('s')}" in refused(**{typo: "1"})


def test_uri_and_password_come_from_the_environment_unless_given():
    environment = {"BKSPARK_URI": "zk://h:1/ledgers", "BKSPARK_PASSWORD": "secret"}
    found = SourceOptions.parse({"log": "a"}, environment)
    assert (found.uri, found.password) == ("zk://h:1/ledgers", b"secret")
    given = SourceOptions.parse({"log": "a", "uri": URI, "password": "other"}, environment)
    assert (given.uri, given.password) == (URI, b"other")


def test_options_hold_the_name_of_a_password_file_and_never_its_content(tmp_path):
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    for found in (
        parse(log="a", passwordFile=str(path)),
        SourceOptions.parse({"log": "a", "uri": URI}, {"BKSPARK_PASSWORD_FILE": str(path)}),
    ):
        assert found.password == b"s3cret"
        assert b"s3cret" not in pickle.dumps(found)
        path.write_text("new\n")
        assert pickle.loads(pickle.dumps(found)).password == b"new"  # each process reads the file for itself
        path.write_text("s3cret\n")


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"", "is empty"), (b"\n", "is empty"), (b"x" * 70_000, "65536")]
)
def test_a_password_file_that_cannot_be_used_is_named(tmp_path, content, reason):
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    # The name of a file that does not exist may be the password itself.
    shown = path if content is not None else f"{tmp_path}/{re.escape('***')}"
    with pytest.raises(ConfigurationError, match=f"passwordFile.*{shown}.*{reason}"):
        parse(log="a", passwordFile=str(path)).password  # noqa: B018


def test_two_passwords_are_refused(tmp_path):
    assert "exclude each other" in refused(log="a", password="x", passwordFile="/y")
    with pytest.raises(ConfigurationError, match="both set"):
        SourceOptions.parse({"log": "a", "uri": URI}, {"BKSPARK_PASSWORD": "x", "BKSPARK_PASSWORD_FILE": "/y"})


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
        ("startingOffsets", "12:x", "the id of a message of a topic, such as 12:3"),
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


SELECTIONS = {"log", "logsPattern", "ledgers", "inspect", "topic", "topics", "topicsPattern"}


def refusal_of(action) -> str | None:
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
    chosen = {} if option.name in SELECTIONS - {"log"} else {"log": "a"}
    for text in HOSTILE:
        given = chosen | {option.name: text}
        reason = refusal_of(lambda given=given: parse(**given))
        if reason is None:
            parsed = parse(**given)
            uses = (parsed.for_batch_read, parsed.for_stream_read, parsed.for_stream_write)
            assert all("\n" not in (refusal_of(use) or "") for use in uses)
        else:
            assert option.name in reason
            assert "\n" not in reason
            assert len(reason) < 1_000


def test_sizes_take_units():
    for text, size in {"512": 512, "64k": 65536, "2MiB": 2 << 20, "3mb": 3 << 20, "1G": 1 << 30, "1t": 1 << 40}.items():
        assert parse(log="a", maxLedgerBytes=text).ledger_bytes_max == size


def test_log_and_ledgers_exclude_each_other_and_one_is_needed():
    assert "exclude each other" in refused(log="a", ledgers="5")
    with pytest.raises(ConfigurationError, match="give option 'log', 'logsPattern', 'topic', 'ledgers' or 'inspect'"):
        SourceOptions.parse({"uri": "zk://h/l"}).check_named()


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
    with pytest.raises(ConfigurationError, match="'recover' has no effect on a stream read"):
        parse(ledgers="1", recover="true").for_stream_read()
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
        ({"topic": "a", "startingSubscription": "s", "startingOffsets": "-5"}, "exclude each other"),
        ({"topic": "a", "startingSubscription": "s", "startingTimestamp": "0"}, "exclude each other"),
        ({"log": "a", "unconfirmed": "true"}, "'unconfirmed' is for 'ledgers'"),
        ({"log": "a", "ledgerMetadata.k": "v"}, "a log is read completely"),
        ({"inspect": "logs", "mode": "PERMISSIVE"}, "'mode' has no effect on a read of 'inspect'"),
        ({"inspect": "logs", "log": "a"}, "'log' and 'inspect' exclude each other"),
        ({"logsPattern": "("}, "is not a regular expression"),
        ({"inspect": "entries"}, "not one of ledgers, logs, bookies, fragments"),
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
    with pytest.raises(ConfigurationError, match="and mode overwrite exclude each other"):
        parse(log="a", ifExists="error").for_batch_write(is_overwrite=True)
    with pytest.raises(ConfigurationError, match="and 'txnAppId' exclude each other"):
        parse(log="a", ifExists="ignore", txnAppId="x", txnVersion="1").for_batch_write()
    with pytest.raises(ConfigurationError, match="'ifExists' has no effect on a streaming write"):
        parse(log="a", ifExists="append").for_stream_write()
    assert "is not one of append, error, ignore" in refused(log="a", ifExists="replace")


def test_only_the_options_of_a_created_table_count():
    properties = {"provider": "bookkeeper", "owner": "x", "p": "q", "uri": URI, "log": "a"}
    found = SourceOptions.parse({**properties, "option.uri": URI, "option.log": "a"}, {})
    assert (found.uri, found.log, found.given) == (URI, "a", {"uri", "log"})
    with pytest.raises(ConfigurationError, match="does not pass a table's OPTIONS"):
        SourceOptions.parse({}, {"BKSPARK_URI": URI})


def test_ledger_metadata_is_many_options():
    read = parse(ledgers="*", **{"ledgermetadata.Team": "x", "ledgerMetadata.app": "y"}).for_batch_read()
    assert read.ledger_metadata == {"team": "x", "app": "y"}
    for name in ("ledgerMetadata.log", "ledgerMetadata.bkspark.owner"):
        with pytest.raises(ConfigurationError, match="choose another one"):
            parse(log="a", **{name: "x"}).for_write()
    with pytest.raises(ConfigurationError, match="names no key"):
        parse(log="a", **{"ledgerMetadata.": "x"})
    with pytest.raises(ConfigurationError, match="a log is read completely"):
        parse(log="a", **{"ledgerMetadata.x": "x"}).for_stream_read()
    for name, value in (("ledgerMetadata.a", "\ud800"), ("ledgerMetadata.!\udfff", "x")):
        with pytest.raises(ConfigurationError, match="half of a pair of UTF-16"):
            parse(log="a", **{name: value})
    assert parse(log="a", **{"ledgerMetadata.\U0001f600": "\U0001f600"}).for_write().ledger_metadata
    for both in ({"!team": "x", "!!team": "x"}, {"!team": "*", "!!team": "x"}):
        # The second is about the key `!team`: a ledger can fulfil both.
        given = {f"ledgerMetadata.{key}": value for key, value in both.items()}
        assert parse(ledgers="*", **given).for_batch_read().ledger_metadata == both


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1763700000000", 1763700000000),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-01T00:00:01.001Z", 1001),
        pytest.param("1970-01-01T00:00:01.001001Z", 1002, id="the next one after a part of a millisecond"),
        ("1969-12-31T23:59:59.999999Z", 0),
        ("1970-01-02", 86_400_000),
        ("-10m", -600_000),
        ("-2 h", -7_200_000),
        ("-0m", -1),
        ("1969-12-31T23:00:00Z", 0),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999),
        ("9999-12-31T23:59:59-12:00", 253_402_300_799_999),
    ],
)
def test_times_are_milliseconds_iso_text_or_ago(text, milliseconds):
    assert parse(log="a", startingTimestamp=text).starting_timestamp == milliseconds


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1795890799", "1970-01-21T18:51:30Z in milliseconds: if it is in seconds, give 1795890799000"),
        ("20261101", "1970-01-01T05:37:41Z in milliseconds: if it is a date, give 2026-11-01"),
        ("20269901", "1970-01-01T05:37:49Z in milliseconds: give ISO 8601"),
        ("1795890799000000", "after the year 5000 in milliseconds: if it is in microseconds, give 1795890799000"),
        ("1795890799000000000", "after the year 5000 in milliseconds: if it is in nanoseconds, give 1795890799000"),
    ],
)
def test_numbers_that_are_not_milliseconds_are_refused(text, meant):
    """They were times of 1970, so that everything was read, or of later than the year 5000, so that nothing was."""
    with pytest.raises(ConfigurationError, match=re.escape(meant)):
        parse(log="a", startingTimestamp=text)


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "-10x", "1.5", "\u0663", "99999999999999999999"])
def test_other_times_are_refused(text):
    with pytest.raises(ConfigurationError, match="'startingTimestamp'"):
        parse(log="a", startingTimestamp=text)


@pytest.mark.parametrize(("since", "until"), [("2100-01-01", "-1h"), ("-1h", "2020-01-01")])
def test_times_between_which_nothing_lies_are_refused_in_a_plan_where_only_one_is_relative(since, until):
    """The read returned no row, and did not say why. Options alone cannot tell: they do not know the present time."""
    with pytest.raises(ConfigurationError, match=r"'startingTimestamp' is .*, which is not before 'endingTimestamp'"):
        reference_ms(parse(log="a", startingTimestamp=since, endingTimestamp=until))
    assert reference_ms(parse(log="a", startingTimestamp="2020-01-01", endingTimestamp="-1h")) <= wall_clock_ms()
    with pytest.raises(ConfigurationError, match=r"'endingTimestamp', 19\d\d-.*, so nothing"):
        reference_ms(parse(log="a", startingTimestamp="0", endingTimestamp="-36500d"))


def test_times_are_shown_to_the_millisecond_up_to_the_last_one_that_can_be_given():
    message = r"\(9999-12-31T23:59:59\.999\+00:00\) is not before .* \(1970-01-01T00:00:00\.001\+00:00\)"
    with pytest.raises(ConfigurationError, match=message):
        parse(log="a", startingTimestamp="9999-12-31T23:59:59-12:00", endingTimestamp="1").for_batch_read()


def test_password_is_never_shown():
    assert "s3cret" not in repr(parse(log="a", password="s3cret"))


def test_every_default_is_the_one_of_the_table():
    """No field has a default of its own: an option without one in the table is None when it is not given."""
    default = parse(log="z")
    for option in OPTIONS:
        if option.name not in ("uri", "log", "passwordFile"):
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
        "ifPublished": "skip", "topic": "t", "topics": "t,u", "topicsPattern": "a/b/c.*", "pulsarUri": "zk://p:1",
        "pulsarConfigurationUri": "zk:p:2/q", "valueFormat": "RAW", "isolation": "read_uncommitted",
        "encrypted": "skip", "readCompacted": "true", "publishTimeSlack": "2s", "startingSubscription": "s",
        "mergeSchema": "true", "overwriteSchema": "true", "compression": "zstd", "compressionLevel": "2",
        "columnNameOfCorruptRecord": "bad", "jsonDialect": "spark", "passwordFile": "/f",
        "encryptionKeyFile": "/k", "consumer": "etl", "consumerExpiry": "1d",
    }  # fmt: skip
    assert set(values) == {option.name for option in OPTIONS if option not in TOGETHER}
    default = parse(log="z")
    for option in OPTIONS:
        if option in TOGETHER:
            continue
        selection = {} if option.name in SELECTIONS else {"log": "z"}
        found = parse(**(selection | {option.name: values[option.name]}))
        if option.name not in ("uri", "endingOffsets"):
            assert getattr(found, option.field) != getattr(default, option.field), option.name
    assert parse(log="a", digestType="mac").digest == "mac"


TOGETHER = (*TLS_OPTIONS, *SASL_OPTIONS, *ZOOKEEPER_OPTIONS)
"""Options that fill one field together."""
TLS = {"tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory", "tlsTrustStore": "/ca.pem"}


def test_options_of_zookeeper_are_its_own_clients_keys_and_name_files():
    assert parse(log="a").zookeeper is None
    given = {
        "zkEnableSecurity": "true", "zkFurtherAcls": "sasl:reader:r; x509:CN=a,O=b:cdrwa", "saslJaasConfig": "/j",
        "zookeeper.sasl.client": "true", "zookeeper.sasl.clientconfig": "Own", "zookeeper.sasl.client.username": "zk",
        "zookeeper.client.secure": "true", "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.trustStore.location": "/t", "zookeeper.ssl.trustStore.type": "pem",
        "zookeeper.ssl.trustStore.passwordPath": "/tp", "zookeeper.ssl.keyStore.location": "/k",
        "zookeeper.ssl.keyStore.type": "jks", "zookeeper.ssl.keyStore.passwordPath": "/kp",
        "zookeeper.ssl.hostnameVerification": "false", "zookeeper.ssl.enabledProtocols": "TLSv1.3, TLSv1.1",
        "zookeeper.ssl.ciphersuites": "TLS_AES_128_GCM_SHA256",
    }  # fmt: skip
    assert set(given) == {option.name for option in ZOOKEEPER_OPTIONS} | {"saslJaasConfig"}
    tls = TlsOptions(
        "/t", StoreType.PEM, "/tp", "/k", StoreType.JKS, "/kp", "/k", True, ("TLSv1.3",), ("TLS_AES_128_GCM_SHA256",),
        False,
    )  # fmt: skip
    acls = (Acl("sasl", "reader", READ), Acl("x509", "CN=a,O=b", ALL))
    expected = ZooKeeperOptions("/j", "Own", "zk", tls, True, acls)
    found = parse(log="a", **given)
    assert found.zookeeper == expected
    # Spark writes names in lower case.
    assert parse(log="a", **{name.lower(): text for name, text in given.items()}).zookeeper == expected
    assert found.client.zookeeper == expected
    assert parse(log="a", **given | {"zookeeper.sasl.client": "false"}).zookeeper.jaas_file is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zkEnableSecurity": "true"}, "zkEnableSecurity=true needs an identity"),
        ({"zkEnableSecurity": "perhaps"}, "option 'zkEnableSecurity' is 'perhaps', which is neither true nor false"),
        ({"zkFurtherAcls": "sasl:a:r"}, "zkFurtherAcls has no effect without zkEnableSecurity=true"),
        (
            {"zkFurtherAcls": "reader"},
            "option 'zkFurtherAcls' is 'reader', which 'reader' is not scheme:id:permissions",
        ),
        ({"zookeeper.client.secure": "true"}, "needs option 'zookeeper.ssl.trustStore.location'"),
        ({"zookeeper.ssl.keyStore.location": "/k"}, "option 'zookeeper.ssl.keyStore.location' has no effect without"),
        ({"zookeeper.sasl.clientconfig": "Own"}, "names a section of a JAAS file, and no file is named"),
        ({"zookeeper.ssl.keyStore.password": "s3cret"}, "did you mean 'zookeeper.ssl.keyStore.passwordPath'"),
        (
            {"zookeeper.ssl.trustStore.type": "zip"},
            "option 'zookeeper.ssl.trustStore.type' is 'zip', which must be one",
        ),
    ],
)
def test_options_of_zookeeper_that_protect_nothing_are_refused(given, message):
    with pytest.raises(ConfigurationError) as caught:
        parse(log="a", **given)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_clients_file_and_jaas_variable_replace_options_of_zookeeper(tmp_path):
    path = tmp_path / "client.conf"
    path.write_text("zkEnableSecurity=true\nsaslJaasConfig=/j\naddEntryQuorumTimeoutSec=3\n")
    options = {"uri": URI, "log": "a"}
    of_file = SourceOptions.parse(options, {"BKSPARK_CLIENT_CONFIG": str(path), "BKSPARK_JAAS": "/other"})
    assert of_file.zookeeper == of_file.client.zookeeper == ZooKeeperOptions("/j", closes_nodes=True)
    assert SourceOptions.parse(options, {"BKSPARK_JAAS": "/j"}).zookeeper == ZooKeeperOptions("/j")
    path.write_text("zkEnableSecurity=true\n")
    with pytest.raises(ConfigurationError, match=rf"^{path}: zkEnableSecurity=true needs an identity"):
        SourceOptions.parse(options, {"BKSPARK_CLIENT_CONFIG": str(path)})


def test_options_of_authentication_are_apaches_keys_and_name_files(tmp_path):
    provider = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
    on = {"clientAuthProviderFactoryClass": provider, "saslJaasConfig": "/j"}
    assert parse(log="a").sasl is None
    assert parse(log="a", clientAuthProviderFactoryClass="").sasl is None
    assert parse(log="a", **on).sasl == SaslClientOptions("/j")
    assert parse(log="a", **on).client.net.sasl == SaslClientOptions("/j")
    more = {"clientRole": "SYSTEM", "saslJaasAuditorSectionName": "A", "saslJaasClientSectionName": "C"}
    assert {*on, *more, "allowAuthDisabled"} == {option.name for option in SASL_OPTIONS}
    assert parse(log="a", **on, **more, allowAuthDisabled="true").sasl == SaslClientOptions("/j", "A", True)
    file = tmp_path / "client.conf"
    file.write_text(f"clientAuthProviderFactoryClass={provider}\nsaslJaasConfig=/f\n")
    environment = {"BKSPARK_CLIENT_CONFIG": str(file)}
    assert SourceOptions.parse({"uri": URI, "log": "a"}, environment).sasl == SaslClientOptions("/f")


def test_options_of_tls_are_apaches_keys_and_name_files():
    assert parse(log="a").tls is None
    assert parse(log="a", tlsProviderFactoryClass="").tls is None
    assert parse(log="a", **TLS).tls == TlsOptions(trust_store="/ca.pem")
    given = {
        "tlsTrustStoreType": "pem", "tlsTrustStorePasswordPath": "/tp", "tlsKeyStore": "/k", "tlsKeyStoreType": "jks",
        "tlsKeyStorePasswordPath": "/kp", "tlsCertificatePath": "/c", "tlsClientAuthentication": "true",
        "tlsHostnameVerificationEnabled": "false", "tlsEnabledProtocols": "TLSv1.3, TLSv1.1",
        "tlsEnabledCipherSuites": "TLS_AES_128_GCM_SHA256", "tlsCertFilesRefreshDurationSeconds": "-1",
        "startTLSTimeoutSecs": "3",
    }  # fmt: skip
    assert {*given, *TLS} == {option.name for option in TLS_OPTIONS}
    assert parse(log="a", **TLS, **given).tls == TlsOptions(
        "/ca.pem", StoreType.PEM, "/tp", "/k", StoreType.JKS, "/kp", "/c", True, ("TLSv1.3",),
        ("TLS_AES_128_GCM_SHA256",), False, 3.0, 0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tlsProviderFactoryClass": ""}, "'tlsTrustStore' has no effect without tlsProviderFactoryClass=org.apache"),
        ({"tlsProviderFactoryClass": "org.x"}, "'org.x', which must be org.apache.bookkeeper.tls.TLSContextFactory"),
        ({"tlsTrustStore": ""}, "option 'tlsTrustStore' is"),
        ({"tlsKeyStoreType": "BKS"}, "is not one of PEM, PKCS12, JKS"),
        ({"tlsClientAuthentication": "maybe"}, "which must be true or false"),
        ({"startTLSTimeoutSecs": "soon"}, "which must be a whole number from 1 to 86400"),
        ({"startTLSTimeoutSecs": "0"}, "which must be a whole number from 1 to 86400"),
        ({"tlsEnabledProtocols": "SSLv3"}, "'tlsEnabledProtocols' is 'SSLv3', which is refused: SSLv3 is not safe"),
    ],
)
def test_options_of_tls_that_would_not_protect_are_refused(changes, message):
    assert message in refused(log="a", **{**TLS, **changes})


def test_options_of_tls_may_come_from_a_file_that_the_environment_names(tmp_path):
    path = tmp_path / "client.conf"
    path.write_text(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\nbookiePort=3181\n"
        "tlsTrustStore=/bookie\nclientTrustStore=/client\ntlsKeyStore=null\n"
    )
    environment = {"BKSPARK_CLIENT_CONFIG": str(path)}
    assert SourceOptions.parse({"uri": URI, "log": "a"}, environment).tls == TlsOptions(trust_store="/client")
    assert SourceOptions.parse({"uri": URI, "log": "a", **TLS}, environment).tls == TlsOptions(trust_store="/ca.pem")
    path.write_text("tlsTrustStore=/ca.pem\n")
    with pytest.raises(ConfigurationError, match="tlsTrustStore has no effect without tlsProviderFactoryClass"):
        SourceOptions.parse({"uri": URI, "log": "a"}, environment)
    path.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read: No such file or directory"):
        SourceOptions.parse({"uri": URI, "log": "a"}, environment)
