"""A JAAS file that changes counts for the next exchanges of both sides, without a restart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bkspark.security.mechanism import SaslFailure
from bkspark.security.sasl import JAAS_REFRESH_S, SaslClient, SaslClientOptions, SaslServer, SaslServerOptions
from bkspark.wire import v2
from tests.bookie.serving import Serving, service_options
from tests.polling import wait_until
from tests.security.sasl_serving import PASSWORD, USER, SaslPeer, by_digest, jaas_file, jaas_text

NEW = "the password of the next month"


class Hand:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def look_again(self) -> None:
        self.now += JAAS_REFRESH_S


class Both:
    """A bookie's side and a client's, each with a file of its own."""

    def __init__(self, directory: Path) -> None:
        self.clock = Hand()
        self.server_file, self.client_file = directory / "bookie.jaas", directory / "client.jaas"
        for path in (self.server_file, self.client_file):
            path.write_text(jaas_text())
        self.server = SaslServer(SaslServerOptions(str(self.server_file)), self.clock)
        self.client = SaslClient(SaslClientOptions(str(self.client_file)), clock=self.clock)

    def write(self, path: Path, password: str) -> None:
        replaced(path, jaas_text({USER: password}, password=password))

    def is_served(self) -> bool:
        """Return whether a new exchange succeeds."""
        server, client = self.server.begin(), self.client.begin("localhost")
        message: bytes | None = client.first()
        try:
            while message is not None and not client.is_complete:
                message = client.step(server.step(message) or b"")
        except SaslFailure:
            return False
        return server.principal is not None


def replaced(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path)


def test_changed_password_counts_for_the_next_exchange_of_both_sides(both: Both) -> None:
    assert both.is_served()
    both.write(both.server_file, NEW)
    assert both.is_served(), "the file is not looked at for each exchange"
    both.clock.look_again()
    assert not both.is_served()
    both.write(both.client_file, NEW)
    both.clock.look_again()
    assert both.is_served()


def test_exchange_that_has_begun_ends_with_the_password_that_it_began_with(both: Both) -> None:
    server, client = both.server.begin(), both.client.begin("localhost")
    challenge = server.step(client.first())
    both.write(both.server_file, NEW)
    both.clock.look_again()
    both.server.begin()
    response = client.step(challenge or b"")
    server.step(response or b"")
    assert server.principal is not None


@pytest.mark.parametrize("text", ["Bookie {", "", "Bookie { x required; };", None], ids=["torn", "empty", "x", "gone"])
def test_changed_file_that_cannot_be_used_changes_nothing(
    both: Both, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (both.server_file, both.client_file):
        if text is None:
            path.unlink()
        else:
            replaced(path, text)
    for _ in range(3):
        both.clock.look_again()
        assert both.is_served()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, "one line for each file, and not one for each look"
    assert all(line.startswith("SASL continues with the users that it has: ") for line in lines)
    assert PASSWORD not in caplog.text
    for path in (both.server_file, both.client_file):
        both.write(path, NEW)
    both.clock.look_again()
    assert both.is_served(), "it is tried again"


def test_file_that_every_user_of_the_host_can_change_is_refused(both: Both) -> None:
    both.server_file.chmod(0o666)
    with pytest.raises(ConfigurationError, match="every user of this host can change it: run chmod o-w"):
        SaslServer(SaslServerOptions(str(both.server_file)))


def test_running_bookie_takes_the_new_password_and_keeps_its_connections(tmp_path: Path) -> None:
    options = by_digest(tmp_path)
    with Serving(service_options(tmp_path, authentication=options)) as bookie, bookie.connect() as kept:
        SaslPeer(kept).authenticate()
        jaas_file(tmp_path / "bookie.jaas", jaas_text({USER: NEW}))

        def new_one_works() -> bool:
            with bookie.connect() as peer:
                try:
                    SaslPeer(peer).authenticate(password=NEW)
                except AssertionError:
                    return False
                return peer.add(1, 0, [b"x"]) == [v2.Status.EOK]

        wait_until(new_one_works, "the changed file to be read")
        with bookie.connect() as peer, pytest.raises(AssertionError):
            SaslPeer(peer).authenticate(password=PASSWORD)
        assert kept.add(2, 0, [b"x"]) == [v2.Status.EOK]
