"""The schemas that a log records: the payload format of its entries, and the schema of their rows. PURE.

    /bkspark/logs/<name>/schemas/<schema>    one payload format with one schema; never changed once written

The node's name is the first 32 hexadecimal digits of the SHA-256 of its text, so a schema is stored once, however many
ledgers refer to it. The text is JSON, ASCII, keys sorted, no spaces: `{"format":"arrow","schema":"...","version":1}`,
where `schema` is the JSON text of Spark's StructType. The node is that text compressed by zlib: 2,000 columns take some
10 KiB. A text above 16 MiB, or a node above ZooKeeper's limit, is refused when it is written.

The head lists the schemas with the first ordinal to which each applies: `schemas` in `formats`.

Each schema of the list can also read everything before it that is still in the log, because an append may only add
columns and widen types. Only a change that replaces the whole list may bring another schema or format. The schema of a
range of the log is therefore the last one that applies in it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.log.formats import NODE_BYTES_MAX, SchemaRef

SCHEMAS = "schemas"
NAME_DIGITS = 32
TEXT_BYTES_MAX = 16 << 20
"""Limit of a schema's text, so that a damaged node cannot fill the memory of its reader."""
SCHEMAS_MAX = 100
"""Schemas of one list; above it, the second oldest replaces the oldest."""
_VERSION = 1


@dataclass(frozen=True)
class StoredSchema:
    """A payload format, and the JSON text of Spark's schema of its rows."""

    payload_format: str
    schema: str

    @cached_property
    def text(self) -> bytes:
        members = {"format": self.payload_format, "schema": self.schema, "version": _VERSION}
        return json.dumps(members, sort_keys=True, separators=(",", ":")).encode("ascii")

    @cached_property
    def name(self) -> str:
        """The name of its node: a hash of its content."""
        return hashlib.sha256(self.text).hexdigest()[:NAME_DIGITS]


@dataclass(frozen=True)
class SchemaChange:
    """The schema that a publication records.

    `base` is the name of the log's schema that it was derived from, None if the log had none. If the log has another
    one when the publication takes effect, nothing is published.
    """

    stored: StoredSchema
    base: str | None


def encode_schema(stored: StoredSchema) -> bytes:
    """Return the node. Raises ConfigurationError for a schema that does not fit into one."""
    data = zlib.compress(stored.text, 9)
    if len(stored.text) > TEXT_BYTES_MAX or len(data) > NODE_BYTES_MAX:
        raise ConfigurationError(
            f"the schema is {len(stored.text)} bytes of JSON, {len(data)} compressed, above what a log can remember "
            f"({TEXT_BYTES_MAX} and {NODE_BYTES_MAX}): shorten comments and metadata of columns, or write fewer columns"
        )
    return data


def decode_schema(data: bytes, path: str) -> StoredSchema:
    """Return the schema of a node. Raises MetadataFormat, which names `path`, unless it is one with its name."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data, TEXT_BYTES_MAX)
        if unpacker.unconsumed_tail or not unpacker.eof or unpacker.unused_data:
            raise ValueError("its compressed text is cut, too long or followed by other bytes")
        members = json.loads(text)
        if not isinstance(members, dict) or members.get("version") != _VERSION:
            raise ValueError(f"it is not a JSON object of version {_VERSION}: use a newer bkspark")
        if sorted(members) != ["format", "schema", "version"]:
            raise ValueError(f"its members are {sorted(members)}")
        if not isinstance(members["format"], str) or not isinstance(members["schema"], str):
            raise ValueError("its format or schema is not text")
    except (ValueError, RecursionError, zlib.error) as error:
        raise MetadataFormat(f"metadata node {path} is not a schema of a log: {error}") from None
    stored = StoredSchema(members["format"], members["schema"])
    if stored.name != path.rpartition("/")[2]:
        raise MetadataFormat(f"metadata node {path} is not a schema of a log: its name is not that of its content")
    return stored


# ---- the list in the head ----


def trimmed(schemas: Sequence[SchemaRef], first_ordinal: int) -> tuple[SchemaRef, ...]:
    """Return the schemas that still apply from `first_ordinal` on."""
    gone = max((i for i, ref in enumerate(schemas) if ref.first_ordinal <= first_ordinal), default=0)
    return tuple(schemas[gone:])


def extended(schemas: Sequence[SchemaRef], name: str, ordinal: int) -> tuple[SchemaRef, ...]:
    """Return the list with another schema that applies from `ordinal` on."""
    number = schemas[-1].number + 1 if schemas else 1
    # A schema that applies to no ledger is replaced.
    kept = [ref for ref in schemas if ref.first_ordinal < ordinal]
    if len(kept) >= SCHEMAS_MAX:
        # The second oldest can read what was written with the oldest.
        kept[:2] = [SchemaRef(kept[0].first_ordinal, kept[1].number, kept[1].name)]
    return (*kept, SchemaRef(ordinal, number, name))


def in_effect(schemas: Sequence[SchemaRef], ordinal: int) -> SchemaRef | None:
    """Return the schema that applies at an ordinal; None before the first one."""
    return next((ref for ref in reversed(schemas) if ref.first_ordinal <= ordinal), None)
