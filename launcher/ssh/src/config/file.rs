//! Parsing of configuration files, and of the files that they include, into blocks and lines.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::ConfigError;
use super::line::Line;
use super::permissions::{self, Fault};
use super::scope::tilde;
use rlaunch_text::glob::matches_file_name;

/// Maximum depth of nested includes, as in OpenSSH.
const MAX_DEPTH: usize = 16;
/// Maximum size of a configuration file, in bytes.
const LONGEST: u64 = 4 << 20;
/// Maximum number of files in total. Without this limit, a file that includes itself twice would be read
/// 2^16 times.
const MAX_FILES: usize = 4096;

/// Element of a parsed file. A `Host` or `Match` decides for which hosts the elements after it, up to the
/// next `Host` or `Match`, apply.
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
    /// Comma-separated patterns; for [`Subject::Exec`], the command.
    pub(super) patterns: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Subject {
    All,
    Host,
    OriginalHost,
    User,
    LocalUser,
    /// Met if a command exits with code 0.
    Exec,
    /// Met in the second pass, which uses the host name that the first pass found.
    Canonical,
    /// Met in the second pass, which takes place only if some block has this criterion.
    Final,
    /// Criterion that rlaunch does not support; its block never matches.
    Unsupported,
}

/// Tells whether any block has `Match final`, which needs a second pass over the files.
pub(super) fn has_match_final(items: &[Item]) -> bool {
    mentions(items, Subject::Final)
}

/// Tells whether any block has `Match exec`, which runs a command.
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

/// Paths of the files that were read, and notes on them.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// Existing files in the order of reading.
    pub(super) files: Vec<PathBuf>,
    /// Messages about blocks that are not supported, printed by `rlaunch ssh-config`. Each begins with file
    /// and line, such as `/home/me/.ssh/config:7: `.
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
        // `host=a` means `host a`.
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
            // The number of words of an unsupported criterion is unknown. The other words do not matter,
            // since the block never matches.
            break;
        }
    }
    if criteria.is_empty() { Err("a criterion is missing".into()) } else { Ok(criteria) }
}

/// Check of a file's owner and permissions before it is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermissionCheck {
    /// Refuses a file to which accounts other than the user and root may write. Used for the user's default
    /// configuration, for a file that an rlaunch.toml names, and for included files.
    Strict,
    /// No check. Used for a file that the user has named, and for the system's configuration.
    None,
}

/// Reads the file `path`; `None` if it does not exist.
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
        // Invalid UTF-8 is replaced, because comments may be in another encoding.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// Parses `text`, the content of the file `path`, and the files that it includes.
pub(super) fn parse(
    text: &str,
    path: &Path,
    home: &Path,
    sources: &mut Sources,
) -> Result<Vec<Item>, ConfigError> {
    Reading { home, sources, depth: 0 }.file(text, path)
}

/// State of reading a file and the files that it includes.
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
        // Patterns may match directories too, which are skipped.
        for path in paths.iter().filter(|path| !path.is_dir()) {
            if let Some(text) = read(path, PermissionCheck::Strict)? {
                items.push(Item::Include(self.file(&text, path)?));
            }
        }
        Ok(items)
    }
}

/// Returns the paths that an `Include` line names. The paths that match a pattern are sorted.
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

/// Lists the entries of `dir` that match `pattern`. A directory that cannot be read counts as empty, as in
/// a shell.
fn entries(dir: &Path, pattern: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let fitting =
        entries.filter(|entry| matches_file_name(pattern, &entry.file_name().to_string_lossy()));
    let mut paths: Vec<_> = fitting.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
