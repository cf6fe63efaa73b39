"""The version of bkspark: setup.cfg, `bkspark.__version__` and `bkspark --version` take it from here."""

VERSION = "0.1.0"
"""CHANGELOG.md begins with the section of this version."""
