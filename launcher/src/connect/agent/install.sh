# Puts the agent into its cache. Reads one line, `HASH SIZE`, then the agent itself, from stdin;
# answers in lines that start with `rlaunch-install`. Behind place.sh, and under its rules. What comes
# by stdin is the launcher's word, over the channel that has authenticated it, and goes to a new file
# in a directory of mode 0700: the agent checks itself only for having come whole (__keep).
say host $(uname -s) $(uname -m);
read h n || exit 0;
if seek; then say present $(at); exit 0; fi;
take || fail "$p";
z=raw; command -v gzip >&2 && z=gzip;
say want $z;
if [ $z = gzip ]; then m=$( { gzip -dc >"$t"; } 2>&1); else m=$( { cat >"$t"; } 2>&1); fi || fail "$m";
[ $(wc -c <"$t") -eq $n ] || fail "$t: the copy is $(wc -c <"$t") bytes of $n, is the disk full?";
keep installed;
