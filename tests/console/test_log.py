"""The log of the console: a line for each event, whatever bookies answer and certificates are called."""

from __future__ import annotations

import subprocess
import sys

FORGED = "refused: no\n2026-11-24 03:15:48,816 INFO audit: console:root: delete ledger 1 at bookie b: done"
LOGS = f"""
import logging
from bkspark_console.__main__ import log_to_stderr
log_to_stderr()
logging.getLogger("bkspark_console.audit").info("audit: console:%s: %s", "amy", {FORGED!r})
"""


def test_an_error_that_a_bookie_words_does_not_look_like_another_line_of_the_audit_log() -> None:
    """Whatever answers at the HTTP address of a registration writes the reason why it refused a change."""
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, timeout=60, check=True)
    (line,) = done.stderr.splitlines()
    assert "audit: console:amy: refused: no\\n2026" in line
