//! `cargo lab bench train`: training with torch on three hosts, over rlaunch's backend and over
//! gloo in turn, started by rlaunch in both cases. The time of an image has to be as low as over
//! gloo.

use super::contender::{Contender, Launcher, ON_HOST, Testbed};
use super::table::{Bar, Rounds, Row, Table};
use crate::LabError;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet, python};

const HOSTS: usize = 3;
/// Script and the file that it imports, in `examples/`.
const FILES: [&str; 2] = ["torch_ddp/train.py", "resnet/nets.py"];
/// Backends that are compared.
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

/// Measures and prints; returns whether every network meets its bar.
pub(super) fn run(rounds: usize, steps: u64) -> Result<bool, LabError> {
    setup::install(PackageSet::Peers)?;
    python::TORCH.build()?;
    let rlaunch = Contender::new(Launcher::Rlaunch, &dist::build(Profile::Release)?);
    let row = |(model, _): (&[&str], u64)| {
        Row::new(model.join(" "), "img/s", &[Bar::AsFast]).rate_of(1.0)
    };
    let mut table = Table::new(BACKENDS, MODELS.map(row));
    Testbed::with_fresh(HOSTS, |testbed| {
        for file in FILES {
            testbed.place(&dist::workspace().join("examples").join(file))?;
        }
        table.measure(Rounds::new(rounds), |turn| {
            let backend = BACKENDS[turn.contender];
            let train = |(model, fewer): &(&[&str], u64)| {
                let steps = (steps / fewer).max(2).to_string();
                let words = ["--backend", backend, "--steps", &steps];
                Ok(Some(1.0 / train(testbed, &rlaunch, &[&words, *model].concat(), backend)?))
            };
            MODELS.iter().map(train).collect()
        })
    })?;
    Ok(table.print(&format!("training on {HOSTS} hosts, {rounds} rounds")))
}

/// Trains, again if gloo aborted; returns images per second on all hosts.
fn train(
    testbed: &Testbed,
    rlaunch: &Contender,
    words: &[&str],
    backend: &str,
) -> Result<f64, LabError> {
    let script = format!("{ON_HOST}/train.py");
    let program = [&[python::PROGRAM, &script], words].concat();
    let mut attempts = 1;
    let ran = loop {
        let command = rlaunch.command(testbed.all(1), &[], &program);
        match testbed.run(&format!("train over {backend}"), command) {
            Err(error)
                if attempts < ATTEMPTS
                    && backend == "gloo"
                    && error.to_string().contains(ABORTED) =>
            {
                println!("gloo aborted at exit; trying again");
                attempts += 1;
            }
            ran => break ran?,
        }
    };
    rate(&ran.stdout).ok_or_else(|| {
        LabError::Unexpected(format!("no `{RATE}` in what {backend} printed:\n{}", ran.stdout))
    })
}

/// Reads the images per second that the script prints at its end.
fn rate(printed: &str) -> Option<f64> {
    let rate: f64 =
        printed.lines().find_map(|line| line.strip_prefix(RATE))?.trim().parse().ok()?;
    // Anything else would make ratios meaningless.
    (rate.is_finite() && rate > 0.0).then_some(rate)
}
