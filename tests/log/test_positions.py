"""Positions: one text and one form each."""

from __future__ import annotations

import pickle

import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError
from bkspark.log.positions import BEGINNING, LogBatch, Position, PositionRange, parse_place, position_at


def test_a_position_has_one_canonical_text_and_is_read_back_from_it() -> None:
    text = '{"entry":5,"ledger":12,"ordinal":3,"version":1}'
    assert str(Position(3, 12, 5)) == text
    assert Position.parse(text) == Position(3, 12, 5)
    assert str(Position.parse(' {"version": 1, "ordinal": 3, "ledger": 12, "entry": 5}')) == text
    assert Position.parse(Position(3, 12, 5).to_json()) == Position(3, 12, 5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "[]",
        "{}",
        '"earliest"',
        '{"entry":5,"ledger":12,"ordinal":3}',
        '{"entry":5,"ledger":12,"ordinal":3,"version":1,"more":0}',
        '{"entry":5,"ledger":12,"ordinal":3,"version":2}',
        '{"entry":5,"ledger":12,"ordinal":3,"version":true}',
        '{"entry":5.0,"ledger":12,"ordinal":3,"version":1}',
        '{"entry":"5","ledger":12,"ordinal":3,"version":1}',
        '{"entry":-1,"ledger":12,"ordinal":3,"version":1}',
        '{"entry":5,"ledger":-2,"ordinal":3,"version":1}',
        '{"entry":5,"ledger":-1,"ordinal":3,"version":1}',
        '{"entry":5,"ledger":12,"ordinal":true,"version":1}',
        '{"entry":9223372036854775808,"ledger":12,"ordinal":3,"version":1}',
        "{" * 100_000,
        "9" * 5_000,
    ],
)
def test_what_is_not_a_position_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigurationError, match="position"):
        Position.parse(text)


def test_a_place_is_earliest_latest_or_a_position() -> None:
    assert parse_place("Earliest") == "earliest"
    assert parse_place(" latest ") == "latest"
    assert parse_place(str(Position(0, 1, 2))) == Position(0, 1, 2)
    with pytest.raises(ConfigurationError, match="'newest' is not earliest, latest or a position"):
        parse_place("newest")


def test_positions_are_ordered_as_the_entries_are() -> None:
    ascending = [BEGINNING, Position(0, 70, 1), Position(0, 70, 2), Position(1, 5, 1), Position.beginning(2)]
    assert ascending == sorted(set(ascending))


def test_the_beginning_of_a_ledger_is_written_as_the_end_of_what_precedes_it() -> None:
    end_before = Position(3, 12, 5)
    assert position_at(4, 13, 0, end_before) == end_before
    assert position_at(4, 13, 1, end_before) == Position(4, 13, 1)


def test_a_range_holds_the_position_of_each_entry() -> None:
    positions = PositionRange(3, 12, 5, 8)
    assert list(positions) == [Position(3, 12, 5), Position(3, 12, 6), Position(3, 12, 7)]
    assert (positions[0], positions[-1], len(positions)) == (Position(3, 12, 5), Position(3, 12, 7), 3)
    assert positions[1:] == [Position(3, 12, 6), Position(3, 12, 7)]
    assert positions.end == Position(3, 12, 8)


def test_a_log_batch_is_an_entry_batch_that_knows_its_positions() -> None:
    batch = LogBatch(EntryBatch.of([b"a", b"bc"], ledger_id=12, first_entry=5), ordinal=3)
    assert list(batch) == [b"a", b"bc"]
    assert list(batch.positions) == [Position(3, 12, 5), Position(3, 12, 6)]
    assert batch.end == Position(3, 12, 7)


def test_positions_survive_a_pickle() -> None:
    assert pickle.loads(pickle.dumps(Position(3, 12, 5))) == Position(3, 12, 5)
