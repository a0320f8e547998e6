use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use tempfile::TempDir;

/// Makes files with their own names as content; names that end in `/` are directories.
fn tree(names: &[&str]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in names {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if name.ends_with('/') {
            fs::create_dir_all(path).unwrap();
        } else {
            fs::write(path, name).unwrap();
        }
    }
    directory
}

fn names(walk: &Walk) -> Vec<String> {
    walk.entries.iter().map(|found| found.path.to_string()).collect()
}

fn found(root: &Path, how: &How) -> Vec<String> {
    names(&walk(root, how).unwrap())
}

fn git(directory: &Path, words: &[&str]) {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]);
    for variable in GIT_VARIABLES {
        git.env_remove(variable);
    }
    let output = git.args(words).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_directory_is_listed_in_the_order_of_a_manifest() {
    let root = tree(&["b", "a-b/x", "a/z/y", "a/c", "empty/", ".hidden"]);
    let expected = [".hidden", "a", "a/c", "a/z", "a/z/y", "a-b", "a-b/x", "b", "empty"];
    let walk = walk(root.path(), &How::All).unwrap();
    assert_eq!(names(&walk), expected);
    assert_eq!((walk.files(), walk.bytes()), (5, 7 + 5 + 5 + 3 + 1));
}

#[test]
fn links_are_listed_and_not_followed() {
    let elsewhere = tree(&["secret"]);
    let root = tree(&["a"]);
    symlink(elsewhere.path(), root.path().join("out")).unwrap();
    symlink("nowhere", root.path().join("dangling")).unwrap();
    let walk = walk(root.path(), &How::All).unwrap();
    assert_eq!(names(&walk), ["a", "dangling", "out"]);
    let target = elsewhere.path().as_os_str().as_bytes().to_vec();
    assert_eq!(walk.entries[2].kind, FoundKind::Link { target });
}

#[test]
fn what_is_no_file_is_left_out_and_told() {
    let root = tree(&["a", ".a.rlaunch-0123abcd", "sub/.b.rlaunch-ffffffff"]);
    let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
    let walk = walk(root.path(), &How::All).unwrap();
    assert_eq!(names(&walk), ["a", "sub"]);
    assert_eq!(walk.left_out, [RelativePath::new("socket").unwrap()]);
}

#[test]
fn what_the_kernel_makes_is_no_file() {
    for path in ["/proc/self/status", "/proc/sys/kernel"] {
        let error = walk(Path::new(path), &How::All).unwrap_err();
        let expected =
            format!("the kernel makes {path} when it is read, so there is no file to copy");
        assert_eq!(error.to_string(), expected);
    }
    // Where such a file system is mounted below what is copied.
    let mut collected =
        Collected::new(Path::new("/"), Meta::of(&fs::metadata("/").unwrap())).unwrap();
    assert!(!collected.add_with_parents(b"proc/version").unwrap());
    let walk = collected.into_walk();
    assert_eq!(names(&walk), ["proc"]);
    assert_eq!(walk.left_out, [RelativePath::new("proc/version").unwrap()]);
}

#[test]
fn names_need_not_be_text() {
    let root = tree(&[]);
    let name = OsStr::from_bytes(b"\xff\n\x01");
    fs::write(root.path().join(name), "x").unwrap();
    let walk = walk(root.path(), &How::All).unwrap();
    assert_eq!(walk.entries[0].path.as_bytes(), name.as_bytes());
    assert_eq!(fs::read(walk.place(&walk.entries[0].path)).unwrap(), b"x");
}

#[test]
fn one_file_is_listed_with_the_directory_it_is_in() {
    let root = tree(&["sub/a"]);
    symlink("sub/a", root.path().join("latest")).unwrap();
    let file = walk(&root.path().join("sub/a"), &How::All).unwrap();
    assert_eq!((file.root.clone(), names(&file)), (root.path().join("sub"), vec!["a".to_owned()]));
    // A link that the user names is followed, and keeps its name.
    let link = walk(&root.path().join("latest"), &How::All).unwrap();
    assert_eq!(names(&link), ["latest"]);
    assert_eq!((link.entries[0].kind.clone(), link.bytes()), (FoundKind::File, 5));
}

#[test]
fn a_missing_directory_is_named() {
    let root = tree(&[]);
    let error = walk(&root.path().join("gone"), &How::All).unwrap_err();
    assert!(matches!(&error, WalkError::Missing { path } if path.ends_with("gone")), "{error}");
    let error = walk(Path::new("/dev/null"), &How::All).unwrap_err();
    assert!(matches!(error, WalkError::Special { .. }), "{error}");
}

#[test]
fn rights_are_listed_without_those_of_programs_that_run_as_their_owner() {
    let root = tree(&["a"]);
    let file = root.path().join("a");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4751)).unwrap();
    let walk = walk(root.path(), &How::All).unwrap();
    assert_eq!(walk.entries[0].meta.mode, 0o751);
}

#[test]
fn git_lists_what_it_tracks_or_would_track() {
    let root = tree(&[".gitignore", "a", "deleted", "src/b", "src/new", "src/b.log", "out/x.log"]);
    fs::write(root.path().join(".gitignore"), "*.log\n").unwrap();
    git(root.path(), &["init", "-q"]);
    git(root.path(), &["add", ".gitignore", "a", "deleted", "src/b"]);
    fs::remove_file(root.path().join("deleted")).unwrap();
    let expected = [".gitignore", "a", "src", "src/b", "src/new"];
    assert_eq!(found(root.path(), &How::Git), expected);
    assert_eq!(found(&root.path().join("src"), &How::Git), ["b", "new"]);
}

#[test]
fn submodules_and_other_repositories_inside_are_listed_as_their_git_does() {
    let library = tree(&["lib.py", "lib.log", ".gitignore"]);
    fs::write(library.path().join(".gitignore"), "*.log\n").unwrap();
    git(library.path(), &["init", "-q"]);
    git(library.path(), &["add", "."]);
    git(library.path(), &["commit", "-q", "-m", "a"]);
    let root = tree(&["main.py"]);
    git(root.path(), &["init", "-q"]);
    let source = library.path().to_str().unwrap();
    git(root.path(), &["submodule", "--quiet", "add", source, "third/lib"]);
    git(root.path(), &["clone", "--quiet", source, "other"]);
    fs::write(root.path().join("third/lib/new.py"), "").unwrap();
    fs::write(root.path().join("third/lib/new.log"), "").unwrap();
    let expected = [
        ".gitmodules", "main.py", "other", "other/.gitignore", "other/lib.py", "third",
        "third/lib", "third/lib/.gitignore", "third/lib/lib.py", "third/lib/new.py",
    ];
    assert_eq!(found(root.path(), &How::Git), expected);
}

#[test]
fn no_command_of_a_repository_is_run() {
    let root = tree(&["a"]);
    git(root.path(), &["init", "-q"]);
    let command = format!("touch {}/ran", root.path().display());
    git(root.path(), &["config", "core.fsmonitor", &command]);
    assert_eq!(found(root.path(), &How::Git), ["a"]);
    assert!(!root.path().join("ran").exists());
}

#[test]
fn a_tracked_file_behind_a_link_is_gone() {
    let root = tree(&["d/x", "e"]);
    git(root.path(), &["init", "-q"]);
    git(root.path(), &["add", "."]);
    let elsewhere = tree(&["x"]);
    fs::remove_dir_all(root.path().join("d")).unwrap();
    symlink(elsewhere.path(), root.path().join("d")).unwrap();
    assert_eq!(found(root.path(), &How::Git), ["d", "e"]);
}

#[test]
fn without_a_repository_files_are_listed_that_nothing_excludes() {
    let root = tree(&["a.py", "a.log", ".env", ".git/config", "build/x", "src/b.py", "src/keep/"]);
    fs::write(root.path().join(".gitignore"), "*.log\n/build\n").unwrap();
    let error = walk(root.path(), &How::Git).unwrap_err();
    // `.git` is a folder that only looks like one of git.
    assert!(matches!(error, WalkError::Git { .. }), "{error}");
    let expected = [".env", ".gitignore", "a.py", "src", "src/b.py", "src/keep"];
    assert_eq!(found(root.path(), &How::Ignore), expected);
    fs::remove_dir_all(root.path().join(".git")).unwrap();
    let error = walk(root.path(), &How::Git).unwrap_err();
    assert!(matches!(error, WalkError::NoRepository { .. }), "{error}");
}
