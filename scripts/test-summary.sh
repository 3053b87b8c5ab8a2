#!/usr/bin/env bash
# Sums up the output of `cargo test --no-fail-fast` on standard input in about ten lines:
# scripts/test-summary.sh STATUS SECONDS LEFT, with cargo's exit status, the duration, and the files
# left in TMPDIR. Fails if a test failed, a binary died without a result, cargo failed, or a file
# was left.
set -euo pipefail
exec awk -v status="$1" -v seconds="$2" -v left="$3" '
    # A binary that begins while the one before has no result: the one before died.
    function died() { if (name != "") fail(name ": died without a result") }
    function fail(what) { failed++; failures[failed] = what }
    function took(what, time) { times[++binaries] = time; of[binaries] = what }

    /^ +Running / { died(); name = $2 == "unittests" ? $4 : $2; sub(/.*\/deps\//, "", name); sub(/^\(/, "", name)
        sub(/\)$/, "", name); sub(/-[0-9a-f]+$/, "", name); next }
    /^ +Doc-tests / { died(); name = "doc " $2; next }
    # The last list of failures has only names.
    /^failures:$/ { listed = 1; known = 0; split("", names); next }
    /^test result: / {
        for (i = 1; i <= NF; i++) {
            if ($i ~ /^passed/) passed += $(i - 1)
            if ($i ~ /^ignored/) ignored += $(i - 1)
            if ($i ~ /^failed/) said = $(i - 1)
        }
        for (i = 1; i <= said; i++) fail(name " " (i in names ? names[i] : "?"))
        took(name, substr($NF, 1, length($NF) - 1) + 0)
        name = ""; listed = known = 0; split("", names); next
    }
    listed && /^    [^ ]/ { names[++known] = $1 }

    END {
        died()
        if (status != 0 && !failed) fail("cargo ended with status " status ": see above")
        if (left != "") {
            count = split(left, entries, "\n")
            fail(count " left in TMPDIR: " entries[1] (count > 1 ? ", ..." : ""))
        }
        printf "\n%d binaries in %d s\n", binaries, seconds
        for (n = 1; n <= 3 && n <= binaries; n++) {
            longest = 0
            for (i in times) if (!longest || times[i] > times[longest]) longest = i
            printf "%8.1f s  %s\n", times[longest], of[longest]
            delete times[longest]
        }
        for (i = 1; i <= failed && i <= 5; i++) print "FAILED " failures[i]
        if (failed > 5) print "and " failed - 5 " more: see target/test.log"
        printf "%d ignored\n", ignored
        printf "%d passed, %d failed\n", passed, failed
        exit failed > 0
    }'
