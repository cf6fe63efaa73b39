"""The packages that only some installations have, and the extra of setup.cfg that brings each.

`pip install .` installs the ledger client, a bookie and Spark. A host that runs only bookies needs no Spark, and a host
that runs only clients needs neither: they install the packages of a lock file, and bkspark with `--no-deps`.
"""

from __future__ import annotations

EXTRAS = {
    "aiohttp": "console",
    "cryptography": "tls",
    "fastavro": "avro",
    "gssapi": "kerberos",
    "h11": "bookie",
    "jinja2": "console",
    "markupsafe": "console",
    "msgpack": "spark",
    "opentelemetry": "tracing",
    "pyarrow": "spark",
    "pyspark": "spark",
    "rocksdict": "bookie",
}
"""The extra that installs each top-level module."""


def explain(missing: ModuleNotFoundError) -> str | None:
    """Return one line that says how to install the missing module; None if no extra installs it."""
    module = (missing.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    return extra and f"{module} is not installed: pip install 'bkspark[{extra}]'"
