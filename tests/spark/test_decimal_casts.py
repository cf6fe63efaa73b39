"""Numbers that are read as decimals are the numbers that were written, or are refused."""

from __future__ import annotations

import decimal
import random
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload
from bkspark.spark.formats.decimal_casts import converted
from bkspark.spark.formats.registry import decoder_of
from bkspark.spark.topic_columns import converted as converted_of_topic

GREATEST = Decimal(2**63 - 1)
EXACT = decimal.Context(prec=100)
WIDE = decimal.Context(prec=200)
WIDTHS = {pa.decimal32: 9, pa.decimal64: 18, pa.decimal128: 38, pa.decimal256: 60}


def entry(column: pa.Array) -> bytes:
    table = pa.table({"c": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def read(column: pa.Array, kind: pa.DataType) -> list[object]:
    (rows,) = decoder_of("arrow", pa.schema({"c": kind})).decode(EntryBatch.of([entry(column)]))
    return rows.columns[0].to_pylist()


def test_decimal_without_room_for_its_digits_is_malformed() -> None:
    """Arrow returned 46826544.815403642760243794290019401728."""
    with pytest.raises(MalformedPayload, match="column 'c' is decimal128"):
        read(pa.array([GREATEST], pa.decimal128(19, 0)), pa.decimal128(38, 30))


def test_decimal_of_a_topic_without_room_for_its_digits_does_not_fit_its_column() -> None:
    column = pa.array([Decimal(1), GREATEST], pa.decimal128(19, 0))
    found, is_wrong, reason = converted_of_topic(column, pa.decimal128(38, 30))
    assert (found.to_pylist(), is_wrong.tolist()) == ([Decimal(1), None], [False, True])
    assert "does not fit in precision" in reason


def test_whole_numbers_are_read_as_a_decimal_if_each_of_them_fits() -> None:
    """docs/spark.md: each value of a column that is named with a narrower type is checked."""
    kind = pa.decimal128(10, 2)
    assert read(pa.array([5, None, -99_999_999], pa.int64()), kind) == [Decimal(5), None, Decimal(-99_999_999)]
    with pytest.raises(MalformedPayload, match="column 'c' is int64, and decimal128"):
        read(pa.array([5, 100_000_000], pa.int64()), kind)


@pytest.mark.parametrize(
    ("found", "values", "wanted"),
    [
        (pa.list_(pa.int32()), [[1, None], None], pa.list_(pa.decimal128(4, 1))),
        (pa.large_list(pa.int8()), [[1, -128], []], pa.list_(pa.decimal128(4, 1))),
        (pa.list_(pa.uint64(), 2), [[1, 2], None], pa.list_(pa.decimal128(4, 1))),
        (pa.map_(pa.string(), pa.int64()), [[("k", 1)], None], pa.map_(pa.string(), pa.decimal128(4, 1))),
        (pa.dictionary(pa.int8(), pa.int64()), [1, 2, 1, None], pa.decimal128(4, 1)),
        (pa.struct({"a": pa.int64()}), [{"a": 1}, {"a": None}, None], pa.struct({"a": pa.decimal128(4, 1)})),
    ],
)
def test_whole_numbers_within_other_types_are_read_as_decimals(
    found: pa.DataType, values: list[object], wanted: pa.DataType
) -> None:
    assert read(pa.array(values, found), wanted) == values


def test_members_of_a_struct_keep_their_names_and_may_be_left_out() -> None:
    column = pa.array([{"a": 1, "b": "x", "c": 3}], pa.struct({"a": pa.int64(), "b": pa.string(), "c": pa.int32()}))
    wanted = pa.struct({"c": pa.int64(), "a": pa.decimal128(4, 1)})
    assert read(column, wanted) == [{"c": 3, "a": Decimal(1)}]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("9223372036854775807", pa.decimal128(38, 30)),
        ("123456789012345678901234567890", pa.decimal128(38, 18)),
        ("9" * 76, pa.decimal128(38, 38)),
        ("1e60", pa.decimal128(38, 30)),
    ],
)
def test_text_without_room_for_its_digits_does_not_fit_a_decimal(
    kind: pa.DataType, text: str, wanted: pa.Decimal128Type
) -> None:
    """Arrow returned 46826544.8154... and 46509284486016680345.8362... for the first two."""
    found, is_wrong, _ = converted_of_topic(pa.array(["1", text, None]).cast(kind), wanted)
    first = Decimal(1) if wanted.scale < wanted.precision else None
    assert found.to_pylist() == [first, None, None]
    assert is_wrong.tolist() == [first is None, True, False]


def digits_that_wrap(exponent: int) -> str:
    """Return 56 digits that, multiplied by a power of ten, are 7 * 2**exponent in 256 bits."""
    modulus = 2 ** (256 - exponent)
    return f"{7 * pow(5**exponent, -1, modulus) % modulus}e{exponent}"


@pytest.mark.parametrize(
    "text",
    [
        digits_that_wrap(70),
        "-" + digits_that_wrap(70),
        str(2**256 + 5),
        f"{2**256 + 500}00e-2",
        f"00{2**256 + 5}.",
        "1e76",
        "1e" + "0" * 5000 + "1",
        "1" * 5000,
        "1e-77",
        "0e-77",
        "0." + "0" * 77,
        "1e-10000000",
        "1e99999999",
        "0." + "0" * 50_000,
        "9" * 50_000 + "x",
        "1e5x",
        "1e",
    ],
    ids=lambda text: f"{text[:6]} of {len(text)}",
)
@pytest.mark.parametrize(
    ("within", "outer"),
    [
        (lambda text: text, lambda kind: kind),
        (lambda text: [text, None], pa.list_),
        (lambda text: [("k", text)], lambda kind: pa.map_(pa.string(), kind)),
        (lambda text: {"a": [text]}, lambda kind: pa.struct({"a": pa.list_(kind)})),
    ],
    ids=["flat", "list", "map", "struct"],
)
def test_text_with_more_digits_or_places_than_arrow_has_room_for_does_not_fit(
    within: Callable[[str], object], outer: Callable[[pa.DataType], pa.DataType], text: str
) -> None:
    """Arrow returned 8264141345021879123968 for the first, and 5 for the third. 1e-10000000 ended the process, and
    a long text with a letter at its end took hours."""
    column = pa.array([within("1.50"), within(text), None], outer(pa.string()))
    found, is_wrong, _ = converted_of_topic(column, outer(pa.decimal128(38, 2)))
    assert found.to_pylist() == [within(Decimal("1.50")), None, None]
    assert is_wrong.tolist() == [False, True, False]


@pytest.mark.parametrize(
    "text",
    ["0" * 90 + "1e2", "." + "0" * 80 + "1e83", "1." + "0" * 70, "0e70", "+1e2", "1.5e-1", "1e+2", "100e-2", "1e35"],
)
def test_text_with_an_exponent_is_the_number_that_it_names(text: str) -> None:
    found, is_wrong, _ = converted_of_topic(pa.array([text]), pa.decimal128(38, 2))
    assert (found.to_pylist(), is_wrong.tolist()) == ([Decimal(text)], [False])


@pytest.mark.parametrize("make", [lambda text: pa.array([{"a": text}]), lambda text: pa.array([[text]])])
def test_text_within_another_type_is_the_number_or_does_not_fit(make: Callable[[str], pa.Array]) -> None:
    wanted = pa.decimal128(38, 30)
    outer = pa.struct({"a": wanted}) if pa.types.is_struct(make("").type) else pa.list_(wanted)
    assert "1.25" in str(converted_of_topic(make("1.25"), outer)[0].to_pylist())
    found, is_wrong, _ = converted_of_topic(make("9223372036854775807"), outer)
    assert (found.to_pylist(), is_wrong.tolist()) == ([None], [True])


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (
            pa.array([[(GREATEST, "v")]], pa.map_(pa.decimal128(19, 0), pa.string())),
            pa.list_(pa.struct({"key": pa.decimal128(38, 30), "value": pa.string()})),
        ),
        (
            pa.StructArray.from_arrays([pa.array([GREATEST], pa.decimal128(19, 0))] * 2, ["a", "a"]),
            pa.struct([pa.field("a", pa.decimal128(38, 30)), pa.field("a", pa.decimal128(19, 0))]),
        ),
        (
            pa.array([[GREATEST]], pa.list_view(pa.decimal128(19, 0))),
            pa.list_(pa.decimal128(38, 30)),
        ),
    ],
)
def test_decimals_that_arrow_would_convert_alone_are_refused(column: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(pa.ArrowNotImplementedError, match=r"the decimals in .* cannot be made from"):
        converted(column, wanted)


def test_columns_without_values_get_every_type_that_has_decimals() -> None:
    wanted = pa.struct({"a": pa.list_(pa.decimal128(4, 1))})
    assert converted(pa.nulls(2), wanted).to_pylist() == [None, None]
    assert converted(pa.array([{"a": None}]), wanted).to_pylist() == [{"a": None}]


def test_text_is_the_number_that_it_names_or_does_not_fit() -> None:
    chance = random.Random(8)
    outcomes = {True: 0, False: 0}
    for _ in range(3000):
        count = chance.randint(1, 76)
        digits = chance.randrange(10**count) * chance.choice((-1, 1))
        number = Decimal(digits).scaleb(-chance.choice((0, 0, count // 2, count)), EXACT)
        wanted_precision = chance.choice((38, 38, chance.randint(1, 38)))
        wanted = pa.decimal128(wanted_precision, chance.randint(0, wanted_precision))
        is_whole = number.quantize(Decimal(1).scaleb(-wanted.scale), context=WIDE) == number
        fits = is_whole and abs(number) < Decimal(10) ** (wanted.precision - wanted.scale)
        try:
            found = converted(pa.array([f"{number:f}"]), wanted).to_pylist()
        except pa.ArrowInvalid:
            found = []
        assert found == ([number] if fits else []), (number, wanted)
        outcomes[fits] += 1
    assert min(outcomes.values()) > 300


def test_decimal_of_any_width_is_the_same_number_in_another_type_or_does_not_fit() -> None:
    chance = random.Random(7)
    outcomes = {True: 0, False: 0}
    for _ in range(3000):
        make = chance.choice(list(WIDTHS))
        precision = chance.randint(1, WIDTHS[make])
        scale = chance.randint(0, precision)
        wanted_precision = chance.randint(1, 38)
        wanted_scale = chance.randint(0, wanted_precision)
        digits = chance.randrange(10 ** chance.randint(1, precision)) * chance.choice((-1, 1))
        number = Decimal(digits).scaleb(-scale, EXACT)
        places = Decimal(1).scaleb(-wanted_scale)
        is_whole = number.quantize(places, context=EXACT) == number
        fits = is_whole and abs(number) < Decimal(10) ** (wanted_precision - wanted_scale)
        column = pa.array([number], make(precision, scale))
        wanted = pa.decimal128(wanted_precision, wanted_scale)
        try:
            found = converted(column, wanted).to_pylist()
        except pa.ArrowInvalid:
            found = []
        assert found == ([number] if fits else []), (number, column.type, wanted)
        outcomes[fits] += 1
    assert min(outcomes.values()) > 300
