"""Keys that are changed while a bookie runs: each takes effect, and what a caller of HTTP may not learn by them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bookie_service.operation.changes import Changes
from bookie_service.operation.live_keys import LIVE_KEYS, LiveKeys
from bookie_service.settings.configuration import Configuration, configure
from tests.bookie.operator_parts import STEADY

SECRET = "s3cret"
OTHERS = {
    "compactionMaxOutstandingRequests": "7",
    "compactionRate": "7",
    "compactionRateByBytes": "7",
    "compactionRateByEntries": "7",
    "forceAllowCompaction": "true",
    "gcMetadataOpRateLimit": "7",
    "gcOverreplicatedLedgerWaitTime": "7000",
    "isForceGCAllowWhenNoSpace": "true",
    "isThrottleByBytes": "true",
    "lockReleaseOfFailedLedgerGracePeriod": "7000",
    "logLevel": "debug",
    "majorCompactionInterval": "90000",
    "majorCompactionMaxTimeMillis": "7000",
    "majorCompactionThreshold": "0.7",
    "minorCompactionInterval": "7000",
    "minorCompactionMaxTimeMillis": "7000",
    "minorCompactionThreshold": "0.3",
    "openLedgerRereplicationGracePeriod": "7000",
    "replicationRateByBytes": "7",
    "rwRereplicateBackoffMs": "7000",
}
"""A value of each live key that is not its default."""


def used(configuration: Configuration) -> tuple[object, ...]:
    """What the running parts take of a configuration (`wiring._apply`, `AutoRecovery.set_options`)."""
    return configuration.service.collection, configuration.log_level, configuration.auto_recovery.repair


@pytest.mark.parametrize("key", sorted(LIVE_KEYS))
def test_reading_the_file_again_applies_each_live_key_and_takes_it_back(tmp_path: Path, key: str) -> None:
    file = tmp_path / "bk_server.conf"
    file.write_text("")
    keys, applied = LiveKeys(configure({}), file, {}, STEADY), []
    keys.parts.append(applied.append)
    before = used(keys.configuration)
    file.write_text(f"{key}={OTHERS[key]}\n")
    assert keys.reload("test").changed == {key: ("", OTHERS[key])}
    assert used(applied[-1]) != before, "a part takes the new value"
    file.write_text("")
    assert keys.reload("test").changed == {key: (OTHERS[key], "")}
    assert used(applied[-1]) == before, "without the key its default counts again"


def test_value_that_the_file_cannot_have_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "bk_server.conf"
    keys, applied = LiveKeys(configure({}), file, {}, STEADY), []
    keys.parts.append(applied.append)
    for wrong in ("compactionRate=many", "minorCompactionThreshold=0.9", "logLevel=loud", "compactionRat=1", "=\n"):
        file.write_text(f"compactionRateByBytes=5\n{wrong}\n")
        with pytest.raises(ConfigurationError):
            keys.reload("test")
    file.unlink()
    with pytest.raises(ConfigurationError):
        keys.reload("test")
    assert applied == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_not_a_file_is_not_read_again(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Reading a pipe waits for its writer, and the bookie would answer no request meanwhile."""
    make(tmp_path / "conf")
    with pytest.raises(ConfigurationError, match=r"--config '.*conf' is not a file, and cannot be read again"):
        LiveKeys(configure({}), tmp_path / "conf", {}, STEADY).reload("test")
    (tmp_path / "outer").write_text("include = conf\n")
    with pytest.raises(ConfigurationError, match=r"conf', which --config '.*outer' includes, is not a file"):
        LiveKeys(configure({}), tmp_path / "outer", {}, STEADY).reload("test")


@pytest.mark.parametrize("reference", ["${passwd}", "${env:BKSPARK_PASSWORD}", "${nothing:-x}", "1${passwd}"])
@pytest.mark.parametrize("key", sorted(LIVE_KEYS))
def test_no_value_names_a_variable(monkeypatch: pytest.MonkeyPatch, key: str, reference: str) -> None:
    """The error about such a value would show the password to a caller with the role `operate`."""
    monkeypatch.setenv("BKSPARK_PASSWORD", SECRET)
    values = {"passwd": SECRET}
    keys = LiveKeys(configure(values), None, values, STEADY)
    with pytest.raises(ConfigurationError) as caught:
        keys.set({key: reference}, "test")
    assert SECRET not in str(caught.value)
    assert f"{key}: a value that is set while the bookie runs cannot name a variable" in str(caught.value)


def test_what_the_command_line_says_is_not_changed_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bk_server.conf"
    file.write_text("compactionRateByBytes=5\nreplicationRateByBytes=9\n")
    settings = {"compactionRateByBytes": "7"}
    keys = LiveKeys(configure(settings), file, settings, STEADY)
    assert keys.reload("test").changed == {"replicationRateByBytes": ("", "9")}
    assert keys.configuration.values["compactionRateByBytes"] == "7"


def test_changed_keys_that_are_not_live_are_named_and_wait_for_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "bk_server.conf"
    file.write_text("bookiePort=3333\ncompactionRateByBytes=5\n")
    keys = LiveKeys(configure({"bookiePort": "3181"}), file, {}, STEADY)
    found = keys.reload("test")
    assert (found.changed, found.need_restart) == ({"compactionRateByBytes": ("", "5")}, ("bookiePort",))
    assert keys.configuration.values["bookiePort"] == "3181"


def test_audit_line_of_a_change_has_the_value_before_and_after(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bookie_service.audit")
    keys = LiveKeys(configure({"compactionRateByBytes": "7"}), None, {}, STEADY)
    assert keys.set({"compactionRateByBytes": "9"}, "amy") == {"compactionRateByBytes": ("7", "9")}
    (record,) = caplog.records
    assert record.getMessage() == "audit: amy: set compactionRateByBytes=9 (before: 7)"
    assert record.__dict__["attributes"] == {"who": "amy", "key": "compactionRateByBytes", "old": "7", "new": "9"}


def test_key_that_is_not_live_is_refused_with_all_others_of_its_call() -> None:
    keys, applied = LiveKeys(configure({}), None, {}, STEADY), []
    keys.parts.append(applied.append)
    with pytest.raises(
        ConfigurationError, match=r"bookiePort cannot be changed while the bookie runs; these can: .*logL"
    ):
        keys.set({"compactionRateByBytes": "9", "bookiePort": "3333"}, "amy")
    assert (applied, keys.configuration.values) == ([], {})


def test_shown_keys_have_no_secret_value() -> None:
    values = {"passwd": SECRET, "compactionRateByBytes": "7"}
    assert LiveKeys(configure(values), None, values, STEADY).shown() == {"compactionRateByBytes": "7", "passwd": "***"}


def test_signal_reads_the_file_again_and_a_wrong_file_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bookie_service.operation.live_keys")
    file = tmp_path / "bk_server.conf"
    keys = LiveKeys(configure({}), file, {}, STEADY)
    file.write_text("compactionRateByBytes=9\n")
    keys.reload_by_signal()
    file.write_text("compactionRateByBytes=many\n")
    keys.reload_by_signal()
    assert keys.configuration.values == {"compactionRateByBytes": "9"}
    assert caplog.messages[0] == "SIGHUP: the configuration was read again, 1 keys changed"
    assert caplog.messages[1].startswith("SIGHUP: the configuration is not read again, and nothing changes: ")
    assert len(caplog.messages) == 2


def test_signal_whose_change_is_half_done_ends_the_process_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/architecture.md, unexpected errors. The service manager waits for the end of the reload, whatever it is."""

    def broken(configuration: Configuration) -> None:
        raise RuntimeError("planted")

    file, ends = tmp_path / "conf", list[BaseException]()
    file.write_text("compactionRateByBytes=7\n")
    keys, applied = LiveKeys(configure({}), file, {}, Changes(ends.append)), []
    keys.parts += [applied.append, broken]
    keys.reload_by_signal()
    assert ([str(error) for error in ends], len(applied)) == (["planted"], 1)
    assert "this is a defect" in caplog.text


def test_signal_whose_file_cannot_be_used_changes_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, applied = tmp_path / "conf", list[Configuration]()
    file.write_text("compactionRateByBytes=7\n")
    keys = LiveKeys(configure({"compactionRateByBytes": "7"}), file, {}, STEADY)
    keys.parts.append(applied.append)
    for text in ("compactionRateByBytes=many\n", "compactionRateByBytes=9\ninclude=no/such/file\n", "=\n"):
        file.write_text(text)
        keys.reload_by_signal()
        assert keys.configuration.values == {"compactionRateByBytes": "7"}
    file.unlink()
    keys.reload_by_signal()
    assert applied == []
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 4
    assert all("the configuration is not read again, and nothing changes: " in line for line in said)
