"""DIGEST-MD5 (RFC 2831): both sides, by the example of the RFC, and with every part changed by a man in the middle."""

from __future__ import annotations

import random

import pytest

from bkspark.security.digest_md5 import (
    MESSAGE_BYTES_MAX,
    DigestClient,
    DigestServer,
    directives,
    response_of,
    session_secret,
)
from bkspark.security.mechanism import SaslFailure

USERS = {"bookkeeper-writer": "secret", "m\u00fcller": "p\u00e4ss", "\u4e00": "\u4e8c"}


def exchange(user: str = "bookkeeper-writer", password: str = "secret") -> tuple[DigestServer, DigestClient]:
    return DigestServer(USERS, "0123456789abcdef", "decoy"), DigestClient(user, password, "fedcba")


def complete(server: DigestServer, client: DigestClient) -> None:
    response = client.step(server.step(client.first()))
    assert response is not None
    assert client.step(server.step(response)) is None


def test_example_of_the_rfc() -> None:
    """RFC 2831, section 4: IMAP4."""
    nonce, cnonce, uri = "OA6MG9tEQGm2hh", "OA6MHXh6VqTrRk", "imap/elwood.innosoft.com"
    secret = session_secret("chris", "secret", nonce, cnonce, None, "elwood.innosoft.com")
    assert response_of(secret, nonce, cnonce, "AUTHENTICATE", uri) == "d388dad90d4bbd760a152321f2143af7"
    assert response_of(secret, nonce, cnonce, "", uri) == "ea40f60335c427b5527b84dbabcdfffd"


@pytest.mark.parametrize("user", USERS)
def test_both_sides_prove_the_password(user: str) -> None:
    server, client = exchange(user, USERS[user])
    complete(server, client)
    assert client.is_complete
    assert server.user == user


def test_nothing_may_follow_the_end_of_an_exchange() -> None:
    """A bookie that repeats its proof begins nothing again, and neither does a client that repeats its response."""
    server, client = exchange()
    response = client.step(server.step(client.first()))
    assert response is not None
    proof = server.step(response)
    assert client.step(proof) is None
    for side, again in ((client, proof), (server, response), (server, b"")):
        with pytest.raises(SaslFailure):
            side.step(again)


def test_response_in_the_form_of_apaches_client_is_taken() -> None:
    """As it came from a Java client: authzid is in it, and in the hash."""
    server, _ = exchange()
    server.step(b"")
    secret = session_secret("bookkeeper-writer", "secret", "0123456789abcdef", "abc", "bookkeeper-writer")
    response = response_of(secret, "0123456789abcdef", "abc", "AUTHENTICATE")
    server.step(
        b'charset=utf-8,username="bookkeeper-writer",realm="bookkeeper",nonce="0123456789abcdef",nc=00000001,'
        b'cnonce="abc",digest-uri="bookkeeper/bookkeeper",maxbuf=65536,response=' + response.encode() + b",qop=auth,"
        b'authzid="bookkeeper-writer"'
    )
    assert server.user == "bookkeeper-writer"


@pytest.mark.parametrize(
    ("user", "password"),
    [("bookkeeper-writer", "wrong"), ("bookkeeper-writer", ""), ("stranger", "decoy"), ("stranger", "secret")],
)
def test_wrong_password_and_unknown_user_get_the_same_refusal(user: str, password: str) -> None:
    server, client = exchange(user, password)
    response = client.step(server.step(client.first()))
    assert response is not None
    with pytest.raises(SaslFailure, match="the user is unknown, or the password is wrong"):
        server.step(response)
    assert server.user is None


def test_client_refuses_a_server_that_does_not_know_the_password() -> None:
    server, client = DigestServer({"bookkeeper-writer": "guess"}, "n", "decoy"), exchange()[1]
    response = client.step(server.step(client.first()))
    assert response is not None
    with pytest.raises(SaslFailure, match="not proved"):
        client.step(b"rspauth=" + b"0" * 32)
    assert not client.is_complete


def test_response_is_taken_once() -> None:
    """A second attempt, or one with the nonce of another exchange, is a replay."""
    server, client = exchange()
    response = client.step(server.step(b""))
    assert response is not None
    server.step(response)
    with pytest.raises(SaslFailure, match="complete"):
        server.step(response)
    other = DigestServer(USERS, "another", "decoy")
    other.step(b"")
    for _ in range(2):
        with pytest.raises(SaslFailure, match="nonce"):
            other.step(response)


def test_failed_attempt_uses_up_the_nonce() -> None:
    server, client = exchange(password="wrong")
    response = client.step(server.step(b""))
    assert response is not None
    right = exchange()[1].step(exchange()[0].step(b""))
    assert right is not None
    for message in (response, right):
        with pytest.raises(SaslFailure):
            server.step(message)
    assert server.user is None


@pytest.mark.parametrize(
    "change",
    [
        (b'realm="bookkeeper"', b'realm="other"'),
        (b'realm="bookkeeper",', b""),
        (b"nc=00000001", b"nc=00000002"),
        (b'digest-uri="bookkeeper/bookkeeper"', b'digest-uri="zookeeper/zk-sasl-md5"'),
        (b"qop=auth", b"qop=auth-conf"),
        (b'username="bookkeeper-writer"', b'username=""'),
        (b'cnonce="fedcba"', b'cnonce=""'),
        (b"qop=auth", b'qop=auth,authzid="bookkeeper-admin"'),
        (b"charset=utf-8", b"charset=latin1"),
        (b"charset=utf-8", b"username=a"),
        (b"response=", b"respons="),
    ],
)
def test_response_with_a_changed_part_is_refused(change: tuple[bytes, bytes]) -> None:
    server, client = exchange()
    response = client.step(server.step(b""))
    assert response is not None
    assert change[0] in response
    with pytest.raises(SaslFailure):
        server.step(response.replace(*change))
    assert server.user is None


def test_user_that_names_another_authzid_is_refused_even_with_the_right_hash() -> None:
    server, _ = exchange()
    server.step(b"")
    secret = session_secret("bookkeeper-writer", "secret", "0123456789abcdef", "c", "bookkeeper-admin")
    response = response_of(secret, "0123456789abcdef", "c", "AUTHENTICATE")
    with pytest.raises(SaslFailure, match="act for another"):
        server.step(
            b'username="bookkeeper-writer",realm="bookkeeper",nonce="0123456789abcdef",nc=00000001,cnonce="c",'
            b'digest-uri="bookkeeper/bookkeeper",authzid="bookkeeper-admin",response=' + response.encode()
        )


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b'realm="bookkeeper",nonce="x",qop="auth",charset=utf-8',
        b'realm="bookkeeper",nonce="x",qop="auth-conf",charset=utf-8,algorithm=md5-sess',
        b'realm="bookkeeper",qop="auth",charset=utf-8,algorithm=md5-sess',
        b'nonce="x',
        b"\xff=\xff",
        b'nonce="\xff"',
        b"a" * (MESSAGE_BYTES_MAX + 1),
    ],
)
def test_client_refuses_a_challenge_that_it_does_not_understand(challenge: bytes) -> None:
    with pytest.raises(SaslFailure):
        exchange()[1].step(challenge)


def test_mutated_messages_never_prove_anything() -> None:
    """Each has one byte changed, added or left out; a change may only touch what is not hashed."""
    chance = random.Random(7)
    for _ in range(2000):
        server, client = exchange()
        response = client.step(server.step(b""))
        assert response is not None
        changed = bytearray(response)
        at = chance.randrange(len(changed))
        changed[at : at + chance.randrange(2)] = chance.randbytes(chance.randrange(2))
        try:
            server.step(bytes(changed))
        except SaslFailure:
            continue
        before, after = directives(response), directives(bytes(changed))
        hashed = ("username", "realm", "nonce", "cnonce", "nc", "digest-uri", "response")
        assert [before[name] for name in hashed] == [after[name] for name in hashed], bytes(changed)
