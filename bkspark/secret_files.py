"""Secrets that are read from files: an option, a configuration key or a variable names the file.

The secret itself therefore does not appear in arguments, plans, logs or configuration files. BKSPARK_PASSWORD_FILE
names the file with the ledger password; BKSPARK_PASSWORD has the password itself, for containers that pass secrets in
this way. BKSPARK_ENCRYPTION_KEY_FILE names the file with the keys of encrypted ledgers.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from bkspark.errors import ConfigurationError

PASSWORD_VARIABLE = "BKSPARK_PASSWORD"
PASSWORD_FILE_VARIABLE = "BKSPARK_PASSWORD_FILE"
ENCRYPTION_KEY_FILE_VARIABLE = "BKSPARK_ENCRYPTION_KEY_FILE"
SECRET_BYTES_MAX = 64 * 1024
"""Largest file of a password or of keys."""
HIDDEN = "***"


def shown_name(path: str) -> str:
    """Return the name of a file that does not exist, with `***` in place of all that is not an existing folder.

    The value may be the secret itself, given in the file's place by mistake. The folders show where a wrong name
    begins.
    """
    folder = os.path.dirname(path)
    while folder and not os.path.isdir(folder):
        above = os.path.dirname(folder)
        folder = "" if above == folder else above
    return os.path.join(folder, HIDDEN)


def read_file(path: str, shown: str, bytes_max: int = SECRET_BYTES_MAX, *, is_secret: bool = False) -> bytes:
    """Return a file's content.

    Args:
        shown: the setting that names the file, for messages, such as `tlsKeyStore=/etc/key.pem`.
        is_secret: the file has a secret. If it does not exist, only the existing folders of its name are shown.

    Raises:
        ConfigurationError: it cannot be read, has more than `bytes_max` bytes, or every user of the host can change it.
    """
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        if is_secret and path and not os.path.exists(path):
            shown = _hidden(shown, path)
            reason += ". Name a file. The rest of the value may be the secret itself, so it is not shown"
        else:
            reason += ". Name a file that this process can read"
        raise ConfigurationError(f"{shown}: the file cannot be read: {reason}") from None
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        # Any user of the host could replace the key or the certificate.
        raise ConfigurationError(f"{shown}: every user of this host can change the file: run chmod o-w {path}")
    if len(content) > bytes_max:
        raise ConfigurationError(f"{shown}: the file has more than {bytes_max} bytes")
    return content


def _hidden(shown: str, value: str) -> str:
    """Return a setting with the shown form of its value. What the value has in common with the setting's name stays."""
    forms = "|".join(map(re.escape, (value, repr(value)[1:-1])))
    return re.sub(rf"(?<=[\s='\"])(?:{forms})(?=[\s'\",]|$)", lambda _: shown_name(value), shown)


def read_password(path: str, shown: str) -> bytes:
    """Return the password in a file: its content without the line break at its end.

    Raises:
        ConfigurationError: the file cannot be read, is empty, or is too large.
    """
    content = read_file(path, shown, is_secret=True)
    password = content.removesuffix(b"\n").removesuffix(b"\r")
    if not password:
        raise ConfigurationError(f"{shown}: the file is empty; for an empty password, name no file")
    return password


def password_from(environment: Mapping[str, str]) -> bytes:
    """Return the ledger password that the environment gives or names; empty if it does neither.

    Raises:
        ConfigurationError: both variables are set, or the file cannot be used.
    """
    path, password = environment.get(PASSWORD_FILE_VARIABLE), environment.get(PASSWORD_VARIABLE)
    if path and password:
        raise ConfigurationError(f"{PASSWORD_VARIABLE} and {PASSWORD_FILE_VARIABLE} are both set: unset one of them")
    return read_password(path, f"{PASSWORD_FILE_VARIABLE}={path}") if path else (password or "").encode()
