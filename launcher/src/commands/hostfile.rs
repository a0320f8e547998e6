//! `rlaunch hostfile`: the hosts that a job would have, as a hostfile for other launchers and for people.

use crate::cli::args::{ConfigArgs, HostSourceArgs};
use crate::cli::command_line::CommandLine;
use crate::cli::host_selection::{HostOptions, HostSelection};
use clap::Parser;
use rlaunch_console::stdout;
use rlaunch_plan::hosts::{Host, SlotsBy, hostfile};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

/// Print the hosts that a job would have, as a hostfile.
///
/// Ranges are expanded, slots of repeated hosts are added up, and a comment names the origin of the hosts. No host
/// is connected to. mpirun and mpiexec can read the file as well.
#[derive(Debug, Parser)]
#[command(
    version,
    display_name = "rlaunch hostfile",
    after_help = "\
Examples:
  rlaunch hostfile                              hosts that a batch system or an MPIJob has allocated
  rlaunch hostfile -H 'n[01-16]:8' --exclude n03
  mpirun --hostfile <(rlaunch hostfile) ./program"
)]
pub(crate) struct HostfileArgs {
    #[command(flatten)]
    pub(crate) hosts: HostSourceArgs,

    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

pub(crate) fn run(args: &HostfileArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let options = HostOptions::of_verb(&args.hosts, &line.config.hosts);
    let selection = HostSelection::new(&options)
        .map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))?;
    if selection.hosts.is_empty() {
        let checked = line.config.check_no_hosts();
        checked.map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))?;
    }
    stdout::print(&as_hostfile(&selection));
    Ok(Exit::SUCCESS)
}

fn as_hostfile(selection: &HostSelection) -> String {
    let mut text = format!("# hosts of {}\n", selection.source);
    if selection.hosts.iter().any(|host| host.slots_by == SlotsBy::Open) {
        text += "# a host without a number has as many slots as GPUs, or one\n";
    }
    match selection.hosts.as_slice() {
        [] => text + &hostfile::write(&[Host::this_machine()]),
        hosts => text + &hostfile::write(hosts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_console::messages;
    use rlaunch_plan::hosts::host_table::HostTable;
    use std::path::PathBuf;

    fn listed(lists: &[&str], file: Option<&str>, exclude: &[&str]) -> Result<String, String> {
        let owned =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        let files: Vec<PathBuf> = file.iter().map(|_| path.clone()).collect();
        std::fs::write(&path, file.unwrap_or_default()).unwrap();
        let (lists, exclude) = (owned(lists), owned(exclude));
        let options = HostOptions {
            lists: &lists,
            files: &files,
            exclude: &exclude,
            table: &HostTable::default(),
        };
        let selection =
            HostSelection::new(&options).map_err(|error| messages::error_chain(&error))?;
        let text = as_hostfile(&selection);
        Ok(text.replace(&path.display().to_string(), "F").replace('\n', "; "))
    }

    #[test]
    fn what_is_typed_is_a_hostfile() {
        let text = |lists: &[&str], file, exclude: &[&str]| listed(lists, file, exclude).unwrap();
        let typed = text(&["n[09-10]:4", "me@a"], None, &[]);
        assert_eq!(typed, "# hosts of -H; n09 slots=4; n10 slots=4; me@a slots=1; ");
        let file = "a slots=2\nb\nme@c:3\n";
        let open = "# a host without a number has as many slots as GPUs, or one; ";
        let all = text(&[], Some(file), &[]);
        assert_eq!(all, format!("# hosts of F; {open}a slots=2; b; me@c slots=3; "));
        // -H chooses hosts of the hostfile, and decides their order.
        let chosen = text(&["c,a:1"], Some(file), &[]);
        assert_eq!(chosen, "# hosts of F; me@c slots=3; a slots=1; ");
        let left = text(&["n[1-4],a"], None, &["n[2-3]", "a"]);
        assert_eq!(left, "# hosts of -H; n1 slots=1; n4 slots=1; ");
        let left = text(&["a,me@a,you@a"], None, &["you@a"]);
        assert_eq!(left, "# hosts of -H; a slots=1; me@a slots=1; ");
    }

    #[test]
    fn what_is_no_host_is_said_with_those_that_are() {
        let error =
            |lists: &[&str], file, exclude: &[&str]| listed(lists, file, exclude).unwrap_err();
        assert_eq!(error(&["a,b"], None, &["c"]), "--exclude c is not among the hosts: a, b");
        assert_eq!(error(&["a,b"], None, &["a,b"]), "--exclude leaves none of the hosts: a, b");
        assert!(error(&["c"], Some("a\nb\n"), &[]).ends_with("hosts: a, b"));
        assert!(error(&[], Some("a\nb c\n"), &[]).ends_with("hosts:2: `c` is not understood"));
        assert!(error(&["a["], None, &[]).contains("a bracket is not closed"));
    }
}
