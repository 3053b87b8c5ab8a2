#!/usr/bin/env bash
# Installs and starts a server of volumes, and prints the URL by which lanefs finds it.
# scripts/servers.sh SERVER PLACE [FILE], where SERVER is nbdkit-memory, nbdkit-file, nbd-server,
# qemu-raw or qemu-qcow2: an export of FILE (made, if it is qemu's) at the socket PLACE, in the
# foreground. ceph: a cluster in the folder PLACE, in the background, until `ceph PLACE stop`.
set -euo pipefail
usage() { sed -n '2,5s/^# //p' "$0" >&2; exit 1; }
[ $# -ge 2 ] || usage
server=$1 socket=$2 file=${3:-}
scripts=$(cd "$(dirname "$0")" && pwd)
case $server in
nbdkit-*) "$scripts/setup.sh" --test ;;
*) "$scripts/setup.sh" --remote ;;
esac
if [ "$server" = ceph ]; then
    shift
    exec "$scripts/ceph.sh" "$@"
fi
[ "$server" = nbdkit-memory ] || [ -n "$file" ] || usage
export=x
[[ $server != nbdkit-* ]] || export=
echo "nbd+unix:///$export?socket=$socket" >&2
case $server in
nbdkit-memory) exec nbdkit --foreground --unix "$socket" memory 1G ;;
nbdkit-file) exec nbdkit --foreground --unix "$socket" file "$file" ;;
nbd-server)
    printf '[generic]\nunixsock = %s\nallowlist = true\n[x]\nexportname = %s\nflush = true\nfua = true\ntrim = true\n' \
        "$(realpath -m "$socket")" "$(realpath "$file")" >"$socket.conf"
    # Its own process: without one it would serve a single connection.
    nbd-server --config-file "$socket.conf" --pid-file "$socket.pid"
    trap 'kill "$(cat "$socket.pid")"' EXIT
    sleep infinity
    ;;
qemu-raw | qemu-qcow2)
    format=${server#qemu-}
    [ -e "$file" ] || qemu-img create -q -f "$format" "$file" 1G
    exec qemu-nbd --persistent --export-name=x --discard=unmap --socket "$(realpath -m "$socket")" --format "$format" "$file"
    ;;
*) usage ;;
esac
