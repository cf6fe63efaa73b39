"""`bkspark cookie`: a cookie from its file to its end, and a list that one damaged cookie does not end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import run
from bkspark.cli.__main__ import main
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from tests.bookie.child import new_cluster


@pytest.mark.cluster
def test_damaged_cookie_is_listed_with_its_error(
    zookeeper: ZooKeeperProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    text = new_cluster(zookeeper.connect_string, uuid.uuid4().hex)

    async def write() -> None:
        uri = MetadataUri.parse(text)
        tree = await open_tree(uri)
        await BookieRegistry(tree, uri).write_cookie(Cookie("a:1", ("/j",), ("/l",)), None)
        await tree.create(f"{uri.root}/cookies/b:2", b"damaged")
        await tree.close()

    asyncio.run(write())
    assert main(["cookie", "list", "--uri", text, "--json"]) == 0
    whole, damaged = json.loads(capfd.readouterr().out)["cookies"]
    assert (whole["bookie"], whole["journal_directories"]) == ("a:1", ["/j"])
    assert damaged["bookie"] == "b:2"
    assert "b:2 cannot be read" in damaged["error"]
    assert main(["cookie", "list", "--uri", text]) == 0
    output = capfd.readouterr()
    assert "b:2" in output.out
    assert "b:2 cannot be read" in output.err


@pytest.mark.cluster
def test_cookie_is_generated_created_replaced_and_deleted_with_its_bookie_only(
    zookeeper: ZooKeeperProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = new_cluster(zookeeper.connect_string, uuid.uuid4().hex)

    def cookie(command: str, bookie: str, *words: object, code: int = 0) -> str:
        assert main(["cookie", command, bookie, *map(str, words), "--uri", uri, "--json"]) == code
        output = capfd.readouterr()
        return output.err if code else output.out

    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    for file, bookie, directory in ((first, "a:1", "/l1"), (second, "a:1", "/l2,/l3"), (other, "b:2", "/l")):
        cookie("generate", bookie, file, "--journal-dirs", "/j", "--ledger-dirs", directory)
    assert "use `bkspark cookie create`" in cookie("update", "a:1", first, code=1)
    for command in ("create", "update"):
        assert "is the cookie of bookie b:2, not a:1" in cookie(command, "a:1", other, code=2)
    cookie("create", "a:1", first)
    assert "a:1 has a cookie already: use `bkspark cookie update`" in cookie("create", "a:1", second, code=1)
    assert json.loads(cookie("show", "a:1"))["ledger_directories"] == ["/l1"]
    cookie("update", "a:1", second)
    assert json.loads(cookie("show", "a:1"))["ledger_directories"] == ["/l2", "/l3"]
    for read_only in (False, True):
        with registered(uri, "a:1", read_only=read_only):
            assert "a:1 runs: stop it first" in cookie("delete", "a:1", code=1)
    cookie("delete", "a:1")
    assert "has no cookie" in cookie("show", "a:1", code=1)


@contextlib.contextmanager
def registered(uri: str, bookie: str, *, read_only: bool) -> Iterator[None]:
    """A bookie is registered while inside."""

    async def register() -> Tree:
        parsed = MetadataUri.parse(uri)
        tree = await open_tree(parsed)
        await BookieRegistry(tree, parsed).register(bookie, BookieAddress("127.0.0.1", 1), read_only=read_only)
        return tree

    tree = run(register)
    try:
        yield
    finally:
        run(tree.close)
