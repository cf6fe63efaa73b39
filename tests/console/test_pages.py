"""The console's pages over real bookies, as a client without JavaScript sees them."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from bkspark import client as asynchronous
from bkspark.blocking import Client, run
from bkspark.log.formats import SegmentFacts, SegmentOwner
from bkspark.log.schemas import SchemaChange, StoredSchema
from bkspark.metadata.change_records import ChangeRecord, ChangeRecords
from tests.cluster import Cluster
from tests.console.process import ConsoleProcess, Visitor
from tests.polling import wait_until

pytestmark = pytest.mark.cluster

HOSTILE = b'{"a": "<script>alert(1)</script>", "b": "\\u0000\\u202e"}'


@pytest.fixture(scope="module")
def visitor(console: ConsoleProcess) -> Visitor:
    return console.visitor()


@pytest.fixture(scope="module")
def ledger_id(console_cluster: Cluster, visitor: Visitor) -> int:
    """A listed, closed ledger of 120 entries; the last one is hostile JSON."""
    with (
        Client(console_cluster.uri) as client,
        client.create(ensemble=3, write_quorum=2, ack_quorum=2, metadata={"application": "<b>mine</b>"}) as writer,
    ):
        writer.append_many([b"entry %d" % number for number in range(119)])
        writer.append(HOSTILE)
    link = f'<a href="/ledgers/{writer.ledger_id}">'
    wait_until(lambda: link in visitor.get("/ledgers").text, "the list of ledgers to be read again")
    return writer.ledger_id


def test_the_overview_says_that_the_cluster_is_healthy_and_plots_it(visitor: Visitor) -> None:
    page = visitor.get("/")
    assert page.status == 200
    assert "Healthy" in page.words
    assert "Bookies that serve 3 of 3" in page.words
    assert page.text.count('<svg class="plot" role="img"') == 4


def test_every_page_of_the_navigation_answers(visitor: Visitor) -> None:
    for path in ("/", "/bookies", "/ledgers", "/logs", "/repair", "/slow", "/operations", "/audit"):
        page = visitor.get(path)
        assert page.status == 200, path
        assert page.text.count('aria-current="page"') == 1


def test_words_that_utf8_has_no_bytes_for_do_not_end_a_page(visitor: Visitor, console_cluster: Cluster) -> None:
    """A reason with half a pair of surrogates made the audit page fail for everyone, until 1,000 changes later."""

    async def change() -> None:
        async with asynchronous.Client(console_cluster.uri) as client:
            records = ChangeRecords(await client.tree(), client.uri)
            await records.add(ChangeRecord(time.time_ns() // 1_000_000, "command:amy", "half \ud800 pair"))

    asyncio.run(change())
    wait_until(lambda: "half \\ud800 pair" in visitor.get("/audit").words, "the change to be listed")


def test_bookies_show_state_version_and_space(visitor: Visitor, console_cluster: Cluster) -> None:
    page = visitor.get("/bookies")
    for bookie in console_cluster.bookies:
        assert bookie.id in page.words
        one = visitor.get(f"/bookies/{bookie.id}")
        assert "State available" in one.words
        assert str(bookie.dir / "ledgers") in one.words
    assert "No bookie is in this state" in visitor.get("/bookies?state=down").words


def test_a_ledger_is_found_by_id_state_bookie_and_owner(visitor: Visitor, ledger_id: int) -> None:
    found = visitor.get(f"/ledgers?id={ledger_id}")
    assert (found.status, found.headers["Location"]) == (303, f"/ledgers/{ledger_id}")
    for query in ("owner=MINE", "state=CLOSED", "owner=mine&state=CLOSED&older=0"):
        assert f'<a href="/ledgers/{ledger_id}">' in visitor.get(f"/ledgers?{query}").text, query
    for query in ("state=IN_RECOVERY", "owner=nothing-has-it", "bookie=10.9.9.9:1", "older=100000000"):
        assert f'<a href="/ledgers/{ledger_id}">' not in visitor.get(f"/ledgers?{query}").text, query


def test_a_ledger_shows_fragments_and_its_copies_are_checked_on_demand(visitor: Visitor, ledger_id: int) -> None:
    page = visitor.get(f"/ledgers/{ledger_id}")
    assert "Entries 120" in page.words
    assert page.text.count('<rect class="cell available"') >= 3
    for depth, how in (("lists", "its list of entries"), ("read", "read, digests checked")):
        checked = visitor.post(f"/ledgers/{ledger_id}/copies", {"csrf": page.csrf, "depth": depth})
        assert "Every bookie has the copies that it must have" in checked.words
        # 120 entries, two copies each, over three bookies.
        assert checked.words.count("whole 80 0") == 3
        assert how in checked.words


def test_entries_are_shown_by_format_and_escaped(visitor: Visitor, ledger_id: int) -> None:
    last = visitor.get(f"/ledgers/{ledger_id}/entries?count=2")
    assert "entry 118" in last.words
    assert "&lt;script&gt;" in last.text
    assert "<script>alert" not in last.text
    assert "json" in last.words
    first = visitor.get(f"/ledgers/{ledger_id}/entries?from=0&count=1&format=hex")
    assert "65 6e 74 72 79 20 30" in first.words
    assert 'rel="next"' in first.text
    assert "<b>mine" not in visitor.get(f"/ledgers/{ledger_id}").text


def test_lists_of_ledgers_and_entries_come_in_pages(visitor: Visitor, console_cluster: Cluster) -> None:
    with Client(console_cluster.uri) as client:
        for _ in range(60):
            client.create().abandon()

    def pages() -> list[str]:
        path, found = "/ledgers", []
        while path:
            page = visitor.get(path)
            found.append(page.text)
            after = page.text.partition('rel="next" href="')[2].partition('"')[0]
            path = after.replace("&amp;", "&")
        return found

    wait_until(lambda: len(pages()) >= 2, "the list of ledgers to be read again")
    assert all(text.count("<tr>") <= 51 for text in pages())


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/ledgers/x", 400),
        ("/ledgers/-1", 400),
        ("/ledgers/99999999999999999999", 400),
        ("/ledgers/9223372036854775807", 404),
        ("/ledgers/%2e%2e%2fetc", 400),
        ("/ledgers/%ff%00", 400),
        ("/ledgers?after=x", 400),
        ("/ledgers?state=GONE", 400),
        ("/ledgers?bookie=a%20b", 400),
        ("/ledgers?owner=" + "a" * 300, 400),
        ("/ledgers?older=1e9", 400),
        ("/ledgers/4000000000/entries", 404),
        ("/bookies/10.0.0.9:1", 404),
        ("/bookies/a%20b", 400),
        ("/bookies?from=-1", 400),
        ("/static/../server.py", 404),
        ("/static/%2e%2e/server.py", 404),
        ("/nothing", 404),
    ],
)
def test_a_wrong_request_gets_a_status_and_a_reason_but_no_traceback(visitor: Visitor, path: str, status: int) -> None:
    page = visitor.get(path)
    assert page.status == status, page.words
    assert "Traceback" not in page.text
    assert f"{status}: " in page.words


def test_page_that_does_not_exist_is_named_in_words(visitor: Visitor) -> None:
    """It was `404: 404: Not Found`."""
    assert "404: there is no such page" in visitor.get("/nothing").words
    form = {"csrf": visitor.get("/repair").csrf}
    assert "405: this page answers GET, HEAD, not POST" in visitor.post("/audit", form).words


@pytest.mark.parametrize(
    "query", ["from=x", "from=-1", "from=99999999999999999999", "count=0", "count=100000", "format=exe"]
)
def test_wrong_values_of_a_page_of_entries_are_refused(visitor: Visitor, ledger_id: int, query: str) -> None:
    assert visitor.get(f"/ledgers/{ledger_id}/entries?{query}").status == 400


def test_an_entry_after_the_end_gives_an_empty_page(visitor: Visitor, ledger_id: int) -> None:
    page = visitor.get(f"/ledgers/{ledger_id}/entries?from=5000000")
    assert (page.status, "No confirmed entry here" in page.words) == (200, True)


# ---- logs ----


def test_a_log_shows_its_ledgers_writer_and_publishers(visitor: Visitor, console_cluster: Cluster) -> None:
    with Client(console_cluster.uri) as client, client.log("clicks").open_for_writing() as writer:
        writer.append_many([b"one", b"two"])
        page = visitor.get("/logs/clicks")
        assert "a process opened it for writing" in page.words
        assert "OPEN" in page.words
    page = visitor.get("/logs/clicks")
    assert "no process has it open" in page.words
    assert "0 to 0" in page.words
    assert "CLOSED 0 1 6 B" in page.words
    assert "clicks" in visitor.get("/logs").words
    assert "No log has such a name" in visitor.get("/logs?name=nothing").words


async def _damage(client: Client, path: str) -> None:
    await (await client.asynchronous.tree()).set(path, b"damaged", 0)


def test_a_log_shows_its_retention_and_registered_readers(visitor: Visitor, console_cluster: Cluster) -> None:
    with Client(console_cluster.uri) as client:
        log = client.log("kept")
        with log.open_for_writing() as writer:
            writer.append_many([b"one", b"two"])
        page = visitor.get("/logs/kept")
        assert "it keeps everything" in page.words
        assert "No reader is registered." in page.words
        log.set_retention(age_s=7 * 86_400)
        log.register_consumer("etl")
        log.register_consumer("gone", expiry_s=0.001)
        log.register_consumer("odd")
        run(lambda: _damage(client, "/bkspark/logs/kept/consumers/odd"))
    page = visitor.get("/logs/kept")
    assert "odd metadata node /bkspark/logs/kept/consumers/odd is not a registered reader" in page.words
    assert "it keeps entries of the last 7d" in page.words
    assert "etl 2 6 B" in page.words
    assert "expired: it keeps nothing" in page.words


def test_a_log_shows_the_schema_that_it_remembers_and_the_jobs_that_publish(
    visitor: Visitor, console_cluster: Cluster
) -> None:
    fields = [
        {"name": "<i>city", "type": "string", "nullable": True, "metadata": {}},
        {"name": "n", "type": {"type": "array", "elementType": "long", "containsNull": False}, "nullable": False},
    ]
    stored = StoredSchema("arrow", json.dumps({"type": "struct", "fields": fields}))

    async def publish() -> None:
        async with asynchronous.Client(console_cluster.uri) as client:
            log = client.log("typed")
            await log.create()
            writer = await log.create_attempt(SegmentOwner("job", "j1"))
            await writer.append(b"x")
            await writer.close()
            facts = SegmentFacts(writer.ledger_id, writer.last_entry, writer.length)
            await log.publish([facts], publisher=("<i>nightly", 3), schema=SchemaChange(stored, None))
            await (await log.create_attempt(SegmentOwner("query", "q9", epoch=4))).close()

    asyncio.run(publish())
    page = visitor.get("/logs/typed")
    assert page.status == 200
    assert "<i>" not in page.text
    assert "Payload format arrow" in page.words
    assert "<i>city string yes" in page.words
    assert '"elementType": "long"' in page.words
    assert "<i>nightly 3" in page.words
    assert "query q9 4" in page.words


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/logs/nothing", 404),
        ("/logs/a%2fb", 400),
        ("/logs/..", 400),
        ("/logs/%ff", 400),
        ("/logs/" + "a" * 300, 400),
        ("/logs/nothing?before=x", 400),
        ("/logs/nothing/tail", 404),
        ("/logs/nothing/tail?format=x", 400),
        ("/repair?after=x", 400),
        ("/operations/10.0.0.9:1", 404),
        ("/operations/%20", 400),
        ("/audit?from=x", 400),
        ("/audit?bookie=a%20b", 400),
        ("/ledgers/9223372036854775807/tail", 404),
    ],
)
def test_wrong_requests_of_the_other_pages_are_refused(visitor: Visitor, path: str, status: int) -> None:
    page = visitor.get(path)
    assert page.status == status, page.words
    assert "Traceback" not in page.text


# ---- repair and operations ----


def test_the_switches_of_autorecovery_go_through_a_bookie(visitor: Visitor) -> None:
    csrf = visitor.get("/repair").csrf
    assert visitor.post("/repair/switch", {"csrf": csrf, "enabled": "no"}).status == 303
    assert "Autorecovery disabled" in visitor.get("/repair").words
    assert "autorecovery_disabled" in visitor.get("/").words
    assert visitor.post("/repair/switch", {"csrf": csrf, "enabled": "yes"}).status == 303
    assert "Autorecovery enabled" in visitor.get("/repair").words
    assert visitor.post("/repair/delay", {"csrf": csrf, "seconds": "7"}).status == 303
    assert "Delay for a lost bookie 7 s" in visitor.get("/repair").words
    for wrong in ("", "x", "-1", "1e3", "99999999999"):
        assert visitor.post("/repair/delay", {"csrf": csrf, "seconds": wrong}).status == 400
    assert visitor.post("/repair/delay", {"csrf": csrf, "seconds": "0"}).status == 303


def test_a_bookie_with_an_only_copy_may_not_be_stopped(visitor: Visitor, console_cluster: Cluster) -> None:
    with Client(console_cluster.uri) as client:
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append(b"the only copy")
        holder = client.metadata(writer.ledger_id).fragments[0].bookies[0]
        page = visitor.get(f"/operations/{holder}")
        refused = visitor.post(f"/operations/{holder}/check", {"csrf": page.csrf})
        assert "last_copy" in refused.words
        assert "last_copy" in visitor.post(f"/bookies/{holder}/stop-check", {"csrf": page.csrf}).words
        client.delete(writer.ledger_id)
    assert visitor.post(f"/operations/{holder}/recover", {"csrf": page.csrf, "forget": "no"}).status == 400


def test_a_collection_is_shown_as_long_work(visitor: Visitor, console_cluster: Cluster) -> None:
    bookie = console_cluster.bookies[0].id
    csrf = visitor.get(f"/bookies/{bookie}").csrf
    assert visitor.post(f"/bookies/{bookie}/collect", {"csrf": csrf, "level": "minor"}).status == 303
    wait_until(lambda: "collect" in visitor.get("/operations").words, "the collection to be listed")
    wait_until(lambda: "freed bytes" in visitor.get("/operations").words, "the collection to end")
