//! Watches of the running job that ask agents about their ranks again and again: for hangs, and for stragglers.

use super::{Supervisor, job_ending};
use crate::run::events::Event;
use crate::run::hang::{self, HangWatch, Hung, Question};
use crate::run::live::{Asker, InspectionAnswer, LiveStatus};
use crate::run::outcome::Reason;
use crate::run::stragglers::{StragglerWatch, Stragglers};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::Inspection;
use rlaunch_plan::job::JobSpec;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::BTreeMap;
use std::time::Instant;

/// Warning about a program whose ranks cannot be compared.
const NO_DATA: &str = "--straggler-report has nothing to compare yet: ranks neither print speeds, such as \
                       `812 images/s`, nor use rlaunch's communicator";
/// Number of ranges of ranks that are named on a host.
const RANGES: usize = 8;

/// Watches that the user wants.
#[derive(Debug)]
pub(super) struct Watches {
    hang: Option<HangWatch>,
    stragglers: Option<StragglerWatch>,
}

impl Watches {
    /// Makes the watches of a job whose ranks start at `now`.
    pub(super) fn new(job: &JobSpec, status: &LiveStatus, now: Instant) -> Watches {
        let hang = job.watches.hang.map(|options| HangWatch::new(options, status.clone(), now));
        let stragglers = job.watches.straggler_window;
        let stragglers = stragglers.map(|time| StragglerWatch::new(time, status.clone(), now));
        Watches { hang, stragglers }
    }

    /// Returns the time at which a watch has a question.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let hang = self.hang.as_ref().and_then(HangWatch::deadline);
        hang.into_iter().chain(self.stragglers.as_ref().and_then(StragglerWatch::deadline)).min()
    }
}

impl Supervisor<'_> {
    /// Lets the watches ask their next questions, if these are due.
    pub(super) fn watch(&mut self, now: Instant) {
        let question = self.watches.hang.as_mut().and_then(|watch| watch.on_time(now));
        if let Some(Question(what)) = question {
            self.ask(now, Asker::HangWatch, &what);
        }
        if self.watches.stragglers.as_mut().is_some_and(|watch| watch.is_due(now)) {
            self.ask(now, Asker::StragglerWatch, &Inspection::Usage);
        }
    }

    pub(super) fn on_hang_answer(&mut self, now: Instant, answer: InspectionAnswer) {
        let Some(watch) = &mut self.watches.hang else { return };
        match answer {
            InspectionAnswer::Node(_, result) => watch.on_answer(result),
            InspectionAnswer::Complete(_) | InspectionAnswer::Refused(_) => {
                if let Some(hung) = watch.on_complete(now).filter(|_| !self.is_ending()) {
                    self.on_hang(now, &hung);
                }
            }
        }
    }

    /// Reports a job that makes no progress, and ends it if the user wants that.
    fn on_hang(&mut self, now: Instant, hung: &Hung) {
        let (mut sentence, mut lines) = hang::describe(&hung.stacks, |rank| self.host_of(rank));
        let comparison = hang::compare(&hung.positions, |rank| self.host_of(rank));
        // Ranks that wait for a GPU are all at the same place; a library knows which one is behind.
        if let Some(difference) = comparison.differences.first().filter(|_| lines.len() == 1) {
            sentence.clone_from(difference);
        }
        lines.splice(..0, comparison.differences);
        lines.extend(comparison.agreements);
        lines.retain(|line| !sentence.contains(line));
        let seconds = hung.quiet_for.as_secs();
        let message = format!("no progress for {seconds} s: {sentence}");
        self.emit(Event::Hang { seconds, text: message.clone(), groups: lines.clone() });
        if hung.ends_job {
            let failed = Failed::new(Exit::TIMEOUT, message.clone());
            let failed = Failed { details: lines, may_restart: true, ..failed };
            self.end(now, Reason::Hang(failed), job_ending(message));
        } else {
            self.warn(std::iter::once(message).chain(lines).collect::<Vec<_>>().join("\n  "));
        }
    }

    pub(super) fn on_straggler_answer(&mut self, now: Instant, answer: InspectionAnswer) {
        let Some(watch) = &mut self.watches.stragglers else { return };
        match answer {
            InspectionAnswer::Node(_, result) => watch.on_answer(result),
            InspectionAnswer::Complete(_) | InspectionAnswer::Refused(_) => {
                let (found, lacks_data) = (watch.on_complete(now), watch.lacks_data());
                if let Some(found) = found.filter(|_| !self.is_ending()) {
                    self.on_stragglers(&found);
                }
                if lacks_data && !self.is_ending() {
                    self.warn(NO_DATA.to_owned());
                }
            }
        }
    }

    fn on_stragglers(&mut self, Stragglers { ranks, comparison }: &Stragglers) {
        let text = format!("slower than the others: {}: {comparison}", self.by_host(ranks));
        let ranks = ranks.iter().map(|rank| rank.0).collect();
        self.emit(Event::Stragglers { ranks, text: text.clone() });
        self.warn(text);
    }

    /// Names ranks by their hosts: `ranks 4-7 on b, rank 9 on c`.
    fn by_host(&self, ranks: &[Rank]) -> String {
        let mut hosts: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for &rank in ranks {
            hosts.entry(self.host_of(rank)).or_default().push(rank.0);
        }
        let name = |(host, ranks): (String, Vec<u32>)| match ranks[..] {
            [rank] => format!("rank {rank} on {host}"),
            _ => format!("ranks {} on {host}", text::ranges(ranks.into_iter(), RANGES)),
        };
        hosts.into_iter().map(name).collect::<Vec<_>>().join(", ")
    }
}
