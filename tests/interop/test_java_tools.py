"""Apache's own checks of a cluster, and its V3 side connection: on its bookies, which prove them, and on ours."""

from __future__ import annotations

import pytest

from bookie_service.settings.keys import APACHE_KEYS
from tests.interop.cases import PASSWORD
from tests.interop.conftest import Bookies
from tests.interop.peer import JavaClient, PeerError

pytestmark = [pytest.mark.interop, pytest.mark.cluster]


def test_item_9_every_bookie_is_registered_and_has_a_cookie(java: JavaClient, bookies: Bookies) -> None:
    ids = sorted(bookie.id for bookie in bookies.bookies)
    answer = java.call("bookies")
    assert (answer["available"], answer["read_only"]) == (ids, [])
    # Cookies outlive bookies: those of bookies that other tests ran in this cluster are still there.
    assert set(ids) <= set(answer["all"])


def test_every_configuration_key_of_apaches_code_is_known(java_on_ours: JavaClient) -> None:
    # Constants of those classes that are not keys: a znode, a system property, the two values of clientRole.
    others = {"available", "org.apache.bookkeeper.conf.readsystemproperties", "system", "standard"}
    names = set(java_on_ours.call("configuration_names")["names"]) - others
    assert len(names) > 250
    assert sorted(names - APACHE_KEYS) == []


def test_item_3_apaches_start_accepts_the_cookies_of_the_same_folders_only(java: JavaClient, bookies: Bookies) -> None:
    bookie = bookies.bookies[0]
    host, port = bookie.id.split(":")
    folders = {"journalDirectories": str(bookie.dir / "journal"), "ledgerDirectories": str(bookie.dir / "ledgers")}
    settings = {"bookiePort": port, "advertisedAddress": host, "allowLoopback": "true", **folders}
    current = [f"{folder}/current" for folder in folders.values()]
    java.call("check_cookies", settings=settings, directories=current)
    moved = {**settings, "journalDirectories": "/elsewhere"}
    with pytest.raises(PeerError, match="Cookie"):
        java.call("check_cookies", settings=moved, directories=current)


def test_item_4_a_call_that_needs_v3_is_answered(java: JavaClient, bookies: Bookies) -> None:
    ledger = java.create((3, 3, 2), "crc32c", PASSWORD)
    java.append(ledger, [10] * 3)
    java.append(ledger, [10])
    answer = java.call("explicit_lac", ledger=ledger, digest="crc32c", password=PASSWORD)
    assert answer["last_confirmed"] == 2
    java.call("close", ledger=ledger)
