//! Command lines as people type them, before clap reads them: the words of mpirun, mpiexec, torchrun
//! and horovodrun become options of rlaunch.

use super::mca::{self, Parameter};
use super::words::{self, Dashes, Meaning, WORDS, Word};
use crate::cli::args::Args;
use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory};
use rlaunch_bootstrap::env::redacted;
use rlaunch_console::text::nearest_by;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Turns other launchers' words into clap's, for a job; the verb `run` as the first word is dropped.
pub(crate) fn respell(mut typed: Vec<OsString>) -> Result<Vec<OsString>, clap::Error> {
    if typed.get(1).is_some_and(|verb| verb == "run") {
        typed.remove(1);
    }
    respell_for(Args::command(), typed)
}

/// The same for any command that ends in a program; the first word is the command's name.
pub(crate) fn respell_for(
    mut command: clap::Command,
    typed: Vec<OsString>,
) -> Result<Vec<OsString>, clap::Error> {
    command.build();
    let mut words = typed.into_iter();
    let mut spelled: Vec<OsString> = words.next().into_iter().collect();
    spelled.extend(translate(&command, words.as_slice())?);
    Ok(spelled)
}

/// The same for the words of one application, without a command's name: options up to the program,
/// and from there on what is left as it is. `command` is built.
pub(super) fn translate(
    command: &clap::Command,
    words: &[OsString],
) -> Result<Vec<OsString>, clap::Error> {
    let mut speller = Speller {
        command,
        left: words,
        spelled: Vec::with_capacity(words.len()),
        typed: Vec::new(),
        meant: Vec::new(),
        parameters: Vec::new(),
    };
    while let Some(word) = speller.next_option() {
        speller.spell(word)?;
    }
    speller.follow_parameters()?;
    let Speller { mut spelled, left, .. } = speller;
    spelled.extend_from_slice(left);
    Ok(spelled)
}

/// An option of rlaunch that a word of another launcher stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meant {
    /// Its long name, without dashes.
    pub(super) option: &'static str,
    pub(super) value: Option<OsString>,
}

impl Meant {
    pub(super) fn flag(option: &'static str) -> Meant {
        Meant { option, value: None }
    }

    pub(super) fn with(option: &'static str, value: impl Into<OsString>) -> Meant {
        Meant { option, value: Some(value.into()) }
    }

    /// Names what changes nothing here.
    pub(super) fn ignored(words: impl Into<OsString>) -> Meant {
        Meant::with("ignored", words)
    }

    /// Something that the user should know of a word.
    pub(super) fn remark(sentence: String) -> Meant {
        Meant::with("remark", sentence)
    }
}

struct Speller<'a> {
    command: &'a clap::Command,
    /// Words that are not read yet.
    left: &'a [OsString],
    spelled: Vec<OsString>,
    /// Long names of rlaunch's own options so far.
    typed: Vec<&'a str>,
    /// What other launchers' words have stood for so far.
    meant: Vec<Meant>,
    parameters: Vec<Parameter>,
}

impl<'a> Speller<'a> {
    /// The next word, unless the program begins there.
    fn next_option(&mut self) -> Option<&'a OsString> {
        let (word, left) = self.left.split_first()?;
        let is_option = word.as_bytes().starts_with(b"-") && word != "--";
        is_option.then(|| {
            self.left = left;
            word
        })
    }

    fn spell(&mut self, word: &'a OsString) -> Result<(), clap::Error> {
        let Typed { dashes, name, attached } = Typed::of(word);
        let dashed = name.replace('_', "-");
        let letter = (dashes == 1).then(|| name.chars().next()).flatten();
        let is_letter = dashes == 1 && name.chars().nth(1).is_none();
        let own_letter = letter.and_then(|letter| short_option(self.command, letter));
        // Nobody means `-h` by a longer word that begins so.
        let own_letter = own_letter.filter(|arg| is_letter || !is_question(arg));
        if let Some(foreign) = words::find(dashes, &dashed)
            && !(is_letter && own_letter.is_some())
        {
            return self.foreign(word, foreign, attached);
        }
        let long = long_option(self.command, &name).or_else(|| long_option(self.command, &dashed));
        match long.filter(|_| !is_letter) {
            Some(arg) => self.own(arg, attached),
            None if own_letter.is_some() => self.letters(word),
            // What clap does not know here it would take for the program.
            None => return Err(unknown(self.command, word)),
        }
        Ok(())
    }

    /// A long option of rlaunch, whatever its dashes were.
    fn own(&mut self, arg: &'a clap::Arg, attached: Option<&OsStr>) {
        let Some(long) = arg.get_long() else { return };
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        if is_flag && self.meant.iter().any(|meant| meant.option == long) {
            return;
        }
        self.typed.push(long);
        let mut word = OsString::from(format!("--{long}"));
        match attached {
            Some(value) => {
                word.push("=");
                word.push(value);
                self.spelled.push(word);
            }
            None => {
                self.spelled.push(word);
                let (values, left) = self.left.split_at(values_of(arg).min(self.left.len()));
                self.spelled.extend_from_slice(values);
                self.left = left;
            }
        }
    }

    /// One dash and letters. In `-vn 4` the last takes the value; in `-n4`, which clap would take for
    /// the program, the value has begun.
    fn letters(&mut self, word: &OsStr) {
        for (at, &letter) in word.as_bytes().iter().enumerate().skip(1) {
            let Some(arg) = short_option(self.command, char::from(letter)) else { break };
            self.typed.extend(arg.get_long());
            if values_of(arg) == 0 {
                continue;
            }
            let (letters, value) = word.as_bytes().split_at(at + 1);
            self.spelled.push(OsStr::from_bytes(letters).to_owned());
            if value.is_empty() {
                let (value, left) = self.left.split_at(self.left.len().min(1));
                self.spelled.extend_from_slice(value);
                self.left = left;
            } else {
                let value = value.strip_prefix(b"=").unwrap_or(value);
                self.spelled.push(OsStr::from_bytes(value).to_owned());
            }
            return;
        }
        self.spelled.push(word.to_owned());
    }

    /// A word of another launcher.
    fn foreign(
        &mut self,
        word: &'a OsStr,
        foreign: &Word,
        attached: Option<&OsStr>,
    ) -> Result<(), clap::Error> {
        let meant = match &foreign.meaning {
            Meaning::Is(option) => {
                let arg = long_option(self.command, option);
                let arg = arg.ok_or_else(|| unknown(self.command, word))?;
                if attached.is_some() || values_of(arg) > 0 {
                    self.own(arg, attached);
                    return Ok(());
                }
                vec![Meant::flag(option)]
            }
            Meaning::Already => return Ok(()),
            Meaning::Sets(option, value) => {
                vec![Meant { option, value: value.map(OsString::from) }]
            }
            Meaning::Reads(read) => {
                let [value] = self.values(word, attached)?;
                let meant = read(&value.to_string_lossy());
                meant.map_err(|why| refused(self.command, word, &value, &why))?
            }
            Meaning::Variable => {
                let [mut variable] = self.values(word, attached)?;
                if !variable.as_bytes().contains(&b'=') {
                    let [value] = self.values(word, None)?;
                    variable.push("=");
                    variable.push(value);
                }
                vec![Meant::with("env", variable)]
            }
            Meaning::Variables => {
                let [names] = self.values(word, attached)?;
                let names = names.as_bytes().split(|&byte| byte == b',');
                names.map(|name| Meant::with("env", OsStr::from_bytes(name))).collect()
            }
            Meaning::Parameter => {
                let [name, value] = self.values(word, attached)?;
                let text = |word: &OsStr| word.to_string_lossy().trim().to_owned();
                let (name, value) = (text(&name), text(&value));
                self.parameters.push(Parameter { option: text(word), name, value });
                return Ok(());
            }
            Meaning::Ignored(values) => {
                if attached.is_none() {
                    self.left = self.left.get(*values..).unwrap_or_default();
                }
                let name = word.as_bytes().split(|&byte| byte == b'=').next().unwrap_or_default();
                vec![Meant::ignored(OsStr::from_bytes(name))]
            }
        };
        self.add(word, meant)
    }

    /// The next values of `word`, the first of which may be attached to it.
    fn values<const N: usize>(
        &mut self,
        word: &OsStr,
        attached: Option<&OsStr>,
    ) -> Result<[OsString; N], clap::Error> {
        let mut values: Vec<OsString> = attached.map(OsStr::to_owned).into_iter().collect();
        let (next, left) = self.left.split_at((N - values.len()).min(self.left.len()));
        values.extend_from_slice(next);
        self.left = left;
        values.try_into().map_err(|_| {
            let plural = if N == 1 { "a value" } else { "a name and a value" };
            let message = format!("'{}' takes {plural}", word.display());
            self.command.clone().error(ErrorKind::WrongNumberOfValues, message)
        })
    }

    /// Options that `word` stands for; what was said before is not said again.
    fn add(&mut self, word: &OsStr, meant: Vec<Meant>) -> Result<(), clap::Error> {
        for meant in meant {
            let arg = long_option(self.command, meant.option);
            let long = arg.and_then(clap::Arg::get_long);
            let long = long.ok_or_else(|| unknown(self.command, word))?;
            let is_said = meant.value.is_none() && self.typed.contains(&long);
            if is_said || self.meant.contains(&meant) {
                continue;
            }
            let mut option = OsString::from(format!("--{long}"));
            if let Some(value) = &meant.value {
                option.push("=");
                option.push(value);
            }
            self.spelled.push(option);
            self.typed.push(long);
            self.meant.push(meant);
        }
        Ok(())
    }

    /// What mpirun's parameters stand for follows the options: some of them count together, and none
    /// where an option says the same.
    fn follow_parameters(&mut self) -> Result<(), clap::Error> {
        let parameters = std::mem::take(&mut self.parameters);
        let typed = self.typed.clone();
        for (parameter, meant) in mca::meant(&parameters, |option| typed.contains(&option)) {
            let word = OsString::from(format!("{} {}", parameter.option, parameter.name));
            let value = OsStr::new(&parameter.value);
            let meant = meant.map_err(|why| refused(self.command, &word, value, &why))?;
            self.add(&word, meant)?;
        }
        Ok(())
    }
}

/// A word of options, taken apart.
struct Typed<'a> {
    dashes: usize,
    name: String,
    /// What follows `=`.
    attached: Option<&'a OsStr>,
}

impl Typed<'_> {
    fn of(word: &OsStr) -> Typed<'_> {
        let bytes = word.as_bytes();
        let dashes = if bytes.starts_with(b"--") { 2 } else { 1 };
        let rest = bytes.get(dashes..).unwrap_or_default();
        let equals = rest.iter().position(|&byte| byte == b'=');
        let name = rest.get(..equals.unwrap_or(rest.len())).unwrap_or_default();
        let attached = equals.and_then(|at| rest.get(at + 1..)).map(OsStr::from_bytes);
        Typed { dashes, name: String::from_utf8_lossy(name).into_owned(), attached }
    }
}

pub(super) fn long_option<'a>(command: &'a clap::Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    })
}

/// Whether all it does is to print something of rlaunch itself.
fn is_question(arg: &clap::Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    matches!(arg.get_action(), Help | HelpLong | HelpShort | Version)
}

fn short_option(command: &clap::Command, letter: char) -> Option<&clap::Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_short_aliases().unwrap_or_default();
        arg.get_short() == Some(letter) || aliases.contains(&letter)
    })
}

/// How many words behind an option are its values. One that can do without has it behind `=` alone.
fn values_of(arg: &clap::Arg) -> usize {
    match arg.get_action().takes_values() {
        true => arg.get_num_args().map_or(1, |number| number.min_values()),
        false => 0,
    }
}

/// `--no-such-option` is unknown; the option nearest to it may be meant.
fn unknown(command: &clap::Command, word: &OsStr) -> clap::Error {
    let text = word.to_string_lossy();
    // The value may be a secret.
    let text = text.split('=').next().unwrap_or_default();
    let typed = text.trim_start_matches('-').replace('_', "-");
    let own = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let own = own.flat_map(|arg| {
        let aliases = arg.get_visible_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases).map(|name| format!("--{name}"))
    });
    // Words that stand for what there is, unless their own launchers take them by one dash alone.
    let foreign = WORDS.iter().filter(|word| word.name.len() > 2 && is_known(command, word));
    let foreign = foreign.map(|word| match word.dashes {
        Dashes::Any => format!("--{}", word.name),
        Dashes::One => format!("-{}", word.name),
    });
    let names = own.chain(foreign);
    let nearest = nearest_by(&typed, names, |name| name.trim_start_matches('-'));
    let tip = nearest.map_or(String::new(), |name| format!("\n\n  tip: {name} exists"));
    let message = format!("unexpected argument '{text}' found{tip}");
    command.clone().error(ErrorKind::UnknownArgument, message)
}

/// Whether a word stands for something that this command has.
fn is_known(command: &clap::Command, word: &Word) -> bool {
    match &word.meaning {
        Meaning::Is(option) | Meaning::Sets(option, _) => long_option(command, option).is_some(),
        _ => true,
    }
}

fn refused(command: &clap::Command, word: &OsStr, value: &OsStr, why: &str) -> clap::Error {
    let shown = |text: &OsStr| redacted(&text.to_string_lossy());
    let (word, value) = (shown(word), shown(value));
    let message = format!("invalid value '{value}' for '{word}': {why}");
    command.clone().error(ErrorKind::ValueValidation, message)
}
