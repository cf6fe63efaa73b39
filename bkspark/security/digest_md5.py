"""DIGEST-MD5 (RFC 2831) as Java's SASL library and Apache BookKeeper use it, both sides. PURE.

The server sends a challenge, the client a response, the server `rspauth`, which proves that it knows the password, too.
Each is a list of directives `name=value` or `name="value"`, separated by commas. With H = MD5, X(x) = H(x) in hex:

    A1       = H(username ":" realm ":" password) ":" nonce ":" cnonce [":" authzid]
    response = X( X(A1) ":" nonce ":" nc ":" cnonce ":auth:" X("AUTHENTICATE:" digest-uri) )
    rspauth  = X( X(A1) ":" nonce ":" nc ":" cnonce ":auth:" X(":" digest-uri) )

* Service, host name and realm are `bookkeeper` for every bookie, so `digest-uri` is `bookkeeper/bookkeeper`.
* The quality of protection is `auth`, and the algorithm `md5-sess`: no layer is put around later messages.
* User, realm and password are hashed as ISO 8859-1 if all of their characters are in it, otherwise as UTF-8.
* A nonce is used for one exchange, whose `nc` is 00000001.
* Apache's clients send the user's name as `authzid`, too. Another `authzid` than the user is refused.

MD5 protects little: an attacker who records an exchange can try passwords on it. Use long random passwords, and TLS.
Messages have at most `MESSAGE_BYTES_MAX` bytes. No error contains a password.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from bkspark.security.mechanism import SaslFailure

SERVICE = HOST = "bookkeeper"
DIGEST_URI = f"{SERVICE}/{HOST}"
MESSAGE_BYTES_MAX = 4096
"""RFC 2831's limit of a response; a challenge may have half of it."""

_DIRECTIVE = re.compile(
    rb'[ \t\r\n]*([A-Za-z0-9_-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^,"\s]*))[ \t\r\n]*', re.DOTALL
)
_QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)
_FIRST_USE = "00000001"


def challenge(nonce: str, realm: str = HOST) -> bytes:
    """Return a server's first message; `nonce` is fresh, of characters that need no quoting."""
    return f'realm="{realm}",nonce="{nonce}",qop="auth",charset=utf-8,algorithm=md5-sess'.encode()


class DigestServer:
    """A server's side of one exchange: an empty message, then a response."""

    def __init__(self, passwords: Mapping[str, str], nonce: str, decoy: str) -> None:
        """`passwords`: by user; `decoy`: a secret that is used as the password of unknown users."""
        self._passwords = passwords
        self._nonce = nonce
        """The nonce of the challenge; "" after the first response, so that a nonce is used once."""
        self._decoy = decoy
        self._is_challenged = False
        """Whether the challenge was sent. Set once."""
        self.user: str | None = None
        """The user that has proved its password; None before that."""

    def step(self, message: bytes) -> bytes:
        """Return the answer to a message; with the last one `user` is set. Raises SaslFailure."""
        if self.user is not None:
            raise SaslFailure("the exchange is complete")
        if not self._is_challenged:
            if message:
                raise SaslFailure("the first message of DIGEST-MD5 is empty")
            self._is_challenged = True
            return challenge(self._nonce)
        nonce, self._nonce = self._nonce, ""
        user, answer = self._verify(directives(message), nonce)
        self.user = user
        return answer

    def _verify(self, given: Mapping[str, str], nonce: str) -> tuple[str, bytes]:
        expected = {"nonce": nonce, "nc": _FIRST_USE, "realm": HOST, "digest-uri": DIGEST_URI}
        found = {"realm": "", **given}
        for name, value in expected.items():
            if not nonce or not hmac.compare_digest(found.get(name, "").encode(), value.encode()):
                raise SaslFailure(f"{name} of the response is not what was expected")
        if given.get("qop", "auth") != "auth" or given.get("charset", "utf-8") != "utf-8":
            raise SaslFailure("the response asks for another qop or charset than auth and utf-8")
        user, cnonce = given.get("username", ""), given.get("cnonce", "")
        if not user or not cnonce:
            raise SaslFailure("the response has no username, or no cnonce")
        # An unknown user costs the same time as a wrong password.
        password = self._passwords.get(user, self._decoy)
        secret = session_secret(user, password, nonce, cnonce, given.get("authzid"))
        right = response_of(secret, nonce, cnonce, "AUTHENTICATE")
        is_right = hmac.compare_digest(right.encode(), given.get("response", "").encode())
        if not is_right or user not in self._passwords:
            raise SaslFailure("the user is unknown, or the password is wrong")
        if given.get("authzid", user) not in ("", user):
            raise SaslFailure("the user may not act for another one")
        return user, f"rspauth={response_of(secret, nonce, cnonce, '')}".encode()


class DigestClient:
    """A client's side of one exchange."""

    def __init__(self, user: str, password: str, cnonce: str, digest_uri: str = DIGEST_URI) -> None:
        """`digest_uri`: service and host of the server."""
        self._digest_uri = digest_uri
        self._user = user
        """The user, its password and the client's nonce, with which the server's challenge is answered."""
        self._password = password
        self._cnonce = cnonce
        """A random text, so that no answer repeats."""
        self._rspauth: str | None = None
        """What the server must answer; None before the response was sent. Set once."""
        self.is_complete = False
        """Whether both sides have proved the password."""

    def first(self) -> bytes:
        """Return the first message."""
        return b""

    def step(self, message: bytes) -> bytes | None:
        """Return the next message; None if the exchange is complete. Raises SaslFailure."""
        given = directives(message)
        if self._rspauth is None:
            return self._respond(given)
        if self.is_complete or not hmac.compare_digest(given.get("rspauth", "").encode(), self._rspauth.encode()):
            raise SaslFailure("it has not proved that it knows the password")
        self.is_complete = True
        return None

    def _respond(self, given: Mapping[str, str]) -> bytes:
        if given.get("algorithm") != "md5-sess":
            raise SaslFailure("its challenge has another algorithm than md5-sess")
        if "auth" not in given.get("qop", "auth").replace(" ", "").split(","):
            raise SaslFailure("its challenge offers no qop=auth")
        nonce, realm = given.get("nonce", ""), given.get("realm", "")
        if not nonce:
            raise SaslFailure("its challenge has no nonce")
        secret = session_secret(self._user, self._password, nonce, self._cnonce, None, realm)
        self._rspauth = response_of(secret, nonce, self._cnonce, "", self._digest_uri)
        response = response_of(secret, nonce, self._cnonce, "AUTHENTICATE", self._digest_uri)
        parts = [
            "charset=utf-8",
            f'username="{_quoted(self._user)}"',
            *([f'realm="{_quoted(realm)}"'] if realm else []),
            f'nonce="{_quoted(nonce)}"',
            f"nc={_FIRST_USE}",
            f'cnonce="{_quoted(self._cnonce)}"',
            f'digest-uri="{self._digest_uri}"',
            "maxbuf=65536",
            f"response={response}",
            "qop=auth",
        ]
        return ",".join(parts).encode()


def session_secret(
    user: str, password: str, nonce: str, cnonce: str, authzid: str | None = None, realm: str = HOST
) -> str:
    """Return X(A1)."""
    known = _md5(b":".join(_hashed_form(text) for text in (user, realm, password))).digest()
    parts = [known, nonce.encode(), cnonce.encode(), *([] if authzid is None else [authzid.encode()])]
    return _md5(b":".join(parts)).hexdigest()


def response_of(secret: str, nonce: str, cnonce: str, method: str, digest_uri: str = DIGEST_URI) -> str:
    """Return the client's response (method "AUTHENTICATE"), or the server's (method "")."""
    action = _md5(f"{method}:{digest_uri}".encode()).hexdigest()
    return _md5(f"{secret}:{nonce}:{_FIRST_USE}:{cnonce}:auth:{action}".encode()).hexdigest()


def directives(message: bytes) -> dict[str, str]:
    """Return the directives of a message, by name in lower case.

    Raises:
        SaslFailure: it is too long, not a list of directives, or not UTF-8, or one appears twice.
    """
    if len(message) > MESSAGE_BYTES_MAX:
        raise SaslFailure(f"a message of DIGEST-MD5 has {len(message)} bytes, more than {MESSAGE_BYTES_MAX}")
    found: dict[str, str] = {}
    at = 0
    while at < len(message):
        if message[at : at + 1] == b",":
            # Empty elements are allowed.
            at += 1
            continue
        match = _DIRECTIVE.match(message, at)
        if match is None or message[match.end() : match.end() + 1] not in (b"", b","):
            raise SaslFailure("a message of DIGEST-MD5 is not a list of directives")
        name, quoted, bare = match[1].decode().lower(), match[2], match[3]
        try:
            value = (bare if quoted is None else _QUOTED_PAIR.sub(rb"\1", quoted)).decode()
        except UnicodeDecodeError:
            raise SaslFailure("a message of DIGEST-MD5 is not UTF-8") from None
        if name in found:
            raise SaslFailure("a directive of a message of DIGEST-MD5 appears twice")
        found[name] = value
        at = match.end() + 1
    return found


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _hashed_form(text: str) -> bytes:
    try:
        return text.encode("iso-8859-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(data: bytes) -> hashlib._Hash:
    # The protocol demands it; the flag lets it work where MD5 is forbidden for security.
    return hashlib.md5(data, usedforsecurity=False)
