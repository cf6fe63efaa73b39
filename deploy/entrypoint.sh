#!/bin/sh
# The entry point of the image: `bookie`, `autorecovery`, `init`, `healthy`, `shell`, or any command of bkspark.
#
# Variables are those of Apache's image: BK_KEY sets the configuration key KEY, and
#   BK_zkServers, BK_CLUSTER_ROOT_PATH       name the cluster, unless BK_metadataServiceUri does
#   BK_DATA_DIR                              holds journal and ledgers (/data/bookkeeper)
#   BOOKIE_PORT, PORT0                       are other names of BK_bookiePort (3181)
#   HEALTH_CHECK_CMD                         is run instead of what `healthy` does
# Commands in a running container take the cluster from them, too: `docker exec NAME entrypoint cluster health`.
# `bookie` and `autorecovery` wait for ZooKeeper and make the cluster's root if it is not there.
set -eu

BK_DATA_DIR=${BK_DATA_DIR:-/data/bookkeeper}
export BK_bookiePort="${BK_bookiePort:-${PORT0:-${BOOKIE_PORT:-3181}}}"
export BK_ledgerDirectories="${BK_ledgerDirectories:-$BK_DATA_DIR/ledgers}"
# Two names of one key: the older one is only set where neither was given.
if [ -z "${BK_journalDirectories:-}" ]; then
  export BK_journalDirectory="${BK_journalDirectory:-$BK_DATA_DIR/journal}"
fi
if [ -z "${BK_metadataServiceUri:-}" ] && [ -n "${BK_zkServers:-}" ]; then
  root=${BK_zkLedgersRootPath:-${BK_CLUSTER_ROOT_PATH:-}/ledgers}
  # Servers are separated by commas in the key, perhaps with spaces, and by semicolons in the URI.
  servers=$(printf %s "$BK_zkServers" | tr -s ',[:space:]' ';' | sed 's/^;//; s/;$//')
  BK_metadataServiceUri="zk://$servers$root"
  export BK_metadataServiceUri
  unset BK_zkServers
fi
if [ -n "${BK_metadataServiceUri:-}" ]; then
  # bkspark's own commands take the cluster from this one.
  export BKSPARK_URI="${BKSPARK_URI:-$BK_metadataServiceUri}"
fi

# Make the root of the cluster unless it exists. Exit code 1 means that ZooKeeper does not answer yet.
init() {
  until bkspark cluster init --json; do
    [ $? -eq 1 ] || exit 2
    sleep 1
  done
}

# Whether these arguments of `bookie` run one. Commands to a running bookie, and --check, do not need the cluster.
runs_bookie() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --config=* | --set=* | --instances=* | --instance=* | --log-level=* | --log-format=* | --json) shift ;;
      --config | --set | --instances | --instance | --log-level | --log-format) shift $(($# > 1 ? 2 : 1)) ;;
      *) return 1 ;;
    esac
  done
}

case "${1:-bookie}" in
  bookie)
    [ $# -eq 0 ] || shift
    if runs_bookie "$@"; then
      init
    fi
    exec bkspark bookie --environment "$@"
    ;;
  autorecovery)
    init
    shift
    exec bkspark cluster autorecovery --environment "$@"
    ;;
  init)
    init
    ;;
  healthy)
    [ -z "${HEALTH_CHECK_CMD:-}" ] || exec sh -c "$HEALTH_CHECK_CMD"
    shift
    case $(tr '\0' ' ' </proc/1/cmdline) in
      # Autorecovery has no control socket. It ends when something is wrong with it.
      *' -m bookie_service.replication '*) exit 0 ;;
      # What the bookie was started with names it: --config, --set, and --instances of several bookies.
      *' -m bookie_service '*)
        if [ $# -eq 0 ]; then
          xargs -0 sh -c 'exec "$@" state' healthy </proc/1/cmdline || exit 1
          exit 0
        fi
        ;;
    esac
    exec bkspark bookie --environment "$@" state
    ;;
  shell)
    # Verbs about a bookie's files take its keys from a file.
    shift
    file=$(mktemp)
    trap 'rm -f "$file"' EXIT
    # A value may have a line end, which must not begin another key, or a backslash, which is an escape in the file.
    env -0 | tr '\n\0' ' \n' | sed -n 's/\\/\\\\/g; s/^BK_\([a-z][A-Za-z0-9_]*=.\)/\1/p' > "$file"
    bkspark shell -conf "$file" "$@"
    ;;
  *)
    exec bkspark "$@"
    ;;
esac
