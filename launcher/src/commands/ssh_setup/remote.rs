//! Commands on a host: the script `setup.sh` that installs keys, and a test whether a login is in a container.

use super::error::SetupError;
use rlaunch_engine::connect::connector::last_lines;
use rlaunch_ssh::Connection;
use rlaunch_text::printable;
use rlaunch_text::shell::quoted_posix;
use russh::ChannelMsg;
use std::time::Duration;

const SCRIPT: &str = include_str!("setup.sh");
/// Time limit for a command on a host.
const RUN_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of bytes after which further output of a command is discarded.
const MAX_OUTPUT: usize = 64 << 10;

/// Keys and files that a host should have.
#[derive(Clone, Default)]
pub(super) struct DesiredState {
    /// Line of the user's key for authorized_keys, and the key itself in base64; `None` to install no key.
    pub(super) key: Option<(String, String)>,
    pub(super) forced: Option<ForcedCommand>,
}

/// Key for a container, with the script that sshd runs for it.
#[derive(Clone)]
pub(super) struct ForcedCommand {
    /// Line of the container's key for authorized_keys.
    pub(super) line: String,
    /// Key itself in base64, a word of `line`.
    pub(super) blob: String,
    pub(super) script: String,
    /// Path of the script, relative to the home directory.
    pub(super) script_path: String,
}

/// Random word that marks the output of one command. Banners and start-up files print other output, which
/// cannot contain this word.
struct Token(String);

impl Token {
    fn new() -> Token {
        Token(uuid::Uuid::new_v4().simple().to_string())
    }

    /// Returns the text at the beginning of the output lines of this kind.
    fn mark(&self, kind: &str) -> String {
        format!("{kind}-{} ", self.0)
    }
}

struct CommandOutput {
    out: String,
    err: String,
}

impl DesiredState {
    /// Returns the script for a shell's standard input: assignments to its variables, and `setup.sh`.
    fn text(&self, dry: bool, token: &Token) -> String {
        let (key, key_blob) = self.key.clone().unwrap_or_default();
        let forced = self.forced.as_ref();
        let of_forced = |field: fn(&ForcedCommand) -> &String| forced.map_or("", |f| field(f));
        let values = [
            ("token", token.0.as_str()),
            ("dry", if dry { "1" } else { "0" }),
            ("key", &key),
            ("key_blob", &key_blob),
            ("forced", of_forced(|f| &f.line)),
            ("forced_blob", of_forced(|f| &f.blob)),
            ("script", of_forced(|f| &f.script)),
            ("script_path", of_forced(|f| &f.script_path)),
        ];
        let values = values.map(|(name, value)| format!("{name}={}\n", quoted_posix(value)));
        values.concat() + SCRIPT
    }
}

/// Brings the host into the desired state, and returns the changes. With `dry` it changes nothing.
pub(super) async fn apply(
    connection: &Connection,
    desired: &DesiredState,
    dry: bool,
) -> Result<Vec<String>, SetupError> {
    let token = Token::new();
    let output = run(connection, "exec sh -s", &desired.text(dry, &token)).await?;
    parse(&output.out, &token).ok_or_else(|| SetupError::NoCommands(output.last_words()))?
}

/// Parses the script's lines among other output of the login shell; returns `None` if the script did not finish.
fn parse(out: &str, token: &Token) -> Option<Result<Vec<String>, SetupError>> {
    let mark = token.mark("rlaunch-setup");
    let mut changes = Vec::new();
    for line in out.lines() {
        let Some((_, answer)) = line.split_once(&mark) else { continue };
        match answer.split_once(' ').unwrap_or((answer, "")) {
            ("change", change) => changes.push(printable::first_line(change)),
            ("failed", cause) => {
                return Some(Err(SetupError::Refused { cause: printable::first_line(cause) }));
            }
            ("done", _) => return Some(Ok(changes)),
            _ => {}
        }
    }
    None
}

/// Returns the name of the mount namespace of a login. A container never shares it with its host. The inner
/// `Err` is the output if the command did not run.
pub(super) async fn mount_namespace(
    connection: &Connection,
) -> Result<Result<String, String>, SetupError> {
    let mark = Token::new().mark("rlaunch-landed");
    let command = format!("exec sh -c 'echo {mark}$(readlink /proc/self/ns/mnt)' sh");
    let output = run(connection, &command, "").await?;
    let found = output.out.lines().find_map(|line| line.split_once(mark.trim_end()));
    Ok(found.map(|(_, name)| name.trim().to_owned()).ok_or_else(|| output.last_words()))
}

impl CommandOutput {
    /// Returns the end of stderr, or of stdout if nothing was written to stderr.
    fn last_words(&self) -> String {
        last_lines(if self.err.trim().is_empty() { &self.out } else { &self.err })
    }
}

/// Runs a command with this input until it exits, and returns its output.
async fn run(
    connection: &Connection,
    command: &str,
    input: &str,
) -> Result<CommandOutput, SetupError> {
    let running = async {
        let mut channel = connection.exec(command).await?;
        // Errors are ignored, since a command need not read its input.
        let _ = channel.data_bytes(input.to_owned()).await;
        let _ = channel.eof().await;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some(message) = channel.wait().await {
            match message {
                ChannelMsg::Data { data } if out.len() < MAX_OUTPUT => out.extend_from_slice(&data),
                ChannelMsg::ExtendedData { data, .. } if err.len() < MAX_OUTPUT => {
                    err.extend_from_slice(&data);
                }
                ChannelMsg::Close => break,
                _ => {}
            }
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(CommandOutput { out: text(&out), err: text(&err) })
    };
    tokio::time::timeout(RUN_TIMEOUT, running).await.map_err(|_| SetupError::Late(RUN_TIMEOUT))?
}

#[cfg(test)]
mod tests;
