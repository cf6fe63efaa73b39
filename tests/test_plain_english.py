"""`make lint` finds what is not plain English in texts that users read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import plain_english

RIDDLES = (
    "Of a client that adds alone, it is written at once.",
    "Of `names` there are five.",
    "The lock is given to whoever asks first.",
    "Who reads the ledger sees all of it.",
    "The number stands in the table.",
    "Two nodes stand beside it.",
    "The entry lies behind the end.",
    "A ledger in front of that is open.",
    "A reader was told of it.",
    "A ledger id that is none is refused.",
    "The bookie begins anew.",
    "Then nobody repairs it.",
    "Somebody recovers the ledger.",
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
)


def test_what_users_read_is_plain() -> None:
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


def test_code_and_docstrings_are_not_read_but_those_that_become_pages(tmp_path: Path) -> None:
    riddle = "Nobody is told."
    _plant(tmp_path, "docs/page.md", f"Text.\n\n```\n{riddle}\n```\n\n~~~\n{riddle}\n~~~\n\n    {riddle}\n\n`{riddle}`")
    _plant(tmp_path, "Makefile", "all:", first=f"# Plain.\n\n# {riddle}")
    (tmp_path / "bkspark").mkdir()
    (tmp_path / "bkspark" / "some.py").write_text(f'"""{riddle}"""\n\nclass Some:\n    """{riddle}"""\n')
    assert plain_english.findings(tmp_path) == []
    (tmp_path / "bkspark" / "errors.py").write_text(f'"""Errors."""\n\nclass Some:\n    """{riddle}"""\n')
    assert {line.split(":")[0] for line in plain_english.findings(tmp_path)} == {"bkspark/errors.py"}


def _plant(root: Path, path: str, text: str, *, first: str = "First line.\n") -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".py":
        text = f"raise ValueError({text!r})"
        first = "import sys\n"
    target.write_text(f"{first}\n{text}\n")
