"""Options of other sources, which users may bring with them, and what to use instead. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KAFKA_NAMES = {
    "kafka.bootstrap.servers": "uri",
    "subscribe": "log",
    "subscribePattern": "logsPattern",
    "assign": "ledgers",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "endingOffsetsByTimestamp": "endingTimestamp",
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger",
    "minOffsetsPerTrigger": "minEntriesPerTrigger",
    "maxRecordsPerPartition": "maxEntriesPerPartition",
    "includeHeaders": "includeMetadata",
    "groupIdPrefix": "consumer",
    "kafka.group.id": "consumer",
    "kafkaConsumer.pollTimeoutMs": "bookkeeper.readTimeout",
    "kafka.auto.offset.reset": "startingOffsets",
    "kafka.acks": "ackQuorum",
    "kafka.compression.type": "compression",
    "kafka.batch.size": "entryTargetBytes",
    "kafka.linger.ms": "entryTargetBytes",
    "kafka.transactional.id": "txnAppId",
    "kafka.enable.idempotence": "txnAppId",
}
"""Options of Spark's connector for Kafka that have an equivalent here under another name."""
_KAFKA_FAMILIES = {
    "kafka.ssl.": "tls…",
    "kafka.security.protocol": "tls…",
    "kafka.sasl.": "sasl…",
}
"""The options that replace families of Kafka's client options, by the beginning of their names."""
_KAFKA_PREFIXES = ("kafka.", "kafkaconsumer.", "fetchoffset.", "startingoffsetsbytimestampstrategy")
_OF_KAFKA = {theirs.lower(): ours for theirs, ours in KAFKA_NAMES.items()}
DELTA_NAMES = {
    "versionAsOf": "endingOffsets",
    "timestampAsOf": "endingTimestamp",
    "startingVersion": "startingOffsets",
    "endingVersion": "endingOffsets",
    "maxFilesPerTrigger": "maxEntriesPerTrigger",
    "ignoreDeletes": "failOnDataLoss",
    "ignoreChanges": "failOnDataLoss",
    "skipChangeCommits": "failOnDataLoss",
    "userMetadata": "ledgerMetadata.KEY",
}
"""Options of Delta that have an equivalent here under another name."""
_OF_DELTA = {theirs.lower(): ours for theirs, ours in DELTA_NAMES.items()}
_DELTA_PARTS = ("replacewhere", "partitionoverwritemode")
_DELTA_ONLY = (
    "readchangefeed",
    "readchangedata",
    "optimizewrite",
    "maxrecordsperfile",
    "datachange",
    "schematrackinglocation",
    "schemalocation",
    "witheventtimeorder",
    "excluderegex",
)
_OF_PULSAR_SPARK = {
    "service.url": "no broker is used: 'uri' names BookKeeper's metadata, 'pulsarUri' Pulsar's",
    "admin.url": "no broker is used: 'uri' names BookKeeper's metadata, 'pulsarUri' Pulsar's",
    "predefinedsubscription": "nothing is acknowledged: the checkpoint says what was read",
    "subscriptionprefix": "nothing is acknowledged: the checkpoint says what was read",
    "startingtime": "use option 'startingTimestamp' here",
    "endingtime": "use option 'endingTimestamp' here",
    "allowdifferenttopicschemas": "use valueFormat=raw here",
    "polltimeoutms": "use option 'bookkeeper.readTimeout' here",
    "waitingfornonexistedtopic": "start the query when the topic exists, or set topicsPattern, which finds new ones",
}
"""Options of pulsar-spark that do not exist here, and what to use instead."""
_OF_SPARKS_JSON = frozenset(
    [
        "primitivesasstring",
        "prefersdecimal",
        "allowcomments",
        "allowunquotedfieldnames",
        "allowsinglequotes",
        "allownumericleadingzeros",
        "allowbackslashescapinganycharacter",
        "allowunquotedcontrolchars",
        "allownonnumericnumbers",
        "dateformat",
        "timestampformat",
        "timestampntzformat",
        "enabledatetimeparsingfallback",
        "multiline",
        "encoding",
        "charset",
        "linesep",
        "samplingratio",
        "dropfieldifallnull",
        "locale",
        "ignorenullfields",
        "infertimestamp",
        "badrecordspath",
        "timezone",
        "singlevariantcolumn",
    ]
)
"""Options of Spark's own JSON source and of from_json, which do not exist here."""
_PULSAR_PREFIXES = ("pulsar.client.", "pulsar.admin.", "pulsar.reader.", "pulsar.producer.", "pulsar.consumer.")


def remedy_of_others(key: str) -> str | None:
    """Return what to do instead of an option, lower-cased, of Kafka's connector, Delta, pulsar-spark or Spark's
    JSON source; None if it is not one."""
    if key.startswith(_PULSAR_PREFIXES):
        return "it configures a client of Pulsar's brokers, which are not used here: remove it"
    if key in _OF_SPARKS_JSON:
        return (
            "it belongs to Spark's JSON source: set jsonDialect=spark, or read with payloadFormat=raw and give it to "
            "from_json"
        )
    if key in _OF_PULSAR_SPARK:
        return _OF_PULSAR_SPARK[key]
    if key in _OF_KAFKA:
        return f"it belongs to Kafka's connector: use option '{_OF_KAFKA[key]}' here"
    for prefix, ours in _KAFKA_FAMILIES.items():
        if key.startswith(prefix):
            return f"it belongs to Kafka's connector: use options '{ours}' here, see docs/security.md"
    if key.startswith(_KAFKA_PREFIXES):
        return "it belongs to Kafka's connector and has no equivalent here: remove it"
    return _remedy_of_delta(key)


def _remedy_of_delta(key: str) -> str | None:
    if key in _OF_DELTA:
        return f"it belongs to Delta: use option '{_OF_DELTA[key]}' here"
    if key in _DELTA_PARTS:
        return "it belongs to Delta; mode overwrite without option 'log' replaces the logs that column 'log' names"
    if key in _DELTA_ONLY or key.startswith("delta."):
        return "it belongs to Delta and has no equivalent here: remove it"
    return None


def are_kafkas_offsets(value: Mapping[str, Any]) -> bool:
    """Whether offsets have the form of Kafka's connector: `{"topic": {"0": 23, "1": -2}}`."""
    partitions = [key for offsets in value.values() if isinstance(offsets, dict) for key in offsets]
    return bool(partitions) and all(key.isdecimal() for key in partitions)
