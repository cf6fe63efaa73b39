"""Why TLS failed, in words: without OpenSSL's names and places, and without any text that the peer chose."""

from __future__ import annotations

import re
import ssl

_ALERT = re.compile("(?:sslv3|tlsv1|tlsv13) alert (.+)")
_ABOUT_CERTIFICATES = ("unknown ca", "access denied", "bad certificate hash value")


def why_failed(error: ssl.SSLError, peer: str, own: str) -> str:
    """Return what went wrong.

    Args:
        peer: what the message calls the other side. own: what it calls this side.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{peer}'s certificate is refused: {error.verify_message}"
    words = (error.reason or type(error).__name__).lower().replace("_", " ")
    found = _ALERT.fullmatch(words)
    if found is None:
        return words
    alert = found[1]
    if alert == "certificate required":
        return f"{peer} demands a certificate from {own} ({alert})"
    if "certificate" in alert or alert in _ABOUT_CERTIFICATES:
        return f"{peer} refuses the certificate of {own} ({alert})"
    return f"{peer} refuses TLS with {own} ({alert})"


def why_bookie_refuses(error: ssl.SSLError) -> str:
    """Return why TLS with a bookie failed, for a client: with the options to look at if its certificate is refused."""
    why = why_failed(error, "the bookie", "this client")
    if "certificate" not in why:
        return why
    return f"{why}: tlsKeyStore and tlsCertificatePath name it, tlsClientAuthentication=true shows it"
