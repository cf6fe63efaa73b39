"""The edges of what identifies a peer: sizes that just pass, empty parts, repeated steps, and what is remembered."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from bkspark.security import authorization, jaas
from bkspark.security.access_file import AccessFile
from bkspark.security.attempts import ADDRESSES_MAX, FAILURES_MAX, FailedAttempts
from bkspark.security.authorization import parse_rules
from bkspark.security.certificate_roles import roles_of
from bkspark.security.digest_md5 import (
    DIGEST_URI,
    HOST,
    DigestClient,
    DigestServer,
    directives,
    response_of,
    session_secret,
)
from bkspark.security.mechanism import SaslFailure
from bkspark.security.principal import Principal
from bkspark.security.roles import Role


def test_directives_may_have_empty_elements_between_them() -> None:
    assert directives(b',a=1,,b="2",') == {"a": "1", "b": "2"}


def test_an_exchange_that_is_complete_takes_no_second_proof() -> None:
    server, client = DigestServer({"u": "p"}, "nonce", "decoy"), DigestClient("u", "p", "cnonce")
    response = client.step(server.step(client.first()))
    assert response is not None
    proof = server.step(response)
    assert client.step(proof) is None
    with pytest.raises(SaslFailure):
        client.step(proof)


def test_a_response_to_an_empty_nonce_proves_nothing_after_a_failed_one() -> None:
    """The nonce is used up by then, and empty."""
    server = DigestServer({"u": "p"}, "nonce", "decoy")
    server.step(b"")
    with pytest.raises(SaslFailure):
        server.step(b'username="u"')
    secret = session_secret("u", "p", "", "c", None)
    proof = response_of(secret, "", "c", "AUTHENTICATE")
    fields = {"username": "u", "realm": HOST, "nonce": "", "cnonce": "c", "digest-uri": DIGEST_URI}
    message = ",".join(f'{name}="{value}"' for name, value in fields.items()) + f",nc=00000001,response={proof}"
    with pytest.raises(SaslFailure):
        server.step(message.encode())
    assert server.user is None


def test_a_jaas_file_of_the_largest_size_is_read() -> None:
    assert jaas.parse(" " * jaas.FILE_CHARS_MAX) == {}
    with pytest.raises(jaas.JaasError, match="more than"):
        jaas.parse(" " * (jaas.FILE_CHARS_MAX + 1))


@pytest.mark.parametrize(
    ("unit", "roles"),
    [
        ("1:test;0:writer", ("writer",)),
        ("0;0:writer", ("writer",)),
        ("writer;0: a , ,b ", ("a", "", "b")),
        ("0:,writer", ("", "writer")),
        ("0:writer,,", ("writer",)),
        ("1:test; 0:writer", ()),
        ("0 :writer", ()),
        ("0:reader;0:writer", ("writer",)),
        ("0:", ()),
        ("0:,", ()),
        ("1:test", ()),
        ("0", ()),
        ("", ()),
    ],
)
def test_roles_of_a_certificate_are_those_after_the_code_0(unit: str, roles: tuple[str, ...]) -> None:
    """As `CertUtils` of Apache's: a role that its bookies do not see must not open ours."""
    assert roles_of(((("organizationalUnitName", unit),),)) == roles


@pytest.mark.parametrize(
    ("first", "is_seen"), [("commonName", False), ("userId", True), ("emailAddress", False), ("1.2.3.4", False)]
)
def test_unit_beside_another_attribute_counts_if_java_sorts_it_first(first: str, is_seen: bool) -> None:
    pair = ("organizationalUnitName", "0:writer")
    for part in (((first, "x"), pair), (pair, (first, "x"))):
        assert roles_of((part,)) == (("writer",) if is_seen else ())


def test_role_of_a_token_is_not_that_of_another_principal_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "access"
    path.write_text("token operate ops k2Jx9-QmZ7wV4tRb\n")
    path.chmod(0o600)
    file = AccessFile(str(path), "key")
    assert file.role_of(Principal("ops", "token")) is Role.OPERATE
    assert file.role_of(Principal("ops", "digest")) is Role.NONE
    assert file.role_of(Principal("other", "token")) is Role.NONE


@pytest.mark.parametrize(("mode", "is_warned"), [(0o644, True), (0o600, False)])
def test_a_token_that_all_users_of_the_host_can_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_warned: bool
) -> None:
    path = tmp_path / "access"
    path.write_text("token operate ops k2Jx9-QmZ7wV4tRb\n")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        AccessFile(str(path), "key")
    assert any("chmod o-r" in line for line in caplog.messages) == is_warned


def test_a_pipe_that_holds_a_token_is_nobodys_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Shells give secrets as pipes: their mode says nothing of who can read what comes through."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    path.chmod(0o644)
    writing = threading.Thread(target=path.write_text, args=("token operate ops k2Jx9-QmZ7wV4tRb\n",), daemon=True)
    writing.start()
    with caplog.at_level(logging.WARNING):
        file = AccessFile(str(path), "key")
    writing.join(10)
    assert file.mark(Principal("ops", "token"))
    assert caplog.messages == []


def test_the_address_that_failed_longest_ago_is_forgotten_first() -> None:
    attempts = FailedAttempts(lambda: 1.0)
    for _ in range(FAILURES_MAX):
        attempts.failed("old")
    for number in range(ADDRESSES_MAX - 1):
        attempts.failed(f"address {number}")
    for _ in range(FAILURES_MAX):
        attempts.failed("new")
    assert attempts.wait_s("new") > 0
    assert attempts.wait_s("old") == 0


def test_rules_of_principals_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "REMEMBERED_MAX", 3)
    rules = parse_rules(b"anonymous read *\n")
    first = rules.of(Principal("0", "digest"))
    rules.of(Principal("1", "digest"))
    assert rules.of(Principal("0", "digest")) is first
    for number in range(10):
        rules.of(Principal(str(number), "digest"))
        assert len(rules._of) <= 3
