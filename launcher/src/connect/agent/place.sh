# Where the agent lies on a host, or can be kept. What follows it (install.sh, fetch.sh) has set
# nothing; the words are DIRECTORY any|only. With `any` DIRECTORY is the cache itself, and others serve
# when nothing can be kept in or executed from it. With `only` it may be shared by many accounts: each
# has a cache of its own in it, .rlaunch-UID, and what root has put into DIRECTORY itself serves all.
#
# Nothing that lies there already is executed unless only this account or root can have written it.
# The cache, the build's directory and the file belong to one of them, are no links and let no others
# write (own). So do all directories above the cache (way), but that others may add to one under a
# sticky bit, by which they rename nothing that is not theirs: whoever may rename a directory can put
# another in its place between a look and the start. They are looked at where they really are, and that
# is the path which is used. The root directory is not looked at: its owner can replace the shell, too.
# Others are also the members of a group, unless it is called like the account and so is its alone.
# The cache then gets mode 0700, so nobody else comes to what is below it, whatever happens there later.
# That is why a start may look at owners alone: what is this account's own there was made or examined
# here. What is root's is named by its whole path, all of which was examined here.
#
# Travels as one line inside single quotes, through login shells of every kind. So: no single
# quote, no backslash, no exclamation mark, and every line is a whole command. Words of other
# programs are said unquoted, so that what they say is one line. What could be executed is known by
# a text without a first line of its own, which sh(1) runs itself if the kernel lets it.
d=$1; case $d in "~/"*) d="$HOME/${d#??}";; esac; k=$2;
set -f; umask 022; exec 2>/dev/null;
say() { echo "rlaunch-install $*"; };
fail() { rm -f "$t"; say failed $*; exit 0; };
t=; l=rlaunch-worker; I=$(id -u); G=; [ "$(id -gn)" = "$(id -un || echo -)" ] && G=$(id -g); u=.rlaunch-$I; b=$d/$u; v=;
[ $k = any ] && b=$d && v="/tmp/$u /var/tmp/$u /dev/shm/$u";
q() { m=$("$@" 2>&1); };
own() { ls -ldn "$1" | { read -r A B C D E; case $C in 0|$I) case $A:$D in [-d]????-??-*|d????????[tT]*|d????w??-*:$G) ;; *) false; esac;; *) false; esac; } && return; set -- "${1%/.}" $(ls -ld "$1"); [ "$4" ] && m="others may change $1: owner $4, mode $2"; false; };
way() { r=$(cd -P "$1" && pwd -P) && w=$r && while own "$w/."; do w=${w%/*}; [ "$w" ] || return 0; done; false; };
mine() { way "${1%/*}" && f=$r/${1##*/} && case $1 in */$u) own "$f";; *) way "$f" && f=$r; esac && { chmod 700 "$f"; F=$f/$h; }; };
sum() { sha256sum || python3 -c "import hashlib as h,sys;print(h.sha256(sys.stdin.buffer.read()).hexdigest())" || perl -MDigest::SHA -e "print Digest::SHA->new(256)->addfile(*STDIN)->hexdigest" || openssl dgst -sha256 -r; };
fit() { [ -f "$1" -a -x "$1" ] && [ $(wc -c <"$1") -eq $n ] && c=$(sum <"$1"; echo $h) && case $c in $h*) ;; *) false; esac; };
sure() { own "$F" && own "$F/$l" && fit "$F/$l" && "$F/$l" __verify $h >&2; };
try() { q mkdir -p -m 700 "$1"; mine "$1" && q mkdir -p "$F" && own "$F" || return; t="$F/.new.$(uname -n).$$"; m=$( { echo exit 0 >"$t"; } 2>&1) && q chmod 700 "$t" || return; q "$t" && return; m="cannot execute $t: $m"; rm -f "$t"; rmdir "$F"; false; };
seek() { for x in "$b" $v; do mine "$x" && sure && b=$x && return; done; [ $k = only ] && way "$d" && F=$r/$h && sure && b=$d; };
take() { p=; for x in "$b" $v; do try "$x" && b=$x && return; p=${p:-$m}; done; false; };
at() { [ -O "$F/.." -a -O "$F" -a -O "$F/$l" ] || b=; case $b in "") echo at $F/$l;; "$d") ;; "$d/$u") echo in $u;; *) echo in $b; esac; };
keep() { q "$t" __keep $h || { case $m in "cannot keep "*) ;; *) m="cannot execute $t: $m"; esac; fail $m; }; say $1 $(at); exit 0; };
