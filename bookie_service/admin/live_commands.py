"""Commands to a running bookie: `bkspark bookie COMMAND`, through its control socket.

| Command | Request | Answer |
|---|---|---|
| state | `{"do": "state"}` | `BookieState` |
| collect | `{"do": "collect", "major": true}` | `PassReport` |
| read-only, writable | `{"do": "read-only", "reason": TEXT}`, `{"do": "writable"}` | `BookieState` |
| suspend, resume | `{"do": "suspend", "what": ["minor", "major", "collection"]}` | `CollectionStatus` |
| set | `{"do": "set", "keys": {KEY: VALUE}}` | `{"changed": {KEY: [old, new]}, "notes": [TEXT]}` |
| reload | `{"do": "reload"}` | `changed`, and `need_restart` |
| restart | `{"do": "restart"}` | `{}`; the bookie stops in order and starts again |
| limbo | `{"do": "limbo", "after": ID}` | `{"ledgers": [ID, ...]}` |

Notes name values that are not used as given.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.ids import LEDGER_ID_MAX, NO_ENTRY
from bkspark.one_line import one_line
from bookie_service.admin import control
from bookie_service.gc.collection_status import PassReport
from bookie_service.operation.bookie_operator import BookieOperator, Refused, as_json
from bookie_service.settings.arguments import describe, fail

COLLECT = "collect"
SUSPENDABLE = ("minor", "major", "collection")
LIMBO_PAGE = 1000
ANSWER_S_MAX = 60.0
"""Commands that do no long work need far less time than this."""
_PROGRAM = "bookie"

Request = Mapping[str, Any]


class LiveCommands:
    """Carries out requests of the control socket."""

    def __init__(self, operator: BookieOperator) -> None:
        self._operator = operator
        self._commands: dict[str, Callable[[Request, str], Awaitable[dict[str, Any]]]] = {
            "state": self._state,
            COLLECT: self._collect,
            "read-only": self._read_only,
            "writable": self._writable,
            "suspend": self._suspend,
            "resume": self._resume,
            "set": self._set,
            "reload": self._reload,
            "limbo": self._limbo,
            "restart": self._restart,
        }
        """What carries out each command, by its name."""

    async def __call__(self, request: Request, who: str) -> dict[str, Any]:
        """Carry out a request. Raises BookKeeperError, ConfigurationError, OSError."""
        command = self._commands.get(request["do"])
        if command is None:
            known = ", ".join(self._commands)
            raise Refused(f"not a request: {str(request['do'])[:100]!r} is not one of {known}")
        return await command(request, who)

    async def _state(self, request: Request, who: str) -> dict[str, Any]:
        return as_json(self._operator.state())

    async def _collect(self, request: Request, who: str) -> dict[str, Any]:
        return as_json(await self._operator.collect(who, major=request.get("major") is not False))

    async def _read_only(self, request: Request, who: str) -> dict[str, Any]:
        await self._operator.set_read_only(True, who, str(request.get("reason") or ""))
        return as_json(self._operator.state())

    async def _writable(self, request: Request, who: str) -> dict[str, Any]:
        await self._operator.set_read_only(False, who)
        return as_json(self._operator.state())

    async def _suspend(self, request: Request, who: str) -> dict[str, Any]:
        self._operator.suspend(who, **_suspendable(request))
        return as_json(self._operator.collection())

    async def _resume(self, request: Request, who: str) -> dict[str, Any]:
        self._operator.resume(who, **_suspendable(request))
        return as_json(self._operator.collection())

    async def _set(self, request: Request, who: str) -> dict[str, Any]:
        keys = request.get("keys")
        if not isinstance(keys, dict) or not keys or not all(isinstance(each, str) for each in keys.values()):
            raise Refused("set needs KEY=VALUE")
        changed = self._operator.keys.set(keys, who)
        return {"changed": changed, "notes": self._operator.keys.notes(keys)}

    async def _reload(self, request: Request, who: str) -> dict[str, Any]:
        found = self._operator.keys.reload(who)
        await self._operator.reload_rules(who)
        return dataclasses.asdict(found)

    async def _restart(self, request: Request, who: str) -> dict[str, Any]:
        self._operator.restart(who)
        return {}

    async def _limbo(self, request: Request, who: str) -> dict[str, Any]:
        after = request.get("after", NO_ENTRY)
        if isinstance(after, bool) or not isinstance(after, int) or not NO_ENTRY <= after <= LEDGER_ID_MAX:
            raise Refused("after must be the id of a ledger")
        return {"ledgers": self._operator.limbo(after, LIMBO_PAGE)}


def _suspendable(request: Request) -> dict[str, bool]:
    what = request.get("what") or ["minor", "major"]
    if not isinstance(what, list) or not all(each in SUSPENDABLE for each in what):
        raise Refused(f"what can be suspended: {', '.join(SUSPENDABLE)}")
    return {name: name in what for name in SUSPENDABLE}


def run(ledger_directories: Sequence[str], command: str, words: Sequence[str], as_json: bool) -> int:
    """Send a command to the bookie that runs on these directories, and print its response; return the exit code."""
    try:
        request = _request(command, words)
        answer = control.ask(ledger_directories, request, None if command == COLLECT else ANSWER_S_MAX)
    except ConfigurationError as error:
        return fail(_PROGRAM, error, 2)
    except (BookKeeperError, OSError) as error:
        return fail(_PROGRAM, describe(error), 1)
    if as_json:
        print(json.dumps(answer))
    elif command == COLLECT:
        report = PassReport(**{field.name: answer[field.name] for field in dataclasses.fields(PassReport)})
        print(f"{report} ({answer['seconds']:.1f} s)")
    else:
        print_answer(answer)
    return 0


def print_answer(answer: Mapping[str, Any]) -> None:
    """Print the members of a response for a person, except how long it took."""
    members = {name: value for name, value in answer.items() if name != "seconds"}
    width = max(map(len, members), default=0)
    for name, value in members.items():
        print(f"{name.ljust(width)}  {shown(name, value)}".rstrip())


def shown(name: str, value: object) -> str:
    """Return a member of a response as one line for a person. The end of its name says what a number is."""
    if value is None or value == "" or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_ms"):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value / 1000)) if value else "-"
    if isinstance(value, int) and name.endswith("bytes"):
        return f"{value:,} ({value / (1 << 30):.1f} GiB)" if value >= 1 << 30 else f"{value:,}"
    if name == "changed" and isinstance(value, dict):
        default = "its default"
        return ", ".join(f"{key} from {old or default} to {new or default}" for key, (old, new) in value.items())
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(key, each)}" for key, each in value.items())
    if isinstance(value, list):
        return ("; " if isinstance(value[0], dict) else ", ").join(shown(name, each) for each in value)
    return one_line(str(value))


COMMANDS = ("state", "read-only", "writable", "suspend", "resume", "set", "reload", "limbo", "restart")
"""Commands that have words of their own. `--collect` is another command."""


def _request(command: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the request of a command line. Raises ConfigurationError."""
    if command == "read-only":
        return {"do": command, "reason": " ".join(words)}
    if command in ("suspend", "resume"):
        if not set(words) <= set(SUSPENDABLE):
            raise ConfigurationError(f"{command} takes {', '.join(SUSPENDABLE)}, not {' '.join(words)}")
        return {"do": command, "what": list(words)}
    if command == "set":
        pairs = [word.partition("=") for word in words]
        if not pairs or not all(separator and key for key, separator, _ in pairs):
            raise ConfigurationError("set takes KEY=VALUE, such as compactionRateByBytes=1000000")
        return {"do": command, "keys": {key: value for key, _, value in pairs}}
    if command == "limbo" and words:
        digits = words[0] if len(words) == 1 else ""
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) <= LEDGER_ID_MAX):
            raise ConfigurationError(f"limbo takes the id of the ledger to list after, not {' '.join(words)}")
        return {"do": command, "after": int(digits)}
    if words:
        raise ConfigurationError(f"{command} takes nothing more, not {' '.join(words)}")
    return {"do": command}
