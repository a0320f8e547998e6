//! Room for records: the oldest of what jobs have left gives way.

use super::begun::{BEGUN, begun_suffix};
use super::{PARTIAL, RecordStore, RecordedJob, output_of, read};
use crate::run::output::store;
use crate::run::record::JobRecord;
use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Ends of the names of files that a job leaves.
const ENDINGS: [&str; 3] = [".json", store::ENDING, store::OLD_ENDING];
/// Age at which the file of a job that has begun on another machine is removed, if all records are newer. Few jobs run so long.
const MAX_BEGUN_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Age at which a file that was being written is removed. It gets its name at once.
const MAX_PARTIAL_AGE: Duration = Duration::from_secs(24 * 60 * 60);

impl RecordStore {
    /// Removes what a job has left, and returns the size of that. Output stays until the last attempt at the job gives way.
    pub(super) fn remove(&self, job: &RecordedJob) -> u64 {
        let path = self.path(job);
        let record = read(&path).ok();
        let output = record.as_ref().and_then(output_of).map(str::to_owned);
        let next = record.and_then(|record| record.next);
        let freed = removed(&path);
        if next.is_some_and(|next| self.has(&next)) {
            return freed;
        }
        freed + self.remove_output(&output.unwrap_or_else(|| format!("{job}{}", store::ENDING)))
    }

    /// Removes the output of a job, and returns its size. Keeps what a launcher still writes.
    fn remove_output(&self, name: &str) -> u64 {
        let newer = self.directory.join(name);
        if File::open(&newer).is_ok_and(|file| file.try_lock_shared().is_err() || self.fills(name))
        {
            return 0;
        }
        let old = name.strip_suffix(store::ENDING).unwrap_or(name);
        removed(&newer) + removed(&self.directory.join(format!("{old}{}", store::OLD_ENDING)))
    }

    /// Tells whether a job that has begun names this file of output. Locks of other machines may not be seen here.
    fn fills(&self, output: &str) -> bool {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut begun = entries.filter(|entry| entry.path().to_string_lossy().ends_with(BEGUN));
        begun.any(|entry| read(&entry.path()).is_ok_and(|job| output_of(&job) == Some(output)))
    }

    /// Tells whether a job has a record, or has begun.
    fn has(&self, id: &str) -> bool {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.any(|name| name.starts_with(id) && [".json", BEGUN].iter().any(|e| name.ends_with(e)))
    }

    /// Tells whether one of `jobs` is a later attempt at a job, whose output is in the file of the first.
    fn has_later_attempt(&self, first: &RecordedJob, jobs: &[RecordedJob]) -> bool {
        let output = format!("{first}{}", store::ENDING);
        let is_later = |job: &&RecordedJob| job.name == first.name && job.id > first.id;
        let mut later: Vec<&RecordedJob> = jobs.iter().filter(is_later).collect();
        // The next attempt is among the first of that name: ids begin with the time.
        later.sort_unstable();
        let names = |record: JobRecord| output_of(&record) == Some(output.as_str());
        later.into_iter().any(|job| read(&self.path(job)).is_ok_and(names))
    }

    /// Removes what the oldest of `jobs` have left, until all files together have [`RecordStore::most_bytes`], and output
    /// without a record. Keeps what the job `kept` has left.
    pub(super) fn bound_size(&self, jobs: &[RecordedJob], kept: &str) {
        let (mut total, mut found) = (0_u64, HashSet::new());
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let of_job = |ending: &&str| name.to_str().and_then(|name| name.strip_suffix(*ending));
            let job = ENDINGS.iter().find_map(of_job).and_then(RecordedJob::parse);
            if let Some((job, metadata)) = job.zip(entry.metadata().ok()) {
                total += metadata.len();
                found.insert(job);
            }
        }
        let begun = self.begun();
        // Another rlaunch may have written a record since `jobs` were listed.
        for job in found.iter().filter(|job| !begun.contains(job) && !self.path(job).exists()) {
            if !self.has_later_attempt(job, jobs) {
                // A job that has just begun holds a lock.
                let freed = self.remove_output(&format!("{job}{}", store::ENDING));
                total = total.saturating_sub(freed);
            }
        }
        for job in jobs.iter().filter(|job| job.id != kept) {
            if total <= self.most_bytes {
                return;
            }
            total = total.saturating_sub(self.remove(job));
        }
    }

    /// Removes what launchers that were killed have left: files that they were writing, and those of jobs of other machines
    /// that began before the job `oldest` and long ago. Such a job may still run; on this machine only jobs that run have
    /// such files.
    pub(super) fn forget_leftovers(&self, oldest: &str, now: SystemTime) {
        let here = begun_suffix();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let is_begun = name.ends_with(BEGUN) && !name.ends_with(&here) && name < oldest;
            let is_partial = name.starts_with(PARTIAL) || name.ends_with(store::NEW_ENDING);
            let most = if is_begun {
                MAX_BEGUN_AGE
            } else if is_partial {
                MAX_PARTIAL_AGE
            } else {
                continue;
            };
            let written = entry.metadata().and_then(|found| found.modified());
            let age = written.ok().and_then(|at| now.duration_since(at).ok());
            if age.is_some_and(|age| age > most) {
                removed(&entry.path());
            }
        }
    }
}

/// Removes a file, and returns its size. Errors are ignored: another rlaunch may have removed it, and any other error recurs
/// with the next record.
fn removed(path: &Path) -> u64 {
    let size = fs::metadata(path).map_or(0, |found| found.len());
    fs::remove_file(path).map_or(0, |()| size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::output::store::OutputStore;
    use crate::run::record::RecordStoreError;
    use crate::run::record::tests::record;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_newest_are_kept_for_their_user_alone() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore { most: 9, ..RecordStore::below(state.path()) };
        assert!(matches!(store.last(), Err(RecordStoreError::Empty(_))));
        fs::create_dir_all(&store.directory).unwrap();
        fs::set_permissions(&store.directory, fs::Permissions::from_mode(0o700)).unwrap();
        let begun = |number: u32, machine: &str| {
            store.directory.join(format!("{}@{machine}{BEGUN}", record(number).job))
        };
        let left = |name: &str| store.directory.join(name);
        let files = [
            (begun(1, "another"), 31),
            (begun(1, "busy"), 29),
            (begun(7, "another"), 31),
            (left(".tmpOld"), 2),
            (left(".tmpNew"), 0),
            (left("x.output.new"), 2),
        ];
        for (path, days) in &files {
            let at = SystemTime::now() - Duration::from_secs(days * 86_400);
            File::create(path).unwrap().set_modified(at).unwrap();
        }
        let count = 9 + 3;
        let running = store.begin(&record(0)).unwrap();
        (0..count).for_each(|number| store.save(&record(number)).unwrap());
        assert_eq!(store.last().unwrap().job, record(count - 1).job);
        let jobs: Vec<String> = store.newest(99).into_iter().map(|record| record.job).collect();
        assert!(running.path.exists());
        let expected: Vec<String> = (3..count).map(|number| record(number).job).collect();
        assert_eq!(jobs, expected);
        let is_kept = files.map(|(path, _)| path.exists());
        assert_eq!(is_kept, [false, true, true, false, true, false]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&store.directory), 0o700);
        assert_eq!(mode(&store.path(&record(9).recorded_job())), 0o600);
        let newest = store.newest(1);
        assert_eq!(newest[0].job, record(count - 1).job);
    }

    #[test]
    fn the_oldest_gives_way_to_what_is_too_large() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore { most_bytes: 20_000, ..RecordStore::below(state.path()) };
        (1..4).for_each(|number| store.save(&record(number)).unwrap());
        let output = |number: u32, ending: &str| {
            store.directory.join(format!("{}{ending}", record(number).recorded_job()))
        };
        for (number, ending) in
            [(1, store::ENDING), (1, store::OLD_ENDING), (2, store::ENDING), (9, store::ENDING)]
        {
            fs::write(output(number, ending), vec![0; 9000]).unwrap();
        }
        let running = OutputStore::create(&store.directory, &record(8).recorded_job().to_string());
        store.save(&JobRecord { output_file: Some("output".into()), ..record(4) }).unwrap();
        let jobs: Vec<String> = store.jobs().into_iter().map(|job| job.name).collect();
        assert_eq!(jobs, ["name-2", "name-3", "name-4"]);
        // Its launcher was killed before the job had a record.
        assert!(!output(1, store::OLD_ENDING).exists() && !output(9, store::ENDING).exists());
        assert!(output(2, store::ENDING).exists() && output(8, store::ENDING).exists());
        drop(running);
    }

    #[test]
    fn output_outlives_the_record_of_the_first_attempt() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore { most: 2, most_bytes: 0, ..RecordStore::below(state.path()) };
        let attempt = |number: u32, next: Option<u32>| JobRecord {
            name: "amber-fox".into(),
            output_file: Some(format!("{}.amber-fox{}", record(1).job, store::ENDING)),
            next: next.map(|next| record(next).job),
            ..record(number)
        };
        let first = attempt(1, Some(2));
        let output = OutputStore::create(&store.directory, &first.recorded_job().to_string());
        let output = output.unwrap();
        let path = store.directory.join(output.file_name());
        let old = store.directory.join(format!("{}{}", first.recorded_job(), store::OLD_ENDING));
        fs::write(&old, "").unwrap();
        let of_another = || JobRecord { output_file: Some("output".into()), ..record(9) };
        store.save(&first).unwrap();
        // Nothing but the lock keeps the output.
        store.save(&of_another()).unwrap();
        assert!(!store.path(&first.recorded_job()).exists() && path.exists() && old.exists());
        // The launcher is on another machine, whose lock is not seen here.
        output.unlock();
        let begun = store.begin(&attempt(2, None)).unwrap();
        store.save(&of_another()).unwrap();
        assert!(path.exists() && old.exists());
        // The job is over, and the record of its last attempt keeps the output as long as itself.
        store.save(&attempt(2, None)).unwrap();
        drop(begun);
        let large = RecordStore { most: 2, ..RecordStore::below(state.path()) };
        large.save(&of_another()).unwrap();
        assert!(path.exists() && large.open_output(&record(2).job).unwrap().is_some());
        (10..12).for_each(|number| store.save(&record(number)).unwrap());
        assert!(!path.exists() && !old.exists());
    }

    #[test]
    fn output_stays_while_the_next_attempt_has_a_record() {
        let state = tempfile::tempdir().unwrap();
        let store = RecordStore { most: 1, ..RecordStore::below(state.path()) };
        fs::create_dir_all(&store.directory).unwrap();
        let first = record(1);
        let output_file = Some(format!("{}{}", first.recorded_job(), store::ENDING));
        let path = store.directory.join(output_file.as_deref().unwrap());
        fs::write(&path, "output").unwrap();
        let next = Some(record(2).job);
        store.save(&JobRecord { output_file: output_file.clone(), next, ..first }).unwrap();
        store.save(&JobRecord { output_file, name: "name-1".into(), ..record(2) }).unwrap();
        assert!(path.exists() && store.jobs().len() == 1);
        store.save(&record(3)).unwrap();
        assert!(!path.exists());
    }
}
