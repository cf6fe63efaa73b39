"""The web console of a cluster: `bkspark console`, or `python -m bkspark_console`.

It is a process of its own. It reads the metadata store, ledgers and logs as a client, and the HTTP of each bookie. It
changes nothing itself: each change is a request to a bookie's `/api/v2`, which decides and keeps the audit log.
"""
