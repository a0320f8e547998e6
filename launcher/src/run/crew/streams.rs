//! This process's own streams, and ranks' files: opened once it is known where ranks run.

use super::Crew;
use crate::connect::outbox::Outbox;
use crate::plan::map::RankMap;
use crate::plan::nccl::Log;
use crate::run::job_run::JobRun;
use crate::run::output;
use crate::run::record::Kept;
use crate::run::stdin::Feed;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;

/// What sessions have in hand of them before.
pub(crate) struct Streams {
    pub(super) output: output::Unread,
    pub(super) stdin: Feed,
}

impl Crew {
    /// Makes ranks' files, begins to read standard input for those who want it, and starts writing
    /// what ranks print.
    pub(crate) fn open(
        &self,
        job: &JobRun,
        map: &RankMap,
        streams: Streams,
    ) -> Result<output::Writer, Failed> {
        let files = output::files(&job.output, map.world_size)?;
        let commands: Vec<Outbox> = self.nodes.iter().map(|node| node.commands.clone()).collect();
        streams.stdin.open(&job.stdin, map, &commands).map_err(|error| {
            Failed::new(Exit::FILES, format!("cannot read standard input: {error}"))
        })?;
        let nccl = job.options.nccl_verify.then(|| Log::new(job.asks_for("NCCL_DEBUG")));
        let setup = output::Setup {
            tags: job.output.tag.clone().map(|pattern| output::Tags::new(pattern, map)),
            files,
            merged: job.output.merge_stderr,
            credit: commands,
            ranks: map.world_size,
            nccl,
            kept: job.recorder.is_some().then(Kept::default),
            aside: job.aside,
        };
        Ok(output::start(setup, streams.output))
    }
}
