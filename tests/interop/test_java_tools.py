"""Apache's own checks of a cluster, and its V3 side connection: on its bookies, which prove them, and on ours."""

from __future__ import annotations

import pytest

from bookie_service.configuration_keys import APACHE_KEYS
from tests.interop.cases import PASSWORD, TIMEOUT
from tests.interop.conftest import Bookies
from tests.interop.peer import JavaClient, PeerError

pytestmark = [pytest.mark.interop, pytest.mark.cluster]


def test_every_bookie_is_registered_and_has_a_cookie(java: JavaClient, bookies: Bookies) -> None:
    ids = sorted(bookie.id for bookie in bookies.bookies)
    answer = java.call("bookies")
    assert (answer["available"], answer["read_only"]) == (ids, [])
    # Cookies outlive bookies: those of bookies that other tests ran in this cluster are still there.
    assert set(ids) <= set(answer["all"])


def test_every_configuration_key_of_apaches_code_is_known(java_on_ours: JavaClient) -> None:
    # Constants of those classes that are no keys: a znode, a system property, the two values of clientRole.
    others = {"available", "org.apache.bookkeeper.conf.readsystemproperties", "system", "standard"}
    names = set(java_on_ours.call("configuration_names")["names"]) - others
    assert len(names) > 250
    assert sorted(names - APACHE_KEYS) == []


def test_apaches_start_accepts_the_cookies_of_the_same_folders_only(java: JavaClient, bookies: Bookies) -> None:
    bookie = bookies.bookies[0]
    host, port = bookie.id.split(":")
    folders = {"journalDirectories": str(bookie.dir / "journal"), "ledgerDirectories": str(bookie.dir / "ledgers")}
    settings = {"bookiePort": port, "advertisedAddress": host, "allowLoopback": "true", **folders}
    current = [f"{folder}/current" for folder in folders.values()]
    java.call("check_cookies", settings=settings, directories=current)
    moved = {**settings, "journalDirectories": "/elsewhere"}
    with pytest.raises(PeerError, match="Cookie"):
        java.call("check_cookies", settings=moved, directories=current)


def test_a_call_that_needs_v3_is_answered_on_apaches_bookies(java_on_apache: JavaClient) -> None:
    ledger = java_on_apache.create((3, 3, 2), "crc32c", PASSWORD)
    java_on_apache.append(ledger, [10] * 3)
    java_on_apache.append(ledger, [10])
    answer = java_on_apache.call("explicit_lac", ledger=ledger, digest="crc32c", password=PASSWORD)
    assert answer["last_confirmed"] == 2
    java_on_apache.call("close", ledger=ledger)


def test_a_call_that_needs_v3_is_refused_by_our_bookies_at_once(java_on_ours: JavaClient) -> None:
    ledger = java_on_ours.create((3, 3, 2), "crc32c", PASSWORD)
    java_on_ours.append(ledger, [1])
    with pytest.raises(PeerError) as refused:
        java_on_ours.call("explicit_lac", ledger=ledger, digest="crc32c", password=PASSWORD)
    assert refused.value.code not in (0, TIMEOUT)
    # The refusal is for that call alone: V2 goes on.
    assert java_on_ours.append(ledger, [1])["last_entry"] == 1
    java_on_ours.call("close", ledger=ledger)
