"""The access file: its grammar, what a wrong one says, reload, and that no token stays in memory or in messages."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bkspark.security.access_file import REFRESH_S, AccessFile, parsed, read_token
from bkspark.security.attempts import ADDRESSES_MAX, FAILURES_MAX, WINDOW_S, FailedAttempts
from bkspark.security.principal import Principal
from bkspark.security.roles import Role
from tests.clock import Clock

SECRET = "k2Jx9-QmZ7wV4tRb"
HASHED = "another-token-of-length"
KEY = "httpServerAccessFile"


def written(directory: Path, text: str) -> str:
    path = directory / "access"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_words_of_a_line_may_have_tabs_and_several_blanks_between_them() -> None:
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    rules, _ = parsed(f"token\tread\tdashboards\tsha256:{digest}\ncertificate \t operate\t CN=ops,O=A B")
    assert [(token.name, token.digest.hex()) for token in rules.tokens] == [("dashboards", digest)]
    assert rules.certificates == {"CN=ops,O=A B": Role.OPERATE}


def test_a_token_of_any_text_is_only_wrong(tmp_path: Path) -> None:
    path = tmp_path / "access"
    path.write_text(SECRET)
    file = AccessFile(str(path), "--token-file")
    for text in ("\ud800", "\udcff", "\0", "é"):
        assert file.of_token(text) is None


def test_tokens_and_certificates_have_the_roles_of_their_lines(tmp_path: Path) -> None:
    digest = hashlib.sha256(HASHED.encode()).hexdigest()
    path = written(
        tmp_path,
        f"# who may do what\n\ntoken read dashboards {SECRET}\ntoken  operate   ops  sha256:{digest}\n"
        "certificate destroy CN=The Boss,O=Example Ltd\n",
    )
    file = AccessFile(path, KEY)
    assert file.of_token(SECRET) == (Principal("dashboards", "token"), Role.READ)
    assert file.of_token(HASHED) == (Principal("ops", "token"), Role.OPERATE)
    for wrong in ("", SECRET[:-1], f"{SECRET} ", f"sha256:{digest}", digest, "é\udcff"):
        assert file.of_token(wrong) is None
    assert file.role_of(Principal("CN=The Boss,O=Example Ltd", "certificate")) is Role.DESTROY
    assert file.role_of(Principal("CN=The Boss,O=Example Ltd", "digest")) is Role.NONE
    assert file.role_of(Principal("CN=The Boss", "certificate")) is Role.NONE


def test_a_hash_that_differs_in_any_byte_is_that_of_another_token(tmp_path: Path) -> None:
    digest = hashlib.sha256(SECRET.encode()).digest()
    for at in range(len(digest)):
        other = bytearray(digest)
        other[at] ^= 1
        file = AccessFile(written(tmp_path, f"token read one sha256:{other.hex()}\ntoken read two {HASHED}\n"), KEY)
        assert file.of_token(SECRET) is None, at


def test_mark_of_a_principal_changes_with_its_token_and_does_not_disclose_it(tmp_path: Path) -> None:
    """docs/security.md: a session ends when the token that began it is replaced."""
    marks = []
    for token in (SECRET, HASHED, SECRET):
        file = AccessFile(written(tmp_path, f"token read one {token}\ntoken read two other-token-of-length\n"), KEY)
        marks.append(file.mark(Principal("one", "token")))
        digest = hashlib.sha256(token.encode()).hexdigest()
        assert token not in marks[-1]
        assert digest not in marks[-1]
        assert file.mark(Principal("two", "token")) != marks[-1]
        assert file.mark(Principal("three", "token")) == file.mark(Principal("one", "certificate")) == ""
    assert marks[0] == marks[2] != marks[1]


def test_a_file_of_one_word_is_one_token_that_may_do_everything(tmp_path: Path) -> None:
    digest = hashlib.sha256(HASHED.encode()).hexdigest()
    for word, token in ((HASHED, HASHED), (f"sha256:{digest}", HASHED), ("aB3+/~._-c0pQ9Zw==", "aB3+/~._-c0pQ9Zw==")):
        file = AccessFile(written(tmp_path, f"# may do everything\n{word}\n"), "--token-file")
        assert file.of_token(token) == (Principal("token", "token"), Role.DESTROY)


def test_an_error_message_in_place_of_the_rules_is_not_a_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise everyone who knows the error message of the program that writes the file could delete ledgers."""
    clock = Clock()
    path = written(tmp_path, f"token read x {SECRET}")
    file = AccessFile(path, KEY, clock)
    for message in (
        "404 page not found",
        "Tokn operate amy the-token-of-amy",
        "permission denied\treading the vault",
        '{"errors":["permission_denied"]}',
        "<h1>Forbidden</h1>",
        "AccessDeniedException",
        "permission-denied",
    ):
        written(tmp_path, message)
        clock.now += REFRESH_S
        assert file.of_token(message) is None
        assert file.of_token(SECRET) == (Principal("x", "token"), Role.READ)
    assert "line 1: it must begin with token or certificate" in caplog.text
    assert "line 1 must be: token ROLE NAME TOKEN" in caplog.text
    assert "one word in place of its lines" in caplog.text


def test_a_token_alone_may_be_replaced_by_another_one_or_by_lines(tmp_path: Path) -> None:
    clock = Clock()
    file = AccessFile(written(tmp_path, HASHED), KEY, clock)
    for text, token in ((SECRET, SECRET), (f"token read x {HASHED}", HASHED)):
        written(tmp_path, text)
        clock.now += REFRESH_S
        assert file.of_token(token) is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must name a token of at least 16 characters"),
        ("short", "at least 16"),
        (f"token read x {SECRET}\ntoken read x {HASHED}\n", "line 2: the name or the token has a line already"),
        (f"token read x {SECRET}\ntoken operate y {SECRET}\n", "line 2: the name or the token has a line already"),
        (f"token {SECRET} read another-name-of-a-user\n", "line 1: a text of 16 characters is not a role"),
        (f"token king x {SECRET}\n", "line 1: 'king' is not a role; there are metrics, read, operate, destroy"),
        (f"token read {SECRET}\n", "line 1: a token must have at least 16"),
        (f"token read x {SECRET}\u00e4\n", "line 1: a token must have at least 16 printable ASCII characters"),
        ("token read x sha256:abc\n", "line 1: sha256: must be followed by 64 hexadecimal digits"),
        (f"user read x {SECRET}\nuser read y {SECRET}\n", "line 1: it must begin with token or certificate"),
        (f"Token read x {SECRET}\n", "line 1: it must begin with token or certificate"),
        (f"read {SECRET}\n", "line 1 must be: token ROLE NAME TOKEN"),
        ("certificate read\ntoken\n", "line 1 must be"),
        ("certificate read CN=a\ncertificate destroy CN=a\n", "line 2: the subject has a line already"),
    ],
)
def test_a_wrong_file_is_one_line_with_the_number_and_without_the_token(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AccessFile(written(tmp_path, text), KEY)
    message = str(caught.value)
    assert message.startswith(f"{KEY}={tmp_path}/access: ")
    assert why in message
    assert SECRET not in message
    assert "\n" not in message


def test_a_file_that_others_can_change_or_that_is_missing_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"token read x {SECRET}")
    os.chmod(path, 0o602)
    with pytest.raises(ConfigurationError, match="can change the file: chmod o-w"):
        AccessFile(path, KEY)
    for missing in (str(tmp_path), str(tmp_path / "nothing")):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            AccessFile(missing, KEY)
    # The key names a file. A token in its place must not get into the log.
    with pytest.raises(ConfigurationError, match=rf"^{KEY}=\*\*\*: .*cannot be read: No such file.*a token") as caught:
        AccessFile(SECRET, KEY)
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError, match="a token alone"):
        read_token(tmp_path / "nothing", "--http-token-file")
    with pytest.raises(ConfigurationError, match=r"--http-token-file=\*\*\*: .* No such file") as caught:
        read_token(SECRET, "--http-token-file")
    assert SECRET not in str(caught.value)
    (tmp_path / "noise").write_bytes(b"\xff" * 20)
    with pytest.raises(ConfigurationError, match=r"noise: the file must hold a token alone: it is not text$"):
        read_token(tmp_path / "noise", "--http-token-file")


def test_a_changed_file_counts_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    path = written(tmp_path, f"token read x {SECRET}")
    file = AccessFile(path, KEY, clock)
    written(tmp_path, f"token read x {HASHED}")
    assert file.of_token(SECRET) is not None, "it looks again after a second"
    clock.now += REFRESH_S
    assert file.of_token(SECRET) is None
    assert file.of_token(HASHED) is not None
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            written(tmp_path, "token nonsense")
            clock.now += REFRESH_S
            assert file.of_token(HASHED) is not None
        os.remove(path)
        clock.now += REFRESH_S
        assert file.of_token(HASHED) is not None
    assert "tokens and roles stay as they were" in caplog.text
    assert HASHED not in caplog.text
    written(tmp_path, f"token operate x {HASHED}")
    clock.now += REFRESH_S
    found = file.of_token(HASHED)
    assert found is not None
    assert found[1] is Role.OPERATE


def test_no_token_is_in_a_repr(tmp_path: Path) -> None:
    file = AccessFile(written(tmp_path, f"token read x {SECRET}"), KEY)
    digest = hashlib.sha256(SECRET.encode())
    shown = repr(file) + repr(vars(file))
    assert SECRET not in shown
    assert digest.hexdigest() not in shown
    assert repr(digest.digest()) not in shown


def test_too_many_wrong_tokens_close_an_address_for_a_minute() -> None:
    clock = Clock()
    attempts = FailedAttempts(clock)
    for _ in range(FAILURES_MAX):
        assert attempts.wait_s("10.0.0.1") == 0
        attempts.failed("10.0.0.1")
    assert attempts.wait_s("10.0.0.1") == attempts.wait_s("::ffff:10.0.0.1") == WINDOW_S
    assert attempts.wait_s("10.0.0.2") == 0
    clock.now = WINDOW_S
    assert attempts.wait_s("10.0.0.1") == 0
    for _ in range(FAILURES_MAX):
        attempts.failed("2001:db8::1")
    assert attempts.wait_s("2001:db8::ffff") > 0, "one network of IPv6 is one peer"
    assert attempts.wait_s("2001:db8:0:1::1") == 0


def test_wrong_tokens_count_for_a_minute_from_the_first_one() -> None:
    """Otherwise a host that often has one wrong program would never be let in again."""
    clock = Clock()
    attempts = FailedAttempts(clock)
    attempts.failed("10.0.0.1")
    clock.now = WINDOW_S - 1
    for _ in range(FAILURES_MAX - 1):
        attempts.failed("10.0.0.1")
    assert attempts.wait_s("10.0.0.1") == 1
    clock.now = WINDOW_S
    attempts.failed("10.0.0.1")
    assert attempts.wait_s("10.0.0.1") == 0


def test_addresses_that_fail_take_bounded_memory() -> None:
    attempts = FailedAttempts(Clock())
    for number in range(ADDRESSES_MAX + 10):
        attempts.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(attempts._counts) == ADDRESSES_MAX


def test_a_long_token_in_place_of_the_name_of_its_file_is_not_shown() -> None:
    """The system refuses such a name for its length."""
    for read in (lambda: AccessFile("A" * 300, KEY), lambda: read_token("A" * 300, KEY)):
        with pytest.raises(ConfigurationError) as raised:
            read()
        assert "A" * 20 not in str(raised.value)
