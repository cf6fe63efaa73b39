"""docs/configuration.md is what the code makes, and says of every key what happens to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bookie_service.settings.configuration import HARMLESS, PROTECTING, configure, served_settings
from bookie_service.settings.docs import page
from bookie_service.settings.keys import APACHE_KEYS, OWN_KEYS

CHECKED_IN = Path(__file__).parent.parent.parent / "docs" / "configuration.md"


def test_the_page_is_what_the_code_makes() -> None:
    assert CHECKED_IN.read_text() == page(), "run python -m bookie_service.settings.docs > docs/configuration.md"


def test_every_key_is_in_the_page_exactly_once() -> None:
    text = page()
    assert {key: text.count(f"`{key}`") for key in APACHE_KEYS | OWN_KEYS} == dict.fromkeys(APACHE_KEYS | OWN_KEYS, 1)


def test_every_key_that_is_served_is_apaches_or_listed_as_ours() -> None:
    """Else the page would show a key of ours as one of Apache's."""
    assert set(served_settings()) <= APACHE_KEYS | OWN_KEYS


@pytest.mark.parametrize("key", sorted(APACHE_KEYS - set(served_settings()) - HARMLESS - set(PROTECTING)))
def test_key_shown_as_accepted_is_accepted_and_named(key: str) -> None:
    assert configure({key: "1"}).unused_keys == (key,)


@pytest.mark.parametrize("key", sorted(PROTECTING))
def test_key_shown_as_refused_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        configure({key: "org.example.Something"})
    assert configure({key: "false"}).unused_keys == ()


@pytest.mark.parametrize(
    ("key", "setting"),
    [(key, setting) for key, setting in served_settings().items() if setting.type in ("whole number", "true or false")],
)
def test_default_shown_is_usable_and_means_the_same_as_no_value(key: str, setting: object) -> None:
    default = served_settings()[key].default
    assert configure({key: default}) == configure({})
