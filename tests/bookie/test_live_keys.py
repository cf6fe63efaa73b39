"""Keys that are changed while a bookie runs: what a caller of HTTP may not learn by them."""

from __future__ import annotations

import pytest

from bkspark.errors import ConfigurationError
from bookie_service.operation.live_keys import LIVE_KEYS, LiveKeys
from bookie_service.settings.configuration import configure

SECRET = "s3cret"


@pytest.mark.parametrize("reference", ["${passwd}", "${env:BKSPARK_PASSWORD}", "${nothing:-x}", "1${passwd}"])
@pytest.mark.parametrize("key", sorted(LIVE_KEYS))
def test_no_value_names_a_variable(monkeypatch: pytest.MonkeyPatch, key: str, reference: str) -> None:
    """The error about such a value would show the password to a caller with the role `operate`."""
    monkeypatch.setenv("BKSPARK_PASSWORD", SECRET)
    values = {"passwd": SECRET}
    keys = LiveKeys(configure(values), None, values)
    with pytest.raises(ConfigurationError) as caught:
        keys.set({key: reference}, "test")
    assert SECRET not in str(caught.value)
    assert f"{key}: a value that is set while the bookie runs cannot name a variable" in str(caught.value)
