"""JVMs of the tests share an archive of classes, and do without one that is not there or does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.peer import ARCHIVE, JVM_OPTIONS, Peer

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("content", [None, b"not an archive"], ids=["no archive", "damaged archive"])
def test_client_answers_without_an_archive_that_fits(classpath: str, tmp_path: Path, content: bytes | None) -> None:
    archive = tmp_path / "classes.jsa"
    if content is not None:
        archive.write_bytes(content)
    options = [option.replace(str(ARCHIVE), str(archive)) for option in JVM_OPTIONS]
    assert options != list(JVM_OPTIONS)
    peer = Peer(classpath, tmp_path / "java.log", options)
    assert "error" not in peer.call("disconnect", uri="zk://127.0.0.1:1/ledgers", protocol="v2")
    peer.end()


def test_client_takes_its_classes_from_the_archive(classpath: str, tmp_path: Path) -> None:
    if not ARCHIVE.is_file():
        pytest.skip("`make` or `python -m tests.interop.build` archives the classes")
    log = tmp_path / "loaded"
    peer = Peer(classpath, tmp_path / "java.log", (*JVM_OPTIONS, f"-Xlog:class+load:file={log}"))
    peer.call("disconnect", uri="zk://127.0.0.1:1/ledgers", protocol="v2")
    peer.end()
    own = [line for line in log.read_text().splitlines() if "bkspark.interop.Commands " in line]
    assert own
    assert all("shared objects file" in line for line in own)
