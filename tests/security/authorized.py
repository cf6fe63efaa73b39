"""A bookie with authorization in this process, without sockets and without time, and requests of every kind to it."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from bkspark.security.authorization import LedgerFacts, parse_rules
from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.digest import master_key
from bkspark.wire.start_tls import encode_start_tls
from bkspark.wire.status import Status
from bookie_service.engine.authorization import Authorization, AuthorizationLimits, Found, RefusedRequests, Unfound
from bookie_service.metrics.requests import RequestTimes
from tests.bookie.serving import KEY, adds
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket, SteppedLoop
from tests.bookie.v3_peer import FENCE, PIGGYBACK, RECOVERY, add_frames, request

OTHER_KEY = master_key(b"another password")
ALL_RIGHTS = "token:root read,write,fence *"
ROOT = Principal("root", "token")
CACHE_BYTES = 256 * 1024


class Metadata:
    """The metadata store: what exists, and what was asked. Answers come in a later turn, or at `release`."""

    def __init__(self, ledgers: Iterable[LedgerFacts] = ()) -> None:
        self.ledgers: dict[int, Found] = {facts.ledger_id: facts for facts in ledgers}
        self.asked: list[int] = []
        self.is_held = False
        """Answers wait for `release`."""
        self._held: deque[Callable[[], None]] = deque()
        self.loop: SteppedLoop

    def look_up(self, ledger_id: int, on_found: Callable[[Found], None], asker: str) -> None:
        self.asked.append(ledger_id)

        def answer() -> None:
            on_found(self.ledgers.get(ledger_id, Unfound.ABSENT))

        if self.is_held:
            self._held.append(answer)
        else:
            self.loop.call_soon(answer)

    def release(self) -> None:
        """Give the answers that wait."""
        self.is_held = False
        while self._held:
            self._held.popleft()()


class AuthorizedBookie:
    """A bookie with these rules."""

    def __init__(
        self,
        rules: str,
        metadata: Metadata,
        limits: AuthorizationLimits | None = None,
        times: RequestTimes | None = None,
    ) -> None:
        self.refused: list[RefusedRequests] = []
        self.metadata = metadata

        def authorization(loop: SteppedLoop) -> Authorization:
            metadata.loop = loop
            return Authorization(parse_rules(rules.encode()), metadata.look_up, self.refused.append, limits)

        self.served = ServedBookie(cache_half_bytes=CACHE_BYTES, authorization=authorization, times=times)
        assert self.served.authorization is not None
        self.authorization = self.served.authorization

    def set_rules(self, rules: str) -> None:
        self.authorization.set_rules(parse_rules(rules.encode()))

    def connect(self, principal: Principal = ANONYMOUS) -> SimulatedSocket:
        peer = self.served.connect()
        self.served.connections[peer].principal = principal
        return peer

    def ask(self, peer: SimulatedSocket, frames: bytes, turns: int = 12) -> bytes:
        """Return what the bookie sends within some turns."""
        return ask(self.served, peer, frames, turns)

    @property
    def uses(self) -> tuple[int, int]:
        """How often the store was used, and the disk."""
        return self.served.store.uses, self.served.twin.disk.operations


def ask(served: ServedBookie, peer: SimulatedSocket, frames: bytes, turns: int = 12) -> bytes:
    """Return what a bookie sends within some turns."""
    peer.received += frames
    for _ in range(turns):
        served.turn()
    answer = bytes(peer.sent)
    peer.sent.clear()
    return answer


@dataclass(frozen=True)
class Operation:
    """A request: what it needs, by name, and its frame for a ledger and a key."""

    name: str
    needs: frozenset[str]
    frame: Callable[[int, bytes], bytes]
    has_ledger: bool = True

    def __str__(self) -> str:
        return self.name


def _needs(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _v2_read(ledger_id: int, entry_id: int, flags: int = 0, key: bytes | None = None) -> bytes:
    return v2.encode_reads(ledger_id, np.array([entry_id]), flags, key)


def _v3(operation: int, **message: object) -> bytes:
    return v3.encode_message(request(operation, 7, **message))


def lac_packet(ledger_id: int, lac: int) -> bytes:
    """Return an explicit LAC as clients send it, with an empty digest."""
    return struct.pack(">qq", ledger_id, lac)


OPERATIONS = (
    Operation("V2 ADD", _needs("write"), lambda ledger, key: adds(ledger, 5, [b"x"], key=key)),
    Operation("V2 5 ADDs", _needs("write"), lambda ledger, key: adds(ledger, 5, [b"x"] * 5, key=key)),
    Operation(
        "V2 recovery ADD", _needs("write fence"), lambda ledger, key: adds(ledger, 5, [b"x"], v2.RECOVERY_ADD, key)
    ),
    Operation("V2 READ", _needs("read"), lambda ledger, key: _v2_read(ledger, 0)),
    Operation("V2 READ -1", _needs("read"), lambda ledger, key: _v2_read(ledger, -1)),
    Operation("V2 5 READs", _needs("read"), lambda ledger, key: _v2_read(ledger, 0) * 5),
    Operation("V2 fencing READ", _needs("read fence"), lambda ledger, key: _v2_read(ledger, 0, v2.DO_FENCING, key)),
    Operation(
        "V2 BATCH_READ", _needs("read"), lambda ledger, key: v2.encode_batch_read(ledger, 0, 9, 2, 1 << 20, 0, None)
    ),
    Operation(
        "V2 fencing BATCH_READ",
        _needs("read fence"),
        lambda ledger, key: v2.encode_batch_read(ledger, 0, 9, 2, 1 << 20, v2.DO_FENCING, key),
    ),
    Operation(
        "V2 AUTH", _needs(""), lambda ledger, key: bytes.fromhex("0000000c02030000") + b"\x0a\x04sasl\x12\x00", False
    ),
    Operation("V3 ADD", _needs("write"), lambda ledger, key: add_frames(ledger, 5, [b"x"], 7, masterKey=key)),
    Operation("V3 5 ADDs", _needs("write"), lambda ledger, key: add_frames(ledger, 5, [b"x"] * 5, 7, masterKey=key)),
    Operation(
        "V3 recovery ADD",
        _needs("write fence"),
        lambda ledger, key: add_frames(ledger, 5, [b"x"], 7, masterKey=key, flag=RECOVERY),
    ),
    Operation("V3 READ", _needs("read"), lambda ledger, key: _v3(protocol.READ_ENTRY, ledgerId=ledger, entryId=0)),
    Operation("V3 READ -1", _needs("read"), lambda ledger, key: _v3(protocol.READ_ENTRY, ledgerId=ledger, entryId=-1)),
    Operation(
        "V3 5 READs", _needs("read"), lambda ledger, key: _v3(protocol.READ_ENTRY, ledgerId=ledger, entryId=0) * 5
    ),
    Operation(
        "V3 fencing READ",
        _needs("read fence"),
        lambda ledger, key: _v3(protocol.READ_ENTRY, ledgerId=ledger, entryId=0, flag=FENCE, masterKey=key),
    ),
    Operation(
        "V3 long poll, piggyback",
        _needs("read"),
        lambda ledger, key: _v3(
            protocol.READ_ENTRY, ledgerId=ledger, entryId=-1, flag=PIGGYBACK, previousLAC=0, timeOut=0
        ),
    ),
    Operation(
        "V3 long poll",
        _needs("read"),
        lambda ledger, key: _v3(protocol.READ_ENTRY, ledgerId=ledger, entryId=0, previousLAC=0, timeOut=0),
    ),
    Operation(
        "V3 WRITE_LAC",
        _needs("write"),
        lambda ledger, key: _v3(protocol.WRITE_LAC, ledgerId=ledger, lac=1, masterKey=key, body=lac_packet(ledger, 1)),
    ),
    Operation("V3 READ_LAC", _needs("read"), lambda ledger, key: _v3(protocol.READ_LAC, ledgerId=ledger)),
    Operation("V3 FORCE", _needs("write"), lambda ledger, key: _v3(protocol.FORCE_LEDGER, ledgerId=ledger)),
    Operation(
        "V3 LIST", _needs("read"), lambda ledger, key: _v3(protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, ledgerId=ledger)
    ),
    Operation("V3 INFO", _needs("any"), lambda ledger, key: _v3(protocol.GET_BOOKIE_INFO, requested=3), False),
    Operation("V3 AUTH", _needs(""), lambda ledger, key: _v3(protocol.AUTH), False),
    Operation("V3 START_TLS", _needs(""), lambda ledger, key: encode_start_tls(7), False),
)


def statuses(answer: bytes) -> list[int]:
    """Return the status of each response, of V2 or V3, with EOK and EUA as in V2."""
    found = []
    while answer:
        end = 4 + int.from_bytes(answer[:4], "big")
        body, answer = answer[4:end], answer[end:]
        if body[0] == v3.FIRST_BYTE:
            status = protocol.Response.FromString(body).status
            found.append(Status.EUA if status == v3.StatusCode.EUA else status)
        else:
            found.append(struct.unpack_from(">i", body, 4)[0])
    return found


def facts(ledger_id: int, log: str = "", tenant: str = "", key: bytes | None = KEY) -> LedgerFacts:
    values: Mapping[str, str] = {}
    return LedgerFacts(ledger_id, log, tenant, values, key)


OWN, FENCED, FOREIGN, NEW, ABSENT = 1, 2, 3, 4, 5
USER = Principal("user", "digest")


def prepared(send: Callable[[bytes], bytes]) -> None:
    """Fill a bookie: three ledgers with three entries, one of them fenced."""
    for ledger_id in (OWN, FENCED, FOREIGN):
        assert set(statuses(send(adds(ledger_id, 0, [b"a", b"b", b"c"])))) == {Status.EOK}
    send(v2.encode_reads(FENCED, np.array([-1]), v2.DO_FENCING, KEY))


def metadata() -> Metadata:
    """Return a store where all ledgers exist but one."""
    return Metadata([facts(OWN, "mine"), facts(FENCED, "mine"), facts(FOREIGN, "theirs"), facts(NEW, "mine")])


def frames_in(data: bytes) -> int:
    count = at = 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        count += 1
    return count
