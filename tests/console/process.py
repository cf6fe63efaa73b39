"""The console as a process, and a client of it that keeps cookies, as a browser does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape
from http.cookiejar import CookieJar
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, Request, build_opener

HTTP = {
    "httpServerEnabled": "true",
    "httpServerPort": "0",
    "httpServerHost": "127.0.0.1",
    "prometheusStatsLatencyRolloverSeconds": "1",
    "autoRecoveryDaemonEnabled": "true",
}
_ANSWER_S = 30.0


class Page(NamedTuple):
    """An answer of the console."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def words(self) -> str:
        """What a reader sees, without tags, on one line."""
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.text)).split())

    @property
    def csrf(self) -> str:
        """The token of the page's forms."""
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', self.text)
        assert found is not None, "the page has no form that changes something"
        return found[1]


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *arguments: object) -> None:
        """Follow no redirect: the test sees it."""


class Visitor:
    """A client of a console with cookies of its own."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self.cookies), _Stay())

    def get(self, path: str, **headers: str) -> Page:
        return self._open(Request(self.url + path, headers=_named(headers)))

    def post(self, path: str, form: dict[str, str], **headers: str) -> Page:
        return self._open(Request(self.url + path, data=urlencode(form).encode(), headers=_named(headers)))

    def _open(self, request: Request) -> Page:
        try:
            with self._opener.open(request, timeout=_ANSWER_S) as answer:
                return Page(answer.status, answer.read().decode(), dict(answer.headers))
        except HTTPError as error:
            with error:
                return Page(error.code, error.read().decode(), dict(error.headers))


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


class ConsoleProcess:
    """`bkspark console` at a free port, while entered."""

    def __init__(self, *options: str, log: Path | None = None) -> None:
        self._command = [sys.executable, "-m", "bkspark.cli.__main__", "console", "--port", "0", "--json", *options]
        self._log = log
        self.url = ""

    def __enter__(self) -> ConsoleProcess:
        log = subprocess.DEVNULL if self._log is None else self._log.open("wb")
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the console ended with {self._process.wait()}"
        started = json.loads(line)
        # The command has become the console: it is the same process.
        assert started["pid"] == self._process.pid
        self.url = started["url"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        assert self._process.wait(20) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def visitor(self) -> Visitor:
        return Visitor(self.url)
