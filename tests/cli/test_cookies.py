"""`bkspark cookie list`: one cookie that cannot be read does not end the list."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from bkspark.cli.__main__ import main
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.cookies import Cookie
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
