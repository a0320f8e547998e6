# A Python of aarch64 and what it loads, unpacked and not installed, since nothing of it is executed
# here. Debian's packages come by way of this machine's own mirrors.
#
# python.sh PLACE PACKAGE...
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
mmdebstrap --quiet --mode=root --variant=extract --architectures=arm64 \
    --aptopt='APT::Install-Recommends "false"' \
    --include="$(echo "$*" | tr ' ' ,)" "$VERSION_CODENAME" "$new/root" "$new/sources.list"
# Another may have been quicker.
[ -e "$place" ] || mv -T "$new/root" "$place"
