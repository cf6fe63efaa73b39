"""Values within columns of nested types: structs, lists and maps. PURE.

Arrow stores values below nulls, and beyond the ends of a slice, that no row has. When it converts a column of lists or
structs, it also converts these, and fails if one of them does not fit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds


def parts_of(array: pa.Array) -> list[pa.Array]:
    """Return the values within a column of a nested type that are not below a null: of each member of its structs, of
    its lists, or the keys and the values of its maps."""
    array, kind = array.drop_null(), array.type
    if kinds.is_struct(kind):
        return [array.field(i) for i in range(kind.num_fields)]
    if kinds.is_map(kind):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [array.keys.slice(first, end - first), array.items.slice(first, end - first)]
    return [array.flatten()]


def without_hidden(array: pa.Array) -> pa.Array:
    """Return a column without values that no row has."""
    return mapped(array, lambda values: values)


def mapped(array: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return a column with `change` applied to all flat columns within its structs, lists and maps."""
    kind = array.type
    if kinds.is_struct(kind) and kind.num_fields:
        members = [mapped(member, change) for member in array.flatten()]
        fields = [field.with_type(member.type) for field, member in zip(kind, members)]
        return pa.StructArray.from_arrays(members, fields=fields, mask=array.is_null())
    if kinds.is_map(kind):
        return pa.MapArray.from_arrays(_offsets(array), *(mapped(part, change) for part in parts_of(array)))
    if kinds.is_list(kind):
        return pa.ListArray.from_arrays(_offsets(array), mapped(array.flatten(), change))
    return change(array)


def _offsets(array: pa.ListArray | pa.MapArray) -> pa.Array:
    """Return where each list begins among `parts_of` the column, and the end; null for a null."""
    is_null = np.asarray(array.is_null())
    sizes = np.where(is_null, 0, np.diff(np.asarray(array.offsets)))
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32(), mask=np.append(is_null, False))
