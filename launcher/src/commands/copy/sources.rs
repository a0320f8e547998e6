//! `SRC[:DEST]`: which files go where, and the list of a dry run.

use super::progress::amount;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::{printable, shell, text};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Begin of a word that names a model in the cache of the Hugging Face hub.
const HUB: &str = "hf:";
/// Where that cache is without variables that say otherwise.
const HUB_CACHE: &str = "~/.cache/huggingface/hub";
/// Home directory, as a destination.
const HOME: &str = "~/";

/// What `SRC[:DEST]` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CopySource {
    path: String,
    destination: Option<String>,
}

/// Paths that go to the same directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceGroup {
    pub(super) destination: String,
    pub(super) paths: Vec<String>,
}

impl CopySource {
    /// Parses a word. A colon that belongs to a file's name is known by the file, if `exists` finds it.
    fn parse(word: &str, exists: impl Fn(&Path) -> bool) -> CopySource {
        let split = match word.strip_prefix(HUB) {
            Some(rest) => {
                let split = rest.split_once(':');
                split.map(|(model, destination)| (&word[..HUB.len() + model.len()], destination))
            }
            None if exists(Path::new(word)) => None,
            None => word.rsplit_once(':'),
        };
        let (path, destination) = split.map_or((word, None), |(path, to)| (path, Some(to)));
        let destination = destination.map(|to| if to.is_empty() { HOME } else { to }.to_owned());
        CopySource { path: path.to_owned(), destination }
    }

    /// Returns the path as the program on this machine gets it, and the directory on the hosts. Without DEST that is the
    /// directory in which the file is here, which below the home directory is the one below each host's home.
    fn here(self, home: Option<&Path>) -> Result<(String, String), Failed> {
        let CopySource { path, destination } = self;
        if path.starts_with(HUB) {
            return Ok((destination.unwrap_or_else(|| HUB_CACHE.to_owned()), path));
        }
        let failed =
            |error: io::Error| Failed::new(Exit::FILES, format!("cannot read {path}: {error}"));
        let own = named(Path::new(&path)).map_err(failed)?;
        fs::symlink_metadata(&own).map_err(failed)?;
        let destination = match destination {
            Some(destination) => destination,
            None => as_text(&directory_for(&own, home))?,
        };
        Ok((destination, as_text(&own)?))
    }

    /// Does the same for a path of a host.
    fn there(self) -> (String, String) {
        let CopySource { path, destination } = self;
        let destination = destination.unwrap_or_else(|| {
            let path = path.trim_end_matches('/');
            match path.rsplit_once('/') {
                _ if path.starts_with(HUB) => HUB_CACHE.to_owned(),
                Some(("", _)) => "/".to_owned(),
                Some((directory, _)) => directory.to_owned(),
                None => HOME.to_owned(),
            }
        });
        (destination, path)
    }
}

/// Returns an absolute path that ends in a name, which the copy has.
fn named(path: &Path) -> io::Result<PathBuf> {
    let has_parents = path.components().any(|part| part == Component::ParentDir);
    if has_parents || path.file_name().is_none() {
        // Where `..` leads depends on links.
        return path.canonicalize();
    }
    std::path::absolute(path)
}

/// Returns the directory of a file, relative to the home directory if it is below that.
fn directory_for(path: &Path, home: Option<&Path>) -> PathBuf {
    let directory = path.parent().unwrap_or(path);
    match home.and_then(|home| directory.strip_prefix(home).ok()) {
        Some(below) => Path::new(HOME).join(below),
        None => directory.to_owned(),
    }
}

fn as_text(path: &Path) -> Result<String, Failed> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        let message =
            format!("{} is not UTF-8, which names on the command line are", path.display());
        Failed::new(Exit::USAGE, message).hint(Some("copy the directory that it is in"))
    })
}

/// Reads the words of a push from this machine, or of one `from` a host.
pub(super) fn groups(words: &[String], from: Option<&str>) -> Result<Vec<SourceGroup>, Failed> {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let mut resolved = Vec::with_capacity(words.len());
    for word in words {
        resolved.push(match from {
            Some(_) => CopySource::parse(word, |_| false).there(),
            None => {
                let source = CopySource::parse(word, |path| path.symlink_metadata().is_ok());
                // Behind another, a word may be meant as cp has it: SRC DEST.
                let hint = "into a directory DEST of the hosts: rlaunch push -H HOSTS SRC:DEST";
                let hint = (!resolved.is_empty()).then_some(hint);
                source.here(home.as_deref()).map_err(|failed| match failed.exit {
                    Exit::FILES => failed.hint(hint),
                    _ => failed,
                })?
            }
        });
    }
    let mut groups = Vec::new();
    for (destination, paths) in text::grouped(resolved) {
        check_names(&paths, &destination)?;
        groups.push(SourceGroup { destination, paths });
    }
    Ok(groups)
}

/// Returns an error if two paths would have the same name in the directory.
fn check_names(paths: &[String], destination: &str) -> Result<(), Failed> {
    let name = |path: &String| Path::new(path).file_name().map(ToOwned::to_owned);
    for (index, path) in paths.iter().enumerate() {
        if let Some(other) = paths[..index].iter().find(|other| name(other) == name(path)) {
            let message = format!("{other} and {path} would be one in {destination}");
            let hint = format!("give one another directory: {path}:DEST");
            return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
        }
    }
    Ok(())
}

/// Lists the files that a push would bring to `hosts`, unless they are there.
pub(super) fn list(groups: &[SourceGroup], hosts: &str) -> Result<String, Failed> {
    let mut text = String::new();
    for SourceGroup { destination, paths } in groups {
        let mut found = Vec::new();
        for path in paths {
            if path.starts_with(HUB) {
                let message = format!("the files of {path} are known only when it is copied");
                let hint = "--dry-run lists files and directories";
                return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
            }
            let path = Path::new(path);
            let top = path.parent().unwrap_or(path);
            // A link that is named itself is followed.
            let added = fs::metadata(path)
                .map_err(|source| ListError { path: path.to_owned(), source })
                .and_then(|metadata| add_files(path, &metadata, top, &mut found));
            added.map_err(|error| Failed::new(Exit::FILES, error.to_string()))?;
        }
        for file in &found {
            let size = amount(file.size);
            let _ = writeln!(text, "{size:>9}  {}", shown(file.name.as_os_str()));
        }
        let count = text::count(found.iter().filter(|file| file.is_regular).count(), "file");
        let bytes = amount(found.iter().map(|file| file.size).sum());
        let (destination, hosts) = (shown(destination.as_ref()), shown(hosts.as_ref()));
        let _ = writeln!(text, "{count}, {bytes} would go to {destination} on {hosts}");
    }
    Ok(text)
}

/// Returns a name as it stands in a list: one that would break its line, or is not UTF-8, as a word for a shell.
pub(super) fn shown(name: &OsStr) -> String {
    let word = match name.to_str() {
        Some(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => shell::quoted(name),
    };
    printable::text(&word).into_owned()
}

/// File of a dry run's list.
struct ListedFile {
    name: PathBuf,
    is_regular: bool,
    size: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
struct ListError {
    path: PathBuf,
    source: io::Error,
}

/// Adds a file, or those below a directory, with their names below `top`.
fn add_files(
    path: &Path,
    metadata: &Metadata,
    top: &Path,
    found: &mut Vec<ListedFile>,
) -> Result<(), ListError> {
    let failed = |source| ListError { path: path.to_owned(), source };
    if metadata.is_dir() {
        let entries = fs::read_dir(path).map_err(failed)?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut entries = entries.collect::<io::Result<Vec<PathBuf>>>().map_err(failed)?;
        entries.sort();
        for entry in entries {
            let failed = |source| ListError { path: entry.clone(), source };
            let metadata = fs::symlink_metadata(&entry).map_err(failed)?;
            add_files(&entry, &metadata, top, found)?;
        }
        return Ok(());
    }
    let name = path.strip_prefix(top).unwrap_or(path).to_owned();
    let is_regular = metadata.is_file();
    let size = if is_regular { metadata.len() } else { 0 };
    found.push(ListedFile { name, is_regular, size });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    fn parsed(word: &str, files: &[&str]) -> (String, Option<String>) {
        let source =
            CopySource::parse(word, |path| files.iter().any(|file| path == Path::new(file)));
        (source.path, source.destination)
    }

    #[test]
    fn the_last_colon_is_before_the_directory() {
        let to = |path: &str, to: &str| (path.to_owned(), Some(to.to_owned()));
        assert_eq!(parsed("x", &["x"]), ("x".to_owned(), None));
        assert_eq!(parsed("x:/data", &["x"]), to("x", "/data"));
        assert_eq!(parsed("a:b", &["a:b"]), ("a:b".to_owned(), None));
        assert_eq!(parsed("a:b:~/c", &["a:b"]), to("a:b", "~/c"));
        assert_eq!(parsed("x:", &["x"]), to("x", "~/"));
        assert_eq!(parsed("hf:org/model@main", &[]), ("hf:org/model@main".to_owned(), None));
        assert_eq!(parsed("hf:org/model:/hub", &[]), to("hf:org/model", "/hub"));
    }

    #[test]
    fn without_a_directory_a_file_goes_to_the_same_place() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("home/m")).unwrap();
        fs::write(top.join("home/m/x"), "").unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let here = |path: &Path, home: &Path| {
            let source = CopySource { path: text(path), destination: None };
            source.here(Some(home)).map_err(|failed| failed.message)
        };
        let (home, file) = (top.join("home"), top.join("home/m/x"));
        assert_eq!(here(&file, &home), Ok(("~/m".to_owned(), text(&file))));
        assert_eq!(here(&file, Path::new("/nowhere")), Ok((text(&home.join("m")), text(&file))));
        // A directory that has no name as it is typed.
        assert_eq!(here(&home.join("m/."), &home), Ok(("~/".to_owned(), text(&home.join("m")))));
        assert_eq!(here(&home.join("m/.."), &top), Ok(("~/".to_owned(), text(&home))));
        let missing = here(&top.join("none"), &home).unwrap_err();
        assert!(missing.starts_with("cannot read ") && missing.contains("none"), "{missing}");
    }

    #[test]
    fn paths_of_hosts_go_where_they_are_there() {
        for (word, destination, path) in [
            ("/data/model", "/data", "/data/model"),
            ("/model/", "/", "/model/"),
            ("~/m/x", "~/m", "~/m/x"),
            ("x", "~/", "x"),
            ("x:/data", "/data", "x"),
            ("hf:a/b", HUB_CACHE, "hf:a/b"),
        ] {
            let found = CopySource::parse(word, |_| false).there();
            assert_eq!(found, (destination.to_owned(), path.to_owned()), "{word}");
        }
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        let words = ["/a/x:/data".to_owned(), "/b/x:/data".to_owned()];
        let failed = groups(&words, Some("a")).unwrap_err();
        assert_eq!(failed.message, "/a/x and /b/x would be one in /data");
        let apart = groups(&["/a/x".to_owned(), "/b/x".to_owned()], Some("a")).unwrap();
        let destinations: Vec<&str> = apart.iter().map(|group| &*group.destination).collect();
        assert_eq!(destinations, ["/a", "/b"]);
    }

    #[test]
    fn a_dry_run_lists_files_with_their_sizes() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("sub/b"), [0; 1500]).unwrap();
        fs::write(tree.join("a"), "abc").unwrap();
        std::os::unix::fs::symlink("a", tree.join("link")).unwrap();
        let paths = vec![tree.to_str().unwrap().to_owned()];
        let group = SourceGroup { destination: "/data".into(), paths };
        let expected = "      3 B  tree/a
      0 B  tree/link
   1.5 kB  tree/sub/b
2 files, 1.5 kB would go to /data on a, b
";
        assert_eq!(list(&[group], "a, b").unwrap(), expected);
    }

    #[test]
    fn names_in_a_list_cannot_change_the_terminal_or_its_lines() {
        for (name, expected) in [
            (&b"a b"[..], "a b"),
            ("é".as_bytes(), "é"),
            (&b"x\n9 files"[..], r"$'x\n9 files'"),
            (&b"\x1b[2J"[..], r"$'\x1b[2J'"),
            (&b"x\xff"[..], r"$'x\xff'"),
            ("x\u{202e}y".as_bytes(), r"x\u202ey"),
        ] {
            assert_eq!(shown(OsStr::from_bytes(name)), expected);
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x\n\x1b[2J");
        fs::write(&file, "").unwrap();
        let paths = vec![file.to_str().unwrap().to_owned()];
        let group = SourceGroup { destination: "/\x1bd".into(), paths };
        let listed = list(&[group], "a\x07").unwrap();
        assert!(!listed.contains(['\x1b', '\x07']), "{listed:?}");
        assert_eq!(listed.lines().count(), 2, "{listed:?}");
    }
}
