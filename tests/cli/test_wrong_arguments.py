"""Arguments of `bkspark cluster`, `ledger` and `log` that name something that does not exist, or are out of bounds.

Such a value must be an error that names it. An empty list, or the answer that nothing was to do, would be taken for the
answer to what the operator meant. The tests go through the parsers, so that the arguments of a new command are covered.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.cli.__main__ import build_parser, main
from bkspark.cli.arguments import bookie_id, key_value, log_name
from bkspark.cli.restart import command_words
from tests.cli.console import Console, assert_one_line

ABSENT = "absent:1"
NO_LEDGER = "987654321"
UNCHECKED = (None, str, Path, bookie_id, key_value, log_name, command_words)
"""Types whose values may be wrong although the parser accepts them."""

SHARED = {"uri", "client_config", "password", "password_file", "encryption_key_file", "http_token_file"}
"""Options that many commands have. They are tested elsewhere."""

FREE = {
    "reason": "any text",
    "metadata": "any key and value",
    "command": "it is run, and its exit code reported",
    "config": "tests/replication tests the configuration",
    "set": "tests/replication tests the configuration",
    "target": "the new id of `cluster rename` does not exist yet",
}
"""Arguments for which no value names something that should exist."""

WRONG = {
    "ledger write": {"file": "/no/such/file"},
    "ledger read": {"ledger": NO_LEDGER, "bookie": f"0 --bookie {ABSENT}"},
    "ledger show": {"ledger": NO_LEDGER},
    "ledger list": {"bookie": f"--bookie {ABSENT}", "log": "--log nothing"},
    "ledger locate": {"ledger": NO_LEDGER},
    "ledger repair": {"ledger": NO_LEDGER},
    "ledger dump": {"ledger": f"{NO_LEDGER} /no/such/file", "file": f"{NO_LEDGER} /no/such/file"},
    "ledger restore": {"file": f"{NO_LEDGER} /no/such/file", "ledger": f"{NO_LEDGER} /no/such/file"},
    "ledger recover": {"ledger": NO_LEDGER},
    "ledger delete": {"ledger": NO_LEDGER},
    "log show": {"log": "nothing"},
    "log create": {"log": "a/b"},
    "log append": {"log": "a/b /no/such/file", "file": "nothing /no/such/file"},
    "log read": {
        "log": "nothing",
        "start": "nothing --from nowhere",
        "end": "nothing --from latest --to earliest",
    },
    "log truncate": {"log": "nothing --before latest"},
    "log retention": {"log": "nothing --age 1d"},
    "log expire": {"logs": "nothing"},
    "log consumers": {"log": "nothing", "remove": "nothing --remove x"},
    "log delete": {"log": "nothing"},
    "log vacuum": {"log": "nothing"},
    "cluster maintenance": {"bookie": ABSENT},
    "cluster quarantine": {"bookie": ABSENT},
    "cluster plans": {"end": f"--end {ABSENT}"},
    "cluster endpoints": {"bookie": ABSENT},
    "cluster sanity": {"bookie": ABSENT},
    "cluster format": {"instance": "--instance nothing --force"},
    "cluster remove": {"instance": "--instance nothing --force"},
    "cluster rename": {"source": f"{ABSENT} other:1"},
    "cluster restart": {"bookies": f"{ABSENT} --dry-run"},
    "cluster underreplicated": {"missing": f"--missing {ABSENT}"},
    "cluster recover": {"bookie": ABSENT},
    "cluster decommission": {"bookie": ABSENT},
    "cluster drain": {"bookie": ABSENT, "rate": f"{ABSENT} --rate -5"},
}
"""Words with which each argument of a command has a wrong value."""

OTHERWISE = {("cluster health", "can_stop"): "the answer names it, and the exit code is 10: tests/cli/test_health.py"}

REPLACED = ("ledger repair", "cluster check", "cluster recover", "cluster decommission", "cluster drain")
"""Commands that another program carries out in place of this process."""


def _commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, list]]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield " ".join(words), [each for each in parser._actions if each.nargs != 0 and each.dest not in SHARED]
        return
    for name, below in groups[0].choices.items():
        if words or name in ("ledger", "log", "cluster"):
            yield from _commands(below, (*words, name))


ARGUMENTS = [(command, action) for command, actions in _commands(build_parser()) for action in actions]
CHECKED = [(command, each) for command, each in ARGUMENTS if each.choices or each.type not in UNCHECKED]


@pytest.mark.parametrize(
    ("command", "action"),
    [(command, each) for command, each in CHECKED if each.option_strings],
    ids=lambda value: value if isinstance(value, str) else value.dest,
)
def test_value_out_of_bounds_is_a_usage_error_that_names_it(command, action, capfd):
    assert main([*command.split(), action.option_strings[0], "-1"]) == 2
    assert_one_line(capfd.readouterr(), action.option_strings[0], "-1")


@pytest.mark.parametrize(
    ("command", "action"),
    [(command, each) for command, each in ARGUMENTS if each.type in (bookie_id, log_name) and each.option_strings],
    ids=lambda value: value if isinstance(value, str) else value.dest,
)
def test_empty_name_is_a_usage_error(command, action, capfd):
    """A script's variable may be empty: `ledger list --log ""` listed all ledgers of the cluster."""
    assert main([*command.split(), action.option_strings[0], "", "--uri", "zk://127.0.0.1:1/ledgers"]) == 2
    assert_one_line(capfd.readouterr(), action.option_strings[0], "''")


def test_every_argument_that_may_name_what_does_not_exist_is_tested():
    named = {(command, argument) for command, arguments in WRONG.items() for argument in arguments}
    needed = {
        (command, each.dest)
        for command, each in ARGUMENTS
        if each.dest not in FREE and ((command, each) not in CHECKED or not each.option_strings)
    }
    numbers = {("cluster delay", "seconds")}
    assert needed - numbers == named | set(OTHERWISE)


@pytest.mark.parametrize(
    ("command", "words"),
    [(command, words) for command, cases in WRONG.items() for words in dict.fromkeys(cases.values())],
)
def test_name_of_what_does_not_exist_is_an_error_that_names_it(console: Console, capfd, cluster, command, words):
    line = [*command.split(), *words.split()]
    if command in REPLACED:
        done = subprocess.run([sys.executable, "-m", "bkspark.cli", *line, "--uri", cluster.uri], capture_output=True)
        code, out, err = done.returncode, done.stdout.decode(), done.stderr.decode()
    else:
        code = main(line)
        out, err = capfd.readouterr()
    assert code in (1, 2)
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    assert any(word in err for word in words.split() if not word.startswith("--"))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("cluster maintenance absent:1 --end --dry-run", ["--end", "--dry-run"]),
        ("cluster maintenance absent:1 --end --despite last_copy", ["--end", "--despite"]),
        ("cluster quarantine absent:1 --end --for 5m", ["--end", "--for"]),
        ("cluster health --exit-when-healthy", ["--exit-when-healthy", "--watch"]),
        ("cluster autorecovery --enable --set a=b", ["--enable", "--set"]),
        ("cluster autorecovery --rate 5 --log-level debug", ["--rate", "--log-level"]),
        ("cluster drain absent:1 --cancel --rate 5", ["--cancel", "--rate"]),
        ("cluster drain absent:1 --status --close-open", ["--status", "--close-open"]),
    ],
)
def test_options_of_which_one_would_have_no_effect_are_refused(console: Console, line, names):
    """`--end --dry-run` ended the maintenance."""
    assert_one_line(console.fails(2, *line.split()), *names)


@pytest.mark.parametrize("text", ["5", "0s", "5w", "-5s", "1.5h", "", "s", "5" * 99 + "s", "٥s"])
@pytest.mark.parametrize(
    "line",
    [
        "cluster maintenance absent:1 --for={}",
        "cluster quarantine absent:1 --for={}",
        "ledger list --older-than={}",
        "log retention nothing --age={}",
    ],
)
def test_time_needs_a_number_above_0_and_a_unit(console: Console, line: str, text: str):
    """`--for 5` ended the maintenance after 5 seconds. The operator may have meant minutes."""
    assert_one_line(console.fails(2, *line.format(text).split()), "is not a time such as 90s, 30m, 12h or 7d")


def test_places_in_the_wrong_order_are_refused(console: Console, tmp_path):
    (tmp_path / "lines").write_text("one\ntwo\n")
    console.text("log", "append", "wrong-order", tmp_path / "lines")
    earlier, later = (f'{{"entry":{entry},"ledger":5,"ordinal":0,"version":1}}' for entry in (0, 1))
    assert_one_line(console.fails(2, "log", "read", "wrong-order", "--from", later, "--to", earlier), later, earlier)
    console.text("log", "delete", "wrong-order")


def test_bookie_without_ledgers_is_an_empty_list_if_it_exists(console: Console, cluster):
    bookie = cluster.bookies[0].id
    console.text("cluster", "underreplicated", "--missing", bookie)
    console.text("ledger", "list", "--bookie", bookie)
    console.text("ledger", "list", "--bookie", ABSENT, "--log", "nothing", "--if-exists")
    renamed = console.json("cluster", "rename", ABSENT, "other:1", "--if-exists")
    assert (renamed["changed"], renamed["left"]) == (0, 0)
