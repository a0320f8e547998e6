//! `rlaunch doctor`: what is wrong with hosts and the networks between them, with the lines that fix it.
//!
//! The checks are in [`rlaunch_plan::checks`]; this folder collects what they need and prints what they find.
//!
//! | file | subject |
//! |---|---|
//! | `sessions` | the agents of all hosts, each asked twice; those outside of the container that was named |
//! | `probes`, `rdma` | which probes hosts are to make, and what came of them; RDMA paths |
//! | `ssh_files` | files that ssh refuses |
//! | `report` | findings as text and as JSON |
//! | `fix` | `--fix`: faults fixed, and fixes proved |
//! | `for_up` | what `rlaunch up` asks, and `--since-up`: what has changed since then |

mod fix;
pub(super) mod for_up;
mod probes;
mod rdma;
mod report;
mod sessions;
mod ssh_files;

use crate::cli::args::{ConnectArgs, HostSourceArgs, JobArgs, MeasurementArgs, values};
use crate::cli::command_line::CommandLine;
use crate::cli::host_selection::HostOptions;
use crate::commands::self_test::{self, SelfTestArgs};
use crate::commands::{agent_session, capture};
use clap::Parser;
use report::DoctorReport;
use rlaunch_bootstrap::env::PATH;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::protocol::diagnosis::Diagnosis;
use rlaunch_bootstrap::rendezvous::oob::PortRange;
use rlaunch_console::stdout;
use rlaunch_plan::checks::cluster::{JudgedProgram, Probe, ProgramOnHost, Proof, Unreached};
use rlaunch_plan::checks::{self, Check, CheckState, Cluster, ClusterHost, FoldedFinding, Needs};
use rlaunch_plan::findings::{self, id};
use rlaunch_plan::hosts::Host;
use rlaunch_plan::options::Transport;
use rlaunch_plan::selection::{Plan, PortOptions};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Find out what is wrong with hosts and the networks between them.
///
/// Every host is asked at once; nothing on it is changed unless --fix is given. Each finding says what was seen, why
/// it matters to a job, and how to fix it; rlaunch help ID explains it at length.
#[derive(Debug, Parser)]
#[command(after_help = "\
Exit code: 0 without errors, 1 with warnings under --strict, 2 with errors; after --fix by what is left.

--fix does without a question what disturbs nothing that runs, as root or by sudo:
  ssh.perms, net.arp, net.reserved, net.udp-drops, dev.module, dev.uverbs, dev.rdma-cm, link.down,
  mesh.duplicate, roce.cm-mode, mtu.mismatch, erdma.mtu, gpu.driver, gpu.peermem, lim.memlock,
  lim.shm, lim.maps, lim.files, clock.offset
and after a question each, or with --yes:
  ssh.auth, net.name, fw.ports, fw.roce, ib.no-sm, dev.library, dev.provider, mtu.path, mtu.rdma,
  roce.ecn, erdma.standard, erdma.mixed
Addresses of cables are for `rlaunch network mesh`. Hosts undo changes after which one is not reached,
and an MTU whose packets get lost on the way is set back.

Examples:
  rlaunch doctor -H a,b,c                    three hosts and the networks between them
  rlaunch doctor                             the hosts of rlaunch.toml, or this machine
  rlaunch doctor --try -H a,b                what works there, by small jobs
  rlaunch doctor --fix -H a,b                fix what rlaunch can, and look again
  rlaunch doctor --fix net,lim -H a,b --yes  some subjects, without questions
  rlaunch doctor --fix --dry-run -H a,b      the same as a script
  rlaunch doctor --since-up                  what has changed since `rlaunch up`
  rlaunch doctor -H a,b -- python train.py   and whether this program can run there
  rlaunch doctor -H a,b --only mtu,roce      some subjects
  rlaunch doctor --from x.tar                hosts that rlaunch capture has recorded
  rlaunch doctor --list                      all checks")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) hosts: HostSourceArgs,

    /// Judge hosts that `rlaunch capture` has recorded
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "hostfiles", "exclude", "program"])]
    pub(crate) from: Option<PathBuf>,

    /// Run only these checks: ids, or subjects such as mtu
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Do not run these checks: ids, or subjects such as ssh
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub(crate) skip: Vec<String>,

    /// Try what jobs use by small jobs on the hosts, and say what works: SSH, the tree of agents, shared memory, TCP,
    /// RDMA, Python, MPI. No checks run
    #[arg(
        long = "try",
        conflicts_with_all = [
            "from", "only", "skip", "fix", "strict", "probe", "mesh_timeout", "verbose", "json", "list",
            "program",
        ]
    )]
    pub(crate) tries: bool,

    /// Fix what rlaunch can fix, or only these faults (ids, or subjects such as lim), and prove it by a new
    /// examination. It asks before a fix that others may notice. `rlaunch down` undoes what was changed on hosts
    #[arg(long, value_name = "ID,...", value_delimiter = ',', num_args = 0..=1)]
    pub(crate) fix: Option<Vec<String>>,

    /// With --fix: do not ask
    #[arg(short, long, requires = "fix")]
    pub(crate) yes: bool,

    /// With --fix: print a script for each host, and change nothing
    #[arg(long, requires = "fix", conflicts_with = "yes")]
    pub(crate) dry_run: bool,

    /// Compare with what `rlaunch up` has left from here, and name what has changed: kernel, drivers, firmware,
    /// addresses, MTU, links, cables. No checks run
    #[arg(
        long,
        conflicts_with_all = [
            "from", "only", "skip", "tries", "fix", "probe", "mesh_timeout", "verbose", "json", "list", "program",
        ]
    )]
    pub(crate) since_up: bool,

    /// Exit with 1 if there are warnings, or with --since-up if something has changed
    #[arg(long)]
    pub(crate) strict: bool,

    /// Send packets between the hosts: auto (up to 16 hosts), always, never. Plain --probe means
    /// always, which also measures the bandwidth of RDMA
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, num_args = 0..=1,
        require_equals = true, default_missing_value = "always")]
    pub(crate) probe: ProbeWhen,

    /// Time limit of the RDMA probes, in seconds; paths that have not worked by then count as broken
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = values::parse_timeout)]
    pub(crate) mesh_timeout: Duration,

    /// Print passed checks as well
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// List all checks with their ids, and connect to no host
    #[arg(long, conflicts_with_all = ["hosts", "hostfiles", "from", "fix", "program"])]
    pub(crate) list: bool,

    /// Program of a job that the hosts are to run, with its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// `--probe`: whether packets are sent between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProbeWhen {
    /// Up to 16 hosts
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Everything that was learned of the hosts.
#[derive(Debug, Default)]
struct Examination {
    hosts: Vec<Diagnosed>,
    unreached: Vec<Unreached>,
    probes: Option<Vec<Probe>>,
    /// Result of the proof of RDMA paths.
    proof: Proof,
    program: Option<JudgedProgram>,
    in_container: bool,
    /// Hosts among `hosts` whose agents are outside of the container that the user named.
    outside: Vec<Unreached>,
    ssh_files: Vec<(PathBuf, String)>,
    network: NetworkOptions,
}

/// Options of the job that is to run; defaults without a job.
#[derive(Debug, Default)]
struct NetworkOptions {
    ports: PortOptions,
    transport: Transport,
    /// First and last TCP port that rlaunch may use; `None` for its usual ones.
    port_range: Option<(u16, u16)>,
}

/// Host that sent its diagnosis.
#[derive(Debug)]
struct Diagnosed {
    name: String,
    diagnosis: Diagnosis,
    noise: Option<String>,
    clock_offset: Option<(i64, u64)>,
    program: Option<ProgramOnHost>,
}

impl Diagnosed {
    /// Makes a host of a recording.
    fn recorded(host: &Host, diagnosis: Diagnosis) -> Diagnosed {
        let name = host.to_string();
        Diagnosed { name, diagnosis, noise: None, clock_offset: None, program: None }
    }

    /// Returns the address at which other hosts reach this one.
    fn address(&self) -> Option<IpAddr> {
        let facts = &self.diagnosis.facts;
        let first = facts.addresses.iter().map(|interface| interface.address).next();
        facts.ssh_address.or(first)
    }
}

/// Examines the hosts and prints the report.
pub(super) async fn run(args: DoctorArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let selected = selected_checks(&args.only, &args.skip)?;
    if args.list {
        stdout::print_styled(&report::list(&selected));
        return Ok(Exit::SUCCESS);
    }
    if args.tries {
        return self_test::run(trial(&args, line)?, line).await;
    }
    if args.since_up {
        return for_up::since_up(&args, line).await;
    }
    if args.fix.is_some() {
        return fix::run(&args, line, &selected).await;
    }
    let (_, report) = look(&args, line, &selected).await?;
    match args.json {
        true => stdout::print(&report.to_json(None)?),
        false => stdout::print_styled(&report.to_text(args.verbose)),
    }
    Ok(report.exit(args.strict))
}

/// Examines hosts, or those of a recording, and judges them.
async fn look(
    args: &DoctorArgs,
    line: &CommandLine,
    selected: &[&'static Check],
) -> Result<(Examination, DoctorReport), Failed> {
    let examination = match &args.from {
        Some(archive) => recorded(archive, &args.connect).await?,
        None => {
            let (hosts, options) = select_hosts(args, line)?;
            let files = ssh_files::refused(&options, &hosts);
            match ssh_files::examination(&files, &hosts) {
                Some(refused) => refused,
                None => {
                    let mut examination = sessions::examine(args, &hosts, &options).await?;
                    examination.ssh_files = files;
                    let trial = (args.probe, args.mesh_timeout);
                    rdma::try_paths(trial, &hosts, options, &mut examination).await;
                    examination
                }
            }
        }
    };
    let selected = match examination.unreached.is_empty() && examination.outside.is_empty() {
        true => selected.to_vec(),
        false => with_reach(selected, &args.skip)?,
    };
    let report = judge(&examination, &selected);
    Ok((examination, report))
}

/// Makes the options of `--try`. Hosts are those that the user has named, if there are any.
fn trial(args: &DoctorArgs, line: &CommandLine) -> Result<SelfTestArgs, Failed> {
    let is_list = args.hosts.hostfiles.is_empty() && args.hosts.exclude.is_empty();
    let hosts = if is_list {
        args.hosts.hosts.clone()
    } else {
        select_hosts(args, line)?.0.iter().map(ToString::to_string).collect()
    };
    let measurement = MeasurementArgs::for_hosts(hosts, args.connect.clone())?;
    Ok(SelfTestArgs { measurement })
}

/// Examines the hosts of a job before it starts (`--preflight full`), and prints what is wrong on stderr.
///
/// # Errors
///
/// A finding is an error.
pub(super) async fn check_before_job(args: &JobArgs, line: &CommandLine) -> Result<(), Failed> {
    let network = NetworkOptions::for_job(args);
    let args = DoctorArgs::for_job(args)?;
    let (hosts, options) = select_hosts(&args, line)?;
    let mut examination = sessions::examine(&args, &hosts, &options).await?;
    examination.network = network;
    // The job itself tries the RDMA paths.
    let report = judge(&examination, &selected_checks(&[], &[])?);
    report.refuse_job()
}

impl DoctorArgs {
    /// Makes the options for the hosts and the program of a job.
    fn for_job(job: &JobArgs) -> Result<DoctorArgs, Failed> {
        let args = DoctorArgs::try_parse_from(["rlaunch doctor"]);
        let args = args.map_err(|error| Failed::from_error(Exit::BUG, &error))?;
        Ok(DoctorArgs {
            hosts: HostSourceArgs {
                hosts: job.hosts.hosts.clone(),
                hostfiles: job.hosts.hostfiles.clone(),
                exclude: job.hosts.exclude.clone(),
            },
            program: judged_words(job),
            // Agents can be probed at the usual ports alone, which may be closed if the user chose others.
            probe: match job.rendezvous.port_range == PortRange::DEFAULT {
                true => ProbeWhen::Auto,
                false => ProbeWhen::Never,
            },
            connect: job.connect.clone(),
            ..args
        })
    }
}

impl NetworkOptions {
    fn for_job(job: &JobArgs) -> NetworkOptions {
        let network = &job.network;
        let PortRange { first, last } = job.rendezvous.port_range;
        NetworkOptions {
            ports: PortOptions {
                hca: network.hca.clone(),
                gid_index: network.gid_index,
                connect: network.connect,
            },
            transport: if network.require_rdma { Transport::Rdma } else { network.transport },
            port_range: Some((first, last)),
        }
    }
}

/// Returns the words of a job's program that hosts must have before the job starts: those that it
/// does not copy there. Empty if the program itself is copied, or if ranks look for it elsewhere
/// than [`sessions::examine`] does.
fn judged_words(job: &JobArgs) -> Vec<OsString> {
    let (environment, argv) = (&job.environment, &job.command.argv);
    let is_copied =
        |word: &OsString| environment.preload.iter().any(|path| path == Path::new(word));
    let is_path = |variable: &OsString| {
        let name = variable.as_encoded_bytes().split(|byte| *byte == b'=').next();
        name == Some(PATH.as_bytes())
    };
    let is_elsewhere = environment.wdir.is_some() || environment.env.iter().any(is_path);
    if is_elsewhere || argv.first().is_some_and(is_copied) {
        return Vec::new();
    }
    argv.iter().filter(|word| !is_copied(word)).cloned().collect()
}

/// Runs checks on what was learned of the hosts.
fn judge(examination: &Examination, selected: &[&'static Check]) -> DoctorReport {
    let inventories: Vec<Inventory> =
        examination.hosts.iter().map(|host| host.diagnosis.inventory.clone()).collect();
    let plan = Plan::new(&inventories, &examination.network.ports);
    examine(&cluster_of(examination, &plan), selected)
}

/// Runs checks on a cluster.
fn examine(cluster: &Cluster<'_>, selected: &[&'static Check]) -> DoctorReport {
    let states: Vec<(&'static Check, CheckState)> =
        selected.iter().map(|&check| (check, checks::state(check, cluster))).collect();
    let ran = || states.iter().filter(|(_, state)| *state == CheckState::Ran);
    let partly =
        ran().filter_map(|(check, _)| Some((check.id, checks::unread(check.id, cluster)?)));
    let partly = partly.collect();
    let found = ran().flat_map(|(check, _)| (check.examine)(cluster));
    let folded: Vec<FoldedFinding> = checks::fold(&findings::merge(found), cluster);
    // Where there is nothing to try, nobody misses the trial.
    let has_paths = cluster.plan.is_none_or(Plan::connects_any) || !cluster.unreached.is_empty();
    DoctorReport {
        hosts: cluster.hosts.len() + cluster.unreached.len(),
        proof: if has_paths { cluster.proof.clone() } else { rdma::NO_PATHS },
        states,
        partly,
        folded,
    }
}

/// Returns the checks that the user wants. Each word is an id or its first part.
fn selected_checks(only: &[String], skip: &[String]) -> Result<Vec<&'static Check>, Failed> {
    let names = |check: &Check, word: &String| {
        let id = check.id.as_str();
        id == word || check.id.subject() == word
    };
    let known = |word: &&String| checks::catalogue().any(|check| names(check, word));
    if let Some(word) = only.iter().chain(skip).find(|word| !known(word)) {
        let ids = checks::catalogue().flat_map(|check| [check.id.as_str()]);
        let near = text::nearest(word, ids).map(|near| format!("did you mean {near}? "));
        let hint = format!("{}`rlaunch doctor --list` lists all", near.unwrap_or_default());
        let message = format!("no check has the id or subject `{word}`");
        return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
    }
    let is_wanted = |check: &&'static Check| {
        let has = |words: &[String]| words.iter().any(|word| names(check, word));
        (only.is_empty() || has(only)) && !has(skip)
    };
    Ok(checks::catalogue().filter(is_wanted).collect())
}

/// Adds the checks that say why hosts were not reached, unless they are left out by `--skip`: with
/// `--only` alone, such hosts would count as healthy.
fn with_reach(selected: &[&'static Check], skip: &[String]) -> Result<Vec<&'static Check>, Failed> {
    let is_wanted = |check: &&'static Check| {
        let is_about_reach = check.needs == Needs::Connections && check.id != id::SSH_NOISE;
        is_about_reach || selected.iter().any(|own| own.id == check.id)
    };
    Ok(selected_checks(&[], skip)?.into_iter().filter(is_wanted).collect())
}

/// Reads hosts from an archive of `rlaunch capture`, by this machine's agent.
async fn recorded(archive: &Path, connect: &ConnectArgs) -> Result<Examination, Failed> {
    let (directory, names) = capture::unpack(archive)?;
    let mut hosts = Vec::new();
    for name in names {
        let words = [OsString::from("diagnose"), directory.path().join(&name).into()];
        let answer = agent_session::query_this_machine(connect, &words).await?;
        let diagnosis = agent_session::decode(&answer, &name)?;
        hosts.push(Diagnosed::recorded(&Host { name, ..Host::this_machine() }, diagnosis));
    }
    Ok(Examination { hosts, ..Examination::default() })
}

fn select_hosts(
    args: &DoctorArgs,
    line: &CommandLine,
) -> Result<(Vec<Host>, rlaunch_engine::connect::connector::Reach), Failed> {
    let options = HostOptions::of_verb(&args.hosts, &line.config.hosts);
    agent_session::select_hosts(&options, &args.connect, line)
}

/// Makes the input of checks.
fn cluster_of<'a>(examination: &'a Examination, plan: &'a Plan) -> Cluster<'a> {
    let host = |host: &'a Diagnosed| ClusterHost {
        name: &host.name,
        inventory: &host.diagnosis.inventory,
        diagnostics: Some(&host.diagnosis.diagnostics),
        uid: host.diagnosis.diagnostics.uid,
        address: host.address(),
        clock_offset: host.clock_offset,
        shell_noise: host.noise.as_deref(),
        program: host.program.as_ref(),
    };
    Cluster {
        hosts: examination.hosts.iter().map(host).collect(),
        unreached: examination.unreached.clone(),
        outside: examination.outside.clone(),
        plan: Some(plan),
        in_container: examination.in_container,
        probes: examination.probes.as_deref(),
        proof: examination.proof.clone(),
        program: examination.program.as_ref(),
        ssh_files: examination.ssh_files.clone(),
        ports: examination.network.ports.clone(),
        transport: examination.network.transport,
        port_range: examination.network.port_range,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use rlaunch_plan::fixes::{self, Class};
    use rlaunch_plan::selection::ConnectBy;
    use std::collections::BTreeSet;

    #[test]
    fn a_job_is_not_asked_for_files_that_it_copies() {
        let judged = |line: &str| {
            let job = JobArgs::try_parse_from(line.split(' ')).unwrap();
            judged_words(&job).join(std::ffi::OsStr::new(" "))
        };
        assert_eq!(judged("rlaunch -H a python3 t.py -x 1"), "python3 t.py -x 1");
        assert_eq!(judged("rlaunch -H a --preload t.py python3 t.py c.json"), "python3 c.json");
        assert_eq!(judged("rlaunch -H a --preload ./run ./run c.json"), "");
        assert_eq!(judged("rlaunch -H a --wdir /data python3 t.py"), "");
        assert_eq!(judged("rlaunch -H a -x PATH=/opt/bin python3 t.py"), "");
        assert_eq!(judged("rlaunch -H a -x PATHS=/opt/bin python3 t.py"), "python3 t.py");
    }

    /// Returns the ids after a line of the help page that begins so.
    fn ids_after(page: &str, begin: &str) -> BTreeSet<String> {
        let lines = page.lines().skip_while(|line| !line.starts_with(begin)).skip(1);
        let lines = lines.take_while(|line| line.starts_with("  "));
        lines
            .flat_map(|line| line.split([',', ' ']))
            .filter(|w| !w.is_empty())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn the_page_lists_what_is_fixed() {
        let page = DoctorArgs::command().get_after_help().unwrap().to_string();
        let of = |is_it: fn(Class) -> bool| -> BTreeSet<String> {
            let ids =
                checks::catalogue().map(|check| check.id).filter(|id| is_it(fixes::class(*id)));
            ids.map(|id| id.to_string()).collect()
        };
        assert_eq!(ids_after(&page, "--fix does without"), of(|class| class == Class::Safe));
        let asked = of(|class| matches!(class, Class::Asked(_)));
        assert_eq!(ids_after(&page, "and after a question"), asked);
    }

    #[test]
    fn ids_after_fix_are_not_the_program() {
        let parse = |line: &str| DoctorArgs::try_parse_from(line.split(' '));
        let fix = |line: &str| parse(line).unwrap().fix.map(|ids| ids.join("+"));
        assert_eq!(fix("doctor -H a"), None);
        assert_eq!(fix("doctor --fix -H a"), Some(String::new()));
        assert_eq!(fix("doctor -H a --fix"), Some(String::new()));
        assert_eq!(fix("doctor --fix net.arp,lim -H a"), Some("net.arp+lim".to_owned()));
        assert_eq!(fix("doctor --fix -H a -- true"), Some(String::new()));
        assert!(parse("doctor --yes -H a").is_err());
        assert!(parse("doctor --fix --yes --dry-run").is_err());
    }

    #[test]
    fn probes_of_slow_fabrics_have_the_time_that_jobs_can_have() {
        let limit = |words: &[&str]| {
            let words = ["rlaunch doctor"].iter().chain(words);
            DoctorArgs::try_parse_from(words).unwrap().mesh_timeout.as_secs()
        };
        assert_eq!((limit(&["--probe"]), limit(&["--probe", "--mesh-timeout", "30"])), (5, 30));
    }

    #[test]
    fn a_job_is_judged_by_its_own_options() {
        let options = |line: &str| {
            NetworkOptions::for_job(&JobArgs::try_parse_from(line.split(' ')).unwrap())
        };
        let plain = options("rlaunch -H a true");
        assert_eq!((plain.ports.gid_index, plain.transport), (None, Transport::Auto));
        assert_eq!(plain.port_range, Some((PortRange::DEFAULT.first, PortRange::DEFAULT.last)));
        let wanted = options(
            "rlaunch -H a --hca mlx5_1 --gid-index 3 --connect rdma_cm --require-rdma --port-range 22000-22100 true",
        );
        assert!(wanted.ports.hca.is_some());
        assert_eq!(wanted.ports.gid_index, Some(3));
        assert_eq!(wanted.ports.connect, ConnectBy::RdmaCm);
        assert_eq!((wanted.transport, wanted.port_range), (Transport::Rdma, Some((22000, 22100))));
        assert_eq!(options("rlaunch -H a --transport tcp true").transport, Transport::Tcp);
    }

    #[test]
    fn checks_are_chosen_by_id_and_by_subject() {
        let chosen = |only: &[&str], skip: &[&str]| {
            let words =
                |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            let selected = selected_checks(&words(only), &words(skip)).unwrap();
            selected.iter().map(|check| check.id.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&["lim.memlock"], &[]), ["lim.memlock"]);
        let limits = chosen(&["lim"], &["lim.memlock"]);
        assert!(limits.iter().all(|id| id.starts_with("lim.")) && !limits.contains(&"lim.memlock"));
        let reach = with_reach(&selected_checks(&["mtu".to_owned()], &[]).unwrap(), &[]).unwrap();
        let has = |id| reach.iter().any(|check| check.id.as_str() == id);
        assert!(has("mtu.path") && has("ssh.reach") && has("agent.run") && !has("lim.memlock"));
        let skip = ["ssh".to_owned()];
        let left = with_reach(&reach, &skip).unwrap();
        assert!(left.iter().all(|check| check.id.subject() != "ssh"));
        let error = selected_checks(&["lim.memloc".to_owned()], &[]).unwrap_err();
        assert!(error.hints[0].starts_with("did you mean lim.memlock?"), "{error:?}");
    }
}
