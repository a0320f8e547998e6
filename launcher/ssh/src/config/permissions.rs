//! Owner and permissions of a configuration file.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::unistd::Uid;

/// Reason why a file is refused, and the shell command that corrects it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) reason: String,
    pub(super) cure: String,
}

/// Finds a reason to refuse a file of the user's configuration; `None` if there is none. As in ssh(1), only
/// the user and root may be able to write to the file, because commands in it run as the user.
pub(super) fn fault(file: &Path, metadata: &Metadata) -> Option<Fault> {
    let (owner, us) = (metadata.uid(), Uid::current().as_raw());
    if owner != 0 && owner != us {
        let reason = format!("it belongs to uid {owner}, and this is uid {us}");
        return Some(Fault { reason, cure: format!("sudo chown {us} {}", file.display()) });
    }
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o022 != 0).then(|| Fault {
        reason: format!("others may write to it (mode {mode:o})"),
        cure: format!("chmod go-w {}", file.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_that_others_may_write_to() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        fs::write(&file, "").unwrap();
        let fault_with = |mode| {
            fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            fault(&file, &fs::metadata(&file).unwrap())
        };
        assert_eq!(fault_with(0o644), None);
        for mode in [0o664, 0o646] {
            let Fault { reason, cure } = fault_with(mode).unwrap();
            assert!(reason.contains(&format!("(mode {mode:o})")), "{reason}");
            assert!(cure.starts_with("chmod go-w /"), "{cure}");
        }
        if Uid::current().is_root() {
            std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
            let Fault { reason, cure } = fault_with(0o600).unwrap();
            assert!(reason.contains("uid 1000") && cure.contains("chown 0 /"), "{reason} {cure}");
        }
    }
}
