#!/usr/bin/env bash
# A Ceph cluster in a folder, on loopback, for tests: scripts/ceph.sh FOLDER [WORD], with the words
# start [PROCESS]   a monitor, a manager, three OSDs of 2 GiB, a pool lanefs with an image disk of
#                   512 MiB, and prints its URL; stops when PROCESS has ended
# stop; kill N, revive N  ends all, and removes the folder; kills an OSD, starts it again
# gateway           serves S3 to the key "key" with the secret "secret", and prints its URL
set -euo pipefail
usage() { sed -n '2,6s/^# //p' "$0" >&2; exit 1; }
[ $# -ge 1 ] || usage
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$1"
dir=$(cd "$1" && pwd) word=${2:-start} osd=${3:-} until=${3:-}
conf=$dir/ceph.conf
export CEPH_CONF=$conf CEPH_ARGS="--conf $conf"

# Ends a daemon of this folder, if it is still the process that its file names.
end() {
    local pid
    pid=$(cat "$dir/$1.pid" 2>/dev/null) || return 0
    grep -qsaF "$conf" "/proc/$pid/cmdline" || return 0
    kill -9 "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
}
stop() { for name in rgw osd.0 osd.1 osd.2 mgr.a mon.a; do end "$name"; done; }
# Sets `port` to one that nobody listens at now.
choose_port() {
    port=$((20000 + RANDOM % 10000))
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
}
daemon() {
    mkdir -p "$dir/crash/posted"
    "ceph-${1%.*}" --id "${1#*.}" --conf "$conf" </dev/null >>"$dir/out.log" 2>&1
}

case $word in
start) ;;
stop) stop; rm -rf --one-file-system "$dir"; exit ;;
kill) end "osd.${osd:?}"; exit ;;
revive) daemon "osd.${osd:?}"; exit ;;
gateway)
    choose_port
    mkdir -p "$dir/rgw"
    # By itself it talks to none but a monitor that encrypts.
    radosgw --conf "$conf" --name client.admin --ms_mon_client_mode crc --rgw_data "$dir/rgw" \
        --rgw_frontends "beast endpoint=127.0.0.1:$port" --pid_file "$dir/rgw.pid" \
        --log_file "$dir/rgw.log" </dev/null >>"$dir/out.log" 2>&1
    timeout 60 radosgw-admin user create --uid user --display-name user --access-key key --secret secret \
        </dev/null >>"$dir/out.log" 2>&1
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
    echo "http://127.0.0.1:$port"
    exit
    ;;
*) usage ;;
esac

failed() {
    tail -5 "$dir"/*.log >&2 || true
    echo "the cluster did not start" >&2
    stop
}
trap failed ERR
trap 'stop; exit 1' INT TERM
fsid=$(cat /proc/sys/kernel/random/uuid)
choose_port
cat >"$conf" <<END
[global]
fsid = $fsid
mon_host = v2:127.0.0.1:$port/0
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
keyring = $dir/keyring
run_dir = $dir
admin_socket = $dir/\$name.\$pid.asok
log_file = $dir/\$name.log
mon_cluster_log_file = $dir/cluster.log
crash_dir = $dir/crash
osd_crush_chooseleaf_type = 0
osd_pool_default_size = 2
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
[client]
admin_socket =
log_file =
[mon]
mon_data = $dir/mon
pid_file = $dir/mon.a.pid
mon_osd_min_down_reporters = 1
mon_data_avail_warn = 1
mon_data_avail_crit = 1
[mgr]
mgr_data = $dir/mgr
pid_file = $dir/mgr.a.pid
mgr_initial_modules =
[osd]
osd_data = $dir/osd.\$id
pid_file = $dir/osd.\$id.pid
osd_objectstore = bluestore
bluestore_block_size = 2147483648
bluestore_cache_autotune = false
bluestore_cache_size = 33554432
END
{
    ceph-authtool --create-keyring "$dir/keyring" --gen-key -n client.admin --cap mon 'allow *' \
        --cap osd 'allow *' --cap mgr 'allow *'
    ceph-authtool "$dir/keyring" --gen-key -n mon. --cap mon 'allow *'
    monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$port]" "$dir/monmap"
    ceph-mon --mkfs --id a --conf "$conf" --monmap "$dir/monmap" --keyring "$dir/keyring"
} </dev/null >"$dir/out.log" 2>&1
mkdir -p "$dir/mgr"
daemon mon.a
daemon mgr.a
made=()
for id in 0 1 2; do
    mkdir -p "$dir/osd.$id"
    uuid=$(cat /proc/sys/kernel/random/uuid)
    ceph osd new "$uuid" "$id" </dev/null >>"$dir/out.log" 2>&1
    ceph-osd --mkfs --id "$id" --osd-uuid "$uuid" --conf "$conf" </dev/null >>"$dir/out.log" 2>&1 &
    made+=($!)
done
for id in 0 1 2; do
    wait "${made[$id]}"
    daemon "osd.$id"
done
{
    ceph osd pool create lanefs 8
    timeout 60 rbd pool init lanefs
    timeout 60 rbd create lanefs/disk --size 512M
} </dev/null >>"$dir/out.log" 2>&1
if [ -n "$until" ]; then
    (
        # What ends a test together with its programs leaves this one.
        trap '' INT TERM HUP
        while kill -0 "$until" 2>/dev/null && [ -e "$conf" ]; do sleep 0.5; done
        stop
        rm -rf --one-file-system "$dir"
    ) </dev/null >/dev/null 2>&1 &
fi
echo "rbd:lanefs/disk?conf=$conf"
