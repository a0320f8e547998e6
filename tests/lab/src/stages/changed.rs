//! Changed files, and the commit that they are compared with.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

use crate::LabError;
use crate::command::run;

/// Branch that changes are merged into.
const MAIN: &str = "refs/remotes/origin/main";

/// Checkout, and the file that names the last commit to pass all tests there.
#[derive(Debug)]
pub(super) struct Checkout {
    pub(super) folder: PathBuf,
    pub(super) passed: PathBuf,
}

impl Checkout {
    /// Lists files that differ between a commit and the working tree: committed, staged, unstaged, and
    /// new ones that git does not ignore; a renamed file by both of its names. Without `rev` the commit
    /// is the newest at which all tests are known to have passed: where this branch left origin/main;
    /// else the one that passed here; else the parent of HEAD. The first value describes the commit.
    pub(super) fn changed(&self, rev: Option<&str>) -> Result<(String, Vec<PathBuf>), LabError> {
        self.git(&["rev-parse", "--is-inside-work-tree"])?;
        let tree = match rev {
            Some(rev) => self.commit(rev).ok_or_else(|| {
                LabError::Usage(format!("--changed: git knows no commit called `{rev}`"))
            })?,
            None => self.last_good()?,
        };
        let differ = ["diff", "--name-only", "--no-renames", "--no-ext-diff", "--relative", "-z"];
        let differ = self.output(&[&differ[..], &[&tree, "--"]].concat())?;
        let new = self.output(&["ls-files", "--others", "--exclude-standard", "-z"])?;
        let paths = differ.split(|byte| *byte == 0).chain(new.split(|byte| *byte == 0));
        let paths = paths.filter(|path| !path.is_empty()).map(OsStr::from_bytes);
        let mut files: Vec<PathBuf> = paths.map(PathBuf::from).collect();
        files.sort();
        files.dedup();
        let subject = self.git(&["log", "-1", "--format=%h %s", &tree]);
        Ok((subject.unwrap_or_else(|_| "an empty tree".into()), files))
    }

    /// Notes that all tests have passed at HEAD.
    pub(super) fn note_passed(&self, head: &str) -> Result<(), LabError> {
        let operation = format!("record in {} the commit that passed", self.passed.display());
        fs::create_dir_all(self.passed.parent().unwrap_or(&self.passed))
            .and_then(|()| fs::write(&self.passed, format!("{head}\n")))
            .map_err(LabError::io(operation))
    }

    /// Returns the commit of this checkout, unless the working tree has changes.
    pub(super) fn head(&self) -> Option<String> {
        self.commit("HEAD").filter(|_| self.is_clean())
    }

    fn last_good(&self) -> Result<String, LabError> {
        let head = self.commit("HEAD");
        let fork = self.git(&["merge-base", "HEAD", MAIN]).ok();
        // If HEAD is origin/main itself, nothing would differ.
        let fork = fork.filter(|fork| Some(fork) != head.as_ref() || !self.is_clean());
        let passed = || {
            let commit = self.commit(fs::read_to_string(&self.passed).ok()?.trim())?;
            self.git(&["merge-base", "--is-ancestor", &commit, "HEAD"]).ok().map(|_| commit)
        };
        match fork.or_else(passed).or_else(|| self.commit("HEAD~1")) {
            Some(commit) => Ok(commit),
            // The id of an empty tree.
            None => self.git(&["hash-object", "-t", "tree", "--stdin"]),
        }
    }

    /// Resolves the name of a commit to its id.
    fn commit(&self, name: &str) -> Option<String> {
        let name = format!("{name}^{{commit}}");
        self.git(&["rev-parse", "--verify", "--quiet", "--end-of-options", &name]).ok()
    }

    fn is_clean(&self) -> bool {
        self.git(&["status", "--porcelain"]).is_ok_and(|changes| changes.is_empty())
    }

    /// Returns the output of git without its last newline.
    fn git(&self, words: &[&str]) -> Result<String, LabError> {
        Ok(String::from_utf8_lossy(&self.output(words)?).trim_end().to_owned())
    }

    fn output(&self, words: &[&str]) -> Result<Vec<u8>, LabError> {
        let mut git = Command::new("git");
        git.current_dir(&self.folder).args(words);
        Ok(run("ask git what has changed", &mut git)?.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn repository() -> (TempDir, Checkout) {
        let folder = tempfile::tempdir().unwrap();
        let (path, passed) = (folder.path().to_path_buf(), folder.path().join("target/passed"));
        let checkout = Checkout { folder: path, passed };
        checkout.git(&["init", "--quiet"]).unwrap();
        checkout.git(&["config", "user.name", "A Test"]).unwrap();
        checkout.git(&["config", "user.email", "test@localhost"]).unwrap();
        commit(&checkout, &[(".gitignore", "target\n")]);
        (folder, checkout)
    }

    fn write(checkout: &Checkout, file: &str, text: &str) {
        let path = checkout.folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Commits these files and whatever has changed; returns the id of the commit.
    fn commit(checkout: &Checkout, files: &[(&str, &str)]) -> String {
        files.iter().for_each(|(file, text)| write(checkout, file, text));
        checkout.git(&["add", "--all"]).unwrap();
        checkout.git(&["commit", "--quiet", "--no-gpg-sign", "--message", "a change"]).unwrap();
        checkout.git(&["rev-parse", "HEAD"]).unwrap()
    }

    fn changed(checkout: &Checkout, rev: Option<&str>) -> String {
        let (_, files) = checkout.changed(rev).unwrap();
        files.iter().map(|file| file.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_name_of_a_file_that_differs_is_listed() {
        let (_folder, checkout) = repository();
        let text = "a text that is long enough to be recognised where it goes\n".repeat(9);
        let first = commit(&checkout, &[("old name", &text), ("same", "same")]);
        checkout.git(&["mv", "old name", "new\nname"]).unwrap();
        commit(&checkout, &[("committed", "")]);
        write(&checkout, "staged", "");
        checkout.git(&["add", "staged"]).unwrap();
        let files = [("committed", "and changed"), ("folder/new", ""), ("target/built", "")];
        files.iter().for_each(|(file, text)| write(&checkout, file, text));
        let expected = "committed folder/new new\nname old name staged";
        assert_eq!(changed(&checkout, Some(&first)), expected);
        assert!(checkout.changed(Some("--all")).is_err());
    }

    #[test]
    fn files_are_compared_with_the_newest_commit_known_to_be_good() {
        let (_folder, checkout) = repository();
        assert_eq!(changed(&checkout, None), ".gitignore");
        let first = checkout.head().unwrap();
        let second = commit(&checkout, &[("second", "")]);
        let third = commit(&checkout, &[("third", "")]);
        assert_eq!(changed(&checkout, None), "third");
        // A commit that does not exist, or is not an ancestor of HEAD, is ignored.
        for wrong in ["", "0123456789012345678901234567890123456789", "branch"] {
            checkout.note_passed(wrong).unwrap();
            assert_eq!(changed(&checkout, None), "third", "{wrong}");
        }
        checkout.note_passed(&first).unwrap();
        assert_eq!(changed(&checkout, None), "second third");
        checkout.git(&["update-ref", MAIN, &second]).unwrap();
        assert_eq!(changed(&checkout, None), "third");
        // On origin/main itself, uncommitted files are the change; without any, the last commit that
        // passed is used.
        checkout.git(&["update-ref", MAIN, &third]).unwrap();
        assert_eq!(changed(&checkout, None), "second third");
        write(&checkout, "new", "");
        assert_eq!((changed(&checkout, None), checkout.head()), ("new".to_owned(), None));
    }
}
