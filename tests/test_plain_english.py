"""`make lint` finds what is not plain English in pages, messages, docstrings, comments and names of tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import plain_english

RIDDLES = (
    "Of a client that adds alone, it is written at once.",
    "Of `names` there are five.",
    "Of Apache's client there are two.",
    "The schema is none of Spark's.",
    "The lock is given to whoever asks first.",
    "Who reads the ledger sees all of it.",
    "The number stands in the table.",
    "Two nodes stand beside it.",
    "The entry lies behind the end.",
    "A ledger in front of that is open.",
    "A reader was told of it.",
    "Told of each request.",
    "Behind the end there is nothing.",
    "Stands in the table.",
    "A ledger id that is none is refused.",
    "The bookie begins anew.",
    "Then nobody repairs it.",
    "Somebody recovers the ledger.",
    "It stops after so many entries.",
    "The ledger is closed all the same.",
    "What is not cached there, a thread reads.",
    "A damaged answer is no vote.",
    "It is none of these.",
    "A bookie that failed of late.",
    "A second read came in vain.",
    "It ended without a word.",
    "The list holds something else than numbers.",
    "A reader that did not move for so long.",
    "The attempt was taken for dead.",
    "It is not dropped, for it cannot be noted.",
    "A column that the read has not.",
    "A port that serves nothing but TLS.",
    "A file that is open to all but its user.",
    "Readers that are served besides.",
    "So does a ledger that is open.",
    "A slow disk holds up no reader.",
    "Silent peers keep no probe out.",
    "A wrong number is mended.",
)
PLAIN = (
    "A client of ours, of course.",
    "Who may connect? Every user of the host.",
    "`-` stands for an entry without a digest.",
    "Its servers may lag behind each other; `lag` says how far behind.",
    "None of these is open, and not one was lost.",
    "The default is None; there are none of those.",
    "There is none to take its place.",
    "A standalone process understands it.",
    "What a bookie stores for a ledger.",
    "There were so many that it stopped.",
    "All the same size.",
    "It waits for dead bookies, and for the session that may return.",
    "The entry has not been read.",
    "There is no vote, and it is no longer asked for.",
    "All but one of them, and all but the last.",
    "A list beside the ledger amends nothing; it holds up to ten names.",
    "So it is read again. The page keeps no history.",
)
RIDDLING_NAMES = (
    "test_ledger_id_that_is_none",
    "test_what_nobody_reads",
    "test_pages_are_written_anew",
    "test_error_is_told",
    "test_name_stands_in_the_page",
    "test_records_behind_the_mark",
    "test_gap_in_front",
    "test_sync_after_so_many_adds",
    "test_fence_is_kept_all_the_same",
    "test_of_two_writers_one_wins",
    "test_what_is_no_list_is_refused",
    "test_bytes_raise_nothing_but_errors",
    "test_a_slow_disk_holds_up_no_reader",
    "test_what_is_read_besides",
)
PLAIN_NAMES = (
    "test_none_of_these_is_lost",
    "test_there_is_none",
    "test_there_is_no_list",
    "test_it_is_no_longer_a_list",
    "test_a_reader_lags_behind",
    "test_dash_stands_for_nothing",
    "test_standalone",
    "test_it_deletes_nothing_but_logs_are_still_compacted",
    "test_untold",
)


def test_what_people_read_is_plain() -> None:
    found = plain_english.findings()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("sentence", RIDDLES)
@pytest.mark.parametrize("path", ["README.md", "docs/page.md", "bkspark/some.py", "bookie_service/room/some.py"])
def test_a_planted_riddle_is_found(tmp_path: Path, path: str, sentence: str) -> None:
    _plant(tmp_path, path, sentence)
    (found,) = plain_english.findings(tmp_path)
    assert found.startswith(f"{path}:3: ")


@pytest.mark.parametrize("sentence", PLAIN)
@pytest.mark.parametrize("path", ["README.md", "bkspark/some.py"])
def test_a_plain_sentence_passes(tmp_path: Path, path: str, sentence: str) -> None:
    _plant(tmp_path, path, sentence)
    assert plain_english.findings(tmp_path) == []


@pytest.mark.parametrize("path", ["bkspark/some.py", "tests/some.py", "benchmarks/some.py", "examples/some.py"])
@pytest.mark.parametrize("form", ['class Some:\n    """{}"""', "import sys\n\n# {}", "import sys  # {}\n\n\n"])
def test_riddles_in_docstrings_and_comments_are_found(tmp_path: Path, path: str, form: str) -> None:
    line = 1 + form[: form.index("{")].count("\n")
    for sentence in RIDDLES:
        _write(tmp_path, path, form.format(sentence))
        found = plain_english.findings(tmp_path)
        assert [one.startswith(f"{path}:{line}: ") for one in found] == [True], (sentence, found)


def test_riddles_in_notebooks_are_found(tmp_path: Path) -> None:
    for sentence in RIDDLES:
        cells = [
            {"cell_type": "markdown", "source": ["# Title\n", sentence]},
            {"cell_type": "code", "source": [f"# {sentence}\n", "print(1)"], "outputs": [{"text": [sentence]}]},
        ]
        _write(tmp_path, "notebooks/some.ipynb", json.dumps({"cells": cells}))
        assert len(plain_english.findings(tmp_path)) == 2, sentence


def test_a_sentence_over_several_lines_of_comments_is_read_as_one(tmp_path: Path) -> None:
    _write(tmp_path, "bkspark/some.py", "import sys\n\n# A gap in\n# front of it.\n")
    (found,) = plain_english.findings(tmp_path)
    assert found.startswith("bkspark/some.py:3: ")


@pytest.mark.parametrize(
    "sentence",
    [
        "Nor does a list that waits.",
        "So is one that waits.",
        "What is not cached there, a thread reads.",
        "of bytes that are damaged it returns nothing.",
    ],
)
@pytest.mark.parametrize("before", ["* A disk does not wait.\n  ", "* ", "| name | ", "A disk does not wait;\n    "])
def test_a_riddle_that_begins_an_item_or_an_indented_line_is_found(tmp_path: Path, before: str, sentence: str) -> None:
    _write(tmp_path, "docs/page.md", before + sentence)
    (found,) = plain_english.findings(tmp_path)
    assert found.startswith(f"docs/page.md:{1 + before.count(chr(10))}: ")


def test_an_indented_line_of_a_docstring_is_read_as_one_of_a_page(tmp_path: Path) -> None:
    text = 'class Some:\n    """A disk.\n\n    One that does not wait.\n    Nor does a list.\n    """\n'
    _write(tmp_path, "bkspark/some.py", text)
    (found,) = plain_english.findings(tmp_path)
    assert found.startswith("bkspark/some.py:5: ")


@pytest.mark.parametrize("page", ["CHANGELOG.md", "docs/page.md"])
def test_an_item_that_is_on_a_page_twice_is_found_by_its_first_sentence(tmp_path: Path, page: str) -> None:
    first = "* A disk that stalls while `garbage collection`\n  removes files there delays nothing. One more.\n"
    again = "* A disk that stalls while `garbage collection` removes files\n  there delays nothing.\n"
    _write(tmp_path, page, f"# Page\n\n{first}* Other.\n\n**Operation**\n\n{again}")
    (found,) = plain_english.findings(tmp_path)
    assert found.startswith(f"{page}:9: ")
    assert "line 3" in found


def test_items_that_differ_in_code_or_are_short_pass(tmp_path: Path) -> None:
    items = "* A name that is given to `first` is refused.\n* A name that is given to `second` is refused.\n"
    _write(tmp_path, "docs/page.md", f"{items}* `mode`\n\nText.\n\n* `mode`\n")
    assert plain_english.findings(tmp_path) == []


def test_a_comment_that_begins_with_of_is_found(tmp_path: Path) -> None:
    _write(tmp_path, "tests/some.py", "import sys  # of bytes that are damaged it returns nothing\n")
    (found,) = plain_english.findings(tmp_path)
    assert found.startswith("tests/some.py:1: ")


@pytest.mark.parametrize("name", RIDDLING_NAMES)
def test_a_riddling_name_of_a_test_is_found(tmp_path: Path, name: str) -> None:
    _write(tmp_path, "tests/room/test_some.py", f"import sys\n\nasync def {name}(): ...\n")
    (found,) = plain_english.findings(tmp_path)
    assert found.startswith(f"tests/room/test_some.py:3: {name}: ")


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_plain_name_of_a_test_passes(tmp_path: Path, name: str) -> None:
    _write(tmp_path, "tests/test_some.py", f"def {name}(): ...\n")
    assert plain_english.findings(tmp_path) == []


@pytest.mark.parametrize("name", ["told", "FAILURES_TOLD", "_told_early", "read_anew", "lac_of_whoever_answers"])
@pytest.mark.parametrize("folder", ["bkspark", "tests", "benchmarks"])
def test_a_riddling_name_of_a_variable_is_found(tmp_path: Path, folder: str, name: str) -> None:
    _write(tmp_path, f"{folder}/some.py", f"import sys\n\n{name} = 1\n")
    (found,) = plain_english.findings(tmp_path)
    assert found.startswith(f"{folder}/some.py:3: {name}: ")


def test_code_is_not_read(tmp_path: Path) -> None:
    riddle = "Nobody is told."
    _plant(tmp_path, "docs/page.md", f"Text.\n\n```\n{riddle}\n```\n\n~~~\n{riddle}\n~~~\n\n    {riddle}\n\n`{riddle}`")
    _plant(tmp_path, "Makefile", "all:", first=f"# Plain.\n\n# {riddle}")
    _write(tmp_path, "bkspark/some.py", f'"""See `{riddle}`."""\n\ncount = 1  # `{riddle}`\n')
    _write(tmp_path, "tests/some.py", f"TEXT = {riddle!r}\n")
    assert plain_english.findings(tmp_path) == []


def test_every_exemption_names_an_existing_file_or_folder_and_its_reason() -> None:
    for path, reason in plain_english.EXEMPT.items():
        target = plain_english.ROOT / path
        assert target.is_dir() if path.endswith("/") else target.is_file(), path
        assert reason


def _write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def _plant(root: Path, path: str, text: str, *, first: str = "First line.\n") -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".py":
        text = f"raise ValueError({text!r})"
        first = "import sys\n"
    target.write_text(f"{first}\n{text}\n")
