//! `rlaunch capture`: the files that say what hosts have, in an archive that `topo --from` reads.
//!
//! The archive has a directory for each host, and in it the host's files by their paths: what the
//! kernel says of devices, and of the agent's own process no more than its limits.

use crate::cli::args::CaptureArgs;
use crate::commands::agent_query;
use rlaunch_bootstrap::inventory::recording::{RecordedEntry, Recording, relative};
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::text;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use tar::{Archive, Builder, EntryType, Header};
use tempfile::TempDir;

/// The largest archive that is read, in bytes.
const LARGEST: u64 = 1 << 30;

/// Asks every host at once and writes the archive. A host that does not answer is left out, and is
/// an error.
pub(crate) async fn capture(args: CaptureArgs) -> Result<Exit, Failed> {
    let answers = agent_query::every_host(&args.hosts, args.reach, "capture").await?;
    let (mut recordings, mut failures) = (Vec::new(), Vec::new());
    for (host, answer) in answers {
        let host = host.to_string();
        match answer.and_then(|answer| agent_query::decode(&answer, &host)) {
            Ok(recording) => recordings.push((host, recording)),
            Err(failed) => failures.push(failed),
        }
    }
    if !recordings.is_empty() {
        let written = write(&args.output, &recordings);
        let name = args.output.display();
        written.map_err(|e| Failed::new(Exit::FILES, format!("cannot write {name}: {e}")))?;
        let hosts: Vec<&String> = recordings.iter().map(|(host, _)| host).collect();
        messages::info(&format!("recorded {} in {name}", text::list(&hosts)));
    }
    agent_query::conclude(failures)
}

/// The archive gets its name when it is whole.
fn write(path: &Path, recordings: &[(String, Recording)]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    let mut archive = Builder::new(file.as_file_mut());
    for (host, recording) in recordings {
        for (path, entry) in recording.entries() {
            append(&mut archive, &format!("{host}{path}"), path, entry)?;
        }
    }
    archive.into_inner()?;
    file.persist(path)?;
    Ok(())
}

fn append<W: io::Write>(
    archive: &mut Builder<W>,
    name: &str,
    path: &str,
    entry: &RecordedEntry,
) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(if matches!(entry, RecordedEntry::Directory) { 0o755 } else { 0o644 });
    match entry {
        RecordedEntry::Directory => {
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            archive.append_data(&mut header, format!("{name}/"), io::empty())
        }
        RecordedEntry::File(bytes) => {
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, bytes.as_slice())
        }
        RecordedEntry::Link(target) => {
            header.set_entry_type(EntryType::Symlink);
            header.set_size(0);
            archive.append_link(&mut header, name, relative(path, target))
        }
    }
}

/// Unpacks an archive; below the directory is one for each host, whose names come along in order.
pub(crate) fn unpack(path: &Path) -> Result<(TempDir, Vec<String>), Failed> {
    let name = path.display();
    let failed =
        |error: io::Error| Failed::new(Exit::FILES, format!("cannot read {name}: {error}"));
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() > LARGEST {
        return Err(failed(io::Error::other("it is too large to be a recording")));
    }
    let directory = tempfile::tempdir().map_err(failed)?;
    // Nothing in it can lead outside: the library refuses such names and links.
    Archive::new(file).unpack(directory.path()).map_err(failed)?;
    let hosts = fs::read_dir(directory.path()).map_err(failed)?;
    let hosts = hosts.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut hosts: Vec<String> = hosts.collect();
    hosts.sort();
    Ok((directory, hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_what_was_recorded() {
        let entries = [
            ("/sys/class/net", RecordedEntry::Directory),
            ("/sys/class/net/eth0/device", RecordedEntry::Link("/sys/devices/pci0/x".into())),
            ("/sys/class/net/eth0/mtu", RecordedEntry::File(b"1500\n".to_vec())),
        ];
        let entries = entries.map(|(path, entry)| (path.to_owned(), entry)).into_iter().collect();
        let recording = Recording::from_entries(&entries, &Default::default());
        let scratch = tempfile::tempdir().unwrap();
        let archive = scratch.path().join("x.tar");
        write(&archive, &[("b".into(), recording.clone()), ("user@a".into(), recording)]).unwrap();
        let (directory, hosts) = unpack(&archive).unwrap();
        assert_eq!(hosts, ["b", "user@a"]);
        let net = directory.path().join("b/sys/class/net/eth0");
        assert_eq!(fs::read(net.join("mtu")).unwrap(), b"1500\n");
        let link = fs::read_link(net.join("device")).unwrap();
        assert_eq!(link, Path::new("../../../../sys/devices/pci0/x"));
    }

    #[test]
    fn what_is_no_archive_is_said_to_be_none() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("x.tar");
        fs::write(&path, "no archive at all").unwrap();
        let error = unpack(&path).unwrap_err();
        assert!(error.message.starts_with(&format!("cannot read {}: ", path.display())));
        assert!(unpack(&scratch.path().join("nothing")).is_err());
    }
}
