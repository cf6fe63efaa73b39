"""`python -m tests.fuzzing.live_logins`: mutated AUTH and START_TLS frames for a running bookie, in every state.

    --frames N        frames that the bookie must have looked at, in each state (default 20000)
    --seconds S       or so long in each state, if that ends first
    --state NAME      only this state; several times
    --attackers N     processes that attack (default 2)
    --seed N --json

One bookie has SASL and no TLS, the other one demands both. Beside the attackers an honest client, which has logged in,
adds and reads all the time. The exit code is that of `tests.fuzzing.live`.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from bkspark.tls.options import FACTORY_CLASS
from bookie_service.settings.authentication import KEY, SASL_CLASS
from tests.bookie.child import new_cluster
from tests.bookie.serving import Peer
from tests.fuzzing.live import STORAGES, Result, bookie, judged, parse_attack, report, room_with_zookeeper, show
from tests.fuzzing.login_attack import STATES, Target, attack, probe
from tests.security.certificates import Authority
from tests.security.sasl_serving import SaslPeer, jaas_file, jaas_text
from tests.security.tls_serving import TlsPeer, trusting


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    states = options.state or list(STATES)
    results: list[Result] = []
    with room_with_zookeeper() as (room, zookeeper):
        for with_tls in (False, True):
            chosen = [name for name in states if STATES[name][0] is with_tls]
            if not chosen:
                continue
            place = room / ("tls" if with_tls else "clear")
            place.mkdir()
            authority = Authority(place)
            uri = new_cluster(zookeeper.connect_string, place.name)
            settings = _settings(place, authority, with_tls=with_tls)
            with bookie(STORAGES[0], place, uri, **settings) as (child, process, turns):
                target = Target(child.port, authority.pem if with_tls else None)
                for state in chosen:
                    result = Result(place.name, state)
                    judged(
                        result, partial(attack, target), partial(_honest, target, authority), process, turns, options
                    )
                    if process.exit_code is None and not probe(target):
                        result.wrong.append("an honest client is not served afterwards")
                    results.append(result)
                    show(result)
            if process.exit_code not in (0, None):
                results[-1].wrong.append(f"the bookie's exit code after SIGTERM is {process.exit_code}")
    return report(results, as_json=options.json)


def _honest(target: Target, authority: Authority) -> Peer:
    peer = Peer(target.port) if target.ca is None else TlsPeer(target.port, trusting(authority))
    SaslPeer(peer).authenticate()
    return peer


def _settings(place: Path, authority: Authority, *, with_tls: bool) -> dict[str, str]:
    sasl = {KEY: SASL_CLASS, "saslJaasConfig": jaas_file(place / "bookie.jaas", jaas_text())}
    if not with_tls:
        return sasl
    key, chain = authority.issue("bookie").pem()
    return {
        **sasl,
        "authenticationRequired": "true",
        "tlsRequired": "true",
        "tlsProviderFactoryClass": FACTORY_CLASS,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": key,
        "tlsCertificatePath": chain,
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.live_logins", description=__doc__.split("\n")[0])
    return parse_attack(parser, list(STATES), arguments)


if __name__ == "__main__":
    sys.exit(main())
