#!/usr/bin/env bash
# Shows lanefs in under a minute: makes a volume, fills it from a real tree, lists and changes it,
# kills the writer in the middle of a burst, recovers, and has e2fsck (and, as root, the kernel)
# judge.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
bin=${LANEFS:-$(realpath "${CARGO_TARGET_DIR:-target}")/release/lanefs}
dir=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-demo.XXXXXX")
mounted=
cleanup() {
    [ -z "$mounted" ] || umount "$mounted" || true
    rm -rf "$dir"
}
trap cleanup EXIT

bold='' dim='' green='' off=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\033[1m' dim=$'\033[2m' green=$'\033[32m' off=$'\033[0m'
fi
title() { printf '\n%s%s%s\n' "$bold" "$*" "$off"; }
# Prints a command as a user would type it, and runs it.
run() {
    local word line=
    for word; do
        case $word in
            *[[:space:]]*) line+=" '$word'" ;;
            *) line+=" $word" ;;
        esac
    done
    printf '%s$%s%s\n' "$dim" "$line" "$off"
    "$@"
}
lanefs() { "$bin" "$@"; }
good() { printf '%s✔ %s%s\n' "$green" "$*" "$off"; }

# The judge. It is no part of a build.
command -v e2fsck >/dev/null || scripts/setup.sh --demo

# A real tree of a few hundred megabytes at most: the first of these that is large enough.
tree=
for candidate in /usr/share /usr/share/doc /usr/include /usr/lib/python3 .; do
    [ -d "$candidate" ] || continue
    # Parts of it may be closed to this user.
    size=$(du -sm "$candidate" 2>/dev/null | cut -f1) || continue
    if [ "${size:-0}" -ge 20 ] && [ "$size" -le 1200 ]; then
        tree=$candidate
        break
    fi
done
tree=${tree:-/usr/share/doc}

cd "$dir"
title "1. Make a volume, as mke2fs -t ext4 would"
run lanefs mkfs --size 3G -L demo disk.img

title "2. Fill it from a real tree: $tree"
run lanefs mkdir disk.img:/data
began=$(date +%s%N)
run lanefs import "$tree" disk.img:/data
took=$((($(date +%s%N) - began) / 1000000))
echo "$(find "$tree" -mindepth 1 2>/dev/null | wc -l) files, $(du -sh "$tree" 2>/dev/null | cut -f1) in $((took / 1000)).$(printf %03d $((took % 1000))) s"

title "3. Look at it"
run lanefs tree -L 2 -d disk.img:/ | head -n 20 || true
run lanefs df -h disk.img
run lanefs info disk.img

title "4. Change files, without root and without a mount"
echo "written at $(date)" > note.txt
run lanefs mkdir -p disk.img:/home/alice/projects
run lanefs cp note.txt disk.img:/home/alice/
run lanefs chmod u=rw,go= disk.img:/home/alice/note.txt
run lanefs chown -R 1000:1000 disk.img:/home/alice
run lanefs xattr set user.origin "make demo" disk.img:/home/alice/note.txt
run lanefs mv disk.img:/home/alice/note.txt disk.img:/home/alice/letter.txt
run lanefs ln -s ../letter.txt disk.img:/home/alice/projects/latest
run lanefs ls -lRn disk.img:/home

title "5. Kill the writer in the middle of a burst"
run lanefs mkdir disk.img:/burst
printf '%s$ lanefs burst disk.img:/burst & sleep 2; kill -KILL $!%s\n' "$dim" "$off"
"$bin" burst disk.img:/burst > announced &
writer=$!
sleep 2
kill -KILL "$writer" || { echo "the burst ended before it could be killed" >&2; exit 1; }
wait "$writer" 2>/dev/null || true
echo "killed after $(wc -l < announced) files were announced as durable"
run lanefs info disk.img | grep State

title "6. Recover"
run lanefs recover disk.img
printf '%s$ lanefs burst --check disk.img:/burst < announced%s\n' "$dim" "$off"
good "$("$bin" burst --check disk.img:/burst < announced)"

title "7. The judges"
run e2fsck -fn disk.img
good "e2fsck finds nothing"
if [ "$(id -u)" -eq 0 ] && mkdir mnt && mount -o loop,ro disk.img mnt 2>/dev/null; then
    mounted=$dir/mnt
    printf '%s$ mount -o loop,ro disk.img mnt && diff -r --no-dereference %s mnt/data%s\n' "$dim" "$tree" "$off"
    diff -r --no-dereference "$tree" mnt/data
    good "the kernel mounts it and reads every file as it was imported"
fi
