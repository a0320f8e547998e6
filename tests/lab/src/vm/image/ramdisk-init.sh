#!/bin/busybox sh
# The first program of a guest: finds the root directory, which all guests share, and lays the guest's
# own disk over it for what the guest writes.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs devtmpfs /dev
while read -r module; do
    case $module in
        *.xz) $B xzcat "/modules/$module" >/plain.ko && $B insmod /plain.ko ;;
        *) $B insmod "/modules/$module" ;;
    esac
done </modules/order
$B mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root /lower ||
    echo "lab: no root directory"
$B mount -t ext4 -o noatime /dev/vda /upper
$B mkdir -p /upper/files /upper/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /new
$B umount /dev /sys /proc
exec $B switch_root /new /sbin/lab-init
