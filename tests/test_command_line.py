"""Errors of stdout, and errors of the same classes that come from elsewhere."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bkspark.command_line import UnwritableText, name_errors_of_stdout
from bookie_service.settings.arguments import run_reported


def stdout_in_ascii(errors: str = "strict") -> contextlib.redirect_stdout[io.TextIOWrapper]:
    return contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors))


def test_text_that_stdout_lacks_is_named_and_one_that_is_encoded_elsewhere_is_not() -> None:
    """Both were reported as a text that the output lacks."""
    with stdout_in_ascii():
        name_errors_of_stdout()
        with pytest.raises(UnwritableText, match=r"encoding ascii, which lacks \\u2713: set PYTHONIOENCODING=utf-8$"):
            print("\u2713")
        with pytest.raises(UnicodeEncodeError):
            "\u2713".encode("ascii")


def test_what_a_user_has_chosen_for_characters_that_stdout_lacks_stays() -> None:
    with stdout_in_ascii("replace") as stdout:
        name_errors_of_stdout()
        print("\u2713", flush=True)
        stdout.seek(0)
        assert stdout.read() == "?\n"


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "of a disk"), BrokenPipeError(errno.EPIPE, "of a socket"), OSError("without a number")]
)
def test_error_from_elsewhere_is_not_reported_as_one_of_stdout(error: OSError) -> None:
    """Any of them ended a command in one line, or silently, and without a traceback."""
    with stdout_in_ascii(), pytest.raises(OSError) as raised:
        run_reported("program", lambda: failing(error))
    assert raised.value is error


def test_text_that_is_encoded_elsewhere_is_not_reported_as_one_of_stdout() -> None:
    with stdout_in_ascii(), pytest.raises(UnicodeEncodeError):
        run_reported("program", lambda: len("\u2713".encode("ascii")))


def test_error_of_a_file_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/data/bookie")
    assert run_reported("program", lambda: failing(error)) == 1
    assert capsys.readouterr().err == "program: /data/bookie: Permission denied (errno 13)\n"


def failing(error: OSError) -> int:
    print("printed before")
    raise error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full is Linux's")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("size", [1, 8191, 8192, 100_000])
def test_stdout_that_is_full_is_one_line_whatever_the_size_of_a_text(size: int, unbuffered: str) -> None:
    program = f"""
import sys
from bookie_service.settings.arguments import run_reported

def run():
    for _ in range(3):
        print("x" * {size})
    return 0

sys.exit(run_reported("program", run))
"""
    with open("/dev/full", "w") as output:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=output,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (done.returncode, done.stderr.decode()) == (1, "program: [Errno 28] No space left on device\n")
