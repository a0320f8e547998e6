//! `rlaunch -H a,b,c -np 3 python train.py`: the command on the head node.
//!
//! One job, from left to right: argv → `Args` → `JobSpec` → `RankMap` → SSH → agents → prepared →
//! joined → started → the first failure → exit code. [`launch`], [`run`] and [`meet`] read like that.
//!
//! | files | subject |
//! |---|---|
//! | `args*`, `job` | what was typed; what was meant |
//! | `args/{application,foreign,manual}`, `args/spelling*` | options of one of several programs; other launchers' words, `--mca` among them; completions and manual |
//! | `config*`, `trust` | `rlaunch.toml` and variables, their order, hosts of the file; untrusted files (`stranger`), `rlaunch trust` |
//! | `listing`, `hosts`, `allocation` | the hosts of a job, `rlaunch hostfile`; `-H`, hostfiles, ranges; Slurm, PBS, an MPIJob |
//! | `map`, `placement_line` | ranks onto nodes; `placement: a 0-1 · b 2` |
//! | `apps` | several programs: the ranks of each, `--after` and the order of starts, templates |
//! | `dry_run`, `restart` | `--dry-run`; `--max-restarts` |
//! | `manual`, `help*`, `shell_words` | `rlaunch completions` and `man`; `rlaunch help`, its pages and the hint for a mistyped verb; shell quoting |
//! | `rank_env*` | what goes along from this shell; `--env-file` |
//! | `route`, `landing` | the way to a host, by SSH or a command, and into a container that runs (`container`) or is started (`image`); what a container lacks |
//! | `oob*`, `rendezvous`, `table`, `show` | which addresses to try first; the tree comes about; the rank table; `--show` |
//! | `selection*`, `reach` | which RDMA ports and GIDs, and which of them meet; what is said where none do |
//! | `mesh` | which paths are proved, what follows, `--show mesh`, the watch while the job runs |
//! | `placement`, `setup*`, `held_ports` | the processors, GPU and NICs of each rank; what each rank is given; ports for it |
//! | `nccl*`, `env_style`, `horovod` | what NCCL is told, its version, its log; other launchers' variables; Horovod's |
//! | `topo*`, `capture`, `ask` | `rlaunch topo` and `capture`; one question to every host's agent |
//! | `goldens` | what is printed of recorded machines and decided for jobs on them (`../goldens`, `../fixtures`) |
//! | `ssh` | configuration (`Match exec` in `config/exec`), host keys, hosts met for the first time (`new_hosts`), algorithms; TCP (`dial`), jump hosts, ProxyCommand, retries |
//! | `ssh/{auth,identities,keys,key_ring,passphrase,askpass,certificate}` | logins: what is offered in which order, key files, each read and unlocked once, the terminal, `SSH_ASKPASS` |
//! | `ssh_config`, `ssh_setup*` | `rlaunch ssh-config`; `rlaunch ssh-setup`: the plan, keys, the script that runs on hosts, the way into containers, the first login |
//! | `agent` | finding the agent here (`store`), taking it to a host (`deliver`, `install`, `place.sh`, `install.sh`, `fetch.sh`), its first words (`greet`); what its ranks link (`library`) |
//! | `callback*` | where agents call that are given no stdin, and where their hosts fetch the agent |
//! | `channel`, `session`, `rescue` | the byte stream to an agent; a node's life on it; what is done once its agent is lost |
//! | `waiting`, `awake` | a sentence on what a job waits for; time limits by the launcher's clock |
//! | `crew*`, `refusal` | all nodes together: reached, prepared, started; which ranks they run once their GPUs are counted (`settle`); why they cannot |
//! | `bench*` | `rlaunch bench`: a job of a program that comes along; one program with several numbers of ranks |
//! | `record*` | what is left of a job: the record, how much of its output, where records are |
//! | `figures*`, `verdict*` | figures read from output line by line; `rlaunch report` |
//! | `watch`, `first_failure`, `conclusion` | the running job, its first failure, its end in words |
//! | `output*`, `stdin` | whole lines from many ranks to one terminal: tags, turns (`pen`), files of each rank; standard input to ranks |
//! | `signals`, `reap`, `events`, `log`, `report`, `printable`, `exit` | signals, `rlaunch reap`, `--events`, `-v`, errors, foreign text in them, codes |

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;
mod commands;
mod connect;
mod console;
#[cfg(test)]
mod goldens;
mod hosts;
mod job;
mod plan;
#[cfg(test)]
mod recorded;
mod run;
mod ssh;

use cli::args::{Args, BenchArgs, Invocation};
use cli::config::Found;
use cli::{help, listing, lower, manual};
use commands::{bench, capture, reap, ssh_config, ssh_setup, topo, trust, verdict};
use console::exit::Exit;
use console::report::Failed;
use console::{log, open_files, report};
use job::options::DryRun;
use rlaunch_bootstrap::client::command;
use run::dry_run;
use std::process::ExitCode;

fn main() -> ExitCode {
    let invocation = match Invocation::parse_or_explain() {
        Ok(invocation) => invocation,
        Err(misread) => return misread.print().into(),
    };
    if let Invocation::Run(args) = &invocation {
        let output = &args.output;
        if output.quiet {
            report::be_quiet();
        }
        let errors = output.quiet.then_some(tracing::Level::ERROR);
        log::to_stderr(output.verbose, output.log_level.or(errors), output.log_json);
        args.reach.config.found.log();
    }
    let found = invocation.found();
    found.and_then(Found::warning).iter().for_each(|line| report::warn(line));
    let untrusted = found.and_then(Found::trust_hint);
    if let Err(failed) = open_files::begin() {
        failed.print();
        return failed.exit.into();
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            let message = format!("cannot start: {error}");
            let hint = open_files::hint(&message);
            Failed::new(Exit::BUG, message).hint(hint).print();
            return Exit::BUG.into();
        }
    };
    let ended = match invocation {
        Invocation::Run(args) => runtime.block_on(launch(*args)),
        Invocation::Reap(args) => runtime.block_on(reap::reap(args)),
        Invocation::Topo(args) => runtime.block_on(topo::topo(args)),
        Invocation::Capture(args) => runtime.block_on(capture::capture(args)),
        Invocation::Bench(args) => runtime.block_on(measure(*args)),
        Invocation::Train(args) => runtime.block_on(bench::train::train(*args)),
        Invocation::Report(args) => verdict::report(&args),
        Invocation::Hostfile(args) => listing::print(&args),
        Invocation::SshConfig(args) => ssh_config::ssh_config(&args),
        Invocation::Completions(args) => manual::completions(&args),
        Invocation::Man(args) => manual::man(&args),
        Invocation::Trust(args) => trust::trust(&args),
        Invocation::Help(args) => help::help(&args),
        Invocation::SshSetup(args) => runtime.block_on(ssh_setup::ssh_setup(args)),
        Invocation::OfRank(words) => return command::run(words.into_iter()),
    };
    let exit = ended.unwrap_or_else(|failed| {
        let failed = if failed.by_rank { failed } else { failed.hint(untrusted) };
        failed.print();
        failed.exit
    });
    ssh::passphrase::restore_terminal();
    // Whatever still looks up a name or writes to a stopped terminal is not waited for.
    runtime.shutdown_background();
    exit.into()
}

/// A few threads do: what costs time is cryptography, and what costs memory is every thread's own
/// heap.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    const MOST_THREADS: usize = 4;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

/// The life of a job.
async fn launch(args: Args) -> Result<Exit, Failed> {
    let verb = args.verb_hint();
    let job = lower::specify(args)?;
    let ended = match job.dry_run {
        Some(DryRun::Offline) => dry_run::offline(&job),
        Some(DryRun::Agents) | None => run::live(job).await,
    };
    ended.map_err(|failed| match failed.exit {
        Exit::NOT_FOUND if !failed.by_rank => failed.hint(verb),
        _ => failed,
    })
}

/// That of one that measures.
async fn measure(args: BenchArgs) -> Result<Exit, Failed> {
    let (args, what) = bench::job(args)?;
    let job = lower::specify(args)?;
    bench::check(&job, what)?;
    run::live(job).await
}
