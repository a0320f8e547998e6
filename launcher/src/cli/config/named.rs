//! Other files that an rlaunch.toml names, such as a hostfile or an agent. Trust in the rlaunch.toml covers
//! these files too, because their content affects jobs as much as its keys do, and a user with permission to
//! write one of the files can often write the others.
//!
//! Only relative names and names below the directory of rlaunch.toml are covered. A file elsewhere did not
//! come from the same repository or archive.

use super::error::SettingOrigin;
use super::file::{ConfigFile, Setting, SettingValue};
use super::{find, merge, trusted};
use clap::Command;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Number of bytes that are read and hashed at a time.
const BLOCK: usize = 256 << 10;

/// Form in which a key's value names files of this machine.
#[derive(Clone, Copy)]
enum NameForm {
    /// Name of a file.
    Name,
    /// `FILE:DEST`, which names FILE.
    Template,
    /// Command line, each word of which may be the name of a file.
    Command,
}

/// Keys that name files of this machine.
const KEYS: &[(&str, NameForm)] = &[
    ("agent", NameForm::Name),
    ("container-exec", NameForm::Command),
    ("env-file", NameForm::Name),
    ("hostfile", NameForm::Name),
    ("preload", NameForm::Name),
    ("rsh", NameForm::Command),
    ("ssh-config", NameForm::Name),
    ("stdin", NameForm::Name),
    ("template", NameForm::Template),
];

/// File that a key names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedFile {
    /// Line of the first key that names the file, from 1.
    pub(super) line: usize,
    /// Name of the file as written in rlaunch.toml.
    pub(super) name: PathBuf,
    /// SHA-256 of the content; `None` if there is no such file.
    pub(super) digest: Option<String>,
    /// Whether the name was only found as a word of command lines. Such a word need not be the name of a
    /// file.
    pub(super) is_word: bool,
}

/// Lists the files that are trusted together with the configuration file `path`, whose content is `file`.
/// Missing files are listed as well, since trust ends if one appears later.
pub(super) fn named_files(all: &Command, file: &ConfigFile, path: &Path) -> Vec<NamedFile> {
    let Ok(own) = trusted::identity(path) else { return Vec::new() };
    let directory = own.parent().unwrap_or(Path::new("/"));
    let is_covered = |name: &Path| {
        name.is_relative() || trusted::identity(name).is_ok_and(|name| name.starts_with(directory))
    };
    let of_profiles = file.profiles.iter().flat_map(|(_, settings)| settings);
    let mut found: Vec<NamedFile> = Vec::new();
    for setting in file.host_list.iter().chain(&file.defaults).chain(of_profiles) {
        let SettingOrigin::Line(_, line) = setting.origin else { continue };
        for (name, is_word) in names(all, setting) {
            let name = PathBuf::from(name);
            match found.iter_mut().find(|known| known.name == name) {
                Some(known) => known.is_word &= is_word,
                None if is_covered(&name) => {
                    let digest = digest(&directory.join(&name));
                    found.push(NamedFile { line, name, digest, is_word });
                }
                None => {}
            }
        }
    }
    found
}

/// Lists the texts in a setting's value that may name files, and whether each is a word of a command line.
fn names(all: &Command, setting: &Setting) -> Vec<(String, bool)> {
    let key = merge::option(all, &setting.key).and_then(|option| option.get_long());
    let Some((_, form)) = KEYS.iter().find(|(known, _)| key == Some(known)) else {
        return Vec::new();
    };
    let texts = match &setting.value {
        SettingValue::Flag(_) => &[],
        SettingValue::Text(text) => std::slice::from_ref(text),
        SettingValue::List(texts) => &texts[..],
    };
    let names_in = |text: &String| -> Vec<(String, bool)> {
        match form {
            NameForm::Name => vec![(text.clone(), false)],
            NameForm::Template => {
                text.split(':').take(1).map(|name| (name.to_owned(), false)).collect()
            }
            NameForm::Command => words(text).into_iter().map(|word| (word, true)).collect(),
        }
    };
    // The name of a file cannot have a null character.
    let can_be = |(name, _): &(String, bool)| !name.is_empty() && !name.contains('\0');
    texts.iter().flat_map(names_in).filter(can_be).collect()
}

/// Splits a command line into words, and splits words again where a shell that the command starts would split
/// them. Leaves out a program that is looked up in PATH, and files that the command writes by `>`, since
/// these change.
fn words(text: &str) -> Vec<String> {
    let is_between = |c: char| c.is_whitespace() || "'\"`;|&()<>$=".contains(c);
    let split = shlex::split(text).unwrap_or_default();
    let program = split.first().filter(|word| !word.contains('/')).cloned();
    let is_odd = |word: &String| word.contains(is_between) || !text.contains(word.as_str());
    let mut words: Vec<String> = split.into_iter().filter(is_odd).collect();
    // `<>` opens a file for reading, too.
    let mut is_written = false;
    for part in text.split('>') {
        let read = match is_written {
            true => part.trim_start().split_once(is_between).map_or("", |(_, rest)| rest),
            false => part,
        };
        words.extend(read.split(is_between).map(str::to_owned));
        is_written = !part.ends_with('<');
    }
    words.retain(|word| Some(word) != program.as_ref());
    words
}

/// Computes the SHA-256 of a file's content, in hexadecimal; `None` if the path is not a readable regular
/// file.
pub(super) fn digest(path: &Path) -> Option<String> {
    let mut file = find::open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let (mut hash, mut block) = (Sha256::new(), vec![0; BLOCK]);
    loop {
        match file.read(&mut block).ok()? {
            0 => return Some(shown(&hash.finalize())),
            read => hash.update(&block[..read]),
        }
    }
}

/// Computes the SHA-256 of bytes, in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    shown(&Sha256::digest(bytes))
}

fn shown(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::JobArgs;
    use crate::cli::config::file;
    use clap::CommandFactory;
    use std::fs;

    /// Lists the files that are trusted together with an rlaunch.toml with this text, in a directory that
    /// also has a file `here`.
    fn covered(text: &str) -> Vec<String> {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("rlaunch.toml");
        fs::write(scratch.path().join("here"), "x").unwrap();
        let text = text.replace("DIR", scratch.path().to_str().unwrap());
        let mut all = JobArgs::command();
        all.build();
        let named = named_files(&all, &file::parse(&text, &path).unwrap(), &path);
        let shown = |named: NamedFile| {
            let mark = if named.digest.is_some() { "+" } else { "-" };
            let name = named.name.display().to_string();
            format!("{}{mark}{}", named.line, name.replace(scratch.path().to_str().unwrap(), "DIR"))
        };
        named.into_iter().map(shown).collect()
    }

    #[test]
    fn names_are_found_in_every_section_and_form() {
        let text = "[defaults]\nssh-config = \"here\"\nmachinefile = [\"h\", \"DIR/here\"]\n\
                    agent = \"/elsewhere/agent\"\nwdir = \"w\"\n\
                    [profile.x]\ntemplate = \"t:/dest\"\npreload = \"here\"\nenv-file = \"../e\"\n";
        assert_eq!(covered(text), ["2+here", "3-h", "3+DIR/here", "7-t", "9-../e"]);
    }

    #[test]
    fn words_of_commands_are_files_where_they_lead_to_some() {
        let of = |command: &str| covered(&format!("[defaults]\nrsh = {command:?}\n")).join(" ");
        assert_eq!(of("./here -x"), "2+./here 2--x");
        assert!(of("ssh -F here").ends_with("2+here"), "{}", of("ssh -F here"));
        assert!(!of("here -x").contains("here"), "a program of PATH");
        assert!(of("sh -c 'exec ./here; y' --").contains("2+./here"));
        assert!(of("env A=./here x").contains("2+./here"));
        assert!(of(r"sh ./h\ere").contains("2+./here"));
        assert!(of("sh <>./here").contains("2+./here"));
        // A file that a command writes is not covered.
        for written in ["sh -c 'x >here'", "sh -c 'x >>here 2>&1'", "sh -c 'x 2> here; y'"] {
            assert!(!of(written).contains("+here"), "{}", of(written));
        }
    }
}
