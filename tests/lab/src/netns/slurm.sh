# The part of a Slurm cluster that one node of a lab runs: munged, and beside it the controller on the launch node or the
# daemon of a host. All its files are in DIRECTORY.
#
# slurm.sh start|stop DIRECTORY NODE
set -eu
verb=$1 directory=$2 node=$3
own=$(basename "$directory")-$node
uses_cgroups() { [ "$node" != launch ] && grep -q '^ProctrackType=proctrack/cgroup' "$directory/slurm.conf"; }

# Also what an earlier start has left.
if [ -d "$directory/cgroup" ]; then
    umount -R /sys/fs/cgroup
    find "$directory"/cgroup/*/"$own" -depth -type d -exec rmdir {} +
    umount -R "$directory/cgroup"
    rmdir "$directory/cgroup"
fi
[ "$verb" = start ] || exec rm -rf "$directory"

cd "$directory"
mkdir -p spool state
munged --force --key-file="$directory/munge.key" --socket="$directory/munge.socket" --seed-file="$directory/munge.seed" \
    --pid-file="$directory/munged.pid" --log-file="$directory/munged.log"
[ "$node" != launch ] || exec slurmctld -f "$directory/slurm.conf" -c
if uses_cgroups; then
    # Cgroups of version 1. One kernel carries all labs and hosts, so each host sees a part of its own as the whole.
    mkdir cgroup
    mount -t tmpfs -o mode=755 cgroup cgroup
    mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
    for controller in freezer cpuset memory cpuacct cpu devices; do
        mkdir "cgroup/$controller" "/sys/fs/cgroup/$controller"
        mount -t cgroup -o "$controller" cgroup "cgroup/$controller"
        mkdir -p "cgroup/$controller/$own"
        mount --bind "cgroup/$controller/$own" "/sys/fs/cgroup/$controller"
    done
    for file in cpus mems; do cat "cgroup/cpuset/cpuset.$file" >"cgroup/cpuset/$own/cpuset.$file"; done
fi
exec slurmd -f "$directory/slurm.conf" -N "$node"
