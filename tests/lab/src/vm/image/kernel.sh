# Debian's kernel without the drivers no guest has a use for, and a busybox for the initial ramdisk.
# Packages are unpacked here: nothing is installed on this machine.
#
# kernel.sh, in the image's directory; leaves vmlinuz, release, modules/ and busybox.
set -eu
mkdir -p fetched
cd fetched

fetch() {
    apt-get download -qq -o APT::Sandbox::User=root "$@"
}

architecture=$(dpkg --print-architecture)
image=$(apt-cache depends "linux-image-$architecture" |
    sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
[ -n "$image" ] || { echo "apt knows no linux-image-$architecture" >&2; exit 1; }
release=${image#linux-image-}
fetch "$image" busybox-static
dpkg -x "$image"_*.deb kernel
dpkg -x busybox-static_*.deb busybox
cd ..

# Since Debian 13 both are below /usr.
for top in fetched/busybox fetched/busybox/usr; do
    [ ! -x "$top/bin/busybox" ] || cp "$top/bin/busybox" busybox
done
for top in fetched/kernel fetched/kernel/usr; do
    [ ! -d "$top/lib/modules" ] || mv "$top/lib/modules/$release" modules
done
mv "fetched/kernel/boot/vmlinuz-$release" vmlinuz
rm -rf modules/kernel/sound
cd modules/kernel/drivers
rm -rf gpu media staging iio hwmon usb scsi isdn mmc nvme input mtd video platform \
    net/wireless net/ethernet
cd ../../..
rm -rf fetched
echo "$release" >release
