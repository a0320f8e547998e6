# A machine with a real systemd in the network of the host where it is started. It boots once for each line of stdin, and what
# was changed on its disk is there after the next boot, while addresses of cables are not.
#
# machine.sh DIRECTORY CGROUP FILES SSHD KEEPER
#
# DIRECTORY is empty, CGROUP is one of version 2; FILES is a root directory, SSHD has the files of the sshd.
# KEEPER is what keeps the addresses of the machine: networkd, netplan or NetworkManager.
set -eu
directory=$1 cgroup=$2 files=$3 sshd=$4 keeper=$5
root=$directory/root
cables() { ip -o link show | grep -o 'cable[^@:]*' || :; }

if [ "${6-}" != boot ]; then
    echo $$ >"$cgroup/cgroup.procs"
    mount -t tmpfs none "$directory"
    mkdir "$directory/changes" "$directory/work" "$root"
    mount -t overlay -o "lowerdir=$files,upperdir=$directory/changes,workdir=$directory/work" overlay "$root"
    # sshd is the lab's. What is there in the host's network stays as it is, but for cables.
    case $keeper in
        NetworkManager) unit=NetworkManager.service other=systemd-networkd.service ;;
        *) unit=systemd-networkd.service other=NetworkManager.service ;;
    esac
    for masked in ssh.service ssh.socket systemd-udevd.service systemd-networkd-wait-online.service \
        NetworkManager-wait-online.service "$other"; do
        ln -sf /dev/null "$root/etc/systemd/system/$masked"
    done
    cat >"$root/etc/systemd/system/lab-sshd.service" <<'EOF'
[Service]
RuntimeDirectory=sshd
ExecStart=/usr/sbin/sshd -D -f /run/rlaunch-lab/sshd_config
EOF
    mkdir -p "$root/etc/systemd/system/multi-user.target.wants" "$root/etc/systemd/network"
    for wanted in "/lib/systemd/system/$unit" /etc/systemd/system/lab-sshd.service; do
        ln -sf "$wanted" "$root/etc/systemd/system/multi-user.target.wants/"
    done
    printf '[Match]\nName=eth0 lo\n[Link]\nUnmanaged=yes\n' >"$root/etc/systemd/network/05-lab.network"
    # As on servers, a card without a connection gets none by itself.
    mkdir -p "$root/etc/NetworkManager/conf.d"
    printf '[main]\nno-auto-default=*\ndns=none\n[keyfile]\nunmanaged-devices=*,except:interface-name:cable-*\n' \
        >"$root/etc/NetworkManager/conf.d/lab.conf"
    rm -rf "$root/etc/netplan"
    if [ "$keeper" = netplan ]; then
        mkdir -p "$root/etc/netplan"
        printf 'network:\n  version: 2\n' >"$root/etc/netplan/01-lab.yaml"
        chmod 600 "$root/etc/netplan/01-lab.yaml"
    fi
    echo '127.0.0.1 localhost' >"$root/etc/hosts"
    while read -r _; do
        for cable in $(cables); do
            ip link set "$cable" down
            ip address flush dev "$cable"
        done
        # The end of process 1 is that of the machine, however it comes about.
        unshare --cgroup --mount --pid --fork --kill-child --uts --ipc \
            sh "$0" "$directory" "$cgroup" "$files" "$sshd" "$keeper" boot </dev/null || :
    done
    exit 0
fi

mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
# networkd and NetworkManager wait for udev where this can be written to.
mount -t sysfs sysfs "$root/sys"
mount -o remount,bind,ro "$root/sys"
# Behind the overlay, or it would be that of the whole machine.
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
cp -r "$sshd" "$root/run/rlaunch-lab"
# As a cable that is plugged in at boot.
for cable in $(cables); do
    ip link set "$cable" up
done
cd "$root"
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd --log-target=null
