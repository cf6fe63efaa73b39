"""No repr shows a password or a master key, which opens a ledger as the password does: logs keep reprs."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import bkspark.blocking  # first: parts of it import each other through it
import bookie_service
import bookie_service.settings.configuration
from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import ConfigurationError
from bkspark.ledger.encryption import EncryptionOptions
from bkspark.secret_files import password_from, read_password
from bkspark.spark.local_files import LedgerPassword, encryption_with
from bkspark.spark.options import SourceOptions
from bkspark.spark.typed_options import Options
from bkspark.tls.contexts import TlsContext
from bkspark.tls.options import TlsOptions
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.single_add import SingleAdd
from bookie_service.formats.index import LedgerHeader
from tests import key_comparisons
from tests.layering import PACKAGES
from tests.sources import GROUP

SECRET = b"s3cret"
NAMES = ("password", "passwd", "secret", "master_key", "fencing_key")
OTHERS = {"key_starts", "unused_keys"}
"""Places and names of keys."""


def modules() -> Iterator[ModuleType]:
    for package in (bkspark, bookie_service):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def secret_fields() -> Iterator[tuple[str, str, bool]]:
    """Yield (class, field, whether the class's own repr shows it) of all dataclasses and named tuples."""
    for module in modules():
        for kind in vars(module).values():
            if not isinstance(kind, type) or kind.__module__ != module.__name__:
                continue
            name = f"{module.__name__}.{kind.__qualname__}"
            if dataclasses.is_dataclass(kind):
                is_own = "__repr__" in vars(kind) and kind.__dataclass_params__.repr  # type: ignore[attr-defined]
                for field in dataclasses.fields(kind):
                    if any(word in field.name for word in NAMES):
                        yield name, field.name, bool(is_own and field.repr)
            elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
                for field_name in kind._fields:
                    if any(word in field_name for word in NAMES):
                        # The one that namedtuple makes is not a function of the class's module.
                        yield name, field_name, kind.__repr__.__module__ != kind.__module__


def test_no_class_shows_a_secret_in_its_repr() -> None:
    found = list(secret_fields())
    assert {name.rpartition(".")[2] for name, _, _ in found} >= {"SourceOptions", "RepairOptions", "LedgerHeader"}
    assert [(name, field) for name, field, is_shown in found if is_shown] == []


def test_what_is_made_with_a_secret_does_not_show_it() -> None:
    password = SECRET.decode()
    uri = "zk://127.0.0.1:2181/ledgers"
    made = [
        SourceOptions.parse({"uri": uri, "log": "a", "password": password}),
        Options(uri=uri, log="a", password=password),
        bookie_service.settings.configuration.configure({"passwd": password}),
        LedgerHeader(5, 1, False, SECRET),
        SingleAdd(5, 0, -1, SECRET, 24, 100, v2.encode_add_reply),
        LedgerMetadata(1, 1, 1, (Fragment(0, ("a:1",)),), password=SECRET),
        EntryDigest(DigestType.MAC, SECRET),
        Client(uri, password=SECRET),
    ]
    for each in made:
        assert password not in repr(each)
        assert password not in str(each)


@pytest.mark.xdist_group(GROUP)
def test_no_secret_is_compared_in_a_way_whose_time_tells_how_much_of_it_is_right() -> None:
    root = Path(__file__).parent.parent
    assert list(key_comparisons.early_exits(root, PACKAGES)) == []


@pytest.mark.parametrize(
    "text", ["ledger.master_key != add.master_key", "stored_key in (UNKNOWN, given_key)", "password == self._password"]
)
def test_such_a_comparison_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(f"found = {text}\n")
    assert list(key_comparisons.early_exits(tmp_path, ("package",))) == [f"package/module.py:1: {text}"]


def test_a_password_file_gives_its_first_line_and_no_argument_or_variable_has_the_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    for content in (b"s3cret", b"s3cret\n", b"s3cret\r\n"):
        path.write_bytes(content)
        assert password_from({"BKSPARK_PASSWORD_FILE": str(path), "BKSPARK_PASSWORD": ""}) == SECRET
    assert password_from({"BKSPARK_PASSWORD": "s3cret"}) == SECRET
    assert password_from({}) == b""
    with pytest.raises(ConfigurationError, match="both set"):
        password_from({"BKSPARK_PASSWORD": "x", "BKSPARK_PASSWORD_FILE": str(path)})


@pytest.mark.parametrize("mode", [0o602, 0o666, 0o777])
def test_a_file_of_secrets_or_trust_that_every_user_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    """Another user could put in a key, or an authority, of its own: what is encrypted with it would be open to him."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="every user of this host can change") as caught:
        password_from({"BKSPARK_PASSWORD_FILE": str(path)})
    assert f"chmod o-w {path}" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    uses: list[Callable[[], object]] = [
        EncryptionOptions(str(path)).new_ledger,
        lambda: TlsContext(TlsOptions(trust_store=str(path)), is_server=False),
    ]
    for use in uses:
        with pytest.raises(ConfigurationError, match="every user of this host can change"):
            use()
    # What the owner's group may change is its own matter, and a link has rights of its own.
    path.chmod(0o660)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert password_from({"BKSPARK_PASSWORD_FILE": str(link)}) == SECRET


@pytest.mark.parametrize(
    "secret",
    [
        "hunter2",
        "it's \\ odd",
        "with\0zero",
        "a" * 5000,
        "q1gK5m0bQ8nC0nJm3yTR3Ne1/S2dXxS4mVxQ1b3fY6A=",
        "2026.1 q1gK5m0bQ8nC0nJm3yTR3Ne1/S2dXxS4mVxQ1b3fY6A=",
        "tr0ub4dor.3",
        "tr0ub4dor/3",
        "/tr0ub4dor/3/",
        "./tr0ub4dor",
        "../../tr0ub4dor",
        "//tr0ub4dor",
    ],
)
def test_secret_in_place_of_the_name_of_its_file_is_not_shown(secret: str) -> None:
    reads: tuple[Callable[[], object], ...] = (
        lambda: read_password(secret, f"--password-file {secret}"),
        lambda: password_from({"BKSPARK_PASSWORD_FILE": secret}),
        EncryptionOptions(secret).check_keys,
        LedgerPassword.in_file(secret).read,
        encryption_with(secret).check_keys,
    )
    for read in reads:
        with pytest.raises(ConfigurationError, match="cannot be read") as raised:
            read()
        assert secret not in str(raised.value)
        assert repr(secret)[1:-1] not in str(raised.value)
        assert "tr0ub4dor" not in str(raised.value)
        assert "***" in str(raised.value)


@pytest.mark.parametrize("secret", ["password", "pass", "e", "file"])
def test_secret_that_is_a_part_of_its_options_name_leaves_the_name_as_it_is(secret: str) -> None:
    for option in ("--password-file ***", "passwordFile=***", "option 'passwordFile' is '***'"):
        with pytest.raises(ConfigurationError) as raised:
            read_password(secret, option.replace("***", secret))
        assert str(raised.value).startswith(f"{option}: the file cannot be read")


def test_error_about_a_missing_file_shows_the_folders_that_exist(tmp_path: Path) -> None:
    """An operator who mistyped a name sees where the mistake begins. A secret in place of a name is not shown."""
    for name, shown in (
        (f"{tmp_path}/pasword", f"{tmp_path}/***"),
        (f"{tmp_path}/secretz/password", f"{tmp_path}/***"),
        ("password.txt", "***"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            read_password(name, f"passwordFile={name}")
        assert str(raised.value).startswith(f"passwordFile={shown}: the file cannot be read: No such file")
