//! What was typed after `rlaunch bench train`.

use super::{
    Args, CommandArgs, EndArgs, ForeignArgs, HostArgs, NetworkArgs, OutputArgs, PlacingArgs,
    ProgramArgs, ReachArgs, values,
};
use crate::cli::compat::translate;
use crate::job::tag_pattern::Pattern;
use clap::{ArgAction, CommandFactory, Parser};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Run a training program with several numbers of ranks, one after the other, and say how it scales.
///
/// Each run is a job like any other, and leaves a record for `rlaunch report`. The program has to
/// print images/sec in a form that `rlaunch report` reads. Efficiency is images/sec per rank, as
/// part of what the smallest of these runs had; figures that do not add up are not compared.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch bench train",
    max_term_width = 100,
    override_usage = "rlaunch bench train --np N,... [OPTIONS] PROGRAM [ARGUMENT]...",
    after_help = "\
Examples:
  rlaunch bench train -H a,b,c,d --np 1,2,4 python3 train.py --batch-size 64
  rlaunch bench train -H a:8,b:8 --np 8,16 --json -- python3 train.py"
)]
pub(crate) struct TrainArgs {
    /// Hosts, as for a job; the first of them run the smaller jobs
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...")]
    pub(crate) hosts: Vec<String>,

    /// The numbers of ranks, also `-np N,...`
    #[arg(
        short = 'n', long = "np", value_name = "N,...", required = true, value_delimiter = ',',
        value_parser = values::parse_ranks
    )]
    pub(crate) ranks: Vec<u32>,

    /// Allow more ranks than slots
    #[arg(long)]
    pub(crate) oversubscribe: bool,

    /// Give every rank this variable, as for a job
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", action = ArgAction::Append)]
    pub(crate) env: Vec<OsString>,

    /// Run in this directory, which every host must have
    #[arg(long, value_name = "DIR")]
    pub(crate) wdir: Option<PathBuf>,

    /// Copy this file to every host for each job
    #[arg(long, value_name = "FILE", action = ArgAction::Append)]
    pub(crate) preload: Vec<PathBuf>,

    /// Start every line of ranks with `[rank,host]`
    #[arg(long)]
    pub(crate) tag_output: bool,

    /// End a job after this many seconds, and the measurement with it
    #[arg(long, value_name = "SECONDS", value_parser = values::parse_timeout)]
    pub(crate) timeout: Option<Duration>,

    /// Print all as one JSON object at the end; what ranks print goes to stderr
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) placing: PlacingArgs,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    #[command(flatten)]
    pub(crate) reach: ReachArgs,

    #[command(flatten)]
    pub(crate) foreign: ForeignArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,

    /// Its options as they were typed, but for what is of the measurement alone.
    #[arg(skip)]
    options: Vec<OsString>,
}

impl TrainArgs {
    /// From the words behind `rlaunch bench train`, preceded by the command's name.
    pub(super) fn parse(typed: Vec<OsString>) -> Result<TrainArgs, clap::Error> {
        let spelled = translate::respell_for(TrainArgs::command(), typed)?;
        let args = TrainArgs::try_parse_from(&spelled)?;
        let options = &spelled[1..spelled.len() - args.command.argv.len()];
        let options = of_each_job(options);
        Ok(TrainArgs { options, ..args })
    }

    /// The numbers of ranks in ascending order, each once.
    pub(crate) fn sizes(&self) -> Vec<u32> {
        let mut sizes = self.ranks.clone();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The job of so many ranks.
    pub(crate) fn job(&self, ranks: u32) -> Result<Args, clap::Error> {
        let mut typed: Vec<OsString> = vec!["rlaunch".into()];
        typed.extend_from_slice(&self.options);
        typed.extend(["--np".into(), ranks.to_string().into()]);
        if self.command.argv.first().is_some_and(|word| word.as_encoded_bytes().starts_with(b"-")) {
            typed.push("--".into());
        }
        typed.extend_from_slice(&self.command.argv);
        // One job after the other cannot read the same.
        let words = ["rlaunch", "--stdin", "none", "--"].map(OsString::from);
        let args = Args::try_parse_from(words.iter().chain(&self.command.argv))?;
        Ok(Args {
            hosts: HostArgs {
                hosts: self.hosts.clone(),
                ranks: Some(ranks),
                oversubscribe: self.oversubscribe,
                ..args.hosts
            },
            program: ProgramArgs {
                env: self.env.clone(),
                wdir: self.wdir.clone(),
                preload: self.preload.clone(),
                ..args.program
            },
            output: OutputArgs {
                tag_output: self.tag_output.then(Pattern::default),
                ..args.output
            },
            end: EndArgs { timeout: self.timeout, ..args.end },
            placing: self.placing.clone(),
            network: self.network.clone(),
            reach: self.reach.clone(),
            foreign: self.foreign.told(),
            typed,
            aside: self.json,
            ..args
        })
    }
}

/// Without `--np`, `--json`, what has been said of other launchers' words and what ends the options.
fn of_each_job(options: &[OsString]) -> Vec<OsString> {
    let mut kept = Vec::with_capacity(options.len());
    let mut words = options.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--np" | "-n") => drop(words.next()),
            Some("--json" | "--") => {}
            Some(text)
                if ["--np=", "--ignored=", "--remark="].iter().any(|own| text.starts_with(own)) => {
            }
            _ => kept.push(word.clone()),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> TrainArgs {
        let words = ["rlaunch bench train"].into_iter().chain(line.split(' '));
        TrainArgs::parse(words.map(OsString::from).collect()).unwrap()
    }

    fn command(args: &TrainArgs, ranks: u32) -> String {
        let typed = args.job(ranks).unwrap().typed;
        typed.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_definition_is_sound() {
        TrainArgs::command().debug_assert();
    }

    #[test]
    fn each_job_is_a_command_line() {
        let args = parse("-H a,b:2 -np 2,1,2 -x A=1 --json train.py --np 7 --json");
        assert_eq!(args.sizes(), [1, 2]);
        let expected = "rlaunch -H a,b:2 -x A=1 --np 2 train.py --np 7 --json";
        assert_eq!(command(&args, 2), expected);
        let job = args.job(2).unwrap();
        let HostArgs { hosts, ranks, .. } = job.hosts;
        assert_eq!((ranks, job.aside, hosts), (Some(2), true, vec!["a,b:2".to_owned()]));
        assert_eq!(job.command.argv, ["train.py", "--np", "7", "--json"]);
    }

    #[test]
    fn every_spelling_of_np_is_replaced() {
        for np in ["--np=1,2", "-n1,2", "-n 1,2", "--np 1,2"] {
            let args = parse(&format!("{np} --transport tcp -- -odd"));
            assert_eq!(command(&args, 1), "rlaunch --transport tcp --np 1 -- -odd", "{np}");
            assert!(!args.job(1).unwrap().aside);
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect();
        for line in ["x --np 1,2", "x -H a train.py", "x --np 0 train.py", "x --np 1,, train.py"] {
            assert!(TrainArgs::parse(words(line)).is_err(), "{line}");
        }
    }
}
