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

/// Writes the hosts into ./rlaunch.toml, if there is none, and trusts it. One that is there is the user's.
pub(super) fn write(hosts: &[Host]) -> Result<(), Failed> {
    let text = contents(hosts);
    let failed = |error: &dyn std::fmt::Display| {
        Failed::new(Exit::FILES, format!("cannot write {FILE}: {error}"))
    };
    match fs::File::create_new(FILE) {
        Ok(mut file) => file.write_all(text.as_bytes()).map_err(|error| failed(&error))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if fs::read_to_string(FILE).is_ok_and(|present| present == text) {
                messages::info(&format!("{FILE}: written already"));
            } else {
                let line = text.lines().last().unwrap_or_default();
                messages::info(&format!(
                    "{FILE} stays as it is; with `{line}` in it, -H can be left out"
                ));
            }
            return Ok(());
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
    format!("# written by `rlaunch up`\nhosts = [{}]\n", names.join(", "))
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
    }
}
