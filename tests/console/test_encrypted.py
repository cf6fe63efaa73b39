"""The console has no keys: it shows entries of encrypted ledgers as encrypted, in pages and in live tails."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.request import urlopen

import pytest

from bkspark.blocking import Client, EncryptionOptions
from tests.cluster import Cluster
from tests.console.process import ConsoleProcess

pytestmark = pytest.mark.cluster


def test_entries_of_an_encrypted_ledger_are_shown_as_encrypted(
    console: ConsoleProcess, console_cluster: Cluster, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"2026-11 {base64.b64encode(b'k' * 32).decode()}\n")
    with (
        Client(console_cluster.uri, encryption=EncryptionOptions(str(keys))) as client,
        client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer,
    ):
        writer.append_many([b"in clear"] * 3)
    page = console.visitor().get(f"/ledgers/{writer.ledger_id}/entries?count=3")
    assert page.status == 200
    assert page.words.count("encrypted with key '2026-11'") == 3
    with urlopen(f"{console.url}ledgers/{writer.ledger_id}/tail?from=0", timeout=60) as answer:
        assert answer.read().decode().count("encrypted with key '2026-11'") == 3
