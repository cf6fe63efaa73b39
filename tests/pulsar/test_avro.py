"""Avro schemas as hands, Java and other languages write them, and values that do not fit them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from bkspark.errors import ConfigurationError
from bkspark.pulsar.avro import arrow_of_avro, with_full_names
from bkspark.pulsar.schemas import AVRO_READ_OFFSET, Schema
from bkspark.pulsar.values import decoder_of

fastavro = pytest.importorskip("fastavro")


def record(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields], **more}


def of(avro: Any, version: int = 0, kind: str = "AVRO") -> Schema:
    return Schema(version, kind, json.dumps(avro).encode())


def written(avro: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(avro, _ignore_default_error=True), value)
    return stream.getvalue()


def read(avro: Any, octets: bytes, newest: Any = None) -> Any:
    target = None if newest is None else of(newest, 1)
    return decoder_of(of(avro), target)(pa.array([octets])).to_pylist()[0]


# ---- names ----


def test_names_are_those_of_the_namespace_that_encloses_them() -> None:
    """Java writes a name without its namespace where the enclosing type has the same."""
    other = record("C", ("n", "long"), namespace="x")
    avro = record(
        "R",
        ("b", record("B", ("c", record("C", ("s", "string"))), ("again", "C"))),
        ("other", other),
        ("own", "C"),
        ("full", "a.C"),
        ("foreign", "x.C"),
        namespace="a",
    )
    kind = arrow_of_avro(with_full_names(avro))
    text, number = pa.struct({"s": pa.string()}), pa.struct({"n": pa.int64()})
    assert kind == pa.struct(
        {"b": pa.struct({"c": text, "again": text}), "other": number, "own": text, "full": text, "foreign": number}
    )
    value = {
        "b": {"c": {"s": "1"}, "again": {"s": "2"}}, "other": {"n": 3}, "own": {"s": "4"}, "full": {"s": "5"},
        "foreign": {"n": 6},
    }  # fmt: skip
    assert read(avro, written(avro, value)) == value


def test_record_that_has_another_name_in_the_newest_version_is_the_same_record() -> None:
    old = record("User", ("address", ["null", record("Address", ("street", "string"))]), namespace="a")
    new = record("Person", ("address", ["null", record("Home", ("street", "string"))]), namespace="b")
    value = {"address": {"street": "s"}}
    assert read(old, written(old, value), new) == value


# ---- evolution ----


def test_defaults_are_values_of_their_types_whatever_json_writes_for_them() -> None:
    old = record("R", ("i", "int"))
    new = record("R", ("i", "int"))
    new["fields"] += [
        {"name": "raw", "type": "bytes", "default": "\u00ff\u0000"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
         "default": "\u007d"},
        {"name": "rate", "type": {"type": "double"}, "default": 1},
        {"name": "in", "type": record("I", ("b", "bytes"), ("n", ["null", "int"])),
         "default": {"b": "\u0080", "n": None}},
        {"name": "many", "type": {"type": "array", "items": "bytes"}, "default": ["\u0001"]},
        {"name": "maybe", "type": ["null", "string"], "default": None},
        {"name": "wrong", "type": ["string", "null"], "default": None},
    ]  # fmt: skip
    assert read(old, written(old, {"i": 1}), new) == {
        "i": 1, "raw": b"\xff\x00", "price": Decimal("1.25"), "rate": 1.0, "in": {"b": b"\x80", "n": None},
        "many": [b"\x01"], "maybe": None, "wrong": None,
    }  # fmt: skip


def test_default_that_is_not_of_its_type_does_not_matter_where_it_is_not_used() -> None:
    """Java lets such schemas pass, and so does Pulsar."""
    avro = record("R", ("i", "int"))
    avro["fields"].append({"name": "n", "type": "long", "default": None})
    assert read(avro, written(avro, {"i": 1, "n": 2})) == {"i": 1, "n": 2}


def test_field_without_a_default_is_null_where_it_was_not_written() -> None:
    """Also within a record, whatever the writer calls it; another record may have a field of that name."""
    old = record("Old", ("s", record("I", ("a", "int"))), ("b", "int"), ("of", {"type": "map", "values": "I"}))
    new = record("R", ("s", record("J", ("a", "int"), ("b", "int"))), ("a", ["int", "null"]), ("b", "int"),
                 ("of", {"type": "map", "values": "J"}))  # fmt: skip
    value = {"s": {"a": 1}, "b": 2, "of": {"k": {"a": 3}}}
    assert read(old, written(old, value), new) == {
        "s": {"a": 1, "b": None}, "a": None, "b": 2, "of": [("k", {"a": 3, "b": None})],
    }  # fmt: skip


# ---- unions ----


def test_member_of_a_union_is_the_one_that_was_written() -> None:
    same = ("n", "int")
    union = [record("A", same), record("B", same), {"type": "enum", "name": "E", "symbols": ["X"]}]
    avro = record("R", ("u", union), ("again", ["null", "A", "B"]))
    for name, place in (("A", 0), ("B", 1)):
        found = read(avro, written(avro, {"u": (name, {"n": 1}), "again": (name, {"n": 2})}))
        assert {key: each for key, each in found["u"].items() if each is not None} == {f"member{place}": {"n": 1}}
        assert {key: each for key, each in found["again"].items() if each is not None} == {f"member{place}": {"n": 2}}
    assert read(avro, written(avro, {"u": "X", "again": None})) == {
        "u": {"member0": None, "member1": None, "member2": "X"},
        "again": None,
    }


def member(place: int, value: Any, count: int = 2) -> dict[str, Any]:
    return {f"member{each}": value if each == place else None for each in range(count)}


@pytest.mark.parametrize("more", [(), (("z", ["null", "int"]),)], ids=["same version", "older version"])
def test_value_of_a_union_that_looks_like_one_of_a_named_type_is_what_was_written(more: tuple[Any, ...]) -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["X"]}
    fixed = {"type": "fixed", "name": "F", "size": 2}
    counts = {"type": "map", "values": "int"}
    unions = [[enum, "string"], [fixed, "bytes"], [record("A", ("n", "int")), counts]]
    old = record("R", *((f"f{place}", union) for place, union in enumerate(unions)))
    new = {**old, "fields": [*old["fields"], *record("R", *more)["fields"]]}
    found = read(old, written(old, {"f0": "X", "f1": b"ab", "f2": ("A", {"n": 1})}), new)
    assert [found["f0"], found["f1"], found["f2"]["member0"]] == [member(0, "X"), member(0, b"ab"), {"n": 1}]
    kinds = [["int", "string"], ["int", "bytes"], ["int", counts]]
    octets = written(record("R", *((f"f{place}", kind) for place, kind in enumerate(kinds))),
                     {"f0": "X", "f1": b"ab", "f2": {"n": 1}})  # fmt: skip
    found = read(old, octets, new)
    assert [found["f0"], found["f1"], found["f2"]] == [member(1, "X"), member(1, b"ab"), member(1, [("n", 1)])]


@pytest.mark.parametrize("name", ["A", "B"])
def test_member_of_a_union_of_an_older_version_is_the_one_that_was_written(name: str) -> None:
    """Events often have the same fields, and differ by their names alone; a value has no name."""
    one, two = record("A", ("n", "int")), record("B", ("n", "int"))
    place = ["A", "B"].index(name)
    old = record("R", ("u", ["null", one, two]), ("again", {"type": "array", "items": ["A", "B"]}))
    octets = written(old, {"u": (name, {"n": 1}), "again": [(name, {"n": 2})]})
    new = record(
        "R", ("again", {"type": "array", "items": [two, one]}), ("u", ["null", "A", "B"]), ("z", ["null", "A"])
    )
    assert read(old, octets, new) == {"again": [member(1 - place, {"n": 2})], "u": member(place, {"n": 1}), "z": None}
    enums = [{"type": "enum", "name": each, "symbols": ["X"]} for each in ("A", "B")]
    old, new = record("R", ("e", enums)), record("R", ("e", enums), ("z", ["null", "int"]))
    assert read(old, written(old, {"e": (name, "X")}), new)["e"] == member(place, "X")


def test_record_that_became_a_member_of_a_union_is_this_member() -> None:
    one, two = record("A", ("n", "int")), record("B", ("n", "int"))
    new = record("R", ("u", ["null", one, two]))
    for old, value in (
        (record("R", ("u", two)), {"n": 1}),
        (record("R", ("u", ["null", two])), {"n": 1}),
        (record("R", ("first", two), ("u", "B")), {"n": 1}),
    ):
        octets = written(old, {"u": value, "first": {"n": 2}})
        assert read(old, octets, new) == {"u": member(1, {"n": 1})}


# ---- times ----


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize(
    ("logical", "types", "wanted"),
    [
        ("timestamp", ("long", "long"), "1970-01-01 00:00:05+00:00"),
        ("local-timestamp", ("long", "long"), "5000000"),
        ("time", ("int", "long"), "5000000"),
    ],
)
def test_times_of_an_older_version_are_in_the_unit_of_the_newest(
    logical: str, types: tuple[str, str], wanted: str, kind: str
) -> None:
    """Avro resolves numbers, whatever they count: a time in ms would be read as one in µs, which is soon after 1970."""
    millis, micros = (
        {"type": each, "logicalType": f"{logical}-{unit}"} for each, unit in zip(types, ("millis", "micros"))
    )
    shapes: list[Callable[[Any], Any]] = [
        lambda time: time,
        lambda time: ["null", time],
        lambda time: ["null", time, "string"],
        lambda time: {"type": "array", "items": record("I", ("t", ["null", time]))},
        lambda time: {"type": "map", "values": time},
    ]
    values = [5000, 5000, 5000, [{"t": 5000}], {"k": 5000}]
    old = record("R", *((f"f{place}", shape(millis)) for place, shape in enumerate(shapes)))
    new = record("R", *((f"f{place}", shape(micros)) for place, shape in enumerate(shapes)))
    value = {f"f{place}": each for place, each in enumerate(values)}
    plain = json.loads(json.dumps(old).replace(f'"logicalType": "{logical}-millis"', '"x": 1'))
    octets = written(plain, value) if kind == "AVRO" else json.dumps(value).encode()
    (found,) = decoder_of(of(old, 0, kind), of(new, 1, kind))(pa.array([octets])).to_pylist()
    assert [str(each) for each in (found["f0"], found["f1"], found["f2"]["member0"], found["f3"][0]["t"])] == [
        wanted
    ] * 4
    assert [(name, str(each)) for name, each in found["f4"]] == [("k", wanted)]


def test_times_of_a_newer_unit_lose_what_it_has_no_digits_for() -> None:
    millis, micros = (
        record("R", ("t", {"type": "long", "logicalType": f"timestamp-{unit}"})) for unit in ("millis", "micros")
    )
    octets = written(record("R", ("t", "long")), {"t": -1})
    assert str(read(micros, octets, millis)["t"]) == "1969-12-31 23:59:59.999000+00:00"
    text = b'{"t": 1577934245.678901000}'
    for written_as, newest in ((millis, micros), (micros, millis)):
        found = decoder_of(of(written_as, 0, "JSON"), of(newest, 1, "JSON"))(pa.array([text])).to_pylist()[0]
        assert str(found["t"]).startswith("2020-01-02 03:04:05.678")


def test_very_old_json_schema_is_not_asked_for_units() -> None:
    """Before Pulsar 2.1 the schema of JSON was a JSON Schema."""
    micros = record("R", ("t", {"type": "long", "logicalType": "timestamp-micros"}))
    older = Schema(0, "JSON", b'{"type": "object", "properties": {}}')
    assert str(decoder_of(older, of(micros, 1, "JSON"))(pa.array([b'{"t": 5}'])).to_pylist()[0]["t"]).endswith(
        "05+00:00"
    )


def test_numbers_of_a_union_keep_their_size() -> None:
    avro = record("R", ("i", ["int", "long", "string"]), ("f", ["float", "double", "null", "string"]))
    found = read(avro, written(avro, {"i": 1 << 40, "f": 0.1}))
    assert (found["i"]["member1"], found["f"]["member1"]) == (1 << 40, 0.1)


def test_union_of_a_day_and_a_number_is_not_a_number() -> None:
    avro = record("R", ("u", [{"type": "int", "logicalType": "date"}, "string"]))
    assert str(read(avro, written(record("R", ("u", ["int", "string"])), {"u": 365}))["u"]["member0"]) == "1971-01-01"


def test_json_has_no_names_for_the_members_of_a_union() -> None:
    union = [record("A", ("a", "int")), record("B", ("b", "bytes")), "bytes"]
    schema = of(record("R", ("u", union)), kind="JSON")
    (second, octets) = decoder_of(schema)(pa.array([b'{"u": {"b": "aGk="}}', b'{"u": "aGk="}'])).to_pylist()
    assert second["u"] == {"member0": None, "member1": {"b": b"hi"}, "member2": None}
    assert octets["u"]["member2"] == b"hi"


# ---- decimals ----


@pytest.mark.parametrize("more", [{"precision": 50}, {"precision": 4, "scale": 5}, {"precision": "9"}, {}])
def test_decimal_that_cannot_be_is_its_bytes(more: dict[str, Any]) -> None:
    avro = record("R", ("d", {"type": "bytes", "logicalType": "decimal", **more}))
    assert read(avro, written(record("R", ("d", "bytes")), {"d": b"\x01\x02"})) == {"d": b"\x01\x02"}


def test_decimal_that_does_not_fit_its_fixed_is_its_bytes() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2}
    avro = record("R", ("d", {**fixed, "logicalType": "decimal", "precision": 20}))
    assert read(avro, written(record("R", ("d", fixed)), {"d": b"\x01\x02"})) == {"d": b"\x01\x02"}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
FIXED = {"type": "fixed", "name": "F", "size": 4}


@pytest.mark.parametrize(("old", "new", "octets", "field", "was", "is_now"), [
    ("bytes", DECIMAL, b"\x021", "f", "bytes", "decimal(9, 2)"),
    (DECIMAL, "bytes", b"\x021", "f", "decimal(9, 2)", "bytes"),
    ("string", DECIMAL, b"\x021", "f", "string", "decimal(9, 2)"),
    (["null", "bytes"], [DECIMAL, "null"], b"\x02\x021", "f", "bytes", "decimal(9, 2)"),
    (FIXED, {**FIXED, "logicalType": "decimal", "precision": 5}, b"1234", "f", "fixed", "decimal(5, 0)"),
    ({"type": "array", "items": "bytes"}, {"type": "array", "items": DECIMAL}, b"\x02\x021\0", "f", "bytes",
     "decimal(9, 2)"),
    (record("I", ("m", {"type": "map", "values": "bytes"})), record("I", ("m", {"type": "map", "values": DECIMAL})),
     b"\x02\x02k\x021\0", "f.m", "bytes", "decimal(9, 2)"),
])  # fmt: skip
def test_decimal_that_was_written_as_something_else_is_refused_by_name(
    old: Any, new: Any, octets: bytes, field: str, was: str, is_now: str
) -> None:
    wanted = f"field '{field}' is {was} in version 0 of .*, and {is_now} in version 1; use valueFormat=raw"
    with pytest.raises(ValueError, match=wanted.replace("(", r"\(").replace(")", r"\)")):
        read(record("R", ("a", "int"), ("f", old)), b"\x02" + octets, record("R", ("a", "long"), ("f", new)))


def test_null_is_read_whether_it_was_to_be_bytes_or_a_decimal() -> None:
    assert read(record("R", ("f", ["null", "bytes"])), b"\0", record("R", ("f", ["null", DECIMAL]))) == {"f": None}


def test_decimal_of_more_digits_or_that_may_be_null_is_read_as_it_was_written() -> None:
    old = record("R", ("f", ["null", DECIMAL]), ("gone", "bytes"))
    new = record("R", ("f", {**DECIMAL, "precision": 18}), ("g", ["null", DECIMAL]))
    new["fields"][1]["default"] = None
    assert read(old, written(old, {"f": Decimal("1.25"), "gone": b""}), new) == {"f": Decimal("1.25"), "g": None}


# ---- what is refused ----


@pytest.mark.parametrize(
    "avro",
    [
        {"type": "record", "name": "R", "fields": [{"name": "a"}]},
        {"type": "record", "name": "R", "fields": ["a"]},
        {"type": "record", "name": "R", "fields": [{"type": "int"}]},
        {"type": "record", "fields": []},
        {"type": "array"},
        {"type": None},
        {"properties": {}},
        {"type": "record", "name": "R", "fields": [{"name": 5, "type": "int"}]},
        5,
        None,
        [5],
        "nothing",
    ],
)
@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_what_is_not_an_avro_schema_is_refused_with_a_remedy(avro: Any, kind: str) -> None:
    with pytest.raises(ConfigurationError, match="valueFormat=raw"):
        of(avro, kind=kind).arrow_type()


def test_schema_of_too_many_types_or_too_deep_is_refused_at_once() -> None:
    """Each record names the one before it ten times: Spark would have 10**9 columns."""
    field: Any = "int"
    for number in range(9):
        inner = record(f"R{number}", ("f0", field), *((f"f{place}", f"R{number - 1}") for place in range(1, 10)))
        field = inner if number else record("R0", *((f"f{place}", "int") for place in range(10)))
    with pytest.raises(ConfigurationError, match=r"more than 10000 types.*valueFormat=raw"):
        of(field).arrow_type()
    deep: Any = "int"
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ConfigurationError, match=r"within each other.*valueFormat=raw"):
        of(deep).arrow_type()


@pytest.mark.parametrize("items", ["null", record("E"), {"type": "fixed", "name": "F", "size": 0}])
def test_array_of_items_of_no_bytes_is_refused_before_it_is_counted(items: Any) -> None:
    """Ten bytes may say that there are 2**60 of them."""
    avro = record("R", ("a", {"type": "array", "items": items}))
    endless = bytes([0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F])
    for newest in (None, record("R", ("n", ["null", "int"]))):
        with pytest.raises(ValueError, match="no bytes"):
            read(avro, endless, newest)


def test_older_version_that_holds_itself_is_refused_before_its_values_nest() -> None:
    old = record("R", ("next", ["null", "R"]))
    with pytest.raises(ValueError, match="holds itself"):
        read(old, b"\x02" * 1_000_000 + b"\0", record("R"))


def test_bytes_before_a_value_are_passed_over_as_its_schema_says() -> None:
    """Pulsar's sources of Kafka leave the magic byte and the schema id of Kafka's registry there."""
    avro = record("R", ("n", "long"))
    five = {AVRO_READ_OFFSET: "5"}
    with_registry = Schema(0, "AVRO", json.dumps(avro).encode(), five)
    value = written(avro, {"n": 3})
    values = pa.array([b"\0\0\0\0\x07" + value, None])
    assert decoder_of(with_registry)(values).to_pylist() == [{"n": 3}, None]
    assert decoder_of(of(avro))(pa.array([value])).to_pylist() == [{"n": 3}]
    # Each version has its own: the newest one need not have any.
    assert decoder_of(with_registry, of(avro, 1))(values).to_pylist() == [{"n": 3}, None]
    for short in (b"", b"\0\0\0\0\x07", value):
        with pytest.raises(ValueError, match=r"it is not a record of its schema|another schema wrote it"):
            decoder_of(with_registry)(pa.array([short]))
