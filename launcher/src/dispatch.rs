//! Entry point: reads the command line, sets up logging and the runtime, and runs the verb.

use crate::cli::args::{JobArgs, OutputArgs};
use crate::cli::command_line::CommandLine;
use crate::commands::{Invocation, Verb};
use rlaunch_client::command;
use rlaunch_console::{held, limits, messages, panics, signals, stdout};
use rlaunch_engine::run::detach::{self, Side, Start};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::process::ExitCode;
use tokio::runtime::Runtime;

/// Text for a command line without words.
const FIRST_STEPS: &str = "\
rlaunch starts one program on many hosts over SSH:
  rlaunch -H host1,host2 hostname     a first job
  rlaunch hostname                    the same on hosts of rlaunch.toml, or here
  rlaunch ssh-setup -H host1,host2    install your key, if the hosts ask for a password
  rlaunch doctor --try -H host1,host2 try what jobs use; without --try: what is wrong there
  rlaunch -h                          options and verbs; `rlaunch help` lists topics
";

/// Reads the command line, runs the verb and returns the exit code of the process.
pub fn main() -> ExitCode {
    signals::unblock_all();
    panics::end_at_panics();
    limits::survive_file_size();
    let exit = run();
    messages::flush();
    exit
}

/// Runs the command line, and says which results could not be written.
fn run() -> ExitCode {
    if std::env::args_os().len() < 2 {
        FIRST_STEPS.lines().for_each(messages::line);
        return Exit::USAGE.into();
    }
    let exit = match Invocation::parse(std::env::args_os().collect()) {
        Ok(Invocation::Verb(verb, line)) => run_verb(*verb, *line),
        Ok(Invocation::RankCommand(words)) => return command::run(words.into_iter()),
        Err(error) => error.print(),
    };
    let Some(failed) = stdout::failure() else { return exit.into() };
    messages::error(&failed);
    // A job whose results cannot be shown is ended as if the reader had left.
    let is_cause = exit == Exit::SUCCESS || exit == Exit::READER_GONE;
    if is_cause { failed.exit.into() } else { exit.into() }
}

fn run_verb(mut verb: Verb, line: CommandLine) -> Exit {
    if let Verb::Job(args) = &mut verb {
        set_up_messages(&args.output);
        // Before the first message, which starts a thread.
        if let Some(exit) = args.output.detach.then(|| detach(args)).flatten() {
            return exit;
        }
        line.config.log();
    }
    line.config.unread_variables.iter().for_each(|warning| messages::warn(warning));
    line.config.warning().iter().for_each(|warning| messages::warn(warning));
    line.notices.print();
    // The warning has said it, unless `--quiet` hides warnings.
    let trust_hint = line.config.trust_hint().filter(|_| messages::is_quiet());
    let runtime = match start() {
        Ok(runtime) => runtime,
        Err(failed) => {
            messages::error(&failed);
            return failed.exit;
        }
    };
    let exit = runtime.block_on(verb.run(line)).unwrap_or_else(|failed| {
        let is_of_rlaunch = !failed.by_rank && !failed.is_asked;
        let failed = if is_of_rlaunch { failed.hint(trust_hint) } else { failed };
        messages::error(&failed);
        failed.exit
    });
    rlaunch_ssh::prompt::restore_terminal();
    // Do not wait for threads: one that looks up a host name or writes to a stopped terminal would delay the
    // exit.
    runtime.shutdown_background();
    held::say_who_holds_streams();
    exit
}

/// Forks this process. Returns the exit code in the one that the user waits for; `None` in the one that runs the job.
fn detach(args: &mut JobArgs) -> Option<Exit> {
    let started = match detach::fork() {
        Ok(Side::Child(detaching)) => {
            args.detaching = Some(detaching);
            return None;
        }
        Ok(Side::Parent(job)) => job.wait(),
        Err(failed) => Err(failed),
    };
    let told = started.and_then(|started| match started {
        Start::Runs { name, until_logout } => {
            stdout::print(&format!("{name}\n"));
            if let Some(failed) = stdout::failure() {
                return Err(untold(failed, &name));
            }
            let until = if until_logout { " until you log out" } else { "" };
            messages::info(&format!("the job goes on without this terminal{until}:"));
            messages::line(&format!("  rlaunch logs -f {name}    shows what it prints"));
            messages::line(&format!("  rlaunch wait {name}       waits for its end"));
            messages::line(&format!("  rlaunch stop {name}       ends it"));
            Ok(Exit::SUCCESS)
        }
        Start::Ended(exit) => Ok(exit),
    });
    Some(told.unwrap_or_else(|failed| {
        messages::error(&failed);
        failed.exit
    }))
}

/// Makes the error of a job that runs although its name could not be written.
fn untold(failed: Failed, name: &str) -> Failed {
    let message = format!("{}; the job runs as {name}", failed.message);
    let hint = format!("`rlaunch stop {name}` ends it");
    Failed { message, ..failed }.hint(Some(hint))
}

fn set_up_messages(output: &OutputArgs) {
    if output.quiet {
        messages::set_quiet();
    }
    let errors = output.quiet.then_some(tracing::Level::ERROR);
    messages::log_to_stderr(output.verbose, output.log_level.or(errors), output.log_json);
}

/// Raises the limit of open files and starts the async runtime. Four threads are enough for the cryptography
/// of many connections; more would cost memory, since each thread has a heap of its own.
fn start() -> Result<Runtime, Failed> {
    const MAX_THREADS: usize = 4;
    limits::raise_for_any_job()
        .map_err(|error| Failed::new(Exit::USAGE, error.to_string()).hint(Some(error.hint())))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).enable_all().build().map_err(|error| {
        let message = format!("cannot start: {error}");
        let hint = limits::open_files_hint(&message);
        Failed::new(Exit::BUG, message).hint(hint)
    })
}
