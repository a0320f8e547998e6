//! Templates: arguments, values of `-x` and files of `--template`, in which placeholders like `{{host.oob_ip}}` are
//! replaced. An argument or a value without `{{` is not a template.

use super::{AppError, AppSpec, AppTitle};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior};
use rlaunch_bootstrap::env::redacted_value;
use rlaunch_text::redact::without_secrets;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum size of a template file, in bytes.
const MAX_BYTES: u64 = 256 << 10;
/// Maximum number of characters of a template that an error message quotes.
const QUOTED: usize = 80;

/// File of `--template FILE:DEST`.
#[derive(Clone, Debug)]
pub struct TemplateFile {
    /// Path of the file on this machine.
    pub source: PathBuf,
    pub text: String,
    /// Path of the rendered file on hosts, which may contain placeholders as well.
    pub dest: String,
}

impl TemplateFile {
    /// Parses `FILE:DEST`, and reads FILE.
    pub fn load(option: &str) -> Result<TemplateFile, AppError> {
        let parts =
            option.split_once(':').filter(|(file, dest)| !file.is_empty() && !dest.is_empty());
        let (source, dest) = parts.ok_or_else(|| AppError::NoDest(option.to_owned()))?;
        let text = read(Path::new(source))
            .map_err(|error| AppError::Read { path: source.into(), source: error })?;
        Ok(TemplateFile { source: source.into(), text, dest: dest.to_owned() })
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(io::Error::other(format!("it is longer than {} KiB", MAX_BYTES >> 10))),
        false => Ok(text),
    }
}

/// Place at which a template's text is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateUse<'a> {
    /// Argument at this position in argv; position 0 is the program.
    Argument(u32),
    Variable(&'a OsStr),
    /// Destination path of the file with this index in [`AppSpec::templates`].
    Dest(usize),
    /// Content of the file with this index in [`AppSpec::templates`].
    Content(usize),
}

/// Text of a template, and the place at which it is used.
#[derive(Clone, Copy, Debug)]
pub struct TemplateText<'a> {
    pub text: &'a str,
    pub usage: TemplateUse<'a>,
}

impl TemplateText<'_> {
    /// Describes the template for an error message, without secrets.
    pub fn describe(&self, app: &AppSpec) -> String {
        let cut = |text: String| text.chars().take(QUOTED).collect::<String>();
        match self.usage {
            TemplateUse::Argument(_) => {
                let word = without_secrets(&[self.text.into()]).concat();
                format!("`{}`", cut(word))
            }
            TemplateUse::Variable(name) => {
                let name = name.to_string_lossy();
                format!("`-x {name}={}`", cut(redacted_value(&name, self.text)))
            }
            TemplateUse::Dest(_) => format!("`{}` of --template", cut(self.text.to_owned())),
            TemplateUse::Content(index) => app.templates[index].source.display().to_string(),
        }
    }
}

pub fn texts(app: &AppSpec) -> Vec<TemplateText<'_>> {
    let is_template = |text: &&str| text.contains("{{");
    let arguments = (1..).zip(app.argv.iter().skip(1)).filter_map(|(at, word)| {
        let text = word.to_str().filter(is_template)?;
        Some(TemplateText { text, usage: TemplateUse::Argument(at) })
    });
    let is_user_set = |name: &OsStr| app.user_set_vars.iter().any(|asked| name == asked.as_str());
    let variables = app.env.iter().filter(|var| is_user_set(&var.name)).filter_map(|var| {
        let text = var.value.to_str().filter(is_template)?;
        Some(TemplateText { text, usage: TemplateUse::Variable(&var.name) })
    });
    let files = app.templates.iter().enumerate().flat_map(|(index, file)| {
        let dest = TemplateText { text: &file.dest, usage: TemplateUse::Dest(index) };
        [dest, TemplateText { text: &file.text, usage: TemplateUse::Content(index) }]
    });
    arguments.chain(variables).chain(files).collect()
}

/// Returns the template engine. An unknown placeholder is an error, and values are not escaped.
pub fn environment<'a>() -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // Without this, the engine removes the newline at the end of a file.
    if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
        environment.set_syntax(syntax);
    }
    environment
}

/// Checks the syntax of a program's templates. This needs no rank table, so errors are found before a host is
/// connected to.
pub fn check(app: &AppSpec, title: &AppTitle) -> Result<(), AppError> {
    let environment = environment();
    for text in texts(app) {
        environment.template_from_str(text.text).map_err(|error| AppError::Syntax {
            title: title.clone(),
            what: text.describe(app),
            cause: cause(&error, text),
        })?;
    }
    Ok(())
}

/// Formats the cause of an error in a template, with the line number if the template is a file.
pub fn cause(error: &minijinja::Error, text: TemplateText<'_>) -> String {
    let mut cause = error.kind().to_string();
    if let Some(detail) = error.detail() {
        cause = format!("{cause}: {detail}");
    }
    match (text.usage, error.line()) {
        (TemplateUse::Content(_), Some(line)) => format!("line {line}: {cause}"),
        _ => cause,
    }
}
