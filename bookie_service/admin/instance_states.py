"""`bkspark bookie --instances N state`: the state of each bookie of a host, and whether they are as they should be.

A bookie that runs and does not answer is a failure: its supervisor does not notice it. A bookie that does not run is
not a failure while another one answers: its supervisor starts it again, and a health check that fails would end all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bkspark.errors import BookKeeperError
from bookie_service.admin import control
from bookie_service.admin.live_commands import ANSWER_S_MAX, print_answer
from bookie_service.settings.arguments import describe, fail

_REQUEST = {"do": "state"}


def run(directories: Mapping[int, Sequence[str]], as_json: bool) -> int:
    """Print the state of each instance; return the exit code.

    Args:
        directories: the ledger directories of each instance, by number.
    """
    with ThreadPoolExecutor(len(directories)) as threads:
        answers = dict(zip(directories, threads.map(_ask, directories.values())))
    states = {number: answer for number, answer in answers.items() if isinstance(answer, dict)}
    errors = {number: answer for number, answer in answers.items() if not isinstance(answer, dict)}
    if as_json:
        instances = [{"instance": number, **state} for number, state in states.items()]
        print(json.dumps({"instances": instances, "failed": sorted(errors)}))
    else:
        for number, state in states.items():
            print(f"instance {number}")
            print_answer(state)
    for number, error in errors.items():
        fail(f"instance {number}", describe(error), 1)
    is_well = bool(states) and all(isinstance(error, control.NotRunning) for error in errors.values())
    return 0 if is_well else 1


def _ask(directories: Sequence[str]) -> dict[str, Any] | BookKeeperError | OSError:
    try:
        return control.ask(directories, _REQUEST, ANSWER_S_MAX)
    except (BookKeeperError, OSError) as error:
        return error
