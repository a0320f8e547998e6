//! `rlaunch capture`: records what `topo` and `doctor` read on hosts, in an archive that their `--from` reads.
//!
//! The archive has a directory for each host, with the recorded files under their paths, and files for what is not
//! read from files, such as the rules of the packet filter.

use super::agent_session;
use crate::cli::args::{ConnectArgs, HostListArgs};
use crate::cli::command_line::CommandLine;
use clap::Parser;
use rlaunch_bootstrap::inventory::recording::{RecordedEntry, Recording, relative};
use rlaunch_console::messages;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use tar::{Archive, Builder, EntryType, Header};
use tempfile::TempDir;

/// Maximum size of an archive, in bytes.
const MAX_ARCHIVE: u64 = 1 << 30;

/// Record what `rlaunch topo` and `rlaunch doctor` read on hosts, for their `--from`.
///
/// A recording has what the kernel says of devices, processors and interfaces, with their addresses; settings of
/// kernel and system; the agent's own limits; names of services, and of processes that listen on ports of jobs; rules
/// of the packet filter and lines of the kernel's log, where the user may read them; versions of Python packages.
/// It has no values of environment variables, no other files of users, and no keys.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch capture -H a,b -o x.tar
  rlaunch topo --from x.tar
  rlaunch doctor --from x.tar")]
pub(crate) struct CaptureArgs {
    #[command(flatten)]
    pub(crate) hosts: HostListArgs,

    /// Archive to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Records all hosts at once and writes the archive. A host that does not answer is left out, and the verb
/// fails.
pub(super) async fn run(args: CaptureArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let answers =
        agent_session::query_hosts(&args.hosts, args.connect, &line.config, "capture").await?;
    let (mut recordings, mut failures) = (Vec::new(), Vec::new());
    for (host, answer) in answers {
        let host = host.to_string();
        match answer.and_then(|answer| agent_session::decode(&answer, &host)) {
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
    agent_session::conclude(failures)
}

/// Writes an archive to a temporary file, which is renamed to `path` when it is complete. Where a link leads stays a file of
/// its name; what is not a regular file, such as /dev/null or a pipe, is refused and not replaced.
fn write(path: &Path, recordings: &[(String, Recording)]) -> io::Result<()> {
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other(
            "not a regular file; -o takes the path of one, which is replaced",
        ));
    }
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

/// Unpacks an archive into a temporary directory, which has a subdirectory for each host. Also returns the
/// names of the hosts, sorted.
pub(super) fn unpack(path: &Path) -> Result<(TempDir, Vec<String>), Failed> {
    let name = path.display();
    let failed =
        |error: io::Error| Failed::new(Exit::FILES, format!("cannot read {name}: {error}"));
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() > MAX_ARCHIVE {
        return Err(failed(io::Error::other("it is too large to be a recording")));
    }
    let directory = tempfile::tempdir().map_err(failed)?;
    unpack_into(file, directory.path()).map_err(failed)?;
    let hosts = fs::read_dir(directory.path()).map_err(failed)?;
    let hosts = hosts.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut hosts: Vec<String> = hosts.collect();
    hosts.sort();
    Ok((directory, hosts))
}

/// Unpacks directories, files and links, none of which leads out of the directory, and no more bytes than a recording
/// can have: an archive comes from another machine.
fn unpack_into(file: File, directory: &Path) -> io::Result<()> {
    let directory = directory.canonicalize()?;
    let refused = |path: &Path, reason: &str| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {reason}", path.display()))
    };
    let mut left = MAX_ARCHIVE;
    let mut links = Vec::new();
    for entry in Archive::new(file).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Directory => {}
            EntryType::Symlink => links.push(directory.join(&path)),
            _ => return Err(refused(&path, "no recording has entries of this kind")),
        }
        left = left.checked_sub(entry.size()).ok_or_else(|| refused(&path, "it is too large"))?;
        // The library refuses names and links through which an entry would be outside of the directory.
        if !entry.unpack_in(&directory)? {
            return Err(refused(&path, "it is outside of the archive"));
        }
    }
    // Many links of a recording lead to what was not recorded.
    let targets = links.iter().filter_map(|link| Some((link, link.canonicalize().ok()?)));
    match targets.into_iter().find(|(_, target)| !target.starts_with(&directory)) {
        Some((link, _)) => Err(refused(link, "this link leads out of the archive")),
        None => Ok(()),
    }
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
    fn only_a_file_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let (pipe, link, file) =
            (scratch.path().join("pipe"), scratch.path().join("link"), scratch.path().join("file"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let error = write(&pipe, &[]).unwrap_err();
        assert!(error.to_string().starts_with("not a regular file"), "{error}");
        assert!(!pipe.metadata().unwrap().is_file());
        write(&link, &[]).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_ne!(fs::read(&file).unwrap(), b"old");
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

    /// Makes an archive with one entry and tries to unpack it.
    fn unpacked(kind: EntryType, name: &str, target: &str, size: u64) -> Result<(), String> {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("x.tar");
        let mut header = Header::new_gnu();
        // The library would not write such names.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(size);
        if !target.is_empty() {
            header.set_link_name_literal(target).unwrap();
        }
        header.set_cksum();
        let mut archive = Builder::new(File::create(&path).unwrap());
        archive.append(&header, io::empty()).unwrap();
        archive.into_inner().unwrap();
        unpack(&path).map(drop).map_err(|error| error.message)
    }

    #[test]
    fn archives_do_not_lead_to_files_of_this_machine() {
        for (kind, target, name) in [
            (EntryType::Symlink, "/dev/zero", "a/mtu"),
            (EntryType::Symlink, "../../../../../../../../etc/passwd", "a/mtu"),
            (EntryType::Link, "/etc/passwd", "a/mtu"),
            (EntryType::Fifo, "", "a/mtu"),
            (EntryType::Regular, "", "../mtu"),
        ] {
            let error = unpacked(kind, name, target, 0).unwrap_err();
            assert!(error.contains("mtu: "), "{kind:?}: {error}");
        }
        assert_eq!(unpacked(EntryType::Symlink, "a/driver", "../links/mlx5_core", 0), Ok(()));
        let error = unpacked(EntryType::Regular, "a/mtu", "", u64::MAX >> 8).unwrap_err();
        assert!(error.contains("it is too large"), "{error}");
    }
}
