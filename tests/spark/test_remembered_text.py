"""The text in which a log remembers its columns: what comes back of it, and that it runs no code."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.linalg import MatrixUDT, VectorUDT
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.spark.columns import all_nullable
from bkspark.spark.evolution import schema_of_text, schema_text

UDT = {"type": "udt", "class": None, "sqlType": "long"}


def text_of(kind: dict[str, Any]) -> str:
    column = {"name": "a", "type": kind, "nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [column]})


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_a_remembered_type_imports_and_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = tmp_path / "touched"
    (tmp_path / "hostile_types.py").write_text(f"open({str(touched)!r}, 'w')\nclass Kind: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    pickled = base64.b64encode(pickle.dumps(Touch(touched))).decode()
    for kind in (
        {**UDT, "pyClass": "hostile_types.Kind"},
        {**UDT, "pyClass": "pyspark.ml.linalg.Nothing", "serializedClass": pickled},
        {**UDT, "pyClass": "pyspark.ml.linalg"},
        {**UDT, "pyClass": 5},
        {**UDT, "class": "org.apache.spark.Kind"},
        {**UDT, "class": "", "pyClass": "hostile_types.Kind"},
        {**UDT, "class": ["x"], "pyClass": ["x"]},
        {"type": "array", "containsNull": True, "elementType": {**UDT, "pyClass": "hostile_types.Kind"}},
    ):
        with pytest.raises(MetadataFormat, match=r"log clicks .*user defined type.*by \.schema\(\)"):
            schema_of_text(text_of(kind), "clicks")
    assert not touched.exists()
    assert "hostile_types" not in sys.modules


def test_vectors_and_matrices_of_spark_are_remembered() -> None:
    columns = StructType([StructField("v", VectorUDT()), StructField("m", ArrayType(MatrixUDT()))])
    assert schema_of_text(schema_text(columns), "clicks") == columns


def test_user_defined_types_of_other_classes_are_not_remembered() -> None:
    class Point(VectorUDT):
        @classmethod
        def module(cls) -> str:
            return __name__

    for kind in (Point(), ArrayType(Point()), MapType(StringType(), Point()), StructType([StructField("x", Point())])):
        columns = StructType([StructField("a", LongType()), StructField("p", kind)])
        with pytest.raises(ConfigurationError, match=r"column 'p' has a user defined type \(Point\).*cast it"):
            schema_text(columns)


def test_allowing_nulls_leaves_the_metadata_of_columns_as_they_are() -> None:
    metadata = {"nullable": False, "more": {"containsNull": False, "list": [{"nullable": False}]}}
    inner = StructType([StructField("metadata", LongType(), False, metadata)])
    columns = StructType([StructField("a", ArrayType(inner, False), False, metadata)])
    found = all_nullable(columns)
    assert found["a"].metadata == metadata
    assert found["a"].nullable
    kind = found["a"].dataType
    assert isinstance(kind, ArrayType)
    assert kind.containsNull
    assert isinstance(kind.elementType, StructType)
    assert kind.elementType["metadata"].nullable
    assert kind.elementType["metadata"].metadata == metadata
