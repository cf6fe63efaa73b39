"""`python -m tests.fuzzing.watched_bookie FILE ...`: a bookie whose slow turns are written to FILE.

The other arguments are those of `python -m bookie_service`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from tests.fuzzing.turns import TurnRecorder

if __name__ == "__main__":
    TurnRecorder(Path(sys.argv.pop(1)))
    runpy.run_module("bookie_service", run_name="__main__", alter_sys=True)
