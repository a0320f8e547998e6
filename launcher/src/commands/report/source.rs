//! Where figures come from: a file, standard input, or a job's record.

use super::{Kind, Remark};
use crate::commands::report::log_metrics::{Figures, KNOWN};
use crate::run::record::JobRecord;
use crate::run::record::store::{self, RecordStore, RecordStoreError};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The largest that is read, in bytes.
const LARGEST: u64 = 256 << 20;

/// Output that was read.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) job: Option<JobFacts>,
    pub(super) figures: Figures,
}

/// What is known of a job beside what it printed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JobFacts {
    pub(crate) id: String,
    pub(crate) program: Vec<String>,
    pub(crate) ranks: u32,
    /// By rank.
    #[serde(skip)]
    hosts: BTreeMap<u32, String>,
    pub(crate) nodes: usize,
    pub(crate) seconds: f64,
    pub(crate) exit_code: u8,
    pub(crate) left_out_bytes: u64,
}

/// Why there is nothing to report.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error("cannot read {name}")]
    Read { name: String, source: io::Error },
    #[error("{0} is larger than {limit} MiB", limit = LARGEST >> 20)]
    TooLarge(String),
    #[error("no figures in {0}")]
    NoFigures(String),
    #[error(transparent)]
    Record(#[from] RecordStoreError),
}

impl SourceError {
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            SourceError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                let words = "last is the last job; other jobs are known by their ids, or by how \
                             these begin (6 digits or more)";
                Some(words.to_owned())
            }
            SourceError::Read { .. } => None,
            SourceError::TooLarge(name) => {
                Some(format!("its end may do: tail -c 64M {name} | rlaunch report -"))
            }
            SourceError::NoFigures(_) => Some(KNOWN.to_owned()),
            SourceError::Record(error) => error.hint(),
        }
    }
}

impl Source {
    /// Reads what was named on the command line. A file is preferred to a job of that name.
    pub(super) fn read(given: &OsStr) -> Result<Source, SourceError> {
        let path = Path::new(given);
        let text = given.to_string_lossy();
        let is_file = path.exists();
        if given == "-" {
            return Source::of_stream("standard input", io::stdin().lock());
        }
        if text == "last" && !is_file {
            return Ok(Source::of_record(&RecordStore::for_user()?.last()?));
        }
        if store::begins_id(&text) && !is_file {
            return Ok(Source::of_record(&RecordStore::for_user()?.find(&text)?));
        }
        let opened = File::open(path).map_err(|source| {
            let name = text.clone().into_owned();
            SourceError::Read { name, source }
        })?;
        Source::of_stream(&text, opened)
    }

    fn of_stream(name: &str, stream: impl Read) -> Result<Source, SourceError> {
        let mut bytes = Vec::new();
        let read = stream.take(LARGEST + 1).read_to_end(&mut bytes);
        read.map_err(|source| SourceError::Read { name: name.to_owned(), source })?;
        if bytes.len() as u64 > LARGEST {
            return Err(SourceError::TooLarge(name.to_owned()));
        }
        if bytes.first() == Some(&b'{')
            && let Ok(record) = serde_json::from_slice(&bytes)
        {
            return Ok(Source::of_record(&record));
        }
        Ok(Source::of_text(name, &String::from_utf8_lossy(&bytes)))
    }

    /// Lines that say by whom they are, or do not.
    pub(super) fn of_text(name: &str, text: &str) -> Source {
        let mut figures = Figures::default();
        text.lines().for_each(|line| figures.take_tagged(line));
        Source { name: name.to_owned(), job: None, figures }
    }

    pub(super) fn of_record(record: &JobRecord) -> Source {
        let mut figures = Figures::default();
        for (rank, line) in record.output.lines() {
            figures.take(Some(rank), &line);
        }
        let name = format!("job {}", record.job);
        Source { name, job: Some(JobFacts::of(record)), figures }
    }
}

impl JobFacts {
    fn of(record: &JobRecord) -> JobFacts {
        let ranks = record
            .hosts
            .iter()
            .flat_map(|host| host.ranks.iter().map(|rank| (*rank, host.host.clone())));
        JobFacts {
            id: record.job.clone(),
            program: record.program.clone(),
            ranks: record.ranks(),
            hosts: ranks.collect(),
            nodes: record.hosts.len(),
            seconds: record.seconds,
            exit_code: record.end.exit_code,
            left_out_bytes: record.output.left_out_bytes,
        }
    }

    pub(super) fn host_of(&self, rank: u32) -> Option<&str> {
        self.hosts.get(&rank).map(String::as_str)
    }

    pub(super) fn remarks(&self) -> Vec<Remark> {
        let mut remarks = Vec::new();
        if self.exit_code != 0 {
            let text = format!("the job has failed with exit code {}", self.exit_code);
            remarks.push(Remark::new(Kind::Failed, text));
        }
        if self.left_out_bytes > 0 {
            let text = format!("{} bytes of its output were not kept", self.left_out_bytes);
            let hint = "rlaunch … --tag-output > FILE, then rlaunch report FILE, sees all";
            remarks.push(Remark::new(Kind::LeftOut, text).hint(hint));
        }
        remarks
    }
}
