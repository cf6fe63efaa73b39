"""Sign-in, sessions, roles and TLS of the console, by a client and in real Chromium."""

from __future__ import annotations

import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import unquote

import pytest

from bkspark.security.access_file import AccessFile
from bkspark.security.attempts import FAILURES_MAX
from bkspark.security.principal import Principal
from bkspark_console.sessions import SESSIONS_MAX, Sessions
from tests.clock import Clock
from tests.cluster import Cluster
from tests.console.browser import Browser, chromium, missing
from tests.console.process import HTTP, ConsoleProcess, Page, Visitor
from tests.polling import wait_until
from tests.security.certificates import Authority

TOKENS = {role: f"console-token-to-{role}" for role in ("metrics", "read", "operate", "destroy")}
LINES = "".join(f"token {role} {role}er {token}\n" for role, token in TOKENS.items())
AMY = Principal("amy", "token")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def signed_in(console: ConsoleProcess, role: str) -> Visitor:
    visitor = console.visitor()
    assert sign_in(visitor, TOKENS[role]).status == 303
    return visitor


def sign_in(visitor: Visitor, token: str) -> Page:
    return visitor.post("/sign-in", {"csrf": visitor.get("/sign-in").csrf, "token": token})


# ---- sessions ----


def test_a_session_ends_by_idleness_by_time_and_by_closing() -> None:
    clock = Clock()
    sessions = Sessions(clock, idle_s=10, time_s=25)
    identity = sessions.open(AMY, "")
    for clock.now in (9.0, 18.0):
        assert sessions.find(identity, by_user=True) is not None
    clock.now = 25.0
    assert sessions.find(identity, by_user=True) is None, "25 s are over, though it was used"
    idle = sessions.open(AMY, "")
    clock.now += 9
    assert sessions.find(idle, by_user=False) is not None
    clock.now += 1
    assert sessions.find(idle, by_user=True) is None, "updates of a page do not keep it"
    closed = sessions.open(AMY, "")
    sessions.close(closed)
    assert sessions.find(closed, by_user=True) is None
    first, *_ = (sessions.open(AMY, "") for _ in range(SESSIONS_MAX + 1))
    assert sessions.find(first, by_user=True) is None, "memory is bounded"


def test_another_token_under_a_name_ends_the_sessions_of_the_first(tmp_path: Path) -> None:
    clock = Clock()
    path = written(tmp_path / "access", "token read amy the-first-token-of-amy\n")
    file = AccessFile(str(path), "--token-file", clock)
    mark = file.mark(AMY)
    written(path, "token read amy the-next-token-of-amy\n")
    clock.now = 2.0
    assert file.mark(AMY) != mark


# ---- roles and sessions of a real console ----


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("access") / "access", LINES)


@pytest.fixture(scope="module")
def guarded(console_cluster: Cluster, access: Path) -> Iterator[ConsoleProcess]:
    with ConsoleProcess("--uri", console_cluster.uri, "--token-file", str(access)) as process:
        yield process


@pytest.mark.cluster
def test_the_server_refuses_what_a_role_may_not_do(guarded: ConsoleProcess, console_cluster: Cluster) -> None:
    bookie = console_cluster.bookies[0].id
    readers, operators = signed_in(guarded, "read"), signed_in(guarded, "operate")
    csrf = readers.get(f"/bookies/{bookie}").csrf
    for path, form in (
        (f"/bookies/{bookie}/read-only", {"read_only": "yes"}),
        (f"/bookies/{bookie}/collect", {}),
        (f"/bookies/{bookie}/keys", {"key": "logLevel", "value": "debug"}),
        (f"/operations/{bookie}/restart", {}),
        (f"/operations/{bookie}/drain", {}),
        (f"/operations/{bookie}/recover", {"forget": "yes"}),
        ("/repair/switch", {"enabled": "no"}),
    ):
        refused = readers.post(path, {"csrf": csrf, **form})
        assert refused.status == 403, path
        assert "this needs the role operate; you have read" in refused.words
    assert readers.post(f"/bookies/{bookie}/stop-check", {"csrf": csrf}).status == 200, "it only reads"
    theirs = operators.get(f"/bookies/{bookie}").csrf
    forget = operators.post(f"/operations/{bookie}/recover", {"csrf": theirs, "forget": "yes"})
    assert forget.status == 403
    assert "this needs the role destroy; you have operate" in forget.words
    collected = operators.post(f"/bookies/{bookie}/suspend", {"csrf": theirs, "what": "minor", "suspended": "no"})
    assert collected.status == 303
    assert "token:operateer@127.0.0.1" in operators.get("/audit").words, "the audit log names the token"


@pytest.mark.cluster
def test_a_token_that_only_scrapes_opens_no_page(guarded: ConsoleProcess) -> None:
    assert sign_in(guarded.visitor(), TOKENS["metrics"]).status == 403
    assert guarded.visitor().get("/", Authorization=f"Bearer {TOKENS['metrics']}").status == 403
    assert guarded.visitor().get("/", Authorization=f"Bearer {TOKENS['read']}").status == 200


@pytest.mark.cluster
def test_signing_out_ends_the_session_at_the_server_too(guarded: ConsoleProcess) -> None:
    visitor = signed_in(guarded, "read")
    kept = [(cookie.name, cookie.value) for cookie in visitor.cookies]
    page = visitor.get("/")
    assert (page.status, "token:reader" in page.words) == (200, True)
    assert visitor.post("/sign-out", {"csrf": page.csrf}).status == 303
    stolen = "; ".join(f"{name}={value}" for name, value in kept)
    assert guarded.visitor().get("/", Cookie=stolen).status == 401


@pytest.mark.cluster
def test_signing_in_again_ends_the_session_of_before(guarded: ConsoleProcess) -> None:
    """A person who has read the first cookie, for example on a shared host, must not stay signed in by it."""
    visitor, thief = signed_in(guarded, "operate"), guarded.visitor()
    for cookie in visitor.cookies:
        thief.cookies.set_cookie(cookie)
    page = thief.get("/")
    assert page.status == 200
    assert visitor.post("/sign-in", {"csrf": page.csrf, "token": TOKENS["read"]}).status == 303
    assert visitor.get("/").status == 200
    assert thief.get("/").status == 401


@pytest.mark.cluster
def test_an_unknown_session_that_was_planted_is_not_signed_in(guarded: ConsoleProcess) -> None:
    """Session fixation: signing in gives another id than the browser had."""
    visitor = guarded.visitor()
    visitor.get("/sign-in")
    before = {cookie.value for cookie in visitor.cookies}
    assert sign_in(visitor, TOKENS["read"]).status == 303
    assert not before & {cookie.value for cookie in visitor.cookies}


@pytest.mark.cluster
def test_sessions_end_by_idleness_and_time_at_a_real_console(console_cluster: Cluster, access: Path) -> None:
    options = ("--uri", console_cluster.uri, "--token-file", str(access), "--session-idle", "1", "--session-time", "60")
    with ConsoleProcess(*options) as console:
        visitor = signed_in(console, "read")
        assert visitor.get("/").status == 200
        # Updates that a page asks for by itself do not keep the session.
        wait_until(lambda: visitor.get("/", X_Live_Update="1").status == 401, "the session to end", 30)


@pytest.mark.cluster
def test_roles_and_sessions_follow_the_file(console_cluster: Cluster, tmp_path: Path) -> None:
    path = written(tmp_path / "access", LINES)
    with ConsoleProcess("--uri", console_cluster.uri, "--token-file", str(path)) as console:
        reader, operator = signed_in(console, "read"), signed_in(console, "operate")
        written(path, f"token read operateer {TOKENS['operate']}\ntoken read reader another-token-of-the-reader\n")
        wait_until(lambda: reader.get("/").status == 401, "the session of a token that was replaced to end", 30)
        page = operator.get(f"/bookies/{console_cluster.bookies[0].id}")
        assert "Your role only reads" in page.words


@pytest.mark.cluster
def test_guesses_are_limited_by_address(console_cluster: Cluster, access: Path) -> None:
    with ConsoleProcess("--uri", console_cluster.uri, "--token-file", str(access)) as console:
        visitor = console.visitor()
        statuses = [sign_in(visitor, f"a-wrong-token-{number:04}").status for number in range(FAILURES_MAX)]
        assert statuses == [403] * FAILURES_MAX
        assert sign_in(visitor, TOKENS["destroy"]).status == 429
        assert visitor.get("/", Authorization=f"Bearer {TOKENS['destroy']}").status == 429
        assert visitor.get("/healthz").status == 200


# ---- TLS ----


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def closed_cluster(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, access: Path
) -> Iterator[tuple[Cluster, list[str]]]:
    """A cluster whose bookies' HTTP has TLS and tokens, and the options of a console for it."""
    folder = tmp_path_factory.mktemp("closed")
    key, chain = authority.issue("bookie").pem()
    settings = {
        **HTTP,
        "httpServerAccessFile": str(access),
        "httpServerTlsEnable": "true",
        # HTTP takes the certificates of the bookie's port.
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsKeyStore": key,
        "tlsCertificatePath": chain,
        "tlsTrustStore": authority.pem,
    }
    client = written(
        folder / "client.conf",
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n" + f"tlsTrustStore={authority.pem}\n",
    )
    token = written(folder / "bookies.token", TOKENS["operate"])
    with Cluster(folder / "cluster", settings=settings, bookies=1) as cluster:
        own_key, own_chain = authority.issue("console").pem()
        users = written(folder / "users", f"{LINES}certificate operate CN=amy\n")
        yield (
            cluster,
            [
                *("--uri", cluster.uri, "--http-token-file", str(token)),
                *("--token-file", str(users), "--tls-key", own_key, "--tls-certificate", own_chain),
                *("--tls-trust", authority.pem, "--client-config", str(client)),
            ],
        )


def https(url: str, authority: Authority, name: str = "", **headers: str) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=authority.pem)
    if name:
        key, chain = authority.issue(name).pem()
        context.load_cert_chain(chain, key)
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), urllib.request.HTTPCookieProcessor(CookieJar())
    )
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=30) as reply:
            cookie = reply.headers.get("Set-Cookie", "")
            return reply.status, f"{cookie}\n{reply.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.cluster
def test_the_console_is_served_inside_tls_and_asks_bookies_inside_tls_with_its_token(
    closed_cluster: tuple[Cluster, list[str]], authority: Authority
) -> None:
    cluster, options = closed_cluster
    with ConsoleProcess(*options) as console:
        assert console.url.startswith("https://")
        status, text = https(console.url, authority, Authorization=f"Bearer {TOKENS['read']}")
        assert status == 200
        assert "Secure" in text.splitlines()[0]
        assert https(console.url, authority)[0] == 401
        assert https(console.url, authority, "amy")[0] == 200, "a certificate with a role needs no sign-in"
        assert https(console.url, authority, "bob")[0] == 401
        bookie = cluster.bookies[0].id
        shown = https(f"{console.url}bookies/{bookie}", authority, "amy")[1]
        assert "(with /api/v2)" in shown
        assert "https://127.0.0.1" in shown
    listed = _command(options, "cluster", "bookies", "--json")
    assert '"directories": [{' in listed, "the command asks with the token, too"
    top = _command(options, "top", "--once", "--interval", "0.1")
    assert "does not answer" not in top


def _command(options: list[str], *command: str) -> str:
    """Return what a command prints, with the console's options that are about the cluster."""
    kept = [word for at in (0, 2, len(options) - 2) for word in options[at : at + 2]]
    done = subprocess.run(
        [sys.executable, "-m", "bkspark.cli.__main__", *command, *kept], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--tls-certificate", "x"], "--tls-certificate has no effect without --tls-key"),
        (["--tls-key", "/nonexistent"], "--tls-key=/nonexistent: the file cannot be read"),
        (["--tls-key", "/x", "--tls-trust", "/y"], "--tls-trust needs --token-file"),
        (["--http-token-file", "/nonexistent"], "--http-token-file=/nonexistent: the file must hold a token alone"),
    ],
)
def test_wrong_options_of_tls_end_the_command_with_one_line(
    console_cluster: Cluster, options: list[str], reason: str
) -> None:
    command = [sys.executable, "-m", "bkspark.cli.__main__", "console", "--uri", console_cluster.uri, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert reason in done.stderr


# ---- a real browser ----


@pytest.fixture
def window(guarded: ConsoleProcess) -> Iterator[Browser]:
    with chromium(guarded.url) as browser:
        yield browser


@pytest.mark.cluster
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_reader_sees_no_button_that_changes_anything(
    window: Browser, console_cluster: Cluster, guarded: ConsoleProcess
) -> None:
    bookie = console_cluster.bookies[0].id
    window.open("/bookies")
    assert window.find("h1").text == "Sign in"
    window.find("#token").fill("not the token of anyone")
    window.press("Sign in")
    assert "This is not a token of this console." in window.text
    window.find("#token").fill(TOKENS["read"])
    window.press("Sign in")
    assert "token:reader" in window.text
    changing = {}
    for path in ("/", "/bookies", f"/bookies/{bookie}", "/repair", "/operations", f"/operations/{bookie}", "/audit"):
        window.open(path)
        assert not window.problems(), path
        actions = {unquote(action) for action in window.attributes("form[method=post]", "action")}
        reading = ("/sign-out", f"/bookies/{bookie}/stop-check", f"/operations/{bookie}/check")
        changing[path] = actions - {*reading, f"/operations/{bookie}/preview"}
    assert not any(changing.values()), changing
    # The server refuses the request that a page of an operator has.
    window.open(f"/bookies/{bookie}")
    forged = """
      const form = document.querySelector("form[action$='stop-check']");
      form.action = form.action.replace("stop-check", "collect");
      form.submit();"""
    window.driver.execute_script(forged)
    wait_until(lambda: "this needs the role operate; you have read" in window.text, "the refusal")
    window.open("/")
    window.press("Sign out")
    assert window.find("h1").text == "Sign in"
    window.driver.back()
    window.driver.refresh()
    assert window.find("h1").text == "Sign in"


@pytest.mark.cluster
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_an_operator_sees_the_buttons_of_its_role(window: Browser, console_cluster: Cluster) -> None:
    bookie = console_cluster.bookies[1].id
    window.open("/sign-in")
    window.find("#token").fill(TOKENS["operate"])
    window.press("Sign in")
    window.open(f"/bookies/{bookie}")
    window.press("Collect now")
    wait_until(lambda: "Done: collect garbage" in window.text, "the answer")
    cookies = [(each["name"], each["httpOnly"], each["sameSite"]) for each in window.driver.get_cookies()]
    assert [each[1:] for each in cookies] == [(True, "Strict")]
    assert window.driver.execute_script("return document.cookie") == ""
