"""Every Spark type through every payload format; docs/types.md is what this sees."""

from pathlib import Path

import pytest

from tests.spark.type_matrix import NEWER, page

PAGE = Path(__file__).parents[2] / "docs" / "types.md"


@pytest.mark.spark
@pytest.mark.cluster
def test_every_spark_type_comes_back_as_it_went_and_the_page_says_so(spark, table):
    text, every = page(spark, table)
    for columns in every:
        assert [kind for kind, same in columns.same.items() if not same] == []
        assert all("column 'c' has type" in reason for reason in columns.refused.values()), columns.refused
    lines = PAGE.read_text().splitlines(keepends=True)
    known = [line for line in lines if not any(line.startswith(f"| `{kind}` |") for kind in NEWER)]
    assert "".join(known) == text, "run: python -m tests.spark.type_matrix > docs/types.md"
