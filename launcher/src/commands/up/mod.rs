//! `rlaunch up`: hosts become a cluster that stays, in one command; `rlaunch down`: they become what they were.
//!
//! | file | subject |
//! |---|---|
//! | `down` | what was changed on hosts undone |
//! | `settings` | the `rlaunch.toml` that is written and trusted |
//! | `steps` | the plan, of what the hosts have said |
//!
//! The steps are values, of `rlaunch_plan::up`. Here the hosts are asked what the steps need to know, the plan is printed, the
//! user is asked once, and the steps are taken. `rlaunch_bootstrap::protocol::changes` says how each change can be undone.

pub(super) mod down;
mod settings;
mod steps;

use crate::cli::args::{ConnectArgs, HostSourceArgs, OTHER_HOSTS, SshArgs};
use crate::cli::command_line::{self, CommandLine};
use crate::cli::host_selection::HostOptions;
use crate::cli::lower;
use crate::commands::changes::ChangingHosts;
use crate::commands::doctor::for_up::{self, Snapshots};
use crate::commands::network::cabled::CabledHosts;
use crate::commands::ssh_setup::{self, SshSetupArgs};
use crate::commands::{agent_session, bench};
use clap::Parser;
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_console::{messages, stdout};
use rlaunch_engine::connect::connector::Reach;
use rlaunch_engine::run;
use rlaunch_engine::run::job_run::Launch;
use rlaunch_plan::fixes::PlannedFix;
use rlaunch_plan::hosts::{self, Host};
use rlaunch_plan::up::{self, Cables, Facts, Snapshot, State, Step, StepId, UpHost};
use rlaunch_ssh::prompt::Prompter;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use steps::Kept;

/// Make hosts a cluster that stays: keys, names, limits, addresses of cables, ports, rlaunch.toml.
///
/// Prints what it would do, with each command, asks once, and does it. Addresses are tried before they are kept: if a link
/// does not answer, or this program or its connection is gone, each host undoes them. Every change stands in a journal on its
/// host first, and `rlaunch down` undoes all of them. What is done already stays: a second `up` changes nothing.
///
/// The hosts need a login as root, or sudo; a password for sudo is asked for once.
#[derive(Debug, Parser)]
#[command(mut_arg("hosts", |hosts| hosts.help(OTHER_HOSTS)), after_help = "\
Examples:
  rlaunch up -H a,b                 two hosts, with or without cables between them
  rlaunch up -H root@a,root@b --dry-run   the commands as a script; nothing is changed
  rlaunch up -H a,b,c --yes         without a question
  rlaunch down -H a,b               undo it")]
pub(crate) struct UpArgs {
    #[command(flatten)]
    hosts: HostSourceArgs,

    /// Interfaces that may be ends of cables, such as 'enp1*'; by default all network cards
    #[arg(long = "if", value_name = "NAME,...", value_delimiter = ',')]
    interfaces: Vec<String>,

    /// Make the changes without asking
    #[arg(short, long)]
    yes: bool,

    /// Print the commands as a script, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Words by which the journals of hosts name this verb.
const BY: &str = "rlaunch up";

/// Hosts with all that is known of them and open to be changed.
struct Cluster<'a> {
    entries: &'a [Host],
    reach: &'a Reach,
    changing: ChangingHosts,
    cabled: CabledHosts,
    hosts: Vec<UpHost>,
}

/// Sets hosts up, or prints what would be done.
pub(super) async fn run(args: &UpArgs, line: &CommandLine) -> Result<Exit, Failed> {
    if !args.yes && !args.dry_run && !io::stdin().is_terminal() {
        let hint = "--yes makes the changes without asking; --dry-run only prints them";
        let message = "nothing was changed: standard input is not a terminal";
        return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
    }
    args.check_container()?;
    let options = HostOptions::of_verb(&args.hosts, &line.config.hosts);
    let (hosts, reach) = agent_session::select_hosts(&options, &args.connect, line)?;
    if hosts::are_local(&hosts) {
        let hint = "rlaunch up -H a,b sets up two hosts";
        return Err(Failed::new(Exit::USAGE, "this machine needs no set-up").hint(Some(hint)));
    }
    let first_job = first_job(&hosts, &args.connect)?;
    args.install_keys(&hosts).await?;
    let mut cluster = Cluster::open(args, &hosts, &reach).await?;
    let done = set_up(args, &mut cluster).await;
    let cables: Vec<Cables> =
        (0..hosts.len()).map(|host| cluster.cabled.cables(host, &hosts)).collect();
    cluster.close().await;
    let Some(SetUp { has_tested_links }) = done? else { return Ok(Exit::SUCCESS) };
    settings::write(&hosts)?;
    keep_snapshots(&hosts, &reach, cables).await;
    if has_tested_links {
        measure(&hosts, &args.connect, line).await;
    }
    first_job.run().await
}

/// Set-up that was carried out.
struct SetUp {
    has_tested_links: bool,
}

/// Makes the plan, and carries it out if the user agrees; returns `None` if it is only printed.
async fn set_up(args: &UpArgs, cluster: &mut Cluster<'_>) -> Result<Option<SetUp>, Failed> {
    let steps = cluster.steps().await;
    if args.dry_run {
        stdout::print(&up::to_script(&steps, &cluster.hosts));
        return Ok(None);
    }
    if let Some(table) = cluster.cabled.table() {
        stdout::print(&table);
    }
    stdout::print(&up::to_text(&steps, &cluster.hosts));
    if steps.iter().all(|step| step.changes().is_none()) {
        messages::info("there is nothing to change on the hosts");
    } else if !args.yes {
        consent().await?;
    }
    cluster.carry_out(&steps).await?;
    let is_test = |step: &Step| step.id == StepId::Addresses && step.changes().is_some();
    Ok(Some(SetUp { has_tested_links: steps.iter().any(is_test) }))
}

async fn consent() -> Result<(), Failed> {
    let refused = || Failed::new(Exit::USAGE, "nothing was changed");
    let prompter = Prompter::open().ok_or_else(refused)?;
    let answer = prompter.ask_visibly("go on? [y/N] ").await.ok_or_else(refused)?;
    let is_yes = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if is_yes { Ok(()) } else { Err(refused()) }
}

impl UpArgs {
    fn check_container(&self) -> Result<(), Failed> {
        if self.connect.container.is_none() {
            return Ok(());
        }
        let hint = "leave --container out; what a container lacks is given to it when it is started, and \
                    `rlaunch doctor` with --container names it";
        Err(Failed::new(Exit::USAGE, "hosts are set up, and no containers").hint(Some(hint)))
    }

    /// Lets the user's key log in to the hosts. This comes with a question of its own, if there is something to do: nothing
    /// more is known of a host before.
    async fn install_keys(&self, hosts: &[Host]) -> Result<(), Failed> {
        if self.connect.rsh.is_some() || self.connect.container.is_some() {
            return Ok(());
        }
        let args = SshSetupArgs {
            hosts: hosts.iter().map(ToString::to_string).collect(),
            container: None,
            key: None,
            yes: self.yes,
            dry_run: self.dry_run,
            ssh: SshArgs { port: self.connect.port, ssh_config: self.connect.ssh_config.clone() },
        };
        ssh_setup::run(args).await.map(drop)
    }
}

/// Asks the hosts what the steps need to know. Pods are refused here, before a change.
async fn survey(hosts: &[Host], changing: &mut ChangingHosts) -> Result<Vec<Facts>, Failed> {
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let printed = changing.ask(vec![vec![up::survey(&names)]; hosts.len()]).await;
    let named = changing.names().into_iter().zip(printed);
    let facts = named.map(|(name, printed)| {
        let printed = printed.into_iter().next().unwrap_or_else(|| Ok(String::new()));
        let failed = |cause| Failed::new(Exit::HOST, format!("{name}: {cause}"));
        printed.map(|text| Facts::parse(&text)).map_err(failed)
    });
    let facts = facts.collect::<Result<Vec<Facts>, Failed>>()?;
    let names = changing.names();
    let refused = up::refuse_pods(names.iter().map(String::as_str).zip(&facts));
    refused.map_or(Ok(facts), Err)
}

impl<'a> Cluster<'a> {
    async fn open(
        args: &UpArgs,
        entries: &'a [Host],
        reach: &'a Reach,
    ) -> Result<Cluster<'a>, Failed> {
        let hosts = entries;
        let (mut changing, failures) = ChangingHosts::open(hosts, reach).await?;
        if !failures.is_empty() {
            changing.close().await;
            agent_session::conclude(failures)?;
            return Err(Failed::new(Exit::HOST, "a host was not reached"));
        }
        let found = async {
            let facts = survey(hosts, &mut changing).await?;
            let cabled = CabledHosts::find(hosts, reach, &args.interfaces, !args.dry_run).await?;
            Ok::<_, Failed>((facts, cabled))
        };
        let (facts, cabled) = match found.await {
            Ok(found) => found,
            Err(failed) => {
                changing.close().await;
                return Err(failed);
            }
        };
        let host = |(at, (host, facts)): (usize, (&Host, Facts))| UpHost {
            name: host.to_string(),
            bare: host.name.clone(),
            address: cabled.address(at),
            facts,
            cabled: cabled.interfaces(at),
        };
        let hosts = hosts.iter().zip(facts).enumerate().map(host).collect();
        Ok(Cluster { entries, reach, changing, cabled, hosts })
    }

    async fn close(self) {
        self.cabled.close().await;
        self.changing.close().await;
    }

    /// Makes the steps, of what the hosts have said and what they say of their files.
    async fn steps(&mut self) -> Vec<Step> {
        let fixes = self.fixes().await;
        let kept = self.kept().await;
        steps::plan(&self.hosts, &self.cabled, fixes, &kept)
    }

    /// Makes the step of what doctor fixes without a question, and says what that is about.
    async fn fixes(&mut self) -> Step {
        let examined = match for_up::examine(self.entries, self.reach).await {
            Ok(examined) => examined,
            Err(failed) => {
                let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
                let fix = format!("rlaunch doctor -H {}", names.join(","));
                let state = State::Cannot { why: failed.message, fix };
                return Step { id: StepId::Fixes, state };
            }
        };
        let mut chosen = Vec::new();
        for fix in up::safe_fixes(examined.fixes, &self.hosts) {
            match fix.waits_for() {
                Some(what) if self.is_made(&fix).await => {
                    let (id, place) = (fix.id(), fix.place());
                    messages::info(&format!(
                        "{id} on {place}: it is fixed, and that shows only after {what}"
                    ));
                }
                _ => {
                    messages::info(&fix.seen());
                    chosen.push(fix);
                }
            }
        }
        up::fixes(&chosen, &self.hosts)
    }

    /// Tells whether the files of a fix are there; one without any may have to be made again.
    async fn is_made(&mut self, fix: &PlannedFix) -> bool {
        let of_fix = up::fixes(std::slice::from_ref(fix), &self.hosts);
        let Some(changes) = of_fix.changes() else { return false };
        let has_files = changes.iter().flatten().any(|one| matches!(one, Change::File { .. }));
        has_files && self.changing.have(changes).await.into_iter().all(|has_all| has_all)
    }

    /// Asks each host whether the files that keep its addresses are there and read.
    async fn kept(&mut self) -> Vec<Kept> {
        let hosts = self.hosts.iter().enumerate();
        let files: Vec<Vec<Change>> =
            hosts.map(|(at, host)| steps::files(host, &self.cabled, at)).collect();
        let have = self.changing.have(&files).await;
        let unread = |host: &UpHost| host.facts.keeper.map(|keeper| keeper.unread(&host.cabled));
        let lines = self.hosts.iter().map(|host| unread(host).into_iter().collect()).collect();
        let unread = self.changing.ask(lines).await;
        let both = have.into_iter().zip(unread);
        let kept = both.map(|(is_there, unread)| match unread.first() {
            _ if !is_there => Kept::Missing,
            Some(Ok(names)) if !names.is_empty() => Kept::Unread,
            _ => Kept::Read,
        });
        kept.collect()
    }

    /// Takes the steps in order. A step that fails stops those that need it.
    async fn carry_out(&mut self, steps: &[Step]) -> Result<(), Failed> {
        let mut failures: Vec<(StepId, Failed)> = Vec::new();
        for step in steps {
            if let Some((other, _)) = failures.iter().find(|(other, _)| step.id.needs(*other)) {
                messages::warn(&format!(
                    "{}: left out, since {} failed",
                    step.id.title(),
                    other.title()
                ));
                continue;
            }
            match self.take(step).await {
                Ok(Some(done)) => {
                    messages::info(&format!("{}: {done}", step.id.title()));
                    if step.id == StepId::Manager {
                        messages::hint(
                            "`rlaunch up` again finds the cables of ports that have waited for it",
                        );
                    }
                }
                Ok(None) => {}
                Err(failed) => failures.push((step.id, failed)),
            }
        }
        let first = failures.into_iter().map(|(id, mut failed)| {
            failed.message = format!("{}: {}", id.title(), failed.message);
            failed.hint(Some(
                "`rlaunch up` again goes on from here; `rlaunch down` undoes what was done",
            ))
        });
        agent_session::conclude(first.collect()).map(drop)
    }

    /// Takes a step. Returns what was done; `None` if there was nothing to do.
    async fn take(&mut self, step: &Step) -> Result<Option<String>, Failed> {
        let changes = match &step.state {
            State::Done(_) => return Ok(None),
            State::Cannot { why, fix } => {
                return Err(Failed::new(Exit::USAGE, why.clone()).hint(Some(fix.clone())));
            }
            State::Will(changes) => changes,
        };
        if step.id == StepId::Addresses {
            return self.cabled.try_addresses(&mut self.changing, BY).await.map(Some);
        }
        let changed = self.changing.apply(changes.clone(), BY, None).await;
        let mut failures = Vec::new();
        for ((host, changes), changed) in self.hosts.iter().zip(changes).zip(&changed) {
            if let Some((at, cause)) = changed.failure() {
                let line = changes.get(at).map(|change| format!("{}: ", change.title()));
                failures.push(format!("{}: {}{cause}", host.name, line.unwrap_or_default()));
            }
        }
        if !failures.is_empty() {
            let mut failed = Failed::new(Exit::FILES, failures.remove(0));
            failed.details = failures;
            return Err(failed);
        }
        let hosts = self.hosts.iter().zip(&changed).filter(|(_, changed)| changed.has_changed());
        let names: Vec<&str> = hosts.map(|(host, _)| host.name.as_str()).collect();
        Ok(Some(match names.is_empty() {
            true => "it was done already".to_owned(),
            false => format!("done on {}", text::list(&names)),
        }))
    }
}

/// Keeps what the hosts are like now, for `rlaunch doctor --since-up`. The cluster is up without it.
async fn keep_snapshots(hosts: &[Host], reach: &Reach, cables: Vec<Cables>) {
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
async fn measure(hosts: &[Host], connect: &ConnectArgs, line: &CommandLine) {
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
struct FirstJob {
    hosts: String,
    launch: Launch,
}

/// Makes the first job, with the settings that the user's jobs have. What is wrong with them shows before hosts are changed.
fn first_job(hosts: &[Host], connect: &ConnectArgs) -> Result<FirstJob, Failed> {
    let names = names(hosts).join(",");
    let words = ["rlaunch", "-H", &names, "hostname"].map(OsString::from);
    let parsed = command_line::parse_job(words.to_vec());
    let (mut job, line) = parsed.map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    job.connect = connect.clone();
    let launch = lower::job_or_fail(job, &line.config)?;
    Ok(FirstJob { hosts: names, launch })
}

impl FirstJob {
    async fn run(self) -> Result<Exit, Failed> {
        messages::info(&format!("first job: rlaunch -H {} hostname", self.hosts));
        run::run_job(self.launch).await
    }
}

fn names(hosts: &[Host]) -> Vec<String> {
    hosts.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_not_set_up() {
        let parse = |words: &[&str]| UpArgs::try_parse_from([&["up"], words].concat()).unwrap();
        let refused = parse(&["-H", "a", "--container", "docker:x"]).check_container().unwrap_err();
        assert!(refused.hints[0].starts_with("leave --container out"), "{refused:?}");
        assert!(parse(&["-H", "a"]).check_container().is_ok());
    }
}
