"""A real Chromium, driven by selenium, and what is looked at on each page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDE, PHONE = 1280, 390
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
if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
if (document.querySelectorAll("main").length !== 1) found.push("not one main");
if (!document.documentElement.lang) found.push("no language");
const width = document.documentElement.scrollWidth;
if (width > innerWidth + 1) found.push(`${width} px wide`);
return found;
"""
"""Returns what is wrong with a page for people with a keyboard, a screen reader, little light, or a phone."""


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


class Browser:
    """A browser window on a console."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url.rstrip("/")

    def show(self, *, width: int = WIDE, dark: bool = False, height: int = _HEIGHT) -> None:
        """Take a screen's width, and what the user prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        preferred = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    @property
    def text(self) -> str:
        """What the page shows."""
        return str(self.find("body").text)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        self.find(selector).click()

    def fill(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def press(self, words: str) -> None:
        """Click the button with these words."""
        self.driver.find_element("xpath", f"//button[normalize-space()='{words}']").click()

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
