//! Translation of a command line to words that clap parses.
//!
//! Options are read from left to right up to the program, whose words stay as they are. Three things need
//! more than a table: long options may have one dash (`-np 4`), a value may be attached to a letter (`-n4`),
//! and parameters of mpirun (`--mca`) are translated last, since some of them are combined and none overrides
//! an option.

use super::files::{self, FileSetting};
use super::mca::{self, Parameter};
use super::options::{self, Dashes, ForeignOption, Meaning, OPTIONS};
use super::{Effect, Notices, tips};
use clap::ArgAction;
use clap::error::ErrorKind;
use rlaunch_bootstrap::env::redacted;
use rlaunch_text::text;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Translates the command line of any command that ends in a program. The first word is the command's name, and
/// [`clap::Command::build`] must have been called on `command`.
pub(crate) fn translate(
    command: &clap::Command,
    words: &[OsString],
) -> Result<(Vec<OsString>, Notices), clap::Error> {
    let (name, options) = words.split_at(words.len().min(1));
    // What variables of other launchers say is for jobs.
    let env = |name: &str| std::env::var_os(name).filter(|_| is_job(command));
    let (translated, notices) = translate_options(command, options, &env)?;
    Ok(([name, &translated].concat(), notices))
}

/// Translates the words behind a command's name, and variables that `env` returns.
pub(super) fn translate_options(
    command: &clap::Command,
    words: &[OsString],
    env: &impl Fn(&str) -> Option<OsString>,
) -> Result<(Vec<OsString>, Notices), clap::Error> {
    let mut translator = Translator::new(command, words);
    while let Some(word) = translator.next_option() {
        translator.translate_word(word)?;
    }
    translator.parameters.splice(0..0, mca::of_environment(env));
    translator.translate_parameters()?;
    translator.add_timeout(env);
    translator.settle()?;
    let Translator { mut translated, remaining, notices, .. } = translator;
    translated.extend_from_slice(remaining);
    Ok((translated, notices))
}

/// Finds the option that names a file of programs. Returns the number of words before it, the file, and the words behind it.
/// Options that are wrong are reported when they are translated.
pub(super) fn program_file<'a>(
    command: &'a clap::Command,
    words: &'a [OsString],
) -> Option<(usize, OsString, &'a [OsString])> {
    let mut translator = Translator::new(command, words);
    while let Some(word) = translator.next_option() {
        let before = words.len() - translator.remaining.len() - 1;
        let OptionWord { dashes, name, attached } = OptionWord::parse(word);
        let foreign = options::find(dashes, &name.replace('_', "-"));
        if foreign.is_some_and(|foreign| matches!(foreign.meaning, Meaning::ProgramFile)) {
            let [file] = translator.take_values(word, attached).ok()?;
            return Some((before, file, translator.remaining));
        }
        translator.translate_word(word).ok()?;
    }
    None
}

/// State of the translation of one command line.
struct Translator<'a> {
    command: &'a clap::Command,
    /// All words.
    typed: &'a [OsString],
    remaining: &'a [OsString],
    translated: Vec<OsString>,
    /// Long names of rlaunch's options among `translated`.
    own_options: Vec<&'a str>,
    /// Effects of other launchers' options so far.
    effects: Vec<Effect>,
    parameters: Vec<Parameter>,
    /// Effects that depend on other words, which may come later.
    late: Vec<Effect>,
    notices: Notices,
}

impl<'a> Translator<'a> {
    fn new(command: &'a clap::Command, words: &'a [OsString]) -> Translator<'a> {
        Translator {
            command,
            typed: words,
            remaining: words,
            translated: Vec::with_capacity(words.len()),
            own_options: Vec::new(),
            effects: Vec::new(),
            parameters: Vec::new(),
            late: Vec::new(),
            notices: Notices::default(),
        }
    }

    /// Takes the next word if it is an option; `None` at the program.
    fn next_option(&mut self) -> Option<&'a OsString> {
        let (word, remaining) = self.remaining.split_first()?;
        let is_option = word.as_bytes().starts_with(b"-") && word != "--";
        is_option.then(|| {
            self.remaining = remaining;
            word
        })
    }

    fn translate_word(&mut self, word: &'a OsString) -> Result<(), clap::Error> {
        let OptionWord { dashes, name, attached } = OptionWord::parse(word);
        let dashed = name.replace('_', "-");
        let letter = (dashes == 1).then(|| name.chars().next()).flatten();
        let is_letter = dashes == 1 && name.chars().nth(1).is_none();
        let own_letter = letter.and_then(|letter| short_option(self.command, letter));
        // A longer word that begins with `-h` is a misspelled option, not a request for help.
        let own_letter = own_letter.filter(|arg| is_letter || !prints_information(arg));
        if let Some(foreign) = options::find(dashes, &dashed)
            && !(is_letter && own_letter.is_some())
        {
            return self.add_foreign(word, foreign, attached);
        }
        let long = long_option(self.command, &name).or_else(|| long_option(self.command, &dashed));
        match long.filter(|_| !is_letter) {
            Some(arg) => self.add_long(arg, attached),
            None if own_letter.is_some() && !self.is_word_behind_number(word) => {
                self.add_letters(word);
            }
            // clap would take an unknown word here for the program.
            None => return Err(self.unknown(word)),
        }
        Ok(())
    }

    /// Tells whether an option of a number or of several, such as `-n`, has something else attached to it: `-novm` is none.
    fn is_word_behind_number(&self, word: &OsStr) -> bool {
        let [_, letter @ b'n', value @ ..] = word.as_bytes() else { return false };
        let takes_value =
            short_option(self.command, char::from(*letter)).is_some_and(|arg| value_count(arg) > 0);
        let value = value.strip_prefix(b"=").unwrap_or(value);
        takes_value && !value.iter().all(|byte| byte.is_ascii_digit() || *byte == b',')
    }

    /// Returns the error for the unknown option that was taken last. An option that people know from other tools is
    /// answered with the command line of rlaunch.
    fn unknown(&self, word: &OsStr) -> clap::Error {
        let before = self.typed.len().saturating_sub(self.remaining.len() + 1);
        let before = self.typed.get(..before).unwrap_or_default();
        match tips::command(before, word, self.remaining).filter(|_| is_job(self.command)) {
            Some(tip) => {
                let option = word.to_string_lossy();
                let option = option.split('=').next().unwrap_or_default();
                let message = format!("unexpected argument '{option}' found\n\n  tip: {tip}");
                self.command.clone().error(ErrorKind::UnknownArgument, message)
            }
            None => unknown(self.command, word),
        }
    }

    /// Adds a long option of rlaunch, which may have been typed with one dash.
    fn add_long(&mut self, arg: &'a clap::Arg, attached: Option<&OsStr>) {
        let Some(long) = arg.get_long() else { return };
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        let is_set = |effect: &Effect| matches!(effect, Effect::Set(option, _) if *option == long);
        if is_flag && self.effects.iter().any(is_set) {
            return;
        }
        self.own_options.push(long);
        let mut word = OsString::from(format!("--{long}"));
        match attached {
            Some(value) => {
                word.push("=");
                word.push(value);
                self.translated.push(word);
            }
            None => {
                self.translated.push(word);
                let count = value_count(arg).min(self.remaining.len());
                let (values, remaining) = self.remaining.split_at(count);
                self.translated.extend_from_slice(values);
                self.remaining = remaining;
            }
        }
    }

    /// Adds the letters behind one dash. In `-vn 4` the last letter takes the next word as its value. In
    /// `-n4` the value is attached; clap would take such a word for the program, so the value becomes a word
    /// of its own.
    fn add_letters(&mut self, word: &OsStr) {
        for (at, &letter) in word.as_bytes().iter().enumerate().skip(1) {
            let Some(arg) = short_option(self.command, char::from(letter)) else { break };
            self.own_options.extend(arg.get_long());
            if value_count(arg) == 0 {
                continue;
            }
            let (letters, value) = word.as_bytes().split_at(at + 1);
            self.translated.push(OsStr::from_bytes(letters).to_owned());
            if value.is_empty() {
                let (value, remaining) = self.remaining.split_at(self.remaining.len().min(1));
                self.translated.extend_from_slice(value);
                self.remaining = remaining;
            } else {
                let value = value.strip_prefix(b"=").unwrap_or(value);
                self.translated.push(OsStr::from_bytes(value).to_owned());
            }
            return;
        }
        self.translated.push(word.to_owned());
    }

    /// Adds the effects of another launcher's option.
    fn add_foreign(
        &mut self,
        word: &'a OsStr,
        foreign: &ForeignOption,
        attached: Option<&OsStr>,
    ) -> Result<(), clap::Error> {
        let effects = match &foreign.meaning {
            Meaning::SameAs(option) => {
                let arg = long_option(self.command, option);
                let arg = arg.ok_or_else(|| unknown(self.command, word))?;
                if attached.is_some() || value_count(arg) > 0 {
                    self.add_long(arg, attached);
                    return Ok(());
                }
                vec![Effect::flag(option)]
            }
            Meaning::Sets(option, value) => vec![Effect::Set(option, value.map(OsString::from))],
            Meaning::Computed(compute) => {
                let [value] = self.take_values(word, attached)?;
                let effects = compute(&value.to_string_lossy());
                effects.map_err(|reason| refused(self.command, word, &value, &reason))?
            }
            Meaning::Means(compute, value) => {
                let effects = compute(value);
                effects.map_err(|reason| self.not_done(word, &reason))?
            }
            Meaning::Variable => {
                let [mut variable] = self.take_values(word, attached)?;
                if !variable.as_bytes().contains(&b'=') {
                    let [value] = self.take_values(word, None)?;
                    variable.push("=");
                    variable.push(value);
                }
                vec![Effect::value("env", variable)]
            }
            Meaning::Variables => {
                let [names] = self.take_values(word, attached)?;
                if long_option(self.command, "no-env").is_none() {
                    return Err(
                        self.not_done(word, "before the first program it is for all of them")
                    );
                }
                let names = names.as_bytes().split(|&byte| byte == b',');
                let named = names.map(|name| Effect::value("env", OsStr::from_bytes(name)));
                std::iter::once(Effect::flag("no-env")).chain(named).collect()
            }
            Meaning::OptionFile => {
                let [file] = self.take_values(word, attached)?;
                return self.add_file(word, &file);
            }
            Meaning::ProgramFile => {
                let why = "it goes before the first program, and names all of them";
                return Err(self.not_done(word, why));
            }
            Meaning::Refused(why) => return Err(self.not_done(word, why)),
            Meaning::Silent(values) => {
                self.skip_values(*values, attached);
                return Ok(());
            }
            Meaning::McaParameter => {
                let [name, value] = self.take_values(word, attached)?;
                let trimmed = |word: &OsStr| word.to_string_lossy().trim().to_owned();
                let (name, value) = (trimmed(&name), trimmed(&value));
                self.parameters.push(Parameter { option: trimmed(word), name, value });
                return Ok(());
            }
            Meaning::Ignored(values) => {
                self.skip_values(*values, attached);
                let name = word.as_bytes().split(|&byte| byte == b'=').next().unwrap_or_default();
                vec![Effect::Ignored(String::from_utf8_lossy(name).into_owned())]
            }
        };
        self.add_effects(word, effects)
    }

    fn skip_values(&mut self, count: usize, attached: Option<&OsStr>) {
        if attached.is_none() {
            self.remaining = self.remaining.get(count..).unwrap_or_default();
        }
    }

    /// Adds what a file of options says. Words of the command line override its parameters.
    fn add_file(&mut self, word: &OsStr, file: &OsStr) -> Result<(), clap::Error> {
        let settings = files::settings(&file.to_string_lossy());
        let settings = settings.map_err(|why| self.not_done(word, &why))?;
        let mut variables = Vec::new();
        let mut parameters = Vec::new();
        for setting in settings {
            match setting {
                FileSetting::Variable(variable) => variables.push(Effect::value("env", variable)),
                FileSetting::Parameter { option, name, value } => {
                    parameters.push(Parameter { option, name, value });
                }
            }
        }
        self.parameters.splice(0..0, parameters);
        self.add_effects(word, variables)
    }

    /// Returns the error for an option of another launcher that is not done here; `why` has the words to type.
    fn not_done(&self, word: &OsStr, why: &str) -> clap::Error {
        let word = word.to_string_lossy();
        let name = word.split('=').next().unwrap_or_default();
        self.command
            .clone()
            .error(ErrorKind::UnknownArgument, format!("{name} is not done here\n\n  tip: {why}"))
    }

    /// Takes the next `N` values of the option `word`. The first one may be attached to the option by `=`.
    fn take_values<const N: usize>(
        &mut self,
        word: &OsStr,
        attached: Option<&OsStr>,
    ) -> Result<[OsString; N], clap::Error> {
        let mut values: Vec<OsString> = attached.map(OsStr::to_owned).into_iter().collect();
        let missing = (N - values.len()).min(self.remaining.len());
        let (next, remaining) = self.remaining.split_at(missing);
        values.extend_from_slice(next);
        self.remaining = remaining;
        values.try_into().map_err(|_| {
            let wanted = if N == 1 { "a value" } else { "a name and a value" };
            let message = format!("'{}' takes {wanted}", word.display());
            self.command.clone().error(ErrorKind::WrongNumberOfValues, message)
        })
    }

    /// Adds the effects of `word`, each once. A flag that the user has set is not set again.
    fn add_effects(&mut self, word: &OsStr, effects: Vec<Effect>) -> Result<(), clap::Error> {
        for effect in effects {
            let (option, value) = match &effect {
                Effect::Set(option, value) => (option, value),
                Effect::Ignored(option) => {
                    self.notices.add_ignored(option.clone());
                    continue;
                }
                Effect::Note(sentence) => {
                    self.notices.add_note(sentence.clone());
                    continue;
                }
                Effect::SetUnless(..)
                | Effect::Timestamps
                | Effect::CopyProgram
                | Effect::HostfileIsRankfile => {
                    self.late.push(effect);
                    continue;
                }
            };
            let arg = long_option(self.command, option);
            let long = arg.and_then(clap::Arg::get_long);
            let long = long.ok_or_else(|| unknown(self.command, word))?;
            let is_set = value.is_none() && self.own_options.contains(&long);
            if is_set || self.effects.contains(&effect) {
                continue;
            }
            let mut word = OsString::from(format!("--{long}"));
            if let Some(value) = value {
                word.push("=");
                word.push(value);
            }
            self.translated.push(word);
            self.own_options.push(long);
            self.effects.push(effect);
        }
        Ok(())
    }

    /// Adds the effects that depend on other words.
    fn settle(&mut self) -> Result<(), clap::Error> {
        for effect in std::mem::take(&mut self.late) {
            match effect {
                Effect::SetUnless(others, option, value) => {
                    if !others.iter().chain([&option]).any(|other| self.own_options.contains(other))
                    {
                        self.add_effects(OsStr::new(option), vec![Effect::value(option, value)])?;
                    }
                }
                Effect::HostfileIsRankfile => {
                    let word = OsStr::new("--map-by seq");
                    let why = "--rankfile FILE has the host of each rank on a line";
                    let file =
                        self.value_of("--hostfile").ok_or_else(|| self.not_done(word, why))?;
                    self.add_effects(word, vec![Effect::value("rankfile", file)])?;
                }
                Effect::Timestamps => self.add_timestamps(),
                Effect::CopyProgram => {
                    let program = self.remaining.iter().find(|word| *word != "--").cloned();
                    let effects = program.map(|program| Effect::value("copy", program));
                    self.add_effects(
                        OsStr::new("--preload-binary"),
                        effects.into_iter().collect(),
                    )?;
                }
                other => self.add_effects(OsStr::new(""), vec![other])?,
            }
        }
        Ok(())
    }

    /// Returns the value of an option among the translated words.
    fn value_of(&self, option: &str) -> Option<OsString> {
        let at = self.translated.iter().position(|word| OptionWord::is(word, option))?;
        let attached = OptionWord::parse(&self.translated[at]).attached.map(OsStr::to_owned);
        attached.or_else(|| self.translated.get(at + 1).cloned())
    }

    /// Puts the time in front of the tag of each line, or makes it the tag.
    fn add_timestamps(&mut self) {
        let tag = self.translated.iter_mut().find(|word| OptionWord::is(word, "--tag-output"));
        match tag {
            Some(word) => {
                let of_user = OptionWord::parse(word).attached.map(OsStr::to_owned);
                *word = OsString::from("--tag-output=%t ");
                word.push(of_user.unwrap_or_else(|| "[%r,%h] ".into()));
            }
            None => {
                self.translated.push("--tag-output=%t ".into());
                self.own_options.push("tag-output");
            }
        }
    }

    /// Adds the limit that a variable of mpirun and mpiexec sets.
    fn add_timeout(&mut self, env: &impl Fn(&str) -> Option<OsString>) {
        if let Some(seconds) = env("MPIEXEC_TIMEOUT").filter(|value| !value.is_empty()) {
            let seconds = seconds.to_string_lossy();
            if seconds.parse().is_ok_and(|seconds: f64| seconds > 0.0)
                && !self.own_options.contains(&"timeout")
            {
                self.translated.push(format!("--timeout={seconds}").into());
            }
        }
    }

    fn translate_parameters(&mut self) -> Result<(), clap::Error> {
        let parameters = std::mem::take(&mut self.parameters);
        let own_options = self.own_options.clone();
        let is_set = |option: &str| own_options.contains(&option);
        for (parameter, effects) in mca::effects(&parameters, is_set) {
            let word = OsString::from(parameter.words());
            let value = OsStr::new(&parameter.value);
            let effects = effects.map_err(|why| refused(self.command, &word, value, &why))?;
            self.add_effects(&word, effects)?;
        }
        Ok(())
    }
}

/// Parts of a word that is an option.
struct OptionWord<'a> {
    dashes: usize,
    name: String,
    /// Text behind `=`; `None` if the word has no `=`.
    attached: Option<&'a OsStr>,
}

impl OptionWord<'_> {
    /// Tells whether a word is this long option, with or without a value.
    fn is(word: &OsStr, option: &str) -> bool {
        let rest = word.as_bytes().strip_prefix(option.as_bytes());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
    }

    fn parse(word: &OsStr) -> OptionWord<'_> {
        let bytes = word.as_bytes();
        let dashes = if bytes.starts_with(b"--") { 2 } else { 1 };
        let rest = bytes.get(dashes..).unwrap_or_default();
        let equals = rest.iter().position(|&byte| byte == b'=');
        let name = rest.get(..equals.unwrap_or(rest.len())).unwrap_or_default();
        let attached = equals.and_then(|at| rest.get(at + 1..)).map(OsStr::from_bytes);
        OptionWord { dashes, name: String::from_utf8_lossy(name).into_owned(), attached }
    }
}

pub(super) fn long_option<'a>(command: &'a clap::Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    })
}

/// Tells whether a command is that of a job, and not a verb or another program of a job.
fn is_job(command: &clap::Command) -> bool {
    command.get_name() == "rlaunch"
}

/// Tells whether an option only prints help or the version.
fn prints_information(arg: &clap::Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    matches!(arg.get_action(), Help | HelpLong | HelpShort | Version)
}

fn short_option(command: &clap::Command, letter: char) -> Option<&clap::Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_short_aliases().unwrap_or_default();
        arg.get_short() == Some(letter) || aliases.contains(&letter)
    })
}

/// Returns the number of words behind an option that are its values. An optional value can only be attached by
/// `=`.
fn value_count(arg: &clap::Arg) -> usize {
    match arg.get_action().takes_values() {
        true => arg.get_num_args().map_or(1, |number| number.min_values()),
        false => 0,
    }
}

/// Returns the error for an unknown option, with the option that has a similar name.
fn unknown(command: &clap::Command, word: &OsStr) -> clap::Error {
    let typed = word.to_string_lossy();
    // The value is not shown, since it may be a secret.
    let typed = typed.split('=').next().unwrap_or_default();
    let name = typed.trim_start_matches('-').replace('_', "-");
    let own = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let own = own.flat_map(|arg| {
        let aliases = arg.get_visible_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases).map(|name| format!("--{name}"))
    });
    let foreign =
        OPTIONS.iter().filter(|option| option.name.len() > 2 && is_supported(command, option));
    let foreign = foreign.map(|option| match option.dashes {
        Dashes::Any => format!("--{}", option.name),
        Dashes::One => format!("-{}", option.name),
    });
    let nearest = text::nearest_by(&name, own.chain(foreign), |name| name.trim_start_matches('-'));
    let tip = nearest.map_or(String::new(), |name| format!("\n\n  tip: did you mean {name}?"));
    let message = format!("unexpected argument '{typed}' found{tip}");
    command.clone().error(ErrorKind::UnknownArgument, message)
}

/// Tells whether a command has the option that another launcher's option stands for.
fn is_supported(command: &clap::Command, foreign: &ForeignOption) -> bool {
    match &foreign.meaning {
        Meaning::SameAs(option) | Meaning::Sets(option, _) => {
            long_option(command, option).is_some()
        }
        _ => true,
    }
}

fn refused(command: &clap::Command, word: &OsStr, value: &OsStr, reason: &str) -> clap::Error {
    let shown = |text: &OsStr| redacted(&text.to_string_lossy());
    let (word, value) = (shown(word), shown(value));
    let message = format!("invalid value '{value}' for '{word}': {reason}");
    command.clone().error(ErrorKind::ValueValidation, message)
}
