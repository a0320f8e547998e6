//! Input of a report: a file, standard input, or a job's record.

use super::log_metrics::{KNOWN_FORMATS, LogMetrics};
use super::{FindingKind, ReportFinding};
use rlaunch_engine::run::record::{self, JobRecord, RecordStore, RecordStoreError, RecordedPhase};
use rlaunch_plan::job::name::{JobName, LAST};
use rlaunch_text::text;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Maximum size of an input, in bytes.
const MAX_BYTES: u64 = 256 << 20;
/// Number of the last lines of a job that are shown where there are no figures.
const LAST_LINES: usize = 10;

/// Metrics from the output of a run. `job` is set if the output is in a job's record.
#[derive(Debug)]
pub(crate) struct ReportInput {
    pub(crate) name: String,
    pub(crate) job: Option<JobFacts>,
    pub(crate) metrics: LogMetrics,
}

/// Facts about a job from its record.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JobFacts {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) program: Vec<String>,
    pub(crate) ranks: u32,
    /// Hosts by rank.
    #[serde(skip)]
    hosts: BTreeMap<u32, String>,
    pub(crate) nodes: usize,
    /// Minute in which the job began.
    #[serde(skip)]
    pub(crate) began: String,
    pub(crate) seconds: f64,
    pub(crate) exit_code: u8,
    /// Whether the job was ended by SIGTERM, as by `rlaunch stop`.
    #[serde(skip)]
    is_stopped: bool,
    /// Reason for the end of a job that has failed; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) details: Vec<String>,
    pub(crate) left_out_bytes: u64,
    /// Words of the command line.
    pub(crate) command: Vec<String>,
    /// Phases of the launcher.
    pub(crate) phases: Vec<RecordedPhase>,
    /// Last lines of a job whose output has no figures, each with its rank if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) last_lines: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("cannot read {name}")]
    Read { name: String, source: io::Error },
    #[error("{0} is larger than {limit} MiB", limit = MAX_BYTES >> 20)]
    TooLarge(String),
    #[error("no figures in {0}")]
    NoFigures(String),
    #[error(transparent)]
    Record(#[from] RecordStoreError),
}

impl InputError {
    /// Tells whether there is neither such a file nor such a record.
    pub(crate) fn is_absence(&self) -> bool {
        match self {
            InputError::Read { source, .. } => source.kind() == io::ErrorKind::NotFound,
            InputError::Record(error) => {
                matches!(error, RecordStoreError::Unknown { .. } | RecordStoreError::Empty(_))
            }
            InputError::TooLarge(_) | InputError::NoFigures(_) => false,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            InputError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                let words = "`last` is the last job; `rlaunch jobs -a` lists the names of others";
                Some(words.to_owned())
            }
            InputError::Read { .. } => None,
            InputError::TooLarge(name) => {
                Some(format!("its end may be enough: tail -c 64M {name} | rlaunch report -"))
            }
            InputError::NoFigures(_) => Some(KNOWN_FORMATS.to_owned()),
            InputError::Record(error) => error.hint(),
        }
    }
}

impl ReportInput {
    /// Returns the word of a source that may mean a job. A file takes precedence over a job.
    pub(crate) fn job_word(source: &OsStr) -> Option<Cow<'_, str>> {
        let text = source.to_string_lossy();
        let may_be = text == LAST || text.parse::<JobName>().is_ok();
        (may_be && !Path::new(source).exists()).then_some(text)
    }

    /// Reads an input. `source` is a file, `-`, or a word that means a job.
    pub(crate) fn read(source: &OsStr) -> Result<ReportInput, InputError> {
        let path = Path::new(source);
        let text = source.to_string_lossy();
        if source == "-" {
            return ReportInput::from_stream("standard input", io::stdin().lock());
        }
        if let Some(word) = ReportInput::job_word(source) {
            match RecordStore::for_user()?.find(&word) {
                // It may be a file that is missing.
                Err(RecordStoreError::Unknown { .. }) if !record::begins_id(&word) => {}
                found => return Ok(ReportInput::from_record(&found?)),
            }
        }
        let opened = File::open(path).map_err(|source| {
            let name = text.clone().into_owned();
            InputError::Read { name, source }
        })?;
        ReportInput::from_stream(&text, opened)
    }

    fn from_stream(name: &str, stream: impl Read) -> Result<ReportInput, InputError> {
        let mut bytes = Vec::new();
        let read = stream.take(MAX_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|source| InputError::Read { name: name.to_owned(), source })?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(InputError::TooLarge(name.to_owned()));
        }
        if bytes.first() == Some(&b'{')
            && let Ok(record) = serde_json::from_slice(&bytes)
        {
            return Ok(ReportInput::from_record(&record));
        }
        Ok(ReportInput::from_text(name, &String::from_utf8_lossy(&bytes)))
    }

    /// Finds metrics in lines that may have the tags of a launcher.
    pub(crate) fn from_text(name: &str, text: &str) -> ReportInput {
        let mut metrics = LogMetrics::default();
        text.lines().for_each(|line| metrics.add_tagged_line(line));
        ReportInput { name: name.to_owned(), job: None, metrics }
    }

    pub(crate) fn from_record(record: &JobRecord) -> ReportInput {
        let mut metrics = LogMetrics::default();
        let lines = record.output.lines();
        for (rank, line) in &lines {
            metrics.add_line(Some(*rank), line);
        }
        let mut job = JobFacts::from_record(record);
        if metrics.is_empty() {
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            let is_one = job.ranks == 1;
            let named = |(rank, line): &(u32, String)| {
                if is_one { line.clone() } else { format!("[{rank}] {line}") }
            };
            job.last_lines = last.iter().map(named).collect();
        }
        ReportInput { name: format!("job {}", record.job), job: Some(job), metrics }
    }
}

impl JobFacts {
    fn from_record(record: &JobRecord) -> JobFacts {
        let ranks = record
            .hosts
            .iter()
            .flat_map(|host| host.ranks.iter().map(|rank| (*rank, host.host.clone())));
        JobFacts {
            id: record.job.clone(),
            name: record.name.clone(),
            program: record.program.clone(),
            ranks: record.ranks(),
            hosts: ranks.collect(),
            nodes: record.hosts.len(),
            began: record.began(),
            seconds: record.seconds,
            exit_code: record.end.exit_code,
            is_stopped: record.end.is_stopped(),
            message: record.end.message.clone(),
            details: record.end.details.clone(),
            left_out_bytes: record.output.left_out_bytes,
            command: record.argv.clone(),
            phases: record.phases.clone(),
            last_lines: Vec::new(),
        }
    }

    pub(crate) fn host_of(&self, rank: u32) -> Option<&str> {
        self.hosts.get(&rank).map(String::as_str)
    }

    /// Returns the hosts with their ranks.
    pub(crate) fn ranks_by_host(&self) -> Vec<(&str, Vec<u32>)> {
        text::grouped(self.hosts.iter().map(|(rank, host)| (host.as_str(), *rank)))
    }

    pub(crate) fn findings(&self) -> Vec<ReportFinding> {
        let mut findings = Vec::new();
        if self.exit_code != 0 {
            let (code, message) = (self.exit_code, self.message.as_str());
            let text = match message {
                "" => format!("the job has failed with exit code {code}"),
                _ if self.is_stopped => {
                    format!("the job was {message}, as by `rlaunch stop`: exit code {code}")
                }
                _ => format!("the job has failed with exit code {code}: {message}"),
            };
            let details = self.details.clone();
            findings
                .push(ReportFinding { details, ..ReportFinding::new(FindingKind::Failed, text) });
        }
        if self.left_out_bytes > 0 {
            let text = format!("{} bytes of its output were not kept", self.left_out_bytes);
            let hint = "rlaunch … --tag-output > FILE keeps all of it for rlaunch report FILE";
            findings.push(ReportFinding::new(FindingKind::LeftOut, text).hint(hint));
        }
        findings
    }
}
