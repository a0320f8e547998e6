# pid 1 of a lab host. Mounts the host's own file systems, hides or protects those of the machine,
# starts the sshd, and then reaps orphans until the host is crashed or the lab goes down.
#
# host-init.sh NAME FILES HOMES ETC ROOT_HOME CGROUP KEEPER VENVS [HIDDEN...]
#
# VENVS has a line `PATH DIRECTORY` for each virtual environment that the host has at PATH in /run.
set -eu
name=$1 files=$2 homes=$3 etc=$4 root_home=$5 cgroup=$6 keeper=$7 venvs=$8
shift 8

# Mount points of the machine. They become read-only further down, except those that are replaced
# here.
before=$(while read -r _ _ _ _ at _; do echo "$at"; done </proc/self/mountinfo)

mount -t proc proc /proc
mount -t sysfs sysfs /sys
[ -z "$cgroup" ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t devpts -o newinstance,mode=620,ptmxmode=666,gid=5 devpts /dev/pts
[ -L /dev/ptmx ] || mount --bind /dev/pts/ptmx /dev/ptmx
echo "$name" >/proc/sys/kernel/hostname

for file in hosts passwd group shadow nsswitch.conf resolv.conf; do
    [ ! -f "/etc/$file" ] || mount --bind "$etc/$file" "/etc/$file"
done
[ ! -f /etc/hostname ] || mount --bind "$files/hostname" /etc/hostname
# Mounted first, since they may be in one of the homes that are replaced next.
mkdir -p "$files/venvs"
while read -r path venv; do
    [ -n "$path" ] || continue
    mkdir -p "$files/venvs$path"
    mount --bind "$venv" "$files/venvs$path"
    mount -o remount,bind,ro "$files/venvs$path"
done <<VENVS
$venvs
VENVS
mount --bind "$homes/root" "$root_home"
mount --bind "$homes/home" /home
for directory in "$@"; do
    [ ! -d "$directory" ] || mount -t tmpfs -o ro,mode=755 hidden "$directory"
done
for directory in /tmp /var/tmp /dev/shm; do
    mount -t tmpfs -o mode=1777 "$name" "$directory"
done

# The lab's own files are in /run. A host keeps only the files of its sshd, and the virtual
# environments.
mkdir /tmp/.sshd /tmp/.venvs
mount --bind "$files/sshd" /tmp/.sshd
mount --rbind "$files/venvs" /tmp/.venvs
mount -t tmpfs -o mode=755 "$name" /run
mkdir -p /run/sshd /run/rlaunch-lab
mkdir -m 1777 /run/lock
mount --move /tmp/.sshd /run/rlaunch-lab
while read -r path venv; do
    [ -n "$path" ] || continue
    mkdir -p "$path"
    mount --move "/tmp/.venvs$path" "$path"
done <<VENVS
$venvs
VENVS
umount /tmp/.venvs
rmdir /tmp/.sshd /tmp/.venvs

for at in $before; do
    case $at in
        /proc|/proc/*|/sys|/sys/*|/dev|/dev/*|/run|/run/*|/home|/home/*) ;;
        /tmp|/tmp/*|/var/tmp|/var/tmp/*|"$root_home"|"$root_home"/*) ;;
        *) mount -o remount,bind,ro "$at" 2>/dev/null || : ;;
    esac
done

cd /
# It does not start itself once more for each connection, but for versions that have another program for these.
again=-r
for program in /usr/lib*/openssh/sshd-session; do
    [ ! -e "$program" ] || again=
done
$(command -v sshd) $again -f /run/rlaunch-lab/sshd_config -E /run/rlaunch-lab/sshd.log
while :; do
    sleep "$keeper" &
    wait || :
done
