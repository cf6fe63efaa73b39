"""The scanner for secrets finds each form of a planted secret, and nothing where there is none."""

from __future__ import annotations

import base64
import html
import json
import os
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.secret_scan import CHUNK_BYTES, SecretScanner, forms, readings

SECRETS = {
    "text": b'p&ss w"rd+<42>/x\\y',
    "accents": "g\u00e9heim \u00fcber alles".encode(),
    "octets": bytes(range(245, 256)) + b"\0\n\x7f%=+/",
}


def _java(secret: bytes) -> bytes:
    return str([octet - 256 if octet > 127 else octet for octet in secret]).encode()


PLANTED: dict[str, list[Callable[[bytes], bytes]]] = {
    "raw": [lambda secret: secret],
    "UTF-16": [lambda secret: b"\0".join(bytes([octet]) for octet in secret)],
    "hex": [
        lambda secret: secret.hex().encode(),
        lambda secret: secret.hex().upper().encode(),
        lambda secret: secret.hex(":").encode(),
        lambda secret: ", ".join(f"0x{octet:02x}" for octet in secret).encode(),
    ],
    "base64": [
        base64.b64encode,
        base64.urlsafe_b64encode,
        lambda secret: base64.b64encode(b"user:" + secret + b"\n"),
        lambda secret: base64.b64encode(b"u:" + secret + b"more"),
    ],
    "decimal": [
        lambda secret: str(list(secret)).encode(),
        lambda secret: b",".join(b"%d" % octet for octet in secret),
        _java,
    ],
    "URL": [
        lambda secret: urllib.parse.quote(secret).encode(),
        lambda secret: urllib.parse.quote_plus(secret).encode(),
        lambda secret: "".join(f"%{octet:02x}" for octet in secret).encode(),
    ],
    "escaped": [
        lambda secret: repr(secret).encode(),
        lambda secret: json.dumps(secret.decode("latin-1")).encode(),
        lambda secret: html.escape(secret.decode("latin-1")).encode("latin-1"),
    ],
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("form", PLANTED)
def test_each_form_of_a_planted_secret_is_found(tmp_path: Path, name: str, form: str) -> None:
    assert set(PLANTED) == {*forms(SECRETS[name]), *readings(b"")}
    for plant in PLANTED[form]:
        path = tmp_path / "folder" / "log"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"before " + plant(SECRETS[name]) + b" after")
        found = list(SecretScanner(SECRETS).below([tmp_path]))
        expected = "raw" if plant(SECRETS[name]) == SECRETS[name] else form
        assert (name, expected) in {(finding.secret, finding.form) for finding in found}, plant(SECRETS[name])
        assert {finding.secret for finding in found} == {name}


def test_characters_beyond_ascii_are_found_where_text_is_escaped(tmp_path: Path) -> None:
    text = SECRETS["accents"].decode()
    for escaped in (json.dumps(text), text.encode("ascii", "xmlcharrefreplace").decode()):
        (tmp_path / "log").write_text(escaped)
        assert {finding.secret for finding in SecretScanner(SECRETS).below([tmp_path])} == {"accents"}


def test_a_secret_across_two_chunks_and_in_a_name_of_a_file_is_found(tmp_path: Path) -> None:
    secret = b"plain-secret"
    (tmp_path / "large").write_bytes(bytes(CHUNK_BYTES - 5) + secret)
    (tmp_path / f"file-{secret.decode()}.log").touch()
    places = [finding.place for finding in SecretScanner({"it": secret}).below([tmp_path]) if finding.form == "raw"]
    assert places == [f"the name of {tmp_path}/file-{secret.decode()}.log", f"{tmp_path}/large"]


def test_nothing_is_found_where_no_secret_is_or_where_it_belongs(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "password").write_bytes(SECRETS["text"])
    (tmp_path / "log").write_bytes(os.urandom(1 << 20) + SECRETS["text"][:-1] + str(list(range(256))).encode())
    assert list(SecretScanner(SECRETS).below([tmp_path], without=[tmp_path / "secrets"])) == []


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="by chance"):
        SecretScanner({"it": b"s3cret"})
