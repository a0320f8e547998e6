//! Variables that ranks get from the shell in which rlaunch was started, from `-x` and from `--env-file`. In
//! this file, that shell is "this shell".
//!
//! Files of `--env-file` have the syntax of docker and dotenv. A line is `NAME=VALUE`, optionally after `export`;
//! `NAME` alone takes its value from this shell. `#` begins a comment at the start of a line, after a blank in an
//! unquoted value, and after a quoted value. Text in single quotes is literal; double quotes understand `\n`, `\t`,
//! `\r`, `\"`, `\\` and `\$`. Quoted values may span several lines. `$NAME` is not expanded.

use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::job::{EnvRule, EnvVar};
use rlaunch_text::{glob, text};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Options of the user for the environment of ranks.
#[derive(Clone, Debug, Default)]
pub struct EnvOptions {
    /// Arguments of `-x`: `NAME=VALUE`; `NAME`, with its value in this shell; or a pattern for names of
    /// variables of this shell.
    pub named: Vec<OsString>,
    /// Files of `--env-file`, which `-x` overrides.
    pub files: Vec<PathBuf>,
    /// Forward no variables of this shell except those that `named` and `files` ask for.
    pub nothing_else: bool,
    /// Let variables that a login shell sets on a host override those of this shell.
    pub login: bool,
    /// Whether all ranks run in the Slurm job of this shell. They get what this shell knows of that job.
    pub of_slurm: bool,
}

/// Error in `-x` or `--env-file`.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    #[error("-x: a variable's name is missing before the `=`, or altogether")]
    NoName,
    #[error("`-x {0}`: {0} is not set here")]
    Unset(String),
    #[error("`-x {0}`: a pattern takes no value")]
    Pattern(
        /// Pattern without the value, which may be secret.
        String,
    ),
    #[error(transparent)]
    File(#[from] EnvFileError),
    #[error("{}:{line}: {name} is not set here", path.display())]
    UnsetOfFile { path: PathBuf, line: usize, name: String },
}

impl EnvError {
    pub fn hint(&self) -> Option<String> {
        match self {
            EnvError::NoName | EnvError::Pattern(_) | EnvError::File(_) => None,
            EnvError::Unset(name) => Some(format!("export {name} first, or use -x {name}=VALUE")),
            EnvError::UnsetOfFile { name, .. } => {
                Some(format!("export {name} first, or write {name}=VALUE"))
            }
        }
    }
}

/// Returns the variables that every rank gets: those of this shell (`own`) except the ones that belong to a
/// host or to another launcher, then those of `--env-file` and `-x`. Also returns the names that these
/// options set.
pub fn forwarded(
    own: impl Iterator<Item = (OsString, OsString)>,
    options: &EnvOptions,
) -> Result<(Vec<EnvVar>, Vec<String>), EnvError> {
    let own: Vec<(OsString, OsString)> = own.collect();
    let mut env: Vec<EnvVar> = Vec::new();
    let is_of_job =
        |name: &OsStr| options.of_slurm && names::is_of_slurm_job(&name.to_string_lossy());
    let along = own
        .iter()
        .filter(|(name, _)| !options.nothing_else && (may_forward(name) || is_of_job(name)));
    for (name, value) in along {
        let rule = match &*name.to_string_lossy() {
            _ if options.login => EnvRule::Default,
            names::PATH => EnvRule::PathBefore,
            names::PYTHONPATH => EnvRule::PathAfter,
            _ => EnvRule::Set,
        };
        env.push(EnvVar { name: name.clone(), value: value.clone(), rule });
    }
    if !env.iter().any(|var| var.name == names::PYTHONUNBUFFERED) {
        set(&mut env, names::PYTHONUNBUFFERED.into(), "1".into());
    }
    let mut user_set_vars = Vec::new();
    for path in &options.files {
        for line in read_env_file(path)? {
            let value =
                line.value.map(OsString::from).or_else(|| value_of(&own, line.name.as_ref()));
            let value = value.ok_or_else(|| EnvError::UnsetOfFile {
                path: path.clone(),
                line: line.number,
                name: line.name.clone(),
            })?;
            user_set_vars.push(line.name.clone());
            set(&mut env, line.name.into(), value);
        }
    }
    add_requested(&mut env, &mut user_set_vars, &own, &options.named)?;
    Ok((env, user_set_vars))
}

/// Returns the variables of a further program: those of the first program, as [`forwarded`] returned them,
/// then those of the further program's own `-x` (`asked`). `own` has the variables of this shell.
pub fn extended(
    (mut env, mut user_set_vars): (Vec<EnvVar>, Vec<String>),
    own: impl Iterator<Item = (OsString, OsString)>,
    asked: &[OsString],
) -> Result<(Vec<EnvVar>, Vec<String>), EnvError> {
    let own: Vec<(OsString, OsString)> = own.collect();
    add_requested(&mut env, &mut user_set_vars, &own, asked)?;
    Ok((env, user_set_vars))
}

/// Adds the variables of `-x` to `env`, and their names to `user_set_vars`.
fn add_requested(
    env: &mut Vec<EnvVar>,
    user_set_vars: &mut Vec<String>,
    own: &[(OsString, OsString)],
    asked: &[OsString],
) -> Result<(), EnvError> {
    for asked in asked {
        for (name, value) in named(asked, own)? {
            user_set_vars.push(name.to_string_lossy().into_owned());
            set(env, name, value);
        }
    }
    Ok(())
}

/// Tells whether a variable of this shell may be forwarded: it belongs neither to a host, nor to a session there, nor to
/// another launcher.
fn may_forward(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    !names::is_node_specific(&name)
        && !names::is_of_session(&name)
        && !names::is_foreign_launch(&name)
}

fn set(env: &mut Vec<EnvVar>, name: OsString, value: OsString) {
    env.retain(|var| var.name != name);
    env.push(EnvVar { name, value, rule: EnvRule::Set });
}

fn value_of(own: &[(OsString, OsString)], name: &OsStr) -> Option<OsString> {
    own.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
}

/// Returns the variables of one argument of `-x`: `NAME=VALUE`; `NAME`, with its value in this shell; or a
/// pattern, which matches variables that belong to a host or to another launcher only if it begins like theirs, as
/// `SLURM_*` does.
fn named(
    asked: &OsStr,
    own: &[(OsString, OsString)],
) -> Result<Vec<(OsString, OsString)>, EnvError> {
    let mut parts = asked.as_bytes().splitn(2, |&byte| byte == b'=').map(OsStr::from_bytes);
    let (name, value) = (parts.next().unwrap_or_default(), parts.next());
    let text = name.to_string_lossy();
    if name.is_empty() {
        return Err(EnvError::NoName);
    }
    if text.contains(['*', '?']) {
        if value.is_some() {
            return Err(EnvError::Pattern(text.into_owned()));
        }
        let begins = text.split(['*', '?']).next().unwrap_or_default();
        let is_asked = |own: &OsStr| may_forward(own) || names::is_foreign_launch(begins);
        let fits = |own: &OsStr| glob::matches(&text, &own.to_string_lossy()) && is_asked(own);
        let found: Vec<_> = own.iter().filter(|(name, _)| fits(name)).cloned().collect();
        tracing::info!("-x {text}: {} variables", found.len());
        return Ok(found);
    }
    let value = value.map(OsStr::to_owned).or_else(|| value_of(own, name));
    let value = value.ok_or_else(|| EnvError::Unset(text.into_owned()))?;
    Ok(vec![(name.to_owned(), value)])
}

/// Maximum size of a file of variables, in bytes.
const MAX_ENV_FILE: u64 = 1 << 20;

/// Error about a file of variables.
#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}:{line}: {reason}", path.display())]
    EnvLine { path: PathBuf, line: usize, reason: String },
}

/// Variable in a file of variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvLine {
    pub name: String,
    /// Value, or `None` to take the value from the shell in which rlaunch was started.
    pub value: Option<String>,
    /// Number of the line with the name, from 1.
    pub number: usize,
}

fn read_env_file(path: &Path) -> Result<Vec<EnvLine>, EnvFileError> {
    let read = || {
        let mut bytes = Vec::new();
        let length = File::open(path)?.take(MAX_ENV_FILE + 1).read_to_end(&mut bytes)?;
        if length as u64 > MAX_ENV_FILE {
            return Err(io::Error::other(format!("longer than {} MiB", MAX_ENV_FILE >> 20)));
        }
        text::utf8(bytes)
    };
    let text = read().map_err(|source| EnvFileError::Read { path: path.to_owned(), source })?;
    parse_env_file(&text).map_err(|(line, reason)| EnvFileError::EnvLine {
        path: path.to_owned(),
        line,
        reason,
    })
}

/// Parses the content of a file of variables. The error is the number of a line, from 1, and what is wrong there.
pub fn parse_env_file(text: &str) -> Result<Vec<EnvLine>, (usize, String)> {
    let mut reading = Reading { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    let mut lines = Vec::new();
    while !reading.rest.is_empty() {
        let number = reading.line;
        let parsed = reading.variable();
        lines.extend(parsed.map_err(|reason| (number, reason))?.map(|(name, value)| EnvLine {
            name,
            value,
            number,
        }));
    }
    Ok(lines)
}

struct Reading<'a> {
    rest: &'a str,
    /// Number of the line on which `rest` begins, from 1.
    line: usize,
}

impl<'a> Reading<'a> {
    /// Returns the rest of the line without the newline, and moves past the newline.
    fn rest_of_line(&mut self) -> &'a str {
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        (self.rest, self.line) = (rest, self.line + 1);
        line
    }

    /// Parses the variable that begins on this line, as name and value, and moves past its last line. Returns
    /// `None` for an empty line or a comment.
    fn variable(&mut self) -> Result<Option<(String, Option<String>)>, String> {
        let line = self.rest.split('\n').next().unwrap_or_default();
        let start = line.trim_start();
        if start.is_empty() || start.starts_with('#') {
            self.rest_of_line();
            return Ok(None);
        }
        let bare = start.strip_prefix("export").filter(|bare| bare.starts_with([' ', '\t']));
        let start = bare.map_or(start, str::trim_start);
        let Some((name, value)) = start.split_once('=') else {
            let name = check_name(start.split(" #").next().unwrap_or(start).trim_end())?;
            self.rest_of_line();
            return Ok(Some((name, None)));
        };
        let name = check_name(name.trim_end())?;
        // Blanks may precede a quoted value.
        let inner = value.trim_start_matches([' ', '\t']);
        let value = match inner.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                self.rest = &self.rest[line.len() - inner.len() + 1..];
                self.quoted(quote)?
            }
            _ => {
                self.rest_of_line();
                bare_value(value)
            }
        };
        if value.contains('\0') {
            return Err(format!("the value of {name} has a null byte"));
        }
        Ok(Some((name, Some(value))))
    }

    /// Parses a quoted value, after which only a comment may follow.
    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let mut value = String::new();
        let mut characters = self.rest.char_indices();
        let end = loop {
            let Some((at, character)) = characters.next() else {
                return Err(format!("a quote {quote} that does not end"));
            };
            match character {
                _ if character == quote => break at + 1,
                '\\' if quote == '"' => match characters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, 't')) => value.push('\t'),
                    Some((_, 'r')) => value.push('\r'),
                    Some((_, same @ ('"' | '\\' | '$'))) => value.push(same),
                    Some((_, other)) => value.extend(['\\', other]),
                    None => return Err(format!("a quote {quote} that does not end")),
                },
                character => value.push(character),
            }
        };
        let (inside, rest) = self.rest.split_at(end);
        (self.rest, self.line) = (rest, self.line + inside.matches('\n').count());
        let behind = self.rest_of_line().trim();
        if behind.is_empty() || behind.starts_with('#') {
            return Ok(value);
        }
        // The message leaves out the text, which may be part of a secret.
        Err("more stands behind the closing quote".to_owned())
    }
}

/// Parses an unquoted value, without a comment and trailing blanks.
fn bare_value(text: &str) -> String {
    let comment = text
        .char_indices()
        .find(|&(at, character)| character == '#' && text[..at].ends_with(char::is_whitespace));
    let value = comment.map_or(text, |(at, _)| &text[..at]);
    value.trim().to_owned()
}

fn check_name(name: &str) -> Result<String, String> {
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'');
    if name.is_empty() {
        return Err("a variable's name is missing".to_owned());
    }
    if name.contains(is_bad) {
        return Err(format!("{name:?} is no name of a variable"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shell() -> Vec<(OsString, OsString)> {
        [("HOME", "/h"), ("PATH", "/bin"), ("NCCL_DEBUG", "INFO"), ("PMI_RANK", "0"), ("A", "1")]
            .map(|(n, v)| (n.into(), v.into()))
            .to_vec()
    }

    fn names(env: &[EnvVar]) -> Vec<String> {
        env.iter().map(|v| format!("{}={}", v.name.display(), v.value.display())).collect()
    }

    #[test]
    fn what_belongs_elsewhere_stays_here() {
        let (env, _) = forwarded(shell().into_iter(), &EnvOptions::default()).unwrap();
        let expected = ["PATH=/bin", "NCCL_DEBUG=INFO", "A=1", "PYTHONUNBUFFERED=1"];
        assert_eq!(names(&env), expected);
    }

    #[test]
    fn what_is_asked_for_wins() {
        let asked = ["A=2", "HOME", "PYTHONUNBUFFERED=", "RANK=7"].map(OsString::from);
        let options = EnvOptions { named: asked.to_vec(), ..EnvOptions::default() };
        let (env, user_set_vars) = forwarded(shell().into_iter(), &options).unwrap();
        assert_eq!(user_set_vars, ["A", "HOME", "PYTHONUNBUFFERED", "RANK"]);
        let env = names(&env);
        for expected in ["A=2", "HOME=/h", "PYTHONUNBUFFERED=", "RANK=7"] {
            assert!(env.contains(&expected.to_owned()), "{expected}");
        }
    }

    #[test]
    fn bytes_of_a_value_are_kept() {
        let odd = |text: &[u8]| OsStr::from_bytes(text).to_owned();
        let own = [(odd(b"B"), odd(b"\x80=")), (odd(b"N\xff"), odd(b"\xfe"))];
        let asked = [odd(b"A=\xff=b"), odd(b"B"), odd(b"N\xff"), odd(b"M\xff=1")];
        let options =
            EnvOptions { named: asked.to_vec(), nothing_else: true, ..EnvOptions::default() };
        let (env, _) = forwarded(own.into_iter(), &options).unwrap();
        let found = env[1..].iter().map(|var| (var.name.as_bytes(), var.value.as_bytes()));
        let expected: [(&[u8], &[u8]); 4] =
            [(b"A", b"\xff=b"), (b"B", b"\x80="), (b"N\xff", b"\xfe"), (b"M\xff", b"1")];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn another_program_has_what_the_first_has_and_its_own() {
        let options =
            EnvOptions { named: vec!["A=2".into(), "B=1".into()], ..EnvOptions::default() };
        let first = forwarded(shell().into_iter(), &options).unwrap();
        let own = ["B=3", "NCCL_DEBUG=WARN"].map(OsString::from);
        let (env, user_set_vars) = extended(first, shell().into_iter(), &own).unwrap();
        assert_eq!(user_set_vars, ["A", "B", "B", "NCCL_DEBUG"]);
        let expected = ["PATH=/bin", "PYTHONUNBUFFERED=1", "A=2", "B=3", "NCCL_DEBUG=WARN"];
        assert_eq!(names(&env), expected);
    }

    #[test]
    fn a_name_without_a_value_must_be_set() {
        let ask = |x: &str| {
            let options = EnvOptions { named: vec![x.into()], ..EnvOptions::default() };
            forwarded(shell().into_iter(), &options).unwrap_err().to_string()
        };
        assert_eq!(ask("NOPE"), "`-x NOPE`: NOPE is not set here");
        // The value may be secret.
        let nameless = "-x: a variable's name is missing before the `=`, or altogether";
        assert_eq!((ask("=1"), ask("")), (nameless.to_owned(), nameless.to_owned()));
        assert_eq!(ask("A*=1"), "`-x A*`: a pattern takes no value");
    }

    #[test]
    fn a_pattern_takes_what_may_go_along() {
        let named = |pattern: &str| EnvOptions {
            named: vec![pattern.into()],
            nothing_else: true,
            ..EnvOptions::default()
        };
        let of = |pattern: &str| {
            let (env, user_set_vars) = forwarded(shell().into_iter(), &named(pattern)).unwrap();
            (names(&env), user_set_vars)
        };
        assert_eq!(of("NCCL_*").0, ["PYTHONUNBUFFERED=1", "NCCL_DEBUG=INFO"]);
        assert_eq!(of("*").1, ["PATH", "NCCL_DEBUG", "A"]);
        assert!(of("H?ME").1.is_empty() && of("PMI*").1.is_empty());
        assert_eq!(of("HOME").1, ["HOME"]);
        let own = shell().into_iter().map(|(name, _)| name);
        let of_host: Vec<OsString> = own.filter(|name| names::is_host_variable(name)).collect();
        assert_eq!(of_host, ["HOME", "PATH"]);
    }

    #[test]
    fn files_count_before_this_shell_and_after_what_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("run.env");
        std::fs::write(&path, "A=file\nB=file\nHOME\n\nNOPE\n").unwrap();
        let mut options = EnvOptions { named: vec!["B=typed".into()], ..EnvOptions::default() };
        options.files.push(path.clone());
        let error = forwarded(shell().into_iter(), &options).unwrap_err().to_string();
        assert!(error.ends_with("run.env:5: NOPE is not set here"), "{error}");
        std::fs::write(&path, "A=file\nB=file\nHOME\n").unwrap();
        let (env, user_set_vars) = forwarded(shell().into_iter(), &options).unwrap();
        assert_eq!(user_set_vars, ["A", "B", "HOME", "B"]);
        assert_eq!(names(&env)[3..], ["A=file", "HOME=/h", "B=typed"]);
    }

    #[test]
    fn a_login_counts_before_this_shell() {
        let options =
            EnvOptions { login: true, named: vec!["A=2".into()], ..EnvOptions::default() };
        let (env, _) = forwarded(shell().into_iter(), &options).unwrap();
        let rule = |name: &str| env.iter().find(|var| var.name == name).map(|var| var.rule);
        assert_eq!(rule("PATH"), Some(EnvRule::Default));
        assert_eq!(rule("NCCL_DEBUG"), Some(EnvRule::Default));
        assert_eq!(rule("A"), Some(EnvRule::Set));
    }

    fn parsed(text: &str) -> Vec<(String, Option<String>)> {
        parse_env_file(text).unwrap().into_iter().map(|line| (line.name, line.value)).collect()
    }

    #[test]
    fn lines_are_read_as_docker_and_dotenv_have_them() {
        let text = "\u{feff}# a comment\n\nA=1\nB = two words # said\r\nexport C=#x#y\n  D=\n\
                    E='a $b \\n # c' # d\nF=\"a\\n\\\"b\\\" \\$c \\d\"\nG='one\ntwo'\nHERE\nI=a=b\n\
                    J= # none\nexported=7\nK=\"last\"";
        let expected = [
            ("A", "1"),
            ("B", "two words"),
            ("C", "#x#y"),
            ("D", ""),
            ("E", "a $b \\n # c"),
            ("F", "a\n\"b\" $c \\d"),
            ("G", "one\ntwo"),
            ("HERE", "(none)"),
            ("I", "a=b"),
            ("J", ""),
            ("exported", "7"),
            ("K", "last"),
        ];
        let expected = expected
            .map(|(name, value)| (name.to_owned(), (value != "(none)").then(|| value.to_owned())));
        assert_eq!(parsed(text), expected);
        // A value of two lines does not shift the line number of the next name.
        let numbers: Vec<usize> =
            parse_env_file(text).unwrap().iter().map(|line| line.number).collect();
        assert_eq!(numbers, [3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let parse_error = |text: &str| parse_env_file(text).unwrap_err();
        assert_eq!(parse_error("A=1\n=2\n"), (2, "a variable's name is missing".to_owned()));
        assert_eq!(parse_error("A B=2\n"), (1, "\"A B\" is no name of a variable".to_owned()));
        assert_eq!(parse_error("\nA='x\n\n"), (2, "a quote ' that does not end".to_owned()));
        assert_eq!(parse_error("A=\"x\\"), (1, "a quote \" that does not end".to_owned()));
        assert_eq!(parse_error("A='x'y\n"), (1, "more stands behind the closing quote".to_owned()));
        assert!(parse_error("A=\0\n").1.contains("null byte"));
        let error = read_env_file(Path::new("/no/such.env")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /no/such.env");
    }

    proptest! {
        #[test]
        fn what_is_written_in_quotes_comes_back(values in prop::collection::vec("[^\0\r]{0,20}", 0..6)) {
            let quoted = |value: &String| {
                value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$")
            };
            let lines = values.iter().zip(1..).map(|(v, n)| format!("V{n}=\"{}\"\n", quoted(v)));
            let read: Vec<_> = parsed(&lines.collect::<String>());
            let read: Vec<String> = read.into_iter().filter_map(|(_, value)| value).collect();
            prop_assert_eq!(read, values);
        }

        #[test]
        fn whatever_is_wrong_is_on_a_line_of_the_file(text in "[A-C =\"'#\\\\\n]{0,40}") {
            if let Err((line, _)) = parse_env_file(&text) {
                prop_assert!((1..=text.lines().count()).contains(&line));
            }
        }
    }
}
