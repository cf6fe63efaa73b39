"""`python -m tests.deployment.images` leaves no image, with programs that stand for buildah and mmdebstrap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUILDAH = """#!/bin/sh
cd "$STORAGE"
case $1 in
bud)
    while [ "$1" != --tag ]; do shift; done
    name=${2##*/}
    case $name in *-spark) exit 1 ;; esac
    touch "$name"
    ;;
rmi) rm "${2##*/}" ;;
esac
"""


def test_images_are_removed_when_the_next_one_cannot_be_built(tmp_path: Path) -> None:
    """Their names have a random part, so nothing would remove them later."""
    programs, storage = tmp_path / "programs", tmp_path / "storage"
    for folder in (programs, storage):
        folder.mkdir()
    for name, text in (("buildah", BUILDAH), *((name, "#!/bin/sh\n") for name in ("mmdebstrap", "unshare", "nsenter"))):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "tests.deployment.images"],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "STORAGE": str(storage)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "spark cannot be built" in done.stderr
    assert list(storage.iterdir()) == []
