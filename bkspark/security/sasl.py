"""SASL for bookies and clients: mechanism and credentials come from a JAAS file.

As in Apache's plugin nothing is negotiated. The login module of a side's section decides: `DigestLoginModule` means
DIGEST-MD5, and `Krb5LoginModule` GSSAPI. Both sides must agree. The sections and their options:

* A bookie, section `Bookie`. DIGEST-MD5: `user_NAME="PASSWORD"` for each user. GSSAPI: `useKeyTab=true keyTab="FILE"
  principal="bookkeeper/HOST@REALM"`.
* A client, section `BookKeeper`, of autorecovery and operators `Auditor`. DIGEST-MD5: `username="NAME"
  password="PASSWORD"`. GSSAPI: a keytab and principal in the same way, or `useTicketCache=true`, `ticketCache="FILE"`.

A changed file is read again and applies to the exchanges that begin afterwards. While it cannot be used, the previous
contents stay in effect.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from bkspark.changed_files import ChangedFiles, Clock, Says
from bkspark.errors import ConfigurationError
from bkspark.options import DAY_S, bounded, check
from bkspark.security import jaas
from bkspark.security.digest_md5 import DIGEST_URI, DigestClient, DigestServer
from bkspark.security.kerberos import SERVICE, GssapiServer, KerberosClientLogin, KerberosServerLogin
from bkspark.security.mechanism import ClientExchange, SaslFailure, ServerExchange
from bkspark.security.principal import Principal

logger = logging.getLogger(__name__)

JAAS_REFRESH_S = 1.0
"""An exchange finds a changed JAAS file at the latest this long after the change."""
FILE_VARIABLE = "BKSPARK_JAAS"
"""The environment variable with the name of the JAAS file, where no option names it."""
FILE_KEY = "saslJaasConfig"
ALLOWED_IDS_DEFAULT = ".*bookkeeper.*"
BOOKIE_SECTION, CLIENT_SECTION, SYSTEM_SECTION = "Bookie", "BookKeeper", "Auditor"
_DIGEST, _KERBEROS = "DigestLoginModule", "Krb5LoginModule"
_USER = "user_"
_SAYS = Says("SASL continues with the users that it has", "SASL uses the changed JAAS file for new connections")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SaslServerOptions:
    """SASL of a bookie.

    jaas_config: the JAAS file; None: BKSPARK_JAAS names it. section: the bookie's in it.
    allowed_ids: a regular expression; a client is served whose whole user name, or Kerberos principal, matches it.
    """

    jaas_config: str | None = None
    section: str = BOOKIE_SECTION
    allowed_ids: str = ALLOWED_IDS_DEFAULT

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class SaslClientOptions:
    """SASL of a client. It contains names of files, never secrets; each process reads the files itself.

    jaas_config: the JAAS file; None: BKSPARK_JAAS names it. section: the client's in it.
    allow_auth_disabled: a bookie without authentication is used, too. A man in the middle can pretend to be one.
    timeout_s: how long an exchange may take.
    """

    jaas_config: str | None = None
    section: str = CLIENT_SECTION
    allow_auth_disabled: bool = False
    timeout_s: float = bounded(10.0, 0.001, DAY_S, "seconds")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class _ServerCredentials:
    """The key of GSSAPI, or the passwords of DIGEST-MD5, by user."""

    kerberos: KerberosServerLogin | None = None
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _ClientCredentials:
    """The login of GSSAPI, or user and password of DIGEST-MD5."""

    kerberos: KerberosClientLogin | None = None
    user: str = ""
    password: str = field(default="", repr=False)


class SaslServer:
    """A bookie's credentials, and new exchanges."""

    def __init__(self, options: SaslServerOptions, clock: Clock = time.monotonic) -> None:
        """Read the JAAS file, and the keytab that it names. Raises ConfigurationError: they cannot be used."""
        try:
            self._allowed = re.compile(options.allowed_ids)
            """Which users may log in (`saslJaasClientAllowedIds`). Constant."""
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigurationError(
                f"saslJaasClientAllowedIds={options.allowed_ids:.200}: it is not a regular expression: {error}"
            ) from None
        self._decoy = secrets.token_hex(16)
        """The password of users that do not exist: a wrong user is refused as late as a wrong password. Constant."""
        path = _path(options.jaas_config)
        self._credentials = _changing(path, partial(_server_credentials, path, options.section), clock)

    def begin(self) -> ServerExchange:
        """Return a new exchange."""
        credentials = self._credentials.current()
        if credentials.kerberos is not None:
            return _KerberosExchange(credentials.kerberos.begin(self._is_allowed))
        return _DigestExchange(DigestServer(credentials.passwords, secrets.token_hex(16), self._decoy), self._allowed)

    def _is_allowed(self, name: str) -> bool:
        return self._allowed.fullmatch(name) is not None


def _server_credentials(path: str, section: str) -> _ServerCredentials:
    module = _module(path, section)
    if _is(module, _KERBEROS):
        return _ServerCredentials(KerberosServerLogin(_keytab(module), module.options.get("principal")))
    passwords = {key.removeprefix(_USER): password for key, password in module.options.items() if key.startswith(_USER)}
    if not passwords:
        raise ConfigurationError(f'section {section!r} of the JAAS file has no users: add user_NAME="PASSWORD"')
    open_to_all = [user for user, password in passwords.items() if not password]
    if open_to_all:
        raise ConfigurationError(
            f"user {open_to_all[0]!r:.80} in section {section!r:.80} of the JAAS file has an empty password, so "
            "everyone could log in: give it a password, or remove it"
        )
    return _ServerCredentials(passwords=passwords)


class _DigestExchange:
    def __init__(self, server: DigestServer, allowed: re.Pattern[str]) -> None:
        self._server = server
        self._allowed = allowed
        """Which users may log in."""
        self.principal: Principal | None = None
        """The user that has logged in; None: no login yet. Set once."""

    def step(self, message: bytes) -> bytes:
        answer = self._server.step(message)
        user = self._server.user
        if user is not None:
            if self._allowed.fullmatch(user) is None:
                raise SaslFailure(f"{user!r:.100} is not one of saslJaasClientAllowedIds")
            self.principal = Principal(user, "digest")
        return answer


class _KerberosExchange:
    def __init__(self, server: GssapiServer) -> None:
        self._server = server
        self.principal: Principal | None = None
        """The user that has logged in; None: no login yet. Set once."""

    def step(self, message: bytes) -> bytes | None:
        answer = self._server.step(message)
        if self._server.user is not None:
            self.principal = Principal(self._server.user, "kerberos")
        return answer


class SaslClient:
    """A client's credentials, and new exchanges."""

    def __init__(
        self,
        options: SaslClientOptions,
        service: str = SERVICE,
        digest_uri: str = DIGEST_URI,
        clock: Clock = time.monotonic,
    ) -> None:
        """Read the JAAS file. Raises ConfigurationError: it cannot be used.

        Args:
            service: the first part of the servers' Kerberos principals.
            digest_uri: the service and its host in DIGEST-MD5.
        """
        self.options = options
        self._service = service
        self._digest_uri = digest_uri
        path = _path(options.jaas_config)
        self._credentials = _changing(path, partial(_client_credentials, path, options.section), clock)

    @property
    def may_block(self) -> bool:
        """Whether steps of an exchange may query a server over the network, so that they need a thread."""
        return self._credentials.current().kerberos is not None

    def begin(self, host: str) -> ClientExchange:
        """Return a new exchange with the bookie on a host."""
        credentials = self._credentials.current()
        if credentials.kerberos is not None:
            return credentials.kerberos.begin(host, self._service)
        return DigestClient(credentials.user, credentials.password, secrets.token_hex(16), self._digest_uri)


def _client_credentials(path: str, section: str) -> _ClientCredentials:
    module = _module(path, section)
    given = module.options
    if _is(module, _KERBEROS):
        login = KerberosClientLogin(_keytab(module), given.get("principal"), given.get("ticketCache"))
        return _ClientCredentials(login)
    if not given.get("username") or "password" not in given:
        raise ConfigurationError(f"section {section!r} of the JAAS file needs username and password for DIGEST-MD5")
    return _ClientCredentials(user=given["username"], password=given["password"])


def _changing(path: str, read: Callable[[], T], clock: Clock) -> ChangedFiles[T]:
    return ChangedFiles([path], read, JAAS_REFRESH_S, _SAYS, logger, clock)


def sections_of(path: str) -> Mapping[str, tuple[jaas.LoginModule, ...]]:
    """Return the sections of a JAAS file. Raises ConfigurationError: it cannot be read, or understood."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                raise ConfigurationError(
                    f"the JAAS file {path} is refused: every user of this host can change it: run chmod o-w {path}"
                )
            return jaas.parse(file.read(jaas.FILE_CHARS_MAX + 1), _java_properties())
    except OSError as error:
        raise ConfigurationError(
            f"the JAAS file {path} cannot be read: {error.strerror}. Name a file that this process can read"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the JAAS file {path} is not UTF-8") from None
    except jaas.JaasError as error:
        raise ConfigurationError(f"the JAAS file {path} is not understood: {error}") from None


def _java_properties() -> dict[str, str]:
    """Return the properties of Java's that every process has: values of a JAAS file may name them."""
    return {"user.home": os.path.expanduser("~"), "file.separator": os.sep}


def _path(named: str | None) -> str:
    """Return the name of the JAAS file. Raises ConfigurationError: nothing names it."""
    path = named or os.environ.get(FILE_VARIABLE)
    if not path:
        raise ConfigurationError(f"SASL needs a JAAS file: name it by {FILE_KEY}, or by {FILE_VARIABLE}")
    return path


def _module(path: str, section: str) -> jaas.LoginModule:
    """Return the login module of a section. Raises ConfigurationError."""
    sections = sections_of(path)
    if section not in sections:
        there = ", ".join(sections) or "none"
        raise ConfigurationError(f"the JAAS file {path} has no section {section!r:.80}; its sections: {there:.300}")
    modules = [module for module in sections[section] if _is(module, _DIGEST) or _is(module, _KERBEROS)]
    if len(modules) != 1:
        raise ConfigurationError(
            f"section {section!r:.80} of the JAAS file {path} must have one login module, {_DIGEST} or {_KERBEROS}"
        )
    return modules[0]


def _is(module: jaas.LoginModule, name: str) -> bool:
    return module.class_name.rpartition(".")[2] == name


def _keytab(module: jaas.LoginModule) -> str | None:
    if module.options.get("useKeyTab", "false").lower() != "true":
        return None
    # Java's name of the file may be a URL.
    return module.options.get("keyTab", "").removeprefix("file:").removeprefix("FILE:") or None
