//! What runs on a host: the script that lets keys in, and a look at where a login lands.

use super::error::SetupError;
use super::shell::quote;
use crate::ssh::Connection;
use russh::ChannelMsg;
use std::time::Duration;

const SCRIPT: &str = include_str!("setup.sh");
/// Where a login lands: its mount namespace, which no container shares with its host.
const LOOK: &str = "exec sh -c 'echo rlaunch-landed $(readlink /proc/self/ns/mnt)' sh";
/// How long the host may take for either.
pub(super) const RUN_TIMEOUT: Duration = Duration::from_secs(20);
/// Both say little.
const MOST: usize = 64 << 10;

/// What a host is to have.
#[derive(Clone, Default)]
pub(super) struct Wanted {
    /// The line for authorized_keys, and what of it is the key itself.
    pub(super) key: Option<(String, String)>,
    pub(super) forced: Option<Forced>,
}

/// The way into a container.
#[derive(Clone)]
pub(super) struct Forced {
    pub(super) line: String,
    pub(super) blob: String,
    pub(super) script: String,
    pub(super) script_path: String,
}

/// What a command has printed.
struct Said {
    out: String,
    err: String,
}

impl Wanted {
    /// The whole text for a shell's standard input.
    fn text(&self, dry: bool) -> String {
        let (key, key_blob) = self.key.clone().unwrap_or_default();
        let forced = self.forced.as_ref();
        let of_forced = |field: fn(&Forced) -> &String| forced.map_or("", |f| field(f));
        let values = [
            ("dry", if dry { "1" } else { "0" }),
            ("key", &key),
            ("key_blob", &key_blob),
            ("forced", of_forced(|f| &f.line)),
            ("forced_blob", of_forced(|f| &f.blob)),
            ("script", of_forced(|f| &f.script)),
            ("script_path", of_forced(|f| &f.script_path)),
        ];
        let values = values.map(|(name, value)| format!("{name}={}\n", quote(value)));
        values.concat() + SCRIPT
    }
}

/// Makes the host have what is wanted, or only says what that would change when `dry`.
pub(super) async fn set_up(
    connection: &Connection,
    wanted: &Wanted,
    dry: bool,
) -> Result<Vec<String>, SetupError> {
    let said = run(connection, "exec sh -s", &wanted.text(dry)).await?;
    answers(&said.out).ok_or_else(|| SetupError::Shell(last_words(&said)))?
}

/// The script's lines among whatever a login shell prints; `None` if it did not come to its end.
fn answers(out: &str) -> Option<Result<Vec<String>, SetupError>> {
    let mut changes = Vec::new();
    for line in out.lines() {
        let Some((_, answer)) = line.split_once("rlaunch-setup ") else { continue };
        match answer.split_once(' ').unwrap_or((answer, "")) {
            ("change", what) => changes.push(what.to_owned()),
            ("failed", cause) => {
                return Some(Err(SetupError::Refused { cause: cause.trim_end().to_owned() }));
            }
            ("done", _) => return Some(Ok(changes)),
            _ => {}
        }
    }
    None
}

/// Where a login by this connection lands: two that land in the same place give the same words.
/// `Err` holds what came instead.
pub(super) async fn landing(connection: &Connection) -> Result<Result<String, String>, SetupError> {
    let said = run(connection, LOOK, "").await?;
    let found = said.out.lines().find_map(|line| line.split_once("rlaunch-landed"));
    Ok(found.map(|(_, place)| place.trim().to_owned()).ok_or_else(|| last_words(&said)))
}

fn last_words(said: &Said) -> String {
    let last = |text: &str| text.lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned);
    last(&said.err).or_else(|| last(&said.out)).unwrap_or_default()
}

/// Runs a command with this input to its end.
async fn run(connection: &Connection, command: &str, input: &str) -> Result<Said, SetupError> {
    let running = async {
        let mut channel = connection.exec(command).await?;
        // A command that reads nothing ends all the same.
        let _ = channel.data_bytes(input.to_owned()).await;
        let _ = channel.eof().await;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some(message) = channel.wait().await {
            match message {
                ChannelMsg::Data { data } if out.len() < MOST => out.extend_from_slice(&data),
                ChannelMsg::ExtendedData { data, .. } if err.len() < MOST => {
                    err.extend_from_slice(&data);
                }
                ChannelMsg::Close => break,
                _ => {}
            }
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Said { out: text(&out), err: text(&err) })
    };
    tokio::time::timeout(RUN_TIMEOUT, running).await.map_err(|_| SetupError::Late)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::{fs, thread};

    fn wanted() -> Wanted {
        let forced = Forced {
            line: "command=\"sh ~/.ssh/rlaunch-c.sh\" ssh-ed25519 CCCC it's mine".into(),
            blob: "CCCC".into(),
            script: "#!/bin/sh\nexec docker exec -i c /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"".into(),
            script_path: ".ssh/rlaunch-c.sh".into(),
        };
        Wanted { key: Some(("ssh-ed25519 AAAA me".into(), "AAAA".into())), forced: Some(forced) }
    }

    /// As a host's shell would read it.
    fn run_in(home: &Path, shell: &str, wanted: &Wanted, dry: bool) -> Vec<String> {
        let mut sh = Command::new(shell);
        sh.arg("-s").env("HOME", home).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = sh.spawn().unwrap();
        child.stdin.take().unwrap().write_all(wanted.text(dry).as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        answers(&out).unwrap_or_else(|| panic!("{out}")).unwrap()
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
            let said = run_in(home, shell, &wanted(), true);
            assert_eq!(said.len(), 5, "{said:?}");
            assert!(!home.join(".ssh").exists() && mode(home) == 0o775);
            assert_eq!(run_in(home, shell, &wanted(), false), said);
            let (keys, script) =
                (home.join(".ssh/authorized_keys"), home.join(".ssh/rlaunch-c.sh"));
            let modes = [home, &home.join(".ssh"), &keys, &script].map(mode);
            assert_eq!(modes, [0o755, 0o700, 0o600, 0o700]);
            let text = fs::read_to_string(&keys).unwrap();
            let forced = wanted().forced.unwrap();
            assert_eq!(text, format!("ssh-ed25519 AAAA me\n{}\n", forced.line));
            assert_eq!(fs::read_to_string(&script).unwrap(), forced.script + "\n");
            assert!(run_in(home, shell, &wanted(), false).is_empty());
            assert_eq!(fs::read_to_string(&keys).unwrap(), text);

            // No line break at its end, a comment with the key, the container's key without its
            // command, and modes that others like better than sshd does.
            let before = "# ssh-ed25519 AAAA old\nssh-rsa BBBB other\nssh-ed25519 CCCC free\nlast";
            fs::write(&keys, before).unwrap();
            fs::set_permissions(&keys, fs::Permissions::from_mode(0o664)).unwrap();
            fs::set_permissions(home.join(".ssh"), fs::Permissions::from_mode(0o777)).unwrap();
            assert_eq!(run_in(home, shell, &wanted(), false).len(), 4);
            let others = "# ssh-ed25519 AAAA old\nssh-rsa BBBB other\nlast\nssh-ed25519 AAAA me\n";
            let after = format!("{others}{}\n", wanted().forced.unwrap().line);
            assert_eq!(fs::read_to_string(&keys).unwrap(), after);
            assert_eq!((mode(&keys), mode(&home.join(".ssh"))), (0o600, 0o700));
            assert!(run_in(home, shell, &wanted(), true).is_empty());
            let files = fs::read_dir(home.join(".ssh")).unwrap().count();
            assert_eq!(files, 2, "something is left in ~/.ssh");
        }
    }

    #[test]
    fn hosts_with_one_home_between_them_write_each_line_once() {
        let home = tempfile::tempdir().unwrap();
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| run_in(home.path(), "sh", &wanted(), false));
            }
        });
        let text = fs::read_to_string(home.path().join(".ssh/authorized_keys")).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn answers_are_found_among_banners() {
        let out = "Welcome!\nrlaunch-setup change chmod 700 ~/.ssh\nrlaunch-setup done\n";
        assert_eq!(answers(out).unwrap().unwrap(), ["chmod 700 ~/.ssh"]);
        let failed = answers("rlaunch-setup failed it is full \n").unwrap().unwrap_err();
        assert_eq!(failed.to_string(), "cannot set it up: it is full");
        assert!(answers("This account is currently not available.\n").is_none());
    }
}
