"""Key stores and trust stores: PEM, PKCS12, and JKS files that are PKCS12 in truth.

The first bytes of a file show its format, as in Java, where keytool writes PKCS12 under the name JKS: `30` is PKCS12,
`FE ED FE ED` is JKS, "-----BEGIN" is PEM. No maintained library reads real JKS: it is refused, and the message has the
keytool command that converts it. PKCS12 needs the package `cryptography` (`pip install bkspark[tls]`).

Errors name the file and the key or option that names it, and never show the file's contents.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from bkspark.errors import ConfigurationError
from bkspark.secret_files import read_file
from bkspark.tls.options import StoreType, TlsOptions

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

STORE_BYTES_MAX = 16 * 1024 * 1024
"""Largest file of a store: a larger one cannot be a key or certificates."""
_JKS = b"\xfe\xed\xfe\xed"
_CERTIFICATES = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_BEGIN = b"-----BEGIN CERTIFICATE-----"
_BEGINS_LINE = re.compile(rb"^" + _BEGIN, re.MULTILINE)


def use_own_certificate(context: ssl.SSLContext, options: TlsOptions) -> None:
    """Load the key and the certificate chain of the key store into a context.

    Raises:
        ConfigurationError: a file cannot be read, a password is wrong, key and certificate do not fit each other, or
            the certificate is expired or not valid yet.
    """
    path = options.key_store
    if path is None:
        raise ConfigurationError("tlsKeyStore is missing: name the key store, or with PEM the file of the private key")
    content = read_file(path, f"tlsKeyStore={path}", STORE_BYTES_MAX)
    password = _password(options.key_store_password_path, "tlsKeyStorePasswordPath")
    kind = _kind_of(content, path, "tlsKeyStore", options.key_store_type)
    if kind is StoreType.PKCS12:
        key, chain = _open_pkcs12(content, path, "tlsKeyStore", password.strip(), options.key_store_password_path)
        _check_validity(chain, path)
        with memory_file(key + chain) as name:
            _load_pair(context, name, None, [b""], path, None)
        return
    chain_path = options.certificate_path
    if chain_path is None:
        raise ConfigurationError("tlsCertificatePath is missing: with PEM it names the file of the certificate chain")
    chain = read_file(chain_path, f"tlsCertificatePath={chain_path}", STORE_BYTES_MAX)
    if not _certificates(chain, f"tlsCertificatePath={chain_path}"):
        raise ConfigurationError(f"tlsCertificatePath={chain_path}: the file has no PEM certificate")
    _check_validity(chain, chain_path)
    # Apache's bookies take the whole file as the password; an editor's last line break is left out here if need be.
    passwords = list(dict.fromkeys([password, password.rstrip(b"\r\n")]))
    _load_pair(context, chain_path, path, passwords, path, options.key_store_password_path)


def use_trusted_certificates(context: ssl.SSLContext, options: TlsOptions) -> None:
    """Load the certificates of the trust store into a context, as the only ones that it trusts.

    Raises:
        ConfigurationError: the file cannot be read, the password is wrong, or it has no certificate.
    """
    path = options.trust_store
    if path is None:
        raise ConfigurationError("tlsTrustStore is missing: name the file with the certificates that are trusted")
    content = read_file(path, f"tlsTrustStore={path}", STORE_BYTES_MAX)
    kind = _kind_of(content, path, "tlsTrustStore", options.trust_store_type)
    if kind is StoreType.PKCS12:
        password = _password(options.trust_store_password_path, "tlsTrustStorePasswordPath")
        _, content = _open_pkcs12(content, path, "tlsTrustStore", password.strip(), options.trust_store_password_path)
    certificates = _certificates(content, f"tlsTrustStore={path}")
    if not certificates:
        raise ConfigurationError(f"tlsTrustStore={path}: the file has no certificate")
    try:
        context.load_verify_locations(cadata=b"\n".join(certificates).decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"tlsTrustStore={path}: a certificate cannot be read ({_reason(error)})") from None
    # A trusted certificate is an anchor even if it is not a CA's, as in Java.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


@contextlib.contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """Yield the name of a temporary file that only this user can read, in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("bkspark-key", os.MFD_CLOEXEC)
        try:
            os.write(handle, content)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    # Its mode is 0600, and it is removed at the end.
    with tempfile.NamedTemporaryFile(prefix="bkspark-") as file:
        file.write(content)
        file.flush()
        yield file.name


def files_of(options: TlsOptions) -> list[str]:
    """Return the names of all files that the options name."""
    named = (
        options.key_store,
        options.certificate_path,
        options.key_store_password_path,
        options.trust_store,
        options.trust_store_password_path,
    )
    return [name for name in named if name is not None]


def _certificates(content: bytes, shown: str) -> list[bytes]:
    """Return the PEM certificates in a file.

    Raises:
        ConfigurationError: it ends within a further certificate: it is still being written, or was cut.
    """
    found = list(_CERTIFICATES.finditer(content))
    rest = content[found[-1].end() :] if found else b""
    last_line = rest[rest.rfind(b"\n") + 1 :]
    if _BEGINS_LINE.search(rest) or (last_line and _BEGIN.startswith(last_line)):
        raise ConfigurationError(f"{shown}: the file ends within a certificate")
    return [each.group() for each in found]


def _load_pair(
    context: ssl.SSLContext,
    chain_path: str,
    key_path: str | None,
    passwords: list[bytes],
    shown: str,
    password_path: str | None,
) -> None:
    for index, password in enumerate(passwords, 1):
        try:
            # A function, even for no password: OpenSSL would ask on the terminal.
            context.load_cert_chain(chain_path, key_path, password=lambda password=password: password)
            return
        except (ssl.SSLError, OSError, ValueError) as error:
            if index == len(passwords):
                raise ConfigurationError(
                    f"tlsKeyStore={shown}: key and certificate cannot be used ({_reason(error)}). The key must be "
                    "readable with the password in tlsKeyStorePasswordPath, and fit the first certificate"
                    f"{_if_missing(password_path)}"
                ) from None


def _kind_of(content: bytes, path: str, key: str, declared: StoreType | None) -> StoreType:
    """Return PEM or PKCS12."""
    if content.startswith(_JKS):
        raise ConfigurationError(
            f"{key}={path}: this is a JKS store, which cannot be read here. Convert it: keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {Path(path).with_suffix('.p12')} -deststoretype pkcs12"
        )
    is_pem = b"-----BEGIN " in content
    if not is_pem and not content.startswith(b"\x30"):
        raise ConfigurationError(f"{key}={path}: the file is not PEM, PKCS12 or JKS")
    found = StoreType.PEM if is_pem else StoreType.PKCS12
    if declared is not None and (declared is StoreType.PEM) != is_pem:
        raise ConfigurationError(f"{key}={path}: the file is {found.value}, and {key}Type says {declared.value}")
    return found


def _open_pkcs12(
    content: bytes, path: str, key: str, password: bytes, password_path: str | None
) -> tuple[bytes, bytes]:
    """Return the private key and the certificates as PEM, the key's own certificate first; b"" for no key."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise ConfigurationError(
            f"{key}={path}: PKCS12 needs the package cryptography: pip install 'bkspark[tls]', or use PEM"
        ) from None
    try:
        store = pkcs12.load_pkcs12(content, password or None)
    except ValueError:
        raise ConfigurationError(
            f"{key}={path}: the store cannot be opened with the password in {key}PasswordPath, or is damaged"
            f"{_if_missing(password_path)}"
        ) from None
    certificates = [each.certificate for each in (store.cert, *store.additional_certs) if each is not None]
    pem_key = b""
    if key == "tlsKeyStore":
        if store.key is None or store.cert is None:
            raise ConfigurationError(f"{key}={path}: the store has no private key with its certificate")
        certificates = _chain(certificates)
        pem_key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem_key, b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def _chain(certificates: list[Certificate]) -> list[Certificate]:
    """Return the first certificate, and after each one that of its issuer, as far as there are.

    A store may have certificates of other keys, too, which are not for the peers of this one.
    """
    chain, others = certificates[:1], certificates[1:]
    while issuers := [each for each in others if _has_issued(each, chain[-1])]:
        chain.append(issuers[0])
        others.remove(issuers[0])
    return chain


def _has_issued(issuer: Certificate, certificate: Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, ValueError):
        return False
    except UnsupportedAlgorithm:
        # The names are right. The peer decides whether it accepts the signature.
        return True
    return True


def _password(path: str | None, key: str) -> bytes:
    """Return the content of a password file. Without one the password is empty, as in Apache's bookies."""
    return b"" if path is None or not os.path.exists(path) else read_file(path, f"{key}={path}")


def _if_missing(path: str | None) -> str:
    """Return the end of a message if a password file is missing. It does not show the name, which may be the password
    itself by mistake."""
    if path is None or os.path.exists(path):
        return ""
    return ". There is no file of the name that is set there, so the password is empty: name a file that holds it"


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        # Without a reason there is only OpenSSL's name of the place.
        return str(error.reason).lower().replace("_", " ") if error.reason else "OpenSSL cannot read it"
    return getattr(error, "strerror", None) or type(error).__name__


# ---- validity ----


def _check_validity(chain: bytes, path: str) -> None:
    """Raise ConfigurationError if the first certificate is expired or not valid yet."""
    match = _CERTIFICATES.search(chain)
    assert match is not None
    try:
        der = ssl.PEM_cert_to_DER_cert(match[0].decode("ascii", "replace"))
    except ValueError:
        _not_a_certificate(path)
    begin, end = validity(der, path)
    now = datetime.now(UTC)
    if not begin <= now <= end:
        raise ConfigurationError(
            f"the certificate in {path} is not valid: it is valid from {begin:%Y-%m-%d %H:%M:%S} to "
            f"{end:%Y-%m-%d %H:%M:%S} UTC, and it is {now:%Y-%m-%d %H:%M:%S}"
        )


def validity(der: bytes, path: str) -> tuple[datetime, datetime]:
    """Return from when to when an X.509 certificate is valid.

    Raises:
        ConfigurationError: it is not a certificate.
    """
    try:
        at, _, _ = _element(der, 0)  # Certificate
        at, _, _ = _element(der, at)  # its body
        _, end, tag = _element(der, at)
        if tag == 0xA0:  # the version, which version 1 lacks
            at = end
        for _ in range(3):  # serial number, signature algorithm, issuer
            _, at, _ = _element(der, at)
        at, _, _ = _element(der, at)
        begin_at, end, begin_tag = _element(der, at)
        until_at, until_end, until_tag = _element(der, end)
        return _time(der[begin_at:end], begin_tag), _time(der[until_at:until_end], until_tag)
    except (IndexError, ValueError):
        _not_a_certificate(path)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return where the content of a DER element begins and ends, and its tag."""
    tag, size, start = der[at], der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + size > len(der):
        raise ValueError
    return start, start + size, tag


def _time(text: bytes, tag: int) -> datetime:
    digits = text.decode("ascii")
    if tag == 0x17:  # UTCTime has two digits of the year: 50 is 1950
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _not_a_certificate(path: str) -> NoReturn:
    raise ConfigurationError(f"{path}: its first certificate cannot be read") from None
