//! Limit of the size of files (RLIMIT_FSIZE).

use nix::errno::Errno;

/// Makes writes beyond the limit fail, where the kernel would end this process by SIGXFSZ. Programs that this process
/// starts are ended as before.
pub fn survive_limit() {
    rlaunch_sys::survive_file_size_limit();
}

/// Returns a hint if `error`, the text of an error with its causes, says that a file has become too large, here or on a
/// host.
pub fn hint(error: &str) -> Option<String> {
    // Compares texts, since those of hosts have no error codes. They have the same words.
    let hint = "`ulimit -f` shows the limit of the size of files, there or in this shell; `ulimit -f unlimited` lifts it, \
                if the hard limit allows that";
    error.contains(Errno::EFBIG.desc()).then(|| hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_file_that_is_too_large_is_found_among_the_causes() {
        let error = |errno: Errno| format!("cannot write /a: {}", io::Error::from(errno));
        assert!(hint(&error(Errno::EFBIG)).is_some_and(|hint| hint.contains("`ulimit -f`")));
        assert_eq!(hint(&error(Errno::ENOSPC)), None);
    }
}
