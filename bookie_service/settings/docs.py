"""Makes the page about configuration keys from the code that reads them.

python -m bookie_service.settings.docs > docs/configuration.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from bookie_service.settings.configuration import DANGEROUS, EXPLAINED, HARMLESS, PROTECTING, served_settings
from bookie_service.settings.keys import APACHE_KEYS, APACHE_PREFIXES, OWN_KEYS
from bookie_service.settings.values import Setting

_INTRODUCTION = """\
# Configuration keys of a bookie

Made by `python -m bookie_service.settings.docs > docs/configuration.md`; a test compares the two.

A bookie reads Apache's configuration file `bk_server.conf` (`--config FILE`). `--set KEY=VALUE` overrides the file.
With `--environment`, variables `BK_KEY` also override it, as in Apache's image. Names, units and defaults are
Apache's, with these exceptions:

* A journal flushes when its queue is empty (for the lowest latency), and writes up to 4 MiB at once (512 KiB in
  Apache's).
* A frame may be 10 KiB larger, because Pulsar's brokers need it.
* If one of several ledger directories is full, the bookie does not become read-only (Apache's before 4.18 does).
* The free space that recovery needs on a full disk is smaller on a small disk.
* The journal is aligned to the physical blocks of its disk.
* The connection of a peer that does not read its replies is closed.
* The number of reads in progress is not limited.
* The caches of DbLedgerStorage do not depend on the memory of the machine.
* A bookie that an operator made read-only stays read-only after a restart.
* Certificates are checked for changes every minute, and host names are always verified ([security.md](security.md)).

Keys that Apache does not have are marked *ours*. There are four kinds of key:

| Kind | What happens |
|---|---|
| honoured | the value takes effect; with an invalid value the bookie prints one line and exits with code 2 |
| always so | accepted silently: this bookie behaves as the key asks, whatever its value is |
| refused | the key would protect data or access, but is not supported: the bookie does not start |
| accepted | a key of Apache's without effect here; the bookie logs its name at the start |

A number outside the bounds is raised or lowered to the nearest bound, and the bookie logs this at the start, unless the
column *Bounds* says that such values are refused. Therefore this bookie starts with every number that Apache's bookies
start with. If the name of a storage class ends with that of one of the three classes, such as
`org.example.SlowSortedLedgerStorage`, that class is used, and the bookie logs this.

A key that is in no list is also accepted without effect and logged at the start, because another release of Apache's
may have it. There are two exceptions: if the name is nearly that of an existing key, or if by its name the key may
protect something (TLS, authentication), the bookie does not start, unless the value turns nothing on. A bookie starts
with Pulsar's `standalone.conf`, which also has the keys of a broker, if the file turns on no protection of either.

The bookie's files belong to its user only: files have mode 0600, directories 0700. *permittedFileGroup* lets a group
read them (0640, 2750); the bookie's user must be in this group. Files that existed before keep their mode: run
`chgrp -R` and `chmod -R g+rX` on them once. *permittedLocalReadUsers* is a list of users, separated by commas, whose
clients may read entry logs directly.

Files are read as Apache's bookies read them. `key = value`, `key: value` and `key value` are the same; `\\` joins
lines. Whole numbers may be written `0x10`; true is also yes, on, y, t, 1. If a key has several values, the first one
is used; the values of lists (directories, servers) are joined. `include = FILE` and `includeoptional = FILE` insert
another file at this point. `${key}`, `${env:NAME}` and `${key:-default}` are replaced. If a value has an effect
and contains something that only Java can replace, such as `${sys:user.home}`, the bookie does not start. An empty value
counts as not set. `--set` overrides the file; if it is given several times for a key, the last value is used.
"""


def page() -> str:
    """Return the whole page, as Markdown."""
    served = served_settings()
    accepted = APACHE_KEYS | OWN_KEYS
    accepted -= {*served, *HARMLESS, *PROTECTING, *EXPLAINED}
    families = ", ".join(f"`{prefix}`" for prefix in APACHE_PREFIXES)
    return "\n".join(
        [
            _INTRODUCTION,
            "## Honoured\n",
            _table(("Key", "Type", "Default", "Unit", "Bounds"), (_row(key, served[key]) for key in _sorted(served))),
            "## Dangerous\n",
            "These keys are also honoured; a bookie logs them at the start. Such a setting gives up the guarantee\n"
            "that an acknowledged entry is durable. Unless the bookie stopped in order, its ledgers are in limbo:\n"
            'reads of missing entries are answered "unknown ledger state".\n',
            _table(("Setting", "What it costs"), ((f"`{key}=false`", DANGEROUS[key]) for key in _sorted(DANGEROUS))),
            "## Always so\n",
            _paragraph(HARMLESS),
            "## Refused\n",
            _table(
                ("Key", "What this bookie does not have", "Values that it starts with"),
                ((f"`{key}`", PROTECTING[key], "empty, null, false, no, off") for key in _sorted(PROTECTING)),
            ),
            "## Accepted, without effect\n",
            _paragraph(accepted),
            _table(
                ("Key, without effect", "What happens instead"),
                ((f"`{key}`", EXPLAINED[key]) for key in _sorted(EXPLAINED)),
            ),
            f"Also every key that begins with {families}: keys of the stream and table service.\n",
        ]
    )


def _row(key: str, setting: Setting) -> Sequence[str]:
    name = f"`{key}` (ours)" if key in OWN_KEYS else f"`{key}`"
    return name, setting.type, setting.default, setting.unit, _bounds(setting)


def _bounds(setting: Setting) -> str:
    if setting.least is None:
        return ""
    bounds = f"{setting.least} to {setting.most}"
    if setting.type != "whole number" or (setting.raises and setting.lowers):
        return bounds
    refused = "more" if setting.raises else "less" if setting.lowers else "less or more"
    return f"{bounds}; {refused} is refused"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _paragraph(keys: Iterable[str]) -> str:
    return textwrap.fill(" ".join(f"`{key}`" for key in _sorted(keys)), 120, break_on_hyphens=False) + "\n"


def _sorted(keys: Iterable[str]) -> list[str]:
    return sorted(keys, key=lambda key: (key.lower(), key))


if __name__ == "__main__":
    print(page(), end="")
