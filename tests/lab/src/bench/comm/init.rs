//! Time that 8 ranks on two hosts take until they can communicate, beside `MPI_Init`.
//!
//! All ranks begin at the same moment, when all of them run. The time until they run depends on the
//! launcher, and is measured by `cargo lab bench launch`.

use super::on_host;
use super::setting::{Contender, Setting, Transport};
use crate::LabError;
use crate::bench::Series;
use crate::bench::launchers::Launcher;
use crate::bench::testbed::Testbed;
use crate::command::run as run_command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Name of the row for `--row`.
pub(super) const NAME: &str = "init";
/// Source of the peers' program.
pub(super) const PEER: (&str, &str) = ("init.c", include_str!("../rendezvous/init.c"));
/// Maximum of the median over all rounds of the slowest rank's time, in milliseconds.
const BAR: f64 = 10.0;

/// Time from the start of a launcher until ranks begin. Every launcher has started all ranks by
/// then.
const LEAD: Duration = Duration::from_secs(3);

const SETTING: Setting =
    Setting { transport: Transport::Tcp, hosts: 2, per_host: 4, has_bar: false };

/// Number of hosts that this measurement needs.
pub(super) const HOSTS: usize = SETTING.hosts;

/// Returns the name of the program of ranks under a launcher.
pub(super) fn program(launcher: Launcher) -> String {
    format!("init-{}", launcher.name())
}

/// Measures the launchers in turn, after a warm-up round; returns whether the bar is met.
pub(super) fn run(testbed: &Testbed, rounds: usize) -> Result<bool, LabError> {
    let contenders = SETTING.contenders(false);
    let mut times = vec![Series::default(); contenders.len()];
    for round in 0..=rounds {
        let mut words = Vec::new();
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            let program = on_host(&program(contenders[index].launcher));
            let time = once(testbed, &contenders[index], &program)?;
            words.push(format!("{} {time:.2} ms", contenders[index].name));
            if round > 0 {
                times[index].push(time);
            }
        }
        println!("round {round}: {}", words.join(", "));
    }
    println!("\n{}: ms, median (min–max)", describe());
    for (contender, times) in contenders.iter().zip(&times) {
        println!("{:<11} {}", contender.name, times.summary());
    }
    let met = times[0].median().is_some_and(|median| median < BAR);
    println!("from_env (bar {BAR} ms: {})", if met { "met" } else { "MISSED" });
    Ok(met)
}

/// Describes what is measured.
pub(super) fn describe() -> String {
    let ranks = HOSTS * SETTING.per_host;
    format!("{ranks} ranks on {HOSTS} hosts, from one moment until the slowest is ready")
}

/// Returns the time of the slowest rank in milliseconds.
pub(super) fn once(
    testbed: &Testbed,
    contender: &Contender,
    program: &str,
) -> Result<f64, LabError> {
    let hosts = &testbed.hosts[..HOSTS];
    let limit = ["--timeout", SETTING.limit()];
    let limit = if contender.launcher == Launcher::Hydra { [].as_slice() } else { &limit };
    let options: Vec<&str> = limit.iter().copied().chain(contender.options()).collect();
    let moment = (SystemTime::now() + LEAD).duration_since(UNIX_EPOCH).unwrap_or_default();
    let moment = moment.as_secs_f64().to_string();
    let words = [program, &moment];
    let mut command =
        contender.launcher.command_on(hosts, &options, testbed, SETTING.per_host, &words);
    command.env("MPIEXEC_TIMEOUT", SETTING.limit());
    let operation = format!("start ranks under {}", contender.name);
    let output = run_command(&operation, &mut command)?;
    testbed.wait_until_idle()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let times = text.lines().filter_map(|line| line.strip_prefix("ready ")?.parse::<f64>().ok());
    let times: Vec<f64> = times.collect();
    if times.len() != HOSTS * SETTING.per_host {
        return Err(LabError::Unexpected(format!("{operation}: {} times in\n{text}", times.len())));
    }
    Ok(times.into_iter().fold(0.0, f64::max) / 1e3)
}
