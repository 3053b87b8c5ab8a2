#!/usr/bin/env bash
# Licences, duplicates and sources of all dependencies. Advisories need the network: LANEFS_ADVISORIES=1 asks for them.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
cargo deny --log-level error check bans licenses sources
if [ "${LANEFS_ADVISORIES:-0}" = 1 ]; then
    cargo deny --log-level error check advisories
fi
