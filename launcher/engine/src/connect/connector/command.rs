//! Commands for hosts, written so that all kinds of login shells interpret them in the same way.

/// Shell code that sets `$h` and `HOME` to a writable home directory: the one that the container sets,
/// root's, or a new private one.
pub(super) const HOME: &str = "h=${HOME:-/}; [ \"$h\" = / ] && h=; [ -w \"$h\" ] || h=/root; \
    [ -w $h ] || { t=/tmp/home-$(id -u); mkdir -m 700 $t 2>/dev/null; [ -O $t ] && h=$t; }; \
    export HOME=\"$h\";";

/// Shell code that executes an agent. `$1` is a directory that several accounts share, in which each
/// account has a cache named by its uid; `$2` is the name of the build, and further arguments are passed to
/// the agent.
///
/// The cache has mode 0700 (see place.sh). The code enters the cache before it checks the owner, so that an
/// account that can rename directories above the cache cannot replace the cache between check and start.
/// The uid is read from /proc, which saves starting id(1).
const ENTER_SHARED: &str = "d=$1; case $d in \"~/\"*) d=\"$HOME/${d#??}\";; esac; b=$2; shift 2; \
    while read -r k r e x; do case $k in Uid:) break; esac; done </proc/self/status; \
    p=$PWD; cd -P \"$d/.rlaunch-$e\" && [ -O . -a -O $b -a -O $b/rlaunch-worker ] && \
    unset OLDPWD && PWD=$p && exec $b/rlaunch-worker \"$@\"";

/// Location of an agent on a host, in shell syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentLocation {
    /// Path that only the user's account or root can change, including the directories above it. The host
    /// has just checked that, or the path is on this machine.
    At(String),
    /// Expected location in the account's own cache; the owner must be checked before the start. `build` is
    /// the name of the build.
    InCache { cache: String, build: String },
    /// Expected location in the account's cache in `directory`, which several accounts share; the owner
    /// must be checked before the start.
    InShared { directory: String, build: String },
}

impl AgentLocation {
    /// Returns shell code that executes the agent with the arguments `words`. The code fails if the agent
    /// is missing or, in a cache, not owned by the account. `-O`, which tests the owner, is a builtin in
    /// most shells. The csh of BSD takes the command `[` for a pattern that no file matches, hence `test`.
    fn exec_line(&self, words: &str) -> String {
        match self {
            AgentLocation::At(path) => format!("exec {path} {words}"),
            AgentLocation::InCache { cache, build } => {
                let file = format!("{cache}/{build}/rlaunch-worker");
                format!("test -O {cache} -a -O {cache}/{build} -a -O {file} && exec {file} {words}")
            }
            AgentLocation::InShared { directory, build } => {
                format!("exec sh -c '{ENTER_SHARED}' sh {directory} {build} {words}")
            }
        }
    }
}

/// Command for a host. The arguments pass through login shells of all kinds and through wrappers such as
/// sshd's forced commands, so none may contain a quote, a backslash, an exclamation mark or a line break;
/// nor may arguments contain what a shell expands, but for a `~/` at the beginning.
pub enum RemoteCommand<'a> {
    /// Executes the agent at this location with these arguments.
    Exec(&'a AgentLocation, &'a str),
    /// Runs a script in sh(1) with these arguments. A `~/` at the beginning of an argument may reach the
    /// script unexpanded.
    Script(&'a str, &'a [&'a str]),
}

impl RemoteCommand<'_> {
    /// Returns the line for the host's login shell.
    pub fn line(&self) -> String {
        match self {
            RemoteCommand::Exec(program, words) => program.exec_line(words),
            RemoteCommand::Script(script, words) => {
                format!("exec sh -c '{script}' sh {}", words.join(" "))
            }
        }
    }

    /// Returns the line for the host's login shell that runs the command in the container. `enter` is the
    /// command that enters the container. Arguments are quoted, so that `~` is expanded in the container
    /// and not by the host's shell.
    pub(crate) fn line_inside(&self, enter: &str) -> String {
        match self {
            RemoteCommand::Exec(AgentLocation::InShared { directory, build }, words) => {
                format!(
                    "exec {enter} sh -c '{HOME} {ENTER_SHARED}' sh '{directory}' {build} {words}"
                )
            }
            RemoteCommand::Exec(program, words) => {
                format!("exec {enter} sh -c '{HOME} {}'", program.exec_line(words))
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
        for script in [HOME, ENTER_SHARED] {
            assert!(!script.contains(['\'', '\\', '!', '\n']), "{script}");
        }
    }

    /// Runs a line in a shell with these environment variables, and returns its output.
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
        assert_eq!(printed(&["HOME=/nowhere"], &script.line_inside(&enter)), expected);
        let echo = AgentLocation::At("echo".into());
        let program = RemoteCommand::Exec(&echo, "~");
        let expected = format!("{}\n", inside.path().display());
        assert_eq!(printed(&["HOME=/nowhere"], &program.line_inside(&enter)), expected);
        // On the host, the login shell expands the tilde.
        assert_eq!(printed(&["HOME=/h"], &program.line()), "/h\n");
        assert_eq!(printed(&["HOME=/h"], &script.line()), "/h/x /h\n");
    }

    #[test]
    fn there_is_a_home_where_none_is_said() {
        let sh = AgentLocation::At("sh".into());
        let program = RemoteCommand::Exec(&sh, "-c \"[ -w ~ ] && echo ~\"");
        for home in [&["HOME=/nonexistent"][..], &["HOME=/"], &[]] {
            let found = printed(home, &program.line_inside("env"));
            assert!(found.len() > 2 && !found.contains("nonexistent"), "{home:?}: {found}");
        }
    }

    /// Creates an agent of build `0f` in a cache in `home`, and another in a directory that accounts share.
    fn lay_out(home: &std::path::Path) -> [AgentLocation; 2] {
        let own = format!(".rlaunch-{}", nix::unistd::Uid::effective());
        for cache in ["cache".to_owned(), format!("shared/{own}")] {
            let build = home.join(cache).join("0f");
            std::fs::create_dir_all(&build).unwrap();
            let agent = build.join("rlaunch-worker");
            std::fs::write(&agent, "#!/bin/sh\necho $* $PWD $OLDPWD\n").unwrap();
            std::fs::set_permissions(&agent, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
        }
        let build = || "0f".to_owned();
        [
            AgentLocation::InCache { cache: "~/cache".into(), build: build() },
            AgentLocation::InShared { directory: "~/shared".into(), build: build() },
        ]
    }

    #[test]
    fn a_warm_start_becomes_what_is_the_accounts_own() {
        let home = tempfile::tempdir().unwrap();
        let variable = format!("HOME={}", home.path().display());
        for program in lay_out(home.path()) {
            let become_it = RemoteCommand::Exec(&program, "agent --callback x");
            for line in [become_it.line(), become_it.line_inside("env")] {
                let said = printed(&[&variable], &line);
                assert!(said.starts_with("agent --callback x "), "{line}: {said}");
            }
        }
    }

    /// Returns what a shell sees of a line outside of single quotes.
    fn outside_quotes(line: &str) -> String {
        line.split('\'').step_by(2).collect()
    }

    #[test]
    fn no_login_shell_finds_anything_to_expand() {
        let at = AgentLocation::At("/opt/rlaunch-worker".into());
        let home = tempfile::tempdir().unwrap();
        let [in_cache, in_shared] = lay_out(home.path());
        let words = "agent --callback 10.0.0.1:2,fd00::2:3 00ff 7";
        for program in [&at, &in_cache, &in_shared] {
            let line = RemoteCommand::Exec(program, words).line();
            let bare = outside_quotes(&line);
            assert!(!bare.contains(['[', ']', '*', '?', '{', '}', '$', '`', '"']), "{line}");
            assert!(!bare.contains(['=', '^', '%', '#', '(', ')', '<', '>']), "{line}");
        }
        let line = RemoteCommand::Script("[ -w $1 ];", &["~/x", "any"]).line();
        assert_eq!(outside_quotes(&line), "exec sh -c  sh ~/x any");
    }

    /// The csh of BSD and tcsh are different shells, each of which may be called csh. Shells that this machine
    /// does not have are left out.
    #[test]
    fn each_login_shell_starts_the_agent() {
        let home = tempfile::tempdir().unwrap();
        let shells = ["sh", "bash", "dash", "ksh", "zsh", "fish", "csh", "tcsh", "bsd-csh"];
        let has = |shell: &&str| std::path::Path::new("/bin").join(shell).exists();
        for program in lay_out(home.path()) {
            for shell in shells.into_iter().filter(has) {
                let line = RemoteCommand::Exec(&program, "agent").line();
                let mut command = Command::new(shell);
                command.args(["-c", line.as_str()]).env_clear().env("PATH", "/usr/bin:/bin");
                let output = command.env("HOME", home.path()).output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(said.starts_with("agent "), "{shell}: {line}: {output:?}");
            }
        }
    }

    /// Needs root, since only root can change the owner of a file; does nothing otherwise.
    #[test]
    fn a_warm_start_executes_nothing_of_another_account() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        for level in 0..3 {
            let home = tempfile::tempdir().unwrap();
            let variable = format!("HOME={}", home.path().display());
            for program in lay_out(home.path()) {
                let cache = match program {
                    AgentLocation::InShared { .. } => "shared/.rlaunch-0",
                    _ => "cache",
                };
                let path = home.path().join(cache).join(["", "0f", "0f/rlaunch-worker"][level]);
                std::os::unix::fs::chown(path, Some(65534), None).unwrap();
                let become_it = RemoteCommand::Exec(&program, "agent");
                for line in [become_it.line(), become_it.line_inside("env")] {
                    let mut command = Command::new("env");
                    command.args(["-i", "PATH=/usr/bin:/bin", &variable, "sh", "-c", &line]);
                    let output = command.output().unwrap();
                    assert!(!output.status.success() && output.stdout.is_empty(), "{line}");
                }
            }
        }
    }
}
