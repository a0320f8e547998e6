//! `cargo lab soak comm`: random messages between 8 ranks on two hosts, for an hour.
//!
//! Both ends know contents, lengths and order of the messages, so a wrong, lost or early message is
//! detected as one that differs from the expected one. Every minute all ranks compare their memory
//! with what it was when their buffers had grown. In the second half of the time ranks abandon some
//! of their calls, by a signal at a random moment or by dropping them, and go on with the others.

use std::path::Path;

use crate::command::show;
use crate::dist::{self, Profile};
use crate::setup::{self, PackageSet};
use crate::{Account, Lab, LabError, Options};

/// Name of the soak's own lab, since other soaks may run at the same time.
const NAME: &str = "soakcomm";
const NET: [u8; 2] = [10, 92];
const RANKS: &str = "a:4,b:4";
/// Timeout of a message in seconds. A round of messages never takes as long, however busy the
/// machine is, so a rank that waits longer waits for a lost message.
const MESSAGE_TIMEOUT: &str = "120";
/// Seconds that the job may take beyond the soak.
const EXTRA_SECONDS: u64 = 180;
/// Script that starts a rank with low priority, since an hour is long. The kernel compares sessions
/// first. A rank is in the session of its agent, which must not be starved, so it starts one of its
/// own.
const LOW_PRIORITY: &str = r#"exec setsid --wait sh -c 'echo 19 2>/dev/null >/proc/self/autogroup
    exec nice -n 19 "$RLAUNCH_PRELOAD_DIR"/comm-suite "$@"' sh "$@""#;
/// Seed for choosing which calls are abandoned, and when.
const SEED: u64 = 1;

/// Sends messages for `seconds`; returns true, as everything else is an error.
pub(super) fn run(seconds: u64) -> Result<bool, LabError> {
    setup::install(PackageSet::Verbs)?;
    setup::install(PackageSet::Fuzzer)?;
    dist::build_everything()?;
    let rlaunch = dist::launcher(Profile::Lab)?;
    let options = Options { net: NET, ..Options::new(NAME, 2) };
    Lab::with_fresh(&options, |lab| soak(&lab, &rlaunch, seconds))?;
    println!(
        "{seconds} s: no message was lost, out of order or wrong, no rank's memory has grown, and \
         abandoned calls did not affect the others"
    );
    Ok(true)
}

fn soak(lab: &Lab, rlaunch: &Path, seconds: u64) -> Result<(), LabError> {
    // Uses copies, so that a build meanwhile changes nothing.
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
