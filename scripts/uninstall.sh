#!/usr/bin/env bash
# Removes what scripts/install.sh has put there, and the folders that it made, if nothing else is in them: scripts/uninstall.sh,
# with the PREFIX and DESTDIR of then.
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
# Folders below others first.
printf '%s\n' "${entries[@]}" | sed -n 's/^d //p' | sort -r | while IFS= read -r dir; do
    [ ! -d "$to$dir" ] || rmdir --ignore-fail-on-non-empty "$to$dir"
done
