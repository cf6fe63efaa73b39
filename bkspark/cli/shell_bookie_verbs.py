"""Verbs of Apache's `bookkeeper shell` about one bookie: its files, which they read and delete, and its cookie."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkspark.cli import private_files
from bkspark.cli.shell_language import (
    FAILED,
    Failure,
    Options,
    Shell,
    VerbRun,
    confirmed,
    number_of,
    renamed_bookie,
    required,
)
from bkspark.one_line import one_line

if TYPE_CHECKING:
    from bkspark.metadata.cookies import Cookie

# ---- the files of a bookie ----


def _entry_log(shell: Shell, word: str) -> str:
    """Return the entry log of a number or a name. Raises Failure."""
    return _numbered(word, ".log", partial(shell.directories, "ledgerDirectories"))


def _numbered(word: str, suffix: str, directories: Callable[[], Sequence[Path]]) -> str:
    """Return the file of a number or a name: Apache's numbers are decimal, names of files hexadecimal.

    As with Apache's shell, a word of digits is a number, even if a file in the working directory has this name.
    """
    number = number_of(word)
    if number is None and os.path.exists(word):
        return word
    for directory in directories():
        for path in directory.glob(f"*{suffix}"):
            if path.name == word or (number is not None and _number_of(path) == number):
                return str(path)
    raise Failure(f"there is no file {word:.200} in {', '.join(map(str, directories()))}")


def _number_of(path: Path) -> int:
    """Return the number in a file's name, -1 without one."""
    try:
        return int(path.stem, 16)
    except ValueError:
        return -1


def ledger_index(shell: Shell, options: Options) -> int:
    return shell.local("dump", "index", "--ledger", shell.ledger_id(options.words[0]))


def read_log(shell: Shell, options: Options) -> int:
    first, last = (_position(options, name) for name in ("startpos", "endpos"))
    if first is not None:
        return _read_positions(shell, options, first, last)
    words: list[object] = []
    # As with Apache's shell, the end of a range counts only with its start, and an entry only with its ledger.
    if options.ledgerid not in (None, "-1"):
        words += ["--ledger", shell.ledger_id(options.ledgerid)]
        words += ["--entry", options.entryid] if options.entryid not in (None, "-1") else []
    words += ["--payloads", shell.entry_format] if options.msg else []
    return shell.bkspark("dump", "entry-log", _entry_log(shell, options.words[0]), *words)


def _read_positions(shell: Shell, options: Options, first: int, last: int | None) -> int:
    """Print the entries that have a byte between two positions of an entry log; `last` None: up to its end."""
    if last is not None and last < first:
        raise Failure(f"-startpos {first} is above -endpos {last}")
    path = _entry_log(shell, options.words[0])
    for each in _entries_of(path, *(["--payloads", shell.entry_format] if options.msg else [])):
        if each["offset"] + each["length"] > first and (last is None or each["offset"] <= last):
            print(f"offset {each['offset']}  ledger {each['ledger']}  entry {each['entry']}  {each['length']} bytes")
            if options.msg:
                print(f"  {_shown_payload(each['value'], shell.entry_format)}")
    return 0


def _shown_payload(value: str, entry_format: str) -> str:
    payload = base64.b64decode(value)
    return payload.hex() if entry_format == "hex" else one_line(payload.decode(errors="backslashreplace"))


def _position(options: Options, name: str) -> int | None:
    """Return the position that an option gives, None without one, as -1 is. Raises Failure."""
    text = getattr(options, name)
    if text in (None, "-1"):
        return None
    if (found := number_of(text)) is None:
        raise Failure(f"-{name} {text!r:.40} is not a position in a file")
    return found


def read_log_metadata(shell: Shell, options: Options) -> int:
    path = _entry_log(shell, options.words[0])
    for ledger_id, (count, size) in sorted(_ledgers_of(path).items()):
        print(f"LedgerId: {shell.shown_id(ledger_id)}  Entries: {count}  Size: {size}")
    return 0


def _ledgers_of(path: str) -> dict[int, tuple[int, int]]:
    """Return (entries, bytes) of each ledger in an entry log. Raises Failure."""
    found: dict[int, tuple[int, int]] = {}
    for entry in _entries_of(path):
        count, size = found.get(entry["ledger"], (0, 0))
        found[entry["ledger"]] = count + 1, size + entry["length"]
    return found


def _entries_of(path: str, *words: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of an entry log, as `bkspark dump` shows them with these options. Raises Failure."""
    command = [sys.executable, "-m", "bookie_service.admin.dump", "entry-log", "--json", *words, "--", path]
    is_found = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reading:
        assert reading.stdout is not None, "it is a pipe"
        for each in map(json.loads, reading.stdout):
            if isinstance(each.get("ledger"), int) and isinstance(each.get("entry"), int):
                is_found = True
                yield each
    if reading.returncode and not is_found:
        raise Failure(f"{path} cannot be read")


def active_ledgers(shell: Shell, options: Options) -> int:
    path = _entry_log(shell, required(options.logId, "logId"))
    exist = set(shell.output("ledger", "list")["ledgers"])
    for ledger_id in sorted(_ledgers_of(path).keys() & exist):
        print(shell.shown_id(ledger_id))
    return 0


def read_journal(shell: Shell, options: Options) -> int:
    def directories() -> list[Path]:
        found = shell.directories("journalDirectories", "journalDirectory")
        if options.dir is None:
            return found
        if Path(options.dir, "current") not in found:
            raise Failure(f"-dir {options.dir} is not a journal directory of {shell.file()}")
        return [Path(options.dir, "current")]

    words = ["--payloads", shell.entry_format] if options.msg else []
    return shell.bkspark("dump", "journal", _numbered(options.words[0], ".txn", directories), *words)


def list_files(shell: Shell, options: Options) -> int:
    is_any = options.journal or options.entrylog or options.index
    for is_wanted, title, keys, suffix in (
        (options.journal, "journal", ("journalDirectories", "journalDirectory"), ".txn"),
        (options.entrylog, "entry log", ("ledgerDirectories",), ".log"),
        (options.index, "index", ("indexDirectories", "ledgerDirectories"), ".idx"),
    ):
        if is_wanted or not is_any:
            print(f"--------- {title} files ---------")
            for path in sorted(_files(shell.directories(*keys), suffix)):
                print(path)
    return 0


def _files(directories: Iterable[Path], suffix: str) -> Iterable[Path]:
    for directory in directories:
        yield from directory.rglob(f"*{suffix}")


def regenerate_index(shell: Shell, options: Options) -> int:
    ids = [shell.ledger_id(each) for each in required(options.ledgerIds, "ledgerIds").split(",")]
    if options.dryRun:
        return shell.local("bookie", "--check")
    return shell.local("bookie", "--rebuild-index", *ids)


def init_bookie(shell: Shell, options: Options) -> int:
    if (shell.directories("ledgerDirectories")[0] / "VERSION").exists():
        raise Failure("the bookie is initialised already")
    print("the bookie initialises its directories at its first start: there is nothing to do now")
    return 0


def format_bookie(shell: Shell, options: Options) -> int:
    if options.nonInteractive and not options.force:
        raise Failure("with -nonInteractive a bookie is formatted only with -force")
    keys = ("journalDirectories", "journalDirectory")
    directories = [*shell.directories(*keys), *shell.directories("ledgerDirectories")]
    if shell.values.get("indexDirectories"):
        directories += shell.directories("indexDirectories")
    with _locked(directories):
        _check_one_bookie(directories)
        if not confirmed("Are you sure to delete all data of this bookie?", is_forced=options.force):
            return 1
        bookie = shell.local_bookie() if options.deleteCookie else None
        for directory in filter(Path.exists, dict.fromkeys(directories)):
            try:
                shutil.rmtree(directory)
            except OSError as error:
                raise Failure(f"{error.filename} cannot be deleted: {error.strerror}") from None
            print(f"deleted {directory}")
    if bookie is not None and shell.cluster("cookie", "delete", bookie):
        raise Failure(f"the files are deleted, the cookie of {bookie} is not", FAILED)
    return 0


def _check_one_bookie(directories: Iterable[Path]) -> None:
    """Raise Failure if readable cookies name different bookies: the data of another one must not be deleted."""
    from bkspark.errors import MetadataFormat

    first: tuple[Path, str] | None = None
    for directory in directories:
        if not (directory / "VERSION").exists():
            continue
        try:
            found = directory, _read_cookie(directory / "VERSION").bookie_id
        except MetadataFormat:
            continue
        first = first or found
        if found[1] != first[1]:
            raise Failure(
                f"{found[0]} belongs to bookie {found[1]}, and {first[0]} to {first[1]}: name the directories of one"
            )


@contextlib.contextmanager
def _locked(directories: Iterable[Path]) -> Iterator[None]:
    """Hold the locks that a bookie holds while it runs. Raises Failure if another process has one of them."""
    with contextlib.ExitStack() as locks:
        for directory in dict.fromkeys(each.parent for each in directories if each.exists()):
            try:
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                locks.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(f"the bookie runs: a process has locked {directory}; stop it first") from None
            except OSError as error:
                raise Failure(f"{directory} cannot be locked: {error.strerror}") from None
        yield


# ---- cookies ----


def update_cookie(shell: Shell, options: Options) -> int:
    given = (options.bookieId is not None, options.expandstorage, options.list, options.delete is not None)
    if sum(given) != 1:
        raise Failure("one and only one of -bookieId, -expandstorage, -list and -delete must be given")
    if options.list:
        return shell.cluster("cookie", "show", shell.local_bookie())
    if options.delete is not None:
        if options.delete not in ("", "force"):
            raise Failure(f"-delete {options.delete!r}: it takes force, or nothing")
        is_forced = options.force or options.delete == "force"
        if not confirmed("Are you sure to delete the bookie's cookie?", is_forced=is_forced):
            return 0
        return shell.cluster("cookie", "delete", shell.local_bookie())
    if options.bookieId is not None:
        return _rename_cookie(shell, options.bookieId)
    return _expand_storage(shell)


def _rename_cookie(shell: Shell, kind: str) -> int:
    """Name the stopped bookie by its IP address or its host name in its cookies.

    The files come first, then the new cookie of the metadata store, then the old one goes. In between the bookie does
    not start, and a repetition continues.
    """
    from bkspark.metadata import cookies

    renamed = renamed_bookie(shell, kind)
    if renamed is None:
        return 0
    directories = _cookie_directories(shell)
    with _locked(directories):
        found = {directory / "VERSION": _read_cookie(directory / "VERSION") for directory in directories}
        for path, cookie in found.items():
            if cookie.bookie_id not in renamed:
                raise Failure(f"{path} is the cookie of another bookie, {cookie.bookie_id}: nothing is changed")
        for path, cookie in found.items():
            _write_durably(path, cookies.encode(replace(cookie, bookie_id=renamed.new)))
            print(f"{path} is the cookie of {renamed.new}")
        stored = {each["bookie"] for each in shell.output("cookie", "list")["cookies"]}
        if renamed.new not in stored:
            if renamed.old not in stored:
                raise Failure(
                    f"the cluster has no cookie of {renamed.old} nor of {renamed.new}: was it decommissioned?"
                )
            code = shell.cluster("cookie", "create", renamed.new, directories[0] / "VERSION")
            if code:
                return code
        return shell.cluster("cookie", "delete", renamed.old) if renamed.old in stored else 0


def _cookie_directories(shell: Shell) -> list[Path]:
    """Return the directories of the configured bookie that hold its cookie. Raises Failure."""
    found = [*shell.directories("journalDirectories", "journalDirectory"), *shell.directories("ledgerDirectories")]
    if shell.values.get("indexDirectories"):
        # The bookies of bkspark have no such directories.
        found += [each for each in shell.directories("indexDirectories") if (each / "VERSION").exists()]
    return list(dict.fromkeys(found))


def _read_cookie(path: Path) -> Cookie:
    from bkspark.metadata import cookies

    try:
        return cookies.decode(path.read_bytes(), str(path))
    except OSError as error:
        raise Failure(f"the bookie has no cookie at {path}: {error.strerror}") from None


def _write_durably(path: Path, data: bytes) -> None:
    """Replace a file of the bookie. It stays readable for its owner, perhaps for its group, and for no others."""
    try:
        private_files.replace(path, data, like=path.stat())
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from None


def _expand_storage(shell: Shell) -> int:
    """Succeed if there is nothing to expand. A bookie of bkspark finds a ledger's index by the number of its
    directories, so directories cannot be added."""
    cookie = _read_cookie(shell.directories("ledgerDirectories")[0] / "VERSION")
    known = {*cookie.journal_directories, *cookie.ledger_directories, *(cookie.index_directories or ())}
    new = [each for path in _cookie_directories(shell) if (each := os.path.abspath(path.parent)) not in known]
    if new:
        raise Failure(
            f"{', '.join(new)} cannot be added, because the bookie's cookie names its directories for good: start "
            "another bookie there"
        )
    print(f"the cookie names all directories of {shell.file()}: there is nothing to add")
    return 0


def cookie(verb: str) -> VerbRun:
    """Return what runs a verb about a cookie in the metadata store."""

    def run(shell: Shell, options: Options) -> int:
        file = [required(options.cookie_file, "cookie-file")] if verb in ("create", "update") else []
        return shell.cluster("cookie", verb, options.words[0], *file)

    return run


def generate_cookie(shell: Shell, options: Options) -> int:
    words = ["--journal-dirs", required(options.journal_dirs, "journal-dirs")]
    words += ["--ledger-dirs", required(options.ledger_dirs, "ledger-dirs")]
    words += ["--index-dirs", options.index_dirs] if options.index_dirs else []
    words += ["--instance", options.instance_id] if options.instance_id else []
    file = required(options.output_file, "output-file")
    return shell.cluster("cookie", "generate", options.words[0], file, *words)
