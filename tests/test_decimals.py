"""Decimal numbers that Arrow cannot bring to a column's scale are refused before it tries."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from bkspark.decimals import for_arrow
from bkspark.pulsar.malformed import MALFORMED
from bkspark.pulsar.schemas import Schema
from bkspark.pulsar.values import decoder_of
from bkspark.spark.formats.values import reader_of

COLUMN = pa.decimal128(30, 4)


@pytest.mark.parametrize("text", ["0", "-1.5", "1E+30", "0.0001", "1E-38", "-0.12" + "0" * 60, "0E-999999"])
def test_number_stays_the_same(text: str) -> None:
    found = for_arrow(Decimal(text))
    assert found == Decimal(text)
    exponent = found.as_tuple().exponent
    assert isinstance(exponent, int)
    assert exponent >= -38


@pytest.mark.parametrize("text", ["1E-39", "1E-100", "1E-999999999", "NaN", "sNaN", "-Infinity"])
def test_number_that_no_column_holds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"digits after the point|not a decimal number"):
        for_arrow(Decimal(text))
    # As a number and as a text, in an entry of JSON, and in a message of a Pulsar topic.
    convert = reader_of(COLUMN, is_json=True)
    assert convert is not None
    for value in (text, Decimal(text)):
        with pytest.raises((ValueError, ArithmeticError)):
            pa.array([convert(value)], COLUMN)
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}
    record = {"type": "record", "name": "R", "fields": [{"name": "price", "type": kind}]}
    decode = decoder_of(Schema(0, "JSON", json.dumps(record).encode()))
    for value in (text, json.dumps(text)):
        with pytest.raises(MALFORMED):
            decode(pa.array([f'{{"price": {value}}}'.encode()]))
