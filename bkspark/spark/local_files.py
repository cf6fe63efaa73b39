"""Files with secrets that options name: the ledger password and encryption keys, and where the files are on this host.

Plans and tasks have only the file's name. The driver and each executor read the file themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bkspark.secret_files import PASSWORD_FILE_VARIABLE, PASSWORD_VARIABLE, password_from, read_password

if TYPE_CHECKING:
    from bkspark.ledger.encryption import EncryptionOptions


def local_path(path: str) -> str:
    """Return the path of a file on this host. A plain name may also name a file that Spark distributes.

    Spark distributes the files of `spark.files`, `--files` and `SparkContext.addFile`. A file of the working directory
    comes first.
    """
    if os.sep in path or os.path.exists(path):
        return path
    from pyspark import SparkFiles  # options are checked without Spark, too

    try:
        distributed = os.path.join(SparkFiles.getRootDirectory(), path)
    except AssertionError:
        return path  # a driver without a Spark context
    return distributed if os.path.exists(distributed) else path


@dataclass(frozen=True, slots=True)
class LedgerPassword:
    """The ledger password: the password itself, or the name of a file that each process reads itself."""

    value: bytes = field(default=b"", repr=False)
    """The password, if there is no `path`."""
    path: str | None = None

    @property
    def option(self) -> str:
        """The name of the option that gave this password."""
        return "password" if self.path is None else "passwordFile"

    @classmethod
    def given(cls, text: str) -> LedgerPassword:
        """Return the password that option `password` gives."""
        return cls(text.encode())

    @classmethod
    def in_file(cls, path: str) -> LedgerPassword:
        """Return the password that is in a file. Raises ValueError if no file is named."""
        if not path:
            raise ValueError("is empty")
        return cls(path=path)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> LedgerPassword:
        """Return the password that the environment gives or names. Raises as `password_from`."""
        if environment.get(PASSWORD_FILE_VARIABLE) and not environment.get(PASSWORD_VARIABLE):
            return cls(path=environment[PASSWORD_FILE_VARIABLE])
        return cls(password_from(environment))

    def read(self) -> bytes:
        """Return the password.

        Raises:
            ConfigurationError: the file cannot be used on this host.
        """
        if self.path is None:
            return self.value
        shown = f"option 'passwordFile' is {self.path!r}, which the driver and every executor read for themselves"
        return read_password(local_path(self.path), shown)


NO_PASSWORD = LedgerPassword()


def encryption_with(key_file: str | None) -> EncryptionOptions:
    """Return the encryption of a client in this process, by the file that option `encryptionKeyFile` names."""
    from bkspark.ledger.encryption import EncryptionOptions  # imports the client, which few need here

    option = "option 'encryptionKeyFile'"
    return EncryptionOptions(None if key_file is None else local_path(key_file), option)
