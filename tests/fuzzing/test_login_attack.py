"""Mutated AUTH and START_TLS frames for a bookie, a few in each state; and what counts them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bookie.serving import Serving, service_options
from tests.fuzzing.login_attack import STATES, LoginFrames, Target, attack, probe
from tests.security.certificates import Authority
from tests.security.sasl_serving import by_digest
from tests.security.tls_serving import listener

FRAMES = 60
FOR_EVER = float("inf")


class Attacked:
    """A bookie with SASL and no TLS, and one that demands both."""

    def __init__(self, clear: Serving, secured: Serving, authority: Authority) -> None:
        self._servings = {False: clear, True: secured}
        self._authority = authority

    def target(self, state: str) -> Target:
        with_tls = STATES[state][0]
        return Target(self._servings[with_tls].port, self._authority.pem if with_tls else None)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    clear, secured = (tmp_path_factory.mktemp(name) for name in ("clear", "secured"))
    authority = Authority(secured)
    tls = listener(authority.issue("bookie"), required=True)
    with (
        Serving(service_options(clear, authentication=by_digest(clear))) as first,
        Serving(service_options(secured, authentication=by_digest(secured, required=True), tls=tls)) as second,
    ):
        yield Attacked(first, second, authority)
        assert first.failure is None
        assert second.failure is None


@pytest.mark.parametrize("state", STATES)
def test_bookie_survives_mutated_frames_in_each_state(attacked: Attacked, state: str) -> None:
    target = attacked.target(state)
    count = attack(target, state, FRAMES, seed=7, until=FOR_EVER)
    assert count.looked_at >= FRAMES
    assert count.closed_by_bookie, "some of the frames violate the protocol"
    assert probe(target)


def test_same_seed_makes_the_same_frames() -> None:
    first, second = LoginFrames(3), LoginFrames(3)
    bursts = [first.burst(14) for _ in range(50)]
    assert bursts == [second.burst(14) for _ in range(50)]
    flags = [is_mutated for burst in bursts for _, is_mutated in burst]
    assert any(flags)
    assert not all(flags)
