//! Commands for shell scripts inside a rank, such as `rlaunch barrier` and `rlaunch kv get`.

use crate::{Client, ClientError, parse_seconds};
use rlaunch_bootstrap::error_chain;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

/// Help text of the commands.
pub const USAGE: &str = "\
Commands for scripts inside a rank that rlaunch started:

  rlaunch barrier [NAME] [--timeout S]    wait until every rank has called it equally often
  rlaunch kv put KEY VALUE                store VALUE for every rank; `-` reads it from stdin
  rlaunch kv get KEY                      print the value; exit with 1 if there is none
  rlaunch kv wait KEY [--timeout S]       print the value once there is one
  rlaunch abort TEXT                      abort the job with TEXT as the reason
  rlaunch event TEXT                      add TEXT to the log that --events writes
  rlaunch clock                           print the offset to add to this host's monotonic clock to
                                          get that of rank 0's host, and its largest error, in ns

Keys in different namespaces (--namespace NAME) are independent. barrier and kv wait have no time
limit unless --timeout or RLAUNCH_COMM_TIMEOUT gives one in seconds; then they exit with 124.

  rlaunch -H a,b bash -c 'test $RANK = 0 && rlaunch kv put ready yes; rlaunch kv wait ready'
";

const NO_SUCH_KEY: u8 = 1;
const TIMED_OUT: u8 = 124;
const USAGE_ERROR: u8 = 200;
const FAILED: u8 = 204;

/// First words of the command lines that [`run`] accepts.
pub const VERBS: &[&str] = &["abort", "barrier", "clock", "event", "kv"];

/// Parsed command line: the words that are not options, and the values of the options.
#[derive(Debug, Default, PartialEq, Eq)]
struct Command {
    words: Vec<String>,
    namespace: String,
    timeout: Option<std::time::Duration>,
}

/// Runs a command and returns the exit code of the process. The first of `words` is the verb.
/// Prints errors on stderr.
pub fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        return print(USAGE.as_bytes());
    }
    let command = match parse(&words) {
        Ok(command) => command,
        Err(message) => {
            print_error(&format!("{message}\n\n{USAGE}"));
            return ExitCode::from(USAGE_ERROR);
        }
    };
    match execute(&command) {
        Ok(Some(output)) => print(&output),
        Ok(None) => ExitCode::from(NO_SUCH_KEY),
        Err(error) => {
            print_error(&format!("{}\n", error_chain(&error)));
            let timed_out = matches!(error, ClientError::TimedOut { .. });
            ExitCode::from(if timed_out { TIMED_OUT } else { FAILED })
        }
    }
}

fn parse(words: &[String]) -> Result<Command, String> {
    let mut command = Command::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--namespace" => {
                let value = words.next().ok_or("--namespace needs a name")?;
                command.namespace.clone_from(value);
            }
            "--timeout" => {
                let value = words.next().and_then(|text| parse_seconds(text));
                command.timeout = Some(value.ok_or("--timeout needs a number of seconds above 0")?);
            }
            "--" => command.words.extend(words.by_ref().cloned()),
            option if option.starts_with("--") => return Err(format!("unknown option {option}")),
            _ => command.words.push(word.clone()),
        }
    }
    let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
    match words[..] {
        ["barrier"]
        | ["barrier", _]
        | ["clock"]
        | ["abort" | "event", _]
        | ["kv", "put", _, _]
        | ["kv", "get" | "wait", _] => Ok(command),
        [verb @ ("abort" | "event")] => Err(format!("rlaunch {verb} needs a TEXT")),
        _ => Err(format!("unknown command `rlaunch {}`", words.join(" "))),
    }
}

/// Runs a parsed command. Returns the text for stdout, or `None` if the key has no value.
fn execute(command: &Command) -> Result<Option<Vec<u8>>, ClientError> {
    let mut client = Client::from_env()?;
    if command.timeout.is_some() {
        client.set_timeout(command.timeout);
    }
    let namespace = &command.namespace;
    let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
    let line = |value: &[u8]| [value, b"\n"].concat();
    match words[..] {
        ["barrier"] => client.barrier("")?,
        ["barrier", name] => client.barrier(name)?,
        ["abort", text] => client.abort(text)?,
        ["event", text] => client.event(text)?,
        ["kv", "put", key, "-"] => {
            let mut value = Vec::new();
            io::stdin().read_to_end(&mut value).map_err(ClientError::Socket)?;
            client.put(namespace, key, &value)?;
        }
        ["kv", "put", key, value] => client.put(namespace, key, value.as_bytes())?,
        ["kv", "wait", key] => return Ok(Some(line(&client.wait(namespace, key)?))),
        ["kv", "get", key] => return Ok(client.get(namespace, key)?.map(|value| line(&value))),
        // `clock`, the only other command that `parse` lets through.
        _ => {
            let offset = client.clock()?;
            return Ok(Some(format!("{} {}\n", offset.nanoseconds, offset.error).into_bytes()));
        }
    }
    Ok(Some(Vec::new()))
}

fn print(bytes: &[u8]) -> ExitCode {
    match io::stdout().write_all(bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A reader that has left wants no words either.
            if error.kind() != io::ErrorKind::BrokenPipe {
                print_error(&format!("cannot write to stdout: {error}\n"));
            }
            ExitCode::FAILURE
        }
    }
}

fn print_error(text: &str) {
    // A failure to write to stderr cannot be reported anywhere.
    let _ = write!(io::stderr(), "rlaunch: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_stand_anywhere() {
        let command = parsed("kv --namespace n wait k --timeout 1.5").unwrap();
        assert_eq!(command.words, ["kv", "wait", "k"]);
        assert_eq!(command.namespace, "n");
        assert_eq!(command.timeout, Some(std::time::Duration::from_millis(1500)));
        assert_eq!(parsed("kv put k -- --odd").unwrap().words, ["kv", "put", "k", "--odd"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for line in ["kv", "kv put k", "kv drop k", "barrier a b", "abort", "kv get k --what"] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert!(parsed("barrier --timeout soon").is_err());
    }
}
