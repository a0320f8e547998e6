//! Jobs of Ray, two at a time on the same hosts, each ended in another way: none may leave anything on a host.

use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::rows::RAY;
use super::{BOUND, Field};
use crate::command::background::Background;
use crate::command::{at_once, last_lines, wait_until};
use crate::{LabError, Process};

/// Number of concurrent jobs.
const CONCURRENT: usize = 2;
/// Time limit of a job's end.
const END: Duration = Duration::from_secs(60);

/// Name of agents.
const AGENT: &str = "rlaunch-worker";

/// How a job ends.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// Its driver ends.
    Driver,
    /// A signal to rlaunch while the driver waits.
    Launcher(Signal),
    /// A signal to rlaunch before the driver has begun.
    Early(Signal),
    /// SIGKILL to Ray's daemon on a worker's host.
    Raylet,
    /// SIGKILL to Ray's head.
    Head,
    /// SIGKILL to the agent of a worker's host.
    Agent,
}

const ENDINGS: [Ending; 10] = [
    Ending::Driver,
    Ending::Launcher(Signal::SIGINT),
    Ending::Launcher(Signal::SIGTERM),
    Ending::Launcher(Signal::SIGKILL),
    Ending::Launcher(Signal::SIGHUP),
    Ending::Early(Signal::SIGINT),
    Ending::Early(Signal::SIGKILL),
    Ending::Raylet,
    Ending::Head,
    Ending::Agent,
];

/// Runs `jobs` jobs; returns whether none hung or left anything.
pub(super) fn run(field: &Field<'_>, jobs: usize) -> Result<bool, LabError> {
    let mut wrong = 0;
    for pair in (0..jobs).step_by(CONCURRENT) {
        // The second job of a pair has the ending of another row, so that all meet all in time.
        let numbers = (pair..jobs.min(pair + CONCURRENT)).collect::<Vec<_>>();
        let results = at_once(numbers, |number| Ok((number, job(field, number))))?;
        for (number, result) in results {
            if let Err(error) = result {
                println!("job {number} of Ray, {:?}: {error}", ending(number));
                wrong += 1;
            }
        }
        if let Err(left) = field.gone() {
            println!("jobs {pair} and {} of Ray left {left}", pair + 1);
            wrong += 1;
            field.clear()?;
        }
    }
    println!("{jobs} jobs of Ray, {CONCURRENT} at once, in {} ways: {wrong} wrong", ENDINGS.len());
    Ok(wrong == 0)
}

fn ending(number: usize) -> Ending {
    ENDINGS[(number / CONCURRENT + number % CONCURRENT * 3) % ENDINGS.len()]
}

/// Runs a job to its end.
fn job(field: &Field<'_>, number: usize) -> Result<(), LabError> {
    let (ending, port) = (ending(number), 6379 + number % CONCURRENT * 1000);
    let stays = if matches!(ending, Ending::Driver) { 0 } else { 300 };
    let head = r#"{{app["head"].oob_ip}}"#;
    let line = format!(
        "exec {} --job-name ray-{number} --serve -H a -np 1 --name head ray start --head --port {port} --block \
         --include-dashboard false : -H b,c --after ready:tcp:a:{port} ray start --address '{head}:{port}' --block \
         : -H a -np 1 --after ready:tcp:a:{port} -x 'RAY_ADDRESS={head}:{port}' python3 driver.py 3 {stays}",
        field.rlaunch.display()
    );
    let mut launcher = Background::start(field.shell(RAY.1, &line)?)?;
    let is_ready = |launcher: &mut Background| {
        let text = if matches!(ending, Ending::Early(_)) { "Ray runtime started" } else { "ready" };
        Ok(launcher.stdout().contains(text) || launcher.ended()?.is_some())
    };
    wait_until(BOUND, "a job of Ray to start", || is_ready(&mut launcher))?;
    if !matches!(ending, Ending::Driver) && launcher.ended()?.is_some() {
        return Err(unexpected("ended early", &launcher));
    }
    match ending {
        Ending::Driver => {}
        Ending::Launcher(signal) | Ending::Early(signal) => launcher.signal(signal)?,
        Ending::Raylet => strike(field, "b", port, "raylet")?,
        Ending::Head => strike(field, "a", port, "gcs_server")?,
        Ending::Agent => strike(field, "c", port, AGENT)?,
    }
    let Some(status) = launcher.wait(END)? else { return Err(unexpected("hung", &launcher)) };
    let is_right = match ending {
        Ending::Driver => status.success() && launcher.stdout().contains("tasks 6 on 3 nodes"),
        _ => !status.success(),
    };
    if !is_right {
        return Err(unexpected(&status.to_string(), &launcher));
    }
    // What nobody waits for ends a moment later.
    thread::sleep(Duration::from_millis(100));
    Ok(())
}

fn unexpected(how: &str, launcher: &Background) -> LabError {
    let lines = last_lines(&(launcher.stdout() + &launcher.stderr()), 10);
    LabError::Unexpected(format!("{how}\n{lines}"))
}

/// Kills a program of the job with this port on a host, or its agent, which has no port in its words.
fn strike(field: &Field<'_>, host: &str, port: usize, program: &str) -> Result<(), LabError> {
    let (of_job, processes) = (port.to_string(), field.lab.processes(host)?);
    let is = |process: &Process, program: &str| {
        process.args.first().is_some_and(|name| name.ends_with(program))
    };
    let is_of_job = |process: &&Process| process.args.iter().any(|word| word.contains(&of_job));
    let mut found = processes
        .iter()
        .find(|process| is_of_job(process) && (program == AGENT || is(process, program)));
    while program == AGENT
        && let Some(process) = found.filter(|process| !is(process, AGENT))
    {
        found = processes.iter().find(|other| other.pid == process.parent);
    }
    let Some(process) = found else {
        return Err(LabError::Unexpected(format!("no {program} on {host}")));
    };
    // Fails if the process has ended meanwhile.
    let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
    Ok(())
}
