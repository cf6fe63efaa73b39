"""Deltas of heads: what they make of a head is what was wanted, and no other bytes are taken for one."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from bkspark.errors import MetadataFormat
from bkspark.log import delta
from bkspark.log.delta import decode_base, decode_changed, encode_delta
from bkspark.log.formats import LogHead, PageRef, SchemaRef, SegmentFacts, encode_head

TOKEN = "00000000000000aa"


def random_head(seed: int) -> LogHead:
    chance = random.Random(seed)
    paged, tail = 10 * chance.randrange(3), chance.randrange(5)
    return LogHead(
        log_id=TOKEN,
        root="/ledgers",
        changes=(TOKEN,),
        pages=tuple(PageRef(f"{at}-{TOKEN}") for at in range(0, paged, 10)),
        tail_ordinal=paged,
        tail=tuple(
            SegmentFacts(chance.randrange(9), chance.randrange(5, 9), 7, chance.randrange(2)) for _ in range(tail)
        ),
        last_epochs=tuple((name, chance.randrange(5)) for name in chance.sample("abcd", chance.randrange(4))),
        condemned=tuple(f"{chance.randrange(5):016x}" for _ in range(chance.randrange(3))),
        has_slices=True,
        schemas=tuple(SchemaRef(at, at + 1, f"{at:032x}") for at in range(1 + chance.randrange(3))),
        is_routed=True,
    )


@pytest.mark.parametrize("seed", range(100))
def test_a_delta_makes_one_head_of_another(seed: int) -> None:
    before, after = random_head(seed), random_head(seed + 1_000)
    data = encode_delta(17, before, after)
    assert decode_base(data, "/p") == 17
    assert decode_changed(encode_head(before), data, "x") == after


def test_a_delta_of_nothing_changes_nothing() -> None:
    head = random_head(1)
    assert encode_delta(0, head, head) == b'{"base":0,"changed":{},"version":1}'


def test_items_at_the_end_of_long_lists_are_all_that_a_delta_holds() -> None:
    head = replace(random_head(0), tail=tuple(SegmentFacts(number, 9, 9) for number in range(150)))
    wanted = replace(head, tail=(*head.tail[1:], SegmentFacts(1_000, 9, 9)))
    assert len(encode_delta(5, head, wanted)) < 100


def test_members_of_an_object_change_by_themselves() -> None:
    before = {"marks": [[number, 0, 1] for number in range(100)], "pages": [], "other": 1}
    after = {"marks": [*before["marks"][1:], [100, 0, 2]], "pages": [], "other": 2}
    change = delta.difference(before, after)
    assert change == {"members": {"marks": {"add": [[100, 0, 2]], "drop": [0]}, "other": {"set": 2}}}
    assert delta.applied(before, change) == after


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "not a JSON object of version 1"),
        (b'{"base":0,"changed":{},"version":2}', "not a JSON object of version 1: use a newer bkspark"),
        (b'{"base":0,"version":1}', r"its members are \['base', 'version'\]"),
        (b'{"base":-1,"changed":{},"version":1}', "its base is not a version"),
        (b'{"base":true,"changed":{},"version":1}', "its base is not a version"),
        (b'{"base":0,"changed":{"tail":{"drop":[99],"add":[]}},"version":1}', "not those of a head"),
        (b'{"base":0,"changed":{"tail":{"add":[]}},"version":1}', "not those of a head"),
        (b'{"base":0,"changed":{"tail":7},"version":1}', "not those of a head"),
        (b'{"base":0,"changed":{"tail":{"set":7}},"version":1}', "tail is not a list"),
        (b'{"base":0,"changed":{"more":{"set":7}},"version":1}', "unknown member 'more'"),
    ],
)
def test_other_bytes_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(MetadataFormat, match=reason):
        decode_changed(encode_head(random_head(3)), data, "x")


def test_a_routed_head_has_a_version_that_an_older_bkspark_refuses() -> None:
    """It would not see what routed commits published."""
    assert json.loads(encode_head(random_head(1)))["version"] == 6
    assert json.loads(encode_head(replace(random_head(1), is_routed=False)))["version"] < 6
