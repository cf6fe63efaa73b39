"""Certificates of a running bookie are replaced while clients connect: no request fails."""

from __future__ import annotations

import os
import ssl
import threading
from dataclasses import replace
from pathlib import Path

from bkspark.wire import v2
from tests.bookie.serving import Peer
from tests.security.certificates import Authority, Leaf
from tests.security.tls_serving import TlsPeer, listener, serving, trusting

CLIENTS = 3
RENEWALS = 20


def test_no_request_fails_while_certificates_are_replaced(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = listener(authority.issue("bookie"))
    # Each new connection looks at the files.
    options = replace(options, tls=replace(options.tls, refresh_s=1e-6))
    context = trusting(authority)
    seen: set[bytes] = set()
    failures: list[BaseException] = []
    is_over = threading.Event()

    with serving(tmp_path, options) as bookie:

        def add_until_over(ledger_id: int) -> None:
            entry_id = 0
            try:
                with TlsPeer(bookie.port, context) as kept:
                    while not is_over.is_set():
                        with TlsPeer(bookie.port, context) as peer:
                            seen.add(certificate_of(peer))
                            assert peer.add(ledger_id, entry_id, [b"x"]) == [v2.Status.EOK]
                        # A connection of before the change goes on.
                        assert kept.add(ledger_id, entry_id + 1, [b"y"]) == [v2.Status.EOK]
                        entry_id += 2
            except BaseException as error:
                failures.append(error)

        clients = [threading.Thread(target=add_until_over, args=(number,)) for number in range(1, 1 + CLIENTS)]
        for client in clients:
            client.start()
        for number in range(RENEWALS):
            swap(authority.issue(f"renewed-{number}"), tmp_path)
            with TlsPeer(bookie.port, context) as peer:
                newest = certificate_of(peer)
        is_over.set()
        for client in clients:
            client.join()
    assert failures == []
    assert newest == ssl.PEM_cert_to_DER_cert((tmp_path / "bookie.pem").read_text())
    assert len(seen) > 1


def certificate_of(peer: Peer) -> bytes:
    assert isinstance(peer.socket, ssl.SSLSocket)
    found = peer.socket.getpeercert(binary_form=True)
    assert found is not None
    return found


def swap(leaf: Leaf, directory: Path) -> None:
    """Replace the bookie's files as a tool does that renews certificates: the key, then the certificate."""
    key, chain = leaf.pem()
    os.replace(key, directory / "bookie.key")
    os.replace(chain, directory / "bookie.pem")
