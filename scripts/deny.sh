#!/usr/bin/env bash
# Checks licences, duplicates and sources of all dependencies. LANEFS_ADVISORIES=1 checks advisories
# too, which needs the network.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
cargo deny --log-level error check bans licenses sources
if [ "${LANEFS_ADVISORIES:-0}" = 1 ]; then
    cargo deny --log-level error check advisories
fi
