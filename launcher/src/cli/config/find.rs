//! Search for the configuration files to read: the file of `--cluster`; or else ./rlaunch.toml, if it is
//! trusted; or else the user's own file, together with the harmless keys of an untrusted ./rlaunch.toml.

use super::error::{ConfigError, FILE};
use super::trusted::{self, TrustState, TrustStore};
use nix::fcntl::OFlag;
use nix::unistd::{Gid, Group, Uid, User};
use rlaunch_console::process_env::ProcessEnv;
use rlaunch_text::text;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Value of `--cluster` that stands for no configuration file.
const NONE: &str = "none";

/// Returns the path of the user's own file, which applies in all directories; `None` without a home
/// directory.
pub(super) fn user_file_path(env: &ProcessEnv) -> Option<PathBuf> {
    let configured = env.variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let base = configured.filter(|path| path.is_absolute());
    let base = base.or_else(|| Some(env.home.as_ref()?.join(".config")))?;
    Some(base.join("rlaunch").join(FILE))
}

/// Content of a configuration file, and whether it is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// Whether all keys take effect: the user named the file with `--cluster`, trusts it, or it is the user's
    /// own.
    pub(super) is_trusted: bool,
    /// File whose change ended the user's trust: this file, or a file that it names. `None` if no change
    /// ended the trust.
    pub(super) changed: Option<PathBuf>,
}

/// Reads the configuration files; an untrusted file is the first. `asked` is the value of `--cluster`. A file
/// that `--cluster` does not name must belong to the user or to root, and no other user may be able to write
/// to it, since it can name commands that run on this machine.
pub(super) fn find_files(
    asked: Option<&Path>,
    env: &ProcessEnv,
) -> Result<Vec<ReadFile>, ConfigError> {
    let trusted = |(path, text)| ReadFile { path, text, is_trusted: true, changed: None };
    if let Some(path) = asked {
        if path.as_os_str() == NONE {
            return Ok(Vec::new());
        }
        let text = fs::File::open(path).and_then(read_text);
        let text = text.map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        return Ok(vec![trusted((path.to_owned(), text))]);
    }
    let user_file = user_file_path(env);
    let local_file = env.directory.join(FILE);
    let Some(text) = read_if_safe(&local_file)? else {
        return Ok(user_file.map_or(Ok(None), read_user_file)?.map(trusted).into_iter().collect());
    };
    let is_user_file = || {
        let same = |own: &PathBuf| {
            Some(trusted::identity(own).ok()? == trusted::identity(&local_file).ok()?)
        };
        user_file.as_ref().and_then(same).unwrap_or(false)
    };
    let state = || TrustStore::for_user(env).ok()?.state(&local_file, &text);
    let changed = match if is_user_file() { Some(TrustState::Same) } else { state() } {
        Some(TrustState::Same) => return Ok(vec![trusted((local_file, text))]),
        Some(TrustState::Changed(what)) => Some(what),
        Some(TrustState::Gone) | None => None,
    };
    // An untrusted file must not replace the user's own file.
    let untrusted = ReadFile { path: local_file, text, is_trusted: false, changed };
    let user_file = user_file.map_or(Ok(None), read_user_file)?.map(trusted);
    Ok([Some(untrusted), user_file].into_iter().flatten().collect())
}

fn read_user_file(path: PathBuf) -> Result<Option<(PathBuf, String)>, ConfigError> {
    Ok(read_if_safe(&path)?.map(|text| (path, text)))
}

/// Reads a file that only this user or root can have written. Returns `None` if the file does not exist, and
/// an error if another user may have written it.
pub(super) fn read_if_safe(path: &Path) -> Result<Option<String>, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    if let Some(reason) = distrust(&metadata) {
        return Err(ConfigError::Distrusted { path: path.to_owned(), reason });
    }
    read_text(file).map(Some).map_err(failed)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns the reason why another user may have written the file; `None` if no other user can have.
fn distrust(metadata: &fs::Metadata) -> Option<String> {
    let (owner, us) = (Uid::from_raw(metadata.uid()), Uid::effective());
    if !owner.is_root() && owner != us {
        let name = User::from_uid(owner).ok().flatten().map(|user| user.name);
        let name = name.unwrap_or_else(|| format!("uid {owner}"));
        return Some(format!("it belongs to {name}"));
    }
    if metadata.mode() & 0o002 != 0 {
        return Some("all users may write to it".to_owned());
    }
    let gid = Gid::from_raw(metadata.gid());
    (metadata.mode() & 0o020 != 0 && !is_private_to(owner, gid)).then(|| {
        let group = Group::from_gid(gid).ok().flatten().map(|group| group.name);
        format!("its group {} may write to it", group.unwrap_or_else(|| gid.to_string()))
    })
}

/// Tells whether the user is the only member of a group. Systems with such a group for each user often have
/// umask 002, so that all files are writable by their group. Debian's ssh makes the same exception.
fn is_private_to(user: Uid, gid: Gid) -> bool {
    let user = User::from_uid(user).ok().flatten();
    let group = Group::from_gid(gid).ok().flatten();
    user.zip(group).is_some_and(|(user, group)| is_alone(&user, &group))
}

fn is_alone(user: &User, group: &Group) -> bool {
    user.gid == group.gid
        && user.name == group.name
        && group.mem.iter().all(|member| *member == user.name)
}

/// Maximum size of a configuration file, in bytes.
const MAX_FILE: u64 = 1 << 20;
const NONBLOCK: i32 = OFlag::O_NONBLOCK.bits();

/// Opens a file for reading. The call does not block if the file is a named pipe without a writer.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)
}

/// Reads the text of a configuration file.
pub(super) fn read_text(file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    let length = file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if length as u64 > MAX_FILE {
        return Err(io::Error::other(format!("longer than {} MiB", MAX_FILE >> 20)));
    }
    text::utf8(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    /// Temporary directory with a home directory. `local_file` is the path of ./rlaunch.toml, `user_file`
    /// that of the user's own file.
    struct Scratch {
        _scratch: TempDir,
        env: ProcessEnv,
        local_file: PathBuf,
        user_file: PathBuf,
    }

    /// Creates the directories of a [`Scratch`], without files.
    fn scratch() -> Scratch {
        let scratch = tempfile::tempdir().unwrap();
        let (here, home) = (scratch.path().join("here"), scratch.path().join("home"));
        let user_file = home.join(".config/rlaunch/rlaunch.toml");
        for directory in [&here, &user_file.parent().unwrap().to_owned()] {
            fs::create_dir_all(directory).unwrap();
        }
        let local_file = here.join("rlaunch.toml");
        let env = ProcessEnv { directory: here, home: Some(home), ..ProcessEnv::default() };
        Scratch { _scratch: scratch, env, local_file, user_file }
    }

    /// Returns the texts that are read, and whether each is trusted.
    fn found(asked: Option<&Path>, env: &ProcessEnv) -> Vec<(String, bool)> {
        let files = find_files(asked, env).unwrap();
        files.into_iter().map(|file| (file.text, file.is_trusted)).collect()
    }

    fn texts(list: &[(&str, bool)]) -> Vec<(String, bool)> {
        list.iter().map(|(text, is_trusted)| ((*text).to_owned(), *is_trusted)).collect()
    }

    #[test]
    fn the_nearest_trusted_file_is_read_and_what_is_untrusted_before_it() {
        let Scratch { _scratch, mut env, local_file, user_file } = scratch();
        assert!(find_files(None, &env).unwrap().is_empty());
        fs::write(&user_file, "# own").unwrap();
        assert_eq!(found(None, &env), texts(&[("# own", true)]));
        fs::write(&local_file, "# near").unwrap();
        assert_eq!(found(None, &env), texts(&[("# near", false), ("# own", true)]));
        TrustStore::for_user(&env).unwrap().trust(&local_file, "# near", &[]).unwrap();
        assert_eq!(found(None, &env), texts(&[("# near", true)]));
        fs::write(&local_file, "# changed").unwrap();
        assert_eq!(found(None, &env), texts(&[("# changed", false), ("# own", true)]));
        assert_eq!(found(Some(&user_file), &env), texts(&[("# own", true)]));
        assert_eq!(found(Some(&local_file), &env), texts(&[("# changed", true)]));
        assert!(find_files(Some(Path::new("none")), &env).unwrap().is_empty());
        let missing = find_files(Some(&local_file.with_file_name("x.toml")), &env).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read "), "{missing}");
        // The user's own file is trusted in its own directory, too.
        env.directory = user_file.parent().unwrap().to_owned();
        assert_eq!(found(None, &env), texts(&[("# own", true)]));
        // An absolute XDG_CONFIG_HOME replaces ~/.config.
        env.directory = local_file.with_file_name("");
        fs::remove_file(&local_file).unwrap();
        env.variables = vec![("XDG_CONFIG_HOME".into(), env.directory.clone().into())];
        assert!(find_files(None, &env).unwrap().is_empty());
    }

    #[test]
    fn a_directory_in_place_of_a_file_is_no_matter_of_trust() {
        let Scratch { _scratch, env, local_file, .. } = scratch();
        fs::create_dir(&local_file).unwrap();
        let error = find_files(None, &env).unwrap_err();
        assert!(matches!(error, ConfigError::Read { .. }), "{error}");
        assert!(!error.hint().unwrap().contains("chmod"), "{error}");
    }

    #[test]
    fn a_file_that_others_may_write_to_is_not_read() {
        let Scratch { _scratch, env, local_file, user_file } = scratch();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for path in [&local_file, &user_file] {
            fs::write(path, "").unwrap();
            TrustStore::for_user(&env).unwrap().trust(path, "", &[]).unwrap();
            mode(path, 0o666);
            let error = find_files(None, &env).unwrap_err();
            assert!(error.to_string().contains("all users may write to it"), "{error}");
            assert!(error.hint().unwrap().contains("chmod go-w "), "{error}");
            // A file that `--cluster` names is read all the same.
            assert!(find_files(Some(path), &env).is_ok());
            mode(path, 0o644);
            if Uid::effective().is_root() {
                let chown =
                    |uid, gid| std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
                chown(0, 54321);
                mode(path, 0o664);
                let error = find_files(None, &env).unwrap_err().to_string();
                assert!(error.contains("its group 54321 may write to it"), "{error}");
                chown(54321, 0);
                let error = find_files(None, &env).unwrap_err().to_string();
                assert!(error.contains("it belongs to uid 54321"), "{error}");
            }
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_private_group_has_no_other_member() {
        let user = User::from_uid(Uid::from_raw(0)).unwrap().unwrap();
        let group = |name: &str, gid, members: &[&str]| Group {
            name: name.into(),
            passwd: std::ffi::CString::default(),
            gid: Gid::from_raw(gid),
            mem: members.iter().map(|&member| member.to_owned()).collect(),
        };
        let (name, gid) = (user.name.clone(), user.gid.as_raw());
        assert!(is_alone(&user, &group(&name, gid, &[])));
        assert!(is_alone(&user, &group(&name, gid, &[&name])));
        assert!(!is_alone(&user, &group(&name, gid, &["mallory"])));
        assert!(!is_alone(&user, &group("users", gid, &[])));
        assert!(!is_alone(&user, &group(&name, gid + 1, &[])));
    }
}
