"""Node formats: what was written is read back; anything else is refused by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from bkspark.errors import ConfigurationError, MetadataError, MetadataFormat
from bkspark.log import formats
from bkspark.log.formats import LogHead, PageRef, PendingLedger, SchemaRef, SegmentFacts, SegmentOwner
from bkspark.log.positions import Position
from bkspark.log.retention import Retention
from bkspark.log.times import Mark, TimeIndex, TimePageRef
from tests.log.head_text import EXAMPLE

TOKEN = "00000000000000aa"
LARGEST = (1 << 63) - 1


def test_the_head_of_the_specification_is_the_head_that_is_written() -> None:
    head = LogHead(
        log_id=TOKEN,
        root="/ledgers",
        changes=(TOKEN,),
        tail=(SegmentFacts(12, 99, 102400), SegmentFacts(13)),
        open_ordinals=(1,),
        last_epochs=(("q1", 7),),
    )
    assert formats.encode_head(head) == EXAMPLE.encode()
    assert formats.decode_head(EXAMPLE.encode(), "/path") == head
    specified = "".join(line.strip("`") for line in (formats.__doc__ or "").splitlines())
    assert EXAMPLE in specified


def test_a_head_with_every_field_is_read_back() -> None:
    head = LogHead(
        log_id=TOKEN,
        root="/a/b",
        changes=(TOKEN, "0123456789abcdef"),
        first_ordinal=2_100,
        start=Position(2_099, 5, 7),
        pages=(PageRef(f"2000-{TOKEN}"), PageRef(f"4000-{TOKEN}")),
        tail_ordinal=4_500,
        tail=(SegmentFacts(12, -1, 0),),
        open_ordinals=(4_400, 4_500),
        writer=TOKEN,
        last_epochs=(("b", 1), ("a", LARGEST)),
        condemned=(TOKEN,),
        is_deleted=True,
    )
    assert formats.decode_head(formats.encode_head(head), "/path") == head
    assert head.end_ordinal == 4_501
    assert [head.page_end(0), head.page_end(1)] == [4_000, 4_500]


def test_the_other_nodes_are_read_back() -> None:
    ledgers = (SegmentFacts(1), SegmentFacts(LARGEST, LARGEST - 1, LARGEST))
    assert formats.decode_page(formats.encode_page(7, ledgers), "/path") == (7, ledgers)
    assert formats.decode_condemned(formats.encode_condemned([3, 1]), "/path") == (3, 1)
    owner = SegmentOwner("query", "q", epoch=3, partition=0, attempt=1)
    pending = PendingLedger(12, owner, 40, 999)
    assert formats.decode_pending(formats.encode_pending(owner, 40), "/path", 12, 999) == pending


def _mutations() -> list[bytes]:
    """Return heads of which one member is missing, of another type, or out of bounds."""
    members = json.loads(EXAMPLE)
    wrong = [
        None,
        True,
        -1,
        1.5,
        "x",
        [],
        [[]],
        {},
        [1],
        ["x"],
        [[1, 2]],
        [-1],
        LARGEST + 1,
        [[LARGEST + 1]],
        [[1, "x"]],
    ]
    found = []
    for key in members:
        found.append({name: value for name, value in members.items() if name != key})
        found += [{**members, key: value} for value in wrong]
    found.append({**members, "more": 1})
    return [json.dumps(item).encode() for item in found]


def test_a_head_with_one_wrong_member_is_refused_or_read_unchanged() -> None:
    refused = 0
    for data in _mutations():
        try:
            head = formats.decode_head(data, "/path")
        except MetadataFormat:
            refused += 1
        else:
            assert json.loads(formats.encode_head(head)) == json.loads(data)
    assert refused > 150


@pytest.mark.parametrize(
    ("member", "value", "reason"),
    [
        ("id", "no token", "id is not 16 hexadecimal digits"),
        ("writer", "00000000000000AA", "writer is not 16 hexadecimal digits"),
        ("last_epochs", [[7, 1]], "last_epochs has an item that is not"),
    ],
)
def test_a_head_with_a_name_of_another_form_is_refused(member: str, value: object, reason: str) -> None:
    data = json.dumps({**json.loads(EXAMPLE), member: value}).encode()
    with pytest.raises(MetadataFormat, match=reason):
        formats.decode_head(data, "/p")


def test_truncated_and_damaged_nodes_raise_only_the_format_error() -> None:
    data = EXAMPLE.encode()
    chance = random.Random(5)
    damaged = [data[:length] for length in range(len(data))]
    damaged += [bytes(chance.randrange(256) for _ in range(chance.randrange(60))) for _ in range(200)]
    damaged += [b"[" * 50_000, b"9" * 5_000, b'{"version":' + b"9" * 5_000 + b"}"]
    decoders = [
        formats.decode_head,
        formats.decode_page,
        formats.decode_condemned,
        lambda data, path: formats.decode_pending(data, path, 1, 0),
    ]
    for decode in decoders:
        for item in damaged:
            with pytest.raises(MetadataFormat, match="/p"):
                decode(item, "/p")


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (formats.decode_page, formats.encode_page(7, [SegmentFacts(1)])),
        (formats.decode_condemned, formats.encode_condemned([3])),
        (
            lambda data, path: formats.decode_pending(data, path, 1, 0),
            formats.encode_pending(SegmentOwner("job", "j"), 4),
        ),
    ],
)
def test_a_node_that_says_more_than_is_known_is_refused(decode: Callable[[bytes, str], object], data: bytes) -> None:
    """A later version may have added what must not be dropped."""
    decode(data, "/p")
    with pytest.raises(MetadataFormat, match="unknown member 'more'"):
        decode(json.dumps({**json.loads(data), "more": 1}).encode(), "/p")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pages": [f"5-{TOKEN}"], "tail_ordinal": 5, "first_ordinal": 5, "open": []}, "ascend"),
        ({"first_ordinal": 3, "open": []}, "first_ordinal 3 lies outside"),
        ({"open": [2]}, "open names a ledger outside"),
        ({"changes": []}, "changes is empty"),
    ],
)
def test_a_head_whose_parts_contradict_each_other_is_refused(changes: dict[str, object], reason: str) -> None:
    data = json.dumps({**json.loads(EXAMPLE), **changes}).encode()
    with pytest.raises(MetadataFormat, match=reason):
        formats.decode_head(data, "/p")


def test_a_newer_version_is_refused_with_the_remedy() -> None:
    data = json.dumps({**json.loads(EXAMPLE), "version": 7}).encode()
    with pytest.raises(MetadataFormat, match="version 7, this bkspark reads 6: use a newer one"):
        formats.decode_head(data, "/p")
    page = json.dumps({"first_ordinal": 0, "ledgers": [], "version": 2}).encode()
    with pytest.raises(MetadataFormat, match="version 2, this bkspark reads 1: use a newer one"):
        formats.decode_page(page, "/p")


def test_a_head_that_names_a_query_has_a_version_that_an_older_bkspark_refuses() -> None:
    """It would take another query's rows for a repetition, and drop them."""
    named = (("q1", 7), ("app", 3, "q2"))
    head = LogHead(TOKEN, "/ledgers", (TOKEN,), last_epochs=named, has_slices=True)
    data = formats.encode_head(head)
    assert b'"last_epochs":[["q1",7],["app",3,"q2"]]' in data
    assert b'"version":3' in data
    assert formats.decode_head(data, "/p") == head
    for wrong in (b'["app",3,7]', b'["app",3,null]', b'["app",3,"q2",1]', b'["app"]'):
        with pytest.raises(MetadataFormat, match=r"last_epochs (has|holds)"):
            formats.decode_head(data.replace(b'["app",3,"q2"]', wrong), "/p")
    for wrong in (b'["app","3","q2"]', b'["app",-1,"q2"]', b'["app",3.5,"q2"]', b'["app",true,"q2"]'):
        with pytest.raises(MetadataFormat, match="last_epochs"):
            formats.decode_head(data.replace(b'["app",3,"q2"]', wrong), "/p")
    for older in (b'"version":1', b'"version":2'):
        with pytest.raises(MetadataFormat, match=r"last_epochs (has|holds)"):
            formats.decode_head(data.replace(b'"version":3', older), "/p")


def test_a_head_with_slices_has_a_version_that_an_older_bkspark_refuses() -> None:
    head = LogHead(TOKEN, "/ledgers", (TOKEN,), tail=(SegmentFacts(12, 99, 500, 40),), has_slices=True)
    data = formats.encode_head(head)
    assert b'"tail":[[12,99,500,40]]' in data
    assert b'"version":2' in data
    assert formats.decode_head(data, "/p") == head
    with pytest.raises(MetadataFormat, match="tail holds a slice"):
        formats.decode_head(data.replace(b'"version":2', b'"version":1'), "/p")
    for wrong in (b"[12,99,500,0]", b"[12,99,500,100]", b"[12,99,500,-1]", b"[12,99]"):
        with pytest.raises(MetadataFormat):
            formats.decode_head(data.replace(b"[12,99,500,40]", wrong), "/p")


@pytest.mark.parametrize(
    "value", [["age_ms", "bytes"], {"age_ms": 5}, {"age_ms": 5, "bytes": 7, "more": 1}, None], ids=str
)
def test_retention_is_an_object_of_its_two_limits(value: object) -> None:
    with pytest.raises(ValueError, match="retention is not an object of age_ms and bytes"):
        Retention.from_json(value)


def test_a_head_with_times_or_retention_has_a_version_that_an_older_bkspark_refuses() -> None:
    """It would append without a time, and the entries would get that of earlier ones."""
    times = TimeIndex((TimePageRef(0, 0, 5, 3, TOKEN),), (Mark(1, 7, 9), Mark(2, 0, 10)))
    slice_ = (SegmentFacts(12, 99, 500, 40),)
    for head in (
        LogHead(TOKEN, "/ledgers", (TOKEN,), times=times, retention=Retention(5, None)),
        LogHead(TOKEN, "/ledgers", (TOKEN,), times=times, has_slices=True, tail=slice_),
        LogHead(TOKEN, "/ledgers", (TOKEN,), retention=Retention(None, 7), last_epochs=(("app", 3, "q2"),)),
        LogHead(TOKEN, "/ledgers", (TOKEN,), times=times, schemas=(SchemaRef(0, 1, "a" * 32),)),
    ):
        data = formats.encode_head(head)
        assert b'"version":5' in data
        assert formats.decode_head(data, "/p") == head
        with pytest.raises(MetadataFormat):
            formats.decode_head(data.replace(b'"version":5', b'"version":4'), "/p")
    data = formats.encode_head(LogHead(TOKEN, "/ledgers", (TOKEN,), times=times, retention=Retention(5, None)))
    for right, wrong in (
        (b"[[1,7,9],[2,0,10]]", b"[[1,7,9],[2,0,8]]"),
        (b"[[1,7,9],[2,0,10]]", b"[]"),
        (b"[[1,7,9],[2,0,10]]", b"[[1,7]]"),
        (b'[[0,0,5,3,"', b'[[0,0,50,3,"'),
        (b'[[0,0,5,3,"', b'[[0,0,5,"'),
        (b'"age_ms":5', b'"age_ms":-5'),
        (b'"age_ms":5', b'"age":5'),
        (b'"slices":false', b'"slices":0'),
    ):
        assert right in data
        with pytest.raises(MetadataFormat, match="/p is not a log head"):
            formats.decode_head(data.replace(right, wrong), "/p")


def test_a_node_above_the_limit_is_not_written() -> None:
    with pytest.raises(MetadataError, match="truncate or vacuum"):
        formats.encode_condemned(range(10**18, 10**18 + 60_000))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 201, "a\n", "a\0"])
def test_an_unusable_log_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="letters, digits"):
        formats.log_path(name)


@pytest.mark.parametrize("name", ["a", "...", "A.b-c_9", "x" * 200])
def test_a_usable_log_name_is_a_path_below_the_logs(name: str) -> None:
    assert formats.log_path(name) == f"/bkspark/logs/{name}"


@pytest.mark.parametrize(("query_id", "epoch"), [("", 0), ("x" * 201, 0), ("a\nb", 0), ("q", -1), ("q", True)])
def test_a_publisher_that_cannot_be_remembered_is_refused(query_id: str, epoch: int) -> None:
    with pytest.raises(ConfigurationError):
        formats.check_publisher(query_id, epoch)


@pytest.mark.parametrize("name", ["x", "-1", "1_0", "", "9" * 25])
def test_a_pending_node_not_named_after_a_ledger_is_refused(name: str) -> None:
    with pytest.raises(MetadataFormat, match="/p"):
        formats.parse_pending_name(name, "/p")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "nonsense"}, "owner kind 'nonsense'"),
        ({"owner": ""}, "is not a pending ledger"),
        ({"epoch": -1}, "epoch holds"),
        ({"partition": True}, "partition holds"),
        ({"since": None}, "since holds"),
        ({"kind": 7}, "kind is not text"),
    ],
)
def test_a_pending_node_of_no_known_owner_is_refused_by_name(changes: dict[str, object], reason: str) -> None:
    data = json.loads(formats.encode_pending(SegmentOwner("query", "q", epoch=3), 40))
    with pytest.raises(MetadataFormat, match=f"/p is not a pending ledger: .*{reason}|{reason}"):
        formats.decode_pending(json.dumps({**data, **changes}).encode(), "/p", 12, 0)


@pytest.mark.parametrize(
    "facts",
    [
        (-1,),
        (1 << 63,),
        (1, 5),
        (1, None, 5),
        (1, -2, 0),
        (1, LARGEST, 0),
        (1, 5, -1),
        (1, 5, 10, 6),
        (1, 5, 10, -1),
        (1, None, None, 1),
    ],
)
def test_facts_that_no_ledger_has_are_refused(facts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ledger"):
        SegmentFacts(*facts)


def test_facts_at_their_bounds_are_taken() -> None:
    for facts in ((0,), (LARGEST,), (1, -1, 0), (1, LARGEST - 1, LARGEST), (1, 5, 10, 5), (1, 0, 0, 0)):
        assert SegmentFacts(*facts).ledger_id == facts[0]
