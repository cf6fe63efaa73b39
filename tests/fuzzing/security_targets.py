"""Targets of authentication: what anyone may send to a bookie, or a bookie to a client, before the other is proved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bkspark.errors import ProtocolError
from bkspark.security import jaas
from bkspark.security.digest_md5 import DigestClient, DigestServer, challenge, directives
from bkspark.security.mechanism import SaslFailure
from bkspark.wire.auth import encode_auth, take_auth_answer
from tests.fuzzing.target import Target

_USER, _PASSWORD, _NONCE, _CNONCE = "bookkeeper", "secret", "0123456789abcdef", "fedcba"
_HASHED = ("username", "realm", "nonce", "cnonce", "nc", "digest-uri", "response")


def _jaas(data: bytes) -> Mapping[str, tuple[jaas.LoginModule, ...]]:
    return jaas.parse(data.decode("utf-8", "surrogateescape"))


def _jaas_is_read_back(sections: Mapping[str, tuple[jaas.LoginModule, ...]]) -> None:
    written = "".join(
        f"{_quoted(name)} {{ {' '.join(map(_written, modules))} }};\n" for name, modules in sections.items()
    )
    assert jaas.parse(written) == sections


def _written(module: jaas.LoginModule) -> str:
    options = " ".join(f"{_quoted(key)}={_quoted(value)}" for key, value in module.options.items())
    return f"{_quoted(module.class_name)} {module.flag} {options};"


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\{ord(char):03o}" if char in '"\\\r\n' else char for char in text) + '"'


def _jaas_seeds() -> Iterator[bytes]:
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    yield f'Bookie {{ {module} required user_a="b\\"c\\101" x=y; }};\n// end'.encode()
    yield b"A { }; /* c */ B { c optional; d SUFFICIENT a=b; };"


def _response() -> bytes:
    response = DigestClient(_USER, _PASSWORD, _CNONCE).step(challenge(_NONCE))
    assert response is not None
    return response


def _server(data: bytes) -> tuple[str | None, bytes]:
    server = DigestServer({_USER: _PASSWORD}, _NONCE, "decoy")
    server.step(b"")
    server.step(data)
    return server.user, data


def _proof_is_the_right_one(found: tuple[str | None, bytes]) -> None:
    """The password is not in the input: what is taken has every hashed part of the one right response."""
    user, data = found
    given, right = directives(data), directives(_response())
    assert user == _USER
    assert [given[name] for name in _HASHED] == [right[name] for name in _HASHED]


def _client(data: bytes) -> None:
    first, _, second = data.partition(b"\0")
    client = DigestClient(_USER, _PASSWORD, _CNONCE)
    client.step(first)
    try:
        client.step(second)
    except SaslFailure:
        return
    raise AssertionError("it believed a server that does not know the password")


def _client_seeds() -> Iterator[bytes]:
    yield challenge(_NONCE)
    yield challenge(_NONCE) + b"\0rspauth=" + b"0" * 32


def _answer(data: bytes) -> None:
    take_auth_answer(bytearray(data[1:]), 9 if data[:1] > b"\x7f" else None)


TARGETS = (
    Target(
        "security-jaas",
        _jaas,
        (jaas.JaasError,),
        _jaas_is_read_back,
        _jaas_seeds,
        (b"required", b" { ", b"};", b"/*", b'"', b"${/}"),
    ),
    Target(
        "security-digest-server",
        _server,
        (SaslFailure,),
        _proof_is_the_right_one,
        lambda: [_response(), b"username=a"],
        tuple(f"{name}=".encode() for name in (*_HASHED, "authzid", "qop", "charset")),
    ),
    Target("security-digest-client", _client, (SaslFailure,), None, _client_seeds, (b"nonce=", b"rspauth=")),
    Target(
        "security-auth-answer",
        _answer,
        (ProtocolError,),
        None,
        lambda: [b"\0" + encode_auth("sasl", b"x", None), b"\xff" + encode_auth("sasl", b"x", 9)],
    ),
)
