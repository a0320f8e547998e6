# Installs the agent from stdin, which carries a line `HASH SIZE` and then the file; replies with lines
# that begin with `rlaunch-install`. The file comes from the launcher over an authenticated channel and is
# written to a new file in a directory of mode 0700, so the agent checks itself only for completeness
# (__keep). Appended to place.sh, whose rules apply.
say host $(uname -s) $(uname -m);
read h n || exit 0;
if seek; then say present $(at); exit 0; fi;
take || fail "$p";
z=raw; command -v gzip >&2 && z=gzip;
say want $z;
if [ $z = gzip ]; then m=$( { gzip -dc >"$t"; } 2>&1); else m=$( { cat >"$t"; } 2>&1); fi || fail "$b: $m";
[ $(wc -c <"$t") -eq $n ] || fail "$t: the copy is $(wc -c <"$t") bytes of $n, is the disk full?";
keep installed;
