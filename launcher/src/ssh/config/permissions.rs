//! Who owns a configuration file, and who else may write to it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::unistd::Uid;

/// Why `ssh` would refuse a file of the user's own configuration, and the line that mends it.
pub(super) fn refused(file: &Path) -> Option<String> {
    let metadata = fs::metadata(file).ok()?;
    let (owner, us) = (metadata.uid(), Uid::current().as_raw());
    let shown = file.display();
    if owner != 0 && owner != us {
        return Some(format!(
            "{shown} is owned by uid {owner}, ssh as uid {us} refuses it: sudo chown {us} {shown}"
        ));
    }
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o022 != 0).then(|| {
        format!("others may write to {shown} (mode {mode:o}), ssh refuses it: chmod 600 {shown}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_may_write_to() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        fs::write(&file, "").unwrap();
        let refused_with = |mode| {
            fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            refused(&file)
        };
        assert_eq!(refused_with(0o644), None);
        let why = refused_with(0o664).unwrap();
        assert!(why.contains("(mode 664)") && why.contains("chmod 600 /"), "{why}");
        if Uid::current().is_root() {
            std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
            let why = refused_with(0o600).unwrap();
            assert!(why.contains("owned by uid 1000") && why.contains("chown 0 /"), "{why}");
        }
    }
}
