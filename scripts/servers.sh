#!/usr/bin/env bash
# Installs and starts a server of volumes, and prints the URL by which lanefs finds it.
# scripts/servers.sh SERVER PLACE [FILE]: an export of FILE at the socket PLACE, in the foreground.
# SERVER is nbd-server; nbdkit-memory, -file, -cow, -error (writes fail while PLACE.fail is there),
# -limit (two connections), -luks, -multi-conn, -partition (the first), -writeback (writes FILE only
# when it is flushed); qemu- or daemon- with raw, qcow2, vmdk, vhdx, vdi, vpc or luks. These make
# FILE, and FILE.key for luks. qemu- serves one connection at a time. ceph: a cluster in the folder
# PLACE, until `ceph PLACE stop`.
set -euo pipefail
usage() { sed -n '2,8s/^# //p' "$0" >&2; exit 1; }
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
format=${server#*-} key='' secret=()
[ "$format" != luks ] || key=key-secret=key secret=(--object "secret,id=key,file=$file.key")
# Makes an image in the format, unless there is one.
make_image() {
    [ ! -e "$file" ] || return 0
    if [ "$format" = luks ] && [ ! -e "$file.key" ]; then
        (umask 077 && head -c 24 /dev/urandom | base64 | tr -d '\n' >"$file.key")
    fi
    qemu-img create -q "${secret[@]}" -f "$format" ${key:+-o "$key"} "$file" 1G
}
kit() { exec nbdkit --foreground --unix "$socket" "$@"; }
export=x
[[ $server != nbdkit-* ]] || export=
echo "nbd+unix:///$export?socket=$socket" >&2
case $server in
nbdkit-memory) kit memory 1G ;;
nbdkit-file) kit file "$file" ;;
nbdkit-cow) kit --filter=cow file "$file" ;;
nbdkit-error)
    fail=$(realpath -m "$socket").fail
    kit --filter=error file "$file" error-pwrite-rate=100% error-zero-rate=100% error-file="$fail"
    ;;
nbdkit-limit) kit --filter=limit file "$file" limit=2 ;;
nbdkit-luks) kit --filter=luks file "$file" passphrase=+"$file.key" ;;
nbdkit-multi-conn) kit --filter=multi-conn file "$file" multi-conn-mode=emulate ;;
nbdkit-partition) kit --filter=partition file "$file" partition=1 ;;
nbdkit-writeback) kit --filter=cache file "$file" cache=writeback ;;
nbd-server)
    printf '[generic]\nunixsock = %s\nallowlist = true\n[x]\nexportname = %s\nflush = true\nfua = true\ntrim = true\n' \
        "$(realpath -m "$socket")" "$(realpath "$file")" >"$socket.conf"
    # Its own process: without one it would serve a single connection.
    nbd-server --config-file "$socket.conf" --pid-file "$socket.pid"
    trap 'kill "$(cat "$socket.pid")"' EXIT
    sleep infinity
    ;;
qemu-raw | qemu-qcow2 | qemu-vmdk | qemu-vhdx | qemu-vdi | qemu-vpc | qemu-luks)
    make_image
    exec qemu-nbd --persistent --export-name=x --discard=unmap --socket "$(realpath -m "$socket")" \
        "${secret[@]}" --image-opts "driver=$format${key:+,$key},file.filename=$(realpath "$file")"
    ;;
daemon-raw | daemon-qcow2 | daemon-vmdk | daemon-vhdx | daemon-vdi | daemon-vpc | daemon-luks)
    make_image
    node="driver=$format,node-name=disk,discard=unmap${key:+,$key}"
    exec qemu-storage-daemon "${secret[@]}" \
        --blockdev "$node,file.driver=file,file.filename=$(realpath "$file")" \
        --nbd-server "addr.type=unix,addr.path=$(realpath -m "$socket")" \
        --export type=nbd,id=export,node-name=disk,name=x,writable=on
    ;;
*) usage ;;
esac
