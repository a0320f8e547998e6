# The root directory of a machine with systemd, of Debian's packages by way of this machine's own mirrors. They are installed
# there and not here, where they would replace process 1 and start services.
#
# systemd.sh PLACE PACKAGE...
set -eu
place=$1
shift
. /etc/os-release
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' 'Origin: Debian' | sort -u | grep -F " $VERSION_CODENAME")
[ -n "$sources" ] || { echo "apt has no package lists of Debian $VERSION_CODENAME" >&2; exit 1; }
mkdir -p "${place%/*}"
new=$(mktemp -d "$place.XXXXXX")
trap 'rm -rf "$new"' EXIT
echo "$sources" >"$new/sources.list"
mmdebstrap --quiet --mode=root --variant=minbase \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include="$(echo "$*" | tr ' ' ,)" "$VERSION_CODENAME" "$new/root" "$new/sources.list"
# What mmdebstrap took over from this machine.
rm -f "$new/root/etc/resolv.conf" "$new/root/etc/hostname" "$new/root/etc/apt/sources.list"
# Without it systemd asks the questions of a first start.
tr -d - </proc/sys/kernel/random/uuid >"$new/root/etc/machine-id"
# Another may have been quicker.
[ -e "$place" ] || mv -T "$new/root" "$place"
