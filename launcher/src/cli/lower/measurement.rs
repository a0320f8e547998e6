//! Jobs of verbs that measure, which are made as values: no words are written to be parsed again.

use super::{JobError, files, options, select_hosts};
use crate::cli::args::{MeasurementArgs, ProcessArgs};
use crate::cli::config::LoadedConfig;
use crate::cli::host_selection::HostOptions;
use rlaunch_bootstrap::job::WorkingDir;
use rlaunch_engine::run::job_run::{Launch, Stdio, new_identity};
use rlaunch_plan::env::forwarded::EnvOptions;
use rlaunch_plan::hosts::addresses::AddressConstraints;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::AppSpec;
use rlaunch_plan::map::MapBy;
use rlaunch_plan::options::Options;
use rlaunch_text::message::Failed;
use std::ffi::OsString;
use std::time::Duration;

/// Job of a verb: a program that measures, on the hosts that the user chose.
#[derive(Debug)]
pub(crate) struct MeasurementJob {
    pub(crate) args: MeasurementArgs,
    /// Program and its arguments.
    pub(crate) argv: Vec<OsString>,
    pub(crate) process: ProcessArgs,
    /// Number of ranks; `None` for one on each slot.
    pub(crate) ranks: Option<u32>,
    pub(crate) map_by: MapBy,
    pub(crate) timeout: Option<Duration>,
}

impl MeasurementJob {
    /// Makes a job with a rank on each slot of its hosts.
    pub(crate) fn new(args: MeasurementArgs, argv: Vec<OsString>) -> MeasurementJob {
        let process = ProcessArgs { env: Vec::new(), wdir: None, preload: Vec::new() };
        MeasurementJob { args, argv, process, ranks: None, map_by: MapBy::default(), timeout: None }
    }

    pub(crate) fn with_one_rank_on_each_host(self) -> MeasurementJob {
        MeasurementJob { map_by: MapBy::Ppr(1), ..self }
    }

    /// Reads what the job needs of this machine's files and environment.
    pub(crate) fn launch(self, config: &LoadedConfig) -> Result<Launch, Failed> {
        self.lower(config).map_err(|error| error.into_failed(config))
    }

    fn lower(self, config: &LoadedConfig) -> Result<Launch, JobError> {
        let MeasurementJob { args, argv, process, ranks, map_by, timeout } = self;
        let mut reach = options::connect_options(args.connect, config)?;
        let lists =
            HostOptions { lists: &args.hosts, files: &[], exclude: &[], table: &config.hosts };
        let (hosts, is_local) = select_hosts(&lists, ranks, &[], config, &mut reach)?;
        let here = std::env::current_dir().map_err(JobError::WorkingDir)?;
        let named = EnvOptions { named: process.env, ..EnvOptions::default() };
        let (env, user_set_vars) = options::variables(named, &args.network)?;
        let options = options::rank_options(args.placement, args.network, &env)?;
        let app = AppSpec {
            ranks,
            script: files::script_check(&argv, &here),
            env,
            user_set_vars,
            preload: (0..).zip(&process.preload).map(|(index, _)| index).collect(),
            ..AppSpec::new(
                argv,
                process.wdir.map_or(WorkingDir::SameAsLauncher(here), WorkingDir::Required),
            )
        };
        let mut job = JobSpec::new(new_identity()?, hosts, app);
        job.is_local = is_local;
        job.map_by = map_by;
        job.oversubscribe = args.oversubscribe;
        job.options = Options { map_by, ..options };
        job.preload = files::preloads(&process.preload)?;
        job.node_timeout = args.node_timeout.unwrap_or(job.node_timeout);
        job.timeout = timeout;
        job.oob = AddressConstraints {
            preferred: config.hosts.fabric_addresses(),
            ..AddressConstraints::default()
        };
        // The record says what the user typed, not the program that came of it.
        job.command_line = std::env::args_os().collect();
        job.is_recorded = true;
        Ok(Launch { job, reach, stdio: Stdio::Stdout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::lower;
    use clap::Parser;

    #[derive(Parser)]
    struct Verb {
        #[command(flatten)]
        args: MeasurementArgs,
    }

    #[test]
    fn options_mean_what_they_mean_for_a_job() {
        let typed = "-H a:2,b --oversubscribe --transport tcp --gpu-mask --node-timeout 9";
        let typed_job = format!("{typed} --stdin none -np 3 -x A=1 --timeout 7 ./program word");
        let expected = lower::parse(&typed_job).unwrap();
        let words = ["verb"].into_iter().chain(typed.split(' '));
        let args = Verb::try_parse_from(words).unwrap().args;
        let argv = ["./program", "word"].map(OsString::from).to_vec();
        let mut job = MeasurementJob { ranks: Some(3), ..MeasurementJob::new(args, argv) };
        job.process.env.push("A=1".into());
        job.timeout = Some(Duration::from_secs(7));
        let job = job.launch(&LoadedConfig::default()).unwrap().job;
        let seen = |job: &JobSpec| {
            let ranks = (&job.hosts, job.is_local, &job.apps, job.map_by, job.oversubscribe);
            let times = (job.kill_after, job.node_timeout, job.timeout);
            let network = (&job.options, &job.oob, job.port_range);
            format!("{:#?}", (ranks, times, network, job.mpi, job.singleton, job.is_recorded))
        };
        assert_eq!(seen(&job), seen(&expected));
    }
}
