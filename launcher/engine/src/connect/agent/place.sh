# Finds an installed agent, or a directory for a new one. The script that follows (install.sh, fetch.sh)
# relies on the functions below; the arguments begin with DIRECTORY any|other|only. With `any`, DIRECTORY is
# the cache itself, and other directories are tried if it cannot be written or executed from. With `other`,
# these alone are tried. With `only`, accounts may share DIRECTORY: each has a cache .rlaunch-UID in it, and
# an agent that root put directly into DIRECTORY serves all of them.
#
# An existing file is executed only if no account but this one and root can have written it. The cache,
# the build's directory and the file belong to one of the two, are not links and are not writable by
# others (own). The same holds for all directories above the cache (way), except that others may create
# files under a sticky bit, which stops them from renaming what is not theirs: an account that can rename
# a directory could swap it between check and start. Links are resolved first, and the resolved path is
# used. The root directory is not checked: its owner controls the shell anyway. "Others" includes the
# members of a group, unless the group has the account's name and so belongs to it alone.
# The cache gets mode 0700, which keeps other accounts out from then on. That is why a warm start needs to
# check owners only: everything below that this account owns was made or checked here. What root owns is
# named by its full path, all of which was checked here.
#
# The script travels as one line in single quotes, through login shells of all kinds. So it contains no
# single quote, backslash or exclamation mark, and every line is a complete command. Messages of other
# programs are expanded unquoted, which joins them into one line. Whether a directory permits execution
# is tested with a script that has no #! line, which sh(1) runs itself if the kernel allows it.
d=$1 k=$2; case $d in "~/"*) d="$HOME/${d#??}"; esac;
set -f; umask 022; exec 2>/dev/null;
say() { echo "rlaunch-install $*"; };
fail() { rm -f "$t"; say ${S:-failed} $*; exit 0; };
S= t= G= l=rlaunch-worker I=$(id -u); [ "$(id -gn)" = "$(id -un || echo -)" ] && G=$(id -g); u=.rlaunch-$I;
v="/var/tmp/$u /dev/shm/$u"; case $k in any) b=$d v="/tmp/$u $v";; other) b=/tmp/$u;; *) b=$d/$u v=; esac;
q() { m=$("$@" 2>&1); };
own() { ls -ldn "$1" | { read -r A B C D E; case $C in 0|$I) case $A:$D in [-d]????-??-*|d????????[tT]*|d????w??-*:$G) ;; *) false; esac;; *) false; esac; } && return; set -- "${1%/.}" $(ls -ld "$1"); [ "$4" ] && m="others may change $1: owner $4, mode $2"; false; };
way() { r=$(cd -P "$1" && pwd -P) && w=$r && while own "$w/."; do w=${w%/*}; [ "$w" ] || return 0; done; false; };
mine() { way "${1%/*}" && f=$r/${1##*/} && case $1 in */$u) own "$f";; *) way "$f" && f=$r; esac && { chmod 700 "$f"; F=$f/$h; }; };
sum() { sha256sum || python3 -c "import hashlib as h,sys;print(h.sha256(sys.stdin.buffer.read()).hexdigest())" || perl -MDigest::SHA=sha256_hex -e "print sha256_hex <>" || openssl dgst -sha256 -r; };
fit() { [ -f "$1" -a -x "$1" ] && [ $(wc -c <"$1") -eq $n ] && c=$(sum <"$1"; echo $h) && case $c in $h*) ;; *) false; esac; };
sure() { own "$F" && own "$F/$l" && fit "$F/$l" && "$F/$l" __verify $h >&2; };
try() { q mkdir -p -m 700 "$1"; mine "$1" && q mkdir -p "$F" && own "$F" || return; t="$F/.new.$(uname -n).$$"; m=$( { echo exit 0 >"$t"; } 2>&1) && q chmod 700 "$t" || return; q "$t" && return; m="cannot execute $t: $m"; rm -f "$t"; rmdir "$F"; false; };
seek() { for x in "$b" $v; do mine "$x" && sure && b=$x && return; done; [ $k = only ] && way "$d" && F=$r/$h && sure && b=$d; };
take() { p=; for x in "$b" $v; do try "$x" && b=$x && return; p=${p:-$m}; done; false; };
at() { [ -O "$F/.." -a -O "$F" -a -O "$F/$l" ] || b=; case $b in "") echo at $F/$l;; "$d") ;; "$d/$u") echo in $u;; *) echo in $b; esac; };
keep() { q "$t" __keep $h || { case $m in "cannot keep "*) ;; *) m="cannot execute $t: $m"; esac; fail $m; }; say $1 $(at); exit 0; };
