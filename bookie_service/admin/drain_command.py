"""`bkspark cluster drain`: begins a drain, or continues, watches, changes or cancels one.

With `--json` stdout gets a line of progress every few seconds (`ledgers_done`, `ledgers`, `bytes_done`, `bytes`,
`bytes_per_s`, `seconds_left`, ...), and a last line with `"done": true`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import Any

from bkspark.errors import BookKeeperError
from bkspark.log_limit import no_digits
from bkspark.metadata.bookie_plans import BookiePlan
from bkspark.one_line import one_line
from bkspark.options import MIB
from bkspark.wall_clock import wall_clock_ms
from bookie_service.admin.command_audit import commanded, operator
from bookie_service.admin.command_output import print_progress, print_result
from bookie_service.replication import drain_plans
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.drain import Drain, DrainCancelled, DrainPreview, DrainProgress, progress_of
from bookie_service.replication.drain_sharing import SILENT_S
from bookie_service.replication.operations import this_process
from bookie_service.settings.configuration import Configuration

IMPOSSIBLE = 10
"""The exit code of a preview if ledgers cannot be moved."""
REPORT_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("bookie", metavar="ID")
    parser.add_argument("--rate", type=_rate, default=0, metavar="BYTES", help="maximum bytes per second")
    parser.add_argument(
        "--close-open", action="store_true", help="close open ledgers whose writer does not replace the bookie"
    )
    parser.add_argument("--reason", default="", help="why, for other operators and the audit log")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--resume", action="store_true", help="continue a drain that was started before; do not start a new one"
    )
    instead.add_argument(
        "--plan", "--dry-run", action="store_true", help="print what would be copied, and change nothing"
    )
    instead.add_argument(
        "--status", action="store_true", help="print the progress; with --rate, change the rate of a running drain"
    )
    instead.add_argument("--cancel", action="store_true", help="end the drain: the bookie accepts entries again")


def _rate(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 15 and int(text)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of bytes a second above 0")
    return int(text)


async def drain(cluster: RepairedCluster, arguments: argparse.Namespace, configuration: Configuration) -> int:
    """Carry out the command; return its exit code. Raises BookKeeperError, ConfigurationError."""
    bookie, who = arguments.bookie, operator()
    if arguments.status:
        if arguments.rate:
            plan = await drain_plans.set_rate(cluster, bookie, arguments.rate)
            await _rate_set(cluster, bookie, arguments.rate)
        else:
            plan = await drain_plans.running(cluster, bookie)
        print_result(dataclasses.asdict(plan), status_line(plan), as_json=arguments.json)
        return 0
    if arguments.cancel:
        await drain_plans.cancel(cluster, bookie)
        await commanded(cluster, f"cancel the drain of bookie {bookie}", bookie=bookie)
        print_result(
            {"bookie": bookie, "cancelled": True}, f"the drain of bookie {bookie} is cancelled", as_json=arguments.json
        )
        return 0
    options, closes_open = configuration.auto_recovery, arguments.close_open
    lines = _Lines(is_json=arguments.json)
    moving = Drain(cluster, bookie, this_process(), options, lines.report, closes_open=closes_open)
    if arguments.plan:
        preview = await moving.preview()
        print_result({"bookie": bookie, **dataclasses.asdict(preview)}, shown(bookie, preview), as_json=arguments.json)
        return 0 if preview.is_possible else IMPOSSIBLE
    if arguments.resume:
        await drain_plans.running(cluster, bookie)
    begun = await drain_plans.begin(cluster, bookie, who, arguments.reason, arguments.rate)
    if begun.is_new:
        await commanded(cluster, f"drain bookie {bookie}", bookie=bookie, reason=arguments.reason)
    else:
        if arguments.rate:
            await _rate_set(cluster, bookie, arguments.rate)
        await commanded(cluster, f"continue to drain bookie {bookie}", bookie=bookie)
        print_progress(f"continues the drain that {begun.plan.who} began at {_at(begun.plan.since_ms)}")
    try:
        moved = await moving.run()
    except DrainCancelled as cancelled:
        print_progress(f"bkspark cluster: {cancelled}")
        return 1
    except BookKeeperError:
        print_progress(
            f"bookie {bookie} stays read-only, and what was copied stays: run this again later, or with --cancel"
        )
        raise
    copied = moving.progress().copied_bytes
    facts = {"bookie": bookie, "ledgers": moved, "copied_bytes": copied, "drained": True, "done": True}
    then = f"stop it, then `bkspark cluster decommission {bookie}` forgets it"
    print_result(facts, f"no ledger needs bookie {bookie} any more, {moved} were moved: {then}", as_json=arguments.json)
    return 0


async def _rate_set(cluster: RepairedCluster, bookie: str, rate: int) -> None:
    await commanded(cluster, f"set the rate of the drain of bookie {bookie} to {rate}", bookie=bookie, rate=rate)


class _Lines:
    """Prints progress: a line every few seconds, and each new reason for blocked ledgers once, with one such ledger."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        """Whether lines are JSON objects instead of text."""
        self._due_s = 0.0
        """When the next line is printed."""
        self._said: set[str] = set()
        """Reasons that were printed."""

    def report(self, progress: DrainProgress) -> None:
        """Print the lines that are due."""
        for ledger, reason in progress.blocked.items():
            # Compared without its numbers, because thousands of ledgers may lack the same bookie.
            if (cause := no_digits(reason)) not in self._said:
                self._said.add(cause)
                print_progress(_not_moved(ledger, reason))
        if time.monotonic() >= self._due_s or not progress.ledgers_left:
            self._due_s = time.monotonic() + REPORT_S
            print_progress(_line(progress))
            if self._is_json:
                print(json.dumps(_facts(progress)), flush=True)


def _not_moved(ledger: str, reason: str) -> str:
    return f"ledger {ledger} is not moved yet: {reason.removeprefix(f'ledger {ledger}: ')}"


def _facts(progress: DrainProgress) -> dict[str, Any]:
    return {
        "ledgers_done": progress.ledgers - progress.ledgers_left,
        "ledgers": progress.ledgers,
        "bytes_done": progress.bytes - progress.bytes_left,
        "bytes": progress.bytes,
        "bytes_per_s": progress.bytes_per_s,
        "seconds_left": progress.seconds_left,
        "waiting": list(progress.waiting),
        "blocked": progress.blocked,
    }


def _line(progress: DrainProgress) -> str:
    done = progress.ledgers - progress.ledgers_left
    seconds = progress.seconds_left
    left = ""
    if progress.ledgers_left:
        left = ", time left unknown" if seconds is None else f", {seconds} s left"
    waiting = f"; {len(progress.waiting)} wait for their writers" if progress.waiting else ""
    blocked = f"; {len(progress.blocked)} are blocked" if progress.blocked else ""
    return (
        f"{done} of {progress.ledgers} ledgers, {(progress.bytes - progress.bytes_left) / MIB:.1f} of "
        f"{progress.bytes / MIB:.1f} MiB, {progress.bytes_per_s / MIB:.1f} MiB/s{left}{waiting}{blocked}"
    )


def status_line(plan: BookiePlan) -> str:
    """Return how far a drain is, whether a process still carries it out, and which ledgers wait or are blocked."""
    progress = progress_of(plan)
    line = _line(progress) if plan.progress else "no process has reported yet"
    at_ms = plan.progress.get("at_ms")
    if isinstance(at_ms, int) and progress.ledgers_left and (silent_s := (wall_clock_ms() - at_ms) / 1000) > SILENT_S:
        line += f"; no process has reported for {silent_s:.0f} s: --resume continues it"
    lines = [f"{plan.bookie}: drain by {plan.who} since {_at(plan.since_ms)}: {line}"]
    if progress.waiting:
        lines.append(f"  wait for their writers: {', '.join(map(str, progress.waiting))}")
    for ledger, reason in progress.blocked.items():
        lines.append(f"  {_not_moved(ledger, one_line(reason))}")
    return "\n".join(lines)


def shown(bookie: str, preview: DrainPreview) -> str:
    """Return what would be copied, for a person."""
    lines = [
        f"{preview.ledgers} ledgers have data at {bookie}, in {preview.fragments} fragments, about "
        f"{preview.bytes / MIB:.1f} MiB; {preview.growing} of them are being written",
        f"{len(preview.targets)} bookies may take copies: {', '.join(preview.targets) or 'none'}",
    ]
    if preview.without_spare:
        lines.append(f"{preview.without_spare} ledgers have no spare bookie: start more bookies")
    if preview.unreadable:
        lines.append(
            f"{preview.unreadable} ledgers have metadata that cannot be read: `bkspark ledger list --long` names them"
        )
    return "\n".join(lines)


def _at(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
