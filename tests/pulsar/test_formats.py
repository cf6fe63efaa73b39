"""Names and metadata as Pulsar stores them, and the checked-in protobuf module."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.pulsar import metadata
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.metadata import EntryPosition, SchemaVersion
from bkspark.pulsar.names import TopicName, decoded, encoded
from tests.generated_modules import check_generated
from tests.pulsar.entries import CODECS, compressed


def test_generated_module_is_what_its_proto_file_says(tmp_path: Path) -> None:
    check_generated(formats.DESCRIPTOR, "bkspark/pulsar/pulsar_formats.proto", tmp_path)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("sub/one", "sub%2Fone"), ("a b", "a+b"), ("a+b", "a%2Bb"), ("ü~*-_.", "%C3%BC%7E*-_."), ("100%", "100%25")],
)
def test_names_are_encoded_as_javas_url_encoder_does(name: str, wanted: str) -> None:
    assert encoded(name) == wanted
    assert decoded(wanted) == name


def test_short_full_and_legacy_names_lead_to_their_nodes() -> None:
    topic = TopicName.parse("clicks")
    assert str(topic) == "persistent://public/default/clicks"
    assert topic.managed_ledger_path == "/managed-ledgers/public/default/persistent/clicks"
    part = TopicName.parse("persistent://t/n/a b-partition-12")
    assert (part.partition, str(part.whole)) == (12, "persistent://t/n/a b")
    assert part.partitions_path == "/admin/partitioned-topics/t/n/persistent/a+b-partition-12"
    assert part.schema_path == "/schemas/t/n/a+b"
    legacy = TopicName.parse("persistent://t/c/n/a/b")
    assert legacy.managed_ledger == "t/c/n/persistent/a%2Fb"
    assert legacy.schema_id == "t/n/a%2Fb"
    for each in (topic, part, legacy):
        assert TopicName.of_managed_ledger(each.managed_ledger) == each


@pytest.mark.parametrize(
    "name", ["", "a/b", "non-persistent://t/n/x", "http://t/n/x", "persistent://t/n", "t/../x", "t//x", "t/n/..", "."]
)
def test_what_is_not_a_name_of_a_stored_topic_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        TopicName.parse(name)


@pytest.mark.parametrize(
    "name",
    [
        "pulsar/system/x",
        "__change_events",
        "__change_events-partition-0",
        "__transaction_buffer_snapshot_indexes",
        "t__transaction_pending_ack-partition-1",
    ],
)
def test_topics_of_pulsar_itself_are_known(name: str) -> None:
    assert TopicName.parse(name).is_system


@pytest.mark.parametrize("name", ["pulsar/systems/x", "__change_events_of_mine", "__transaction_buffer_snapshots"])
def test_topics_that_are_called_alike_are_those_of_users(name: str) -> None:
    assert not TopicName.parse(name).is_system


def test_name_that_is_nothing_but_a_number_of_a_partition_is_a_topic() -> None:
    assert TopicName.parse("-partition-0").partition == -1


def listed() -> formats.ManagedLedgerInfo:
    info = formats.ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=3, entries=5, size=100, timestamp=1000)
    info.ledgerInfo.add(ledgerId=9, timestamp=0)
    return info


@pytest.mark.parametrize("codec", CODECS)
def test_list_of_ledgers_is_read_also_where_the_node_is_compressed(codec: int) -> None:
    plain = listed().SerializeToString() * 1
    header = formats.CompressedInfo(compressionType=codec, uncompressedSize=len(plain)).SerializeToString()
    node = struct.pack(">Hi", 0x4778, len(header)) + header + compressed(codec, plain)
    for data in (plain, node):
        found = metadata.decode_managed_ledger(data, "/p")
        assert [(each.ledger_id, each.entries, each.closed_ms) for each in found.ledgers] == [
            (3, 5, 1000),
            (9, None, None),
        ]
    for size in range(3, len(node)):
        try:
            metadata.decode_managed_ledger(node[:size], "/p")
        except MetadataFormat:
            continue


def test_cursors_count_what_they_acknowledged_out_of_order() -> None:
    info = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=39, markDeleteEntryId=2)
    taken = info.individualDeletedMessages.add()
    taken.lowerEndpoint.ledgerId, taken.lowerEndpoint.entryId = 39, 4
    taken.upperEndpoint.ledgerId, taken.upperEndpoint.entryId = 39, 5
    found = metadata.decode_cursor(info.SerializeToString(), "/p")
    assert (found.mark_delete, found.acknowledged_in(39, 100)) == (EntryPosition(39, 2), 1)
    assert (found.acknowledged_in(39, 5), found.acknowledged_in(40, 100)) == (0, 0)
    entry = formats.PositionInfo(ledgerId=39, entryId=3)
    entry.individualDeletedMessageRanges.add(key=39, values=[0b101 << 4, -1])
    entry.individualDeletedMessageRanges.add(key=41, values=[1])
    found = metadata.decode_cursor_entry(entry.SerializeToString(), 43, "/p")
    assert [found.acknowledged_in(39, size) for size in (0, 5, 7, 65, 1 << 40)] == [0, 1, 2, 3, 66]
    assert [found.acknowledged_in(ledger, 9) for ledger in (40, 41)] == [0, 1]


def test_acknowledgements_up_to_the_mark_delete_position_are_not_counted_again() -> None:
    entry = formats.PositionInfo(ledgerId=39, entryId=4)
    entry.individualDeletedMessageRanges.add(key=39, values=[0b1010_0001])
    assert metadata.decode_cursor_entry(entry.SerializeToString(), 43, "/p").acknowledged_in(39, 9) == 2
    taken = entry.individualDeletedMessages.add()
    taken.lowerEndpoint.ledgerId, taken.lowerEndpoint.entryId = 38, 1
    taken.upperEndpoint.ledgerId, taken.upperEndpoint.entryId = 40, 2
    del entry.individualDeletedMessageRanges[:]
    found = metadata.decode_cursor_entry(entry.SerializeToString(), 43, "/p")
    assert [found.acknowledged_in(ledger, 9) for ledger in (37, 38, 39, 40, 41)] == [0, 7, 4, 3, 0]


def test_partitions_policies_and_schemas_are_read_and_anything_else_is_refused() -> None:
    assert metadata.decode_partitions(b'{"partitions":2,"deleted":false}', "/p") == 2
    assert metadata.decode_partitions(b'{"partitions":2,"deleted":true}', "/p") == 0
    assert not metadata.has_retention(b"{}", "/p")
    position = formats.SchemaPosition(ledgerId=5, entryId=0)
    locator = formats.SchemaLocator(info=formats.IndexEntry(version=1, position=position))
    locator.index.add(version=0, position=formats.SchemaPosition(ledgerId=-1, entryId=-1))
    assert metadata.decode_schema_locator(locator.SerializeToString(), "/p") == (SchemaVersion(1, EntryPosition(5, 0)),)
    for decode in (
        metadata.decode_partitions,
        metadata.has_retention,
        metadata.decode_cursor,
        metadata.decode_schema_entry,
    ):
        with pytest.raises(MetadataFormat):
            decode(b"[", "/p")


def test_most_partitions_that_there_may_be_are_counted() -> None:
    most = metadata.PARTITIONS_MAX
    assert metadata.decode_partitions(b'{"partitions": %d}' % most, "/p") == most
    with pytest.raises(MetadataFormat, match="is not a number of partitions"):
        metadata.decode_partitions(b'{"partitions": %d}' % (most + 1), "/p")


def test_ledger_is_listed_once() -> None:
    info = formats.ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=3)
    info.ledgerInfo.add(ledgerId=3)
    with pytest.raises(MetadataFormat, match="its ledgers do not ascend"):
        metadata.decode_managed_ledger(info.SerializeToString(), "/t")


@pytest.mark.parametrize(("complete", "deleted"), [(False, False), (True, False), (False, True), (True, True)])
def test_ledger_is_on_bookies_unless_its_copy_is_complete_and_they_deleted_it(complete: bool, deleted: bool) -> None:
    info = formats.ManagedLedgerInfo()
    offload = info.ledgerInfo.add(ledgerId=3).offloadContext
    offload.complete, offload.bookkeeperDeleted = complete, deleted
    (listed,) = metadata.decode_managed_ledger(info.SerializeToString(), "/t").ledgers
    assert listed.is_on_bookies == (not (complete and deleted))
    assert (listed.offload is not None) == complete


@pytest.mark.parametrize(
    ("minutes", "megabytes", "keeps"),
    [(0, 0, False), (10, 0, False), (0, 10, False), (-1, 0, False), (0, -1, False), (10, 1, True), (-1, -1, True)],
)
def test_retention_by_time_and_by_size_keeps_what_was_acknowledged(minutes: int, megabytes: int, keeps: bool) -> None:
    """ManagedLedgerImpl deletes a ledger that is beyond one of the two, and each one is beyond a limit of 0. Newer
    brokers refuse to store such policies; older ones did not."""
    policies = {"retention_policies": {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}}
    assert metadata.has_retention(json.dumps(policies).encode(), "/p") == keeps


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("a|b", "ab"),
        ("a|public/default/b", "ab"),
        ("a|persistent://public/default/b", "ab"),
        ("(a|b).*", "ab"),
        (".*default.*", ""),
        ("a|public/other/b", "a"),
        ("(?i)B", "b"),
        ("", ""),
    ],
)
def test_pattern_is_for_local_names_and_for_whole_ones_where_it_has_them(pattern: str, wanted: str) -> None:
    """Pulsar's clients match whole names, so that each alternative of a pattern may have the namespace."""
    assert [name for name in "abc" if TopicName.parse(name).matches(pattern)] == list(wanted)


@pytest.mark.parametrize("suffix", ["01", "00", "-1", "1x"])
def test_number_that_no_broker_writes_names_no_partition(suffix: str) -> None:
    topic = TopicName.parse(f"clicks-partition-{suffix}")
    assert (topic.partition, topic.whole) == (-1, topic)
