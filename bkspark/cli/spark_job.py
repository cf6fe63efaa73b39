"""Spark jobs of commands, each a child process: only the connector's package loads Spark.

The job prints one JSON object a line on stdout: `{"say": text}` as it goes, at the end `{"result": object}` or
`{"error": text, "is_usage": bool}`. Spark's own output goes to a log file. The cluster's URI and password reach the job
through the environment, where other users of the machine cannot see them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from bkspark.cli.child_process import ChildProcess
from bkspark.cli.output import progress
from bkspark.cli.zookeeper_process import find_java
from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.secret_files import ENCRYPTION_KEY_FILE_VARIABLE, PASSWORD_FILE_VARIABLE, PASSWORD_VARIABLE

STOP_TIMEOUT_S = 20.0
NO_SECRETS = MappingProxyType({PASSWORD_VARIABLE: "", PASSWORD_FILE_VARIABLE: "", ENCRYPTION_KEY_FILE_VARIABLE: ""})


class SparkJob:
    """One run of `python -m MODULE`; a context manager that ends it and removes its folder.

    Args:
        module: a module of `bkspark.spark` whose main is `bkspark.spark.job.run`.
        uri: the cluster.
        options: passed on as `--name value`; None is left out.
        secret_variables: environment variables for the password and the encryption of the job's ledgers.
        log_path: file for Spark's output; by default in the job's folder.
    """

    def __init__(
        self,
        module: str,
        uri: str,
        options: Mapping[str, object],
        *,
        secret_variables: Mapping[str, str] = NO_SECRETS,
        client_config: str = "",
        log_path: Path | None = None,
    ) -> None:
        self._java_home = str(Path(find_java()).resolve().parent.parent)
        """The Java that Spark runs on."""
        self._module = module
        self._uri = uri
        self._options = options
        self._secret_variables = secret_variables
        self._client_config = client_config
        """The file with the client's TLS and login; "": none is given."""
        self._log_path = log_path
        self._folder = Path()
        """The folder of the run; created when it is entered."""
        self._process: ChildProcess | None = None
        """The child process that runs the job; None before `__enter__`."""

    def __enter__(self) -> SparkJob:
        self._folder = Path(tempfile.mkdtemp(prefix="bkspark-job-"))
        command = [sys.executable, "-m", self._module, "--dir", str(self._folder)]
        for name, value in self._options.items():
            if value is not None:
                command += [f"--{name}", str(value)]
        try:
            self._process = ChildProcess(
                "the Spark job",
                command,
                self._log_path or self._folder / "spark.log",
                environment={
                    "BKSPARK_URI": self._uri,
                    **self._secret_variables,
                    "BKSPARK_CLIENT_CONFIG": self._client_config,
                    "JAVA_HOME": self._java_home,
                    # Files of an interrupted job are removed with the folder, also the one that Python writes when it
                    # looks for a temporary directory.
                    "TMPDIR": str(self._folder),
                    # Spark's workers must be this interpreter, whatever `python3` is on PATH.
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_DRIVER_PYTHON": sys.executable,
                },
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.stop(STOP_TIMEOUT_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def result(self) -> dict[str, Any]:
        """Print what the job says as progress until it ends; return its result.

        Raises:
            ConfigurationError, BookKeeperError: the job said why it failed, or ended without a message; then its log
                is kept and named.
        """
        assert self._process is not None
        for line in self._process.lines():
            event = json.loads(line)
            if "say" in event:
                progress(event["say"])
            elif "error" in event:
                raise (ConfigurationError if event["is_usage"] else BookKeeperError)(event["error"])
            else:
                result: dict[str, Any] = event["result"]
                return result
        self._process.wait(STOP_TIMEOUT_S)
        raise BookKeeperError(
            f"the Spark job {self._process.ending()}: {self._process.last_log_line()} (its log: {self._kept_log()})"
        )

    def _kept_log(self) -> Path:
        """Return the job's log, moved out of the folder that is removed."""
        assert self._process is not None
        if self._log_path is not None:
            return self._log_path
        handle, kept = tempfile.mkstemp(prefix="bkspark-spark-", suffix=".log")
        os.close(handle)
        shutil.copyfile(self._process.log_path, kept)
        return Path(kept)
