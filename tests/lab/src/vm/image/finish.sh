# Puts the parts together: modules and scripts into the root directory, keys, initial ramdisk, an empty disk.
#
# finish.sh GUEST_INIT RAMDISK_INIT, in the image's directory; leaves initrd.gz, key, known_hosts, disk.
set -eu
guest_init=$1 ramdisk_init=$2
release=$(cat release)

mkdir -p root/usr/lib/modules
mv modules "root/usr/lib/modules/$release"
mkdir -p "root/usr/lib/modules/$release/extra"
mv siw.ko "root/usr/lib/modules/$release/extra/"
chroot root depmod "$release"
mkdir -p root/share
printf '%s' "$guest_init" >root/sbin/lab-init
chmod 755 root/sbin/lab-init

# Podman has two ways to networks and prefers the one whose plugins are not here.
rm -rf root/etc/cni
printf '[network]\nnetwork_backend = "netavark"\n' >root/etc/containers/containers.conf

# Each program that uses verbs loads all providers that are listed, of which guests have devices of two.
find root/etc/libibverbs.d -name '*.driver' ! -name rxe.driver ! -name siw.driver -delete

# The login shell starts with each command; dash does so in a quarter of bash's time.
sed -i 's|^\(root:.*\):/bin/bash$|\1:/bin/sh|' root/etc/passwd

# A guest with this file sets its cables up by itself; others get addresses from their init.
rm -f root/etc/network/interfaces

# One key opens every guest from every guest and from outside, and all have the same host key.
ssh-keygen -q -t ed25519 -N '' -C lab -f key
mkdir -m 700 -p root/root/.ssh
cp key root/root/.ssh/id_ed25519
cp key.pub root/root/.ssh/authorized_keys
echo "* $(cut -d' ' -f1,2 root/etc/ssh/ssh_host_ed25519_key.pub)" >known_hosts
cp known_hosts root/root/.ssh/known_hosts
chmod 600 root/root/.ssh/*

mkdir -p ramdisk/bin ramdisk/modules
cd ramdisk
mkdir proc sys dev lower upper new
cp ../busybox bin/busybox
for module in virtio_pci virtio_blk 9pnet_virtio 9p overlay ext4; do
    chroot ../root modprobe -S "$release" --show-depends "$module"
done | while read -r _ path _; do
    file=${path##*/}
    [ ! -f "modules/$file" ] || continue
    cp "../root$path" modules/
    # In the order in which they are to be loaded.
    echo "$file" >>modules/order
done
printf '%s' "$ramdisk_init" >init
chmod 755 init
find . | cpio --quiet -o -H newc | gzip -1 >../initrd.gz
cd ..
rm -rf ramdisk busybox

# Every guest has a copy. Tables are written now, or each guest would do it in the background.
truncate -s 2G disk
mkfs.ext4 -q -F -m 0 -N 32768 -J size=8 -E lazy_itable_init=0,lazy_journal_init=0 disk
