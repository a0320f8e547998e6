//! Variables that ranks get from the shell in which rlaunch was started, from `-x` and from `--env-file`. In
//! this file, that shell is "this shell".

use super::env_file::{self, EnvFileError};
use rlaunch_bootstrap::env as names;
use rlaunch_bootstrap::job::{EnvRule, EnvVar};
use rlaunch_text::glob;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

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
    let along = own.iter().filter(|(name, _)| !options.nothing_else && may_forward(name));
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
        for line in env_file::read(path)? {
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

/// Tells whether a variable of this shell may be forwarded: it belongs neither to a host nor to another
/// launcher.
fn may_forward(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    !names::is_node_specific(&name) && !names::is_foreign_launch(&name)
}

fn set(env: &mut Vec<EnvVar>, name: OsString, value: OsString) {
    env.retain(|var| var.name != name);
    env.push(EnvVar { name, value, rule: EnvRule::Set });
}

fn value_of(own: &[(OsString, OsString)], name: &OsStr) -> Option<OsString> {
    own.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
}

/// Returns the variables of one argument of `-x`: `NAME=VALUE`; `NAME`, with its value in this shell; or a
/// pattern, which does not match variables that belong to a host or to another launcher.
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
        let fits = |own: &OsStr| glob::matches(&text, &own.to_string_lossy()) && may_forward(own);
        let found: Vec<_> = own.iter().filter(|(name, _)| fits(name)).cloned().collect();
        tracing::info!("-x {text}: {} variables", found.len());
        return Ok(found);
    }
    let value = value.map(OsStr::to_owned).or_else(|| value_of(own, name));
    let value = value.ok_or_else(|| EnvError::Unset(text.into_owned()))?;
    Ok(vec![(name.to_owned(), value)])
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
