//! The command line of a job, repeated in hints as it should have been typed.

use crate::shell::quoted;
use crate::shell::without_secrets;
use std::ffi::{OsStr, OsString};
use std::iter;
use std::path::Path;

/// Length from which on the rest of a repeated command line is left out, in characters.
const LONGEST: usize = 240;

/// Command line of a job with one program.
#[derive(Clone, Copy, Debug)]
pub struct TypedJob<'a> {
    /// Words between rlaunch's own name and the program.
    options: &'a [OsString],
    program: &'a [OsString],
}

impl<'a> TypedJob<'a> {
    /// Splits the words that the user typed, of which the first is rlaunch's name and the last are `program`. `None`
    /// if they are not, as with several programs.
    pub fn new(typed: &'a [OsString], program: &[OsString]) -> Option<TypedJob<'a>> {
        let (_, words) = typed.split_first()?;
        let at = words.len().checked_sub(program.len())?;
        let (options, own) = words.split_at(at);
        (own == program && !own.is_empty()).then_some(TypedJob { options, program: own })
    }

    /// Makes the command line of a program without options.
    pub fn of_program(program: &'a [OsString]) -> TypedJob<'a> {
        TypedJob { options: &[], program }
    }

    /// Returns the command line with these options; the options alone if there is no line, or one with another value of
    /// the first option.
    pub fn or_options(typed: Option<TypedJob<'_>>, options: &[&str]) -> String {
        let words: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        let is_given =
            |typed: &TypedJob<'_>| options.iter().take(1).any(|o| typed.has_option_value(o));
        let typed = typed.filter(|typed| !is_given(typed));
        typed.map_or_else(|| options.join(" "), |typed| typed.with_options(&words))
    }

    /// Returns the first word of the program.
    pub fn program(&self) -> &'a OsStr {
        self.program.first().map(OsString::as_os_str).unwrap_or_default()
    }

    /// Returns the program and its arguments.
    pub fn words(&self) -> &'a [OsString] {
        self.program
    }

    /// Returns the command line with another program and other arguments.
    #[must_use]
    pub fn with_program<'b>(self, program: &'b [OsString]) -> TypedJob<'b>
    where
        'a: 'b,
    {
        TypedJob { options: self.options, program }
    }

    /// Tells whether a word before the program begins so.
    pub fn has_option_value(&self, begin: &str) -> bool {
        self.options.iter().any(|word| word.as_encoded_bytes().starts_with(begin.as_bytes()))
    }

    /// Returns the command line with these words behind its options.
    pub fn with_options(&self, added: &[&OsStr]) -> String {
        self.with(added, self.program)
    }

    /// Returns the command line with what it should be, if its program was meant for a shell: a line of several words, a
    /// variable that is set before a program, or a builtin.
    pub fn for_shell(&self) -> Option<String> {
        let text = self.program.first()?.to_str()?;
        let in_shell = |option: &str, line: String| {
            self.with(&[], &["bash".into(), option.into(), OsString::from(line)])
        };
        // As a part of one word, secrets would not be known for what they are.
        let rest = without_secrets(self.program).into_iter().skip(1);
        let rest: Vec<String> = rest.map(|word| quoted(OsStr::new(&word))).collect();
        if is_line(text) {
            let words: Vec<String> = iter::once(text.to_owned()).chain(rest).collect();
            let line = in_shell("-c", words.join(" "));
            return Some(format!("it is one word; if it is a line for a shell: {line}"));
        }
        if is_assignment(text) {
            let count =
                self.program.iter().take_while(|word| word.to_str().is_some_and(is_assignment));
            let (variables, program) = self.program.split_at(count.count());
            let dashed = variables.iter().flat_map(|word| [OsStr::new("-x"), word.as_os_str()]);
            let none: &[OsString] = &["PROGRAM".into()];
            let program = if program.is_empty() { none } else { program };
            let line = self.with(&dashed.collect::<Vec<_>>(), program);
            return Some(format!("-x sets a variable for the ranks: {line}"));
        }
        let rest = if rest.is_empty() { "…".to_owned() } else { rest.join(" ") };
        // Login shells alone know how to load modules.
        let option = if text == "module" { "-lc" } else { "-c" };
        let line = || in_shell(option, format!("{text} {rest}"));
        OF_SHELLS.contains(&text).then(|| format!("only shells understand `{text}`: {}", line()))
    }

    /// Returns the command line with the first word as its hosts, if that looks like a list of hosts and none are named.
    pub fn for_hosts(&self) -> Option<String> {
        let (hosts, program) = self.program.split_first()?;
        let are_named = self.has_option_value("-H") || self.has_option_value("--host");
        let are_meant = !are_named && hosts.to_str().is_some_and(are_hosts);
        let none: &[OsString] = &["PROGRAM".into()];
        let program = if program.is_empty() { none } else { program };
        let line = || self.with(&[OsStr::new("-H"), hosts], program);
        are_meant.then(|| format!("-H names hosts: {}", line()))
    }

    fn with(&self, added: &[&OsStr], program: &[OsString]) -> String {
        let begins_with_dash =
            program.first().is_some_and(|word| word.as_encoded_bytes().starts_with(b"-"));
        let (dashes, options) = match self.options.split_last() {
            Some((last, options)) if last == "--" => (begins_with_dash, options),
            _ => (false, self.options),
        };
        let added = added.iter().map(|word| (*word).to_owned());
        let dashes = dashes.then(|| OsString::from("--"));
        let words = options.iter().cloned().chain(added).chain(dashes);
        command_line(&words.chain(program.iter().cloned()).collect::<Vec<_>>())
    }
}

/// Returns a command line of rlaunch, for pasting into a shell. `words` are those behind its name. Secrets are left out,
/// and the end of a long line.
pub fn command_line(words: &[OsString]) -> String {
    let mut length = 0;
    let words = without_secrets(words).into_iter().map(|word| quoted(OsStr::new(&word)));
    let mut shown = vec!["rlaunch".to_owned()];
    for word in words {
        length += word.chars().count() + 1;
        if length > LONGEST {
            shown.push("…".to_owned());
            break;
        }
        shown.push(word);
    }
    shown.join(" ")
}

/// Returns the interpreter that the name of a script stands for.
pub fn interpreter_of(script: &OsStr) -> Option<&'static str> {
    match Path::new(script).extension()?.to_str()? {
        "py" => Some("python3"),
        "sh" => Some("bash"),
        _ => None,
    }
}

/// Words that are typed like programs but are part of shells. Few systems also have files of these names.
const OF_SHELLS: &[&str] = &[
    ".", "[[", "alias", "builtin", "cd", "command", "eval", "export", "for", "if", "module",
    "popd", "pushd", "set", "source", "time", "trap", "type", "ulimit", "umask", "unset", "wait",
    "while",
];

/// Tells whether a word is a line that only a shell takes apart.
fn is_line(text: &str) -> bool {
    let is_of_lines = |c: char| c.is_whitespace() || "|&;<>$`".contains(c);
    text.contains(is_of_lines) || text.starts_with('~')
}

/// Tells whether a word that names no program looks like a list of hosts: `a,b`, `me@a`, `a:2` or `n[01-16]`.
fn are_hosts(text: &str) -> bool {
    let has_slots = text.rsplit_once(':').is_some_and(|(_, slots)| slots.parse::<u32>().is_ok());
    let has_range = text.contains('[') && text.ends_with(']');
    !text.contains('/') && (text.contains(['@', ',']) || has_slots || has_range)
}

/// Tells whether a word sets a variable, as before a program in a shell.
fn is_assignment(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| is_variable(name))
}

fn is_variable(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(is_part) && !name.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    fn for_shell(options: &[&str], program: &[&str]) -> String {
        let typed = words(&[&["/usr/bin/rlaunch"][..], options, program].concat());
        let program = words(program);
        TypedJob::new(&typed, &program).unwrap().for_shell().unwrap_or_default()
    }

    #[test]
    fn what_was_meant_for_a_shell_is_typed_for_one() {
        for line in ["cd /tmp && ls", "python3 train.py", "ls|wc", "$HOME/bin/x", "~/x", "A=1 x"] {
            let expected = format!(": rlaunch -H a,b bash -c '{line}'");
            let hint = for_shell(&["-H", "a,b"], &[line]);
            assert!(hint.ends_with(&expected), "{line}: {hint}");
        }
        let hint = for_shell(&["-H", "a"], &["$HOME/prog", "--lr", "1", "a b"]);
        let expected = r": rlaunch -H a bash -c '$HOME/prog --lr 1 '\''a b'\'''";
        assert!(hint.ends_with(expected), "{hint}");
        assert!(!for_shell(&[], &["$HOME/prog", "--token", "abc"]).contains("abc"));
        let hint = for_shell(&["-H", "a"], &["FOO=1", "BAR=2", "python3", "x"]);
        assert!(hint.ends_with(": rlaunch -H a -x FOO=1 -x BAR=2 python3 x"), "{hint}");
        let hint = for_shell(&[], &["FOO=1"]);
        assert!(hint.ends_with(": rlaunch -x FOO=1 PROGRAM"), "{hint}");
        assert!(!for_shell(&[], &["API_KEY=abc", "x"]).contains("abc"));
        assert!(for_shell(&[], &["cd"]).ends_with(": rlaunch bash -c 'cd …'"));
        let hint = for_shell(&["-H", "a"], &["time", "python3", "a b"]);
        assert!(hint.ends_with(r": rlaunch -H a bash -c 'time python3 '\''a b'\'''"), "{hint}");
        let hint = for_shell(&[], &["module", "load", "cuda"]);
        assert!(hint.ends_with(": rlaunch bash -lc 'module load cuda'"), "{hint}");
        for other in ["python3", "./run.sh", "/opt/x-1.2+b", "1=2", "a-b=c", "=x", "/a=c", "cds"] {
            assert_eq!(for_shell(&[], &[other]), "", "{other}");
        }
    }

    #[test]
    fn hosts_without_their_option_get_it() {
        let for_hosts = |options: &[&str], program: &[&str]| {
            let typed = words(&[&["rlaunch"][..], options, program].concat());
            let program = words(program);
            TypedJob::new(&typed, &program).unwrap().for_hosts().unwrap_or_default()
        };
        for hosts in ["a,b", "me@a", "a:2", "fd00::2"] {
            let hint = for_hosts(&["-v"], &[hosts, "hostname"]);
            assert_eq!(hint, format!("-H names hosts: rlaunch -v -H {hosts} hostname"));
        }
        assert!(for_hosts(&[], &["n[1-2]", "x"]).ends_with("rlaunch -H 'n[1-2]' x"));
        assert!(for_hosts(&[], &["me@a"]).ends_with("rlaunch -H me@a PROGRAM"));
        for other in ["a", "./a,b", "x@/y", "a:b", "["] {
            assert_eq!(for_hosts(&[], &[other, "x"]), "", "{other}");
        }
        assert_eq!(for_hosts(&["-H", "a"], &["me@b", "x"]), "");
        assert_eq!(for_hosts(&["--hostfile=h"], &["me@b", "x"]), "");
    }

    #[test]
    fn an_option_that_is_given_is_not_given_twice() {
        let (typed, program) = (words(&["rlaunch", "--port-range", "1-2", "x"]), words(&["x"]));
        let of = |options: &[&str]| TypedJob::or_options(TypedJob::new(&typed, &program), options);
        assert_eq!(of(&["--port-range", "3-4"]), "--port-range 3-4");
        assert_eq!(of(&["--oversubscribe"]), "rlaunch --port-range 1-2 --oversubscribe x");
        assert_eq!(TypedJob::or_options(None, &["-a", "b"]), "-a b");
    }

    #[test]
    fn options_are_added_before_the_program() {
        let with = |typed: &[&str], program: &[&str], added: &[&str]| {
            let (typed, program) = (words(typed), words(program));
            let added: Vec<&OsStr> = added.iter().map(|word| OsStr::new(*word)).collect();
            TypedJob::new(&typed, &program).map(|job| job.with_options(&added))
        };
        let copied = with(
            &["rlaunch", "-H", "a,b", "python3", "train.py"],
            &["python3", "train.py"],
            &["--copy", "train.py"],
        );
        assert_eq!(copied.as_deref(), Some("rlaunch -H a,b --copy train.py python3 train.py"));
        let forced = with(&["rlaunch", "-H", "a", "--", "x"], &["x"], &["-q"]);
        assert_eq!(forced.as_deref(), Some("rlaunch -H a -q x"));
        let dashed = with(&["rlaunch", "--", "-x"], &["-x"], &["-q"]);
        assert_eq!(dashed.as_deref(), Some("rlaunch -q -- -x"));
        // Two programs, and a command line that is not that of a job.
        assert_eq!(with(&["rlaunch", "a", ":", "b"], &["a"], &[]), None);
        assert_eq!(with(&["a"], &["a"], &[]), None);
        let long = with(&["rlaunch", "x", &"y".repeat(300)], &["x", &"y".repeat(300)], &[]);
        assert_eq!(long.as_deref(), Some("rlaunch x …"));
    }
}
