//! Tests that the script keeps the content of `authorized_keys`: lines of other keys, options that
//! administrators set, other encodings, and bytes that are not a line of a key.

use super::*;
use proptest::prelude::*;

const BLOB: &[u8] = b"CCCC";
const TYPE: &[u8] = b"ssh-ed25519";

/// Lists the shells of this machine. A host may have any of them.
fn shells() -> Vec<&'static str> {
    let all = ["sh", "dash", "busybox sh", "bash --posix", "bash", "ksh", "zsh --emulate sh"];
    let is_there = |shell: &&str| {
        let program = shell.split(' ').next().unwrap_or_default();
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    };
    all.into_iter().filter(is_there).collect()
}

fn home_with(authorized_keys: &[u8]) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let ssh = home.path().join(".ssh");
    fs::create_dir(&ssh).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(ssh.join("authorized_keys"), authorized_keys).unwrap();
    home
}

fn keys_of(home: &Path) -> Vec<u8> {
    fs::read(home.join(".ssh/authorized_keys")).unwrap()
}

/// Parses a line of authorized_keys as sshd does. If the line accepts the container's key, returns the
/// options in front of the key, which may be empty; otherwise returns `None`.
fn options_of(line: &[u8]) -> Option<&[u8]> {
    let is_blank = |byte: u8| matches!(byte, b' ' | b'\t');
    let skip = |text: &[u8]| text.iter().take_while(|byte| is_blank(**byte)).count();
    let is_key = |text: &[u8]| {
        let rest = text.strip_prefix(TYPE)?;
        let blob = rest[skip(rest)..].strip_prefix(BLOB).filter(|_| skip(rest) > 0)?;
        blob.first().is_none_or(|next| is_blank(*next) || *next == b'\r').then_some(())
    };
    let line = &line[skip(line)..];
    if is_key(line).is_some() {
        return Some(&[]);
    }
    let is_type_first = line.strip_prefix(TYPE).is_some_and(|rest| rest.first() == Some(&b' '));
    if line.first() == Some(&b'#') || is_type_first {
        return None;
    }
    let (mut at, mut quoted, mut begin, mut vouches) = (0, false, 0, false);
    let mut end = |begin, at| vouches |= line[begin..at].eq_ignore_ascii_case(b"cert-authority");
    while at < line.len() && (quoted || !is_blank(line[at])) {
        match line[at] {
            b'\\' if line.get(at + 1) == Some(&b'"') => at += 1,
            b'"' => {
                quoted = !quoted;
                let next = line.get(at + 1);
                // sshd refuses a line with anything but a blank or a comma behind a closing quote.
                if !quoted && next.is_some_and(|next| !is_blank(*next) && *next != b',') {
                    return None;
                }
            }
            b',' if !quoted => {
                end(begin, at);
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    let options = line.get(..at)?;
    end(begin, at);
    let rest = &line[at..];
    (!vouches && is_key(&rest[skip(rest)..]).is_some()).then_some(options)
}

/// Asserts that `after` begins with every line of `before`, in the same order and byte for byte, except for
/// the options of the container's key. All further lines of `after` must be lines that the script adds.
fn check(before: &[u8], after: &[u8]) {
    let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let context = || format!("before: {}\nafter: {}", shown(before), shown(after));
    let mut old: Vec<&[u8]> = before.split(|byte| *byte == b'\n').collect();
    let whole = old.pop_if(|last| last.is_empty()).is_some();
    let new: Vec<&[u8]> = after.split(|byte| *byte == b'\n').collect();
    assert!(new.len() >= old.len(), "a line is lost: {}", context());
    for (old, new) in old.iter().zip(&new) {
        let Some(options) = options_of(old) else {
            assert_eq!(shown(old), shown(new), "{}", context());
            continue;
        };
        // The rest of the line behind the options is unchanged.
        let tail = |line: &[u8]| {
            let blanks = line.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
            let line = line[blanks + options_of(line).map_or(0, <[u8]>::len)..].to_vec();
            let blanks = line.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
            line[blanks..].to_vec()
        };
        assert_eq!(shown(&tail(old)), shown(&tail(new)), "{}", context());
        let corrected = shown(options_of(new).unwrap());
        assert!(corrected.contains(&shown(b"command=\"sh ~/.ssh/rlaunch-c.sh\"")), "{}", context());
        if shown(options).contains("from=\\\"10.0.0.1") {
            assert!(corrected.contains("from=\\\"10.0.0.1"), "{}", context());
        }
    }
    let added: Vec<String> = new[old.len()..].iter().map(|line| shown(line)).collect();
    let forced = shown(desired().forced.unwrap().line.as_bytes());
    let ours = ["ssh-ed25519 AAAA me".to_owned(), forced, String::new()];
    assert!(added.iter().all(|line| ours.contains(line)), "{}", context());
    let is_unchanged = before == after;
    assert!(after.ends_with(b"\n") || is_unchanged || !whole, "{}", context());
}

#[test]
fn lines_of_others_survive_in_every_shell_and_locale() {
    let text: Vec<u8> = [
        &b"ssh-ed25519 ZZZZ M\xfcller\r\n\0\nssh-rsa BBBB \0x\n# ssh-ed25519 CCCC old\n\n"[..],
        b"command=\"sh ~/.ssh/rlaunch-c.sh\"from=\"10.0.0.1\" ssh-ed25519 CCCC x\n",
        b"  from=\"10.0.0.1,# \\\" \",command=\"rm \xff\",no-pty  ssh-ed25519\tCCCC it\xfc's\r\n",
        b"ssh-rsa DDDD CCCC\ncommand=\"echo ssh-ed25519 CCCC x\" ssh-ed25519 EEEE\n",
        b"cert-authority ssh-ed25519 CCCC\ncommand=\"open ssh-ed25519 CCCC\n",
        b"environment=\"X=",
        &b"ssh-ed25519 CCCC ".repeat(5000),
        b"\" ssh-rsa FFFF long\nssh-ed25519 CCCC",
    ]
    .concat();
    for shell in shells() {
        for locale in ["C.UTF-8", "de_DE.ISO-8859-1"] {
            let home = home_with(&text);
            run_script(home.path(), (shell, locale), &desired(), false).unwrap();
            let after = keys_of(home.path());
            check(&text, &after);
            let corrected =
                format!("\n  {OPTIONS},from=\"10.0.0.1,# \\\" \",no-pty ssh-ed25519\tCCCC it");
            let found = after.windows(corrected.len()).any(|part| part == corrected.as_bytes());
            assert!(found, "{shell} {locale}: {}", after.escape_ascii());
            let last = format!("\n{OPTIONS} ssh-ed25519 CCCC\nssh-ed25519 AAAA me\n");
            assert!(after.ends_with(last.as_bytes()), "{shell} {locale}: {}", after.escape_ascii());
            // A second run has nothing to do.
            assert_eq!(run_in(home.path(), shell, &desired(), false), [""; 0], "{shell} {locale}");
            assert_eq!(keys_of(home.path()), after);
        }
    }
}

#[test]
fn two_files_are_kept_and_no_more() {
    let home = home_with(b"ssh-ed25519 CCCC one\n");
    let ssh = home.path().join(".ssh");
    for name in ["one", "two", "three"] {
        let line = format!("ssh-ed25519 CCCC {name}\n");
        fs::write(ssh.join("authorized_keys"), line).unwrap();
        run_in(home.path(), "sh", &desired(), false);
    }
    let mut names: Vec<_> = fs::read_dir(&ssh).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    let backup = "authorized_keys.rlaunch-backup";
    let backup_1 = format!("{backup}.1");
    assert_eq!(names, ["authorized_keys", backup, &backup_1, "rlaunch-c.sh"]);
    assert!(fs::read_to_string(ssh.join(backup)).unwrap().contains("CCCC three"));
    assert!(fs::read_to_string(ssh.join(backup_1)).unwrap().contains("CCCC two"));
}

/// Runs the script with a limit for the size of a file, in blocks of 512 bytes, so that writes beyond it fail
/// as on a full disk.
fn run_on_full_disk(
    home: &Path,
    blocks: usize,
    desired: &DesiredState,
) -> Result<Vec<String>, SetupError> {
    let token = Token::new();
    let limit = format!("ulimit -f {blocks}; trap '' XFSZ; exec sh -s");
    let mut sh = Command::new("dash");
    sh.args(["-c", &limit]).env("HOME", home).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = sh.spawn().unwrap();
    child.stdin.take().unwrap().write_all(desired.text(false, &token).as_bytes()).unwrap();
    let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    parse(&out, &token).unwrap_or_else(|| panic!("{out}"))
}

#[test]
fn a_full_disk_leaves_the_file_as_it_was() {
    let others = "ssh-rsa BBBB someone\n".repeat(48);
    // The limit is 1024 bytes. The first file has 1008 bytes and exceeds the limit with another line. The
    // second has 1030 bytes, so not even a copy of it fits.
    for (text, desired, blocks) in [
        (others.clone(), DesiredState { forced: None, ..desired() }, 2),
        (format!("{others}ssh-ed25519 CCCC free\n"), DesiredState { key: None, ..desired() }, 2),
        // A copy of the file fits, but not the file with options.
        (
            format!("{}ssh-ed25519 CCCC free\n", &others[..987]),
            DesiredState { key: None, ..desired() },
            2,
        ),
    ] {
        let home = home_with(text.as_bytes());
        let error = run_on_full_disk(home.path(), blocks, &desired).unwrap_err();
        assert!(error.to_string().contains("authorized_keys"), "{error}");
        assert_eq!(String::from_utf8(keys_of(home.path())).unwrap(), text, "{error}");
        let left = fs::read_dir(home.path().join(".ssh")).unwrap().map(|e| e.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with(".new")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_file_that_a_tool_does_not_read_to_its_end_is_left_alone() {
    let home = home_with(b"ssh-rsa BBBB someone\nssh-ed25519 CCCC free\n");
    let tools = home.path().join("tools");
    fs::create_dir(&tools).unwrap();
    fs::write(tools.join("awk"), "#!/bin/sh\nhead -n 1 >/dev/null; echo end 1 22\n").unwrap();
    fs::set_permissions(tools.join("awk"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("export PATH={}:$PATH; exec sh -s", tools.display());
    let token = Token::new();
    let mut sh = Command::new("sh");
    sh.args(["-c", &path]).env("HOME", home.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = sh.spawn().unwrap();
    child.stdin.take().unwrap().write_all(desired().text(false, &token).as_bytes()).unwrap();
    let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let error = parse(&out, &token).unwrap().unwrap_err().to_string();
    assert!(error.contains("cannot read ~/.ssh/authorized_keys to its end"), "{error}");
    assert_eq!(keys_of(home.path()), b"ssh-rsa BBBB someone\nssh-ed25519 CCCC free\n");
}

#[test]
fn a_link_stays_a_link() {
    let home = home_with(b"ssh-ed25519 CCCC free\n");
    let (keys, target) = (home.path().join(".ssh/authorized_keys"), home.path().join("dotfiles"));
    fs::rename(&keys, &target).unwrap();
    std::os::unix::fs::symlink("../dotfiles", &keys).unwrap();
    run_in(home.path(), "sh", &desired(), false);
    assert!(fs::symlink_metadata(&keys).unwrap().is_symlink());
    assert!(fs::read_to_string(&target).unwrap().starts_with(OPTIONS));
    assert!(home.path().join(".ssh/authorized_keys.rlaunch-backup").exists());
}

/// Generates pieces of lines, as they are in authorized_keys, and random bytes.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        &b"ssh-ed25519"[..],
        b"ssh-rsa",
        b"CCCC",
        b"AAAA",
        b"BBBB",
        b" ",
        b"\t",
        b",",
        b"\"",
        b"\\",
        b"#",
        b"\r",
        b"\n",
        b"\0",
        b"\xfc",
        b"\xc3\xbc",
        b"from=\"10.0.0.1\"",
        b"no-pty",
        b"restrict",
        b"command=\"sh ~/.ssh/rlaunch-c.sh\"",
        b"COMMAND=\"a b\"",
        b"cert-authority",
        b"no-port-forwarding,no-agent-forwarding,no-X11-forwarding",
        b"-e",
        b"%s",
        b"$(id)",
        b"`",
        b"'",
    ]);
    prop_oneof![8 => known.prop_map(<[u8]>::to_vec), 1 => prop::collection::vec(any::<u8>(), 0..6)]
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let key = b"ssh-ed25519 CCCC".to_vec();
    let pieces = || prop::collection::vec(piece(), 0..8).prop_map(|pieces| pieces.concat());
    let whole = (pieces(), prop::sample::select(vec![&b""[..], b" ", b"\t "]), pieces());
    prop_oneof![
        2 => pieces(),
        2 => whole.prop_map(move |(before, blank, after)| [&before[..], blank, &key, b" ", &after].concat()),
        1 => pieces().prop_map(|rest| [b"from=\"10.0.0.1\" ssh-ed25519 CCCC ", &rest[..]].concat()),
    ]
}

fn file() -> impl Strategy<Value = Vec<u8>> {
    let end = prop::sample::select(vec![&b"\n"[..], b"\r\n", b""]);
    (prop::collection::vec(line(), 0..7), end)
        .prop_map(|(lines, end)| [&lines.join(&b'\n')[..], end].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_file_holds_no_line_of_others_is_lost(
        text in file(),
        shell in prop::sample::select(shells()),
        locale in prop::sample::select(vec!["C", "C.UTF-8", "en_US.UTF-8"]),
    ) {
        let home = home_with(&text);
        run_script(home.path(), (shell, locale), &desired(), false).unwrap();
        let after = keys_of(home.path());
        check(&text, &after);
        prop_assert_eq!(run_script(home.path(), (shell, "C"), &desired(), true).unwrap(), [""; 0]);
    }
}
