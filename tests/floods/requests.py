"""Floods of requests: bytes that one connection sends. They cost little to make, and much for a careless bookie.

The bookie has ledger HELD with entries 0 to 49; SPARSE has entries 0 and 2**40 - 1.
"""

from __future__ import annotations

import contextlib
import ssl
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.auth import encode_auth
from bkspark.wire.digest import master_key
from bkspark.wire.start_tls import encode_start_tls
from tests.bookie.serving import KEY, adds
from tests.bookie.v3_peer import PIGGYBACK, request

HELD, SPARSE, UNKNOWN = 5, 6, 1 << 50
HELD_ENTRIES = 50
OTHER_KEY = master_key(b"other")
SIGNED_BYTES = 100
"""The answer to START_TLS has fewer bytes, and a ServerHello with its certificate has more."""


def many(count: int, one: Callable[[int], bytes]) -> bytes:
    return b"".join(map(one, range(count)))


def read(ledger_id: int, entry_id: int, flags: int = 0, key: bytes | None = None) -> bytes:
    return v2.encode_reads(ledger_id, np.array([entry_id]), flags, key)


def explicit_lac(number: int) -> bytes:
    ledger_id = UNKNOWN + number
    packet = struct.pack(">qq", ledger_id, 0) + bytes(4)
    fields: dict[str, Any] = {"ledgerId": ledger_id, "lac": 0, "masterKey": KEY, "body": packet}
    return v3.encode_message(request(protocol.WRITE_LAC, number, **fields))


def unserved(number: int) -> bytes:
    return v3.encode_message(protocol.Request(header=v3.header(protocol.RANGE_READ_ENTRY, number)))


def authentication(number: int) -> bytes:
    return v3.encode_message(protocol.Request(header=v3.header(protocol.AUTH, number)))


def of_v3(operation: int, **fields: Callable[[int], int] | int) -> Callable[[int], bytes]:
    """Return what makes a count of V3 requests, whose fields may depend on their number."""

    def one(number: int) -> bytes:
        values = {name: value(number) if callable(value) else value for name, value in fields.items()}
        return v3.encode_message(request(operation, number, **values))

    return lambda count: many(count, one)


def half_handshake() -> bytes:
    """Return START_TLS and the whole first message of a client, which answers nothing more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return encode_start_tls(0) + sent.read()


HALF = "half TLS handshakes"
HANDSHAKES: dict[str, Callable[[], bytes]] = {
    "START_TLS and no handshake": lambda: encode_start_tls(0),
    HALF: half_handshake,
    "half logins": lambda: encode_auth("sasl", b"", None),
    "wrong logins": lambda: encode_auth("sasl", b"", None) + encode_auth("sasl", b"response=0", None),
}
"""By name: what a connection sends once, and nothing after it."""

REQUESTS: dict[str, Callable[[int], bytes]] = {
    "V2 reads of missing ledgers": lambda count: many(count, lambda i: read(UNKNOWN + i, i)),
    "V2 reads of a held ledger": lambda count: many(count, lambda i: read(HELD, i * 7 % HELD_ENTRIES)),
    "V2 reads, each with other flags": lambda count: many(count, lambda i: read(HELD, i % HELD_ENTRIES, i * 16)),
    "V2 batch reads of missing ledgers": lambda count: many(
        count, lambda i: v2.encode_batch_read(UNKNOWN + i, 0, i, 1, 100)
    ),
    "V2 fences of unknown ledgers": lambda count: many(count, lambda i: read(UNKNOWN + i, -1, v2.DO_FENCING, KEY)),
    "V2 fences with a wrong key": lambda count: many(count, lambda i: read(HELD, -1, v2.DO_FENCING, OTHER_KEY)),
    "V2 AUTH": lambda count: v2.encode_auth_reply(b"") * count,
    "V2 adds with a wrong key": lambda count: many(count, lambda i: adds(HELD, 100, [b"x"], key=OTHER_KEY)),
    "V2 adds of a new ledger each": lambda count: many(count, lambda i: adds(UNKNOWN + i, 0, [b"x"])),
    "V2 adds and reads in turn": lambda count: many(
        count, lambda i: adds(HELD, 100 + i, [b"x"]) if i % 2 else read(HELD, i)
    ),
    "V2 frames of many sizes": lambda count: many(count, lambda i: v2.encode_auth_reply(bytes(i % 3))),
    "V3 reads of missing ledgers": of_v3(protocol.READ_ENTRY, ledgerId=lambda i: UNKNOWN + i, entryId=lambda i: i),
    "V3 LAC reads of missing ledgers": of_v3(protocol.READ_LAC, ledgerId=lambda i: UNKNOWN + i),
    "V3 LAC reads of a held ledger": of_v3(protocol.READ_LAC, ledgerId=HELD),
    "V3 FORCE": of_v3(protocol.FORCE_LEDGER, ledgerId=HELD),
    "V3 disk space": of_v3(protocol.GET_BOOKIE_INFO, requested=3),
    "V3 lists of a sparse ledger": of_v3(protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, ledgerId=SPARSE),
    "V3 long polls": of_v3(
        protocol.READ_ENTRY, ledgerId=HELD, entryId=-1, previousLAC=1000, timeOut=1 << 62, flag=PIGGYBACK
    ),
    "V3 explicit LACs of unknown ledgers": lambda count: many(count, explicit_lac),
    "V3 AUTH": lambda count: many(count, authentication),
    "V3 operation that is not served": lambda count: many(count, unserved),
}
"""By name: a function that returns this many requests of a flood, back to back."""
