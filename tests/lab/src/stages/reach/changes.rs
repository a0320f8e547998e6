//! Changed files, and the commit that they are compared with.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;
use crate::{LabError, dist};

/// Branch that changes are merged into.
const MAIN: &str = "refs/remotes/origin/main";

/// Lists files that differ between a commit and the working tree: committed, staged, unstaged, and
/// new ones that git does not ignore. A renamed file is listed by both of its names. Without `rev`
/// the commit is the newest at which all tests are known to have passed: where this branch left
/// origin/main; else the one that the file `last_passed` names; else the parent of HEAD. The first
/// value describes the commit.
pub(crate) fn changed_files(
    rev: Option<&str>,
    last_passed: &Path,
) -> Result<(String, Vec<PathBuf>), LabError> {
    changed_in(&dist::workspace(), rev, last_passed)
}

/// Writes the id of HEAD to the file `last_passed`, unless the working tree has changes. Returns
/// whether it was written.
pub(crate) fn note_passed(last_passed: &Path) -> Result<bool, LabError> {
    note_passed_in(&dist::workspace(), last_passed)
}

/// Returns the commit of this checkout, unless the working tree has changes.
pub(crate) fn head() -> Option<String> {
    let checkout = dist::workspace();
    let git = Git(&checkout);
    git.commit("HEAD").filter(|_| git.is_clean())
}

fn changed_in(
    checkout: &Path,
    rev: Option<&str>,
    last_passed: &Path,
) -> Result<(String, Vec<PathBuf>), LabError> {
    let git = Git(checkout);
    git.output_text(&["rev-parse", "--is-inside-work-tree"])?;
    let (words, tree) = match rev {
        Some(rev) => git.named(rev)?,
        None => git.last_good(last_passed)?,
    };
    let differ = ["diff", "--name-only", "--no-renames", "--no-ext-diff", "--relative", "-z"];
    let differ = git.paths(&[&differ[..], &[&tree, "--"]].concat())?;
    let new = git.paths(&["ls-files", "--others", "--exclude-standard", "-z"])?;
    let mut files: Vec<PathBuf> = differ.into_iter().chain(new).collect();
    files.sort();
    files.dedup();
    Ok((words, files))
}

fn note_passed_in(checkout: &Path, last_passed: &Path) -> Result<bool, LabError> {
    let git = Git(checkout);
    let Some(head) = git.commit("HEAD").filter(|_| git.is_clean()) else { return Ok(false) };
    let directory = last_passed.parent().unwrap_or(last_passed);
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(last_passed, format!("{head}\n")))
        .map_err(LabError::io(format!(
            "record in {} the commit that passed",
            last_passed.display()
        )))?;
    Ok(true)
}

/// git in a checkout.
struct Git<'a>(&'a Path);

impl Git<'_> {
    /// Finds the commit that the user named. Returns its description and its id.
    fn named(&self, rev: &str) -> Result<(String, String), LabError> {
        let unknown = || LabError::Usage(format!("--changed: git knows no commit called `{rev}`"));
        let commit = self.commit(rev).ok_or_else(unknown)?;
        Ok((format!("{rev}: {}", self.subject(&commit)), commit))
    }

    /// Finds the newest commit at which all tests are known to have passed. Returns its description
    /// and its id.
    fn last_good(&self, last_passed: &Path) -> Result<(String, String), LabError> {
        let head = self.commit("HEAD");
        if let Some(fork) = self.fork() {
            // If HEAD is origin/main itself, nothing would differ.
            if Some(&fork) != head.as_ref() || !self.is_clean() {
                return Ok((format!("origin/main as of {}", self.subject(&fork)), fork));
            }
        }
        if let Some(passed) = self.passed(last_passed) {
            return Ok((
                format!("last commit that passed here: {}", self.subject(&passed)),
                passed,
            ));
        }
        if let Some(parent) = self.commit("HEAD~1") {
            return Ok((format!("HEAD~1: {}", self.subject(&parent)), parent));
        }
        let nothing = self.output_text(&["hash-object", "-t", "tree", "--stdin"])?;
        Ok(("an empty tree, as HEAD has no parent".into(), nothing))
    }

    /// Finds the commit where HEAD's history branched off origin/main.
    fn fork(&self) -> Option<String> {
        self.commit(MAIN)?;
        self.output_text(&["merge-base", "HEAD", MAIN]).ok()
    }

    /// Reads the commit that a file names, if it is an ancestor of HEAD.
    fn passed(&self, file: &Path) -> Option<String> {
        let commit = self.commit(fs::read_to_string(file).ok()?.trim())?;
        self.output_text(&["merge-base", "--is-ancestor", &commit, "HEAD"]).ok().map(|_| commit)
    }

    /// Resolves the name of a commit to its id.
    fn commit(&self, name: &str) -> Option<String> {
        let name = format!("{name}^{{commit}}");
        self.output_text(&["rev-parse", "--verify", "--quiet", "--end-of-options", &name]).ok()
    }

    /// Returns the short id and the subject of a commit.
    fn subject(&self, commit: &str) -> String {
        self.output_text(&["log", "-1", "--format=%h %s", commit]).unwrap_or_else(|_| commit.into())
    }

    fn is_clean(&self) -> bool {
        self.output_text(&["status", "--porcelain"]).is_ok_and(|changes| changes.is_empty())
    }

    /// Returns the output of git without its last newline.
    fn output_text(&self, words: &[&str]) -> Result<String, LabError> {
        let output = self.output(words)?;
        Ok(String::from_utf8_lossy(&output).trim_end().to_owned())
    }

    /// Returns paths that git prints with a NUL after each.
    fn paths(&self, words: &[&str]) -> Result<Vec<PathBuf>, LabError> {
        let output = self.output(words)?;
        let paths = output.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        Ok(paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect())
    }

    fn output(&self, words: &[&str]) -> Result<Vec<u8>, LabError> {
        let mut git = Command::new("git");
        git.current_dir(self.0).args(words);
        Ok(run("ask git what has changed", &mut git)?.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Repository of one test.
    struct Repository(PathBuf);

    impl Repository {
        fn new(test: &str) -> Repository {
            let name = format!("rlaunch-lab-{test}-{}", std::process::id());
            let repository = Repository(std::env::temp_dir().join(name));
            let _ = fs::remove_dir_all(&repository.0);
            fs::create_dir_all(&repository.0).unwrap();
            repository.git(&["init", "--quiet"]);
            repository.git(&["config", "user.name", "A Test"]);
            repository.git(&["config", "user.email", "test@localhost"]);
            repository.write(".gitignore", "target\n");
            repository.commit("first");
            repository
        }

        fn git(&self, words: &[&str]) -> String {
            Git(&self.0).output_text(words).unwrap()
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Commits everything and returns the id of the commit.
        fn commit(&self, subject: &str) -> String {
            self.git(&["add", "--all"]);
            self.git(&["commit", "--quiet", "--no-gpg-sign", "--message", subject]);
            self.git(&["rev-parse", "HEAD"])
        }

        fn passed(&self) -> PathBuf {
            self.0.join("target/lab-passed/last-passed")
        }

        /// Returns the description of the commit, and the changed files in one line.
        fn changed(&self, rev: Option<&str>) -> (String, String) {
            let (words, files) = changed_in(&self.0, rev, &self.passed()).unwrap();
            let files: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
            (words, files.join(" "))
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn whatever_differs_is_listed_by_all_of_its_names() {
        let repository = Repository::new("differs");
        let text = "a text that is long enough to be recognised where it goes\n".repeat(9);
        repository.write("old name", &text);
        repository.write("same", "same");
        let first = repository.commit("files");
        repository.git(&["mv", "old name", "new\nname"]);
        repository.write("committed", "");
        repository.commit("moved");
        repository.write("staged", "");
        repository.git(&["add", "staged"]);
        repository.write("committed", "and changed");
        repository.write("folder/new", "");
        repository.write("target/built", "");
        let (words, files) = repository.changed(Some(&first));
        assert_eq!(files, "committed folder/new new\nname old name staged");
        assert!(words.ends_with(" files"), "{words}");
    }

    #[test]
    fn an_unknown_commit_is_refused_by_its_name() {
        let repository = Repository::new("unknown");
        for rev in ["nowhere", "--all", "HEAD..HEAD", ""] {
            let refused = changed_in(&repository.0, Some(rev), &repository.passed()).unwrap_err();
            assert!(matches!(refused, LabError::Usage(_)), "{refused}");
            assert!(refused.to_string().contains(&format!("`{rev}`")), "{refused}");
        }
    }

    #[test]
    fn what_is_compared_with_is_the_newest_commit_that_is_known_to_be_good() {
        let repository = Repository::new("since");
        let (words, files) = repository.changed(None);
        assert_eq!((&*words, &*files), ("an empty tree, as HEAD has no parent", ".gitignore"));
        repository.write("second", "");
        let second = repository.commit("second");
        repository.write("third", "");
        let third = repository.commit("third");
        let (words, files) = repository.changed(None);
        assert_eq!((words.starts_with("HEAD~1: "), &*files), (true, "third"), "{words}");
        // A commit that does not exist, or is not an ancestor of HEAD, is ignored.
        for wrong in ["", "0123456789012345678901234567890123456789\n", "branch"] {
            repository.write("target/lab-passed/last-passed", wrong);
            assert!(repository.changed(None).0.starts_with("HEAD~1: "), "{wrong}");
        }
        let first = repository.git(&["rev-parse", "HEAD~2"]);
        repository.write("target/lab-passed/last-passed", &first);
        let (words, files) = repository.changed(None);
        assert!(words.starts_with("last commit that passed here: "), "{words}");
        assert_eq!(files, "second third");
        repository.git(&["update-ref", MAIN, &second]);
        let (words, files) = repository.changed(None);
        assert_eq!((words.ends_with(" second"), &*files), (true, "third"), "{words}");
        // On origin/main itself, uncommitted files are the change; without any, the last commit
        // that passed is used.
        repository.git(&["update-ref", MAIN, &third]);
        assert_eq!(repository.changed(None).1, "second third");
        repository.write("new", "");
        let (words, files) = repository.changed(None);
        assert_eq!((words.starts_with("origin/main as of "), &*files), (true, "new"), "{words}");
    }

    #[test]
    fn a_tree_without_changes_can_be_noted() {
        let repository = Repository::new("noted");
        let note = || note_passed_in(&repository.0, &repository.passed()).unwrap();
        repository.write("file", "");
        assert!(!note());
        assert!(!repository.passed().exists());
        let head = repository.commit("clean");
        assert!(note());
        assert_eq!(fs::read_to_string(repository.passed()).unwrap().trim(), head);
        assert_eq!(repository.changed(None).1, "");
    }
}
