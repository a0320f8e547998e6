//! Archives of the communicator's libraries, as a node receives them.

use rlaunch_bootstrap::job::library::{ArchivedFile, LibraryArchive};
use std::path::{Component, Path};

/// Decodes an archive. It survives being encoded and decoded again, and files outside its directory are refused.
pub(crate) fn archive(data: &[u8]) {
    let Ok(archive) = LibraryArchive::decode(data) else { return };
    let again = archive.encode().expect("it was read");
    let again = LibraryArchive::decode(&again).expect("it was written");
    assert_eq!((&again, again.name()), (&archive, archive.name()));
    for file in archive.0.iter().filter(|file| file.is_inside()) {
        let place = Path::new("/library").join(&file.path);
        let leaves = place.components().any(|part| part == Component::ParentDir);
        assert!(place.starts_with("/library") && !leaves, "{}", file.path);
    }
}

pub(crate) fn archive_seeds() -> Vec<Vec<u8>> {
    let file = |path: &str, content: &[u8]| ArchivedFile {
        path: path.to_owned(),
        content: content.to_vec(),
    };
    let files = vec![
        file("librlaunch.so", b"\x7fELF"),
        file("python/rlaunch/__init__.py", b"x = 1\n"),
        file("../outside", b""),
    ];
    LibraryArchive(files).encode().into_iter().collect()
}
