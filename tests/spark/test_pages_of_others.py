"""The pages for users of other connectors list their options and the counterparts in this one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bkspark.spark import foreign_options
from bkspark.spark.client_settings import PREFIX, SETTINGS
from bkspark.spark.option_table import OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
KAFKA = re.findall(
    r"\S+",
    """
    assign subscribe subscribePattern kafka.bootstrap.servers startingTimestamp startingOffsetsByTimestamp
    startingOffsets endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss kafkaConsumer.pollTimeoutMs
    fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay
    minPartitions maxRecordsPerPartition groupIdPrefix kafka.group.id includeHeaders startingOffsetsByTimestampStrategy
    topic key value partition offset timestamp timestampType headers kafka.partitioner.class kafka.auto.offset.reset
    kafka.key.deserializer kafka.value.deserializer kafka.key.serializer kafka.value.serializer kafka.enable.auto.commit
    kafka.interceptor.classes kafka.security.protocol kafka.ssl.* kafka.sasl.* spark.kafka.clusters.*
    spark.kafka.consumer.cache.* spark.kafka.consumer.fetchedData.cache.* spark.kafka.producer.cache.*
    spark.sql.streaming.kafka.useDeprecatedOffsetFetching spark.security.credentials.kafka.enabled offsetOutOfRange
    dataLoss avgOffsetsBehindLatest
    """,
)
"""Options, columns and settings of Spark's connector for Kafka, as its guide lists them."""
PULSAR = re.findall(
    r"\S+",
    """
    service.url admin.url maxBytesPerTrigger predefinedSubscription subscriptionPrefix topic topics topicsPattern
    pollTimeoutMs waitingForNonExistedTopic startingOffsets endingOffsets startingTime failOnDataLoss
    allowDifferentTopicSchemas pulsar.client.* pulsar.admin.* pulsar.reader.* pulsar.producer.* __key __topic
    __messageId __publishTime __eventTime __messageProperties value
    """,
)
"""The same of pulsar-spark, as its README lists them."""


def rows(page: str) -> list[tuple[set[str], str]]:
    """Return (names of the other connector, what is here) of each row of a page's tables."""
    lines = re.findall(r"^\| (.+?) \| (.*?) \|(?: .*\|)?$", (DOCS / page).read_text(), re.MULTILINE)
    return [(set(re.findall(r"`([^`]+)`", theirs)), ours) for theirs, ours in lines]


@pytest.mark.parametrize("name", KAFKA)
def test_every_option_and_column_of_kafkas_connector_has_a_row(name: str) -> None:
    assert any(name in theirs for theirs, _ in rows("from-kafka.md"))


@pytest.mark.parametrize("name", PULSAR)
def test_every_option_and_column_of_pulsar_spark_has_a_row(name: str) -> None:
    assert any(name in theirs for theirs, _ in rows("from-pulsar.md"))


def test_the_page_agrees_with_the_errors_that_such_options_end_in() -> None:
    for theirs, ours in foreign_options.KAFKA_NAMES.items():
        assert any(theirs in names and f"`{ours}`" in here for names, here in rows("from-kafka.md")), theirs


def test_deltas_page_agrees_with_the_errors_that_its_options_end_in() -> None:
    for theirs, ours in foreign_options.DELTA_NAMES.items():
        assert any(theirs in names and f"`{ours}" in here for names, here in rows("from-delta.md")), theirs


@pytest.mark.parametrize("page", ["from-kafka.md", "from-delta.md", "from-pulsar.md"])
def test_what_takes_their_place_exists(page: str) -> None:
    known = {option.name for option in OPTIONS} | {f"{PREFIX}{name}" for name in SETTINGS}
    columns = {"value", "log", "position", "append_time", "ledger_metadata", "uri", "entries_behind", "bytes_behind"}
    others = {"raw", "latestOffset", "bkspark.lag", "clicks\\|orders", "bookkeeper.*", "foreachBatch", "WITH (…)"}
    others |= {"none", "lz4", "zstd", "arrow", "latest", "--files", "ledgerMetadata.KEY"}
    for _, ours in rows(page):
        for name in re.findall(r"`([^`]+)`", ours):
            is_known = (
                name.partition("=")[0] in known or name in columns | others or name.startswith(("bkspark ", ".mode"))
            )
            assert is_known, f"{page}: {name}"
