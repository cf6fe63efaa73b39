"""A real Chromium, driven by selenium, and what is looked at on each page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.polling import wait_until

T = TypeVar("T")

WIDE, PHONE, NARROW = 1280, 390, 320
_HEIGHT = 900
_PAGE_S = 30.0

PROBLEMS = """
const found = [];
const shown = (e) => { const r = e.getBoundingClientRect(); return r.width > 1 && r.height > 1; };
const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const linear = (v) => (v <= 10.02 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = (c) => { const [r, g, b] = c.map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length === 3 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !shown(e) || e.closest("svg") || e.matches(":disabled, option") || e.closest(".skip")) continue;
  const [a, b] = [light(rgb(getComputedStyle(e).color).slice(0, 3)), light(ground(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.push(`contrast ${ratio.toFixed(2)} of "${e.textContent.trim().slice(0, 40)}"`);
}
for (const e of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
  if (!e.labels.length && !e.getAttribute("aria-label")) found.push(`no label: ${e.outerHTML.slice(0, 80)}`);
for (const e of document.querySelectorAll("button, a[href]"))
  if (!e.textContent.trim() && !e.getAttribute("aria-label")) found.push(`no name: ${e.outerHTML.slice(0, 80)}`);
for (const e of document.querySelectorAll("svg"))
  if (e.getAttribute("aria-hidden") !== "true" && !e.getAttribute("aria-label")) found.push("a picture without words");
for (const e of document.querySelectorAll("table"))
  if (!e.querySelector("th[scope]")) found.push("a table without headers");
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`two elements have the id ${id}`);
let level = 0;
for (const e of document.querySelectorAll("h1, h2, h3, h4")) {
  if (Number(e.tagName[1]) > level + 1) found.push(`a level of headings is left out before "${e.textContent.trim()}"`);
  level = Number(e.tagName[1]);
}
if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
if (document.querySelectorAll("main").length !== 1) found.push("not one main");
if (!document.documentElement.lang) found.push("no language");
const width = document.documentElement.scrollWidth;
if (width > innerWidth + 1) found.push(`${width} px wide`);
return found;
"""
"""Returns what is wrong with a page for people with a keyboard, a screen reader, little light, or a phone."""

_DEPARTURE = """
const e = arguments[0];
window.departing = true;
if (e.dataset.confirm) return "asks";
if (e.matches("a[href]")) return "leaves";
return e.form && e.type === "submit" && (e.formNoValidate || e.form.checkValidity()) ? "leaves" : "stays";
"""
"""Marks the page, and returns what a click on an element does: ask, lead to another page, or neither."""
_ARRIVED = "return !window.departing && document.readyState === 'complete'"
_REPLACED = (
    "aborted by navigation",
    "cannot determine loading status",
    "document unloaded",
    "does not belong to the document",
    "find context with specified id",
    "context was destroyed",
)
"""What chromedriver says, beside errors of their own types, when a page is replaced while it looks at it."""


def missing() -> str:
    """Return why no browser can be driven, "" if one can."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"{name} is not installed"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    return ""


class Element:
    """An element of the page that is shown now: it is looked up for each use, as a page and its parts are replaced."""

    def __init__(self, driver: Any, by: str, value: str) -> None:
        self._driver = driver
        self._place = (by, value)

    @property
    def text(self) -> str:
        """What the element shows."""
        return self.use(lambda found: str(found.text))

    def click(self) -> None:
        """Click on it; `Browser.press` and `follow` also wait for the page that comes."""
        self.use(lambda found: found.click())

    def type(self, keys: str) -> None:
        """Send keys to it."""
        self.use(lambda found: found.send_keys(keys))

    def fill(self, text: str) -> None:
        """Replace what it holds."""
        self.use(lambda found: found.clear())
        self.type(text)

    def use(self, action: Callable[[Any], T]) -> T:
        """Return what `action` returns for the element; look it up again if it was replaced meanwhile."""
        return settled(lambda: action(self._driver.find_element(*self._place)), f"the element {self._place[1]}")


def settled(look: Callable[[], T], what: str) -> T:
    """Return what `look` returns once no page is being replaced under it."""
    from selenium.common.exceptions import (
        NoSuchElementException,
        StaleElementReferenceException,
        WebDriverException,
    )

    def looked() -> list[T]:
        try:
            return [look()]
        except (NoSuchElementException, StaleElementReferenceException):
            return []
        except WebDriverException as error:
            if not any(words in str(error) for words in _REPLACED):
                raise
            return []

    return wait_until(looked, what)[0]


class Browser:
    """A browser window on a console."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url.rstrip("/")

    def show(self, *, width: int = WIDE, dark: bool = False, height: int = _HEIGHT) -> None:
        """Take a screen's width, and what the user prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        preferred = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    @property
    def text(self) -> str:
        """What the page shows."""
        return self.find("body").text

    def find(self, selector: str) -> Element:
        """Return the first element of a selector."""
        return Element(self.driver, "css selector", selector)

    def count(self, selector: str) -> int:
        """Return how many elements of the page a selector has."""
        return len(settled(lambda: self.driver.find_elements("css selector", selector), selector))

    def attributes(self, selector: str, name: str) -> list[str]:
        """Return an attribute of all elements of a selector, of one page."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.getAttribute(arguments[1]))"
        return settled(lambda: list(self.driver.execute_script(script, selector, name)), selector)

    def press(self, words: str) -> None:
        """Click the button with these words; wait for the question or the page that follows, if one does."""
        self._leave_by(Element(self.driver, "xpath", f"//button[normalize-space()='{words}']"))

    def follow(self, words: str) -> None:
        """Click the link with these words, and wait for its page."""
        self._leave_by(Element(self.driver, "link text", words))

    def _leave_by(self, element: Element) -> None:
        def click(found: Any) -> str:
            effect = str(self.driver.execute_script(_DEPARTURE, found))
            found.click()
            return effect

        effect = element.use(click)
        if effect == "leaves":
            self._arrive()
        elif effect == "asks":
            wait_until(lambda: self.question, "the question")

    @property
    def question(self) -> str:
        """The question that the page asks in a dialog, "" without one."""
        from selenium.common.exceptions import NoAlertPresentException

        try:
            return str(self.driver.switch_to.alert.text)
        except NoAlertPresentException:
            return ""

    def answer(self, *, yes: bool) -> None:
        """Answer the question that `press` led to; after yes wait for the page that follows."""
        if yes:
            self.driver.switch_to.alert.accept()
            self._arrive()
        else:
            self.driver.switch_to.alert.dismiss()

    @contextmanager
    def departure(self) -> Iterator[None]:
        """Wait for the page to which the block leads without a click."""
        self.driver.execute_script("window.departing = true")
        yield
        self._arrive()

    def _arrive(self) -> None:
        """Wait until another page than the marked one is whole."""

        def arrived() -> bool:
            return settled(lambda: bool(self.driver.execute_script(_ARRIVED)), "the page")

        wait_until(arrived, "the page that follows")

    def problems(self) -> list[str]:
        """Return what PROBLEMS finds on the page."""
        return list(self.driver.execute_script(PROBLEMS))

    def errors(self) -> list[str]:
        """Return the errors of scripts and of the content policy since the last call."""
        return [each["message"] for each in self.driver.get_log("browser") if each["level"] == "SEVERE"]

    def requested(self) -> set[str]:
        """Return the addresses that were requested since the last call."""
        events = [json.loads(each["message"])["message"] for each in self.driver.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
        return set(sent)

    def picture(self, path: Path, *, height_max: int, width: int = WIDE, dark: bool = False) -> None:
        """Save the page as a PNG, all of it up to a height."""
        self.show(width=width, dark=dark, height=200)
        height = min(height_max, self.driver.execute_script("return document.documentElement.scrollHeight"))
        self.show(width=width, dark=dark, height=height)
        self.driver.save_screenshot(str(path))


@contextmanager
def chromium(url: str) -> Iterator[Browser]:
    """Run a browser without a window; its profile is temporary."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.set_page_load_timeout(_PAGE_S)
        browser = Browser(driver, url)
        browser.show()
        yield browser
    finally:
        driver.quit()
