"""TopicValues: decodes the values of one topic's messages, each by its own version of the topic's schema, in tasks.

All values of a version are decoded together. Those that an error names as malformed are left out, and the others are
decoded again. If an error does not say which ones are malformed, the halves are tried separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa

from bkspark.errors import ConfigurationError
from bkspark.pulsar.malformed import MALFORMED, MalformedValues
from bkspark.pulsar.schemas import RAW, Schema
from bkspark.pulsar.values import decoder_of, key_value_decoder
from bkspark.spark.topic_columns import VALUE, of_type

CHECKS = 4
"""How often values that are found malformed are left out together, before the halves of the others are tried."""

OnMalformed = Callable[[int, object], None]
"""Takes the index of a malformed value and the reason; raises an error if such a value ends the read."""


class TopicValues:
    """Decodes values to structs of the type of one of the schemas.

    Args:
        schemas: the topic's, by version.
        target: the one whose type the values get.
        ends_at_first: whether the first malformed value ends the read. Then it must be found, and not only some of
            them.
    """

    def __init__(self, schemas: Mapping[int, Schema], target: Schema, *, ends_at_first: bool) -> None:
        self._schemas = schemas
        self._target = target
        self._ends_at_first = ends_at_first
        self._decoders: dict[int, Callable[..., pa.Array]] = {}
        """The decoders of the versions that occurred so far. Those of a KEY_VALUE schema take values and keys, the
        others values."""

    @cached_property
    def struct_type(self) -> pa.DataType:
        """The type of the structs. Raises ConfigurationError if Spark has no type for it."""
        kind = self._target.arrow_type()
        return kind if pa.types.is_struct(kind) else pa.struct({VALUE: kind})

    def decode(
        self, version: int, values: pa.Array, keys: pa.Array | None, on_malformed: OnMalformed
    ) -> tuple[pa.StructArray, np.ndarray]:
        """Return values of one version as structs, and which are malformed: null then.

        Args:
            keys: those of the messages, for a KEY_VALUE schema.
        """
        try:
            decode = self._decoder_of(version)
        except ConfigurationError:
            raise
        except MALFORMED as error:  # no value of this version can be decoded
            on_malformed(0, error)
            return pa.nulls(len(values), self.struct_type), np.ones(len(values), bool)
        given = [values] if keys is None else [values, keys]
        return self._decoded(lambda part: self._structs(decode, version, part), given, on_malformed)

    def _decoded(
        self,
        decode: Callable[[list[pa.Array]], pa.StructArray],
        given: list[pa.Array],
        on_malformed: OnMalformed,
        checks: int = CHECKS,
    ) -> tuple[pa.StructArray, np.ndarray]:
        """As `decode`. `checks`: how often values that are found malformed are left out together."""
        count = len(given[0])
        try:
            return decode(given), np.zeros(count, bool)
        except ConfigurationError:
            raise
        except MALFORMED as error:
            if count == 1:
                on_malformed(0, error)
                return pa.nulls(1, self.struct_type), np.ones(1, bool)
            if isinstance(error, MalformedValues) and checks and not self._ends_at_first:
                parts, checks = [np.delete(np.arange(count), error.rows)], checks - 1
            else:
                parts = np.array_split(np.arange(count), 2)
        structs = [pa.nulls(1, self.struct_type)]
        place, is_wrong = np.zeros(count, np.int64), np.ones(count, bool)
        for part in filter(len, parts):
            place[part] = np.arange(len(part)) + sum(map(len, structs))
            some = [each.take(pa.array(part)) for each in given]
            found, is_wrong[part] = self._decoded(decode, some, _of_part(on_malformed, part), checks)
            structs.append(found)
        return pa.concat_arrays(structs).take(pa.array(place)), is_wrong

    def _decoder_of(self, version: int) -> Callable[..., pa.Array]:
        """Return the decoder of values of a version. Raises one of MALFORMED if there is none."""
        if version not in self._decoders:
            schema = self._schema_of(version)
            make = key_value_decoder if schema.kind == "KEY_VALUE" else decoder_of
            self._decoders[version] = make(schema, self._target)
        return self._decoders[version]

    def _schema_of(self, version: int) -> Schema:
        schema = RAW if version < 0 else self._schemas.get(version)
        if schema is None:
            raise ValueError(f"it was written with version {version} of the topic's schema, which is not there")
        if schema.kind != self._target.kind:
            what = "without a schema" if version < 0 else f"with a schema of {schema.kind}"
            raise ValueError(
                f"it was written {what}, but the topic's newest is {self._target.kind}; use valueFormat=raw"
            )
        return schema

    def _structs(self, decode: Callable[..., pa.Array], version: int, given: list[pa.Array]) -> pa.StructArray:
        found = decode(*given)
        if not pa.types.is_struct(found.type):
            found = pa.StructArray.from_arrays([found], [VALUE])
        try:
            return of_type(found, self.struct_type)
        except pa.ArrowException:
            raise ValueError(
                f"it was written with version {version} of the topic's schema, whose values are {found.type}, which "
                f"cannot be {self.struct_type}, as those of the newest are; use valueFormat=raw"
            ) from None


def _of_part(on_malformed: OnMalformed, part: np.ndarray) -> OnMalformed:
    return lambda place, reason: on_malformed(int(part[place]), reason)
