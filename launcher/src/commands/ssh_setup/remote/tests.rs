use super::*;

mod kept;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, thread};

/// Options of a container's key in authorized_keys.
const OPTIONS: &str =
    "command=\"sh ~/.ssh/rlaunch-c.sh\",no-port-forwarding,no-agent-forwarding,no-X11-forwarding";

fn desired() -> DesiredState {
    let forced = ForcedCommand {
        line: format!("{OPTIONS} ssh-ed25519 CCCC it's mine"),
        blob: "CCCC".into(),
        script: "#!/bin/sh\nexec docker exec -i c /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"".into(),
        script_path: ".ssh/rlaunch-c.sh".into(),
    };
    DesiredState { key: Some(("ssh-ed25519 AAAA me".into(), "AAAA".into())), forced: Some(forced) }
}

/// Runs the script in a shell as a host would. `shell` is the shell's command line.
fn run_script(
    home: &Path,
    (shell, locale): (&str, &str),
    desired: &DesiredState,
    dry: bool,
) -> Result<Vec<String>, SetupError> {
    let (mut words, token) = (shell.split(' '), Token::new());
    let mut sh = Command::new(words.next().unwrap());
    sh.args(words).arg("-s").env("HOME", home).env("LC_ALL", locale);
    let mut child = sh.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(desired.text(dry, &token).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    parse(&out, &token).unwrap_or_else(|| panic!("{out}"))
}

fn run_in(home: &Path, shell: &str, desired: &DesiredState, dry: bool) -> Vec<String> {
    run_script(home, (shell, "C.UTF-8"), desired, dry).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_home_gets_what_is_missing_and_keeps_what_is_there() {
    for shell in ["sh", "bash"] {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        fs::set_permissions(home, fs::Permissions::from_mode(0o775)).unwrap();
        let changes = run_in(home, shell, &desired(), true);
        assert_eq!(changes.len(), 5, "{changes:?}");
        assert!(!home.join(".ssh").exists() && mode(home) == 0o775);
        assert_eq!(run_in(home, shell, &desired(), false), changes);
        let (keys, script) = (home.join(".ssh/authorized_keys"), home.join(".ssh/rlaunch-c.sh"));
        let modes = [home, &home.join(".ssh"), &keys, &script].map(mode);
        assert_eq!(modes, [0o755, 0o700, 0o600, 0o700]);
        let text = fs::read_to_string(&keys).unwrap();
        let forced = desired().forced.unwrap();
        assert_eq!(text, format!("ssh-ed25519 AAAA me\n{}\n", forced.line));
        assert_eq!(fs::read_to_string(&script).unwrap(), forced.script + "\n");
        assert!(run_in(home, shell, &desired(), false).is_empty());
        assert_eq!(fs::read_to_string(&keys).unwrap(), text);

        // A file without a final newline, with the user's key in a comment, with the container's key without
        // its command, and with modes that sshd does not accept.
        let before = "# ssh-ed25519 AAAA old\nssh-rsa BBBB other\nssh-ed25519 CCCC free\nlast";
        fs::write(&keys, before).unwrap();
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o664)).unwrap();
        fs::set_permissions(home.join(".ssh"), fs::Permissions::from_mode(0o777)).unwrap();
        let changes = run_in(home, shell, &desired(), false);
        assert!(
            changes.len() == 4 && changes[3].ends_with("~/.ssh/authorized_keys.rlaunch-backup")
        );
        let after = format!(
            "# ssh-ed25519 AAAA old\nssh-rsa BBBB other\n{OPTIONS} ssh-ed25519 CCCC free\nlast\n\
             ssh-ed25519 AAAA me\n"
        );
        assert_eq!(fs::read_to_string(&keys).unwrap(), after);
        assert_eq!((mode(&keys), mode(&home.join(".ssh"))), (0o600, 0o700));
        let backup = home.join(".ssh/authorized_keys.rlaunch-backup");
        let kept = fs::read_to_string(&backup).unwrap();
        assert_eq!((kept, mode(&backup)), (format!("{before}\nssh-ed25519 AAAA me\n"), 0o600));
        assert!(run_in(home, shell, &desired(), true).is_empty());
        let files = fs::read_dir(home.join(".ssh")).unwrap().count();
        assert_eq!(files, 3, "something is left in ~/.ssh");
    }
}

#[test]
fn hosts_with_one_home_between_them_write_each_line_once() {
    let home = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| run_in(home.path(), "sh", &desired(), false));
        }
    });
    let text = fs::read_to_string(home.path().join(".ssh/authorized_keys")).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn answers_are_found_among_banners_that_look_like_them() {
    let token = Token("0f".into());
    let out = "Welcome!\nrlaunch-setup change rm -rf /\nrlaunch-setup-0e done\nrlaunch-setup done\n\
               $ rlaunch-setup-0f change chmod 700 ~/.ssh\nrlaunch-setup-0f done\n";
    assert_eq!(parse(out, &token).unwrap().unwrap(), ["chmod 700 ~/.ssh"]);
    let failed = parse("rlaunch-setup-0f failed it is full \n", &token).unwrap().unwrap_err();
    assert_eq!(failed.to_string(), "cannot set it up: it is full");
    assert!(
        parse("This account is currently not available.\nrlaunch-setup done\n", &token).is_none()
    );
    let odd = parse("rlaunch-setup-0f change \u{1b}[2Jrm\nrlaunch-setup-0f done\n", &token);
    assert_eq!(odd.unwrap().unwrap(), ["\\x1b[2Jrm"]);
    assert_ne!(Token::new().0, Token::new().0);
}
