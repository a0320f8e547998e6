//! Templates: words of a command line, values of `-x` and files in which `{{host.oob_ip}}` and the
//! like are filled in. A word or a value without two opening braces is none.

use super::{AppError, AppSpec, Title};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior};
use rlaunch_bootstrap::env::redacted_value;
use rlaunch_console::redact::without_secrets;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The longest file that is taken, in bytes.
const LONGEST: u64 = 256 << 10;
/// So much of a text is shown in a message, in characters.
const SHOWN: usize = 80;

/// `--template FILE:DEST`.
#[derive(Clone, Debug)]
pub(crate) struct TemplateFile {
    /// Where it is here.
    pub(crate) source: PathBuf,
    pub(crate) text: String,
    /// Where it will be, as typed.
    pub(crate) dest: String,
}

impl TemplateFile {
    /// Reads the file.
    pub(crate) fn load(typed: &str) -> Result<TemplateFile, AppError> {
        let parts =
            typed.split_once(':').filter(|(file, dest)| !file.is_empty() && !dest.is_empty());
        let (source, dest) = parts.ok_or_else(|| AppError::NoDest(typed.to_owned()))?;
        let text = read(Path::new(source))
            .map_err(|error| AppError::Read { path: source.into(), source: error })?;
        Ok(TemplateFile { source: source.into(), text, dest: dest.to_owned() })
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    match text.len() as u64 > LONGEST {
        true => Err(io::Error::other(format!("it is longer than {} KiB", LONGEST >> 10))),
        false => Ok(text),
    }
}

/// What a template is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// Of the program's words; 0 would be the program.
    Word(u32),
    Variable(&'a OsStr),
    /// The path of one of [`AppSpec::templates`].
    Dest(usize),
    /// What is in it.
    Content(usize),
}

/// A text in which something is to be filled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) text: &'a str,
    pub(crate) target: Target<'a>,
}

impl Text<'_> {
    /// How it is called in a message; no secret is in it.
    pub(crate) fn what(&self, app: &AppSpec) -> String {
        let cut = |text: String| text.chars().take(SHOWN).collect::<String>();
        match self.target {
            Target::Word(_) => {
                let word = without_secrets(&[self.text.into()]).concat();
                format!("`{}`", cut(word))
            }
            Target::Variable(name) => {
                let name = name.to_string_lossy();
                format!("`-x {name}={}`", cut(redacted_value(&name, self.text)))
            }
            Target::Dest(_) => format!("`{}` of --template", cut(self.text.to_owned())),
            Target::Content(index) => app.templates[index].source.display().to_string(),
        }
    }
}

/// All templates of a program.
pub(crate) fn texts(app: &AppSpec) -> Vec<Text<'_>> {
    let is_template = |text: &&str| text.contains("{{");
    let words = (1..).zip(app.argv.iter().skip(1)).filter_map(|(at, word)| {
        let text = word.to_str().filter(is_template)?;
        Some(Text { text, target: Target::Word(at) })
    });
    let asked_for = |name: &OsStr| app.explicit.iter().any(|asked| name == asked.as_str());
    let variables = app.env.iter().filter(|var| asked_for(&var.name)).filter_map(|var| {
        let text = var.value.to_str().filter(is_template)?;
        Some(Text { text, target: Target::Variable(&var.name) })
    });
    let files = app.templates.iter().enumerate().flat_map(|(index, file)| {
        let dest = Text { text: &file.dest, target: Target::Dest(index) };
        [dest, Text { text: &file.text, target: Target::Content(index) }]
    });
    words.chain(variables).chain(files).collect()
}

/// What fills in texts: a name that is not known is an error, and nothing is escaped.
pub(crate) fn environment<'a>() -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // A file ends as it ends.
    if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
        environment.set_syntax(syntax);
    }
    environment
}

/// Refuses what is no template before any host is reached.
pub(crate) fn check(app: &AppSpec, title: &Title) -> Result<(), AppError> {
    let environment = environment();
    for text in texts(app) {
        environment.template_from_str(text.text).map_err(|error| AppError::Syntax {
            title: title.clone(),
            what: text.what(app),
            cause: cause(&error, text),
        })?;
    }
    Ok(())
}

/// What is wrong, and in which line of a file.
pub(crate) fn cause(error: &minijinja::Error, text: Text<'_>) -> String {
    let mut cause = error.kind().to_string();
    if let Some(detail) = error.detail() {
        cause = format!("{cause}: {detail}");
    }
    match (text.target, error.line()) {
        (Target::Content(_), Some(line)) => format!("line {line}: {cause}"),
        _ => cause,
    }
}
