# Words for starting programs by ssh, as the pages of frameworks do, with the addresses of hosts in $A, $B and $C.

# Runs a line on a host, in this directory.
at() {
    host=$1
    shift
    ssh "$host" "cd $PWD && export PATH=$PATH STAND_IN_ENDS=1; $*"
}
# Runs a line on the first COUNT hosts at once, with the number of the host for %i.
each() {
    count=$1 number=0
    shift
    for host in a b c; do
        [ "$number" -lt "$count" ] || break
        at "$host" "$(echo "$*" | sed "s/%i/$number/g")" &
        number=$((number + 1))
    done
    wait
}
