"""Several bookies of one host under one supervisor: `--instances N`.

The supervisor starts each bookie as a process of its own, with the keys that `settings.instances` derives. It serves no
client itself. SIGTERM and SIGINT stop all of them in order, and the exit code is 1 if one of them ends with an error
then; SIGHUP reaches each of them. A bookie that ends with an error is started again, after a pause that doubles each
time. One that has served and ends without an error was stopped by an operator, and stays stopped. When the supervisor
dies, the kernel kills the bookies.

The first start is over when each bookie serves or has failed. Then the supervisor prints a line, and reports READY to
the service manager. A bookie that has failed, because its disk is gone for example, is started again like any other: it
must not keep the other bookies of the host from serving. If none serves, or the configuration is wrong at the first
start, all end.

Placement treats the host as one failure domain: see `bkspark.core.placement`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from subprocess import SubprocessError
from typing import Any

from bkspark.child_reports import ending, facts_in
from bkspark.command_line import StdoutFailed, discard_stdout
from bkspark.log_limit import FLUSH_S, LogLimiter
from bkspark.one_line import SHOWN_CHARACTERS_MAX, one_line
from bkspark.parent_death import die_with_parent
from bookie_service.admin.log_output import INSTANCE_VARIABLE
from bookie_service.admin.service_manager import ServiceManager
from bookie_service.admin.shutdown import SIGNALS, ShutdownSignals, ignore_harmless
from bookie_service.service import Repeating

logger = logging.getLogger(__name__)

PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
"""The first and the longest pause before a bookie starts again. After serving for the longest, the first applies."""

STRAY_LINES_MAX = 5
"""How many other lines of one run of an instance are logged."""
_LINE_BYTES_MAX = 1 << 20
"""A longer line of an instance is not read as a whole."""


_WRONG_CONFIGURATION = 2
"""The exit code of a bookie whose configuration is wrong. To start it again changes nothing."""


class _CannotStart(Exception):
    """A bookie ended before any served, or its configuration is wrong: its number and exit code."""

    def __init__(self, number: int, code: int) -> None:
        super().__init__(number, code)
        self.number = number
        self.code = code


def run(command: Sequence[str], count: int, signals: ShutdownSignals, limiter: LogLimiter, *, as_json: bool) -> int:
    """Run `count` bookies until a signal ends them; return the exit code of a bookie.

    Args:
        command: runs a bookie with --json; `--instance I` is added.
        limiter: of this process's log. Lines that it has left out are summed up meanwhile, and at the end.
    """
    try:
        return asyncio.run(_Supervisor(command, count).run(signals, limiter, as_json=as_json))
    finally:
        limiter.finish()


class _Supervisor:
    """The processes of all instances."""

    def __init__(self, command: Sequence[str], count: int) -> None:
        self._command = command
        """The command that starts an instance, without its number."""
        self._count = count
        """How many instances there are."""
        self._manager = ServiceManager()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        """Running processes, by number."""
        self._facts: dict[int, dict[str, Any]] = {}
        """What each instance printed when it last began to serve."""
        self._failed: set[int] = set()
        """Numbers of the instances that have failed before they first served, and have not served since."""
        self._has_begun = asyncio.Event()
        """Set when the first start is over: each instance has served or failed."""
        self._stopping = asyncio.Event()
        """Set when all instances are to stop."""
        self._has_failed_to_stop = False
        """Whether an instance ended with an error when all were stopped. Set once."""

    async def run(self, signals: ShutdownSignals, limiter: LogLimiter, *, as_json: bool) -> int:
        """Run the instances; return the exit code when all have ended."""
        loop = asyncio.get_running_loop()
        Repeating(loop, FLUSH_S, limiter.flush)
        for number in SIGNALS:
            loop.add_signal_handler(number, signals.request)
        signals.stop_by(self._stop)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            loop.add_signal_handler(number, self._send, number)
        self._manager.starting(f"starting {self._count} bookies")
        announcing = asyncio.create_task(self._announce(as_json))
        kept = [asyncio.create_task(self._keep(number)) for number in range(1, self._count + 1)]
        code = 0
        try:
            await asyncio.gather(*kept)
        except _CannotStart as error:
            code = error.code
            logger.error("instance %d cannot start: all bookies stop", error.number)
            self._stop()
            await asyncio.gather(*kept, return_exceptions=True)
        finally:
            announcing.cancel()
        return code or int(self._has_failed_to_stop)

    def _stop(self) -> None:
        self._manager.stopping("all bookies stop")
        self._stopping.set()
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, number: int) -> None:
        """Run an instance until it is stopped. Raises _CannotStart."""
        pause_s = PAUSE_S_MIN
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                code = await self._run_once(number)
            except (OSError, SubprocessError) as error:
                # For example no memory for a process: it must not end the supervisor, and all other bookies with it.
                logger.error("instance %d cannot be started: %s", number, error)
                code = 1
            if self._stopping.is_set():
                self._note_end(number, code)
                return
            if number not in self._facts:
                self._note_failure(number, code if code > 0 else 1)
            elif code == 0:
                logger.warning("instance %d was stopped; it stays so until all are started again", number)
                return
            if time.monotonic() - began >= PAUSE_S_MAX:
                pause_s = PAUSE_S_MIN
            logger.error("instance %d %s: it starts again in %g s", number, ending(code), pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _note_failure(self, number: int, code: int) -> None:
        """Note that an instance ended before it served. Raises _CannotStart if all must end."""
        self._failed.add(number)
        is_wrong = code == _WRONG_CONFIGURATION and not self._has_begun.is_set()
        if is_wrong or len(self._failed) == self._count:
            raise _CannotStart(number, code)
        self._note_begun()

    def _note_begun(self) -> None:
        if len(self._facts) + len(self._failed) == self._count:
            self._has_begun.set()

    def _note_end(self, number: int, code: int) -> None:
        """Note how an instance ended that was stopped."""
        # SIGTERM ends a process whose interpreter has not begun to handle it. It has promised nothing to any client.
        if code not in (0, -signal.SIGTERM):
            self._has_failed_to_stop = True
            logger.error("instance %d %s when it was stopped", number, ending(code))

    async def _run_once(self, number: int) -> int:
        """Start an instance, and return its exit code when it ends."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            "--instance",
            str(number),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            # Only the supervisor reports to the service manager. A Ctrl-C at the terminal reaches only it, too.
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
            | {INSTANCE_VARIABLE: str(number)},
            process_group=0,
            preexec_fn=_prepared(os.getpid()),
        )
        self._processes[number] = process
        if self._stopping.is_set():
            process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        try:
            await self._read(number, process.stdout)
            return await process.wait()
        finally:
            del self._processes[number]

    async def _read(self, number: int, output: asyncio.StreamReader) -> None:
        """Read what an instance prints until it ends. It prints one object when it serves, and again after each restart
        in place; other lines are logged."""
        bookie_id, stray = None, 0
        while True:
            try:
                line = await output.readline()
            except ValueError:
                line = b"a line of more than %d bytes\n" % _LINE_BYTES_MAX
            if not line:
                return
            facts = facts_in(line)
            if facts is not None and bookie_id in (None, facts["id"]):
                bookie_id = facts["id"]
                self._serves(number, facts)
            elif (stray := stray + 1) <= STRAY_LINES_MAX:
                text = line.decode(errors="backslashreplace").strip()
                logger.warning("instance %d printed %s", number, one_line(text[:SHOWN_CHARACTERS_MAX]))

    def _serves(self, number: int, facts: dict[str, Any]) -> None:
        if number in self._facts:
            logger.info("instance %d serves again", number)
        self._facts[number] = {"instance": number, **facts}
        if number in self._failed:
            self._failed.remove(number)
            logger.info("instance %d serves", number)
        self._note_begun()

    async def _announce(self, as_json: bool) -> None:
        await self._has_begun.wait()
        instances, failed = [self._facts[number] for number in sorted(self._facts)], sorted(self._failed)
        serving = f"{len(instances)} of {self._count} bookies serve"
        names = ", ".join(facts["id"] for facts in instances)
        line = f"{serving}: {names} (supervisor pid {os.getpid()})"
        if as_json:
            line = json.dumps({"pid": os.getpid(), "instances": instances, "failed": failed})
        try:
            print(line, flush=True)
        except (OSError, StdoutFailed) as error:
            logger.warning("%s, and this cannot be printed: %s", serving, error)
            # Nothing else is printed. At the end of the process the line would fail again, and so would the process.
            discard_stdout()
        self._manager.ready(serving)


def _prepared(parent_pid: int) -> Callable[[], None]:
    """Return a `preexec_fn` of an instance: it dies with its supervisor, and no harmless signal ends it.

    A bookie handles SIGHUP only when its interpreter runs. One that comes before, from a supervisor that passes it on,
    would end the bookie.
    """
    tie = die_with_parent(parent_pid)

    def prepare() -> None:
        ignore_harmless()
        if tie is not None:
            tie()

    return prepare
