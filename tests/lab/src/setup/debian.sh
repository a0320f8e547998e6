# A root directory of Debian's packages, by way of this machine's own mirrors.
#
# debian.sh PLACE machine PACKAGE...   a machine with systemd. Its packages are installed there and not here, where they would
#                                      replace process 1 and start services.
# debian.sh PLACE aarch64 PACKAGE...   packages of aarch64, unpacked and not installed, since nothing of them is executed here
set -eu
place=$1 kind=$2
shift 2
. /etc/os-release
sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' 'Origin: Debian' | sort -u | grep -F " $VERSION_CODENAME")
[ -n "$sources" ] || { echo "apt has no package lists of Debian $VERSION_CODENAME" >&2; exit 1; }
mkdir -p "${place%/*}"
new=$(mktemp -d "$place.XXXXXX")
trap 'rm -rf "$new"' EXIT
echo "$sources" >"$new/sources.list"
packages=$(echo "$*" | tr ' ' ,)
case $kind in
machine)
    set -- --variant=minbase --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' ;;
aarch64)
    set -- --variant=extract --architectures=arm64 ;;
esac
mmdebstrap --quiet --mode=root --aptopt='APT::Install-Recommends "false"' "$@" \
    --include="$packages" "$VERSION_CODENAME" "$new/root" "$new/sources.list"
if [ "$kind" = machine ]; then
    # What mmdebstrap took over from this machine.
    rm -f "$new/root/etc/resolv.conf" "$new/root/etc/hostname" "$new/root/etc/apt/sources.list"
    # Without it systemd asks the questions of a first start.
    tr -d - </proc/sys/kernel/random/uuid >"$new/root/etc/machine-id"
fi
# Another may have been quicker.
[ -e "$place" ] || mv -T "$new/root" "$place"
