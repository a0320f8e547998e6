# A machine whose process 1 is a real systemd, with a logind that ends what users leave behind. Its files are those in FILES,
# and changes to them are gone with it.
#
# systemd.sh DIRECTORY CGROUP DIST FILES
#
# DIRECTORY is empty but for this script, CGROUP is one of version 2; DIST has the rlaunch that will be in /opt/dist.
set -eu
directory=$1 cgroup=$2 dist=$3 files=$4
if [ -n "$cgroup" ]; then
    echo $$ >"$cgroup/cgroup.procs"
    exec unshare --cgroup --mount --pid --fork --kill-child --uts --ipc --net sh "$0" "$directory" '' "$dist" "$files"
fi

root=$directory/root
mount -t tmpfs none "$directory"
mkdir "$directory/changes" "$directory/work" "$root"
mount -t overlay -o "lowerdir=$files,upperdir=$directory/changes,workdir=$directory/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs sysfs "$root/sys"
# Behind the overlay, or it would be that of the whole machine.
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
cp -a "$dist" "$root/opt/dist"
mkdir -p "$root/etc/systemd/logind.conf.d"
printf '[Login]\nKillUserProcesses=yes\n' >"$root/etc/systemd/logind.conf.d/lab.conf"
for unit in systemd-udevd systemd-networkd systemd-resolved systemd-timesyncd ssh; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
done
chroot "$root" useradd -m -s /bin/bash visitor
cd "$root"
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd --log-target=null
