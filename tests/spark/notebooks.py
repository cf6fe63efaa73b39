"""`python -m tests.spark.notebooks`: runs the notebooks and stores what their cells print and draw in them.

    --uri URI    a cluster (`bkspark local --bookies 3`); the notebooks leave nothing on it but a topic of Pulsar

A notebook is run as Jupyter does, as far as these need it: cells in order in one namespace; what a cell prints, and the
figures that are open when it ends, are its outputs.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

from bkspark.blocking import Client
from tests.pulsar import clicks

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = ("tour.ipynb", "cluster.ipynb", "pulsar.ipynb")
PICTURE_DPI = 64


def run(path: Path) -> dict[str, Any]:
    """Return the notebook with what its cells print and draw; BKSPARK_URI must name a cluster.

    Raises:
        Exception: whatever a cell raises.
    """
    notebook: dict[str, Any] = json.loads(path.read_text())
    names: dict[str, Any] = {}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{path.name} cell {number}", "exec"), names)
        cell["execution_count"] = number
        text = printed.getvalue()
        outputs = [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}] if text else []
        cell["outputs"] = [*outputs, *_pictures()]
    return notebook


def _pictures() -> list[dict[str, Any]]:
    """Return the open figures as outputs, and close them."""
    import matplotlib.pyplot as plt

    pictures = []
    for number in plt.get_fignums():
        drawn = io.BytesIO()
        plt.figure(number).savefig(drawn, format="png", dpi=PICTURE_DPI, metadata={"Software": None})
        plt.close(number)
        png = base64.b64encode(drawn.getvalue()).decode()
        pictures.append({"data": {"image/png": png}, "metadata": {}, "output_type": "display_data"})
    return pictures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.notebooks", description=__doc__.partition("\n")[0])
    parser.add_argument("--uri", required=True)
    os.environ["BKSPARK_URI"] = parser.parse_args().uri
    os.environ["MPLBACKEND"] = "agg"
    with Client(os.environ["BKSPARK_URI"]) as client:
        clicks.store(client)
    for name in NAMES:
        path = FOLDER / name
        path.write_text(json.dumps(run(path), indent=1, ensure_ascii=False) + "\n")
        print(f"{name}: stored")


if __name__ == "__main__":
    main()
