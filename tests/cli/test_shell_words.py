"""What `bkspark shell` takes for the id of a ledger, and for a yes."""

from __future__ import annotations

import io
import sys
import uuid

import pytest

from bkspark.cli.__main__ import main
from bkspark.cli.shell_language import Failure, confirmed
from bkspark.cli.shell_language import Shell as VerbShell


@pytest.mark.parametrize(
    ("id_format", "text"),
    [
        *(("long", text) for text in ("1_0", "\u0661", " 5", "0x5", "5.0", "-1", str(1 << 63), "9" * 5000, "")),
        *(("hex", text) for text in ("0x1f", "1_f", " f", "-f", "8" + "0" * 15, "f" * 5000, "g")),
        ("uuid", "5"),
    ],
)
def test_what_is_not_exactly_an_id_names_no_ledger(id_format: str, text: str) -> None:
    """`deleteledger -l 1_0` deleted ledger 10: Python takes more for a number than Java does."""
    with pytest.raises(Failure, match="is not the id of a ledger"):
        VerbShell(main, id_format=id_format).ledger_id(text)


def test_uuid_names_the_ledger_of_its_lower_half() -> None:
    """As with Apache's UUIDLedgerIdFormatter, whose ids are the least significant bits."""
    shell = VerbShell(main, id_format="uuid")
    assert shell.ledger_id(str(uuid.UUID(int=(7 << 64) + 5))) == 5
    assert shell.ledger_id(shell.shown_id((1 << 63) - 1)) == (1 << 63) - 1
    with pytest.raises(Failure, match="is not the id of a ledger"):
        shell.ledger_id(str(uuid.UUID(int=1 << 63)))


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "no\n", "yess\n", "delete it\n", "1\n", "y n\n"])
def test_only_yes_confirms_what_cannot_be_changed_back(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert not confirmed("Are you sure?", is_forced=False)
    for yes in ("y\n", "Y\n", " yes \n", "YES"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(yes))
        assert confirmed("Are you sure?", is_forced=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert confirmed("Are you sure?", is_forced=True)
