"""Bad input of the connector: every option, wrong in every way, and data that is not what the options say.

Every mistake is reported in one line, by an error that names the option, its value, and the remedy. Most cases call
what Spark calls on the driver; `test_batch` and `test_stream` show some of them through a session.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import Client, run
from bkspark.errors import (
    ConfigurationError,
    DataLoss,
    NoSuchLedger,
    NoSuchLog,
    NotEnoughBookies,
    UnauthorizedAccess,
)
from bkspark.log.positions import Position
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.security.client_keys import PROVIDER, PROVIDER_CLASS
from bkspark.spark import option_values as values
from bkspark.spark import topic_options
from bkspark.spark.local_files import LedgerPassword
from bkspark.spark.option import READ, STREAM, WRITE, Option
from bkspark.spark.option_table import OPTIONS
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BookKeeperReader
from bkspark.spark.sasl_options import SASL_OPTIONS
from bkspark.spark.source import BookKeeperDataSource
from bkspark.spark.tls_options import TLS_OPTIONS
from bkspark.spark.write import BookKeeperWriter, Destination
from bkspark.spark.zookeeper_options import ZOOKEEPER_OPTIONS
from bkspark.tls.client_keys import FACTORY
from bkspark.tls.options import FACTORY_CLASS

URI = "zk://127.0.0.1:2181/ledgers"
VALUE = StructType().add("value", "string")
HUGE = "9" * 30

WRONG_OF_CHECK = {
    values.uri: {"http://h/ledgers": "zk://", "zk://h:99999/ledgers": "port", "": "zk://"},
    values.log_name: {
        "": "is empty",
        "a/b": "letters, digits",
        "..": "not . or ..",
        "ü" * 9: "letters",
        "x" * 201: "200",
    },
    values.text: {"": "is empty"},
    values.consumer: {"": "is empty", "a/b": "is not a valid reader name", "..": "not . or ..", "x" * 201: "200"},
    values.publisher: {"": "is empty", "a\n": "printable", "x" * 201: "1 to 200"},
    values.pattern: {"": "is empty", "(": "is not a regular expression"},
    topic_options.topic: {
        "": "is empty",
        "a/b": "tenant/namespace/NAME",
        "non-persistent://a/b/c": "never stores",
        "http://a/b/c": "such as persistent://public/default/clicks",
        "../b/c": "impossible part",
    },
    topic_options.topics: {"": "empty name", "a,": "empty name", "a,a/b": "such as persistent://"},
    topic_options.topics_pattern: {
        "soon/x": "such as public/default/clicks-.*",
        "": "tenant/namespace/PATTERN",
        "a/b/(": "is not a regular expression",
        "http://a/b/c": "persistent://",
        "../b/c": "impossible part",
    },
    topic_options.pulsar_uri: {
        "soon": "such as zk://host:2181",
        "-1": "such as zk://host:2181",
        HUGE: "such as zk://host:2181",
        "": "such as zk://host:2181",
        "zk:": "such as zk://host:2181",
        "http://h:80": "such as zk://host:2181",
        "zk://h:99999": "port",
        "oxia://h:1": "only ZooKeeper can",
        "etcd:h": "only ZooKeeper can",
        "rocksdb:///data/metadata": "only ZooKeeper can",
    },
    topic_options.subscription: {"": "such as my-subscription", " ": "such as my-subscription", "a\n": "printed"},
    values.parse_ledgers: {"x": "neither a ledger id", "9-5": "is empty", "5,5": "twice", HUGE: "greatest ledger id"},
    values.offset: {"first": "earliest, latest", "5": "-N (entries before the end)", "-" + HUGE: "-N", "[1]": "JSON"},
    values.moment: {"yesterday": "ISO 8601", HUGE: "ISO 8601", "-5": "-10m"},
    values.flag: {"yes": "neither true nor false", "1": "neither true nor false"},
    values.count: {
        "many": "whole number",
        "1.5": "whole number",
        "0": "number of 1 to",
        "-1": "number of 1 to",
        HUGE: "to 9223",
    },
    LedgerPassword.in_file: {"": "is empty"},
    values.version: {"v1": "whole number", "-1": "number of 0 to", HUGE: "to 9223372036854775807"},
    values.size: {"big": "64k", "1x": "64k", "0": "at least 1", "-1": "at least 1", HUGE + "t": "at least 1"},
    values.inline_size: {"big": "64k", "-1": "at least 1", "17m": "above 16777216"},
    values.entry_size: {"big": "64k", "0": "at least 1", "5m": "above 4194304"},
}
_OF_FLAG = {"yes": "must be true or false", "1": "must be true or false", "": "is empty"}
_OF_FILE = {"": "is empty"}
"""Whether a file can be read is found when it is needed: driver and executors have files of their own."""
WRONG_OF_TLS = {
    FACTORY: {"true": FACTORY_CLASS, "TLSContextFactory": FACTORY_CLASS, " ": "empty for no TLS"},
    "tlsClientAuthentication": _OF_FLAG,
    "tlsHostnameVerificationEnabled": _OF_FLAG,
    **dict.fromkeys(
        ("tlsTrustStore", "tlsTrustStorePasswordPath", "tlsKeyStore", "tlsKeyStorePasswordPath", "tlsCertificatePath"),
        _OF_FILE,
    ),
    "tlsEnabledProtocols": {
        "soon": "'soon' is not a protocol: TLSv1.2 and TLSv1.3 are",
        "TLSv1.2,soon": "'soon' is not a protocol",
        "TLSv1.1": "not safe and not served: TLSv1.2 and TLSv1.3 are",
        "": "is empty",
        " , ": "must name at least one",
    },
    "tlsEnabledCipherSuites": {
        "HIGH": "'HIGH' is not a cipher suite that is served",
        "a\nb": "an example of one is TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "": "is empty",
        ",": "must name at least one",
    },
    "tlsCertFilesRefreshDurationSeconds": {
        "soon": "a whole number from -1 to 316224000",
        "1.5": "a whole number",
        HUGE: "a whole number",
    },
    "startTLSTimeoutSecs": dict.fromkeys(("soon", "1.5", "0", "-1", HUGE, ""), "")
    | {"86401": "a whole number from 1 to 86400"},
}
TLS_ON = {FACTORY: FACTORY_CLASS, "tlsTrustStore": "/trusted.pem"}
WRONG_OF_SASL = {
    PROVIDER: {"true": PROVIDER_CLASS, "SASLClientProviderFactory": PROVIDER_CLASS, " ": "empty for no authentication"},
    "allowAuthDisabled": _OF_FLAG,
    **dict.fromkeys(("saslJaasConfig", "saslJaasClientSectionName", "saslJaasAuditorSectionName"), _OF_FILE),
}
CHOICES = {option.name for option in OPTIONS if option.choices}
"""Options of few values."""
TAKES_ANY_TEXT = {"password"}


def wrong_values(option: Option) -> dict[str, str]:
    """Return texts that the option does not take, each with a part of its error message."""
    if option.name in CHOICES:
        return {"other": "is not one of", "": "is not one of", "1": "is not one of"}
    if option.name in TAKES_ANY_TEXT:
        return {}
    if option in TLS_OPTIONS:
        return WRONG_OF_TLS[option.name]
    if option in SASL_OPTIONS:
        return WRONG_OF_SASL[option.name]
    return WRONG_OF_CHECK.get(option.check) or {"soon": "such as", "-1": "such as", HUGE + "d": "such as"}


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"uri": URI, **options}, {})


def chosen(option: Option) -> dict[str, str]:
    """Return what else must be given with an option."""
    selects = ("ledgers", "logsPattern", "inspect", "topic", "topics", "topicsPattern")
    others = TLS_ON if option in TLS_OPTIONS else {PROVIDER: PROVIDER_CLASS} if option in SASL_OPTIONS else {}
    return others if option.name in selects else {"log": "a", **others}


def error_of(error: type[Exception], action) -> str:
    """Return the one-line error message."""
    with pytest.raises(error) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


CASES = [
    pytest.param(option, text, part, id=f"{option.name}-{text[:12]}")
    for option in OPTIONS
    # Those of ZooKeeper are read together: tests/spark/test_options.py.
    if option not in ZOOKEEPER_OPTIONS
    for text, part in wrong_values(option).items()
]


@pytest.mark.parametrize(("option", "text", "part"), CASES)
def test_wrong_type_or_range_names_option_value_and_what_is_right(option, text, part):
    message = error_of(ConfigurationError, lambda: parse(**(chosen(option) | {option.name: text})))
    assert f"option '{option.name}' is {values.shown(text)}" in message
    assert part in message


def test_every_option_has_wrong_values_here_or_takes_any_text():
    assert {option.name for option in OPTIONS if not wrong_values(option)} == TAKES_ANY_TEXT


def misspelt(name: str) -> list[str]:
    """Return a name with a letter left out, one doubled, and two exchanged, in the middle."""
    at = len(name) // 2
    return [name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:], name[:-2] + name[-1] + name[-2]]


NAMES = {option.name.lower(): option.name for option in OPTIONS}


def alike(name: str) -> list[str]:
    """Return the option and those whose names have one letter more or less: a misspelling may mean either."""
    return [each for each in NAMES.values() if each in (name, name[:-1]) or each[:-1] == name]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_unknown_name_is_answered_with_the_nearest(option):
    for name in misspelt(option.name):
        if len(name) < 4 or name.lower() == option.name.lower():
            continue  # of so short a name too little is left; exchanged twins change nothing
        if name.lower() in NAMES:
            continue  # `topic` is one, too
        message = error_of(ConfigurationError, lambda name=name: parse(log="a", **{name: "1"}))
        assert message in [f"unknown option '{name}': did you mean '{near}'?" for near in alike(option.name)]


VALID = {
    "uri": URI, "log": "a", "logsPattern": "a.*", "ledgers": "1", "inspect": "logs", "startingOffsets": "-5",
    "endingOffsets": "-5", "startingTimestamp": "5", "endingTimestamp": "5", "payloadFormat": "raw", "mode": "FAILFAST",
    "includeMetadata": "true", "failOnDataLoss": "true", "recover": "true", "unconfirmed": "true", "digestType": "mac",
    "ledgerType": "pd_journal", "ifExists": "append", "txnAppId": "x", "txnVersion": "1", "maxTriggerDelay": "1s",
    "maxLedgerAge": "1s", "ifPublished": "skip", "topic": "a", "topics": "a,b", "topicsPattern": "public/default/a.*",
    "pulsarUri": "zk://h:1", "pulsarConfigurationUri": "zk:h:1/chroot", "valueFormat": "raw", "encrypted": "skip",
    "isolation": "read_uncommitted", "readCompacted": "true", "publishTimeSlack": "1s",
    "mergeSchema": "true", "overwriteSchema": "true", "compression": "zstd",
    "jsonDialect": "spark",
}  # fmt: skip
USES = {READ: SourceOptions.for_batch_read, STREAM: SourceOptions.for_stream_read, WRITE: SourceOptions.for_write}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_option_without_effect_on_a_use_is_refused_there_by_name(option, use):
    if use in option.uses:
        return
    given = parse(**(chosen(option) | {option.name: VALID.get(option.name, "1")}))
    message = error_of(ConfigurationError, lambda: USES[use](given))
    assert f"option '{option.name}' has no effect on {use}" in message
    assert message.endswith("remove it")


CONFLICTS = [
    (READ, {"log": "a", "ledgers": "1"}, "exclude each other"),
    (READ, {"log": "a", "logsPattern": "a"}, "exclude each other"),
    (READ, {"inspect": "logs", "ledgers": "1"}, "exclude each other"),
    (READ, {"startingOffsets": "-5", "startingTimestamp": "5"}, "exclude each other"),
    (READ, {"endingOffsets": "-5", "endingTimestamp": "5"}, "exclude each other"),
    (READ, {"logsPattern": "a.*", "startingOffsets": '{"entry":0,"ledger":1,"ordinal":0,"version":1}'}, "their names"),
    (READ, {"startingOffsets": "-5", "endingOffsets": "-10"}, "exchange them"),
    (READ, {"startingOffsets": "-5", "endingOffsets": "-5"}, "they are the same: move one of them"),
    (READ, {"startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"}, "exchange them"),
    (
        READ,
        {"startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"},
        "'startingTimestamp' (2026-01-02T00:00",
    ),
    (READ, {"startingTimestamp": "-1h", "endingTimestamp": "-2h"}, "(3600000 ms ago) is not before"),
    (READ, {"startingTimestamp": "-1h", "endingTimestamp": "-1h"}, "they are the same: move one of them"),
    (READ, {"ledgers": "*", "ledgerMetadata.k": "v", "ledgerMetadata.!k": "v"}, "no ledger fulfils both"),
    (READ, {"ledgers": "*", "ledgerMetadata.k": "v", "ledgerMetadata.!k": "*"}, "no ledger fulfils both"),
    (READ, {"ledgers": "*", "ledgerMetadata.k": "*", "ledgerMetadata.!k": "*"}, "no ledger fulfils both"),
    (STREAM, {"ledgers": "*", "ledgerMetadata.k": "v", "ledgerMetadata.!k": "v"}, "no ledger fulfils both"),
    (READ, {"ledgers": "1", "recover": "true", "unconfirmed": "true"}, "exclude each other"),
    (READ, {"jsonDialect": "spark", "payloadFormat": "arrow"}, "the entries are arrow: remove it"),
    (STREAM, {"jsonDialect": "spark", "payloadFormat": "msgpack"}, "the entries are msgpack: remove it"),
    (STREAM, {"startingOffsets": "-5", "startingTimestamp": "5"}, "exclude each other"),
    (STREAM, {"minEntriesPerTrigger": "9", "maxEntriesPerTrigger": "8"}, "lower it"),
    (STREAM, {"maxTriggerDelay": "1m", "minEntriesPerTrigger": ""}, "minEntriesPerTrigger"),
    (WRITE, {"ensembleSize": "2", "writeQuorum": "3"}, "choose ensembleSize"),
    (WRITE, {"writeQuorum": "2", "ackQuorum": "3"}, "choose ensembleSize"),
    (WRITE, {"ledgerType": "vd_journal", "writeQuorum": "2"}, "to the same number"),
    (WRITE, {"txnVersion": "1", "txnAppId": ""}, "txnAppId"),
    (WRITE, {"ifPublished": "skip", "txnAppId": ""}, "txnAppId"),
]


def test_custom_metadata_that_no_ledger_can_keep_are_refused_before_any_task():
    """They are in one node of ZooKeeper, which takes less than 1 MiB."""
    given = {"ledgerMetadata.a": "x" * 200_000, "ledgerMetadata.b": "ü" * 50_000}
    message = error_of(ConfigurationError, parse(log="a", **given).for_write)
    assert "options 'ledgerMetadata.*' are 300002 bytes together, above the 262144" in message
    assert message.endswith("shorten them")


@pytest.mark.parametrize(("use", "given", "part"), CONFLICTS)
def test_options_in_conflict_are_both_named(use, given, part):
    first, second = given if "ledgers" not in given or len(given) == 2 else list(given)[1:]
    options = {name: text for name, text in given.items() if text}
    selects = {"log", "logsPattern", "ledgers", "inspect"} & options.keys()
    message = error_of(ConfigurationError, lambda: USES[use](parse(**({} if selects else {"log": "a"}), **options)))
    assert first in message
    assert second in message
    assert part in message


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"log": "a", "startingOffsets": "-5", "startingTimestamp": "5"}, "exclude each other"),
        ({"topic": "a", "readCompacted": "true", "endingTimestamp": "5"}, "'readCompacted' reads a topic completely"),
        ({"inspect": "logs", "pulsarUri": "zk://h:1"}, "'pulsarUri' has no effect on a read of 'inspect' logs"),
        ({"topic": "a", "publishTimeSlack": "1s"}, "'publishTimeSlack' needs 'startingTimestamp'"),
        (
            {"log": "a", "startingOffsets": "latest", "endingOffsets": "latest"},
            "'startingOffsets' is latest, and a batch",
        ),
        ({"log": "a", "endingOffsets": "earliest", "recover": "true"}, "'endingOffsets' is earliest, and a batch"),
        ({"log": "a", "recover": "true"}, "would fence a log's writer"),
        ({"ledgers": "1", "recover": "true", "unconfirmed": "true"}, "exclude each other"),
        ({"log": "a", "minEntriesPerTrigger": "9", "maxEntriesPerTrigger": "8"}, "lower it"),
        ({"log": "a", "ackQuorum": "1", "minPartitions": "2"}, "'minPartitions' for a batch read or a stream read"),
        ({"log": "a", "recover": "true", "maxEntriesPerTrigger": "8"}, "remove one of them"),
    ],
)
def test_options_that_no_read_takes_together_are_refused_at_load(given, part):
    assert part in error_of(ConfigurationError, lambda: BookKeeperDataSource({"uri": URI, **given}))


def test_options_that_a_read_or_a_write_takes_do_not_matter_for_load():
    for given in ({"startingOffsets": "latest"}, {"ensembleSize": "1"}, {"txnVersion": "1"}, {"ledgerMetadata.a": "b"}):
        BookKeeperDataSource({"uri": URI, "log": "a", **given})
    BookKeeperDataSource({"uri": URI, "inspect": "logs"})


@pytest.mark.parametrize("text", ["null", "true", "7", "[]", '"12:5"'])
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_invalid_offset_of_a_log_of_a_pattern_is_refused_with_the_option(option, text):
    options = parse(logsPattern="a|b", **{option: f'{{"a": {text}}}'})
    message = error_of(ConfigurationError, lambda: options.offset_of("a", option))
    assert f"option '{option}': the offset of log a is" in message
    assert options.offset_of("b", option) is None


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("kafka.bootstrap.servers", "uri"),
        ("subscribe", "log"),
        ("subscribePattern", "logsPattern"),
        ("assign", "ledgers"),
        ("startingOffsetsByTimestamp", "startingTimestamp"),
        ("endingOffsetsByTimestamp", "endingTimestamp"),
        ("maxOffsetsPerTrigger", "maxEntriesPerTrigger"),
        ("minOffsetsPerTrigger", "minEntriesPerTrigger"),
        ("maxRecordsPerPartition", "maxEntriesPerPartition"),
        ("includeHeaders", "includeMetadata"),
    ],
)
def test_option_of_kafkas_connector_is_answered_with_ours(theirs, ours):
    message = error_of(ConfigurationError, lambda: parse(log="a", **{theirs: "1"}))
    assert f"unknown option '{theirs}'" in message
    assert f"option '{ours}' here" in message


@pytest.mark.parametrize("theirs", ["primitivesAsString", "dateFormat", "inferTimestamp", "multiLine", "lineSep"])
def test_option_of_sparks_json_source_leads_to_from_json(theirs):
    """`dateFormat` was answered with "did you mean 'valueFormat'?"."""
    message = error_of(ConfigurationError, lambda: parse(log="a", **{theirs: "x"}))
    assert message == (
        f"unknown option '{theirs}': it belongs to Spark's JSON source: set jsonDialect=spark, or read with "
        "payloadFormat=raw and give it to from_json"
    )


def test_topic_as_the_destination_of_a_write_is_answered_with_log():
    """Kafka's connector writes to a topic; here a topic is Pulsar's, which its brokers alone write."""
    for given in ({"topic": "a"}, {"log": "a", "topic": "a"}):
        message = error_of(ConfigurationError, lambda given=given: parse(**given).for_write())
        assert "'topic'" in message
        assert "'log'" in message
        assert "write" in message
    assert "name the destination by option 'log'" in error_of(ConfigurationError, parse(topic="a").for_write)


@pytest.mark.parametrize("theirs", ["kafka.partitioner.class", "fetchOffset.numRetries", "kafka.receive.buffer.bytes"])
def test_option_of_kafkas_connector_without_a_like_is_to_be_removed(theirs):
    assert error_of(ConfigurationError, lambda: parse(log="a", **{theirs: "1"})).endswith("remove it")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("kafka.ssl.truststore.location", "tls…"), ("kafka.security.protocol", "tls…"), ("kafka.sasl.username", "sasl…")],
)
def test_options_of_kafkas_security_lead_to_ours(theirs, ours):
    assert f"options '{ours}' here" in error_of(ConfigurationError, lambda: parse(log="a", **{theirs: "1"}))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("versionAsOf", "endingOffsets"),
        ("timestampAsOf", "endingTimestamp"),
        ("startingVersion", "startingOffsets"),
        ("endingVersion", "endingOffsets"),
        ("maxFilesPerTrigger", "maxEntriesPerTrigger"),
        ("ignoreDeletes", "failOnDataLoss"),
        ("ignoreChanges", "failOnDataLoss"),
        ("skipChangeCommits", "failOnDataLoss"),
        ("userMetadata", "ledgerMetadata.KEY"),
    ],
)
def test_option_of_delta_is_answered_with_ours(theirs, ours):
    message = error_of(ConfigurationError, lambda: parse(log="a", **{theirs: "1"}))
    assert f"unknown option '{theirs}': it belongs to Delta: use option '{ours}' here" in message


@pytest.mark.parametrize(
    "theirs",
    ["readChangeFeed", "optimizeWrite", "schemaTrackingLocation", "withEventTimeOrder", "delta.enableChangeDataFeed"],
)
def test_option_of_delta_without_a_like_is_to_be_removed(theirs):
    assert error_of(ConfigurationError, lambda: parse(log="a", **{theirs: "1"})).endswith("here: remove it")


@pytest.mark.parametrize("theirs", ["replaceWhere", "partitionOverwriteMode"])
def test_delta_users_who_replace_a_part_are_led_to_the_column_log(theirs):
    assert "column 'log'" in error_of(ConfigurationError, lambda: parse(log="a", **{theirs: "1"}))


# ---- on a cluster ----


@pytest.fixture
def log(client):
    name = f"log-{uuid.uuid4().hex[:12]}"
    for _ in range(2):
        with client.log(name).open_for_writing() as writer:
            writer.append_many([b"one", b"two", b"three"])
    return name


def options(cluster, **others: str) -> SourceOptions:
    return SourceOptions.parse({"uri": cluster.uri, **others}, {})


def planned(cluster, **others: str):
    return BookKeeperReader(VALUE, options(cluster, **others)).partitions()


def positions_of(client, log: str) -> list[Position]:
    """Return where each ledger of the log begins."""
    listed = run(lambda: client.asynchronous.log(log).snapshot())
    return [Position(each.ordinal, each.ledger_id, 0) for each in run(listed.ledgers)]


@pytest.mark.cluster
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_position_beyond_the_end_is_refused_with_where_the_end_is(cluster, client, log, option):
    first, *_, last = positions_of(client, log)
    for position, part in ((last, "can be read up to"), (first, "ends at entry 2")):
        beyond = str(replace(position, entry_id=4))
        message = error_of(ConfigurationError, lambda beyond=beyond: planned(cluster, log=log, **{option: beyond}))
        assert f"option '{option}' is {beyond}" in message
        assert part in message
    assert planned(cluster, log=log, **{option: str(replace(first, entry_id=3))})


@pytest.mark.cluster
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_position_of_another_log_or_before_the_remaining_entries_is_refused(cluster, client, log, option):
    first, last = positions_of(client, log)
    other = str(replace(last, ledger_id=first.ledger_id))
    message = error_of(ConfigurationError, lambda: planned(cluster, log=log, **{option: other}))
    assert f"option '{option}': log {log} has ledger {last.ledger_id} at ordinal 1" in message
    client.log(log).truncate(last)
    gone = str(replace(first, entry_id=2))
    message = error_of(DataLoss, lambda: planned(cluster, log=log, **{option: gone}))
    assert f"option '{option}': log {log} begins at" in message
    assert "failOnDataLoss=false" in message
    left = planned(cluster, log=log, failOnDataLoss="false", **{option: gone})
    assert sum(len(each.reads) for each in left) == (1 if option == "startingOffsets" else 0)


@pytest.mark.cluster
def test_range_that_ends_before_it_begins_is_refused(cluster, client, log):
    first, *_, last = map(str, positions_of(client, log))
    message = error_of(ConfigurationError, lambda: planned(cluster, log=log, startingOffsets=last, endingOffsets=first))
    assert "'startingOffsets'" in message
    assert "'endingOffsets', so nothing would be read: exchange them" in message


@pytest.mark.cluster
def test_range_of_no_ledger_is_refused_unless_loss_is_allowed(cluster):
    nowhere = {"ledgers": "999999990-999999999"}
    assert "no ledger has such an id" in error_of(NoSuchLedger, lambda: planned(cluster, **nowhere))
    assert planned(cluster, **nowhere, failOnDataLoss="false") == []
    message = error_of(NoSuchLedger, lambda: planned(cluster, ledgers="999999990"))
    assert "option 'ledgers' names ledger 999999990, which does not exist: leave it out" in message
    assert "failOnDataLoss=false" in message
    assert planned(cluster, ledgers="999999990", failOnDataLoss="false") == []


@pytest.mark.parametrize("payload_format", ["raw", "arrow", "json", "msgpack"])
def test_rows_without_a_column_are_not_written_as_nothing(payload_format):
    given = parse(log="a", payloadFormat=payload_format)
    assert "no column" in error_of(ConfigurationError, lambda: Destination(StructType(), given, is_overwrite=False))


@pytest.mark.parametrize(
    ("column", "given", "option"),
    [("ledger_ctime", {"log": "a"}, "includeMetadata"), ("position", {"ledgers": "1"}, "'log' or 'logsPattern'")],
)
def test_column_that_needs_an_option_names_it(column, given, option):
    wanted = StructType().add("value", "binary").add(column, "timestamp" if "time" in column else "string")
    assert option in error_of(ConfigurationError, lambda: BookKeeperReader(wanted, parse(**given)))


@pytest.mark.cluster
def test_missing_log_deleted_ledger_and_wrong_password_say_what_to_do(cluster, client, log):
    message = error_of(NoSuchLog, lambda: planned(cluster, log="nowhere"))
    assert "option 'log': log nowhere does not exist: check the name, or create it first" in message
    message = error_of(UnauthorizedAccess, lambda: planned(cluster, log=log, password="wrong"))
    assert "option 'password': " in message
    assert "give the one it was created with" in message
    middle = positions_of(client, log)[0].ledger_id
    client.delete(middle)
    message = error_of(DataLoss, lambda: planned(cluster, log=log))
    assert f"ledger {middle} of log {log} does not exist any more" in message
    assert "failOnDataLoss=false" in message


@pytest.mark.cluster
def test_write_with_another_password_than_the_log_has_is_refused_before_any_row(cluster, log):
    other = options(cluster, log=log, password="other")
    message = error_of(UnauthorizedAccess, lambda: BookKeeperWriter(VALUE, other, False))
    assert f"option 'password' is not the one that log {log} is written with" in message
    BookKeeperWriter(VALUE, other, True)  # an overwrite leaves nothing of the old password


@pytest.mark.cluster
def test_password_that_a_log_was_written_with_is_compared_again_when_the_log_was_made_again(cluster, client, log):
    def write() -> None:
        BookKeeperWriter(VALUE, options(cluster, log=log), False)

    write()
    client.log(log).delete()
    with Client(cluster.uri, password=b"other") as other, other.log(log).open_for_writing() as writer:
        writer.append(b"x")
    assert f"option 'password' is not the one that log {log} is written with" in error_of(UnauthorizedAccess, write)


@pytest.mark.cluster
def test_write_to_a_cluster_of_read_only_bookies_says_so(cluster):
    uri = MetadataUri.parse(f"{cluster.uri}-{uuid.uuid4().hex[:12]}")

    async def make() -> Tree:
        tree = await open_tree(uri)
        registry = BookieRegistry(tree, uri)
        await registry.initialize_cluster()
        await registry.register("127.0.0.1:1", BookieAddress("127.0.0.1", 1), read_only=True)
        return tree

    session = run(make)
    try:
        written = SourceOptions.parse({"uri": str(uri), "log": "a"}, {})
        message = error_of(NotEnoughBookies, lambda: BookKeeperWriter(VALUE, written, False))
    finally:
        run(session.close)
    assert "option 'ensembleSize' is 3, but only 0 bookies take writes (1 more are read-only" in message


@pytest.mark.cluster
def test_write_to_one_bookie_fewer_than_a_ledger_needs_is_refused_before_any_row(cluster):
    count = len(cluster.bookies)
    wanted = options(cluster, log=f"log-{uuid.uuid4().hex[:12]}", ensembleSize=str(count + 1), writeQuorum=str(count))
    message = error_of(NotEnoughBookies, lambda: BookKeeperWriter(VALUE, wanted, False))
    assert (
        f"option 'ensembleSize' is {count + 1}, but only {count} bookies take writes: start more, or lower" in message
    )
