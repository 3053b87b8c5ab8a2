#!/usr/bin/env bash
# Runs tests: scripts/filtered.sh COMMAND..., which is `cargo test` or like it. For cargo a run
# without a test is a success. Here it is a failure, and so is a filter behind `--` that matches no
# test.
set -euo pipefail
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" 2>&1 | tee "$said"
if ! grep -qE '^running [1-9][0-9]* tests?$' "$said"; then
    echo "no test ran: $*" >&2
    exit 1
fi
while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
for filter in "${@:2}"; do
    [[ $filter != -* ]] || continue
    if ! awk -v filter="$filter" '$1 == "test" && index($2, filter) { found = 1 } END { exit !found }' "$said"; then
        echo "no test has $filter in its name" >&2
        exit 1
    fi
done
