"""The page about configuration keys, made from the code that reads them.

python -m bookie_service.configuration_docs > docs/configuration.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from bookie_service.configuration import DANGEROUS, EXPLAINED, HARMLESS, PROTECTING, served_settings
from bookie_service.configuration_keys import APACHE_KEYS, APACHE_PREFIXES, OWN_KEYS
from bookie_service.configuration_values import Setting

_INTRODUCTION = """\
# Configuration keys of a bookie

Made by `python -m bookie_service.configuration_docs > docs/configuration.md`; a test compares the two.

A bookie reads Apache's `bk_server.conf` (`--config FILE`); `--set KEY=VALUE` wins over the file. Names, units and
defaults are Apache's, but for these: a journal flushes when its queue is empty (the lowest latency); a frame may have
10 KiB more (Pulsar's brokers need them); one full ledger directory of several does not make the bookie read-only
(Apache's before 4.18); what must be free for recovery on a full disk is less on a small disk; and the journal is
aligned to the physical blocks of its disk. Keys that are ours alone say so. There are four kinds of key:

| Kind | What happens |
|---|---|
| honoured | the value has its effect; one that is not usable ends the start with one line and exit code 2 |
| always so | accepted without a word: this bookie does what every value of it asks for |
| refused | it would protect data or access, and is not served: ignoring it would be worse than not starting |
| accepted | Apache's, without effect here; named in one line at start |

A key in none of these lists is a mistake: the bookie does not start, and names the nearest key there is. An empty value
counts as not set.
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
            "Honoured, too; a bookie that is told one of these says so in a line at start. It gives up the promise\n"
            "that an acknowledged entry is durable. When it was not stopped in order, its ledgers are in limbo: of\n"
            "what is missing in them nothing certain is answered.\n",
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
    return "" if setting.least is None else f"{setting.least} to {setting.most}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _paragraph(keys: Iterable[str]) -> str:
    return textwrap.fill(" ".join(f"`{key}`" for key in _sorted(keys)), 120, break_on_hyphens=False) + "\n"


def _sorted(keys: Iterable[str]) -> list[str]:
    return sorted(keys, key=lambda key: (key.lower(), key))


if __name__ == "__main__":
    print(page(), end="")
