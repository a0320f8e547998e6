//! Files of other launchers that hold options or programs: `--tune` and `-am`, `--app` and `-configfile`.

use super::translate;
use clap::error::ErrorKind;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

/// Setting of a file of options.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileSetting {
    /// Variable of ranks: NAME or NAME=VALUE.
    Variable(String),
    /// Parameter of mpirun, and the option that sets it.
    Parameter { option: String, name: String, value: String },
}

/// Reads the files of `--tune` or `-am`, which commas separate.
pub(super) fn settings(files: &str) -> Result<Vec<FileSetting>, String> {
    let mut settings = Vec::new();
    for file in files.split(',').filter(|file| !file.is_empty()) {
        let text = read(Path::new(file))?;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            let found =
                settings_of_line(line).map_err(|what| format!("{file}:{number}: {what}"))?;
            settings.extend(found);
        }
    }
    Ok(settings)
}

/// Parses `-x A=1 --mca pml ob1`, or `pml = ob1`.
fn settings_of_line(line: &str) -> Result<Vec<FileSetting>, String> {
    if !line.starts_with('-') {
        let parameter = |(name, value): (&str, &str)| FileSetting::Parameter {
            option: "--mca".into(),
            name: name.trim().to_owned(),
            value: value.trim().trim_matches('"').to_owned(),
        };
        let pair = line.split_once('=').map(parameter);
        let is_lacking = pair.is_none() && !line.is_empty();
        return if is_lacking {
            Err(format!("`{line}` has no ="))
        } else {
            Ok(pair.into_iter().collect())
        };
    }
    let words = shlex::split(line).ok_or("a quotation mark is not closed")?;
    let mut words = words.into_iter();
    let mut settings = Vec::new();
    while let Some(option) = words.next() {
        let mut next = || words.next().ok_or_else(|| format!("`{option}` lacks a value"));
        match option.trim_start_matches('-') {
            "x" => settings.push(FileSetting::Variable(next()?)),
            "mca" | "gmca" | "omca" | "gomca" | "prtemca" | "pmixmca" => {
                let (name, value) = (next()?, next()?);
                settings.push(FileSetting::Parameter { option, name, value });
            }
            _ => return Err(format!("`{option}` is neither -x nor --mca")),
        }
    }
    Ok(settings)
}

/// Puts the programs of a file in the place of `--app FILE` or `-configfile FILE`: each of its lines has options and a program,
/// as between two `:`. The first of the words `typed` is the command's name, and [`clap::Command::build`] must have been
/// called on `command`.
pub(crate) fn with_programs_of_file(
    command: &clap::Command,
    typed: Vec<OsString>,
) -> Result<Vec<OsString>, clap::Error> {
    let is_option = |word: &OsString| {
        let word = word.to_string_lossy();
        let name = word.split('=').next().unwrap_or_default();
        name.starts_with('-') && matches!(name.trim_start_matches('-'), "app" | "configfile")
    };
    if !typed.iter().take_while(|word| *word != ":").any(is_option) {
        return Ok(typed);
    }
    let first = if typed.get(1).is_some_and(|word| word == "run") { 2 } else { 1 };
    let options = typed.get(first..).unwrap_or_default();
    let Some((before, file, behind)) = translate::program_file(command, options) else {
        return Ok(typed);
    };
    let error = |what: String| command.clone().error(ErrorKind::ValueValidation, what);
    if let Some(program) = behind.first() {
        return Err(error(format!(
            "{} names all programs, and {} is one more",
            file.display(),
            program.display()
        )));
    }
    let programs = programs(&file).map_err(error)?;
    Ok([&typed[..first + before], &programs].concat())
}

/// Reads the programs of a file, and puts a `:` between two.
fn programs(file: &OsStr) -> Result<Vec<OsString>, String> {
    let mut words: Vec<OsString> = Vec::new();
    for (number, line) in (1..).zip(read(Path::new(file))?.lines()) {
        let split = shlex::split(line);
        let split = split.ok_or_else(|| {
            format!("{}:{number}: a quotation mark is not closed", file.display())
        })?;
        // A line may end in a colon, too.
        if !split.is_empty() && words.last().is_some_and(|last| last != ":") {
            words.push(":".into());
        }
        words.extend(split.into_iter().map(OsString::from));
    }
    if words.last().is_some_and(|last| last == ":") {
        words.pop();
    }
    if words.is_empty() { Err(format!("{} names no program", file.display())) } else { Ok(words) }
}

fn read(path: &Path) -> Result<String, String> {
    let read = fs::read_to_string(path);
    let mut text = read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    // Windows editors put a byte order mark there, which is no part of the first word.
    if text.starts_with('\u{feff}') {
        text.remove(0);
    }
    Ok(text)
}
