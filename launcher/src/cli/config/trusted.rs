//! Store of the configuration files that the user trusts.
//!
//! Each file has a record in the user's state directory: its path, the SHA-256 of its content, and path and
//! SHA-256 of each file that it names. If the content of any of these files changes, the file is not trusted
//! any more. A record is valid only if it belongs to this user and no other user may write to it, wherever
//! the state directory is.
//!
//! Trust in an rlaunch.toml covers the files that it names, such as a hostfile or an agent, because their content affects
//! jobs as much as its keys do, and a user with permission to write one of the files can often write the others. Only
//! relative names and names below the directory of rlaunch.toml are covered. A file elsewhere did not come from the same
//! repository or archive.

use super::error::{ConfigError, SettingOrigin};
use super::file::{ConfigFile, Setting, SettingValue};
use super::find::{open, read_text};
use super::merge;
use clap::Command;
use nix::unistd::Uid;
use rlaunch_console::process_env::{ProcessEnv, create_state_directory};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum size of a record, in bytes.
const MAX_RECORD: usize = 256 << 10;
/// Number of hexadecimal digits in a SHA-256.
const DIGITS: usize = 64;
/// Placeholder for the digest of a missing file.
const ABSENT: [u8; DIGITS] = [b'-'; DIGITS];

/// Directory with the records of one user.
#[derive(Clone, Debug)]
pub(crate) struct TrustStore {
    directory: PathBuf,
}

/// File that has a record, and whether it is still trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrustedFile {
    pub(crate) path: PathBuf,
    pub(crate) state: TrustState,
}

/// State of a file that has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrustState {
    /// The file is trusted: neither its content nor that of a file that it names has changed.
    Same,
    /// The file is not trusted any more, since the content of this path has changed: the file itself, or one
    /// that it names.
    Changed(PathBuf),
    /// The file cannot be read any more.
    Gone,
}

impl TrustStore {
    /// Returns the store of this user; fails if there is no state directory.
    pub(crate) fn for_user(env: &ProcessEnv) -> Result<TrustStore, ConfigError> {
        let state = env.state_directory().ok_or(ConfigError::NoStateDirectory)?;
        Ok(TrustStore { directory: state.join("rlaunch/trusted") })
    }

    /// Compares a file's content with its record; `None` if the file has no valid record.
    pub(super) fn state(&self, path: &Path, content: &str) -> Option<TrustState> {
        let identity = identity(path).ok()?;
        let record =
            read(&self.record_of(&identity)).ok().filter(|record| record.path == identity)?;
        Some(match record.state(content) {
            TrustState::Changed(own) if own == identity => TrustState::Changed(path.to_owned()),
            state => state,
        })
    }

    /// Records that the user trusts a file with this content, and the files in `named` with the digests of
    /// their content.
    pub(crate) fn trust(
        &self,
        path: &Path,
        content: &str,
        named: &[NamedFile],
    ) -> Result<(), ConfigError> {
        let write = || {
            let path = identity(path)?;
            let mut record = entry(Some(&hex(content.as_bytes())), &path);
            for named in named {
                record.extend(entry(named.digest.as_deref(), &named.name));
            }
            if record.len() > MAX_RECORD {
                return Err(io::Error::other("the file names too many others"));
            }
            create_state_directory(&self.directory)?;
            // The file has mode 0600 from the start, and gets its name when it is complete.
            let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
            file.write_all(&record)?;
            file.persist(self.record_of(&path))?;
            Ok(())
        };
        write().map_err(|source| ConfigError::Record { path: self.directory.clone(), source })
    }

    /// Removes the record of a file; returns `false` if it had none.
    pub(crate) fn revoke(&self, path: &Path) -> Result<bool, ConfigError> {
        let remove = || fs::remove_file(self.record_of(&identity(path)?));
        match remove() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(source) => Err(ConfigError::Record { path: self.directory.clone(), source }),
        }
    }

    /// Lists all files with a record, sorted by path.
    pub(crate) fn all(&self) -> Result<Vec<TrustedFile>, ConfigError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(ConfigError::Read { path: self.directory.clone(), source }),
        };
        let records = entries.flatten().filter_map(|entry| read(&entry.path()).ok());
        let mut all: Vec<TrustedFile> = records
            .map(|record| {
                let state = match content(&record.path) {
                    Ok(content) => record.state(&content),
                    Err(_) => TrustState::Gone,
                };
                TrustedFile { path: record.path, state }
            })
            .collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(all)
    }

    fn record_of(&self, path: &Path) -> PathBuf {
        self.directory.join(hex(path.as_os_str().as_bytes()))
    }
}

/// Returns the path under which a file is recorded: its directory's canonical path, and its name. A symbolic
/// link to the file is not resolved, since names in the file are relative to the directory of the link.
pub(super) fn identity(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(io::Error::other("it is not the name of a file"));
    };
    // When a record is removed, the file's directory may not exist any more.
    Ok(fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned()).join(name))
}

struct TrustRecord {
    digest: String,
    path: PathBuf,
    /// Digest and name of each file that this file names, relative to its directory. A missing file has no
    /// digest.
    named: Vec<(Option<String>, PathBuf)>,
}

impl TrustRecord {
    fn state(&self, content: &str) -> TrustState {
        if hex(content.as_bytes()) != self.digest {
            return TrustState::Changed(self.path.clone());
        }
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let is_other = |(digest, name): &&(Option<String>, PathBuf)| {
            file_digest(&directory.join(name)) != *digest
        };
        let other = self.named.iter().find(is_other);
        other.map_or(TrustState::Same, |(_, name)| TrustState::Changed(name.clone()))
    }
}

/// Encodes the digest and the path of one file for a record.
fn entry(digest: Option<&str>, path: &Path) -> Vec<u8> {
    let digest = digest.map_or(&ABSENT[..], str::as_bytes);
    [digest, b"\n", path.as_os_str().as_bytes(), b"\0"].concat()
}

/// Reads a record, if no other user can have written it.
fn read(record: &Path) -> io::Result<TrustRecord> {
    let file = File::open(record)?;
    let metadata = file.metadata()?;
    if metadata.uid() != Uid::effective().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other("another user may have written it"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_RECORD as u64 + 1).read_to_end(&mut bytes)?;
    parse(&bytes).ok_or_else(|| io::Error::other("it is not a record"))
}

fn parse(bytes: &[u8]) -> Option<TrustRecord> {
    let bytes = bytes.strip_suffix(b"\0").filter(|_| bytes.len() <= MAX_RECORD)?;
    let entry = |entry: &[u8]| {
        let (digest, path) = entry.split_at_checked(DIGITS)?;
        let written = (digest != ABSENT).then(|| String::from_utf8_lossy(digest).into_owned());
        Some((written, PathBuf::from(OsStr::from_bytes(path.strip_prefix(b"\n")?))))
    };
    let mut entries = bytes.split(|byte| *byte == 0).map(entry);
    let (digest, path) = entries.next()??;
    Some(TrustRecord { digest: digest?, path, named: entries.collect::<Option<_>>()? })
}

/// Number of bytes that are read and hashed at a time.
const BLOCK: usize = 256 << 10;

/// Form in which a key's value names files of this machine.
#[derive(Clone, Copy)]
enum NameForm {
    /// Name of a file.
    Name,
    /// `FILE:DEST`, which names FILE.
    Template,
    /// Command line, each word of which may be the name of a file.
    Command,
}

/// Keys that name files of this machine.
const KEYS: &[(&str, NameForm)] = &[
    ("agent", NameForm::Name),
    ("container-exec", NameForm::Command),
    ("copy", NameForm::Name),
    ("env-file", NameForm::Name),
    ("hostfile", NameForm::Name),
    ("notify", NameForm::Command),
    ("rsh", NameForm::Command),
    ("ssh-config", NameForm::Name),
    ("stdin", NameForm::Name),
    ("template", NameForm::Template),
];

/// File that a key names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedFile {
    /// Line of the first key that names the file, from 1.
    pub(super) line: usize,
    /// Name of the file as written in rlaunch.toml.
    pub(super) name: PathBuf,
    /// SHA-256 of the content; `None` if there is no such file.
    pub(super) digest: Option<String>,
    /// Whether the name was only found as a word of command lines. Such a word need not be the name of a
    /// file.
    pub(super) is_word: bool,
}

/// Lists the files that are trusted together with the configuration file `path`, whose content is `file`.
/// Missing files are listed as well, since trust ends if one appears later.
pub(super) fn named_files(all: &Command, file: &ConfigFile, path: &Path) -> Vec<NamedFile> {
    let Ok(own) = identity(path) else { return Vec::new() };
    let directory = own.parent().unwrap_or(Path::new("/"));
    let is_covered = |name: &Path| {
        name.is_relative() || identity(name).is_ok_and(|name| name.starts_with(directory))
    };
    let of_profiles = file.profiles.iter().flat_map(|(_, settings)| settings);
    let mut found: Vec<NamedFile> = Vec::new();
    for setting in file.host_list.iter().chain(&file.defaults).chain(of_profiles) {
        let SettingOrigin::Line(_, line) = setting.origin else { continue };
        for (name, is_word) in names(all, setting) {
            let name = PathBuf::from(name);
            match found.iter_mut().find(|known| known.name == name) {
                Some(known) => known.is_word &= is_word,
                None if is_covered(&name) => {
                    let digest = file_digest(&directory.join(&name));
                    found.push(NamedFile { line, name, digest, is_word });
                }
                None => {}
            }
        }
    }
    found
}

/// Lists the texts in a setting's value that may name files, and whether each is a word of a command line.
fn names(all: &Command, setting: &Setting) -> Vec<(String, bool)> {
    let key = merge::option(all, &setting.key).and_then(|option| option.get_long());
    let Some((_, form)) = KEYS.iter().find(|(known, _)| key == Some(known)) else {
        return Vec::new();
    };
    let texts = match &setting.value {
        SettingValue::Flag(_) => &[],
        SettingValue::Text(text) => std::slice::from_ref(text),
        SettingValue::List(texts) => &texts[..],
    };
    let names_in = |text: &String| -> Vec<(String, bool)> {
        match form {
            NameForm::Name => vec![(text.clone(), false)],
            NameForm::Template => {
                text.split(':').take(1).map(|name| (name.to_owned(), false)).collect()
            }
            NameForm::Command => words(text).into_iter().map(|word| (word, true)).collect(),
        }
    };
    // The name of a file cannot have a null character.
    let can_be = |(name, _): &(String, bool)| !name.is_empty() && !name.contains('\0');
    texts.iter().flat_map(names_in).filter(can_be).collect()
}

/// Splits a command line into words, and splits words again where a shell that the command starts would split
/// them. Leaves out a program that is looked up in PATH, and files that the command writes by `>`, since
/// these change.
fn words(text: &str) -> Vec<String> {
    let is_between = |c: char| c.is_whitespace() || "'\"`;|&()<>$=".contains(c);
    let split = shlex::split(text).unwrap_or_default();
    let program = split.first().filter(|word| !word.contains('/')).cloned();
    let is_odd = |word: &String| word.contains(is_between) || !text.contains(word.as_str());
    let mut words: Vec<String> = split.into_iter().filter(is_odd).collect();
    // `<>` opens a file for reading, too.
    let mut is_written = false;
    for part in text.split('>') {
        let read = match is_written {
            true => part.trim_start().split_once(is_between).map_or("", |(_, rest)| rest),
            false => part,
        };
        words.extend(read.split(is_between).map(str::to_owned));
        is_written = !part.ends_with('<');
    }
    words.retain(|word| Some(word) != program.as_ref());
    words
}

/// Computes the SHA-256 of a file's content, in hexadecimal; `None` if the path is not a readable regular
/// file.
fn file_digest(path: &Path) -> Option<String> {
    let mut file = open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let (mut hash, mut block) = (Sha256::new(), vec![0; BLOCK]);
    loop {
        match file.read(&mut block).ok()? {
            0 => return Some(shown(&hash.finalize())),
            read => hash.update(&block[..read]),
        }
    }
}

/// Computes the SHA-256 of bytes, in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    shown(&Sha256::digest(bytes))
}

fn shown(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a file without a check of its permissions.
fn content(path: &Path) -> io::Result<String> {
    open(path).and_then(read_text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::JobArgs;
    use crate::cli::config::file;
    use clap::CommandFactory;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    /// Creates a store, and a directory with a file in it.
    fn scratch() -> (TempDir, TrustStore, PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let store = TrustStore { directory: scratch.path().join("state/trusted") };
        let file = scratch.path().join("here/rlaunch.toml");
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, "# a").unwrap();
        (scratch, store, file)
    }

    #[test]
    fn one_content_of_one_file_is_trusted() {
        let (scratch, store, file) = scratch();
        let trusts =
            |path: &Path, content: &str| store.state(path, content) == Some(TrustState::Same);
        assert_eq!(store.state(&file, "# a"), None);
        store.trust(&file, "# a", &[]).unwrap();
        assert!(trusts(&file, "# a"));
        assert_eq!(store.state(&file, "# b"), Some(TrustState::Changed(file.clone())));
        // Trust covers neither a copy of the file elsewhere nor a link to it.
        let other = scratch.path().join("other");
        fs::create_dir(&other).unwrap();
        symlink(&file, other.join("rlaunch.toml")).unwrap();
        assert!(!trusts(&other.join("rlaunch.toml"), "# a"));
        // A link to its directory leads to the same path.
        symlink(file.parent().unwrap(), scratch.path().join("link")).unwrap();
        assert!(trusts(&scratch.path().join("link/rlaunch.toml"), "# a"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let record = store.record_of(&identity(&file).unwrap());
        assert_eq!((mode(&store.directory), mode(&record)), (0o700, 0o600));
    }

    #[test]
    fn trusted_files_are_listed_with_their_state_and_can_be_revoked() {
        let (_scratch, store, file) = scratch();
        assert_eq!(store.all().unwrap(), []);
        store.trust(&file, "# a", &[]).unwrap();
        let state = || store.all().unwrap()[0].state.clone();
        assert_eq!(state(), TrustState::Same);
        fs::write(&file, "# b").unwrap();
        assert_eq!(state(), TrustState::Changed(identity(&file).unwrap()));
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
        assert_eq!(state(), TrustState::Gone);
        assert!(store.revoke(&file).unwrap() && !store.revoke(&file).unwrap());
        assert_eq!(store.all().unwrap(), []);
    }

    #[test]
    fn a_record_that_others_could_have_written_does_not_count() {
        let (_scratch, store, file) = scratch();
        store.trust(&file, "# a", &[]).unwrap();
        let trusts = || store.state(&file, "# a").is_some();
        let record = store.record_of(&identity(&file).unwrap());
        fs::set_permissions(&record, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(!trusts());
        fs::set_permissions(&record, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(trusts());
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&record, Some(54321), None).unwrap();
            assert!(!trusts());
        }
        let whole = fs::read(&record).unwrap();
        for torn in [&b"x"[..], &whole[..whole.len() - 1]] {
            fs::write(&record, torn).unwrap();
            assert!(!trusts());
        }
    }

    #[test]
    fn a_named_file_that_changes_ends_trust() {
        let (_scratch, store, file) = scratch();
        let other = file.with_file_name("ssh.cfg");
        fs::write(&other, "Host a").unwrap();
        let named = |name: &str| {
            let digest = file_digest(&file.with_file_name(name));
            NamedFile { line: 1, name: name.into(), digest, is_word: false }
        };
        let named = [named("ssh.cfg"), named("env"), named("../e")];
        store.trust(&file, "# a", &named).unwrap();
        let state = || {
            let state = store.state(&file, "# a").unwrap();
            assert_eq!(store.all().unwrap()[0].state, state);
            state
        };
        assert_eq!(state(), TrustState::Same);
        for (path, content) in [("ssh.cfg", "Host a"), ("env", ""), ("../e", "")] {
            let path_there = file.with_file_name(path);
            fs::write(&path_there, "ProxyCommand evil").unwrap();
            assert_eq!(state(), TrustState::Changed(path.into()));
            match content {
                "" => fs::remove_file(&path_there).unwrap(),
                content => fs::write(&path_there, content).unwrap(),
            }
            assert_eq!(state(), TrustState::Same);
        }
        fs::remove_file(&other).unwrap();
        assert_eq!(state(), TrustState::Changed("ssh.cfg".into()));
    }

    /// Lists the files that are trusted together with an rlaunch.toml with this text, in a directory that
    /// also has a file `here`.
    fn covered(text: &str) -> Vec<String> {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("rlaunch.toml");
        fs::write(scratch.path().join("here"), "x").unwrap();
        let text = text.replace("DIR", scratch.path().to_str().unwrap());
        let mut all = JobArgs::command();
        all.build();
        let named = named_files(&all, &file::parse(&text, &path).unwrap(), &path);
        let shown = |named: NamedFile| {
            let mark = if named.digest.is_some() { "+" } else { "-" };
            let name = named.name.display().to_string();
            format!("{}{mark}{}", named.line, name.replace(scratch.path().to_str().unwrap(), "DIR"))
        };
        named.into_iter().map(shown).collect()
    }

    #[test]
    fn names_are_found_in_every_section_and_form() {
        let text = "[defaults]\nssh-config = \"here\"\nmachinefile = [\"h\", \"DIR/here\"]\n\
                    agent = \"/elsewhere/agent\"\nwdir = \"w\"\n\
                    [profile.x]\ntemplate = \"t:/dest\"\npreload = \"here\"\nenv-file = \"../e\"\n";
        assert_eq!(covered(text), ["2+here", "3-h", "3+DIR/here", "7-t", "9-../e"]);
    }

    #[test]
    fn words_of_commands_are_files_where_they_lead_to_some() {
        let of = |command: &str| covered(&format!("[defaults]\nrsh = {command:?}\n")).join(" ");
        assert_eq!(of("./here -x"), "2+./here 2--x");
        assert!(of("ssh -F here").ends_with("2+here"), "{}", of("ssh -F here"));
        assert!(!of("here -x").contains("here"), "a program of PATH");
        assert!(of("sh -c 'exec ./here; y' --").contains("2+./here"));
        assert!(of("env A=./here x").contains("2+./here"));
        assert!(of(r"sh ./h\ere").contains("2+./here"));
        assert!(of("sh <>./here").contains("2+./here"));
        // A file that a command writes is not covered.
        for written in ["sh -c 'x >here'", "sh -c 'x >>here 2>&1'", "sh -c 'x 2> here; y'"] {
            assert!(!of(written).contains("+here"), "{}", of(written));
        }
    }
}
