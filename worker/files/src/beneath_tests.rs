use super::*;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn links_on_the_way_and_at_the_end_are_not_followed() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("secret"), "x").unwrap();
    symlink(outside.path(), root.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), root.path().join("link")).unwrap();
    let beneath = Beneath::open(root.path()).unwrap();
    assert_eq!(beneath.file(b"out/secret", OFlags::RDONLY).unwrap_err(), Errno::NOTDIR);
    assert_eq!(beneath.file(b"link", OFlags::RDONLY).unwrap_err(), Errno::LOOP);
    let make = OFlags::CREATE | OFlags::RDWR;
    assert_eq!(beneath.file(b"out/new", make).unwrap_err(), Errno::NOTDIR);
    assert!(!outside.path().join("new").exists());
    assert_eq!(beneath.look(b"out/secret"), Ok(None));
    let link = beneath.look(b"out").unwrap().unwrap();
    assert_eq!(link.file_type, FileType::Symlink);
}

#[test]
fn files_in_deep_directories_are_opened() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..3 * OPEN_DIRECTORIES {
        let directory = root.path().join(format!("a/b/{number}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("x"), format!("{number}")).unwrap();
    }
    let beneath = Beneath::open(root.path()).unwrap();
    for number in 0..3 * OPEN_DIRECTORIES {
        let path = format!("a/b/{number}/x");
        let mut text = String::new();
        let mut file = beneath.file(path.as_bytes(), OFlags::RDONLY).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, number.to_string());
    }
    assert!(beneath.lock().len() <= OPEN_DIRECTORIES);
    let mut listed = beneath.list(b"a").unwrap();
    assert_eq!(listed.pop(), Some(b"b".to_vec()));
    assert_eq!(listed, Vec::<Vec<u8>>::new());
}

/// As that of a thread of the agent, which has room for calls, but not for one a directory.
#[test]
fn a_deep_directory_is_opened_with_a_small_stack() {
    const DEPTH: usize = 800;
    let root = tempfile::tempdir().unwrap();
    let path = vec!["a"; DEPTH].join("/");
    fs::create_dir_all(root.path().join(&path)).unwrap();
    let beneath = Beneath::open(root.path()).unwrap();
    let open = move || beneath.directory(path.as_bytes()).map(drop);
    let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(open).unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
fn a_directory_that_is_missing_is_made_for_its_owner_alone() {
    let above = tempfile::tempdir().unwrap();
    let root = above.path().join("new/deep");
    Beneath::open(&root).unwrap();
    for made in [&above.path().join("new"), &root] {
        assert_eq!(fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn a_file_with_two_names_may_be_of_somebody_else() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a"), "x").unwrap();
    let beneath = Beneath::open(root.path()).unwrap();
    assert!(beneath.look(b"a").unwrap().unwrap().is_own);
    fs::hard_link(root.path().join("a"), root.path().join("b")).unwrap();
    assert!(!beneath.look(b"a").unwrap().unwrap().is_own);
    assert_eq!(beneath.look(b"c"), Ok(None));
}
