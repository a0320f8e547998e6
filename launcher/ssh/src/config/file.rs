//! Configuration files as blocks and lines, with included files.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::ConfigError;
use super::line::Line;
use super::permissions::{self, Fault};
use super::scope::tilde;
use rlaunch_console::glob::matches_file_name;

/// Depth of nested includes, as in OpenSSH.
const MAX_DEPTH: usize = 16;
/// Longest file, in bytes.
const LONGEST: u64 = 4 << 20;
/// Most files in all: one that includes itself twice would otherwise be read 2^16 times.
const MAX_FILES: usize = 4096;

/// Element of a parsed file. Lines after `Host` or `Match` apply if that block matches, up to the next block.
#[derive(Debug)]
pub(super) enum Item {
    Host(Vec<String>),
    Match(Line, Vec<Criterion>),
    Set(Line),
    Include(Vec<Item>),
}

#[derive(Debug)]
pub(super) struct Criterion {
    pub(super) negated: bool,
    pub(super) subject: Subject,
    /// Comma-separated patterns, or the command of [`Subject::Exec`].
    pub(super) patterns: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Subject {
    All,
    Host,
    OriginalHost,
    User,
    LocalUser,
    /// Command that exits with code 0.
    Exec,
    /// Holds in the second pass, with the host name that the first has found.
    Canonical,
    /// Holds in the second pass, and requires one.
    Final,
    /// Criterion that is not supported: its block never matches.
    Unsupported,
}

/// Tells whether a block requires a second pass.
pub(super) fn wants_final(items: &[Item]) -> bool {
    mentions(items, Subject::Final)
}

/// Tells whether a block depends on a command.
pub(super) fn runs_commands(items: &[Item]) -> bool {
    mentions(items, Subject::Exec)
}

fn mentions(items: &[Item], subject: Subject) -> bool {
    items.iter().any(|item| match item {
        Item::Match(_, criteria) => criteria.iter().any(|c| c.subject == subject),
        Item::Include(items) => mentions(items, subject),
        Item::Host(_) | Item::Set(_) => false,
    })
}

/// Files that were read, and notes on them.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// Existing files in the order of reading.
    pub(super) files: Vec<PathBuf>,
    /// Blocks that are not supported, for `rlaunch ssh-config`: `/home/me/.ssh/config:7: ...`.
    pub(super) notes: Vec<String>,
}

impl Sources {
    fn note_unsupported(&mut self, line: &Line, criteria: &[Criterion]) {
        if criteria.iter().any(|criterion| criterion.subject == Subject::Unsupported) {
            let place = format!("{}:{}", line.path.display(), line.number);
            self.notes.push(format!(
                "{place}: rlaunch does not support `match {}`, so the block never matches",
                line.rest
            ));
        }
    }
}

fn parse_match(words: Vec<String>) -> Result<Vec<Criterion>, String> {
    let mut criteria = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        // `host=a` is `host a`.
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let (negated, bare) = match name.strip_prefix('!') {
            Some(bare) => (true, bare),
            None => (false, name),
        };
        let subject = match bare.to_ascii_lowercase().as_str() {
            "all" => Subject::All,
            "host" => Subject::Host,
            "originalhost" => Subject::OriginalHost,
            "user" => Subject::User,
            "localuser" => Subject::LocalUser,
            "exec" => Subject::Exec,
            "canonical" => Subject::Canonical,
            "final" => Subject::Final,
            _ => Subject::Unsupported,
        };
        let patterns = match subject {
            Subject::All | Subject::Canonical | Subject::Final | Subject::Unsupported => {
                String::new()
            }
            Subject::Exec => value.or_else(|| words.next()).ok_or("exec needs a command")?,
            _ => value.or_else(|| words.next()).ok_or_else(|| format!("{name} needs a pattern"))?,
        };
        criteria.push(Criterion { negated, subject, patterns });
        if subject == Subject::Unsupported {
            // Its number of words is unknown; the block does not match whatever follows.
            break;
        }
    }
    if criteria.is_empty() { Err("a criterion is missing".into()) } else { Ok(criteria) }
}

/// Check of a file's owner and permissions before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermissionCheck {
    /// Only the user and root may be able to write the file. Applies to the user's default configuration, to
    /// one that an rlaunch.toml names, and to included files.
    Strict,
    /// None. Applies to a file that the user has named, and to the system's.
    None,
}

/// Reads `path`; `None` if there is no such file.
pub(super) fn read(path: &Path, check: PermissionCheck) -> Result<Option<String>, ConfigError> {
    let mut fault = None;
    let mut read = || {
        let mut bytes = Vec::new();
        let file = File::open(path)?;
        if check == PermissionCheck::Strict {
            fault = permissions::fault(path, &file.metadata()?);
        }
        let count = file.take(LONGEST + 1).read_to_end(&mut bytes)?;
        if count as u64 > LONGEST {
            return Err(io::Error::other(format!("longer than {} MiB", LONGEST >> 20)));
        }
        Ok(bytes)
    };
    let content = read();
    if let Some(Fault { reason, cure }) = fault {
        return Err(ConfigError::Unsafe { path: path.to_owned(), reason, cure });
    }
    match content {
        // Comments may be in another encoding than UTF-8.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// Parses `text`, the content of `path`, and the files that it includes.
pub(super) fn parse(
    text: &str,
    path: &Path,
    home: &Path,
    sources: &mut Sources,
) -> Result<Vec<Item>, ConfigError> {
    Reading { home, sources, depth: 0 }.file(text, path)
}

/// State of reading nested files.
struct Reading<'a> {
    home: &'a Path,
    sources: &'a mut Sources,
    depth: usize,
}

impl Reading<'_> {
    fn file(&mut self, text: &str, path: &Path) -> Result<Vec<Item>, ConfigError> {
        if self.sources.files.len() == MAX_FILES {
            let (path, keyword) = (path.to_owned(), "include".to_owned());
            let reason = format!("more than {MAX_FILES} files");
            return Err(ConfigError::Value { path, line: 1, keyword, reason });
        }
        self.sources.files.push(path.to_owned());
        let path = Arc::from(path);
        let lines = text.lines().zip(1..).filter_map(|(text, n)| Line::parse(text, &path, n));
        lines.map(|line| self.item(line)).collect()
    }

    fn item(&mut self, line: Line) -> Result<Item, ConfigError> {
        let fail = |reason| line.error(reason);
        match line.key.as_str() {
            "host" => line.args().map(Item::Host).map_err(fail),
            "match" => {
                let criteria = line.args().and_then(parse_match).map_err(fail)?;
                self.sources.note_unsupported(&line, &criteria);
                Ok(Item::Match(line, criteria))
            }
            "include" if self.depth == MAX_DEPTH => {
                Err(fail(format!("files include each other more than {MAX_DEPTH} deep")))
            }
            "include" => {
                let paths = included(&line, self.home).map_err(fail)?;
                self.depth += 1;
                let items = self.files(&paths);
                self.depth -= 1;
                Ok(Item::Include(items?))
            }
            _ => Ok(Item::Set(line)),
        }
    }

    fn files(&mut self, paths: &[PathBuf]) -> Result<Vec<Item>, ConfigError> {
        let mut items = Vec::new();
        // A pattern may match directories.
        for path in paths.iter().filter(|path| !path.is_dir()) {
            if let Some(text) = read(path, PermissionCheck::Strict)? {
                items.push(Item::Include(self.file(&text, path)?));
            }
        }
        Ok(items)
    }
}

/// Returns the files that an `Include` line names; those of a pattern are sorted.
fn included(line: &Line, home: &Path) -> Result<Vec<PathBuf>, String> {
    let system = line.path.starts_with("/etc/ssh");
    let base = if system { PathBuf::from("/etc/ssh") } else { home.join(".ssh") };
    let mut files = Vec::new();
    for arg in line.args()? {
        files.extend(glob(&base.join(tilde(&arg, home)?)));
    }
    Ok(files)
}

fn glob(pattern: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        match component {
            Component::Normal(name) if name.to_string_lossy().contains(['*', '?', '[']) => {
                let name = name.to_string_lossy();
                found = found.iter().flat_map(|dir| entries(dir, &name)).collect();
            }
            plain => found.iter_mut().for_each(|path| path.push(plain)),
        }
    }
    found
}

/// Lists the entries of `dir` that match `pattern`; none if it cannot be read, as in a shell.
fn entries(dir: &Path, pattern: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let fitting =
        entries.filter(|entry| matches_file_name(pattern, &entry.file_name().to_string_lossy()));
    let mut paths: Vec<_> = fitting.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
