# The guests' root directory, of Debian's packages by way of this machine's own mirrors.
#
# root.sh SUITE PACKAGE..., in the image's directory; leaves root/.
set -eu
suite=$1
shift
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' 'Origin: Debian' | sort -u | grep -F " $suite")
[ -n "$sources" ] || { echo "apt has no package lists of Debian $suite" >&2; exit 1; }
echo "$sources" >sources.list

mmdebstrap --quiet --mode=root --variant=minbase \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include="$(echo "$*" | tr ' ' ,)" "$suite" root ./sources.list
# What mmdebstrap took over from this machine.
rm -f sources.list root/etc/resolv.conf root/etc/hostname root/etc/apt/sources.list
