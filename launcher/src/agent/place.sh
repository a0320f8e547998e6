# Where the agent lies on a host, or can be kept. What follows it (install.sh, fetch.sh) has set
# nothing; the words are DIRECTORY any|only: any allows others, where nobody else can write, when
# nothing can be kept in or executed from DIRECTORY.
#
# Travels as one line inside single quotes, through login shells of every kind. So: no single
# quote, no backslash, no exclamation mark, and every line is a whole command. Words of other
# programs are said unquoted, so that what they say is one line. What could be executed is known by
# a text without a first line of its own, which sh(1) runs itself if the kernel lets it.
d=$1; case $d in "~/"*) d="$HOME/${d#??}";; esac; b=$d; k=$2;
set -f;
say() { echo "rlaunch-install $*"; };
fail() { rm -f "$t"; say failed $*; exit 0; };
t=/dev/null/none;
u=.rlaunch-$(id -u);
mine() { case $1 in */$u) [ -L "$1" ] && return 1; [ -O "$1" ] && chmod 700 "$1" 2>/dev/null;; esac; };
has() { f="$1/$h/rlaunch-worker"; mine "$1" && [ -f "$f" ] && [ $(wc -c <"$f") -eq $n ] && "$f" __verify $h >/dev/null 2>&1; };
try() { m=$(mkdir -p -m 700 "$1" 2>&1) && mine "$1" && m=$(mkdir -p "$1/$h" 2>&1) || return 1; t="$1/$h/.new.$(uname -n).$$"; m=$( { echo exit 0 >"$t"; } 2>&1) && m=$(chmod 700 "$t" 2>&1) || return 1; m=$("$t" 2>&1) && return 0; m="cannot execute $t: $m"; rm -f "$t"; rmdir "$1/$h" 2>/dev/null; return 1; };
seek() { for x do has "$x" && d=$x && return 0; done; return 1; };
take() { q=; for x do try "$x" && d=$x && return 0; q=${q:-$m}; done; m=$q; return 1; };
where() { [ "$d" = "$b" ] || echo in $d; };
keep() { m=$("$t" __verify $h 2>&1) || fail "cannot execute $t: $m"; m=$(mv -f "$t" "$d/$h/rlaunch-worker" 2>&1) || fail "$m"; trim 2>/dev/null; say $1 $(where); exit 0; };
trim() { set +f; ls -1t "$d"/*/rlaunch-worker | tail -n +4 | while read -r x; do rm -rf "$x" "${x%/*}/bin/rlaunch" "${x%/*}"/rlaunch-prover* "${x%/*}"/library-*; rmdir "${x%/*}/bin" "${x%/*}"; done; };
