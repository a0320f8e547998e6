//! Output at a terminal, with and without folding. No line occurs twice, so that folding has all of its cost and no
//! effect.

use super::{FOLD_BAR, LINE, MeasuredJob, ON_HOST, OutputReader, OutputTask, Tagging, attempt};
use crate::LabError;
use crate::bench::Series;
use crate::bench::launchers::Launcher;
use crate::bench::testbed::Testbed;
use nix::pty::openpty;
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// Options that are compared.
const OPTIONS: [&str; 2] = ["--fold=none", "--fold=lines"];

/// MB of lines per second without and with folding.
pub(super) struct Folded([Series; 2]);

impl Folded {
    pub(super) fn measure(
        testbed: &Testbed,
        rounds: usize,
        lines: usize,
        arrived: &mut Vec<u8>,
    ) -> Result<Folded, LabError> {
        let mut speeds = <[Series; 2]>::default();
        for round in 0..=rounds {
            for (option, speed) in OPTIONS.into_iter().zip(&mut speeds) {
                let (launcher, tagging) = (Launcher::Rlaunch, Tagging::Plain);
                let (program, reader) = (&["cat", ON_HOST][..], OutputReader::Terminal(option));
                let task = OutputTask { launcher, tagging, program, lines, pace: None, reader };
                let MeasuredJob { ran, damage, .. } = attempt(testbed, &task, arrived)?;
                let bytes = (lines * LINE * testbed.hosts.len()) as f64;
                let now = bytes / 1e6 / ran.seconds;
                println!("terminal {option:<12} {now:>7.1} MB/s, {damage}");
                if !damage.is_none() {
                    return Err(LabError::Unexpected(format!("output with {option}: {damage}")));
                }
                if round > 0 {
                    speed.push(now);
                }
            }
        }
        Ok(Folded(speeds))
    }

    /// Prints the bar; returns whether it is met.
    pub(super) fn print(&self) -> bool {
        let [without, with] = &self.0;
        let ratio = with.ratio_to(without).unwrap_or(0.0);
        let verdict = if ratio >= FOLD_BAR { "met" } else { "MISSED" };
        println!(
            "terminal: {} MB/s, folded {}; ratio {ratio:.2} (bar {FOLD_BAR:.2} or more: {verdict})",
            without.summary_to(1),
            with.summary_to(1)
        );
        ratio >= FOLD_BAR
    }
}

/// Makes a terminal that passes bytes on as they are. Returns its reading end first.
pub(super) fn open() -> io::Result<(File, OwnedFd)> {
    let ends = openpty(None, None)?;
    let mut modes = tcgetattr(&ends.slave)?;
    cfmakeraw(&mut modes);
    tcsetattr(&ends.slave, SetArg::TCSANOW, &modes)?;
    Ok((ends.master.into(), ends.slave))
}

/// Makes a pipe. Returns its reading end first.
pub(super) fn pipe() -> io::Result<(File, OwnedFd)> {
    let (reading, writing) = io::pipe()?;
    Ok((OwnedFd::from(reading).into(), writing.into()))
}
