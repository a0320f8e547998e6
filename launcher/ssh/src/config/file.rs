//! A configuration file as blocks and lines, with what it includes.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::ConfigError;
use super::line::Line;
use super::permissions::{self, Fault};
use super::scope::tilde;
use rlaunch_console::glob::file_name;

/// Files within files, as deep as OpenSSH allows.
const MAX_DEPTH: usize = 16;
/// The longest file, in bytes.
const LONGEST: u64 = 4 << 20;
/// Files in all: a file that includes itself twice would otherwise be read 2^16 times.
const MAX_FILES: usize = 4096;

/// A parsed file: what the lines between two blocks say holds when the first of them matches.
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
    /// Or the command of [`Subject::Exec`].
    pub(super) patterns: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Subject {
    All,
    Host,
    OriginalHost,
    User,
    LocalUser,
    /// A command that ends with code 0.
    Exec,
    /// The files are read for the second time, by the name that the first has found.
    Canonical,
    /// The same, and there is to be a second time.
    Final,
    /// Anything else: such a block never matches.
    Unsupported,
}

/// Whether a block of these is about a second reading, and so asks for one.
pub(super) fn wants_final(items: &[Item]) -> bool {
    mentions(items, Subject::Final)
}

/// Whether a command may decide about a block of these.
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

/// What was read, beside what it says.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// The files that exist, in the order in which they were read.
    pub(super) files: Vec<PathBuf>,
    /// What is not followed, for whoever asks: `/home/me/.ssh/config:7: ...`.
    pub(super) notes: Vec<String>,
}

impl Sources {
    fn note_unsupported(&mut self, line: &Line, criteria: &[Criterion]) {
        if criteria.iter().any(|criterion| criterion.subject == Subject::Unsupported) {
            let place = format!("{}:{}", line.path.display(), line.number);
            self.notes.push(format!("{place}: rlaunch takes `match {}` as never met", line.rest));
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
            break; // How many words it takes is unknown, and it decides the block anyway.
        }
    }
    if criteria.is_empty() { Err("no criterion".into()) } else { Ok(criteria) }
}

/// Condition under which a file is obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The user's and root's, so nobody else may be able to write it: the user's own configuration, one
    /// that an rlaunch.toml names, and whatever any configuration includes.
    IfOwn,
    /// Anybody's: the user has named it, or the system has it.
    Always,
}

/// The content of `path`, or nothing where there is no such file.
pub(super) fn read(path: &Path, trust: Trust) -> Result<Option<String>, ConfigError> {
    let mut fault = None;
    let mut read = || {
        let mut bytes = Vec::new();
        let file = File::open(path)?;
        if trust == Trust::IfOwn {
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
        // A comment in some older encoding must not spoil the file.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// Parses `text`, the content of `path`, and what it includes.
pub(super) fn parse(
    text: &str,
    path: &Path,
    home: &Path,
    sources: &mut Sources,
) -> Result<Vec<Item>, ConfigError> {
    Reading { home, sources, depth: 0 }.file(text, path)
}

/// Files that are being read, one within the other.
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
        // A pattern may find directories; they hold no lines.
        for path in paths.iter().filter(|path| !path.is_dir()) {
            if let Some(text) = read(path, Trust::IfOwn)? {
                items.push(Item::Include(self.file(&text, path)?));
            }
        }
        Ok(items)
    }
}

/// The files that an `Include` line names, each pattern's in order of their names.
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

/// What fits `pattern` in `dir`; a directory that cannot be read holds nothing, as in a shell.
fn entries(dir: &Path, pattern: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let fitting = entries.filter(|entry| file_name(pattern, &entry.file_name().to_string_lossy()));
    let mut paths: Vec<_> = fitting.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
