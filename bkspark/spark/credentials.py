"""Secrets from Hadoop's credential providers (`hadoop.security.credential.provider.path`), for options that name files.

The driver reads an alias through its JVM, puts it into a file that only its user can read, and gives the file to Spark,
which copies it to the private directory of the application on each executor. The options of a read or write hold the
file's name; no plan, task or log holds the secret.

    >>> rows = spark.read.format("bookkeeper").options(
    ...     uri=uri, log="clicks", passwordFile=distribute_credential(spark, "bookkeeper.password")
    ... ).load()  # doctest: +SKIP

Spark sends the file over its own connections: set `spark.network.crypto.enabled` where others can listen.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from bkspark.errors import ConfigurationError

_ALIAS = re.compile(r"[A-Za-z0-9._-]{1,100}")


def distribute_credential(spark: SparkSession, alias: str) -> str:
    """Return the name of a file that has the credential `alias`, for `passwordFile` and `encryptionKeyFile`.

    Each call reads the provider again and makes another file. The file exists on the driver and the executors until the
    application ends.

    Raises:
        ConfigurationError: no provider has the alias, or a provider cannot be read; or the session is one of Spark
            Connect, whose driver is elsewhere.
    """
    if not _ALIAS.fullmatch(alias):
        raise ConfigurationError(
            f"credential {alias!r} must have 1 to 100 characters of A-Z a-z 0-9 . _ -: choose another alias"
        )
    credential = _read(spark, alias)
    folder = Path(tempfile.mkdtemp(prefix="bkspark-credential-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # A unique name: Spark refuses a second file of the same name.
    path = folder / f"{alias}-{secrets.token_hex(8)}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(credential)
    spark.sparkContext.addFile(str(path))
    return path.name


def _read(spark: SparkSession, alias: str) -> str:
    from py4j.protocol import Py4JJavaError

    # A session of Spark Connect has no JVM here.
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise ConfigurationError(
            "credentials are read by Spark's driver, and the driver of this session is another process"
        )
    try:
        configuration = jvm.org.apache.hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())
        # A password in the configuration itself is shown in Spark's environment page: it is not a secret.
        configuration.setBoolean("hadoop.security.credential.clear-text-fallback", False)
        credential = configuration.getPassword(alias)
    except Py4JJavaError as error:
        # The cause's message alone: py4j's message has Java's stack trace.
        raise ConfigurationError(
            f"credential {alias!r}: a provider of hadoop.security.credential.provider.path cannot be read: "
            f"{error.java_exception.getMessage()}"
        ) from None
    if credential is not None:
        return str(jvm.java.lang.String(credential))
    raise ConfigurationError(
        f"credential {alias!r} is in no provider of hadoop.security.credential.provider.path: create it "
        f"(hadoop credential create {alias} -provider jceks://...), or set spark.hadoop.hadoop.security.credential."
        "provider.path"
    )
