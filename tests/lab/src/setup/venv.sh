# Makes a virtual environment in one step: it is there as a whole or not at all. Whoever comes second
# waits for the first, and for what an interrupted one has started.
#
# venv.sh DIRECTORY LOCK SECONDS PYTHON PACKAGES...
set -eu
directory=$1 seconds=$3 python=$4
exec 9>"$2"
shift 4
flock 9
[ ! -d "$directory" ] || exit 0
# What interrupted builds have left.
rm -rf "$directory".new.*
new=$directory.new.$$
trap 'rm -rf "$new"' EXIT
nice -n 10 "$python" -m venv "$new"
nice -n 10 timeout --foreground "$seconds" \
    "$new/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$@"
mv -T "$new" "$directory"
