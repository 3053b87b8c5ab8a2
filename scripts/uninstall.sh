#!/usr/bin/env bash
# Removes the files of scripts/install.sh, and the folders that it made, if they are empty then:
# scripts/uninstall.sh, with the same PREFIX and DESTDIR.
set -euo pipefail
to=${DESTDIR:-}
list=$to${PREFIX:-/usr/local}/share/lanefs/installed
if [ ! -e "$list" ]; then
    echo "nothing to remove: there is no $list, which make install leaves; PREFIX and DESTDIR as for it" >&2
    exit 1
fi
mapfile -t entries < "$list"
for entry in "${entries[@]}"; do
    case $entry in "f "*) rm -f "$to${entry#f }" ;; esac
done
# The deepest folders first.
printf '%s\n' "${entries[@]}" | sed -n 's/^d //p' | sort -r | while IFS= read -r dir; do
    [ ! -d "$to$dir" ] || rmdir --ignore-fail-on-non-empty "$to$dir"
done
# The cache of the dynamic linker has the library.
if [ -z "$to" ] && [ "$(id -u)" -eq 0 ]; then
    PATH=$PATH:/usr/sbin:/sbin
    ! command -v ldconfig >/dev/null || ldconfig
fi
