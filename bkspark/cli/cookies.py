"""`bkspark cookie`: the cookies of bookies in the metadata store, which say to which bookie directories belong."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bkspark.cli.arguments import Commands, add_command, bookie_id, client_zookeeper, cluster_uri
from bkspark.cli.output import print_facts, print_json, print_result, print_table, progress
from bkspark.errors import ConfigurationError, MetadataError, NodeExists

if TYPE_CHECKING:
    from bkspark.metadata.bookies import BookieRegistry
    from bkspark.metadata.cookies import Cookie

_Result = TypeVar("_Result")
FILE_BYTES_MAX = 64 * 1024


def add_parser(commands: Commands) -> None:
    """Add `bkspark cookie` and its commands."""
    group = commands.add_parser("cookie", help="list, show, create, change and delete the cookies of bookies")
    parsers = group.add_subparsers(metavar="COMMAND", required=True, dest="cookie_command")
    add_command(parsers, "list", list_cookies, "list all cookies")
    _with_bookie(add_command(parsers, "show", show, "show the cookie of a bookie"))
    creating = _with_bookie(add_command(parsers, "create", create, "store the first cookie of a bookie"))
    creating.add_argument("file", type=Path, metavar="FILE", help="the cookie, as in VERSION of a bookie's directory")
    updating = _with_bookie(add_command(parsers, "update", update, "replace the cookie of a bookie"))
    updating.add_argument("file", type=Path, metavar="FILE", help="the cookie, as in VERSION of a bookie's directory")
    _with_bookie(add_command(parsers, "delete", delete, "delete the cookie of a bookie that does not run"))
    generating = _with_bookie(add_command(parsers, "generate", generate, "write a cookie to a file"))
    generating.add_argument("file", type=Path, metavar="FILE", help="where to write it")
    for name in ("journal", "ledger"):
        generating.add_argument(f"--{name}-dirs", required=True, metavar="DIRS", help="directories, comma separated")
    generating.add_argument("--index-dirs", metavar="DIRS", help="index directories, if they are separate")
    generating.add_argument("--instance", metavar="ID", help="the cluster's instance id (default: that of the cluster)")


def _with_bookie(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("bookie", type=bookie_id, metavar="ID", help="the bookie")
    return parser


def _with_registry(
    arguments: argparse.Namespace, act: Callable[[BookieRegistry], Awaitable[_Result]], change: str = ""
) -> _Result:
    """Connect, and return the result of `act` on the cluster's registry; record the change, if there is one."""
    import asyncio

    from bkspark.cli.changes import record
    from bkspark.metadata.bookies import BookieRegistry
    from bkspark.metadata.uri import MetadataUri
    from bkspark.metadata.zookeeper import open_tree

    async def run() -> _Result:
        uri = MetadataUri.parse(cluster_uri(arguments))
        tree = await open_tree(uri, client_zookeeper(arguments))
        try:
            result = await act(BookieRegistry(tree, uri))
            if change:
                await record(tree, uri, f"{change} bookie {arguments.bookie}")
            return result
        finally:
            await tree.close()

    return asyncio.run(run())


def _facts(cookie: Cookie) -> dict[str, Any]:
    return {
        "bookie": cookie.bookie_id,
        "journal_directories": list(cookie.journal_directories),
        "ledger_directories": list(cookie.ledger_directories),
        "index_directories": None if cookie.index_directories is None else list(cookie.index_directories),
        "instance_id": cookie.instance_id,
    }


def list_cookies(arguments: argparse.Namespace) -> int:
    """List all cookies."""

    from bkspark.errors import MetadataFormat

    async def read(registry: BookieRegistry) -> list[dict[str, Any]]:
        found = []
        for bookie in sorted(await registry.known()):
            try:
                stored = await registry.read_cookie(bookie)
            except MetadataFormat as error:
                found.append({"bookie": bookie, "error": str(error)})
            else:
                found += [] if stored is None else [_facts(stored.cookie)]
        return found

    found = _with_registry(arguments, read)
    if arguments.json:
        print_json({"cookies": found})
        return 0
    rows = [(each["bookie"], each.get("journal_directories"), each.get("ledger_directories")) for each in found]
    print_table(["bookie", "journal directories", "ledger directories"], rows)
    for each in found:
        if "error" in each:
            progress(each["error"])
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Show a cookie."""

    async def read(registry: BookieRegistry) -> Cookie:
        found = await registry.read_cookie(arguments.bookie)
        if found is None:
            raise MetadataError(f"bookie {arguments.bookie} has no cookie")
        return found.cookie

    facts = _facts(_with_registry(arguments, read))
    if arguments.json:
        print_json(facts)
    else:
        print_facts(facts)
    return 0


def create(arguments: argparse.Namespace) -> int:
    """Store a new cookie."""
    cookie = _from_file(arguments)

    async def write(registry: BookieRegistry) -> None:
        try:
            await registry.write_cookie(cookie, None)
        except NodeExists:
            raise MetadataError.answer(
                f"bookie {arguments.bookie} has a cookie already: use `bkspark cookie update`"
            ) from None

    _with_registry(arguments, write, "create the cookie of")
    _print_outcome(arguments, "created")
    return 0


def update(arguments: argparse.Namespace) -> int:
    """Replace a cookie."""
    cookie = _from_file(arguments)

    async def write(registry: BookieRegistry) -> None:
        found = await registry.read_cookie(arguments.bookie)
        if found is None:
            raise MetadataError(f"bookie {arguments.bookie} has no cookie: use `bkspark cookie create`")
        await registry.write_cookie(cookie, found.version)

    _with_registry(arguments, write, "replace the cookie of")
    _print_outcome(arguments, "updated")
    return 0


def delete(arguments: argparse.Namespace) -> int:
    """Delete a cookie."""

    async def remove(registry: BookieRegistry) -> None:
        if (await registry.states()).get(arguments.bookie) in ("available", "readonly"):
            raise MetadataError(f"bookie {arguments.bookie} runs: stop it first")
        await registry.delete_cookie(arguments.bookie)

    _with_registry(arguments, remove, "delete the cookie of")
    _print_outcome(arguments, "deleted")
    return 0


def generate(arguments: argparse.Namespace) -> int:
    """Write a cookie to a file."""
    from bkspark.metadata import cookies
    from bkspark.metadata.cookies import Cookie

    instance = arguments.instance
    if instance is None:

        async def read(registry: BookieRegistry) -> str | None:
            return await registry.instance_id()

        instance = _with_registry(arguments, read)
    index = None if arguments.index_dirs is None else _directories(arguments.index_dirs)
    journals, ledgers = _directories(arguments.journal_dirs), _directories(arguments.ledger_dirs)
    data = cookies.encode(Cookie(arguments.bookie, journals, ledgers, instance, index))
    try:
        arguments.file.write_bytes(data)
    except OSError as error:
        raise ConfigurationError(f"FILE {str(arguments.file)!r} cannot be written: {error.strerror}") from error
    _print_outcome(arguments, "generated")
    return 0


def _directories(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ConfigurationError(f"{text!r} names no directory")
    return found


def _from_file(arguments: argparse.Namespace) -> Cookie:
    """Return the cookie in the file. Raises ConfigurationError: it cannot be read, or belongs to another bookie."""
    from bkspark.metadata import cookies

    try:
        with open(arguments.file, "rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"FILE {str(arguments.file)!r} cannot be read: {error.strerror}") from error
    cookie = cookies.decode(data, str(arguments.file))
    if cookie.bookie_id != arguments.bookie:
        raise ConfigurationError(f"{arguments.file} is the cookie of bookie {cookie.bookie_id}, not {arguments.bookie}")
    return cookie


def _print_outcome(arguments: argparse.Namespace, what: str) -> None:
    sentence = f"the cookie of bookie {arguments.bookie} is {what}"
    print_result({"bookie": arguments.bookie, what: True}, sentence, as_json=arguments.json)
