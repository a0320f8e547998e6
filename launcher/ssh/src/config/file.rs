//! Parsing of configuration files, and of the files that they include, into blocks and lines; check of their owner and
//! permissions.

use super::ConfigError;
use super::scope::tilde;
use crate::files::{self, Content};
use nix::unistd::Uid;
use rlaunch_text::glob::matches_file_name;
use rlaunch_text::text;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

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

/// Tells whether any block has a criterion of this kind.
pub(super) fn mentions(items: &[Item], subject: Subject) -> bool {
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
    let Content { metadata, bytes } = match files::read(path, LONGEST) {
        Ok(content) => content,
        Err(error) if files::is_missing(&error) => return Ok(None),
        Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
    };
    if check == PermissionCheck::Strict
        && let Some(Fault { reason, cure }) = permission_fault(path, &metadata)
    {
        return Err(ConfigError::Unsafe { path: path.to_owned(), reason, cure });
    }
    text::refuse_utf16(&bytes)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    // Invalid UTF-8 is replaced, because comments may be in another encoding. With a byte order mark, the
    // first keyword would not be one.
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    Ok(Some(String::from_utf8_lossy(text).into_owned()))
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

/// Line of a configuration file: its keyword in lower case (`key`), and its value as written (`rest`).
#[derive(Debug)]
pub(super) struct Line {
    pub(super) key: String,
    pub(super) rest: String,
    path: Arc<Path>,
    pub(super) number: usize,
}

impl Line {
    fn parse(text: &str, path: &Arc<Path>, number: usize) -> Option<Self> {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return None;
        }
        let end = text.find(|c: char| c.is_ascii_whitespace() || c == '=').unwrap_or(text.len());
        let (key, rest) = text.split_at(end);
        let rest = rest.trim_start();
        let rest = rest.strip_prefix('=').unwrap_or(rest).trim_start().to_owned();
        let key = key.trim_matches('"').to_ascii_lowercase();
        Some(Self { key, rest, path: Arc::clone(path), number })
    }

    pub(super) fn error(&self, reason: String) -> ConfigError {
        let (path, keyword) = (self.path.to_path_buf(), self.key.clone());
        ConfigError::Value { path, line: self.number, keyword, reason }
    }

    /// Splits the value into words. Quotes group words, a backslash escapes a quote, backslash or space,
    /// and a word that begins with `#` starts a comment. Returns an error if a quote is not closed.
    pub(super) fn words(&self) -> Result<Vec<String>, String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        let mut chars = self.rest.chars().peekable();
        while let Some(c) = chars.next() {
            match (c, quote) {
                ('#', None) if word.is_none() => break,
                (' ' | '\t', None) => words.extend(word.take()),
                (_, Some(open)) if c == open => quote = None,
                ('"' | '\'', None) => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                ('\\', _) => {
                    let escapable = |&next: &char| {
                        matches!(next, '"' | '\'' | '\\') || (quote.is_none() && next == ' ')
                    };
                    let literal = chars.next_if(escapable).unwrap_or('\\');
                    word.get_or_insert_default().push(literal);
                }
                _ => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        if quote.is_some() { Err("a quote is not closed".into()) } else { Ok(words) }
    }

    pub(super) fn args(&self) -> Result<Vec<String>, String> {
        let words = self.words()?;
        if words.is_empty() || words.iter().any(String::is_empty) {
            return Err("the value is missing".into());
        }
        Ok(words)
    }

    pub(super) fn one(&self) -> Result<String, String> {
        let mut args = self.args()?;
        if args.len() > 1 {
            return Err(format!("`{}` is an extra value; one is expected", args[1]));
        }
        Ok(args.remove(0))
    }
}

/// Reason why a file is refused, and the shell command that corrects it.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    reason: String,
    cure: String,
}

/// Finds a reason to refuse a file of the user's configuration; `None` if there is none. As in ssh(1), only
/// the user and root may be able to write to the file, because commands in it run as the user.
fn permission_fault(file: &Path, metadata: &Metadata) -> Option<Fault> {
    let (owner, us) = (metadata.uid(), Uid::current().as_raw());
    if owner != 0 && owner != us {
        let reason = format!("it belongs to uid {owner}, and this is uid {us}");
        return Some(Fault { reason, cure: format!("sudo chown {us} {}", file.display()) });
    }
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o022 != 0).then(|| Fault {
        reason: format!("others may write to it (mode {mode:o})"),
        cure: format!("chmod go-w {}", file.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_keyword() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        fs::write(&file, "\u{feff}Host a\n").unwrap();
        let text = read(&file, PermissionCheck::None).unwrap();
        assert_eq!(text.as_deref(), Some("Host a\n"));
        // Read as UTF-8, such a file would have no settings.
        fs::write(&file, b"\xff\xfeH\0o\0s\0t\0").unwrap();
        let error = read(&file, PermissionCheck::None).unwrap_err();
        assert!(
            matches!(&error, ConfigError::Read { source, .. } if source.to_string().contains("iconv"))
        );
        assert_eq!(error.hint(), None);
    }

    #[test]
    fn a_file_that_others_may_write_to() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        fs::write(&file, "").unwrap();
        let fault_with = |mode| {
            fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            permission_fault(&file, &fs::metadata(&file).unwrap())
        };
        assert_eq!(fault_with(0o644), None);
        for mode in [0o664, 0o646] {
            let Fault { reason, cure } = fault_with(mode).unwrap();
            assert!(reason.contains(&format!("(mode {mode:o})")), "{reason}");
            assert!(cure.starts_with("chmod go-w /"), "{cure}");
        }
        if Uid::current().is_root() {
            std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
            let Fault { reason, cure } = fault_with(0o600).unwrap();
            assert!(reason.contains("uid 1000") && cure.contains("chown 0 /"), "{reason} {cure}");
        }
    }
}
