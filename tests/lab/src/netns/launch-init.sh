# The launch node: the machine as it is, but on the lab's network, with the lab's accounts and
# with .ssh directories of its own. The lab enters its namespaces for every command.
#
# launch-init.sh NAME FILES ETC ROOT_HOME USER_HOME CGROUP
set -eu
name=$1 files=$2 etc=$3 root_home=$4 user_home=$5 cgroup=$6

echo "$name" >/proc/sys/kernel/hostname
for file in hosts passwd group shadow nsswitch.conf resolv.conf; do
    [ ! -f "/etc/$file" ] || mount --bind "$etc/$file" "/etc/$file"
done
mount --bind "$files/root/.ssh" "$root_home/.ssh"
mount --bind "$files/user" "$user_home"
mount -t sysfs sysfs /sys
[ -z "$cgroup" ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Seen from outside, this command line shows that all of the above is done.
exec sleep infinity
