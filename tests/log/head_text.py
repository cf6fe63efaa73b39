"""The stored head of a log, as an example."""

from __future__ import annotations

# The example of the module's docstring.
EXAMPLE = (
    '{"changes":["00000000000000aa"],"condemned":[],"deleted":false,"first_ordinal":0,"id":"00000000000000aa",'
    '"last_epochs":[["q1",7]],"open":[1],"pages":[],"root":"/ledgers","start":[0,-1,0],"tail":[[12,99,102400],[13]],'
    '"tail_ordinal":0,"version":1,"writer":null}'
)
