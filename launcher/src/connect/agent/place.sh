# Where the agent lies on a host, or can be kept. What follows it (install.sh, fetch.sh) has set
# nothing; the words are DIRECTORY any|only. With `any` DIRECTORY is the cache itself, and others serve
# when nothing can be kept in or executed from it. With `only` it may be shared by many accounts: each
# has a cache of its own in it, .rlaunch-UID, and what root has put into DIRECTORY itself serves all.
#
# Nothing that lies there already is executed unless only this account or root can have written it.
# The cache, the build's directory and the file belong to one of them, are no links and let no others
# write (own); so does a shared DIRECTORY, but that others may add to it under a sticky bit, by which
# they rename nothing that is not theirs. The cache then gets mode 0700, so nobody else comes to what is
# below it, whatever happens there later. That is why a warm start may look at owners alone: what is
# this account's own there was made or examined here. Above the default cache is the home, and others
# who write there also write what login shells read; a group that is the account's own is no other.
#
# Travels as one line inside single quotes, through login shells of every kind. So: no single
# quote, no backslash, no exclamation mark, and every line is a whole command. Words of other
# programs are said unquoted, so that what they say is one line. What could be executed is known by
# a text without a first line of its own, which sh(1) runs itself if the kernel lets it.
d=$1; case $d in "~/"*) d="$HOME/${d#??}";; esac; k=$2;
set -f; umask 022; exec 2>/dev/null;
say() { echo "rlaunch-install $*"; };
fail() { rm -f "$t"; say failed $*; exit 0; };
t=/dev/null/x; l=rlaunch-worker; I=$(id -u); G=$(id -g); u=.rlaunch-$I; b=$d/$u; v=;
[ $k = any ] && b=$d && v="/tmp/$u /var/tmp/$u /dev/shm/$u";
q() { m=$("$@" 2>&1); };
kept() { y=; while read -r A B C D E; do case $C in 0|$I) ;; *) return 1; esac; case $A:$D in [-d]????-??-*|d????????[tT]*|d????w??-*:$G) y=x$y;; *) return 1; esac; done; [ "$y" = $1 ]; };
own() { ls -ldn "$1" | kept x && return; set -- "${1%/.}" $(ls -ld "$1"); m="others may change $1: owner $4, mode $2"; return 1; };
up() { case $1 in */$u) own "${1%/*}/."; esac; };
mine() { case $1 in */$u) own "$1";; *) own "$1/."; esac && { chmod 700 "$1"; true; }; };
sum() { sha256sum || python3 -c "import hashlib,sys;print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())" || perl -MDigest::SHA -e "print Digest::SHA->new(256)->addfile(*STDIN)->hexdigest" || openssl dgst -sha256 -r; };
whole() { [ -f "$1" -a -x "$1" ] && [ $(wc -c <"$1") -eq $n ] && c=$(sum <"$1"; echo $h) && case $c in $h*) ;; *) false; esac; };
runs() { whole "$1/$h/$l" && "$1/$h/$l" __verify $h >&2; };
has() { [ -e "$1" ] && up "$1" && mine "$1" && own "$1/$h" && own "$1/$h/$l" && runs "$1"; };
try() { q mkdir -p "${1%/*}" && up "$1" && q mkdir -p -m 700 "$1" && mine "$1" && q mkdir -p "$1/$h" && own "$1/$h" || return; t="$1/$h/.new.$(uname -n).$$"; m=$( { echo exit 0 >"$t"; } 2>&1) && q chmod 700 "$t" || return; q "$t" && return; m="cannot execute $t: $m"; rm -f "$t"; rmdir "$1/$h"; return 1; };
seek() { for x in "$b" $v; do has "$x" && b=$x && return; done; [ $k = only ] && ls -ldn "$d/." "$d/$h" "$d/$h/$l" | kept xxx && runs "$d" && b=$d; };
take() { p=; for x in "$b" $v; do try "$x" && b=$x && return; p=${p:-$m}; done; m=$p; return 1; };
where() { case $b in "$d") ;; "$d/$u") echo in $u;; *) echo in $b; esac; };
keep() { q "$t" __keep $h || { case $m in "cannot keep "*) ;; *) m="cannot execute $t: $m"; esac; fail $m; }; say $1 $(where); exit 0; };
