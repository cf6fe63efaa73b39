"""Identifies the sender of an HTTP request and its role: by token, by client certificate, or by place on this host.

* **Credentials.** With an access file, a request needs a token (`Authorization: Bearer`) or a client certificate that
  the file names. Without an access file, but with a trust store, every accepted certificate has every role, as with
  Apache's bookies. Without both the server listens only at loopback (`settings`), and every sender has every role.
* **Pages of browsers.** The name in `Host` must be one of ours, or an address, and so must the name in the target if
  that is a URL. Requests that a page of another site makes as a part of itself are refused, and also requests from such
  a page that would change something.
* **Wrong tokens** are limited by address. A token is accepted only in a header, because a token in a URL would get into
  logs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from bkspark.security.access_file import AccessFile
from bkspark.security.attempts import FailedAttempts
from bkspark.security.principal import ANONYMOUS, Principal, principal_of_certificate
from bkspark.security.roles import Role
from bkspark.security.web import is_foreign, is_foreign_part, is_known_host, is_loopback
from bookie_service.admin.http.messages import HttpError
from bookie_service.settings.http_options import ACCESS_FILE_KEY, HttpOptions

OPERATOR_MAX = 100
"""At most this many characters of the name in `X-Operator` are kept."""
_NO_PARENTHESES = str.maketrans("()", "[]")
_BEARER = "bearer "
_THIS_HOST = Principal("loopback", "local")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `who`: its name in the audit log."""

    who: str
    principal: Principal
    role: Role
    is_foreign: bool
    """Whether a page of another site may have sent the request."""


class HttpAccess:
    """Identifies callers. For one event loop."""

    def __init__(self, options: HttpOptions, own_names: Sequence[str] = ()) -> None:
        """`own_names`: names of this host, in addition to those in the options.

        Raises:
            ConfigurationError: the access file cannot be used.
        """
        self._file = None if options.access_file is None else AccessFile(options.access_file, ACCESS_FILE_KEY)
        self._trusts_certificates = options.checks_certificates
        hosts = (*options.allowed_hosts, *own_names, options.host, options.metrics_host)
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self._attempts = FailedAttempts(time.monotonic)

    def caller(
        self,
        peer: str,
        headers: Sequence[tuple[bytes, bytes]],
        certificate: Mapping[str, Any] | None,
        authority: str | None = None,
    ) -> Caller:
        """Return the sender of a request.

        Args:
            certificate: the peer's, as `getpeercert` returns it. It was checked.
            authority: the host in the request's target; None: the target is a path.

        Raises:
            HttpError: the request is for another host, comes from a page of another site, has a wrong token, or has one
                of the headers that decide this twice.
        """
        host, site, origin = _header(headers, b"host"), _header(headers, b"sec-fetch-site"), _header(headers, b"origin")
        if not all(is_known_host(name, self._hosts) for name in (host, authority) if name is not None):
            raise HttpError(
                HTTPStatus.MISDIRECTED_REQUEST, "this host name is not the bookie's: add it to httpServerAllowedHosts"
            )
        if is_foreign_part(site, _header(headers, b"sec-fetch-mode")):
            raise HttpError(HTTPStatus.FORBIDDEN, "this request comes from a page of another site")
        principal, role = self._identify(peer, _header(headers, b"authorization"), certificate)
        return Caller(
            _who(peer, principal, _header(headers, b"x-operator")),
            principal,
            role,
            # No page of this server sends a request that changes something, so an Origin is always foreign.
            origin is not None or is_foreign(site, origin, host),
        )

    def _identify(
        self, peer: str, authorization: str | None, certificate: Mapping[str, Any] | None
    ) -> tuple[Principal, Role]:
        if self._file is None:
            if self._trusts_certificates:
                principal = principal_of_certificate(certificate)
                return principal, Role.NONE if principal == ANONYMOUS else Role.DESTROY
            return (_THIS_HOST, Role.DESTROY) if is_loopback(peer) else (ANONYMOUS, Role.NONE)
        if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
            return self._of_token(peer, authorization[len(_BEARER) :].strip())
        principal = principal_of_certificate(certificate)
        return principal, self._file.role_of(principal)

    def _of_token(self, peer: str, token: str) -> tuple[Principal, Role]:
        assert self._file is not None
        if wait_s := self._attempts.wait_s(peer):
            raise HttpError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too many wrong tokens came from this address",
                {"Retry-After": str(int(wait_s) + 1)},
            )
        found = self._file.of_token(token)
        if found is None:
            self._attempts.failed(peer)
            raise HttpError(
                HTTPStatus.UNAUTHORIZED,
                "this token is not known",
                {"WWW-Authenticate": 'Bearer realm="bookkeeper", error="invalid_token"'},
            )
        return found


def _header(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> str | None:
    found = [value for key, value in headers if key == name]
    if len(found) > 1:
        # A proxy before this server may have looked at another one.
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the header {name.decode()} came {len(found)} times")
    return found[0].decode("latin-1") if found else None


def _who(peer: str, principal: Principal, operator: str | None) -> str:
    """Return the sender for the audit log: the peer, its principal, and the name of the operator that it gives."""
    known = "" if principal.kind in ("anonymous", "local") else f" {principal}"
    name = (operator or "")[:OPERATOR_MAX]
    # The rest of a line of the audit log is not the sender's to write.
    name = name.translate(_NO_PARENTHESES)
    said = f" (for {name})" if name.isascii() and name.isprintable() and name else ""
    return f"http:{peer}{known}{said}"
