"""Topics of Apache Pulsar, read from their ledgers without a broker.

`names`, `metadata`, `messages`, `entries`, `schemas` take bytes and return values; `topic` reads a metadata store. A
topic's ledgers are never opened with recovery: a broker is writing the last one.
"""
