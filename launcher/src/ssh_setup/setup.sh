# Lets a key in, and a container's key into its container. Behind lines that set:
#   dry          1: say what would change, and change nothing
#   key          a line for authorized_keys, or nothing; key_blob: what in it is the key itself
#   forced       the line of the container's key, or nothing; forced_blob: the key itself
#   script       the command that the line names, and script_path: where it is, from ~
# Answers in lines that begin with `rlaunch-setup`.
set -u
umask 077
changed=0

say() { printf 'rlaunch-setup %s\n' "$*"; }
fail() { say failed "$(echo "$*" | tr '\n' ' ')"; exit 0; }

# Says what is to be done, and does it unless nothing is to be changed: WORDS COMMAND...
change() {
    label=$1
    shift
    say change "$label"
    [ "$dry" = 0 ] || return 0
    message=$("$@" 2>&1) || fail "$label: $message"
    changed=1
}

mode_is() { [ -n "$(find -H "$1" -prune -perm "$2" 2>/dev/null)" ]; }
others_may_write() { [ -n "$(find -H "$1" -prune \( -perm -020 -o -perm -002 \) 2>/dev/null)" ]; }
lines_with() { grep -v '^[[:space:]]*#' "$keys" 2>/dev/null | grep -F -c -e "$1"; }
has_line() { grep -F -x -q -e "$1" "$keys" 2>/dev/null; }

# Hosts that share a home directory are set up at the same time.
make_directory() { [ -d .ssh ] || mkdir -m 700 .ssh || [ -d .ssh ]; }
append() {
    [ ! -s "$keys" ] || [ -z "$(tail -c 1 "$keys")" ] || echo >>"$keys" || return 1
    printf '%s\n' "$1" >>"$keys"
}
# LINE in place of every line with BLOB: BLOB LINE
replace() {
    { grep -F -v -e "$1" "$keys"; [ $? -le 1 ] && printf '%s\n' "$2"; } >"$keys.new" || return 1
    chmod 600 "$keys.new" && mv -f "$keys.new" "$keys"
}
put_script() {
    printf '%s\n' "$script" >"$script_path.new" || return 1
    chmod 700 "$script_path.new" && mv -f "$script_path.new" "$script_path"
}

lock() {
    tries=0
    until mkdir .ssh/.rlaunch-setup 2>/dev/null; do
        [ -d .ssh/.rlaunch-setup ] || fail "cannot write below ~/.ssh"
        tries=$((tries + 1))
        [ $tries -le 120 ] || fail "another set-up is at work; if none is: rmdir ~/.ssh/.rlaunch-setup"
        # Some can sleep for whole seconds alone.
        sleep 0.1 2>/dev/null || { sleep 1; tries=$((tries + 9)); }
    done
    trap 'rmdir .ssh/.rlaunch-setup' EXIT
    trap 'exit 1' HUP INT TERM
}

main() {
    cd "${HOME:-/none}" || fail "there is no home directory"
    keys=.ssh/authorized_keys
    ! others_may_write . || change "chmod go-w ~" chmod go-w .
    if [ -d .ssh ]; then
        [ -O .ssh ] || fail "$HOME/.ssh belongs to another user"
        mode_is .ssh 700 || change "chmod 700 ~/.ssh" chmod 700 .ssh
    elif [ -n "$key$forced" ]; then
        change "make ~/.ssh, mode 700" make_directory
    fi
    [ "$dry" = 1 ] || lock
    [ ! -L "$keys" ] || keys=$(readlink -f "$keys")
    [ ! -f "$keys" ] || mode_is "$keys" 600 || change "chmod 600 ~/.ssh/authorized_keys" chmod 600 "$keys"
    if [ -n "$key" ] && [ "$(lines_with "$key_blob")" = 0 ]; then
        change "add your key to ~/.ssh/authorized_keys" append "$key"
    fi
    if [ -n "$forced" ]; then
        if [ "$(cat "$script_path" 2>/dev/null)" != "$script" ] || ! mode_is "$script_path" 700; then
            change "write ~/$script_path, mode 700" put_script
        fi
        count=$(lines_with "$forced_blob")
        if [ "$count" = 0 ]; then
            change "add the container's key, with its command, to ~/.ssh/authorized_keys" append "$forced"
        elif [ "$count" != 1 ] || ! has_line "$forced"; then
            change "correct the line of the container's key in ~/.ssh/authorized_keys" replace "$forced_blob" "$forced"
        fi
    fi
    # Where SELinux is at work, sshd reads only what is labelled as its own.
    if [ $changed = 1 ] && command -v restorecon >/dev/null 2>&1; then
        restorecon -R .ssh >/dev/null 2>&1
    fi
    say done
}
main </dev/null
exit
