# Starts the agent in a task of a Slurm step: executes a cached copy, or installs one first by fetch.sh, whose text is the
# first argument. Arguments: FETCH ADDRESSES KEY DIRECTORY any|only PATH "ADDRESS:PORT..." and then, for each architecture,
# ARCH HASH SHA256 SIZE. ADDRESSES and KEY are those of the launcher, which the agent calls; the others are fetch.sh's.
# Prints `task NUMBER ARCH NODE`, and then where the agent is, in the words of fetch.sh. Since Linux 6.1 a file has the
# architecture, which saves a process. The agent takes the place of this shell, since Slurm sends signals to the first process
# of a task. A cache is entered before its owner is looked at, as ENTER_SHARED in command.rs says.
{ read -r arch </proc/sys/kernel/arch; } 2>/dev/null || arch=$(uname -m)
echo "rlaunch-install task $SLURM_PROCID $arch $SLURMD_NODENAME"
fetch=$1 addresses=$2 key=$3 directory=$4 scope=$5 given=$6 at=$7
shift 7
while [ $# -ge 4 ] && [ "$1" != "$arch" ]; do shift 4; done
[ $# -ge 4 ] || exit 1
hash=$2 sha=$3 size=$4
case $directory in "~/"*) d=$HOME/${directory#??};; *) d=$directory;; esac
set -- agent --callback "$addresses" "$key" "$SLURM_PROCID"
execute() {
    p=$PWD
    cd -P "$cache" 2>/dev/null || return
    [ -O . ] && [ -O "$hash" ] && [ -O "$hash/rlaunch-worker" ] || { cd "$p"; return; }
    echo "rlaunch-install $answer"
    unset OLDPWD
    PWD=$p
    exec "$hash/rlaunch-worker" "$@"
}
install() { sh -c "$fetch" sh "$directory" "$1" "$hash" "$sha" "$size" "$given" $at; }
answer=present cache=$d
[ "$scope" = only ] && cache=$d/.rlaunch-$(id -u)
execute "$@"
answer=$(install "$scope")
case $scope:$answer in any:*"rlaunch-install full "*)
    # The error of the home is the one that the user can do something about.
    other=$(install other)
    case $other in *"rlaunch-install present"*|*"rlaunch-install installed"*) answer=$other;; esac
esac
case $answer in
*"rlaunch-install present"*|*"rlaunch-install installed"*) ;;
*) echo "$answer"; exit 1;;
esac
answer=${answer##*rlaunch-install }
case $answer in
*" at "*) echo "rlaunch-install $answer"; exec "${answer#* at }" "$@";;
*" in .rlaunch-"*) cache=$d/${answer#* in };;
*" in "*) cache=${answer#* in };;
*) cache=$d;;
esac
execute "$@"
