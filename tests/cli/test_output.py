"""What people see: aligned tables and facts, sizes with units."""

from __future__ import annotations

import pytest

from bkspark.cli.output import human_bytes, print_facts, print_json, print_table


def test_table_aligns_text_left_and_numbers_right(capsys):
    print_table(("name", "size"), [("a", 5), ("longer", 12345), ("none", None)])
    assert capsys.readouterr().out.splitlines() == ["name     size", "a           5", "longer  12345", "none        -"]


def test_table_aligns_names_of_wide_characters(capsys):
    print_table(("name", "state"), [("\u65e5\u672c", "x"), ("e\u0301e", "y"), ("abcde", "z")])
    assert capsys.readouterr().out.splitlines() == ["name   state", "\u65e5\u672c   x", "e\u0301e     y", "abcde  z"]


def test_table_without_rows_has_its_header(capsys):
    print_table(("name", "size"), [])
    assert capsys.readouterr().out == "name  size\n"


def test_facts_are_printed_one_per_line(capsys):
    print_facts({"a": True, "long name": [1, 2], "f": 1234.5})
    assert capsys.readouterr().out.splitlines() == ["a          yes", "long name  1, 2", "f          1,234.50"]


def test_json_is_one_line(capsys):
    print_json({"text": "two\nlines", "list": [1]})
    assert capsys.readouterr().out == '{"text": "two\\nlines", "list": [1]}\n'


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 50, "3072.0 TiB")],
)
def test_sizes_have_binary_units(count, text):
    assert human_bytes(count) == text
