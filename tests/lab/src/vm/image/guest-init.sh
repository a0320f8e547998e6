#!/bin/sh
# pid 1 of a guest: mounts, names, addresses, RDMA devices, then an sshd. What differs from guest
# to guest comes on the kernel's command line:
#
#   lab.name=n1 lab.hosts=ADDRESS=NAME,... lab.addresses=ADDRESS/BITS,... lab.mtu=4200
#   lab.rdma=rxe,siw [lab.share | lab.share=fixed]
#
# Addresses are those of eth0, eth1 and so on; eth0 is for management and carries no RDMA.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666,gid=5 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Containers stack file systems, which does not work upon one that is stacked already.
mkdir -p /run/sshd /var/lib/containers
mount -t tmpfs containers /var/lib/containers

options=trans=virtio,version=9p2000.L,ro,msize=262144
for word in $(cat /proc/cmdline); do
    case $word in
        lab.name=*) name=${word#*=} ;;
        lab.hosts=*) hosts=${word#*=} ;;
        lab.addresses=*) addresses=${word#*=} ;;
        lab.mtu=*) mtu=${word#*=} ;;
        lab.rdma=*) rdma=${word#*=} ;;
        # Only the guest that launches is given this directory.
        lab.share) mount -t 9p -o "$options" share /share ;;
        # Nothing in it changes, so what was read once is kept.
        lab.share=fixed) mount -t 9p -o "$options,cache=loose" share /share ;;
    esac
done
hostname "$name"
# After a reboot the files on its disk are the guest's own.
if [ ! -e /etc/hostname ]; then
    echo "$name" >/etc/hostname
    {
        echo "127.0.0.1 localhost"
        echo "$hosts" | tr ',=' '\n '
    } >/etc/hosts
fi

modprobe -a virtio_net ib_uverbs rdma_ucm ib_umad
for kind in $(echo "$rdma" | tr , ' '); do
    case $kind in
        rxe) modprobe rdma_rxe ;;
        *) modprobe "$kind" ;;
    esac
done
sysctl -q --system
ip link set lo up
# Addresses of cables are those that the guest keeps, if it has a configuration for them.
interfaces=/etc/network/interfaces
number=0
for address in $(echo "$addresses" | tr , ' '); do
    [ "$number" -gt 0 ] && [ -e "$interfaces" ] || ip address add "$address" dev "eth$number"
    [ "$number" -eq 0 ] || ip link set "eth$number" mtu "$mtu"
    ip link set "eth$number" up
    if [ "$number" -gt 0 ]; then
        for kind in $(echo "$rdma" | tr , ' '); do
            rdma link add "$kind$((number - 1))" type "$kind" netdev "eth$number"
        done
    fi
    number=$((number + 1))
done

if [ -e "$interfaces" ]; then
    mkdir -p /run/network
    ifup -a
fi

# RDMA pins what it sends from; what sshd starts inherits this.
ulimit -l unlimited
echo "lab: $name is up"
# The key exchange that OpenSSH prefers takes a second on an emulated processor. To serve a connection, sshd starts itself
# once more, which takes half of one; -r goes without, but for newer versions, which have another program for it.
again=
[ -e /usr/lib/openssh/sshd-session ] || again=-r
exec /usr/sbin/sshd -D -e $again -o KexAlgorithms=curve25519-sha256 -o UsePAM=no -o UseDNS=no -o PermitRootLogin=yes \
    -o PrintMotd=no -o PrintLastLog=no -o MaxStartups=4096 -o MaxSessions=1024
