"""Arguments of `bkspark cluster`, `ledger` and `log` that name something that does not exist, or are out of bounds.

Such a value must be an error that names it. An empty list, or the answer that nothing was to do, would be taken for the
answer to what the operator meant. The tests go through the parsers, so that the arguments of a new command are covered.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bkspark.cli.__main__ import build_parser, main
from bkspark.cli.arguments import SECONDS_MAX, bookie_id, key_value, log_name
from bkspark.cli.restart import command_words
from bkspark.cli.shell_verbs import VERBS
from bookie_service import process
from bookie_service.admin import dump, repair_commands
from tests.cli.console import Console, assert_one_line
from tests.cli.hostile_texts import TEXTS, leaves

ABSENT = "absent:1"
NO_LEDGER = "987654321"
UNCHECKED = (None, str, Path, os.fspath, bookie_id, key_value, log_name, command_words)
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


GROUPS = ("ledger", "log", "cluster")
ARGUMENTS = [
    (command, action)
    for command, actions in leaves(build_parser())
    if command.split()[0] in GROUPS
    for action in actions
    if action.dest not in SHARED
]
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


PARSERS = {
    "bkspark": build_parser(),
    "bookie_service": process.argument_parser(),
    "dump": dump.argument_parser(),
    "repair": repair_commands.argument_parser(),
}
TYPES = {
    action.type: f"{program} {command} {action.dest}"
    for program, parser in PARSERS.items()
    for command, actions in leaves(parser)
    for action in actions
    if action.type is not None
}
"""Each type of an argument, and one argument that has it."""


@pytest.mark.parametrize("type_of", TYPES, ids=TYPES.values())
def test_type_of_an_argument_takes_a_text_or_says_in_one_short_line_what_is_right(type_of):
    """`readlog -sp` with thousands of digits ended with a traceback: Python refuses to convert them."""
    for text in TEXTS.values():
        value, complaint = None, ""
        try:
            value = type_of(text)
        except argparse.ArgumentTypeError as error:
            complaint = str(error)
        assert len(complaint) < 500
        assert complaint.isprintable()
        if isinstance(value, (int, float)):
            # Larger numbers end timers, calendars and formats of the metadata.
            assert text.isascii()
            assert abs(value) < 1 << 63
            assert isinstance(value, int) or value <= SECONDS_MAX


SOME = [TEXTS[name] for name in ("many digits", "another digit", "empty", "not UTF-8", "two lines")]
VERB_WORDS = {"": [], "ID": ["absent:1"], "ID[,ID...]": ["absent:1"], "LOG": ["1"], "JOURNAL": ["1"], "[VERB]": []}
"""Usable words of a verb of the shell, by what its help calls them."""
NEEDED = {
    "ledgermetadata": ["-l", "5"],
    "readledger": ["-l", "5"],
    "updateBookieInLedger": ["-sb", "absent:1", "-db", "other:1"],
    "cookie_generate": ["-j", "journal", "-l", "ledgers", "-o", "cookie"],
}
"""Options without which a verb looks at no others."""
NO_CLUSTER = "zk://"
"""A URI that is refused when all other arguments were taken, so nothing can be changed."""


@pytest.mark.parametrize("verb", VERBS, ids=[verb.name for verb in VERBS])
def test_verb_of_the_shell_says_in_one_line_what_is_wrong_with_any_text(verb, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    configuration = tmp_path / "bk_server.conf"
    configuration.write_text(f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n")
    shell = ["shell", "-conf", str(configuration), "--uri", NO_CLUSTER, verb.name]
    shell += NEEDED.get(verb.name, [])
    options = [f"-{option.names[0]}" for option in verb.options if option.value]
    lines = [[*shell, option, text, *VERB_WORDS[verb.words]] for option in options for text in SOME]
    lines += [[*shell, text] for text in SOME if verb.words]
    for line in lines:
        code = main(line)
        output = capfd.readouterr()
        assert code in (0, 1, 255), line
        assert "Traceback" not in output.err
        assert len(output.err.splitlines()) <= 2, output.err


NUMBERS_OF_VERBS = (
    "ledgermetadata -l",
    "readledger -l",
    "readledger -l 5 -fe",
    "readledger -l 5 -le",
    "deleteledger -f -l",
    "simpletest -e",
    "simpletest -w",
    "simpletest -a",
    "simpletest -n",
    "recover absent:1 -f -l",
    "lostbookierecoverydelay -s",
    "readlog 1 -l",
    "readlog 1 -sp",
    "readlog 1 -ep",
    "updateBookieInLedger -sb absent:1 -db other:1 -l",
)
"""Verbs with an option at the end that takes a number."""


@pytest.mark.parametrize("text", [TEXTS["many digits"], TEXTS["another digit"]], ids=["many digits", "another digit"])
@pytest.mark.parametrize("words", NUMBERS_OF_VERBS)
def test_number_that_a_verb_of_the_shell_cannot_take_is_named(words: str, text: str, capfd, tmp_path) -> None:
    configuration, logs = tmp_path / "bk_server.conf", tmp_path / "ledgers" / "current"
    logs.mkdir(parents=True)
    (logs / "1.log").touch()
    configuration.write_text(f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n")
    assert main(["shell", "-conf", str(configuration), "--uri", NO_CLUSTER, *words.split(), text]) == 255
    assert_one_line(capfd.readouterr(), f"'{text[:30]}", " is not ")


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
