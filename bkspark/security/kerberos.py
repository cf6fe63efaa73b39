"""GSSAPI (RFC 4752) with Kerberos, both sides, by the package `gssapi` and MIT Kerberos: extra `kerberos`.

After Kerberos's own messages the bookie sends, wrapped, which layers it offers and the size of its buffer; the client
answers, wrapped, with its choice and the name to act under. Both choose no layer: what follows is not encrypted by
Kerberos, but by TLS where there is TLS. The last message has no answer, as in Apache's bookies.

A step of the client may ask the key distribution center over the network: call it on a thread. A step of the bookie
reads its keytab and a replay cache, which are local files.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import Any

from bkspark.errors import ConfigurationError
from bkspark.extras import explain
from bkspark.security.mechanism import SaslFailure

SERVICE = "bookkeeper"
MESSAGE_BYTES_MAX = 60 * 1024
"""A ticket with the groups of a large directory has some ten KiB."""
_NO_LAYER = 1
_LAYERS = struct.Struct(">I")


def _library() -> Any:
    """Import the package. Raises ConfigurationError if it, or Kerberos's libraries, are not installed."""
    try:
        import gssapi
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"Kerberos needs a package: {explain(error) or error}") from None
    except ImportError as error:
        raise ConfigurationError(f"Kerberos cannot be used: {error}") from None
    return gssapi


class KerberosServerLogin:
    """The keys of a bookie."""

    def __init__(self, keytab: str | None, principal: str | None) -> None:
        """Read the keys of a principal; without a principal, all keys of the keytab; without a keytab, the system's.

        Raises:
            ConfigurationError: there are none, or the package is missing.
        """
        self._gssapi = gssapi = _library()
        """The package, which is optional and loaded late."""
        store = None if keytab is None else {"keytab": keytab}
        try:
            name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
            self._credentials = gssapi.Credentials(name=name, usage="accept", store=store)
        except gssapi.exceptions.GSSError as error:
            raise ConfigurationError(
                f"the keys of {principal or 'a principal'} cannot be used: {_why(error)}"
            ) from None

    def begin(self, is_allowed: Callable[[str], bool]) -> GssapiServer:
        """Return a new exchange."""
        return GssapiServer(self._gssapi, self._credentials, is_allowed)


class GssapiServer:
    """A bookie's side of one exchange."""

    def __init__(self, gssapi: Any, credentials: Any, is_allowed: Callable[[str], bool]) -> None:
        self._gssapi = gssapi
        """The package, which is optional and loaded late."""
        self._context = gssapi.SecurityContext(creds=credentials, usage="accept")
        self._is_allowed = is_allowed
        """Returns whether a principal may log in."""
        self._has_offered = False
        """Whether the server has offered its layers. Set once."""
        self.user: str | None = None
        """The Kerberos principal of the client, once the exchange is complete."""

    def step(self, message: bytes) -> bytes | None:
        """Return the answer to a message, None: the exchange is complete. Raises SaslFailure."""
        if len(message) > MESSAGE_BYTES_MAX:
            raise SaslFailure(f"a message of GSSAPI has {len(message)} bytes, more than {MESSAGE_BYTES_MAX}")
        try:
            return self._step(message)
        except self._gssapi.exceptions.GSSError as error:
            raise SaslFailure(_why(error)) from None

    def _step(self, message: bytes) -> bytes | None:
        context = self._context
        if self._has_offered:
            self._complete(context.unwrap(message).message)
            return None
        if not context.complete:
            if not message:
                raise SaslFailure("the first message of GSSAPI holds no ticket")
            token: bytes | None = context.step(message)
            if not context.complete or token:
                return token or b""
            message = b""
        if message:
            raise SaslFailure("the message after Kerberos's own is not empty")
        self._has_offered = True
        offer: bytes = context.wrap(_LAYERS.pack(_NO_LAYER << 24), False).message
        return offer

    def _complete(self, choice: bytes) -> None:
        if len(choice) < _LAYERS.size:
            raise SaslFailure("the client's choice of layers is too short")
        if _LAYERS.unpack_from(choice)[0] >> 24 != _NO_LAYER:
            raise SaslFailure("the client demands a layer of Kerberos, and none was offered")
        user = str(self._context.initiator_name)
        if choice[_LAYERS.size :].decode(errors="replace") not in ("", user):
            raise SaslFailure("the user may not act for another one")
        if not self._is_allowed(user):
            raise SaslFailure(f"{user!r:.100} is not one of saslJaasClientAllowedIds")
        self.user = user


class KerberosClientLogin:
    """The credentials of a client: a ticket, or a key with which it gets one."""

    def __init__(self, keytab: str | None, principal: str | None, cache: str | None) -> None:
        """`keytab`: the file of the principal's key; without it tickets come from a cache of tickets.

        Raises:
            ConfigurationError: the package is missing, or the name cannot be that of a principal.
        """
        self._gssapi = gssapi = _library()
        try:
            self._name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        except gssapi.exceptions.GSSError as error:
            raise ConfigurationError(f"{principal!r:.100} cannot be a principal: {_why(error)}") from None
        self._store: dict[str, str] = {}
        """Where the key or the ticket is; {} means GSSAPI's default. Constant."""
        if keytab is not None:
            # A cache in memory, for this identity alone: the library keeps its ticket fresh.
            identity = hashlib.sha256(f"{keytab}\0{principal}".encode()).hexdigest()[:16]
            self._store = {"client_keytab": keytab, "ccache": f"MEMORY:bkspark-{identity}"}
        elif cache is not None:
            self._store = {"ccache": cache if ":" in cache else f"FILE:{cache}"}

    def begin(self, host: str, service: str = SERVICE) -> GssapiClient:
        """Return a new exchange with the server of a service on a host."""
        return GssapiClient(self._gssapi, self._name, self._store, host, service)


class GssapiClient:
    """A client's side of one exchange."""

    def __init__(self, gssapi: Any, name: Any, store: Mapping[str, str], host: str, service: str) -> None:
        self._gssapi = gssapi
        """The package, which is optional and loaded late."""
        self._name = name
        self._store = store
        """Where the credentials are: a table of files and caches, as the package takes it; empty: its default."""
        self._host = host
        self._service = service
        """The first part of the bookie's principal, `service/host@REALM`."""
        self._context: Any = None
        """The exchange; None before the first message."""
        self.is_complete = False
        """Whether the exchange is complete."""

    def first(self) -> bytes:
        """Return the first message, which holds a ticket for the bookie. Raises SaslFailure."""
        gssapi = self._gssapi
        try:
            credentials = gssapi.Credentials(name=self._name, usage="initiate", store=self._store or None)
            self._context = gssapi.SecurityContext(
                name=gssapi.Name(f"{self._service}@{self._host}", gssapi.NameType.hostbased_service),
                creds=credentials,
                mech=gssapi.MechType.kerberos,
                flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
                usage="initiate",
            )
            token: bytes = self._context.step()
        except gssapi.exceptions.GSSError as error:
            raise SaslFailure(_why(error)) from None
        return token

    def step(self, message: bytes) -> bytes | None:
        """Return the answer to a message. Raises SaslFailure."""
        try:
            return self._step(message)
        except self._gssapi.exceptions.GSSError as error:
            raise SaslFailure(_why(error)) from None

    def _step(self, message: bytes) -> bytes | None:
        context = self._context
        if self.is_complete:
            raise SaslFailure("it continues after the end of the exchange")
        if not context.complete:
            return context.step(message) or b""
        offer: bytes = context.unwrap(message).message
        if len(offer) != _LAYERS.size or not offer[0] & _NO_LAYER:
            raise SaslFailure("it demands a layer of Kerberos")
        self.is_complete = True
        user = str(context.initiator_name)
        answer: bytes = context.wrap(_LAYERS.pack(_NO_LAYER << 24) + user.encode(), False).message
        return answer


def _why(error: Any) -> str:
    """Return the library's reason, in one line."""
    return " ".join(str(error).split())[:300]
