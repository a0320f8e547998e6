//! `rlaunch rerun`: runs the command line of a recorded job again.

use super::found::{self, FoundJob};
use super::jobs::short_id;
use crate::cli::args::values;
use crate::cli::config;
use clap::Parser;
use rlaunch_console::{limits, messages};
use rlaunch_engine::run::record::{JobRecord, RecordedLaunch};
use rlaunch_plan::job::stdin::{Readers, Stdin};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::quoted;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// Options whose values are files with hosts or settings.
const FILES: [&str; 4] = ["--hostfile", "-hostfile", "--machinefile", "--cluster"];

/// Run a job again: the same words, in the same directory, with today's environment.
///
/// What differs from then is said first. Records keep no secrets, so a command line that had one is to be typed again.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch rerun              the last job that has ended
  rlaunch rerun amber-fox    another
  rlaunch jobs -a            lists them")]
pub(crate) struct RerunArgs {
    /// Name or id of the job, or the beginning of either; `last` is the newest
    #[arg(value_name = "JOB", allow_negative_numbers = true, value_parser = values::parse_listed_job)]
    pub(crate) job: Option<String>,
}

/// Becomes an rlaunch with the words of the job. Returns the reason if that is not possible.
pub(super) async fn run(args: &RerunArgs) -> Result<Exit, Failed> {
    let found = match args.job.as_deref() {
        Some(word) => FoundJob::find(Some(word)).await?,
        None => FoundJob::Ended(Box::new(found::record(None)?)),
    };
    let record = match found {
        FoundJob::Ended(record) => *record,
        FoundJob::Running(job) => {
            let id = &job.name;
            let message = format!("job {id} is still running");
            let hint =
                format!("`rlaunch stop {id}` ends it, `rlaunch wait {id}` waits for its end");
            return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
        }
    };
    let again = Again::new(&record)?;
    let reads = Stdin::from_option(None).is_ok_and(|stdin| stdin.readers != Readers::None);
    again.differences(reads).iter().for_each(|difference| messages::info(difference));
    messages::info(&again.line);
    let program = std::env::current_exe()
        .map_err(|error| again.failed(&format!("the path of rlaunch is not known: {error}")))?;
    let mut command = Command::new(program);
    command.args(again.words).current_dir(again.directory).env("PWD", again.directory);
    limits::restore_open_files(&mut command);
    // Outside of the runtime. A panic there has printed its message.
    let _ = tokio::task::spawn_blocking(messages::flush).await;
    let error = command.exec();
    Err(again.failed(&error.to_string()))
}

/// Command line that is run again.
struct Again<'a> {
    record: &'a JobRecord,
    launch: &'a RecordedLaunch,
    directory: &'a Path,
    /// Words behind rlaunch's name.
    words: &'a [String],
    /// Line to type in a shell.
    line: String,
}

impl<'a> Again<'a> {
    /// Returns an error if the record has not all words as they were typed, or if the directory is gone.
    fn new(record: &'a JobRecord) -> Result<Again<'a>, Failed> {
        let words = record.argv.get(1..).unwrap_or_default();
        let typed: Vec<String> = words.iter().map(|word| quoted(OsStr::new(word))).collect();
        let line = format!("rlaunch {}", typed.join(" "));
        let launch = record.launch.as_ref();
        let Some((launch, directory)) = launch.and_then(|l| Some((l, l.directory.as_deref()?)))
        else {
            let why = "its record does not say in which directory it was started";
            return Err(failed(record, why).hint(Some(format!("type it where it belongs: {line}"))));
        };
        let there = format!("cd {} && {line}", quoted(OsStr::new(directory)));
        let altered: Vec<&str> = launch
            .altered
            .iter()
            .filter_map(|index| Some(record.argv.get(*index)?.as_str()))
            .collect();
        if !altered.is_empty() {
            let why = format!("its record keeps no secrets, here {}", altered.join(", "));
            return Err(failed(record, &why).hint(Some(format!("with the secret: {there}"))));
        }
        let directory = Path::new(directory);
        if !directory.is_dir() {
            let why = format!("its directory {} is gone", directory.display());
            return Err(failed(record, &why).hint(Some(format!("in another directory: {line}"))));
        }
        Ok(Again { record, launch, directory, words, line: there })
    }

    fn failed(&self, why: &str) -> Failed {
        failed(self.record, why)
    }

    /// Says what is not as it was when the job ran. `reads` tells whether a job that is started now reads this standard input
    /// by itself.
    fn differences(&self, reads: bool) -> Vec<String> {
        let version = env!("CARGO_PKG_VERSION");
        let then = self.launch.rlaunch.as_str();
        let version =
            (then != version).then(|| format!("it ran with rlaunch {then}; this is {version}"));
        let changed =
            self.files().into_iter().filter(|file| has_changed(file, self.record.started));
        let changed = changed.map(|file| format!("{} has changed since", file.display()));
        let names_stdin = |word: &String| word == "--stdin" || word.starts_with("--stdin=");
        let reads_nothing = self.launch.stdin && !reads && !self.words.iter().any(names_stdin);
        let stdin = reads_nothing.then(|| {
            let again = format!("rlaunch rerun {} <FILE", short_id(&self.record.job));
            format!("it read what came by stdin, and now reads nothing: `{again}` gives it a file")
        });
        version.into_iter().chain(stdin).chain(changed).collect()
    }

    /// Lists the files with hosts and settings that the job may have read.
    fn files(&self) -> Vec<PathBuf> {
        let named = self.words.windows(2).filter(|pair| FILES.contains(&pair[0].as_str()));
        let named = named.map(|pair| pair[1].as_str());
        let joined = self.words.iter().filter_map(|word| word.split_once('='));
        let joined = joined.filter(|(option, _)| FILES.contains(option)).map(|(_, file)| file);
        let named = named.chain(joined).map(|file| self.directory.join(file));
        config::usual_files(self.directory).into_iter().chain(named).collect()
    }
}

/// Tells whether a file was written after a time, in seconds since 1970.
fn has_changed(file: &Path, since: f64) -> bool {
    let Ok(since) = Duration::try_from_secs_f64(since) else { return false };
    let written = file.metadata().and_then(|meta| meta.modified());
    let since = UNIX_EPOCH.checked_add(since);
    written.is_ok_and(|written| since.is_some_and(|since| written > since))
}

fn failed(record: &JobRecord, why: &str) -> Failed {
    let message = format!("cannot run job {} again: {why}", short_id(&record.job));
    Failed::new(Exit::FILES, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn record(argv: &[&str], directory: &str, altered: &[usize]) -> JobRecord {
        let launch = RecordedLaunch {
            directory: Some(directory.to_owned()),
            rlaunch: "0.0.1".to_owned(),
            altered: altered.to_vec(),
            stdin: true,
        };
        let argv: Vec<&str> = ["rlaunch"].iter().chain(argv).copied().collect();
        serde_json::from_value(serde_json::json!({
            "v": 1, "job": "0199f3a2c4d1e000000000000000000f", "started": 1000.0, "seconds": 1.0,
            "argv": argv, "program": [], "hosts": [], "placement": [], "environment": [],
            "output": { "first": [], "left_out_bytes": 0, "last": [] },
            "end": { "exit_code": 0, "spoke": "rank", "message": "" },
            "launch": launch,
        }))
        .unwrap()
    }

    #[test]
    fn what_differs_is_said() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().to_str().unwrap();
        fs::write(here.path().join("hosts"), "a\n").unwrap();
        let record = record(&["--hostfile", "hosts", "a b"], path, &[]);
        let again = Again::new(&record).unwrap();
        assert_eq!(again.line, format!("cd {path} && rlaunch --hostfile hosts 'a b'"));
        let differences = again.differences(true);
        let says_stdin = |reads: bool| {
            let differences = again.differences(reads);
            differences.iter().any(|line| line.starts_with("it read what came by stdin"))
        };
        assert!(says_stdin(false) && !says_stdin(true));
        assert!(differences[0].starts_with("it ran with rlaunch 0.0.1; this is "));
        let changed = format!("{path}/hosts has changed since");
        assert!(differences.contains(&changed), "{differences:?}");
    }

    #[test]
    fn a_line_with_a_secret_is_to_be_typed() {
        let record = record(&["-x", "HF_TOKEN=(set, 3 chars)", "x"], "/", &[2]);
        let failed = Again::new(&record).err().unwrap();
        let expected = "cannot run job 0199f3a2c4d1e again: its record keeps no secrets, here HF_TOKEN=(set, 3 chars)";
        assert_eq!(failed.message, expected);
        assert_eq!(
            failed.hints,
            ["with the secret: cd / && rlaunch -x 'HF_TOKEN=(set, 3 chars)' x"]
        );
    }

    #[test]
    fn a_directory_that_is_gone_is_named() {
        let record = record(&["x"], "/no-such", &[]);
        let failed = Again::new(&record).err().unwrap();
        assert!(failed.message.ends_with(": its directory /no-such is gone"), "{failed:?}");
        assert_eq!(failed.hints, ["in another directory: rlaunch x"]);
    }
}
