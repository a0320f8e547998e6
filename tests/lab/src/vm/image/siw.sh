# Soft-iWARP, which Debian's kernel leaves out: this one driver, from the kernel's own source.
#
# siw.sh, in the image's directory after kernel.sh; leaves siw.ko.
set -eu
here=$PWD
release=$(cat release)
version=$(echo "$release" | cut -d. -f1,2)
common=${release%-*}-common
mkdir -p siw
cd siw

apt-get download -qq -o APT::Sandbox::User=root "linux-source-$version" \
    "linux-headers-$release" "linux-headers-$common" "linux-kbuild-$version"
for package in *.deb; do
    dpkg -x "$package" .
    rm "$package"
done
driver=linux-source-$version/drivers/infiniband/sw/siw
tar -xf "usr/src/linux-source-$version".tar.* "$driver"

# The headers expect to be installed; here they are merely unpacked.
headers=$PWD/usr/src/linux-headers-$release
sed -i "s|/usr/src/|$PWD/usr/src/|" "$headers/Makefile"
make -s -j2 -C "$headers" M="$PWD/$driver" CONFIG_RDMA_SIW=m modules
strip --strip-debug "$driver/siw.ko" -o "$here/siw.ko"
cd "$here"
rm -rf siw
