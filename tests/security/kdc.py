"""A real key distribution center: MIT Kerberos from the distribution's package, as an ordinary process on a free port.

`krb5kdc`, `kdb5_util`, `kadmin.local` and `kinit` are looked for on the PATH and in /usr/sbin. They may be unpacked
somewhere (`dpkg -x`): their libraries are looked for beside them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from bkspark.cli.child_process import ChildProcess
from bkspark.cli.ports import free_ports
from tests.polling import wait_until
from tests.security.sasl_serving import KERBEROS_MODULE

REALM = "TEST"
CLOCK_SKEW_S = 1
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_START_S = 60.0


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def missing() -> str:
    """Return what tests with Kerberos lack here, "" if nothing."""
    programs = [name for name in _PROGRAMS if _program(name) is None]
    if programs:
        return f"there is no {' and no '.join(programs)}: install krb5-kdc, krb5-admin-server and krb5-user"
    return "" if find_spec("gssapi") else "the package gssapi is not installed: pip install 'bkspark[kerberos]'"


class KeyDistributionCenter:
    """A realm with one KDC. A context manager that ends it.

    `configuration` is the file for clients; `environment` lets a process use this realm.
    """

    def __init__(self, directory: Path, ticket_life_s: int = 3600, clock_skew_s: int = CLOCK_SKEW_S) -> None:
        self._directory = directory
        self.port = free_ports(1)[0]
        self.configuration = directory / "krb5.conf"
        self.configuration.write_text(
            f"""[libdefaults]
    default_realm = {REALM}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    ticket_lifetime = {ticket_life_s}s
    clockskew = {clock_skew_s}
    udp_preference_limit = 1
[realms]
    {REALM} = {{
        kdc = 127.0.0.1:{self.port}
    }}
"""
        )
        program = Path(str(_program("krb5kdc")))
        libraries = next(iter(program.parents[1].glob("lib/*-linux-gnu")), program.parents[1] / "lib")
        (directory / "kdc.conf").write_text(
            f"""[kdcdefaults]
    kdc_listen = 127.0.0.1:{self.port}
    kdc_tcp_listen = 127.0.0.1:{self.port}
[realms]
    {REALM} = {{
        database_name = {directory}/principal
        key_stash_file = {directory}/stash
        max_life = {ticket_life_s}s
    }}
[logging]
    kdc = FILE:{directory}/kdc.log
[dbmodules]
    db_module_dir = {libraries}/krb5/plugins/kdb
"""
        )
        self.environment = {
            "KRB5_CONFIG": str(self.configuration),
            "KRB5CCNAME": f"FILE:{directory}/no-tickets",
            "KRB5RCACHEDIR": str(directory),
        }
        self._environment = {
            **os.environ,
            **self.environment,
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            **({} if program.parent == Path("/usr/sbin") else {"LD_LIBRARY_PATH": str(libraries)}),
        }
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master password")
        self._process = ChildProcess(
            "krb5kdc", [str(program), "-n"], directory / "kdc.log", environment=self._environment
        )

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(_program(name)), *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def keytab(self, principal: str, name: str = "") -> str:
        """Add a principal with a random key; return the name of its keytab."""
        path = self._directory / f"{name or principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        return str(path)

    def tickets(self, principal: str, keytab: str, life_s: int) -> str:
        """Return the name of a cache with a ticket of a principal."""
        cache = f"{keytab}.{life_s}"
        self._run("kinit", "-k", "-t", keytab, "-l", f"{life_s}s", "-c", cache, principal)
        return cache

    def __enter__(self) -> Self:
        wait_until(self._answers, "the key distribution center to listen", _START_S)
        return self

    def _answers(self) -> bool:
        assert self._process.exit_code is None, self._process.ending()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self._process.stop(10)


SERVICE, WRITER, STRANGER = "bookkeeper/127.0.0.1", "bookkeeper-writer", "stranger"


def section(name: str, keytab: str, principal: str | None) -> str:
    """Return a section of a JAAS file; without a principal it is that of a bookie which uses all keys of a keytab."""
    named = "" if principal is None else f' principal="{principal}@{REALM}"'
    return f'{name} {{ {KERBEROS_MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}"{named}; }};\n'
