"""Every key that is served, given every kind of wrong value: one line with key, value and what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bkspark.errors import ConfigurationError
from bookie_service.settings.configuration import configure, served_settings
from bookie_service.settings.values import Setting

SERVED = served_settings()
NO_NUMBERS = (
    "soon",
    "1.5",
    "1e3",
    "0X10",
    "0b2",
    "12L",
    "1_000",
    "\u0663",
    "1 2",
    "--1",
    "nan",
    "inf",
    "None",
    "10^18",
    "1;2",
    "1\n2",
)
HUGE = (1 << 63, -(1 << 63) - 1, 10**5000)
"""Apache's bookies do not start with these, either: they do not fit into a long."""
NO_FLAGS = ("maybe", "2", "10", "tru", "ture", "yes please", "NaN", "trüe", "true\nfalse")
WRONG_TEXTS = {
    "bookieId": ("a b", "..", "readonly", "a/b", "x" * 5000 + "!"),
    "advertisedAddress": ("a b", "h/i", "h,i", "a]", "a..b", "x" * 64),
    "metadataServiceUri": ("zk", "http://h/ledgers", "zk://", "zk://h", "zk://h:0/l", "zk://h:x/l", "zk+other://h/l"),
    "zkServers": ("h:0", "h:65536", "h:x", "a b", ",", "h:" + "9" * 5000),
    "zkLedgersRootPath": ("ledgers", "/", "//", "/a//b", "/a/../b"),
    "permittedFileGroup": ("no such group", "a,b"),
    "permittedLocalReadUsers": ("no such user", "root,no-such-user"),
    "httpServerHost": ("a b", "h/i"),
    "prometheusStatsHttpAddress": ("a b", "h/i"),
    "logFormat": ("xml", "text json"),
    "logLevel": ("loud", "5"),
    "zkFurtherAcls": ("reader", "sasl:reader", "sasl:reader:x", "world:reader:r", "sasl:anyone", ":reader:r"),
    "zookeeper.ssl.enabledProtocols": ("TLSv1.4", "TLSv1.1", "TLSv1.2,soon"),
    "zookeeper.ssl.ciphersuites": ("TLS_NULL_WITH_NULL_NULL", "HIGH:!aNULL", "a b"),
    **dict.fromkeys(("zookeeper.ssl.keyStore.type", "zookeeper.ssl.trustStore.type"), ("DER", "P12")),
    "zookeeper.clientCnxnSocket": ("Netty", "org.example.ClientCnxnSocketNetty"),
    "ledgerStorageClass": ("Fast", "sortedledgerstorage", "Fast\nStorage"),
    "bookieAuthProviderFactoryClass": ("true", "BookieAuthZFactory", "org.example.Factory", "x" * 5000),
    "clientAuthProviderFactoryClass": ("true", "SASLClientProviderFactory", "org.example.Factory", "x" * 5000),
    "saslJaasClientAllowedIds": ("(", "*", "a{2,1}", "(" * 5000, "a{99999999999}"),
    "tlsProviderFactoryClass": ("true", "tlscontextfactory", "org.example.Factory", "x" * 5000),
    "tlsEnabledProtocols": ("TLSv1.4", "TLSv1.1", "tlsv1.2", "TLSv1.2,soon", "a\nb", ",", "x" * 5000),
    "tlsEnabledCipherSuites": ("TLS_NULL_WITH_NULL_NULL", "HIGH:!aNULL", "a b", "a\nb", " , ", "x" * 5000),
    **dict.fromkeys(
        ("tlsKeyStoreType", "tlsTrustStoreType", "clientKeyStoreType", "clientTrustStoreType"), ("DER", "P12", "P\nEM")
    ),
}
"""Keys with texts of a fixed form; the others take any text, or are checked when the bookie starts."""
CHECKED_AT_START = {
    *("listeningInterface", "journalDirectory", "passwd", "permittedStartupUsers", "statsProviderClass", "tlsProvider"),
    *("tlsCertificatePath", "tlsKeyStore", "tlsKeyStorePasswordPath", "tlsTrustStore", "tlsTrustStorePasswordPath"),
    *(
        "authorizationRulesFile",
        "authorizedRoles",
        "saslJaasConfig",
        "saslJaasBookieSectionName",
        "saslJaasAuditorSectionName",
    ),
    *("clientKeyStore", "clientKeyStorePasswordPath", "clientTrustStore", "clientTrustStorePasswordPath"),
    *("httpServerAccessFile", "httpServerAllowedHosts", "httpServerCertificatePath"),
    *("httpServerKeyStorePath", "httpServerKeyStorePasswordPath", "httpServerKeyStorePassword"),
    *("httpServerTrustStorePath", "httpServerTrustStorePasswordPath", "httpServerTrustStorePassword"),
    *("zookeeper.sasl.client.username", "zookeeper.sasl.clientconfig"),
    *("zookeeper.ssl.keyStore.location", "zookeeper.ssl.keyStore.passwordPath"),
    *("zookeeper.ssl.trustStore.location", "zookeeper.ssl.trustStore.passwordPath"),
}
"""Keys whose values the system knows: names of files, users, interfaces."""
TLS_ON = {
    "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
    "tlsKeyStore": "/key.pem",
    "tlsCertificatePath": "/certificate.pem",
    "tlsTrustStore": "/trusted.pem",
}


ZOOKEEPER_TLS_ON = {"zookeeper.client.secure": "true", "zookeeper.ssl.trustStore.location": "/trusted.pem"}


def beside(key: str) -> dict[str, str]:
    """Return what turns on what a key concerns: without TLS its keys are not judged, as in Apache's bookies."""
    is_of_tls = "tls" in key.lower() or key.startswith(("clientKeyStore", "clientTrustStore"))
    is_of_zookeeper = key.startswith("zookeeper.ssl.")
    return TLS_ON if is_of_tls else ZOOKEEPER_TLS_ON if is_of_zookeeper else {}


def wrong_values() -> Iterator[tuple[str, str, str]]:
    """Yield (key, value, what the line says would be right)."""
    for key, setting in SERVED.items():
        if setting.type == "whole number":
            bounds = f"it must be a whole number from {setting.least} to {setting.most}"
            numbers = [*HUGE, *beyond(setting, refused=True)]
            yield from ((key, text, bounds) for text in (*NO_NUMBERS, *map(_digits, numbers)))
        elif setting.type == "number":
            bounds = f"it must be a number from {setting.least:g} to 1"
            below = () if setting.raises else (f"{setting.least - 0.01}",)
            for text in ("half", "nan", "inf", "-inf", "1.01", *below, "1e400", "0,5", "0_5", "1\n2", "\u0660.5"):
                yield key, text, bounds
        elif setting.type == "true or false":
            yield from ((key, text, "it must be true or false") for text in NO_FLAGS)
        elif setting.type == "directories":
            yield from (
                (key, text, "it must name different directories") for text in (",", " , ", "/a,/a", "/a,/b/../a")
            )
        else:
            yield from ((key, text, "") for text in WRONG_TEXTS.get(key, ()))


def beyond(setting: Setting, *, refused: bool) -> list[int]:
    """Return numbers below and above the bounds that are refused, or those that are not."""
    below = [setting.least - 1, -(10**18), -(1 << 63)] if setting.raises is not refused else []
    return below + ([setting.most + 1, 10**18, (1 << 63) - 1] if setting.lowers is not refused else [])


def _digits(number: int) -> str:
    # str() refuses what is that long.
    return f"{number}" if abs(number) < 10**20 else "1" + "0" * 5000


def usable_values(setting: Setting) -> tuple[str, ...]:
    if setting.type == "whole number":
        return str(setting.least), str(setting.most)
    return (
        ("true", "FALSE", "yes", "no", "On", "off", "1", "0", "t", "F", "y", "N")
        if setting.type == "true or false"
        else ()
    )


def refusal(values: dict[str, str]) -> str:
    """Return the line that refuses a configuration, "" when it is taken."""
    try:
        configure(values)
    except ConfigurationError as error:
        return str(error)
    return ""


def test_every_numeric_key_has_bounds_and_every_text_its_wrong_forms() -> None:
    unbounded = [key for key, setting in SERVED.items() if "number" in setting.type and setting.most is None]
    assert not unbounded
    texts = {key for key, setting in SERVED.items() if setting.type == "text"}
    assert texts == {*WRONG_TEXTS, *CHECKED_AT_START}


@pytest.mark.parametrize("key", SERVED)
def test_wrong_value_gives_one_line_that_names_key_value_and_what_is_right(key: str) -> None:
    for wrong_key, text, right in wrong_values():
        if wrong_key != key:
            continue
        with pytest.raises(ConfigurationError) as caught:
            configure({**beside(key), key: text})
        line = str(caught.value)
        assert line.startswith(f"{key}={(text if text.isprintable() else ascii(text))[:100].strip()}"), line
        assert right in line
        assert len(line) > len(f"{key}={text}: ") or len(text) > 200
        assert line.isprintable()
        assert len(line) < 1000


@pytest.mark.parametrize("key", [key for key, setting in SERVED.items() if setting.type == "whole number"])
def test_number_beyond_the_bounds_is_raised_or_lowered_with_one_line_that_says_so(key: str) -> None:
    """Apache's bookies start with it, so this one does, too."""
    setting, others = SERVED[key], beside(key)
    for number in beyond(setting, refused=False):
        bound = setting.least if number < setting.least else setting.most
        complaint = refusal({**others, key: str(bound)})
        if complaint:
            assert refusal({**others, key: str(number)}) == complaint  # it does not fit beside another key
            continue
        at_bound, adjusted = (configure({**others, key: str(given)}) for given in (bound, number))
        assert replace(adjusted, notes=()) == replace(at_bound, notes=())
        # "0 or less" means the same whatever it is.
        expected = () if number < setting.least == -1 else (f"{key}={number}: this bookie takes ",)
        assert [note[: len(line)] for note, line in zip(adjusted.notes, expected, strict=True)] == list(expected)


def test_whole_numbers_and_shares_are_written_as_in_java() -> None:
    given = configure({"bookiePort": "0x1F40", "journalMaxBackups": "+5", "pageSize": "0b10000000000"})
    assert (given.address.port, given.service.journal.backups_max, given.service.store.pages.page_bytes) == (
        8000, 5, 1024
    )  # fmt: skip
    for text in ("0.8", ".8", "8e-1", "0.8f", "0.8d"):
        assert configure({"diskUsageThreshold": text}).service.disks.limits.full_share == 0.8


@pytest.mark.parametrize("key", SERVED)
def test_zero_character_is_refused_at_any_place(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{key}="):
        configure({key: "1\0"})


@pytest.mark.parametrize("key", SERVED)
def test_empty_value_counts_as_not_set(key: str) -> None:
    assert configure({key: " "}) == configure({})


@pytest.mark.parametrize("key", [key for key in SERVED if usable_values(SERVED[key])])
def test_bounds_themselves_are_taken_or_refused_beside_another_key(key: str) -> None:
    """Two keys together may not fit; then the line names this one and the other."""
    for text in usable_values(SERVED[key]):
        complaint = refusal({key: text})
        if complaint:
            named = {other for other in SERVED if other in complaint}
            assert key in named
            assert len(named) >= 2, complaint
