# Lets a key in, and a container's key into its container. Behind lines that set:
#   token        a word of this run alone, in every answer
#   dry          1: say what would change, and change nothing
#   key          a line for authorized_keys, or nothing; key_blob: what in it is the key itself
#   forced       the line of the container's key, or nothing; forced_blob: the key itself
#   script       the command that the line names, and script_path: where it is, from ~
# Answers in lines that begin with `rlaunch-setup-TOKEN`.
#
# authorized_keys may hold any bytes, and other people's ways in. So no tool that goes by lines or
# letters writes it: awk only finds where a key's options begin and end, in a copy that has a
# question mark for every byte that a tool could stumble over, and the file itself is copied by
# numbers of bytes. A line that holds another key is never touched.
set -u
umask 077
LC_ALL=C
export LC_ALL
changed=0
found=
backup=.ssh/authorized_keys.rlaunch-backup

say() { printf 'rlaunch-setup-%s %s\n' "$token" "$*"; }
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
sum() { cksum <"$1"; }

# Reads lines as sshd does: OPTIONS TYPE KEY COMMENT, with or without OPTIONS. For each that lets the
# wanted key in, prints `good`, or `fix FROM LENGTH KEPT NEW`: in place of the LENGTH bytes at FROM
# there should be NEW, the options KEPT (FROM:LENGTH,...) and a blank. At last `end LINES BYTES`.
finder='
function skip(text) { sub(/^[ \t]+/, "", text); return text }
function is_key(text,   n) {
    n = length(type)
    if (substr(text, 1, n) != type || substr(text, n + 1, 1) !~ /[ \t]/) return 0
    text = skip(substr(text, n + 1))
    n = length(blob)
    return substr(text, 1, n) == blob && substr(text, n + 1, 1) ~ /^[ \t\r]?$/
}
# Where each option begins and how long it is; gives the end of all, or 0 if a quote has none, if more
# than a comma or a blank follows it (sshd refuses such a line), or if they have no end in reach: some
# awk takes the longer for a letter the more there are.
function split_options(text,   i, c, open, begin) {
    text = substr(text, 1, 65536)
    count = 0
    begin = 1
    for (i = 1; (c = substr(text, i, 1)) != ""; i++) {
        if (c == "\\" && substr(text, i + 1, 1) == "\"") i++
        else if (c == "\"") {
            open = !open
            if (!open && substr(text, i + 1, 1) !~ /^[, \t]?$/) return 0
        }
        else if (!open && (c == "," || c == " " || c == "\t")) {
            count++
            from[count] = begin
            size[count] = i - begin
            begin = i + 1
            if (c != ",") return i
        }
    }
    return 0
}
function judge(line, start, length_of_options,   i, option, kept, right, commands, new, have) {
    split("", have)
    for (i = 1; i <= count; i++) {
        option = tolower(substr(line, from[i], size[i]))
        # Such a line lets in what the key has signed, and not the key.
        if (option == "cert-authority") return
        if (option ~ /^command=/) {
            commands++
            if (substr(line, from[i], size[i]) == wanted[1]) right++
        } else if (size[i] > 0) {
            have[option] = 1
            kept = kept (kept == "" ? "" : ",") (start + from[i] - 1) ":" size[i]
        }
    }
    right = commands == 1 && right == 1
    new = wanted[1]
    for (i = 2; i <= wants; i++) {
        if ((tolower(wanted[i]) in have) || ("restrict" in have)) continue
        right = 0
        new = new "," wanted[i]
    }
    if (right || wants == 0) print "good"
    else print "fix", start, length_of_options, (kept == "" ? "-" : kept), new
}
BEGIN {
    type = ENVIRON["type"]
    blob = ENVIRON["blob"]
    if (ENVIRON["options"] != "") {
        text = ENVIRON["options"] " "
        split_options(text)
        wants = count
        for (i = 1; i <= wants; i++) wanted[i] = substr(text, from[i], size[i])
    }
}
{
    start = at
    at += length($0) + 1
    if (index($0, blob) == 0) next
    line = skip($0)
    start += length($0) - length(line)
    count = 0
    if (is_key(line)) judge(line, start, 0)
    else if (line !~ /^#/ && substr(line, 1, length(type) + 1) != type " ") {
        end = split_options(line)
        rest = skip(substr(line, end + 1))
        if (end > 0 && is_key(rest)) judge(line, start, length(line) - length(rest))
    }
}
END { printf "end %d %d\n", NR, at }
'

# Sets `found` to what is said of a key: FILE TYPE KEY OPTIONS
find_key() {
    found="end 0 0"
    [ -e "$1" ] || return 0
    bytes=$(wc -c <"$1") || return 1
    found=$(tr '\000-\010\013\014\016-\037\177-\377' '?' <"$1" | type=$2 blob=$3 options=$4 awk "$finder")
    # Behind a last line without an end, one byte more is counted.
    counted=${found##* }
    case $counted in '' | *[!0-9]*) return 1 ;; esac
    [ $((counted - bytes)) -eq 0 ] || [ $((counted - bytes)) -eq 1 ]
}
# How many lines hold the key, and how many of those are not right.
lines_found() { printf '%s\n' "$found" | grep -c -v '^end '; }
lines_to_fix() { printf '%s\n' "$found" | grep -c '^fix '; }

# Hosts that share a home directory are set up at the same time.
make_directory() { [ -d .ssh ] || mkdir -m 700 .ssh || [ -d .ssh ]; }

# In place, so that what others add meanwhile stays; what a full disk takes half of is taken back.
append() {
    before=0
    [ ! -e "$keys" ] || before=$(wc -c <"$keys") || return 1
    rm -f "$keys.new"
    {
        [ "$before" -eq 0 ] || [ "$(tail -c 1 "$keys" | wc -l)" -eq 1 ] || echo
        printf '%s\n' "$1"
    } >"$keys.new" && cat "$keys.new" >>"$keys"
    done=$?
    if [ $done != 0 ] && [ -e "$keys" ]; then
        part=$(($(wc -c <"$keys") - before))
        if [ "$part" -gt 0 ] && [ "$(tail -c "$part" "$keys" | cksum)" = "$(head -c "$part" "$keys.new" | cksum)" ]; then
            dd if=/dev/null of="$keys" bs=1 seek="$before" 2>/dev/null
        fi
    fi
    rm -f "$keys.new"
    return $done
}

# The file as it is; the one before stays beside it.
back_up() {
    rm -f "$backup.new"
    cat "$keys" >"$backup.new" && [ "$(sum "$keys")" = "$(sum "$backup.new")" ] || {
        rm -f "$backup.new"
        return 1
    }
    [ ! -e "$backup" ] || mv -f "$backup" "$backup.1" || return 1
    mv -f "$backup.new" "$backup"
}
# COUNT bytes of the file: FROM COUNT
bytes() { [ "$2" -eq 0 ] || tail -c "+$(($1 + 1))" "$keys" | head -c "$2"; }
# The file with what was found corrected. Counts in `grown` how much longer that is.
corrected() {
    at=0
    grown=0
    while read -r verdict from length kept options; do
        [ "$verdict" = fix ] || continue
        bytes "$at" $((from - at)) && printf '%s' "$options" || return 1
        grown=$((grown + ${#options} + 1 - length))
        spans=$(echo "$kept" | tr ',' ' ')
        [ "$spans" != - ] || spans=
        for span in $spans; do
            printf , && bytes "${span%:*}" "${span#*:}" || return 1
            grown=$((grown + 1 + ${span#*:}))
        done
        printf ' ' || return 1
        at=$((from + length))
    done <<END
$found
END
    tail -c "+$((at + 1))" "$keys"
}
# Whether the new file has all lines of the old one, and is as long as it must be.
is_whole() {
    [ "$(wc -l <"$keys")" -eq "$(wc -l <"$keys.new")" ] || return 1
    [ $(($(wc -c <"$keys.new") - $(wc -c <"$keys"))) -eq "$grown" ] || return 1
    count=$(lines_found)
    find_key "$keys.new" "$forced_type" "$forced_blob" "$forced_options" || return 1
    [ "$(lines_found)" -eq "$count" ] && [ "$(lines_to_fix)" -eq 0 ]
}
# Options that somebody has given the key stay, but for a command of their own.
correct() {
    back_up || { echo "cannot keep $backup"; return 1; }
    rm -f "$keys.new"
    corrected >"$keys.new" && is_whole || {
        rm -f "$keys.new"
        echo "its copy is not whole, is the disk full?"
        return 1
    }
    [ "$(sum "$keys")" = "$(sum "$backup")" ] || {
        rm -f "$keys.new"
        echo "something else has written it meanwhile"
        return 1
    }
    chmod 600 "$keys.new" && mv -f "$keys.new" "$keys"
}
put_script() {
    printf '%s\n' "$script" >"$script_path.new" || return 1
    chmod 700 "$script_path.new" && mv -f "$script_path.new" "$script_path"
}

lock() {
    tries=0
    absent=0
    until mkdir .ssh/.rlaunch-setup 2>/dev/null; do
        # Its holder may have removed it since; that it was so each time is not to be believed.
        [ -d .ssh/.rlaunch-setup ] || absent=$((absent + 1))
        [ $absent -le 5 ] || fail "cannot write below ~/.ssh"
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
    [ ! -L "$keys" ] || keys=$(readlink -f "$keys") || fail "~/.ssh/authorized_keys leads nowhere"
    [ ! -e "$keys" ] || [ -f "$keys" ] || fail "~/.ssh/authorized_keys is not a file"
    [ ! -f "$keys" ] || mode_is "$keys" 600 || change "chmod 600 ~/.ssh/authorized_keys" chmod 600 "$keys"
    unread="cannot read ~/.ssh/authorized_keys to its end by tr and awk"
    if [ -n "$key" ]; then
        find_key "$keys" "${key%% *}" "$key_blob" "" || fail "$unread"
        [ "$(lines_found)" != 0 ] || change "add your key to ~/.ssh/authorized_keys" append "$key"
    fi
    if [ -n "$forced" ]; then
        if [ "$(cat "$script_path" 2>/dev/null)" != "$script" ] || ! mode_is "$script_path" 700; then
            change "write ~/$script_path, mode 700" put_script
        fi
        before_blob=${forced%% "$forced_blob"*}
        forced_type=${before_blob##* }
        forced_options=${before_blob%"$forced_type"}
        forced_options=${forced_options% }
        find_key "$keys" "$forced_type" "$forced_blob" "$forced_options" || fail "$unread"
        if [ "$(lines_found)" = 0 ]; then
            change "add the container's key, with its command, to ~/.ssh/authorized_keys" append "$forced"
        elif [ "$(lines_to_fix)" != 0 ]; then
            change "correct the line of the container's key in ~/.ssh/authorized_keys, which is kept as ~/$backup" correct
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
