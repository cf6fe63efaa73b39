"""Connections that end leave nothing to Python's garbage collection, whatever their peers did.

A collection stops the event loop. A connection that is part of a cycle of references makes one longer, so a flood of
connections would delay honest clients, and the memory of its TLS stays until then.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bkspark.wire import v2
from tests.bookie.serving import Serving, adds, service_options
from tests.floods.requests import HANDSHAKES, REQUESTS
from tests.security.certificates import Authority
from tests.security.sasl_serving import SaslPeer, by_digest
from tests.security.tls_serving import TlsPeer, listener, trusting

_TIMES = 20
_MORE_THAN_ONCE = _TIMES // 2
"""A cycle of each connection would be found `_TIMES` times; a cycle or two may be of the test's own parts."""

SENT: dict[str, Callable[[], bytes]] = {
    "an add": lambda: adds(1, 0, [b"x"]),
    "a read of an entry that is missing": lambda: v2.encode_reads(1, np.array([9])),
    "bytes that are no frame": lambda: b"\xff" * 64,
    "bytes that are no protobuf message": lambda: b"\0\0\0\4" + b"\x0a\xff\xff\xff",
    "START_TLS and no handshake": HANDSHAKES["START_TLS and no handshake"],
    "half a TLS handshake": HANDSHAKES["half TLS handshakes"],
    "START_TLS and then bytes that are no handshake": lambda: HANDSHAKES["START_TLS and no handshake"]() + b"x" * 64,
    "the beginning of a frame": lambda: adds(1, 0, [b"x" * 100])[:50],
} | {name: lambda name=name: REQUESTS[name](3) for name in REQUESTS}


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Python begins no collection by itself, and those of a test look only at what the test made."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


def cyclic() -> Counter[str]:
    """Return how many objects of the product, by type, only a collection frees; and free them."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(0)
    found = Counter(
        getattr(each, "__qualname__", "") or f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage
    )
    gc.garbage.clear()
    gc.collect()
    return Counter({name: count for name, count in found.items() if count > _MORE_THAN_ONCE})


def talk(bookie: Serving, sent: bytes) -> None:
    """Send bytes on each of many connections, and leave."""
    for _ in range(_TIMES):
        with bookie.connect() as peer:
            peer.send(sent)
    wait_for_the_end(bookie)


def wait_for_the_end(bookie: Serving) -> None:
    """Return once the service has accepted all connections and closed them."""
    with bookie.connect() as last:
        last.send(v2.encode_reads(1, np.array([0])))
        assert last.frame() is not None
    while bookie.call(lambda: bookie.service.connection_count):
        pass


@pytest.mark.parametrize("name", SENT)
def test_connection_leaves_no_cycle(tmp_path: Path, name: str) -> None:
    with Serving(service_options(tmp_path, tls=listener(Authority(tmp_path).issue("bookie")))) as bookie:
        # What is imported at first use is not a connection's.
        talk(bookie, SENT[name]())
        cyclic()
        talk(bookie, SENT[name]())
        assert not cyclic()


def test_connection_in_tls_leaves_no_cycle(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Serving(service_options(tmp_path, tls=listener(authority.issue("bookie")))) as bookie:

        def talk_in_tls() -> None:
            for number in range(_TIMES):
                with TlsPeer(bookie.port, trusting(authority)) as peer:
                    assert peer.add(1, number, [b"x"]) == [0]
            wait_for_the_end(bookie)

        talk_in_tls()
        cyclic()
        talk_in_tls()
        assert not {name for name in cyclic() if name.startswith("bookie_service")}


@pytest.mark.parametrize("name", ["half logins", "wrong logins"])
def test_connection_that_does_not_log_in_leaves_no_cycle(tmp_path: Path, name: str) -> None:
    with Serving(service_options(tmp_path, authentication=by_digest(tmp_path))) as bookie:
        talk(bookie, HANDSHAKES[name]())
        cyclic()
        talk(bookie, HANDSHAKES[name]())
        assert not cyclic()


def test_connection_that_logs_in_leaves_no_cycle(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path, authentication=by_digest(tmp_path))) as bookie:

        def log_in() -> None:
            for _ in range(_TIMES):
                with bookie.connect() as peer:
                    SaslPeer(peer).authenticate()
            wait_for_the_end(bookie)

        log_in()
        cyclic()
        log_in()
        assert not cyclic()
