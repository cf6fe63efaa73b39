"""What a log remembers of its rows: stored once by content, ordered by the list, changed with it or not at all."""

from __future__ import annotations

import json
import zlib

import pytest

from bkspark.errors import ConfigurationError, MetadataFormat, NoSuchLog, SchemaMismatch
from bkspark.log import changes, formats, schemas
from bkspark.log.formats import LogHead, SchemaRef, log_path
from bkspark.log.positions import Position
from bkspark.log.schemas import SCHEMAS_MAX, SchemaChange, StoredSchema, decode_schema, encode_schema
from bkspark.log.unnamed import remove_unnamed
from tests.log.world import World, closed, in_world

TOKEN = "00000000000000aa"
ONE = StoredSchema("arrow", '{"fields":[],"type":"struct"}')
TWO = StoredSchema("arrow", '{"fields":[1],"type":"struct"}')
JSON = StoredSchema("json", '{"fields":[],"type":"struct"}')


async def publish(world: World, *ledgers: int, schema: SchemaChange | None) -> None:
    await world.stage(*ledgers)
    await world.store.append_ledgers("x", closed(*ledgers), schema=schema)


def test_a_schema_is_read_back_and_named_by_its_content() -> None:
    data = encode_schema(ONE)
    assert decode_schema(data, f"/p/{ONE.name}") == ONE
    assert len({ONE.name, TWO.name, JSON.name}) == 3
    assert json.loads(zlib.decompress(data)) == {"format": "arrow", "schema": ONE.schema, "version": 1}


def test_a_damaged_schema_is_refused_by_its_path() -> None:
    data = encode_schema(ONE)
    newer = zlib.compress(b'{"format":"arrow","schema":"x","version":2}')
    bomb = zlib.compress(bytes(schemas.TEXT_BYTES_MAX + 1))
    damaged = [data[:length] for length in range(len(data))] + [b"\x00" * 9, data + b"x", newer, bomb]
    damaged += [zlib.compress(text) for text in (b"[]", b"{}", b"[" * 50_000, b'{"format":1,"schema":2,"version":1}')]
    for item in damaged:
        with pytest.raises(MetadataFormat, match="/p"):
            decode_schema(item, f"/p/{ONE.name}")
    with pytest.raises(MetadataFormat, match="name is not that of its content"):
        decode_schema(data, f"/p/{TWO.name}")


def test_a_schema_above_the_limit_is_not_written() -> None:
    with pytest.raises(ConfigurationError, match="above what a log can remember"):
        encode_schema(StoredSchema("arrow", "x" * schemas.TEXT_BYTES_MAX))


def test_a_head_with_schemas_has_a_version_that_an_older_bkspark_refuses() -> None:
    head = LogHead(TOKEN, "/ledgers", (TOKEN,), has_slices=True, schemas=(SchemaRef(0, 1, ONE.name),))
    data = formats.encode_head(head)
    assert b'"version":4' in data
    assert formats.decode_head(data, "/p") == head
    with pytest.raises(MetadataFormat, match="unknown member 'schemas'"):
        formats.decode_head(data.replace(b'"version":4', b'"version":3'), "/p")
    shown = json.dumps([[0, 1, ONE.name]], separators=(",", ":")).encode()
    for wrong in (b"[]", b"[[0,1]]", b'[[0,1,"x"]]', b"[[0,0,%s]]" % shown[6:-2], shown[:-1] + b"," + shown[1:]):
        with pytest.raises(MetadataFormat, match="schemas"):
            formats.decode_head(data.replace(shown, wrong), "/p")


@in_world
async def test_a_schema_that_comes_back_applies_again_and_the_present_one_is_not_repeated(world: World) -> None:
    await publish(world, 1, schema=SchemaChange(ONE, None))
    await publish(world, 2, schema=SchemaChange(TWO, ONE.name))
    await publish(world, 3, schema=SchemaChange(TWO, TWO.name))
    await publish(world, 4, schema=SchemaChange(ONE, TWO.name))
    applied = (await world.store.snapshot("x")).schemas
    assert [(ref.first_ordinal, ref.name) for ref in applied] == [(0, ONE.name), (1, TWO.name), (3, ONE.name)]


@in_world
async def test_schemas_apply_from_the_ledger_with_which_they_came(world: World) -> None:
    await publish(world, 1, 2, schema=SchemaChange(ONE, None))
    await publish(world, 3, schema=SchemaChange(ONE, ONE.name))
    await publish(world, 4, schema=SchemaChange(TWO, ONE.name))
    snapshot = await world.store.snapshot("x")
    assert snapshot.schemas == (SchemaRef(0, 1, ONE.name), SchemaRef(3, 2, TWO.name))
    assert [await snapshot.schema(ref) for ref in snapshot.schemas] == [ONE, TWO]
    found = [schemas.in_effect(snapshot.schemas, ordinal) for ordinal in (0, 2, 3, 9)]
    assert [ref and ref.number for ref in found] == [1, 1, 2, 2]
    assert await world.nodes("schemas") == sorted([ONE.name, TWO.name])


@in_world
async def test_a_schema_derived_from_another_than_the_present_one_publishes_nothing(world: World) -> None:
    await publish(world, 1, schema=SchemaChange(ONE, None))
    for change in (SchemaChange(JSON, None), SchemaChange(JSON, TWO.name)):
        with pytest.raises(SchemaMismatch, match="got another schema since"):
            await publish(world, 2, schema=change)
        await world.store.attempts.forget_published("x", [2])
    snapshot = await world.store.snapshot("x")
    assert len(snapshot) == 1
    assert snapshot.schemas == (SchemaRef(0, 1, ONE.name),)


@in_world
async def test_a_log_without_ledgers_remembers_the_schema_of_an_empty_write(world: World) -> None:
    await publish(world, schema=SchemaChange(ONE, None))
    assert (await world.store.snapshot("x")).schemas == (SchemaRef(0, 1, ONE.name),)
    await publish(world, 1, schema=SchemaChange(TWO, ONE.name))
    assert (await world.store.snapshot("x")).schemas == (SchemaRef(0, 2, TWO.name),)


@in_world
async def test_overwriting_keeps_the_present_schema_or_replaces_it(world: World) -> None:
    await publish(world, 1, schema=SchemaChange(ONE, None))
    await publish(world, 2, schema=SchemaChange(TWO, ONE.name))
    await world.stage(3)
    await world.store.replace_ledgers("x", closed(3), closed=[])
    assert (await world.store.snapshot("x")).schemas == (SchemaRef(2, 2, TWO.name),)
    await world.stage(4)
    await world.store.replace_ledgers("x", closed(4), closed=[], schema=SchemaChange(JSON, TWO.name))
    assert (await world.store.snapshot("x")).schemas == (SchemaRef(3, 3, JSON.name),)
    await remove_unnamed(world.store.heads, "x")
    assert await world.nodes("schemas") == [JSON.name]


@in_world
async def test_truncation_drops_the_schemas_that_apply_to_nothing(world: World) -> None:
    await publish(world, 1, schema=SchemaChange(ONE, None))
    await publish(world, 2, 3, schema=SchemaChange(TWO, ONE.name))
    await world.store.truncate("x", Position(1, 2, 0), at_ledger_end=False, closed=[])
    assert (await world.store.snapshot("x")).schemas == (SchemaRef(1, 2, TWO.name),)


def test_truncation_keeps_the_schema_of_the_first_ledger_that_stays() -> None:
    listed = [SchemaRef(0, 1, "a" * 32), SchemaRef(3, 2, "b" * 32), SchemaRef(7, 3, "c" * 32)]
    kept = {first: [ref.number for ref in schemas.trimmed(listed, first)] for first in (0, 2, 3, 6, 7, 9)}
    assert kept == {0: [1, 2, 3], 2: [1, 2, 3], 3: [2, 3], 6: [2, 3], 7: [3], 9: [3]}
    assert schemas.trimmed((), 5) == ()


def test_the_oldest_schemas_become_one_that_covers_both() -> None:
    head = LogHead(TOKEN, "/ledgers", (TOKEN,))
    for ordinal in range(SCHEMAS_MAX + 5):
        head = changes.with_schema(head, f"{ordinal:032x}", ordinal)
    assert len(head.schemas) == SCHEMAS_MAX
    assert head.schemas[0] == SchemaRef(0, 6, f"{5:032x}")
    assert head.schemas[-1].number == SCHEMAS_MAX + 5


@in_world
async def test_a_deleted_log_leaves_no_schema(world: World) -> None:
    await publish(world, 1, schema=SchemaChange(ONE, None))
    await world.store.delete("x", world.delete, closed=[])
    with pytest.raises(NoSuchLog):
        await world.store.snapshot("x")
    assert await world.server.session().exists(log_path("x")) is None
