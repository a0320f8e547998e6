//! What `rlaunch up` does once hosts are set up: it keeps what they are like, measures their links, and runs a first job.

use crate::cli::args::ConnectArgs;
use crate::cli::command_line::{self, CommandLine};
use crate::cli::lower;
use crate::commands::bench;
use crate::commands::doctor::for_up;
use crate::commands::snapshots::Snapshots;
use rlaunch_console::messages;
use rlaunch_engine::connect::connector::Reach;
use rlaunch_engine::run;
use rlaunch_engine::run::job_run::Launch;
use rlaunch_plan::hosts::Host;
use rlaunch_plan::up::{Cables, Snapshot};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::ffi::OsString;

/// Keeps what the hosts are like now, for `rlaunch doctor --since-up`. The cluster is up without it.
pub(super) async fn keep_snapshots(hosts: &[Host], reach: &Reach, cables: Vec<Cables>) {
    let kept = async {
        let store = Snapshots::of_user()?;
        let examined = for_up::examine(hosts, reach).await?;
        for ((host, inventory), cables) in hosts.iter().zip(&examined.inventories).zip(cables) {
            store.write(&host.name, &Snapshot::new(inventory, cables))?;
        }
        Ok::<(), Failed>(())
    };
    if let Err(failed) = kept.await {
        let message = failed.message;
        messages::warn(&format!(
            "`rlaunch doctor --since-up` has nothing to compare with: {message}"
        ));
    }
}

/// Measures the links between hosts, and says of the slowest how near it is to what its hardware can give.
pub(super) async fn measure(hosts: &[Host], connect: &ConnectArgs, line: &CommandLine) {
    if hosts.len() < 2 {
        return;
    }
    match bench::mesh::verdict(names(hosts), connect.clone(), line).await {
        Ok(verdict) => messages::info(&verdict),
        Err(failed) => {
            messages::warn(&format!("the links were not measured: {}", failed.message));
            messages::hint(&format!("rlaunch bench -H {} measures them", names(hosts).join(",")));
        }
    }
}

/// Job with `hostname` on the hosts.
pub(super) struct FirstJob {
    hosts: String,
    launch: Launch,
}

/// Makes the first job, with the settings that the user's jobs have. What is wrong with them shows before hosts are changed.
pub(super) fn first_job(hosts: &[Host], connect: &ConnectArgs) -> Result<FirstJob, Failed> {
    let names = names(hosts).join(",");
    let words = ["rlaunch", "-H", &names, "hostname"].map(OsString::from);
    let parsed = command_line::parse_job(words.to_vec());
    let (mut job, line) = parsed.map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    job.connect = connect.clone();
    let launch = lower::job_or_fail(job, &line.config)?;
    Ok(FirstJob { hosts: names, launch })
}

impl FirstJob {
    pub(super) async fn run(self) -> Result<Exit, Failed> {
        messages::info(&format!("first job: rlaunch -H {} hostname", self.hosts));
        run::run_job(self.launch).await
    }
}

fn names(hosts: &[Host]) -> Vec<String> {
    hosts.iter().map(ToString::to_string).collect()
}
