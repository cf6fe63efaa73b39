"""Nodes of a cluster's metadata whose content a test chooses."""

from __future__ import annotations

from collections.abc import Mapping

from bkspark.client import Client
from bkspark.errors import NodeExists


async def store(uri: str, nodes: Mapping[str, bytes]) -> None:
    """Store the contents of nodes below the cluster's root."""
    async with Client(uri) as client:
        tree = await client.tree()
        for path, data in nodes.items():
            try:
                await tree.create(f"{client.uri.root}/{path}", data, make_parents=True)
            except NodeExists:
                await tree.set(f"{client.uri.root}/{path}", data, -1)
