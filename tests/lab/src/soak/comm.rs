//! `cargo lab soak comm`: random messages between 8 ranks on two hosts, for an hour.
//!
//! Contents, lengths and order are known to both ends, so that a wrong, a lost or an early message
//! is one that is not what it should be; and every minute all ranks compare what they have in memory
//! with what it was when their buffers had grown. For the second half of the time ranks give up some
//! of their calls, by a signal at a random moment or by dropping them, and go on with what is left.

use std::path::Path;

use crate::command::show;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::{Account, Lab, LabError, Options};

/// Beside the other soaks, which may run meanwhile.
const NAME: &str = "soakcomm";
const NET: [u8; 2] = [10, 92];
const RANKS: &str = "a:4,b:4";
/// What a round of messages never takes, however busy the machine: who waits so long waits for a
/// message that was lost.
const MESSAGE_TIMEOUT: &str = "120";
/// What may be left to do after the last second.
const EXTRA_SECONDS: u64 = 180;
/// Ranks give way to everybody else: an hour is long. Priorities are first those of sessions, and that
/// of the ranks is the agent's, which has to be heard in time.
const LOW_PRIORITY: &str = r#"exec setsid --wait sh -c 'echo 19 2>/dev/null >/proc/self/autogroup
    exec nice -n 19 "$RLAUNCH_PRELOAD_DIR"/comm-suite "$@"' sh "$@""#;
/// Decides what is given up, and when.
const SEED: u64 = 1;

/// Sends messages for so many seconds; true, as all else is an error.
pub fn run(seconds: u64) -> Result<bool, LabError> {
    setup::install(PackageSet::Verbs)?;
    setup::install(PackageSet::Fuzzer)?;
    dist::build_everything()?;
    let rlaunch = dist::launcher(Profile::Lab)?;
    // An interrupted run leaves its lab behind, in whatever state.
    Lab::down(NAME)?;
    let lab = Lab::up(&Options { net: NET, ..Options::new(NAME, 2) })?;
    let soaked = soak(&lab, &rlaunch, seconds);
    Lab::down(NAME)?;
    soaked?;
    println!(
        "{seconds} s: nothing was lost, out of order or wrong, no rank has grown, and calls that were \
         given up left the others whole"
    );
    Ok(true)
}

fn soak(lab: &Lab, rlaunch: &Path, seconds: u64) -> Result<(), LabError> {
    // Copies, so that whoever builds meanwhile changes nothing.
    let dist = lab.install(rlaunch.parent().unwrap_or(rlaunch))?;
    let (first, second) = (seconds.div_ceil(2), seconds / 2);
    let traffic = ["traffic".to_owned(), first.to_string()];
    ranks(lab, &dist, "send messages", first, &traffic)?;
    let unruly = ["unruly".to_owned(), second.to_string(), SEED.to_string()];
    ranks(lab, &dist, "give up calls", second, &unruly)
}

/// Runs the suite in all ranks.
fn ranks(
    lab: &Lab,
    dist: &Path,
    what: &str,
    seconds: u64,
    words: &[String],
) -> Result<(), LabError> {
    let mut command = lab.exec_in(Account::Root, Path::new("/"));
    let limit = (seconds + EXTRA_SECONDS).to_string();
    command.arg(dist.join("rlaunch")).args(["-H", RANKS, "--timeout", &limit]);
    command.arg("--preload").arg(dist.join("comm-suite"));
    command.args(["sh", "-c", LOW_PRIORITY, "sh"]).args(words);
    command.env("RLAUNCH_COMM_TIMEOUT", MESSAGE_TIMEOUT);
    show(what, &mut command)
}
