"""Key and trust stores, and contexts that follow changes of their files."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.changed_files import ChangedFiles, Says
from bkspark.errors import ConfigurationError
from bkspark.tls import client_keys
from bkspark.tls.contexts import TlsContext
from bkspark.tls.options import FACTORY_CLASS, StoreType, TlsOptions
from bkspark.tls.stores import validity
from bookie_service.settings.configuration import configure
from tests.clock import Clock
from tests.security.certificates import Authority, Leaf, of_bookie, to_jks

SECRET = b"s3cret"


@pytest.fixture
def password(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_bytes(SECRET)
    return str(path)


def shown_by(server: ssl.SSLContext, authority: Authority) -> bytes:
    """Return the certificate that a handshake with a server's context shows, as DER."""
    certificate = shown_to(ssl.create_default_context(cafile=authority.pem), server).getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def shown_to(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """Return the client's end after a handshake in memory."""
    ends = [ssl.MemoryBIO() for _ in range(4)]
    to_server, from_server, to_client, from_client = ends
    one = server.wrap_bio(to_server, from_server, server_side=True)
    other = client.wrap_bio(to_client, from_client, server_hostname="localhost")
    for _ in range(3):
        for side in (other, one):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            to_server.write(from_client.read())
            to_client.write(from_server.read())
    return other


def der(leaf: Leaf) -> bytes:
    _, chain = leaf.pem()
    return ssl.PEM_cert_to_DER_cert(Path(chain).read_text())


# ---- formats ----


def test_no_side_of_tls_compresses_or_negotiates_again(authority: Authority, leaf: Leaf) -> None:
    """docs/security.md: TLS 1.2 and 1.3 are served, without compression and renegotiation."""
    for options, is_server in ((of_bookie(leaf), True), (TlsOptions(trust_store=authority.pem), False)):
        context = TlsContext(options, is_server=is_server).current()
        wanted = ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        assert context.options & wanted == wanted


def test_bookie_gives_no_ticket_with_which_a_session_of_tls_1_3_resumes(authority: Authority, leaf: Leaf) -> None:
    """docs/security.md: TLS 1.3 without resumption. A resumed session would outlive a certificate that is withdrawn."""
    client = ssl.create_default_context(cafile=authority.pem)
    end = shown_to(client, TlsContext(of_bookie(leaf), is_server=True).current())
    with contextlib.suppress(ssl.SSLWantReadError):
        end.read()
    assert end.version() == "TLSv1.3"
    assert end.session is None or not end.session.has_ticket


@pytest.mark.parametrize("declared", [None, StoreType.PKCS12, StoreType.JKS])
def test_first_bytes_of_a_store_decide_not_its_type(
    authority: Authority, leaf: Leaf, password: str, declared: StoreType | None
) -> None:
    """Since Java 9 keytool writes PKCS12 under the name JKS, and Java reads either for either."""
    store = leaf.pkcs12(SECRET)
    options = TlsOptions(key_store=store, key_store_type=declared, key_store_password_path=password)
    context = TlsContext(options, is_server=True).current()
    assert shown_by(context, authority) == der(leaf)


@pytest.mark.parametrize("end", [b"", b"\n", b"  \r\n"])
def test_password_of_a_store_is_trimmed_as_in_apaches_bookies(leaf: Leaf, password: str, end: bytes) -> None:
    Path(password).write_bytes(SECRET + end)
    TlsContext(TlsOptions(key_store=leaf.pkcs12(SECRET), key_store_password_path=password), is_server=True)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_encrypted_pem_key_is_read_with_the_password_of_its_file(leaf: Leaf, password: str, end: bytes) -> None:
    Path(password).write_bytes(SECRET + end)
    options = of_bookie(leaf, key_store_password_path=password)
    leaf.pem(SECRET)
    TlsContext(options, is_server=True)


@pytest.mark.parametrize(
    "how",
    [
        ["pkcs8", "-topk8", "-v2", "aes-256-cbc"],
        ["pkcs8", "-topk8", "-scrypt"],
        ["pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES"],
        ["ec", "-aes256"],
    ],
    ids=["PBES2", "scrypt", "PBES1", "before PKCS8"],
)
def test_each_way_to_encrypt_a_pem_key_is_read_and_a_wrong_password_is_a_clear_error(
    leaf: Leaf, password: str, how: list[str]
) -> None:
    options = of_bookie(leaf, key_store_password_path=password)
    clear, encrypted = str(options.key_store), leaf.directory / "encrypted.key"
    words = ["openssl", *how, "-in", clear, "-out", str(encrypted), "-passout", f"pass:{SECRET.decode()}"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    options = replace(options, key_store=str(encrypted))
    TlsContext(options, is_server=True)
    for wrong in (b"", b"\r\n", b"wr0ng", SECRET + b" ", SECRET + b"\n\n" + SECRET, b"x" * 5000, b"\xff\0"):
        Path(password).write_bytes(wrong)
        with pytest.raises(ConfigurationError, match="readable with the password in tlsKeyStorePasswordPath") as caught:
            TlsContext(options, is_server=True)
        assert "\n" not in str(caught.value)
        # It was the place in OpenSSL: `[SSL] PEM lib (_ssl.c:3926)`.
        assert "_ssl.c" not in str(caught.value)
        assert "wr0ng" not in str(caught.value)


def test_trust_store_of_keytool_is_read(authority: Authority, tmp_path: Path) -> None:
    """Its certificates have an attribute of Java's, and no key."""
    path = tmp_path / "trusted"
    path.write_bytes(b"changeit\n")
    store = authority.keytool_trust_store("PKCS12", "changeit")
    options = TlsOptions(trust_store=store, trust_store_password_path=str(path))
    assert len(TlsContext(options, is_server=False).current().get_ca_certs()) == 1


def test_real_jks_is_refused_with_the_command_that_converts_it(leaf: Leaf, password: str) -> None:
    """No well-kept library reads it."""
    path = to_jks(leaf.pkcs12(SECRET), SECRET.decode())
    with pytest.raises(ConfigurationError, match="this is a JKS store, which cannot be read here") as caught:
        TlsContext(TlsOptions(key_store=path, key_store_password_path=password), is_server=True)
    assert f"keytool -importkeystore -srckeystore {path}" in str(caught.value)


# ---- mistakes ----


def damage(leaf: Leaf) -> bytes:
    """Return a PEM certificate that lacks one character of its base64."""
    lines = Path(leaf.pem()[1]).read_bytes().splitlines(keepends=True)
    return b"".join([lines[0], lines[1][:-2] + b"\n", *lines[2:]])


def mistakes(authority: Authority, leaf: Leaf) -> dict[str, tuple[TlsOptions, str]]:
    """Return options that no bookie starts with, and what the message must say."""
    folder = leaf.directory
    good = of_bookie(leaf)
    other_key, _ = authority.issue("other").pem()
    empty, large, folder_path = folder / "empty", folder / "large", folder / "folder"
    empty.write_bytes(b"")
    large.write_bytes(b"-----BEGIN " + bytes(17 << 20))
    folder_path.mkdir()
    wrong = folder / "wrong"
    wrong.write_bytes(b"wr0ng")
    damaged, strange = folder / "damaged", folder / "strange"
    damaged.write_bytes(damage(leaf))
    strange.write_bytes(b"-----BEGIN CERTIFICATE-----\n\xff\xfe\n-----END CERTIFICATE-----\n")
    encrypted = replace(leaf, name="encrypted")
    encrypted_key, encrypted_chain = encrypted.pem(SECRET)
    return {
        "no key store": (TlsOptions(), "tlsKeyStore is missing"),
        "no certificate": (replace(good, certificate_path=None), "tlsCertificatePath is missing: with PEM it names"),
        "absent file": (
            replace(good, key_store="/nowhere/key"),
            "tlsKeyStore=/nowhere/key: the file cannot be read",
        ),
        "folder": (replace(good, key_store=str(folder_path)), "the file cannot be read: Is a directory"),
        "empty file": (replace(good, key_store=str(empty)), "the file is not PEM, PKCS12 or JKS"),
        "large file": (replace(good, key_store=str(large)), "the file has more than 16777216 bytes"),
        "certificate without a certificate": (replace(good, certificate_path=str(wrong)), "has no PEM certificate"),
        "damaged certificate": (replace(good, certificate_path=str(damaged)), "its first certificate cannot be read"),
        "certificate of other characters": (
            replace(good, certificate_path=str(strange)),
            "its first certificate cannot be read",
        ),
        "key of another": (
            replace(good, key_store=other_key),
            "cannot be used .key values mismatch",
        ),
        "expired": (of_bookie(authority.issue("old", days=-1)), "is not valid: it is valid from"),
        "not valid yet": (of_bookie(authority.issue("new", begins_in_days=1)), "is not valid: it is valid from"),
        "wrong type": (
            replace(good, key_store_type=StoreType.PKCS12),
            "PEM, and tlsKeyStoreType says PKCS12",
        ),
        "wrong password of a key": (
            TlsOptions(key_store=encrypted_key, certificate_path=encrypted_chain, key_store_password_path=str(wrong)),
            "readable with the password in tlsKeyStorePasswordPath",
        ),
        "no password of a key": (
            TlsOptions(key_store=encrypted_key, certificate_path=encrypted_chain),
            "readable with the password in tlsKeyStorePasswordPath",
        ),
        "wrong password of a store": (
            TlsOptions(key_store=leaf.pkcs12(SECRET), key_store_password_path=str(wrong)),
            "cannot be opened with the password in tlsKeyStorePasswordPath, or is damaged",
        ),
        "trust store without certificates": (
            replace(good, client_authentication=True, trust_store=other_key),
            "tlsTrustStore=.*: the file has no certificate",
        ),
        "no trust store": (replace(good, client_authentication=True), "tlsTrustStore is missing"),
        "no suite of the protocol": (
            replace(good, protocols=("TLSv1.2",), cipher_suites=("TLS_AES_128_GCM_SHA256",)),
            "no enabled cipher suite is for an enabled protocol",
        ),
    }


@pytest.mark.parametrize(("begins", "ends"), [(-20_000, 10), (-1, 10), (-1, 10_000)], ids=["1972", "now", "2054"])
def test_times_of_a_certificate_are_read_in_each_century(authority: Authority, begins: int, ends: int) -> None:
    """Two digits name a year of 1950 to 2049; later ones have four."""
    leaf = authority.issue("other", days=ends, begins_in_days=begins)
    certificate = leaf.certificate
    assert validity(der(leaf), "a file") == (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    TlsContext(of_bookie(leaf), is_server=True)


def test_no_context_is_made_of_files_that_are_not_usable(authority: Authority, leaf: Leaf) -> None:
    """Fail closed: one line that names the key and the file, and never what a file holds."""
    for name, (options, message) in mistakes(authority, leaf).items():
        with pytest.raises(ConfigurationError, match=message) as caught:
            TlsContext(options, is_server=True)
        said = str(caught.value)
        assert "\n" not in said, name
        assert "_ssl.c" not in said, name
        assert "s3cret" not in said, name
        assert "wr0ng" not in said, name


def test_missing_password_file_is_an_empty_password_as_in_apaches_bookies(leaf: Leaf) -> None:
    missing = str(leaf.directory / "missing")
    TlsContext(of_bookie(leaf, key_store_password_path=missing), is_server=True)
    encrypted_key, chain = replace(leaf, name="encrypted").pem(SECRET)
    options = TlsOptions(key_store=encrypted_key, certificate_path=chain, key_store_password_path=missing)
    with pytest.raises(ConfigurationError, match="readable with the password in tlsKeyStorePasswordPath"):
        TlsContext(options, is_server=True)


@pytest.mark.parametrize("kind", ["pem", "pkcs12"])
def test_a_password_in_place_of_the_name_of_its_file_is_said_and_not_shown(leaf: Leaf, kind: str) -> None:
    """The key names a file; Apache's clients have keys for the password itself. The message did not say that there is
    no such file."""
    if kind == "pem":
        key, chain = leaf.pem(SECRET)
        options = TlsOptions(key_store=key, certificate_path=chain, key_store_password_path="hunter2")
    else:
        options = TlsOptions(key_store=leaf.pkcs12(SECRET), key_store_password_path="hunter2")
    with pytest.raises(ConfigurationError, match=r"tlsKeyStorePasswordPath.*There is no file of the name") as caught:
        TlsContext(options, is_server=True)
    assert "hunter2" not in str(caught.value)


def test_suites_that_java_names_and_no_peer_should_use_are_left_out_beside_others() -> None:
    given = (
        "TLS_EMPTY_RENEGOTIATION_INFO_SCSV",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "SSL_RSA_WITH_3DES_EDE_CBC_SHA",
        "TLS_DHE_DSS_WITH_AES_128_CBC_SHA",
        "TLS_AES_256_GCM_SHA384",
    )
    text = ",".join(given)
    served = ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384")
    assert client_keys.parse("tlsEnabledCipherSuites", text) == served
    keys = {client_keys.FACTORY: FACTORY_CLASS, "tlsKeyStore": "/k", "tlsCertificatePath": "/c"}
    configuration = configure({**keys, "tlsEnabledCipherSuites": text})
    assert configuration.service.tls is not None
    assert configuration.service.tls.tls.cipher_suites == served
    (note,) = (note for note in configuration.notes if "tlsEnabledCipherSuites" in note)
    assert note.endswith("SSL_RSA_WITH_3DES_EDE_CBC_SHA, TLS_DHE_DSS_WITH_AES_128_CBC_SHA is not safe, and not served")
    for alone in ("TLS_EMPTY_RENEGOTIATION_INFO_SCSV", "TLS_RSA_WITH_NULL_SHA256,TLS_AES_256_GCM_SHA384"):
        with pytest.raises(ValueError, match="is not a cipher suite that is served"):
            client_keys.parse("tlsEnabledCipherSuites", alone)


def test_any_provider_of_tls_is_the_one_that_there_is() -> None:
    """Apache's bookies take each other name than OpenSSL for JDK."""
    assert configure({"tlsProvider": "Conscrypt"}).notes == ("tlsProvider=Conscrypt: this bookie has OpenSSL alone",)
    for known in ("OpenSSL", "jdk", ""):
        assert configure({"tlsProvider": known}).notes == ()


def test_cipher_suites_have_javas_names(leaf: Leaf) -> None:
    suites = ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    context = TlsContext(of_bookie(leaf, cipher_suites=suites), is_server=True).current()
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2, "no suite of TLS 1.3 is named"
    names = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert names == ["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]


def test_bookie_serves_suites_with_ephemeral_diffie_hellman_over_a_finite_field(tmp_path: Path) -> None:
    """Java's servers bring their own group. Without one a bookie with such suites alone would serve no client."""
    key, chain = tmp_path / "rsa.key", tmp_path / "rsa.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=bookie", "-addext"]
    files = ["subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(["openssl", *words, *files], check=True, capture_output=True, timeout=60)
    suites = ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384",)
    serving = TlsOptions(key_store=str(key), certificate_path=str(chain), cipher_suites=suites)
    asking = TlsOptions(trust_store=str(chain), cipher_suites=suites)
    shown = shown_to(TlsContext(asking, is_server=False).current(), TlsContext(serving, is_server=True).current())
    assert shown.cipher() == ("DHE-RSA-AES256-GCM-SHA384", "TLSv1.2", 256)


# ---- reload ----


def test_changed_files_are_used_after_the_refresh_time(authority: Authority, leaf: Leaf) -> None:
    clock = Clock()
    context = TlsContext(of_bookie(leaf, refresh_s=60.0), is_server=True, clock=clock)
    renewed = replace(authority.issue("renewed"), name="bookie")
    renewed.pem()
    clock.now = 59.0
    assert shown_by(context.current(), authority) != der(renewed)
    clock.now = 60.0
    assert shown_by(context.current(), authority) == der(renewed)


@pytest.mark.parametrize("first", ["key", "certificate"])
def test_key_and_certificate_replaced_one_after_the_other_are_never_a_mismatched_pair(
    authority: Authority, leaf: Leaf, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's bookies may load such a pair, and then serve it (section 2.4 of the reference)."""
    clock = Clock()
    options = of_bookie(leaf, refresh_s=60.0)
    assert options.certificate_path is not None
    assert options.key_store is not None
    context = TlsContext(options, is_server=True, clock=clock)
    before = der(leaf)
    key, chain = replace(authority.issue("renewed"), name="new").pem()
    moves = [(key, options.key_store), (chain, options.certificate_path)]
    if first == "certificate":
        moves.reverse()
    with caplog.at_level(logging.WARNING):
        shutil.copy(*moves[0])
        for _ in range(3):
            clock.now += 60.0
            assert shown_by(context.current(), authority) == before
    assert len(caplog.records) == 1, "one line for one change"
    shutil.copy(*moves[1])
    clock.now += 60.0
    assert shown_by(context.current(), authority) == ssl.PEM_cert_to_DER_cert(Path(chain).read_text())


@pytest.mark.parametrize("content", [b"", b"garbage", b"damaged", None])
def test_broken_or_absent_file_leaves_the_old_certificate_in_use(
    authority: Authority, leaf: Leaf, content: bytes | None
) -> None:
    clock = Clock()
    options = of_bookie(leaf, refresh_s=1.0)
    assert options.certificate_path is not None
    context = TlsContext(options, is_server=True, clock=clock)
    before, path = der(leaf), Path(options.certificate_path)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(damage(leaf) if content == b"damaged" else content)
    for _ in range(3):
        clock.now += 1.0
        assert shown_by(context.current(), authority) == before
    renewed = replace(authority.issue("renewed"), name="bookie")
    renewed.pem()
    clock.now += 1.0
    assert shown_by(context.current(), authority) == der(renewed)


@pytest.mark.parametrize("changed", ["chain", "trust store"])
def test_file_of_two_certificates_that_is_written_half_is_not_used(
    authority: Authority, tmp_path: Path, changed: str
) -> None:
    """Its first certificate was used alone: clients of the second authority were refused, and so was a bookie whose
    chain lacked the certificate between."""
    between = Authority(tmp_path, "between", authority)
    key, chain = between.issue("bookie").pem_with(between.certificate)
    both = tmp_path / "both"
    both.write_bytes(Path(authority.pem).read_bytes() + Path(Authority(tmp_path, "second").pem).read_bytes())
    path = Path(chain) if changed == "chain" else both
    whole = path.read_bytes()
    first = whole.index(b"-----END CERTIFICATE-----") + len(b"-----END CERTIFICATE-----\n")
    clock = Clock()
    options = TlsOptions(
        key_store=key, certificate_path=chain, trust_store=str(both), client_authentication=True, refresh_s=1.0
    )
    context = TlsContext(options, is_server=True, clock=clock)
    before = context.current()
    for size in range(first + 1, len(whole) - 1):
        path.write_bytes(whole[:size])
        clock.now += 1.0
        assert context.current() is before, whole[first:size]
    path.write_bytes(whole)
    clock.now += 1.0
    assert context.current() is not before


def test_text_beside_certificates_is_ignored(authority: Authority, tmp_path: Path) -> None:
    """A comment may name the line with which a certificate begins."""
    path = tmp_path / "noted"
    path.write_bytes(Path(authority.pem).read_bytes() + b"# the old -----BEGIN CERTIFICATE----- was removed")
    options = TlsOptions(trust_store=str(path))
    TlsContext(options, is_server=False, clock=Clock()).current()


def test_refresh_time_of_zero_never_looks_again(authority: Authority, leaf: Leaf) -> None:
    clock = Clock()
    context = TlsContext(of_bookie(leaf, refresh_s=0.0), is_server=True, clock=clock)
    before = der(leaf)
    replace(authority.issue("renewed"), name="bookie").pem()
    clock.now = 1e9
    assert shown_by(context.current(), authority) == before


def test_unexpected_error_while_changed_files_are_read_leaves_the_old_value_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A look takes place while a client connects: it must not end what serves the client."""
    clock, path = Clock(), tmp_path / "file"
    path.write_text("2")

    def read() -> int:
        return 100 // int(path.read_text())

    files = ChangedFiles([str(path)], read, 1.0, Says("kept", "changed"), logging.getLogger("test"), clock)
    assert files.current() == 50
    path.write_text("00")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            clock.now += 1.0
            assert files.current() == 50
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "kept: this is a defect")
    ]
    path.write_text("4")
    clock.now += 1.0
    assert files.current() == 25


def test_pipe_in_place_of_a_file_is_not_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reading waits until a program writes to the pipe, and an event loop would wait with it. At the start, a pipe may
    bring a secret."""
    clock = Clock()
    path = tmp_path / "value"
    path.write_text("2")
    read: list[str] = []

    def make() -> str:
        read.append("pipe" if path.is_fifo() else path.read_text())
        return read[-1]

    files = ChangedFiles([str(path)], make, 1.0, Says("kept", "changed"), logging.getLogger("test"), clock)
    path.unlink()
    os.mkfifo(path)
    for _ in range(3):
        clock.now += 1.0
        assert files.current() == "2"
    assert [record.getMessage() for record in caplog.records] == [
        f"kept: {path} is a pipe, which is read only at the start"
    ]
    path.unlink()
    path.write_text("4")
    clock.now += 1.0
    assert files.current() == "4"
    assert read == ["2", "4"]


def test_pipe_is_read_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "value"
    os.mkfifo(path)
    assert ChangedFiles([str(path)], lambda: 1, 1.0, Says("", ""), logging.getLogger("test")).current() == 1


def test_file_that_was_written_over_with_the_old_time_and_length_is_read(tmp_path: Path) -> None:
    """Programs that copy files with their times do that."""
    clock, path = Clock(), tmp_path / "value"
    path.write_text("old")
    before = path.stat()
    files = ChangedFiles([str(path)], path.read_text, 1.0, Says("kept", "changed"), logging.getLogger("test"), clock)
    path.write_text("new")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.now += 1.0
    assert files.current() == "new"
