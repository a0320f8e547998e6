//! Files, commands and the network of this host, and the file of its journal.

use super::shell;
use crate::network::cabling::record::Record as NetworkRecord;
use crate::network::cabling::trial;
use nix::unistd::{Gid, Uid, chown};
use rlaunch_bootstrap::protocol::changes::Change;
use rlaunch_bootstrap::protocol::changes::journal::{ChangedHost, Journal, Record, Was, taken_out};
use rlaunch_bootstrap::protocol::network::{ChangeFailure, NetworkChange};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Directory of the journal.
const DIRECTORY: &str = "/var/lib/rlaunch";

/// Permissions of a file that an edit makes.
const NEW_MODE: u32 = 0o644;
/// Maximum size of what a line saves, in bytes. Linux starts no program with a variable of 128 KiB, and so what undoes the
/// change could not run.
const MAX_SAVED: usize = 64 << 10;

/// This host, with its journal.
pub(super) struct LiveHost {
    directory: PathBuf,
    /// Open journal; `None` until something is written.
    journal: Option<File>,
}

/// Network before a change. Journals keep it by position: later versions add no fields.
#[derive(Serialize, Deserialize)]
struct NetworkWas {
    /// Id of the boot in which that was so.
    boot: String,
    record: NetworkRecord,
}

impl LiveHost {
    /// Reads the journal of this host.
    pub(super) fn open() -> io::Result<(LiveHost, Journal)> {
        LiveHost::open_at(Path::new(DIRECTORY))
    }

    pub(super) fn open_at(directory: &Path) -> io::Result<(LiveHost, Journal)> {
        let mut host = LiveHost { directory: directory.to_owned(), journal: None };
        let path = host.path();
        let told = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
        };
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(told)?,
        };
        let (journal, whole) = Journal::parse(&bytes);
        if whole < bytes.len() {
            let file = OpenOptions::new().append(true).open(&path).map_err(told)?;
            file.set_len(whole as u64).and_then(|()| file.sync_all()).map_err(told)?;
            host.journal = Some(file);
        }
        Ok((host, journal))
    }

    fn path(&self) -> PathBuf {
        self.directory.join("journal")
    }

    fn file(&mut self) -> io::Result<&mut File> {
        if self.journal.is_none() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            let path = self.path();
            let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
            sync_directory(&self.directory)?;
            self.journal = Some(file);
        }
        self.journal.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl ChangedHost for LiveHost {
    fn look(&mut self, change: &Change) -> Result<Option<Was>, String> {
        match change {
            Change::File { path, content, expected, .. } => {
                look_at_file(path, content.as_deref(), expected.as_deref())
            }
            Change::Edit { path, line } => {
                let present = read(Path::new(path))?.unwrap_or_default();
                look_at_file(path, Some(&edited(line, &present)?), Some(&present))
            }
            Change::Run { save, .. } => {
                Ok(Some(saved_by(save.as_deref())?.map_or(Was::Nothing, Was::Saved)))
            }
            Change::RunUntilBoot { save, .. } => {
                let saved = saved_by(save.as_deref())?.unwrap_or_default();
                Ok(Some(Was::SavedInBoot { boot: boot_id(), saved }))
            }
            Change::Network(change) => {
                if !has_interface(change) {
                    return Err(format!("there is no interface {}", change.interface()));
                }
                if trial::is_in_effect(change) {
                    return Ok(None);
                }
                let record = trial::note(change).map_err(|failure| told(&failure))?;
                write_network(record).map(Some)
            }
        }
    }

    fn make(&mut self, change: &Change, was: &Was) -> Result<Option<Was>, String> {
        match change {
            Change::File { path, mode, content: Some(content), .. } => {
                write_over(path, content, *mode, was).map(|()| None)
            }
            Change::File { path, content: None, .. } => remove_file(path).map(|()| None),
            Change::Edit { path, line } => {
                let content = edited(line, content_of(was))?;
                write_over(path, &content, NEW_MODE, was).map(|()| None)
            }
            Change::Run { line, .. } | Change::RunUntilBoot { line, .. } => {
                shell::run(line, saved_in(was), shell::TIMEOUT).map(|()| None)
            }
            Change::Network(change) => {
                let mut record = read_network(was)?.record;
                trial::make(change, &mut record).map_err(|failure| told(&failure))?;
                write_network(record).map(Some)
            }
        }
    }

    fn restore(&mut self, change: &Change, was: &Was) -> Result<(), String> {
        match (change, was) {
            (Change::File { path, content, .. }, _) => restore_file(path, content.as_deref(), was),
            (Change::Edit { path, line }, _) => {
                restore_file(path, Some(&edited(line, content_of(was))?), was)
            }
            // The boot has taken it away, and whatever is there now is of others.
            (Change::RunUntilBoot { .. }, Was::SavedInBoot { boot, .. }) if *boot != boot_id() => {
                Ok(())
            }
            (Change::Run { undo, .. } | Change::RunUntilBoot { undo, .. }, _) => match undo {
                Some(undo) => shell::run(undo, saved_in(was), shell::TIMEOUT),
                None => Ok(()),
            },
            // What an interface had is gone with it.
            (Change::Network(change), _) if !has_interface(change) => Ok(()),
            (Change::Network(change), _) => {
                let NetworkWas { boot, mut record } = read_network(was)?;
                if boot != boot_id() {
                    if !trial::is_in_effect(change) {
                        return Ok(());
                    }
                    record.forget_boot();
                }
                let failed = record.restore().failed;
                let failed: Vec<String> = failed.iter().map(told).collect();
                if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
            }
        }
    }

    fn append(&mut self, record: &Record) -> Result<(), String> {
        let append = |host: &mut LiveHost| {
            let file = host.file()?;
            let length = file.metadata()?.len();
            let line = record.to_line();
            let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_all());
            if written.is_err() {
                // A part would be in the way of the next line.
                let _ = file.set_len(length);
            }
            written
        };
        append(self).map_err(|error| format!("{}: {error}", self.path().display()))
    }

    fn clear(&mut self) -> Result<(), String> {
        self.journal = None;
        match fs::remove_file(self.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{}: {error}", self.path().display()));
            }
            _ => {}
        }
        // Something else may be in it.
        let _ = fs::remove_dir(&self.directory);
        Ok(())
    }
}

fn told(failure: &ChangeFailure) -> String {
    format!("`{}`: {}", failure.line, failure.cause)
}

fn has_interface(change: &NetworkChange) -> bool {
    Path::new("/sys/class/net").join(change.interface()).exists()
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

fn write_network(record: NetworkRecord) -> Result<Was, String> {
    let was = NetworkWas { boot: boot_id(), record };
    postcard::to_stdvec(&was).map(Was::Network).map_err(|error| error.to_string())
}

fn read_network(was: &Was) -> Result<NetworkWas, String> {
    let Was::Network(bytes) = was else {
        return Err("the journal does not say how the network was".to_owned());
    };
    let told = |error| format!("the journal cannot be read: {error}");
    let (was, rest) = postcard::take_from_bytes(bytes).map_err(|error| told(error.to_string()))?;
    if rest.is_empty() {
        Ok(was)
    } else {
        Err(told("the network before has an unknown end".to_owned()))
    }
}

/// Returns what a line prints that saves something for the undoing, if there is such a line.
fn saved_by(save: Option<&str>) -> Result<Option<String>, String> {
    let Some(save) = save else { return Ok(None) };
    let saved = shell::ask(save, shell::TIMEOUT).and_then(|saved| {
        let fits = saved.len() <= MAX_SAVED;
        if fits { Ok(saved) } else { Err("it prints more than 64 KiB".to_owned()) }
    });
    saved.map(Some).map_err(|cause| format!("`{save}`: {cause}"))
}

/// Returns what was saved before a line has run.
fn saved_in(was: &Was) -> Option<&str> {
    match was {
        Was::Saved(saved) | Was::SavedInBoot { saved, .. } => Some(saved),
        _ => None,
    }
}

/// Returns what is behind a path; a link is followed.
fn read(path: &Path) -> Result<Option<String>, String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(format!("{} is no text", path.display()))
        }
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Returns the content of a file before a change.
fn content_of(was: &Was) -> &str {
    match was {
        Was::File { content, .. } => content,
        _ => "",
    }
}

/// Returns what the line of an edit makes of a text.
fn edited(line: &str, text: &str) -> Result<String, String> {
    shell::filter(line, text, shell::TIMEOUT).map_err(|cause| format!("`{line}`: {cause}"))
}

fn look_at_file(
    path: &str,
    wanted: Option<&str>,
    expected: Option<&str>,
) -> Result<Option<Was>, String> {
    let path = Path::new(path);
    let present = read(path)?;
    let is_as_wanted = present.as_deref() == wanted;
    // A text that a shell has printed has lost the ends of its last line.
    let end = |text: &str| text.trim_end_matches('\n').len();
    let is_other = |expected: &str| {
        let present = present.as_deref().unwrap_or_default();
        present[..end(present)] != expected[..end(expected)]
    };
    if !is_as_wanted && expected.is_some_and(is_other) {
        return Err(format!(
            "others have changed {} since it was read: repeat the command, which reads it again",
            path.display()
        ));
    }
    let Some(content) = present else {
        let ancestors = path.ancestors().skip(1).take_while(|directory| !directory.exists());
        let mut directories: Vec<String> =
            ancestors.map(|directory| directory.display().to_string()).collect();
        directories.reverse();
        return Ok(wanted.map(|_| Was::NoFile { directories }));
    };
    if is_as_wanted {
        return Ok(None);
    }
    let found = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (mode, user, group) = (found.mode() & 0o7777, found.uid(), found.gid());
    Ok(Some(Was::File { mode, user, group, content }))
}

/// Writes a file in place of what was there, with its owner and permissions; `mode` is for a new one.
fn write_over(path: &str, content: &str, mode: u32, was: &Was) -> Result<(), String> {
    let (mode, owner) = match was {
        Was::File { mode, user, group, .. } => (*mode, Some((*user, *group))),
        _ => (mode, None),
    };
    write_file(Path::new(path), content, mode, owner)
}

/// Writes a file as a whole: whoever reads it sees the former content or this one. A link stays, and what it leads to is
/// written.
fn write_file(
    path: &Path,
    content: &str,
    mode: u32,
    owner: Option<(u32, u32)>,
) -> Result<(), String> {
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let write = || {
        let (directory, name) = (path.parent(), path.file_name());
        let (Some(directory), Some(name)) = (directory, name) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        fs::create_dir_all(directory)?;
        let fresh = directory.join(format!(".{}.rlaunch", name.display()));
        // A container engine mounts single files, such as /etc/hosts, and they keep their place.
        let written = match write_fresh(&fresh, content, mode, owner) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem && path.exists() => {
                return write_in_place(path, content);
            }
            Err(error) => Err(error),
            Ok(()) => match fs::rename(&fresh, path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    write_in_place(path, content).and_then(|()| fs::remove_file(&fresh))
                }
                renamed => renamed,
            },
        };
        if written.is_err() {
            // It may not have been made.
            let _ = fs::remove_file(&fresh);
        }
        written?;
        sync_directory(directory)
    };
    write().map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Writes into a file. If that fails, as on a full disk, its former content is there again.
fn write_in_place(path: &Path, content: &str) -> io::Result<()> {
    let write = |content: &[u8]| {
        // It is cut off behind, not before, so that the blocks of the former content stay.
        let mut file = OpenOptions::new().write(true).open(path)?;
        file.write_all(content)?;
        file.set_len(content.len() as u64)?;
        file.sync_all()
    };
    let former = fs::read(path)?;
    let written = write(content.as_bytes());
    if written.is_err() {
        // The first error tells more.
        let _ = write(&former);
    }
    written
}

fn write_fresh(path: &Path, content: &str, mode: u32, owner: Option<(u32, u32)>) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())?;
    if let Some((user, group)) = owner {
        chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn remove_file(path: &str) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("cannot remove {path}: {error}"))
        }
        _ => Ok(()),
    }
}

/// Restores a file. What others have written into it since stays; if it cannot be told apart, the file stays as it is.
fn restore_file(path: &str, ours: Option<&str>, was: &Was) -> Result<(), String> {
    let present = read(Path::new(path))?;
    let changed = |before: &str| {
        format!(
            "others have changed {path} since; its line in {DIRECTORY}/journal has {before}: put it in order by hand, \
             then remove that line"
        )
    };
    match was {
        Was::File { mode, user, group, content } => {
            let wanted = match &present {
                // Others have removed it since.
                None if ours.is_some() => return Ok(()),
                None => content.clone(),
                Some(present) => {
                    let before = "its former content, with `\\n` for the ends of lines";
                    taken_out(content, ours.unwrap_or_default(), present)
                        .ok_or_else(|| changed(before))?
                }
            };
            if present.as_ref() == Some(&wanted) {
                return Ok(());
            }
            write_file(Path::new(path), &wanted, *mode, Some((*user, *group)))
        }
        Was::NoFile { directories } => {
            let ours = ours.unwrap_or_default();
            // A write in place that was broken off leaves a part.
            if present.is_some_and(|present| !ours.starts_with(&present)) {
                return Err(changed("that there was none before"));
            }
            remove_file(path)?;
            for directory in directories.iter().rev() {
                // Something else may be in it by now.
                let _ = fs::remove_dir(directory);
            }
            Ok(())
        }
        Was::Nothing | Was::Saved(_) | Was::SavedInBoot { .. } | Was::Network(_) => {
            Err("the journal does not say what the file was".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::changes::ChangeOutcome;

    /// Makes changes, with the journal in a directory.
    fn up(directory: &Path, changes: &[Change]) -> Vec<ChangeOutcome> {
        let journal_at = directory.join("state");
        let (mut host, mut journal) = LiveHost::open_at(&journal_at).unwrap();
        changes.iter().map(|change| journal.apply(&mut host, change, "rlaunch up", 1)).collect()
    }

    fn down(directory: &Path) -> Vec<Option<String>> {
        let (mut host, mut journal) = LiveHost::open_at(&directory.join("state")).unwrap();
        let ids = journal.pending(0);
        let undone: Vec<Option<String>> =
            ids.into_iter().map(|id| journal.undo(&mut host, id, 2).unwrap().failure).collect();
        journal.clear(&mut host).unwrap();
        undone
    }

    fn file(path: &Path, content: Option<&str>) -> Change {
        let path = path.display().to_string();
        Change::File { path, mode: 0o640, content: content.map(str::to_owned), expected: None }
    }

    #[test]
    fn networks_in_journals_of_earlier_versions_can_be_read() {
        let bytes = b"\x01b\x01\x01\x01\x04eth1\xdc\x0b\x01\x04eth1\x01\x01\x0b10.1.0.1/24\x07\x05\
                      \x01\x01r\x01\x01\x01n\x00\x01\x04eth2\x00\x0a\x01\x00\x02\x18\x01\x04eth3\x01\x0afe80::1/64";
        let was = read_network(&Was::Network(bytes.to_vec())).unwrap();
        let wanted = "Record { privilege: Root, inverses: [SetMtu { interface: \"eth1\", mtu: 1500 }], \
                      addresses: [(\"eth1\", [Address { words: [\"10.1.0.1/24\"], expires_at: 7, deprecated_at: 5 }])], \
                      routes: [Listed { line: \"r\", is_lost: true }], neighbours: [Listed { line: \"n\", is_lost: false }], \
                      additions: [(\"eth2\", 10.1.0.2, 24)], held: [(\"eth3\", [\"fe80::1/64\"])] }";
        assert_eq!((was.boot.as_str(), format!("{:?}", was.record).as_str()), ("b", wanted));
        assert_eq!(postcard::to_stdvec(&was).unwrap(), bytes);
        let longer = [&bytes[..], &[0]].concat();
        let refused = read_network(&Was::Network(longer)).err().unwrap();
        assert_eq!(refused, "the journal cannot be read: the network before has an unknown end");
    }

    #[test]
    fn files_come_back_as_they_were() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("hosts"), "localhost\n").unwrap();
        fs::set_permissions(at("hosts"), Permissions::from_mode(0o604)).unwrap();
        fs::write(at("gone"), "x").unwrap();
        std::os::unix::fs::symlink("hosts", at("link")).unwrap();
        let changes = [
            file(&at("new/deep/file"), Some("new")),
            file(&at("link"), Some("localhost\nours\n")),
            file(&at("gone"), None),
        ];
        assert_eq!(up(directory.path(), &changes), vec![ChangeOutcome::Made; 3]);
        assert_eq!(fs::read_to_string(at("hosts")).unwrap(), "localhost\nours\n");
        assert_eq!(fs::metadata(at("new/deep/file")).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::metadata(at("state/journal")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(up(directory.path(), &changes), vec![ChangeOutcome::Already; 3]);
        // Somebody else writes to it meanwhile.
        fs::write(at("hosts"), "localhost\nours\ntheirs\n").unwrap();
        assert_eq!(down(directory.path()), [None, None, None]);
        assert_eq!(fs::read_to_string(at("hosts")).unwrap(), "localhost\ntheirs\n");
        assert_eq!(fs::metadata(at("hosts")).unwrap().mode() & 0o777, 0o604);
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(at("gone")).unwrap(), "x");
        assert!(!at("new").exists() && !at("state").exists());
        assert_eq!(down(directory.path()), [], "there is nothing to undo");
    }

    #[test]
    fn a_file_that_others_have_taken_over_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new");
        up(directory.path(), &[file(&path, Some("ours"))]);
        fs::write(&path, "theirs").unwrap();
        let undone = down(directory.path());
        assert!(undone[0].as_ref().unwrap().contains("others have changed"), "{undone:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        fs::remove_file(&path).unwrap();
        assert_eq!(down(directory.path()), [None], "the journal still knows of it");
    }

    #[test]
    fn a_file_that_others_have_removed_stays_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        fs::write(&path, "a\n").unwrap();
        up(directory.path(), &[file(&path, Some("b\n"))]);
        fs::remove_file(&path).unwrap();
        assert_eq!(down(directory.path()), [None]);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_others_have_changed_since_it_was_read_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        let change = |expected: &str| Change::File {
            path: path.display().to_string(),
            mode: 0o644,
            content: Some("localhost\nours\n".into()),
            expected: Some(expected.to_owned()),
        };
        fs::write(&path, "localhost\ntheirs\n").unwrap();
        let refused = up(directory.path(), &[change("localhost\n")]);
        let [ChangeOutcome::Failed(cause)] = &refused[..] else { panic!("{refused:?}") };
        assert!(cause.starts_with("others have changed ") && cause.contains("hosts"), "{cause}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "localhost\ntheirs\n");
        assert_eq!(down(directory.path()), [], "nothing was begun");
        assert_eq!(up(directory.path(), &[change("localhost\ntheirs\n")]), [ChangeOutcome::Made]);
        let again = up(directory.path(), &[change("localhost\ntheirs\n")]);
        assert_eq!(again, [ChangeOutcome::Already]);
        fs::remove_file(&path).unwrap();
        assert_eq!(up(directory.path(), &[change("")]), [ChangeOutcome::Made], "there was none");
    }

    #[test]
    fn an_edit_is_undone_without_what_others_have_written_since() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        let line = "sed s/old/new/".to_owned();
        let edit = Change::Edit { path: path.display().to_string(), line };
        fs::write(&path, "a\nold\nz\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        assert_eq!(up(directory.path(), std::slice::from_ref(&edit)), [ChangeOutcome::Made]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nnew\nz\n");
        assert_eq!(up(directory.path(), &[edit]), [ChangeOutcome::Already]);
        fs::write(&path, "a\nnew\nz\ntheirs\n").unwrap();
        assert_eq!(down(directory.path()), [None]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nold\nz\ntheirs\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o604);
        let failing = Change::Edit { path: path.display().to_string(), line: "exit 1".into() };
        assert!(matches!(up(directory.path(), &[failing])[..], [ChangeOutcome::Failed(_)]));
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nold\nz\ntheirs\n");
    }

    #[test]
    fn a_write_in_place_leaves_nothing_of_a_longer_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        fs::write(&path, "a longer one\n").unwrap();
        write_in_place(&path, "short\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short\n");
    }

    #[test]
    fn what_could_not_be_handed_to_the_undoing_is_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let save = Some("head -c 70000 /dev/zero | tr '\\0' x".to_owned());
        let change = Change::Run { line: "true".into(), save, undo: Some("true".into()) };
        let refused = up(directory.path(), &[change]);
        let [ChangeOutcome::Failed(cause)] = &refused[..] else { panic!("{refused:?}") };
        assert!(cause.ends_with("it prints more than 64 KiB"), "{cause}");
    }

    #[test]
    fn what_a_line_saves_is_handed_to_its_undoing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("value").display().to_string();
        fs::write(&path, "1\n").unwrap();
        let change = Change::Run {
            line: format!("echo 2 > {path}"),
            save: Some(format!("cat {path}")),
            undo: Some(format!("echo $SAVED > {path}")),
        };
        assert_eq!(up(directory.path(), &[change]), [ChangeOutcome::Made]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "2\n");
        assert_eq!(down(directory.path()), [None]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
    }

    #[test]
    fn what_a_boot_takes_away_is_undone_in_the_same_boot_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (path, state) = (directory.path().join("value"), directory.path().join("state"));
        let shown = path.display();
        let change = Change::RunUntilBoot {
            line: format!("echo 2 > {shown}"),
            save: Some(format!("cat {shown}")),
            undo: Some(format!("echo $SAVED > {shown}")),
        };
        for (is_other_boot, expected) in [(false, "1\n"), (true, "of others\n")] {
            fs::write(&path, "1\n").unwrap();
            assert_eq!(up(directory.path(), std::slice::from_ref(&change)), [ChangeOutcome::Made]);
            assert_eq!(fs::read_to_string(&path).unwrap(), "2\n");
            if is_other_boot {
                let journal = fs::read_to_string(state.join("journal")).unwrap();
                let other = journal.replace(&boot_id(), &"0".repeat(boot_id().len()));
                assert_ne!(journal, other);
                fs::write(state.join("journal"), other).unwrap();
                fs::write(&path, expected).unwrap();
            }
            assert_eq!(down(directory.path()), [None]);
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        }
    }

    #[test]
    fn a_line_that_was_cut_off_is_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new");
        up(directory.path(), &[file(&path, Some("ours"))]);
        let journal = directory.path().join("state/journal");
        let mut open = OpenOptions::new().append(true).open(&journal).unwrap();
        open.write_all(b"1 5 und").unwrap();
        let (_, read) = LiveHost::open_at(&directory.path().join("state")).unwrap();
        assert!(read.state().was_torn && read.state().pending == 1);
        assert!(fs::read(&journal).unwrap().ends_with(b"\n"));
        assert_eq!(down(directory.path()), [None]);
        assert!(!path.exists());
    }
}
