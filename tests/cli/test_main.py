"""The command line as a program drives it: exit codes, one-line errors, help."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time

import pytest

import bkspark
from bkspark.cli.__main__ import main
from bkspark.cli.zookeeper_process import find_java
from bkspark.errors import ConfigurationError
from tests.cli.console import assert_one_line

AWAY = "zk://127.0.0.1:1/ledgers"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("BKSPARK_URI", raising=False)
    monkeypatch.delenv("BKSPARK_PASSWORD", raising=False)


def test_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bkspark {bkspark.__version__}\n"


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("", ["COMMAND"]),
        ("ledgr", ["'ledgr'", "ledger"]),
        ("ledger", ["COMMAND"]),
        ("ledger read", ["ID"]),
        ("ledger read five", ["'five'", "whole number"]),
        ("ledger read -5", ["-5"]),
        ("ledger read 5 --form json", ["'--form'", "--format"]),
        ("ledger read 5 --follow --unconfirmed", ["--follow", "--unconfirmed"]),
        (f"ledger read 5 --from 9 --to 3 --uri {AWAY}", ["--from 9", "--to 3"]),
        ("ledger list", ["--uri", "BKSPARK_URI"]),
        ("ledger list --uri mongodb://x/y", ["'mongodb://x/y'", "zk://"]),
        ("ledger list --uri zk://host:99999999/ledgers", ["99999999"]),
        ("ledger list --uri zk+odd://host/ledgers", ["'odd'"]),
        ("ledger create --uri zk://h/l --metadata novalue", ["'novalue'", "key=value"]),
        (f"ledger create --uri {AWAY} --ensemble 2 --write-quorum 3", ["--ensemble 2", "--write-quorum 3"]),
        (f"ledger create --uri {AWAY} --write-quorum 2 --ack-quorum 3", ["--ack-quorum 3", "E >= W >= A"]),
        (f"ledger create --uri {AWAY} --type durable", ["'durable'", "pd_journal", "vd_journal"]),
        (f"ledger write --uri {AWAY} /nowhere/at-all", ["'/nowhere/at-all'"]),
        # A path of the metadata store would begin elsewhere, or name the parent of all bookies.
        (f"cookie show ../x --uri {AWAY}", ["'../x'", "letters, digits"]),
        (f"cookie delete a/b --uri {AWAY}", ["'a/b'", "letters, digits"]),
        (f"cluster maintenance --end .. --uri {AWAY}", ["'..'", "letters, digits"]),
        (f"cluster drain --cancel ../x --uri {AWAY}", ["'../x'", "letters, digits"]),
        (f"cluster restart b:1 ../x --uri {AWAY}", ["'../x'", "letters, digits"]),
        (f"cluster endpoints x/.. --uri {AWAY}", ["'x/..'", "letters, digits"]),
        (f"cluster rename b:1 b/1 --uri {AWAY}", ["'b/1'", "letters, digits"]),
        (f"ledger read 5 --bookie ../x --uri {AWAY}", ["'../x'", "letters, digits"]),
        (f"cluster delay -5 --uri {AWAY}", ["'-5'", "0 to 999999999"]),
        (f"cluster restart --command '' --uri {AWAY}", ["--command", "empty"]),
        (f"cluster restart --despite last_copies --uri {AWAY}", ["'last_copies'", "last_copy"]),
        (f"cluster maintenance b:1 --despite x --uri {AWAY}", ["'x'", "recovery_quorum"]),
        (f"cluster delay 1000000000 --uri {AWAY}", ["'1000000000'", "0 to 999999999"]),
        (f"cluster health --can-stop b:1 --can-stop b:2 --uri {AWAY}", ["--can-stop", "one bookie"]),
        ("ledger list --uri zk://user:hunter2@host:2181/ledgers", ["zk://***@host:2181/ledgers", "saslJaasConfig"]),
        ("local --bookies 0", ["--bookies", "'0'"]),
        ("local --zk-port 70000", ["--zk-port", "'70000'", "a port of 1 to 65535"]),
        ("cluster autorecovery --rate fast", ["--rate", "'fast'", "'unlimited' or 'configured'"]),
        ("top --metrics-port 0", ["--metrics-port", "'0'", "a port of 1 to 65535"]),
        ("local --set novalue", ["--set", "'novalue'"]),
        ("bookie --config /nowhere/at-all", ["'/nowhere/at-all'", "bk_server.conf"]),
        ("demo --input /nowhere/at-all.csv", ["'/nowhere/at-all.csv'"]),
        ("bench write --entry-size 99999999", ["--entry-size", "99999999"]),
        ("bench write --seconds 0", ["--seconds", "'0'"]),
        ("bench spark --value-size 0", ["--value-size", "'0'"]),
        ("bench spark --value-size 3000000000", ["--value-size", "'3000000000'"]),
        (f"bench spark --uri {AWAY} --ensemble 1 --write-quorum 2", ["--ensemble 1", "--write-quorum 2"]),
        ("bench read --ledger 5", ["--ledger 5", "--uri"]),
        ("bench write --ensemble 1 --write-quorum 2", ["--ensemble 1", "--write-quorum 2"]),
    ],
)
def test_wrong_command_line_is_one_line_that_names_it_and_exit_code_2(command, names, capsys):
    assert main(shlex.split(command)) == 2
    assert_one_line(capsys.readouterr(), *names)


def test_zookeeper_away_is_one_line_with_the_address_and_exit_code_1(capsys):
    assert main(["ledger", "list", "--uri", AWAY]) == 1
    assert_one_line(capsys.readouterr(), "127.0.0.1:1", "ZooKeeper")


def test_environment_names_the_cluster(monkeypatch, capsys):
    monkeypatch.setenv("BKSPARK_URI", "nonsense://x")
    assert main(["ledger", "list"]) == 2
    assert_one_line(capsys.readouterr(), "'nonsense://x'")


def test_text_that_is_not_utf8_is_one_line_that_names_its_option_and_exit_code_2(tmp_path, capsys):
    """Such a word has a lone surrogate in Python, and ended the command with a traceback when it was encoded."""
    words = ["--journal-dirs", "j", "--ledger-dirs", "l", "--instance", "\udcff", "--uri", AWAY]
    assert main(["cookie", "generate", "b:1", str(tmp_path / "cookie"), *words]) == 2
    assert_one_line(capsys.readouterr(), "--instance", "\\udcff is not UTF-8")
    assert not (tmp_path / "cookie").exists()


def test_password_that_is_not_utf8_is_not_shown(capsys):
    assert main(["ledger", "read", "5", "--password", "s3cret\udcff", "--uri", AWAY]) == 2
    output = capsys.readouterr()
    assert_one_line(output, "--password", "\\udcff is not UTF-8")
    assert "s3cret" not in output.err


def test_name_of_a_file_need_not_be_utf8(tmp_path, capsys):
    name = tmp_path / "\udcff"
    name.mkdir()
    assert main(["ledger", "write", str(name), "--uri", AWAY]) == 2
    assert_one_line(capsys.readouterr(), "Is a directory")


@pytest.mark.parametrize("command", ["ledger create --metadata", "bookie --set", "local --set"])
def test_value_that_is_not_utf8_is_one_line_that_names_its_key(command, capsys, monkeypatch):
    monkeypatch.setenv("BKSPARK_URI", AWAY)
    assert main([*command.split(), "keyOfIt=\udcff"]) == 2
    assert_one_line(capsys.readouterr(), f"{command.split()[-1]} keyOfIt: \\udcff is not UTF-8")


@pytest.mark.parametrize(
    ("encoding", "text", "reason"),
    [
        ("ascii", "\u2713", "has the encoding ascii, which lacks \\u2713: set PYTHONIOENCODING=utf-8"),
        ("latin-1", "\u2713", "has the encoding latin-1, which lacks \\u2713: set PYTHONIOENCODING=utf-8"),
        ("utf-8", "\udcff", "has the encoding utf-8, which lacks \\udcff: set PYTHONIOENCODING=utf-8:backslashreplace"),
    ],
)
def test_output_that_a_terminal_cannot_show_names_its_encoding(tmp_path, encoding, text, reason):
    """`bkspark dump` shows the names of files."""
    directory = tmp_path / text / "current"
    directory.mkdir(parents=True)
    (directory / "lastMark").write_bytes(bytes(16))
    done = subprocess.run(
        [sys.executable, "-m", "bkspark.cli", "dump", "marks", str(directory.parent)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (1, f"bkspark dump: the output {reason}\n")


def test_missing_java_is_one_line_that_names_where_it_was_looked_for(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["local", "--dir", str(tmp_path / "data")]) == 2
    output = capsys.readouterr()
    assert str(tmp_path) in output.err.splitlines()[-1]
    assert "Java 17" in output.err
    assert list((tmp_path / "data").iterdir()) == []


def test_old_java_is_refused(monkeypatch, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="17 or newer"):
        find_java()


@pytest.mark.parametrize(
    "command", ["", "local", "bookie", "demo", "ledger", "ledger write", "log", "cluster init", "bench spark"]
)
def test_help_is_printed_for_every_command(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: bkspark")


def test_help_loads_neither_spark_nor_arrow_nor_numpy():
    code = (
        "import sys; from bkspark.cli.__main__ import build_parser; build_parser(); "
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'kazoo', 'asyncio') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_ctrl_c_is_one_line_and_exit_code_1():
    process = subprocess.Popen(
        [sys.executable, "-m", "bkspark.cli", "ledger", "list", "--uri", AWAY],
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        # Threads run: its handlers are set, and it loads libraries or waits its 10 seconds for ZooKeeper.
        deadline = time.monotonic() + 120
        while len(os.listdir(f"/proc/{process.pid}/task")) < 2 and time.monotonic() < deadline:
            assert process.poll() is None
        process.terminate()
        errors = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert (process.returncode, errors) == (1, "bkspark: interrupted\n")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("ledger", "read", "0", "--pasword=s3cret"), "unknown argument '--pasword' (did you mean --password?)"),
        (("ledger", "read", "0", "--pasword", "s3cret"), "unknown argument '--pasword' (did you mean --password?)"),
        (("ledger", "read", "0", "-ps3cret"), "unknown argument '-p'"),
        (("--password", "s3cret", "ledger", "list"), "unknown argument '--password'"),
        (("--password=s3cret", "ledger", "list"), "unknown argument '--password'"),
        (("ledger", "--password", "s3cret", "list"), "unknown argument '--password'"),
        (("bookie", "--passwd=s3cret"), "unknown argument '--passwd'"),
    ],
)
def test_a_password_in_a_misspelt_or_misplaced_option_is_not_shown(
    words: tuple[str, ...], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(list(words))
    except SystemExit as end:
        code = end.code
    assert code == 2
    printed = capsys.readouterr()
    assert shown in printed.err
    assert "s3cret" not in printed.out + printed.err
