//! Command lines as people type them, before clap reads them.

use super::Args;
use clap::CommandFactory;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Turns mpirun's spelling into clap's, for a job; the verb `run` as the first word is dropped.
pub(super) fn respell(mut typed: Vec<OsString>) -> Result<Vec<OsString>, clap::Error> {
    if typed.get(1).is_some_and(|verb| verb == "run") {
        typed.remove(1);
    }
    respell_for(Args::command(), typed)
}

/// The same for any command that ends in a program: before that begins, `-np 4` is `--np 4`, and
/// `-n4`, which clap would take for the program, is `-n 4`.
pub(super) fn respell_for(
    mut command: clap::Command,
    typed: Vec<OsString>,
) -> Result<Vec<OsString>, clap::Error> {
    command.build();
    let mut words = typed.into_iter();
    let mut spelled: Vec<OsString> = words.next().into_iter().collect();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        if !text.starts_with('-') || text == "--" {
            spelled.push(word);
            break;
        }
        let word = if text == "-np" { OsString::from("--np") } else { word };
        // What clap does not know here it would take for the program.
        if !is_option(&command, &word) {
            return Err(unknown(&command, &text));
        }
        match value_of(&command, &word) {
            Value::None => spelled.push(word),
            Value::Next => {
                spelled.push(word);
                spelled.extend(words.next());
            }
            Value::From(start) => {
                let (letters, value) = word.as_bytes().split_at(start);
                let value = value.strip_prefix(b"=").unwrap_or(value);
                spelled.extend([letters, value].map(|part| OsStr::from_bytes(part).to_owned()));
            }
        }
    }
    spelled.extend(words);
    Ok(spelled)
}

/// Whether this is an option of rlaunch: `--long`, `--long=value`, or letters of which the first
/// is known.
fn is_option(command: &clap::Command, word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    match text.strip_prefix("--") {
        Some(long) => {
            let name = long.split_once('=').map_or(long, |(name, _)| name);
            long_option(command, name).is_some()
        }
        None => {
            let letter = text.chars().nth(1);
            letter.is_some() && command.get_arguments().any(|arg| arg.get_short() == letter)
        }
    }
}

fn long_option<'a>(command: &'a clap::Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    })
}

/// `--no-such-option` is unknown; the option nearest to it may be meant.
fn unknown(command: &clap::Command, word: &str) -> clap::Error {
    let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    let near = |long: &&str| {
        strsim::levenshtein(long, name) <= 2 || (name.len() > 2 && long.starts_with(name))
    };
    let longs = command.get_arguments().filter_map(clap::Arg::get_long);
    let meant = longs.filter(near).min_by_key(|long| strsim::levenshtein(long, name));
    let tip = meant.map_or(String::new(), |long| format!("\n\n  tip: --{long} exists"));
    let message = format!("unexpected argument '{word}' found{tip}");
    command.clone().error(clap::error::ErrorKind::UnknownArgument, message)
}

/// Where an option has its value.
enum Value {
    /// It takes none, or it is behind `--long=`.
    None,
    Next,
    /// In the same word, from this byte on.
    From(usize),
}

fn value_of(command: &clap::Command, word: &OsStr) -> Value {
    let text = word.to_string_lossy();
    // One that takes a value only behind `=` never has it in the next word.
    let takes_value =
        |arg: &clap::Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    if let Some(long) = text.strip_prefix("--") {
        let follows = long_option(command, long).is_some_and(takes_value);
        return if follows { Value::Next } else { Value::None };
    }
    // In `-vn 4` the last letter takes the value; in `-n4` the value has begun.
    let letters = word.as_bytes();
    let of_value = |letter: &u8| {
        let short = Some(char::from(*letter));
        command.get_arguments().find(|arg| arg.get_short() == short).is_some_and(takes_value)
    };
    match letters.iter().skip(1).position(of_value) {
        None => Value::None,
        // One to skip, and one that was found.
        Some(at) if at + 2 == letters.len() => Value::Next,
        Some(at) => Value::From(at + 2),
    }
}
