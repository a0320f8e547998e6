//! `cargo lab bench train`: training with torch on three hosts, over rlaunch's backend and over
//! gloo in turn, started by rlaunch in both cases.
//!
//! A network meets its bar if the time of an image over rlaunch, divided by that over gloo in the
//! same round, has a median of at most 1.10, and the 90 % interval of that median begins at 1.0 or
//! below.

use super::launchers::Launcher;
use super::rounds::Rounds;
use super::testbed::Testbed;
use crate::command::run as run_command;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet, python};
use crate::{LabError, Options};

const NAME: &str = "benchtrain";
const NET: [u8; 2] = [10, 98];
const HOSTS: usize = 3;
/// Directory of the script on hosts.
const ON_HOST: &str = "/tmp/train";
/// Script and the file that it imports, in `examples/`.
const FILES: [&str; 2] = ["torch_ddp/train.py", "resnet/nets.py"];
/// Time limit of a training in seconds.
const LIMIT: &str = "300";
/// Backends that are compared, rlaunch first.
const BACKENDS: [&str; 2] = ["rlaunch", "gloo"];
/// Options of each network, and the divisor of its number of steps, as steps of larger networks
/// take longer. The numbers exchanged in a step differ by a factor of 500.
const MODELS: [(&[&str], u64); 2] =
    [(&["--model", "tiny"], 1), (&["--model", "resnet18", "--batch-size", "4"], 4)];
/// Message of a rank that aborted at exit because gloo was still releasing tensors: a race in torch
/// (pytorch#179291), after the training.
const ABORTED: &str = "terminate called without an active exception";
/// Maximum number of attempts if ranks abort at exit.
const ATTEMPTS: usize = 3;
/// Beginning of the line with the number of images per second.
const RATE: &str = "total images/sec:";

/// Options of the bench.
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Number of timed rounds, after a warm-up round.
    pub rounds: usize,
    /// Number of steps of a training of the smallest network.
    pub steps: u64,
}

/// Measures and prints; returns whether every network meets its bar.
pub fn run(options: &TrainOptions) -> Result<bool, LabError> {
    setup::install(PackageSet::Peers)?;
    python::TORCH.build()?;
    let rlaunch = dist::build(Profile::Release)?;
    let lab = Options { net: NET, ..Options::new(NAME, HOSTS) };
    let measured = Testbed::with_fresh(&lab, rlaunch, |testbed| {
        for file in FILES {
            testbed.copy_into(&dist::workspace().join("examples").join(file), ON_HOST, 0o644)?;
        }
        let one = |(model, fewer): &(&[&str], u64)| {
            let steps = (options.steps / fewer).max(2);
            Ok((model.join(" "), measure(testbed, model, (options.rounds, steps))?))
        };
        MODELS.iter().map(one).collect::<Result<Vec<_>, LabError>>()
    })?;
    println!("\n{:<25}{:>28}{:>28}", "images per second", BACKENDS[0], BACKENDS[1]);
    for (name, rounds) in &measured {
        rounds.print((name, ""), |seconds| 1.0 / seconds, &BACKENDS, true);
    }
    let meets_bar =
        |rounds: &Rounds| rounds.comparison().is_some_and(|comparison| comparison.meets_bar());
    Ok(measured.iter().all(|(_, rounds)| meets_bar(rounds)))
}

/// Runs a warm-up round, then the timed ones; which backend begins alternates.
fn measure(
    testbed: &Testbed,
    model: &[&str],
    (count, steps): (usize, u64),
) -> Result<Rounds, LabError> {
    let mut rounds = Rounds::new(BACKENDS.len());
    for round in 0..=count {
        for turn in 0..BACKENDS.len() {
            let index = (round + turn) % BACKENDS.len();
            let rate = train_with_retries(testbed, model, BACKENDS[index], steps)?;
            println!("round {round}: {:<8} {rate:.1} images/sec", BACKENDS[index]);
            if round > 0 {
                rounds.0[index].push(1.0 / rate);
            }
        }
    }
    Ok(rounds)
}

/// Trains by [`train`], and repeats it if gloo aborted.
fn train_with_retries(
    testbed: &Testbed,
    model: &[&str],
    backend: &str,
    steps: u64,
) -> Result<f64, LabError> {
    for _ in 1..ATTEMPTS {
        match train(testbed, model, backend, steps) {
            Err(error) if backend == "gloo" && error.to_string().contains(ABORTED) => {
                println!("gloo aborted at exit; trying again");
            }
            trained => return trained,
        }
    }
    train(testbed, model, backend, steps)
}

/// Trains once; returns images per second on all hosts.
fn train(testbed: &Testbed, model: &[&str], backend: &str, steps: u64) -> Result<f64, LabError> {
    let (script, steps) = (format!("{ON_HOST}/train.py"), steps.to_string());
    let words = [python::PROGRAM, &script, "--backend", backend, "--steps", &steps];
    let words = [words.as_slice(), model].concat();
    let options = ["--timeout", LIMIT];
    let mut command = Launcher::Rlaunch.command_with(&options, testbed, 1, &words);
    let output = run_command(&format!("train over {backend}"), &mut command)?;
    testbed.wait_until_idle()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let rate = rate(&printed);
    rate.ok_or_else(|| {
        LabError::Unexpected(format!("no `{RATE}` in what {backend} printed:\n{printed}"))
    })
}

/// Reads the images per second that the script prints at its end.
fn rate(printed: &str) -> Option<f64> {
    let rate: f64 =
        printed.lines().find_map(|line| line.strip_prefix(RATE))?.trim().parse().ok()?;
    // Anything else would make ratios meaningless.
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_all_ranks() {
        assert_eq!(rate("step 5 loss 2.1\ntotal images/sec: 107.5\n"), Some(107.5));
        for line in ["", "images/sec: 3", "total images/sec:", "total images/sec: 0.0"] {
            assert_eq!(rate(line), None, "{line}");
        }
    }
}
