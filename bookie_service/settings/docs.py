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

A bookie reads Apache's `bk_server.conf` (`--config FILE`); `--set KEY=VALUE` wins over the file. With
`--environment` variables `BK_KEY` do, too, as in Apache's image. Names, units and
defaults are Apache's, but for these: a journal flushes when its queue is empty (the lowest latency), and then up to
4 MiB at once (half a MiB in Apache's); a frame may have 10 KiB more (Pulsar's brokers need them); one full ledger
directory of several does not make the bookie read-only
(Apache's before 4.18); what must be free for recovery on a full disk is less on a small disk; the journal is aligned
to the physical blocks of its disk; a peer that takes no replies is closed; reads in
progress are not limited; the caches of DbLedgerStorage do not depend on the memory of the machine; a bookie that an
operator made read-only is so after a restart; and certificates are checked for changes every minute, host names always
([security.md](security.md)). Keys that are ours alone say so. There are four kinds of key:

| Kind | What happens |
|---|---|
| honoured | the value has its effect; one that is not usable ends the start with one line and exit code 2 |
| always so | accepted silently: this bookie does what every value of it asks for |
| refused | it would protect data or access, and is not served: ignoring it would be worse than not starting |
| accepted | Apache's, without effect here; named in one line at start |

A number beyond the bounds is raised or lowered to them, and a line at start says so, unless *Bounds* says that it is
refused; so every number that Apache's bookies start with starts this one. A storage class that is a kind of one of
the three by its name, as `org.example.SlowSortedLedgerStorage`, counts as that one, with a line, too.

A key that is in no list is accepted without effect, too, and named at start: another release of Apache's may have
it. But one that is nearly the name of a key that there is, and one that by its name may protect something (TLS,
authentication), end the start, unless their value turns nothing on. Pulsar's `standalone.conf`, which has the keys of
a broker too, starts a bookie as long as it protects neither.

The bookie's files are for its user alone: 0600, directories 0700. *permittedFileGroup* lets a group read them (0640,
2750); the bookie's user must be in it. Files that were there before keep their mode: `chgrp -R` and `chmod -R g+rX`
them once. *permittedLocalReadUsers* names users, separated by commas, whose clients may read entry logs themselves.

Files are read as Apache's bookies read them. `key = value`, `key: value` and `key value` are the same; `\\` joins
lines. Whole numbers may be written `0x10`; true is also yes, on, y, t, 1. The first of several values of one key
counts, those of lists (directories, servers) are joined. `include = FILE` and `includeoptional = FILE` read another
file at that place. `${key}`, `${env:NAME}` and `${key:-default}` are replaced; what only Java can replace, as
`${sys:user.home}`, ends the start where the value has an effect. An empty value counts as not set. `--set` wins over
the file, and its last value of a key counts.
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
            "Honoured, too; a bookie that has one of these says so in a line at start. It gives up the promise\n"
            "that an acknowledged entry is durable. When it was not stopped in order, its ledgers are in limbo:\n"
            'what is missing in them is answered "unknown ledger state".\n',
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
            f"And every key that begins with {families}: the stream and table service, which shares Apache's file.\n",
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
