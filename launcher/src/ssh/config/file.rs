//! A configuration file as blocks and lines, with what it includes.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::ConfigError;
use super::line::Line;
use super::pattern::file_name;
use super::scope::tilde;

/// Files within files, as deep as OpenSSH allows.
const MAX_DEPTH: usize = 16;

/// A parsed file: what the lines between two blocks say holds when the first of them matches.
#[derive(Debug)]
pub(super) enum Item {
    Host(Vec<String>),
    Match(Vec<Criterion>),
    Set(Line),
    Include(Vec<Item>),
}

#[derive(Debug)]
pub(super) struct Criterion {
    pub(super) negated: bool,
    pub(super) subject: Subject,
    pub(super) patterns: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Subject {
    All,
    Host,
    OriginalHost,
    User,
    LocalUser,
    /// Anything else, `exec` for one: such a block never matches.
    Unsupported,
}

fn parse_match(words: Vec<String>) -> Result<Vec<Criterion>, String> {
    let mut criteria = Vec::new();
    // `host=a` is `host a`.
    let split = |word: String| match word.split_once('=') {
        Some((name, value)) => vec![name.to_owned(), value.to_owned()],
        None => vec![word],
    };
    let mut words = words.into_iter().flat_map(split);
    while let Some(name) = words.next() {
        let (negated, bare) = match name.strip_prefix('!') {
            Some(bare) => (true, bare),
            None => (false, name.as_str()),
        };
        let subject = match bare.to_ascii_lowercase().as_str() {
            "all" => Subject::All,
            "host" => Subject::Host,
            "originalhost" => Subject::OriginalHost,
            "user" => Subject::User,
            "localuser" => Subject::LocalUser,
            _ => Subject::Unsupported,
        };
        let patterns = match subject {
            Subject::All | Subject::Unsupported => String::new(),
            _ => words.next().ok_or_else(|| format!("{name} needs a pattern"))?,
        };
        criteria.push(Criterion { negated, subject, patterns });
        if subject == Subject::Unsupported {
            break; // How many words it takes is unknown, and it decides the block anyway.
        }
    }
    if criteria.is_empty() { Err("no criterion".into()) } else { Ok(criteria) }
}

/// The content of `path`, or nothing where there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    match fs::read(path) {
        // A comment in some older encoding must not spoil the file.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

pub(super) fn parse(
    text: &str,
    path: &Path,
    home: &Path,
    depth: usize,
) -> Result<Vec<Item>, ConfigError> {
    let path = Arc::from(path);
    let lines = text.lines().zip(1..).filter_map(|(text, n)| Line::parse(text, &path, n));
    lines.map(|line| item(line, home, depth)).collect()
}

fn item(line: Line, home: &Path, depth: usize) -> Result<Item, ConfigError> {
    let fail = |reason| line.error(reason);
    match line.key.as_str() {
        "host" => line.args().map(Item::Host).map_err(fail),
        "match" => line.args().and_then(parse_match).map(Item::Match).map_err(fail),
        "include" if depth == MAX_DEPTH => {
            Err(line.error(format!("files include each other more than {MAX_DEPTH} deep")))
        }
        "include" => {
            let mut items = Vec::new();
            // A pattern may find directories; they hold no lines.
            for path in included(&line, home).map_err(fail)?.into_iter().filter(|p| !p.is_dir()) {
                if let Some(text) = read(&path)? {
                    items.push(Item::Include(parse(&text, &path, home, depth + 1)?));
                }
            }
            Ok(Item::Include(items))
        }
        _ => Ok(Item::Set(line)),
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
