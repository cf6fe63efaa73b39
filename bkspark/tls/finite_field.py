"""The group of suites with ephemeral Diffie-Hellman over a finite field (`TLS_DHE_...`), which a server chooses.

Java's servers have such a group by default. OpenSSL's serve these suites only after one was given to them.
"""

from __future__ import annotations

FFDHE2048 = b"""-----BEGIN DH PARAMETERS-----
MIIBCAKCAQEA//////////+t+FRYortKmq/cViAnPTzx2LnFg84tNpWp4TZBFGQz
+8yTnc4kmz75fS/jY2MMddj2gbICrsRhetPfHtXV/WVhJDP1H18GbtCFY2VVPe0a
87VXE15/V8k1mE8McODmi3fipona8+/och3xWKE2rec1MKzKT0g6eXq8CrGCsyT7
YdEIqUuyyOP7uWrat2DX9GgdT0Kj3jlN9K5W7edjcrsZCwenyO4KbXCeAvzhzffi
7MA0BM0oNC9hkXL+nOmFg/+OTxIy7vKBg8P+OxtMb61zO7X8vC7CIAXFjvGDfRaD
ssbzSibBsu/6iGtCOGEoXJf//////////wIBAg==
-----END DH PARAMETERS-----
"""
"""The group of 2048 bits of RFC 7919, appendix A.1, which Java's servers have, too."""


def has_finite_field(ciphers: str) -> bool:
    """Return whether one of OpenSSL's suites, with ":" between them, needs a group."""
    return any(suite.startswith("DHE-") for suite in ciphers.split(":"))
