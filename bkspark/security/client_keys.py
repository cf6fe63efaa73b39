"""The keys of a client's authentication, as Apache's client configuration names them.

`clientAuthProviderFactoryClass` turns it on. `saslJaasConfig` names the JAAS file, which connections to ZooKeeper use,
too. The other keys are an error without the first, because the user who set them believes that they have an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bkspark.client_files import OFF, flag, options_of, read_keys
from bkspark.errors import ConfigurationError
from bkspark.security.sasl import (
    CLIENT_SECTION,
    FILE_KEY,
    FILE_VARIABLE,
    SYSTEM_SECTION,
    SaslClientOptions,
)

PROVIDER = "clientAuthProviderFactoryClass"
PROVIDER_CLASS = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
"""The value of `clientAuthProviderFactoryClass` that turns SASL on, in Apache's clients as here."""
ROLE = "clientRole"
ROLES = ("standard", "system")
_CLIENT, _SYSTEM = "saslJaasClientSectionName", "saslJaasAuditorSectionName"
ALLOW_DISABLED = "allowAuthDisabled"


def provider(text: str) -> bool:
    """Return whether a value of `clientAuthProviderFactoryClass` turns SASL on. Raises ValueError."""
    if text.lower() not in OFF and text != PROVIDER_CLASS:
        raise ValueError(f"it must be {PROVIDER_CLASS}, or empty for no authentication")
    return text.lower() not in OFF


def _role(text: str) -> str:
    if text not in ROLES:
        raise ValueError(f"it must be one of {', '.join(ROLES)}")
    return text


FIELDS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    PROVIDER: (provider, f"{PROVIDER_CLASS} turns SASL on"),
    FILE_KEY: (str, f"the JAAS file; default: {FILE_VARIABLE}"),
    ROLE: (_role, f"section of the JAAS file: standard {CLIENT_SECTION}, system {SYSTEM_SECTION}"),
    _CLIENT: (str, f"section of clients in place of {CLIENT_SECTION}"),
    _SYSTEM: (str, f"section of clients with the role system in place of {SYSTEM_SECTION}"),
    ALLOW_DISABLED: (flag, "use bookies without authentication, too"),
}
"""By key: how its text is parsed, and what it means."""


def parse(key: str, text: str) -> Any:
    """Return the value of a key of `FIELDS`. Raises ValueError."""
    return FIELDS[key][0](text)


def client_sasl(parsed: Mapping[str, Any], *, shown: str = "{}") -> SaslClientOptions | None:
    """Return the options of values that `parse` returned, by key; None: the client does not authenticate.

    Args:
        shown: how messages show a key.

    Raises:
        ConfigurationError: a key has no effect without another.
    """
    if not parsed.get(PROVIDER):
        others = [key for key in parsed if key not in (PROVIDER, FILE_KEY)]
        if others:
            raise ConfigurationError(
                f"{shown.format(others[0])} has no effect without {PROVIDER}={PROVIDER_CLASS}, which turns "
                "authentication on: set that, too"
            )
        return None
    is_system = parsed.get(ROLE) == "system"
    section = parsed.get(_SYSTEM, SYSTEM_SECTION) if is_system else parsed.get(_CLIENT, CLIENT_SECTION)
    return SaslClientOptions(parsed.get(FILE_KEY), section, parsed.get(ALLOW_DISABLED, False))


def read_client_sasl(path: str) -> SaslClientOptions | None:
    """Return the authentication options in a client's configuration file; other keys are ignored.

    Raises:
        ConfigurationError: the file cannot be read or understood, or as `client_sasl`.
    """
    given = read_keys(path, FIELDS)
    return options_of({key: given[key] for key in FIELDS if key in given}, parse, client_sasl, where=f"{path}: ")
