"""The keys of TLS: Apache's, and ours for what Apache's bookies lack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bkspark.errors import ConfigurationError
from bkspark.options import default_of
from bkspark.tls.names import check_cipher_suites, check_protocols, served_protocols, served_suites
from bkspark.tls.options import FACTORY_CLASS, StoreType, TlsOptions
from bookie_service.network.tls_handshakes import ListenerTlsOptions
from bookie_service.settings.table import fill
from bookie_service.settings.values import FALSE, NULL, Values, refused

_PROVIDERS = ("openssl", "jdk")


def listener_tls(keys: Values) -> ListenerTlsOptions | None:
    """Return the options of the bookie's port; None: it has no TLS.

    Raises:
        ConfigurationError: a value is not usable, or a key needs TLS that is not turned on. A missing key store is
            found when it is used, because a program that is only a client needs none.
    """
    is_on = _is_on(keys)
    _note_provider(keys)
    own = _tls(keys, "tls")
    listener = fill(keys, ListenerTlsOptions)
    if not is_on:
        if listener.required:
            raise refused("tlsRequired", "true", f"there is no TLS without tlsProviderFactoryClass={FACTORY_CLASS}")
        if own["client_authentication"]:
            # Apache's own example configuration has this combination.
            keys.note(
                "tlsClientAuthentication", "true", "no certificate is asked for: tlsProviderFactoryClass is not set"
            )
        return None
    _check_lists(keys)
    _note_left_out(keys, "tlsEnabledProtocols", served_protocols)
    _note_left_out(keys, "tlsEnabledCipherSuites", served_suites)
    return replace(listener, tls=TlsOptions(**own))


def client_tls(keys: Values) -> TlsOptions | None:
    """Return the options of the client inside the bookie, for autorecovery; None: it connects without TLS.

    Its stores are those of the `client...` keys, or the bookie's if these are not set. Without any trust store it would
    trust no bookie, which is an error only if autorecovery runs.
    """
    found = _tls(keys, "client")
    if not _is_on(keys):
        return None
    _check_lists(keys)
    return TlsOptions(**found)


def http_tls(keys: Values, *, has_access_file: bool) -> TlsOptions | None:
    """Return the options of the HTTP server; None: plain HTTP.

    A store or certificate without a key of its own is that of the bookie's port. With a trust store clients may present
    certificates, and must if no access file gives other credentials, as with Apache's bookies.

    Raises:
        ConfigurationError: a value is not usable, or a password is in the configuration itself.
    """
    is_on = keys.flag("httpServerTlsEnable", False, "serve HTTP inside TLS")
    own = _tls(keys, "tls")
    for password in ("httpServerKeyStorePassword", "httpServerTrustStorePassword"):
        if keys.text(password, default="read from a file") and is_on:
            raise refused(password, "", f"write the password into a file, and name that file by {password}Path")
    found = {field: keys.text(key, default=f"that of {of}") for field, key, of in _HTTP_STORES}
    if not is_on:
        return None
    has_own_store, has_own_trust = found["key_store"] is not None, found["trust_store"] is not None
    if has_own_store:
        own |= {"key_store_type": None, "key_store_password_path": None, "certificate_path": None}
    if has_own_trust:
        own |= {"trust_store_type": None, "trust_store_password_path": None}
    own |= {field: path for field, path in found.items() if path is not None}
    trusts = own["trust_store"] is not None
    own |= {"client_authentication": trusts, "optional_certificate": trusts and has_access_file}
    return TlsOptions(**own)


_HTTP_STORES = (
    ("key_store", "httpServerKeyStorePath", "tlsKeyStore"),
    ("certificate_path", "httpServerCertificatePath", "tlsCertificatePath"),
    ("key_store_password_path", "httpServerKeyStorePasswordPath", "tlsKeyStorePasswordPath"),
    ("trust_store", "httpServerTrustStorePath", "tlsTrustStore"),
    ("trust_store_password_path", "httpServerTrustStorePasswordPath", "tlsTrustStorePasswordPath"),
)
"""A field of `TlsOptions`, its key for HTTP, and the key of the bookie's port that is used if that is not set."""


def in_http_keys(error: ConfigurationError) -> ConfigurationError:
    """Return an error about a file of the HTTP server's TLS, with the keys that name these files."""
    text = str(error)
    for _, key, of in sorted(_HTTP_STORES, key=lambda row: -len(row[2])):
        text = text.replace(f"{of}=", f"{key}=").replace(f"{of} is", f"{key} is").replace(f"in {of}", f"in {key}")
    return ConfigurationError(text)


def _is_on(keys: Values) -> bool:
    name = keys.text("tlsProviderFactoryClass") or NULL
    if name.lower() in (NULL, *FALSE):
        return False
    if name != FACTORY_CLASS:
        raise keys.refused("tlsProviderFactoryClass", name, f"it must be {FACTORY_CLASS}, or empty for no TLS")
    return True


def _tls(keys: Values, prefix: str) -> dict[str, Any]:
    """Return the fields of `TlsOptions`. Without TLS their values are not checked, as in Apache's bookies."""
    refresh_s = round(default_of(TlsOptions, "refresh_s"))
    timeout_s = round(default_of(TlsOptions, "start_tls_timeout_s"))
    return {
        "trust_store": _path(keys, prefix, "TrustStore"),
        "trust_store_type": _store_type(keys, prefix, "TrustStoreType"),
        "trust_store_password_path": _path(keys, prefix, "TrustStorePasswordPath"),
        "key_store": _path(keys, prefix, "KeyStore"),
        "key_store_type": _store_type(keys, prefix, "KeyStoreType"),
        "key_store_password_path": _path(keys, prefix, "KeyStorePasswordPath"),
        "certificate_path": _path(keys, "tls", "CertificatePath"),
        "client_authentication": keys.flag("tlsClientAuthentication", False, "clients must show a certificate"),
        "protocols": served_protocols(keys.names("tlsEnabledProtocols")),
        "cipher_suites": served_suites(keys.names("tlsEnabledCipherSuites")),
        "verify_host_name": keys.flag("tlsHostnameVerificationEnabled", True, "autorecovery checks host names"),
        "start_tls_timeout_s": keys.number(
            "startTLSTimeoutSecs", timeout_s, least=1, most=86_400, unit="s, autorecovery"
        ),
        "refresh_s": max(
            0, keys.number("tlsCertFilesRefreshDurationSeconds", refresh_s, least=-1, unit="s, 0 or less: never")
        ),
    }


def _path(keys: Values, prefix: str, name: str) -> str | None:
    return _of(keys, prefix, name, lambda text: text)


def _store_type(keys: Values, prefix: str, name: str) -> StoreType | None:
    return _of(keys, prefix, name, StoreType.parse, "by the file's first bytes")


def _of(keys: Values, prefix: str, name: str, parse: Any, default: str = "unset") -> Any:
    """Return the value of a key; the client's keys fall back to the bookie's."""
    fallback = f"tls{name}"

    def parsed(text: str) -> Any:
        return None if text.lower() == NULL else parse(text)

    if prefix == "tls":
        return keys.parsed(fallback, parsed, default=default)
    found = keys.parsed(f"{prefix}{name}", parsed, default=f"that of {fallback}")
    return keys.parsed(fallback, parsed, default=default) if found is None else found


def _check_lists(keys: Values) -> None:
    """Raise ConfigurationError for a protocol or cipher suite that is not served."""
    _check_list(keys, "tlsEnabledProtocols", lambda names: check_protocols(served_protocols(names)))
    _check_list(keys, "tlsEnabledCipherSuites", lambda names: check_cipher_suites(served_suites(names)))


def _check_list(keys: Values, key: str, check: Callable[[tuple[str, ...]], None]) -> None:
    text, names = keys.text(key), keys.names(key)
    try:
        if text is not None and not names:
            raise ValueError("it must name at least one, separated by commas")
        check(names)
    except ValueError as error:
        raise keys.refused(key, str(text), keys.without_named(key, str(error))) from None


def _note_left_out(keys: Values, key: str, served_of: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
    given = keys.names(key)
    served = served_of(given)
    if served != given:
        left_out = keys.without_named(key, ", ".join(name for name in given if name not in served))
        keys.note(key, ",".join(given), f"{left_out} is not safe, and not served")


def _note_provider(keys: Values) -> None:
    provider = keys.text("tlsProvider", default="OpenSSL")
    if provider is not None and provider.lower() not in _PROVIDERS:
        # Apache's bookies take any other name for JDK.
        keys.note("tlsProvider", provider, "this bookie has OpenSSL alone")
