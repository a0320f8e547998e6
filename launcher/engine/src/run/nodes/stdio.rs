//! Opening of this process's stdin, stdout and stderr and of the files of `--output-dir`, after ranks are
//! mapped.

use super::Nodes;
use crate::connect::outbox::Outbox;
use crate::run::job_run::JobRun;
use crate::run::output;
use crate::run::record::Transcript;
use crate::run::stdin::StdinFeed;
use rlaunch_plan::env::nccl::Log;
use rlaunch_plan::map::RankMap;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

/// Launcher's ends of two channels from the sessions: ranks' output, and reports of nodes' buffer space for
/// standard input. Both are used only after this process's own streams are opened.
pub(crate) struct PendingStdio {
    pub(super) output: output::OutputReceiver,
    pub(super) stdin: StdinFeed,
}

impl Nodes {
    /// Creates the files of `--output-dir`, begins to read standard input if any rank reads it, and starts
    /// the thread that writes the ranks' output.
    pub(crate) fn open_stdio(
        &self,
        job: &JobRun,
        map: &RankMap,
        streams: PendingStdio,
    ) -> Result<output::OutputWriter, Failed> {
        let files = output::rank_files(&job.output, map.world_size)?;
        let commands: Vec<Outbox> = self.reached.iter().map(|node| node.commands.clone()).collect();
        streams.stdin.open(&job.stdin, map, &commands).map_err(|error| {
            Failed::new(Exit::FILES, format!("cannot read standard input: {error}"))
        })?;
        let nccl = job.options.nccl_verify.then(|| Log::new(job.sets_variable("NCCL_DEBUG")));
        let config = output::OutputConfig {
            tags: job.output.tag.clone().map(|pattern| output::Tags::new(pattern, map)),
            fold: job.output.fold,
            files,
            merged: job.output.merge_stderr,
            credit: commands,
            ranks: map.world_size,
            nccl,
            transcript: job.recorder.is_some().then(Transcript::default),
            stdio: job.stdio.clone(),
            status: job.events.status().clone(),
        };
        Ok(output::start(config, streams.output))
    }
}
