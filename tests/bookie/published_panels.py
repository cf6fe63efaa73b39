"""The expressions of the published Grafana dashboards of bookies and autorecovery, as facts about what they ask for.

Read in November 2026 in these files: `grafana/dashboards/bookkeeper.json` of apache/pulsar,
`dashboards.kubernetes/bookkeeper.json` and `recovery.json` of streamnative/apache-pulsar-grafana-dashboard, and
`pulsar/bookkeeper.json`, `bookkeeper-compaction.json`, `bookkeeper-read-cache.json` and `bookkeeper-read-use.json` of
lhotari/pulsar-grafana-dashboards, which Pulsar's Helm chart uses. apache/bookkeeper publishes none. Each expression is
here once. Variables of a dashboard have the value that "All" has: any text, also none. Two panels are left out: that of
Kubernetes' own metrics of volumes, and the usage of one directory, whose path is in the metric's name.
"""

from __future__ import annotations

_POD = 'kubernetes_pod_name=~".*"'
_BY_POD = " by (kubernetes_pod_name)"
_SELECTED = (f'cluster=~".*", {_POD}', f'job=~".*", {_POD}')
"""How streamnative's and Pulsar's dashboards, and how those of the chart, select bookies."""
_SERVER, _JOURNAL = "bookkeeper_server_", "bookie_journal_JOURNAL_"
_QUANTILES = ("0.5", "0.99", "0.999")


def _of_pulsar(selected: str) -> list[str]:
    """Pulsar's own dashboard: a panel for each bookie."""
    true = f'{selected}, success="true"'
    return [
        *(f"irate({_SERVER}{what}_ENTRY_count{{{true}}}[30s])" for what in ("ADD", "READ")),
        f"rate(bookie_WRITE_BYTES{{{selected}}}[30s])",
        f"irate(bookie_READ_BYTES{{{selected}}}[30s])",
        *(
            f'{_SERVER}{what}_ENTRY{{{true}, quantile="{share}"}}'
            for what in ("ADD", "READ")
            for share in ("0.5", "0.99")
        ),
        f"{_JOURNAL}QUEUE_SIZE{{{selected}}}",
        f"irate({_JOURNAL}SYNC_count{{{true}}}[30s])",
        f'{_JOURNAL}SYNC{{{true}, quantile="0.99"}}',
    ]


def _common(selected: str, window: str, requests: str) -> list[str]:
    """Panels that streamnative's dashboard and the chart's have. `requests`: the end of the names of requests."""
    true = f'{selected}, success="true"'
    shares = [f'{true}, quantile="{share}"' for share in _QUANTILES]
    both = [f"{_SERVER}{what}_ENTRY{requests}" for what in ("ADD", "READ")]
    journal = [
        f'{_JOURNAL}{what}{{{true}, quantile="{share}"}}'
        for what in ("ADD_ENTRY", "SYNC")
        for share in ("0.5", "0.99", "1.0")
    ]
    return [
        f"count(bookie_SERVER_STATUS{{{selected}}} == 1)\n   ",
        f"100 \n* \ncount(bookie_SERVER_STATUS{{{selected}}} == 1)\n/\ncount(bookie_SERVER_STATUS{{{selected}}})\n   ",
        *(f"sum(rate(bookie_{what}_BYTES{{{selected}}}[{window}]))" for what in ("WRITE", "READ")),
        *(f"sum(irate(bookie_{what}_BYTES{{{selected}}}[{window}])){_BY_POD}" for what in ("WRITE", "READ")),
        *(f"sum(irate({name}_count{{{selected}}}[{window}])){_BY_POD}" for name in both),
        *(f"sum({name}{{{labels}}}){_BY_POD}" for name in both for labels in shares),
        *(f"sum(irate({_JOURNAL}{what}_count{{{true}}}[{window}])){_BY_POD}" for what in ("SYNC", "ADD_ENTRY")),
        *(f"sum({_JOURNAL}{what}_SIZE{{{selected}}}){_BY_POD}" for what in ("QUEUE", "FORCE_WRITE_QUEUE")),
        *(f"sum({each}){_BY_POD}" for each in journal),
        *(f"sum(bookie_{what}_count{{{selected}}}){_BY_POD}" for what in ("ledgers", "entries")),
        *(f"sum(bookie_{what}_cache_size{{{selected}}}){_BY_POD}" for what in ("write", "read")),
        f"sum(bookie_ledger_writable_dirs{{{selected}}}){_BY_POD}",
    ]


def _of_streamnative(selected: str) -> list[str]:
    true = f'{selected}, success="true"'
    return [
        *(
            f"100 * sum(irate({_SERVER}{what}_ENTRY_count{{{true}}}[30s])) / "
            f"sum(irate({_SERVER}{what}_ENTRY_count{{{selected}}}[30s]))"
            for what in ("ADD", "READ")
        ),
        *(
            f'avg({_SERVER}{what}_ENTRY_REQUEST{{{true}, quantile="{share}"}} > 0)'
            for what in ("ADD", "READ")
            for share in _QUANTILES
        ),
        *(f"sum(irate({_SERVER}{what}_ENTRY_count{{{true}}}[30s]))" for what in ("READ", "ADD")),
        *(
            f"sum({_SERVER}{what}_ENTRY_{state}{{{selected}}}){_BY_POD}"
            for what in ("ADD", "READ")
            for state in ("IN_PROGRESS", "BLOCKED")
        ),
        *(
            f"sum(rate(bookie_RECLAIMED_{what}_SPACE_BYTES{{{selected}}}[30s])){_BY_POD}"
            for what in ("COMPACTION", "DELETION")
        ),
    ]


def _of_the_chart(selected: str) -> list[str]:
    true = f'{selected}, success="true"'
    return [
        *(
            f"sum(irate({_SERVER}{what}_ENTRY_count{{{labels}}}[1m]))"
            for what in ("ADD", "READ")
            for labels in (selected, 'success="false"', 'success="true"')
        ),
        *(
            f'avg({_SERVER}{what}_ENTRY{{{true}, quantile="{share}"}})'
            for what in ("ADD", "READ")
            for share in _QUANTILES
        ),
        *(
            f'sum(irate({_SERVER}{what}_ENTRY_count{{{selected}, success="{success}"}}[1m])){_BY_POD}'
            for what in ("READ", "ADD")
            for success in ("true", "false")
        ),
        f"sum(irate(bookie_read_cache_misses{{{selected}}}[1m])){_BY_POD} / "
        f"sum(irate(bookie_read_cache_hits{{{selected}}}[1m])){_BY_POD}",
        f"sum(bookie_DELETED_LEDGER_TOTAL{{{selected}}}){_BY_POD}",
        *(
            f'sum by(kubernetes_pod_name, thread) ({_SERVER}thread_executor_queue{{{selected}, thread=~"{pool}-.*"}})'
            for pool in ("BookieHighPriorityThread", "BookieReadThreadPool")
        ),
        *(f"rate(bookie_RECLAIMED_{what}_SPACE_BYTES[5m]) " for what in ("COMPACTION", "DELETION")),
        "rate(bookie_MAJOR_COMPACTION_TOTAL[5m])",
        "bookie_ACTIVE_ENTRY_LOG_TOTAL",
        "bookie_ACTIVE_LEDGER_TOTAL",
        "bookie_DELETED_LEDGER_TOTAL",
        f"(sum(rate(bookie_readahead_batch_count_count[1m])){_BY_POD} + "
        f"sum(rate(bookie_readahead_batch_count_sum[1m])){_BY_POD}) / sum(rate(bookie_read_entry_count[1m])){_BY_POD}",
        f'sum(irate({_SERVER}READ_ENTRY_REQUEST_count{{success="false"}}[1m])){_BY_POD}',
        *(f"sum(irate({_SERVER}READ_ENTRY{end}_count[1m])){_BY_POD}" for end in ("_REQUEST", "")),
        f"sum(irate(bookie_READ_BYTES[1m])){_BY_POD}",
        "irate(bookie_read_cache_size[1m])",
        f"sum(irate(bookie_read_entry_sum[1m])){_BY_POD}",
    ]


BOOKIES = list(
    dict.fromkeys(
        [
            *_of_pulsar(_SELECTED[0]),
            *_common(_SELECTED[0], "30s", "_REQUEST"),
            *_common(_SELECTED[1], "60s", ""),
            *_of_streamnative(_SELECTED[0]),
            *_of_the_chart(_SELECTED[1]),
        ]
    )
)
"""What Apache's bookie 4.18 has a value for, while it is loaded; the times of whole adds only by V3."""

READ_ONLY = [f"count(bookie_SERVER_STATUS{{{selected}}} == 0)\n" for selected in _SELECTED]
"""What has a value while a bookie is read-only."""

GONE = [
    *(f"bookie_storage_{what}{{{_SELECTED[0]}}}" for what in ("ledgers_count", "entries_count")),
    *(f"bookie_storage_{what}_cache_size{{{_SELECTED[0]}}}" for what in ("write", "read")),
    *(f'{_JOURNAL}{what}{{{_SELECTED[0]}, success="true", quantile="1"}}' for what in ("QUEUE_LATENCY", "SYNC")),
    f"sum(irate({_JOURNAL}CB_QUEUE_SIZE{{{_SELECTED[0]}}} [30s])){_BY_POD}",
    *(
        f'sum(irate(bookie_read_cache_{what}_count{{{_SELECTED[0]}, success="true"}}[1m])){_BY_POD}'
        for what in ("hits", "misses")
    ),
    *(f"sum(irate(bookie_read_cache_{what}_count[1m])){_BY_POD}" for what in ("hits", "misses")),
    f"(sum(irate(bookie_read_cache_misses_count[1m])){_BY_POD} / "
    f"sum(irate(bookie_read_cache_hits_count[1m])){_BY_POD}) * 100",
    *(
        f"sum(bookie_{what}_COUNT{{{_SELECTED[0]}}}){_BY_POD}"
        for what in ("DELETED_LEDGER", "MAJOR_COMPACTION", "MINOR_COMPACTION")
    ),
    f"sum(irate({_SERVER}BookieReadThreadPool_task_execution_sum[1m])){_BY_POD}",
    *(f"sum({_SERVER}BookieReadThreadPool_queue_{thread}){_BY_POD}" for thread in range(8)),
    f'sum({_SERVER}BookieReadThreadPool_task_queued{{success="true",quantile="0.99"}}){_BY_POD}',
]
"""What Apache's bookie 4.18 has no value for: the names were those of earlier versions, or need
`enableTaskExecutionStats`."""

RECOVERY = [
    'sum(auditor_NUM_UNDER_REPLICATED_LEDGERS_count{cluster=~".*", success="true"})',
    *(
        f'irate(replication_worker_NUM_BYTES_{what}_sum{{{_SELECTED[0]}, success="true"}}[1m])'
        for what in ("READ", "WRITTEN")
    ),
    *(f"irate(replication_worker_NUM_ENTRIES_{what}{{{_SELECTED[0]}}}[1m])" for what in ("READ", "WRITTEN")),
]
"""What Apache's autorecovery has a value for, in a process of its own."""
