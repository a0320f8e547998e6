//! Work on a host: the script that lets keys in, and a look at where a login lands.

use super::error::SetupError;
use rlaunch_console::printable;
use rlaunch_console::shell::quoted_posix;
use rlaunch_ssh::Connection;
use russh::ChannelMsg;
use std::time::Duration;

const SCRIPT: &str = include_str!("setup.sh");
/// How long the host may take for either.
pub(super) const RUN_TIMEOUT: Duration = Duration::from_secs(20);
/// Both say little.
const MOST: usize = 64 << 10;

/// Keys and files that a host is to have.
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

/// A word that marks the answers of one command. What a banner or a start-up file prints was written
/// before the word was made, so it is no answer, whatever it looks like.
struct Token(String);

impl Token {
    fn new() -> Token {
        Token(uuid::Uuid::new_v4().simple().to_string())
    }

    /// Beginning of an answer.
    fn mark(&self, kind: &str) -> String {
        format!("{kind}-{} ", self.0)
    }
}

/// What a command has printed.
struct Said {
    out: String,
    err: String,
}

impl Wanted {
    /// The whole text for a shell's standard input.
    fn text(&self, dry: bool, token: &Token) -> String {
        let (key, key_blob) = self.key.clone().unwrap_or_default();
        let forced = self.forced.as_ref();
        let of_forced = |field: fn(&Forced) -> &String| forced.map_or("", |f| field(f));
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

/// Makes the host have what is wanted, or only says what that would change when `dry`.
pub(super) async fn set_up(
    connection: &Connection,
    wanted: &Wanted,
    dry: bool,
) -> Result<Vec<String>, SetupError> {
    let token = Token::new();
    let said = run(connection, "exec sh -s", &wanted.text(dry, &token)).await?;
    answers(&said.out, &token).ok_or_else(|| SetupError::Shell(last_words(&said)))?
}

/// The script's lines among whatever a login shell prints; `None` if it did not come to its end.
fn answers(out: &str, token: &Token) -> Option<Result<Vec<String>, SetupError>> {
    let mark = token.mark("rlaunch-setup");
    let mut changes = Vec::new();
    for line in out.lines() {
        let Some((_, answer)) = line.split_once(&mark) else { continue };
        match answer.split_once(' ').unwrap_or((answer, "")) {
            ("change", what) => changes.push(printable::first_line(what)),
            ("failed", cause) => {
                return Some(Err(SetupError::Refused { cause: printable::first_line(cause) }));
            }
            ("done", _) => return Some(Ok(changes)),
            _ => {}
        }
    }
    None
}

/// Where a login by this connection lands: its mount namespace, which no container shares with its
/// host. Two that land in the same place give the same words; `Err` holds what came instead.
pub(super) async fn landing(connection: &Connection) -> Result<Result<String, String>, SetupError> {
    let mark = Token::new().mark("rlaunch-landed");
    let look = format!("exec sh -c 'echo {mark}$(readlink /proc/self/ns/mnt)' sh");
    let said = run(connection, &look, "").await?;
    let found = said.out.lines().find_map(|line| line.split_once(mark.trim_end()));
    Ok(found.map(|(_, place)| place.trim().to_owned()).ok_or_else(|| last_words(&said)))
}

fn last_words(said: &Said) -> String {
    let last =
        |text: &str| text.lines().rfind(|line| !line.trim().is_empty()).map(printable::first_line);
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
mod tests;
