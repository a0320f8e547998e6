//! Which file is read: `--cluster F`, else `rlaunch.toml` here, else the user's own.

use super::error::{ConfigError, FILE};
use nix::fcntl::OFlag;
use nix::unistd::{Uid, User};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The longest file, in bytes.
const LONGEST: u64 = 1 << 20;
const UNBLOCKED: i32 = OFlag::O_NONBLOCK.bits();
/// `--cluster none` reads none.
const NONE: &str = "none";

/// What of this process and its user matters here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// Where a file is looked for first; empty for the working directory.
    pub(crate) directory: PathBuf,
    pub(crate) home: Option<PathBuf>,
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn current() -> Surroundings {
        Surroundings {
            variables: std::env::vars_os().collect(),
            directory: PathBuf::new(),
            home: std::env::home_dir(),
        }
    }

    /// A variable's value, unless that is empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.variables.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// The user's own file, for all directories.
    fn of_user(&self) -> Option<PathBuf> {
        let configured = self.variable("XDG_CONFIG_HOME").map(PathBuf::from);
        let base = configured.filter(|path| path.is_absolute());
        let base = base.or_else(|| Some(self.home.as_ref()?.join(".config")))?;
        Some(base.join("rlaunch").join(FILE))
    }
}

/// The file to read and its content, where there is one. One that was not asked for by name must be
/// the user's own, or root's: it can name commands that run here.
pub(crate) fn find(
    asked: Option<&Path>,
    around: &Surroundings,
) -> Result<Option<(PathBuf, String)>, ConfigError> {
    if let Some(path) = asked {
        if path.as_os_str() == NONE {
            return Ok(None);
        }
        let text = fs::File::open(path).and_then(read);
        return match text {
            Ok(text) => Ok(Some((path.to_owned(), text))),
            Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
        };
    }
    let candidates = [Some(around.directory.join(FILE)), around.of_user()];
    for path in candidates.into_iter().flatten() {
        // A pipe of that name is not waited for.
        let opened = fs::OpenOptions::new().read(true).custom_flags(UNBLOCKED).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if is_absent(&error) => continue,
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        let text = match file.metadata().map(|metadata| distrust(&metadata)) {
            Ok(Some(reason)) => return Err(ConfigError::Distrusted { path, reason }),
            Ok(None) => read(file),
            Err(error) => Err(error),
        };
        return match text {
            Ok(text) => Ok(Some((path, text))),
            Err(source) => Err(ConfigError::Read { path, source }),
        };
    }
    Ok(None)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Why somebody else may have written it.
fn distrust(metadata: &fs::Metadata) -> Option<String> {
    let (owner, us) = (Uid::from_raw(metadata.uid()), Uid::effective());
    if !metadata.is_file() {
        return Some("it is no file".to_owned());
    }
    if !owner.is_root() && owner != us {
        let name = User::from_uid(owner).ok().flatten().map(|user| user.name);
        let name = name.unwrap_or_else(|| format!("uid {owner}"));
        return Some(format!("it belongs to {name}"));
    }
    (metadata.mode() & 0o002 != 0).then(|| "everybody may write to it".to_owned())
}

fn read(file: fs::File) -> io::Result<String> {
    let mut text = String::new();
    let length = file.take(LONGEST + 1).read_to_string(&mut text)?;
    if length as u64 > LONGEST {
        return Err(io::Error::other(format!("longer than {} MiB", LONGEST >> 20)));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_nearest_file_is_read_and_only_where_it_can_be_trusted() {
        let scratch = tempfile::tempdir().unwrap();
        let (here, home) = (scratch.path().join("here"), scratch.path().join("home"));
        let own = home.join(".config/rlaunch/rlaunch.toml");
        for directory in [&here, &own.parent().unwrap().to_owned()] {
            fs::create_dir_all(directory).unwrap();
        }
        let mut around = Surroundings { directory: here.clone(), ..Surroundings::default() };
        around.home = Some(home);
        assert!(find(None, &around).unwrap().is_none());
        fs::write(&own, "# own").unwrap();
        assert_eq!(find(None, &around).unwrap().unwrap(), (own.clone(), "# own".to_owned()));
        let near = here.join("rlaunch.toml");
        fs::write(&near, "# near").unwrap();
        assert_eq!(find(None, &around).unwrap().unwrap().1, "# near");
        assert_eq!(find(Some(&own), &around).unwrap().unwrap().1, "# own");
        assert!(find(Some(Path::new("none")), &around).unwrap().is_none());
        let missing = find(Some(&here.join("x.toml")), &around).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read "), "{missing}");
        fs::set_permissions(&near, fs::Permissions::from_mode(0o666)).unwrap();
        let error = find(None, &around).unwrap_err();
        assert!(error.to_string().contains("everybody may write to it"), "{error}");
        assert!(error.hint().unwrap().contains("--cluster"), "{error}");
        // Asked for by name it is read.
        assert!(find(Some(&near), &around).is_ok());
        fs::set_permissions(&near, fs::Permissions::from_mode(0o644)).unwrap();
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&near, Some(54321), None).unwrap();
            let error = find(None, &around).unwrap_err().to_string();
            assert!(error.contains("it belongs to uid 54321"), "{error}");
        }
        // An absolute XDG_CONFIG_HOME is taken in place of ~/.config.
        fs::remove_file(&near).unwrap();
        around.variables = vec![("XDG_CONFIG_HOME".into(), here.clone().into())];
        assert!(find(None, &around).unwrap().is_none());
    }
}
