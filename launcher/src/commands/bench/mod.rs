//! `rlaunch bench`: a job of a program that comes with rlaunch.

pub(crate) mod train;

use crate::cli::args::{Args, BenchArgs, BenchWhat};
use crate::connect::agent::store;
use crate::job::JobSpec;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;

/// What is to be run, and what is measured.
pub(crate) fn job(args: BenchArgs) -> Result<(Args, BenchWhat), Failed> {
    let program = store::bench(args.reach.agent.as_deref())
        .map_err(|error| Failed::from_error(Exit::FILES, &error).hint(error.hint()))?;
    let what = args.what;
    let args = args.into_job(&program).map_err(|error| Failed::from_error(Exit::USAGE, &error))?;
    let typed = std::env::args_os().collect();
    Ok((Args { typed, ..args }, what))
}

/// Whether so many ranks can measure it.
pub(crate) fn check(job: &JobSpec, what: BenchWhat) -> Result<(), Failed> {
    let ranks = match (job.has_open_slots(), job.first().ranks) {
        (false, _) => {
            let map = job.map_ranks();
            map.map_err(|error| Failed::from_error(Exit::USAGE, &error))?.world_size
        }
        (true, Some(ranks)) => ranks,
        // How many there are is known when the hosts are reached, and the program looks then.
        (true, None) => return Ok(()),
    };
    let checked = BenchArgs::check_ranks(what, ranks);
    checked.map_err(|error| {
        let hint = "-H a,b for two hosts, -H a:2 for two ranks of one, or -np 2";
        Failed::from_error(Exit::USAGE, &error).hint(Some(hint))
    })
}
