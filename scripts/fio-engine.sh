#!/usr/bin/env bash
# Builds the engine for the installed fio: scripts/fio-engine.sh LIBRARY OUT. LIBRARY is liblanefs.a
# (liblanefs_capi.a of cargo), OUT the liblanefs_fio.so to make, which contains the library.
set -euo pipefail
library=$(realpath "$1")
out=$(realpath -m "$2")
cd "$(dirname "$0")/.."
headers=$(scripts/fio-headers.sh)
# -z nodelete: the library's threads outlive a dlclose. fio's own headers are not clean of warnings.
cc -std=gnu11 -O2 -g -fPIC -shared -Wall -Wno-unused-parameter -include "$headers/config-host.h" \
    -isystem "$headers" -I crates/capi/include crates/capi/fio/engine.c "$library" \
    -Wl,-z,nodelete -Wl,--exclude-libs,ALL -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc -o "$out"
