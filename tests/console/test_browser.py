"""The console in real Chromium: each page opened, looked at and operated, by mouse and by keyboard."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bkspark.blocking import Client
from tests.cluster import Cluster
from tests.console.browser import NARROW, PHONE, WIDE, Browser, chromium, missing
from tests.console.process import ConsoleProcess
from tests.polling import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(missing()), reason=missing())]

HOSTILE = b"<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def browser(console: ConsoleProcess) -> Iterator[Browser]:
    with chromium(console.url) as window:
        yield window


@pytest.fixture(scope="module")
def ledger_id(console_cluster: Cluster, browser: Browser) -> int:
    """A closed ledger whose entries are hostile, and a log."""
    with Client(console_cluster.uri) as client:
        with client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer:
            writer.append_many([HOSTILE, b"two", b'{"three": 3}'])
        with client.log("browsed").open_for_writing() as log:
            log.append(HOSTILE)
    return writer.ledger_id


@pytest.fixture(scope="module")
def paths(ledger_id: int, console_cluster: Cluster) -> list[str]:
    bookie = console_cluster.bookies[0].id
    lists = ["/", "/bookies", "/ledgers", "/logs", "/repair", "/slow", "/operations", "/audit", "/nothing"]
    single = [f"/bookies/{bookie}", f"/operations/{bookie}", f"/ledgers/{ledger_id}", "/logs/browsed"]
    return [*lists, *single, f"/ledgers/{ledger_id}/entries"]


@pytest.mark.parametrize(
    ("width", "dark"), [(WIDE, False), (WIDE, True), (PHONE, False), (PHONE, True), (NARROW, False)]
)
def test_every_page_can_be_read_by_everyone(browser: Browser, paths: list[str], width: int, dark: bool) -> None:
    """Contrast, labels, names, headers of tables, and no page wider than its screen."""
    browser.show(width=width, dark=dark)
    found = {}
    for path in paths:
        browser.open(path)
        if problems := browser.problems():
            found[path] = problems
    browser.show()
    assert not found


def test_pages_load_nothing_from_another_host_and_break_no_policy(browser: Browser, paths: list[str]) -> None:
    browser.requested()
    browser.errors()
    for path in paths:
        browser.open(path)
    foreign = {url for url in browser.requested() if not url.startswith((f"{browser.url}/", "data:", "chrome:"))}
    assert not foreign
    # The browser reports the status of the page that does not exist.
    assert not [error for error in browser.errors() if "/nothing" not in error]


def test_hostile_entries_stay_text(browser: Browser, ledger_id: int) -> None:
    browser.open(f"/ledgers/{ledger_id}/entries")
    assert HOSTILE.decode() in browser.text
    assert browser.driver.title == f"Entries of ledger {ledger_id} · bkspark console"
    assert not browser.count("main img")


def test_the_keyboard_reaches_the_content_and_shows_where_it_is(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open("/")
    browser.find("body").type(Keys.TAB)
    focused = browser.driver.switch_to.active_element
    assert focused.text == "Skip to the content"
    style = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.driver.execute_script(style) == "solid"
    focused.send_keys(Keys.ENTER)
    assert browser.driver.switch_to.active_element.get_attribute("id") == "content"
    with browser.departure():
        browser.find('nav a[href="/bookies"]').type(Keys.ENTER)
    assert browser.find("h1").text == "Bookies"
    assert browser.find('nav a[aria-current="page"]').text == "Bookies"


def test_the_theme_is_chosen_and_kept(browser: Browser) -> None:
    browser.show(dark=False)
    browser.open("/")
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.driver.execute_script(ground)
    browser.find("#theme").click()
    browser.find("#theme").click()
    assert browser.find("#theme").text == "Theme: dark"
    assert browser.driver.execute_script(ground) != light
    browser.open("/bookies")
    assert browser.driver.execute_script(ground) != light
    browser.find("#theme").click()
    assert browser.find("#theme").text == "Theme: as the system"
    assert browser.driver.execute_script(ground) == light


def test_a_bookie_is_made_read_only_and_writable_by_its_page(browser: Browser, console_cluster: Cluster) -> None:
    bookie = console_cluster.bookies[2].id
    browser.open("/bookies")
    browser.follow(bookie)
    browser.find("#reason").fill("browsed")
    browser.press("Make it read-only")
    assert bookie in browser.question
    browser.answer(yes=False)
    assert "browsed" not in browser.find("#facts").text
    browser.press("Make it read-only")
    browser.answer(yes=True)
    wait_until(lambda: "Done: set read-only" in browser.text, "the answer")
    assert "browsed" in browser.find("#facts").text
    browser.press("Make it writable")
    wait_until(lambda: "Done: set writable" in browser.text, "the answer")
    browser.open("/audit")
    assert "set read-only (browsed)" in browser.text


def test_a_ledger_is_searched_and_its_copies_are_checked(browser: Browser, ledger_id: int) -> None:
    browser.open("/ledgers")
    browser.find("#id").fill(str(ledger_id))
    browser.press("Search")
    assert browser.find("h1").text == f"Ledger {ledger_id}"
    assert browser.count("svg.fragments rect") == 3
    browser.press("Read the copies")
    assert "Every bookie has the copies that it must have" in browser.text
    browser.open(f"/ledgers/{ledger_id}")
    browser.find("#from").fill("2")
    browser.press("Read")
    assert '"three": 3' in browser.text


def test_entries_appear_in_the_live_tail_as_they_are_confirmed(browser: Browser, console_cluster: Cluster) -> None:
    with Client(console_cluster.uri) as client, client.log("tailed").open_for_writing() as log:
        # Readers know the first one as confirmed since the second one came.
        log.append_many([b"earlier", b"before"])
        log.append(b"last")
        browser.open("/logs/tailed")
        browser.press("Start the live tail")
        wait_until(lambda: "waiting for entries" in browser.text, "the tail to start")

        def appended() -> bool:
            log.append(HOSTILE)
            return HOSTILE.decode() in browser.find(".tail").text

        wait_until(appended, "an entry to appear", 30)
        assert "earlier" not in browser.find(".tail ol").text
        assert not browser.count(".tail img")
        browser.press("Stop the live tail")
        assert "stopped after" in browser.find(".tail").text


def test_the_overview_changes_without_being_loaded_again(browser: Browser, console: ConsoleProcess) -> None:
    visitor = console.visitor()
    csrf = visitor.get("/repair").csrf
    browser.open("/")
    browser.driver.execute_script("window.same = true; document.activeElement.blur()")
    assert "Healthy" in browser.find("#health").text
    visitor.post("/repair/switch", {"csrf": csrf, "enabled": "no"})
    try:
        wait_until(lambda: "autorecovery_disabled" in browser.find("#health").text, "the page to change", 40)
        assert browser.driver.execute_script("return window.same") is True
    finally:
        visitor.post("/repair/switch", {"csrf": csrf, "enabled": "yes"})


def test_the_switch_of_autorecovery_asks_before_it_disables(browser: Browser) -> None:
    browser.open("/repair")
    browser.press("Disable")
    browser.answer(yes=True)
    wait_until(lambda: "Done: disable autorecovery" in browser.text, "the answer")
    browser.press("Enable")
    wait_until(lambda: "Done: enable autorecovery" in browser.text, "the answer")


def test_the_steps_of_an_operation_say_whether_a_bookie_may_be_stopped(
    browser: Browser, console_cluster: Cluster
) -> None:
    browser.open("/operations")
    browser.follow(console_cluster.bookies[0].id)
    browser.press("Check now")
    assert "It may be stopped" in browser.text or "Not now" in browser.text


def test_numbers_of_a_plot_can_be_read_as_a_table(browser: Browser) -> None:
    browser.open("/")
    wait_until(lambda: _reopened(browser, "/", "figure details"), "the first samples", 40)
    browser.find("figure details summary").click()
    assert "Highest" in browser.find("figure details").text


def _reopened(browser: Browser, path: str, selector: str) -> bool:
    browser.open(path)
    return browser.count(selector) > 0


class _Foreign(BaseHTTPRequestHandler):
    """A page of another site that submits a form to the console as soon as it is opened."""

    action = ""

    def do_GET(self) -> None:
        body = (
            f'<form method="post" action="{self.action}"><input name="read_only" value="yes">'
            '<input name="reason" value="foreign"></form><script>document.forms[0].submit()</script>'
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def test_a_page_of_another_site_changes_nothing(browser: Browser, console_cluster: Cluster) -> None:
    bookie = console_cluster.bookies[1].id
    browser.open(f"/bookies/{bookie}")
    _Foreign.action = f"{browser.url}/bookies/{bookie}/read-only"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Foreign) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            browser.driver.get(f"http://localhost:{server.server_port}/")
            wait_until(lambda: "403:" in browser.text, "the console's answer")
        finally:
            server.shutdown()
            thread.join()
    browser.open(f"/bookies/{bookie}")
    assert "foreign" not in browser.text
    assert "available" in browser.find("#facts").text
