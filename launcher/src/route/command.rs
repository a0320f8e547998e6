//! What a host is asked to run, in the words of the shells that read it on the way.

/// Where a container names no home, or one that cannot be written, there may still be one for the
/// agent: root's own, or a new one that belongs to this user alone. Its path is in `$h`.
pub(super) const HOME: &str = "h=${HOME:-/}; [ \"$h\" = / ] && h=; [ -w \"$h\" ] || h=/root; \
    [ -w $h ] || { t=/tmp/home-$(id -u); mkdir -m 700 $t 2>/dev/null; [ -O $t ] && h=$t; }; \
    export HOME=\"$h\";";

/// What a host is asked to run. Its words pass through login shells of every kind, and through
/// whatever wraps them, so none may hold a quote, a backslash, an exclamation mark or a line break.
pub(crate) enum RemoteCommand<'a> {
    /// To become a program: its path, which may begin with `~/`, and its words.
    Become(&'a str, &'a str),
    /// To run a script of sh(1) with these words as `$1` and so on. One that begins with `~/` may
    /// arrive as it is.
    Script(&'a str, &'a [&'a str]),
}

impl RemoteCommand<'_> {
    /// As the host's login shell is to read it.
    pub(crate) fn line(&self) -> String {
        match self {
            RemoteCommand::Become(program, words) => format!("exec {program} {words}"),
            RemoteCommand::Script(script, words) => {
                format!("exec sh -c '{script}' sh {}", words.join(" "))
            }
        }
    }

    /// The same where it is to run behind the command `enter`. Nothing of it means anything to the
    /// host's own shell: a `~` is one of the other side.
    pub(crate) fn line_behind(&self, enter: &str) -> String {
        match self {
            RemoteCommand::Become(program, words) => {
                format!("exec {enter} sh -c '{HOME} exec {program} {words}'")
            }
            RemoteCommand::Script(script, words) => {
                let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
                format!("exec {enter} sh -c '{HOME} {script}' sh {}", words.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_home_is_found_in_words_that_any_shell_passes_on() {
        assert!(!HOME.contains(['\'', '\\', '!', '\n']), "{HOME}");
    }

    /// What a shell prints that runs a line where `env NAME=VALUE...` has set its environment.
    fn printed(environment: &[&str], line: &str) -> String {
        let mut command = Command::new("env");
        command.args(["-i", "PATH=/usr/bin:/bin"]).args(environment).args(["sh", "-c", line]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_tilde_is_expanded_behind_the_door() {
        let inside = tempfile::tempdir().unwrap();
        let home = format!("HOME={}", inside.path().display());
        let enter = format!("env {home}");
        let script = RemoteCommand::Script("echo $1 ~;", &["~/x"]);
        let expected = format!("~/x {}\n", inside.path().display());
        assert_eq!(printed(&["HOME=/nowhere"], &script.line_behind(&enter)), expected);
        let program = RemoteCommand::Become("echo", "~");
        let expected = format!("{}\n", inside.path().display());
        assert_eq!(printed(&["HOME=/nowhere"], &program.line_behind(&enter)), expected);
        // On the host itself its own shell does that.
        assert_eq!(printed(&["HOME=/h"], &program.line()), "/h\n");
        assert_eq!(printed(&["HOME=/h"], &script.line()), "/h/x /h\n");
    }

    #[test]
    fn there_is_a_home_where_none_is_said() {
        let program = RemoteCommand::Become("sh", "-c \"[ -w ~ ] && echo ~\"");
        for home in [&["HOME=/nonexistent"][..], &["HOME=/"], &[]] {
            let found = printed(home, &program.line_behind("env"));
            assert!(found.len() > 2 && !found.contains("nonexistent"), "{home:?}: {found}");
        }
    }
}
