"""The keys of authentication: Apache's, and ours for what Apache's bookies lack."""

from __future__ import annotations

import re

from bkspark.security.client_keys import ALLOW_DISABLED, PROVIDER, PROVIDER_CLASS, provider
from bkspark.security.sasl import (
    ALLOWED_IDS_DEFAULT,
    BOOKIE_SECTION,
    FILE_KEY,
    FILE_VARIABLE,
    SYSTEM_SECTION,
    SaslClientOptions,
    SaslServerOptions,
)
from bookie_service.network.authentication import ListenerAuthenticationOptions
from bookie_service.network.tls_handshakes import ListenerTlsOptions
from bookie_service.settings.table import fill
from bookie_service.settings.values import FALSE, NULL, Values, refused

KEY = "bookieAuthProviderFactoryClass"
SASL_CLASS = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
ROLES_CLASS = "org.apache.bookkeeper.tls.BookieAuthZFactory"


def listener_authentication(keys: Values, tls: ListenerTlsOptions | None) -> ListenerAuthenticationOptions | None:
    """Return the options of the bookie's port; None: every client is served.

    Raises:
        ConfigurationError: a value is not usable, or a key needs another one that is not set.
    """
    chosen = keys.text(KEY, default="no authentication") or NULL
    sasl = SaslServerOptions(
        _jaas_config(keys),
        keys.text("saslJaasBookieSectionName", default=BOOKIE_SECTION) or BOOKIE_SECTION,
        keys.parsed("saslJaasClientAllowedIds", _regular_expression, default=ALLOWED_IDS_DEFAULT)
        or ALLOWED_IDS_DEFAULT,
    )
    roles = tuple(name for name in keys.names("authorizedRoles") if name != NULL)
    shows_certificates = tls is not None and tls.tls.client_authentication
    is_off = chosen.lower() in (NULL, *FALSE)
    if not is_off and chosen not in (SASL_CLASS, ROLES_CLASS):
        raise keys.refused(KEY, chosen, f"it must be {SASL_CLASS} or {ROLES_CLASS}, or empty for no authentication")
    options = fill(
        keys,
        ListenerAuthenticationOptions,
        sasl=sasl if chosen == SASL_CLASS else None,
        roles=roles if chosen == ROLES_CLASS else (),
    )
    if chosen == ROLES_CLASS:
        if not roles:
            raise keys.refused(KEY, chosen, "it needs authorizedRoles, the roles that are served")
        if not shows_certificates:
            raise keys.refused(KEY, chosen, "roles are in certificates: it needs TLS with tlsClientAuthentication=true")
    elif roles:
        raise keys.refused("authorizedRoles", ",".join(roles), f"there are no roles without {KEY}={ROLES_CLASS}")
    if is_off and options.required and not shows_certificates:
        raise refused(
            "authenticationRequired",
            "true",
            f"nothing authenticates clients: set {KEY}, or TLS with tlsClientAuthentication=true",
        )
    return None if is_off and not options.required else options


def client_authentication(keys: Values) -> SaslClientOptions | None:
    """Return the options of the client inside the bookie, for autorecovery; None: it does not authenticate."""
    is_on = keys.parsed(PROVIDER, provider, default="no authentication, for autorecovery") or False
    section = keys.text("saslJaasAuditorSectionName", default=SYSTEM_SECTION) or SYSTEM_SECTION
    allow_disabled = keys.flag(ALLOW_DISABLED, False, "autorecovery uses bookies without authentication, too")
    return SaslClientOptions(_jaas_config(keys), section, allow_disabled) if is_on else None


def note_missing_client(keys: Values, has_client: bool) -> None:
    """Note that autorecovery in a bookie with SASL cannot use bookies like this one, if it does not authenticate."""
    if not has_client:
        keys.note(KEY, SASL_CLASS, f"autorecovery does not authenticate: set {PROVIDER}={PROVIDER_CLASS}, too")


def _jaas_config(keys: Values) -> str | None:
    return keys.text(FILE_KEY, default=f"what {FILE_VARIABLE} names")


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"it must be a regular expression: {error}") from None
    return text
