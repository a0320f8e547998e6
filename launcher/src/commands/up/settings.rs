//! The `rlaunch.toml` of the working directory, which `rlaunch up` writes and trusts.

use crate::cli::args::JobArgs;
use crate::cli::config::{FILE, Review};
use clap::CommandFactory;
use rlaunch_console::messages;
use rlaunch_console::process_env::ProcessEnv;
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// First line of a file that this verb has written.
const MARK: &str = "# written by `rlaunch up`\n";

/// Writes the hosts into ./rlaunch.toml, if there is none, or one that an `up` of fewer hosts has written, and trusts it.
/// Every other one is the user's.
pub(super) fn write(hosts: &[Host]) -> Result<(), Failed> {
    let text = contents(hosts);
    let failed = |error: &dyn std::fmt::Display| {
        Failed::new(Exit::FILES, format!("cannot write {FILE}: {error}"))
    };
    match fs::File::create_new(FILE) {
        Ok(mut file) => file.write_all(text.as_bytes()).map_err(|error| failed(&error))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let present = fs::read_to_string(FILE).unwrap_or_default();
            if present == text {
                messages::info(&format!("{FILE}: written already"));
                return Ok(());
            }
            if !is_of_fewer(&present, hosts) {
                let line = text.lines().last().unwrap_or_default();
                messages::info(&format!(
                    "{FILE} stays as it is, and so do the hosts of jobs without -H; with `{line}` in it they are these"
                ));
                return Ok(());
            }
            fs::write(FILE, &text).map_err(|error| failed(&error))?;
        }
        Err(error) => return Err(failed(&error)),
    }
    let review = Review::read(Path::new(FILE), JobArgs::command());
    let trusted = review.and_then(|review| review.trust(&ProcessEnv::current()));
    trusted.map_err(|error| Failed::from_error(Exit::FILES, &error).hint(error.hint()))?;
    messages::info(&format!(
        "{FILE}: written and trusted; jobs here run on these hosts without -H"
    ));
    Ok(())
}

fn contents(hosts: &[Host]) -> String {
    let names: Vec<String> = hosts.iter().map(|host| format!("{:?}", host.to_string())).collect();
    format!("{MARK}hosts = [{}]\n", names.join(", "))
}

/// Returns the names of hosts in a file that this verb has written, and nobody has changed since.
fn written(text: &str) -> Option<Vec<&str>> {
    let list = text.strip_prefix(MARK)?.strip_prefix("hosts = [")?.strip_suffix("]\n")?;
    list.split(", ").map(|name| name.strip_prefix('"')?.strip_suffix('"')).collect()
}

/// Tells whether a file has only hosts that are among these.
fn is_of_fewer(text: &str, hosts: &[Host]) -> bool {
    let is_among = |name: &&str| hosts.iter().any(|host| host.to_string() == **name);
    written(text).is_some_and(|names| names.iter().all(is_among))
}

/// Says that jobs still run on hosts that are set up no longer, if the file of `rlaunch up` names one of them.
pub(super) fn say_that_it_stays(hosts: &[Host]) {
    let present = fs::read_to_string(FILE).unwrap_or_default();
    let is_among = |name: &&str| hosts.iter().any(|host| host.to_string() == **name);
    if written(&present).is_some_and(|names| names.iter().any(is_among)) {
        messages::info(&format!(
            "{FILE} here stays, and jobs run on its hosts without -H; `rm {FILE}` ends that"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_stand_in_the_file_as_they_were_named() {
        let host = |name: &str, user: Option<&str>| {
            let user = user.map(str::to_owned);
            Host { name: name.into(), user, ..Host::this_machine() }
        };
        let text = contents(&[host("a", Some("root")), host("b", None)]);
        assert_eq!(text, "# written by `rlaunch up`\nhosts = [\"root@a\", \"b\"]\n");
        assert_eq!(written(&text), Some(vec!["root@a", "b"]));
    }

    #[test]
    fn only_a_file_of_up_with_fewer_hosts_is_written_again() {
        let host = |name: &str| Host { name: name.into(), ..Host::this_machine() };
        let (two, three) = ([host("a"), host("b")], [host("c"), host("b"), host("a")]);
        assert!(is_of_fewer(&contents(&two), &three));
        assert!(!is_of_fewer(&contents(&three), &two), "c would be lost");
        for more in ["np = 2\n", "# mine\n"] {
            assert!(!is_of_fewer(&format!("{}{more}", contents(&two)), &three), "{more}");
        }
        assert!(!is_of_fewer("hosts = [\"a\", \"b\"]\n", &three), "the user has written it");
    }
}
