"""Leaders of one log duel: the shipped log client on real bookie storage, on virtual time, under faults.

What must hold: every acknowledged entry is in the log, once; the entries of one term (one opening for writing) lie
together and in order, as no two leaders interleave; nothing that was appended after a later leader had opened the log
is acknowledged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bkspark.client import Client
from bkspark.errors import BookKeeperError
from bkspark.log.writer import LogWriter
from tests.simulation.full_faults import KINDS
from tests.simulation.full_schedule import FullSchedule

NAME = "duel"
_ROLL_S = 0.01
"""Within so long, under the simulated delays, a roll has mostly listed the new ledger and not yet closed the old."""


@dataclass(slots=True)
class Term:
    """One leader's time of writing; lists in order of appending."""

    name: str
    opened_at: int
    appended: list[tuple[bytes, int]] = field(default_factory=list)
    acknowledged: list[bytes] = field(default_factory=list)


def log_faults(terms: list[Term], read: list[bytes]) -> list[str]:
    """Return what is wrong with a log that holds `read` after these terms."""
    found = []
    if len(set(read)) != len(read):
        found.append("log: an entry is there twice")
    for term in terms:
        missing = set(term.acknowledged) - set(read)
        if missing:
            found.append(f"log: term {term.name}: {len(missing)} acknowledged entries are not there: {min(missing)!r}")
        later = [other.opened_at for other in terms if other.opened_at > term.opened_at]
        acknowledged = set(term.acknowledged)
        if later and any(when > min(later) and payload in acknowledged for payload, when in term.appended):
            found.append(f"log: term {term.name} appended after a later leader had opened the log")
        mine = [payload for payload, _ in term.appended]
        if [payload for payload in read if payload in set(mine)] != [it for it in mine if it in set(read)]:
            found.append(f"log: entries of term {term.name} are out of order")
    runs = [payload.partition(b":")[0] for payload in read]
    changes = [after for before, after in zip([b"", *runs], runs) if before != after]
    if len(changes) != len(set(changes)):
        found.append(f"log: terms interleave: {changes}")
    return found


class LogSchedule(FullSchedule):
    """One seed: leaders that open the log one over the other, faults, then a reader."""

    KINDS = tuple(kind for kind in KINDS if kind != "damage on disk")

    def __init__(self, seed: int, deaths_in_rolls: float = 0.1) -> None:
        """`deaths_in_rolls`: the share of rolls in which the leader dies at a random moment."""
        super().__init__(seed)
        self.terms: list[Term] = []
        self._deaths_in_rolls = deaths_in_rolls

    async def _main(self) -> None:
        await self.cluster.start()
        span_s = self.random.choice((0.05, 0.3, 1.5))
        tasks = [asyncio.ensure_future(self._lead(str(i), span_s)) for i in range(self.random.choice((2, 2, 3)))]
        for task in tasks:
            if self.random.random() < 0.4:
                # A leader that dies in the middle of something, of a roll for example.
                self.loop.call_later(self.random.random() * 2 * span_s, task.cancel)
        tasks += [asyncio.ensure_future(self._strike(span_s)) for _ in range(self.random.choice((0, 1, 2)))]
        await self._ended(tasks, "leaders")
        await self._heal()
        await self._check()

    async def _lead(self, name: str, span_s: float) -> None:
        client = self._client()
        try:
            await self._lead_with(client, name, span_s)
        finally:
            await client.close()

    async def _lead_with(self, client: Client, name: str, span_s: float) -> None:
        size, write_quorum, ack_quorum = self.quorums
        for number in range(self.random.choice((1, 2))):
            await asyncio.sleep(self.random.random() * span_s)
            try:
                writer = await client.log(NAME).open_for_writing(
                    ensemble=size, write_quorum=write_quorum, ack_quorum=ack_quorum
                )
            except BookKeeperError:
                self.history.count_fault("not opened")
                continue
            term = Term(f"{name}.{number}", self._now())
            self.terms.append(term)
            try:
                await self._append(writer, term, span_s)
                await writer.close()
            except BookKeeperError:
                self.history.count_fault("leader deposed")
            finally:
                writer.abandon()

    async def _append(self, writer: LogWriter, term: Term, span_s: float) -> None:
        for _ in range(self.random.choice((3, 6))):
            first = len(term.appended)
            payloads = [b"%s:%d" % (term.name.encode(), first + i) for i in range(self.random.choice((1, 2, 9)))]
            term.appended += [(payload, self._now()) for payload in payloads]
            await writer.append_many(payloads)
            term.acknowledged += payloads
            self.ledger.acknowledged.append((self.ledger.last_acknowledged + len(payloads), self._now()))
            if self.random.random() < 0.6:
                if self.random.random() < self._deaths_in_rolls:
                    # The log has two open ledgers for a while then, which a random moment hits too rarely.
                    task = asyncio.current_task()
                    assert task is not None
                    self.loop.call_later(self.random.random() * _ROLL_S, task.cancel)
                await writer.roll()
            await asyncio.sleep(self.random.expovariate(1.0) * span_s / 6)

    async def _check(self) -> None:
        client = self._client()
        read: list[bytes] = []
        try:
            if not self.terms:
                return
            await client.log(NAME).recover()
            async for batch in client.log(NAME).read():
                read += [bytes(payload) for payload in batch]
        except BookKeeperError as error:
            self.ledger.pending.append(f"the log cannot be read: {error}")
        finally:
            await client.close()
        self.ledger.acknowledged.clear()
        self.ledger.pending += log_faults(self.terms, read)
        self.history.faults["entries in the log"] = len(read)
