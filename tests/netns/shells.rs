//! Accounts with any login shell, and shells that print or run something before their command.

use crate::support::{Field, Undo};
use rlaunch_lab::{Account, command};
use std::time::Duration;

/// Hosts with their login shells, and the start-up file of each shell, below root's home. In the
/// test the file prints a line.
const SHELLS: [(&str, &str, &str); 4] = [
    ("a", "/bin/dash", ".profile"),
    ("b", "/usr/bin/zsh", ".zshenv"),
    ("c", "/usr/bin/fish", ".config/fish/config.fish"),
    ("d", "/bin/tcsh", ".cshrc"),
];
/// Time limit for a job with a host that never answers.
const SILENCE: Duration = Duration::from_secs(90);

/// Changes the login shell of root on a host until the guard is dropped.
pub(crate) fn login_shell<'a>(field: &'a Field, host: &'a str, shell: &str) -> impl Drop + 'a {
    let line = format!(
        "sed 's|^\\(root:.*:\\)[^:]*$|\\1{shell}|' /etc/passwd >/tmp/.passwd &&
         chmod 644 /tmp/.passwd && mount --bind /tmp/.passwd /etc/passwd"
    );
    field.on(host, &line);
    Undo(move || {
        let mut undo = field.lab.on(host, Account::Root)?;
        let line = "umount /etc/passwd && rm /tmp/.passwd";
        command::run("restore the login shell", undo.args(["sh", "-c", line])).map(drop)
    })
}

/// Writes a file below root's home on a host, and removes it when the guard is dropped.
fn of_root(field: &Field, host: &str, name: &str, text: &str) -> impl Drop + use<> {
    let path = Account::Root.home().join(name);
    field.files(&[host], path.to_str().unwrap(), text, 0o644)
}

#[test]
fn a_host_for_each_login_shell() {
    let field = Field::new();
    let home = Account::Root.home();
    // Fish writes files of its own there.
    let kept = [".config/fish", ".local/share/fish"].map(|name| home.join(name));
    let _kept = kept.map(|path| field.scratch(&["c"], path.to_str().unwrap()));
    let _shells = SHELLS.map(|(host, shell, first)| {
        let talks = of_root(&field, host, first, "echo Welcome\n");
        (login_shell(&field, host, shell), talks)
    });
    let hosts = SHELLS.map(|(host, ..)| host);
    field.forget_agents(&hosts, Account::Root);
    for (host, shell, _) in SHELLS {
        let said = field.shell(&format!("ssh {host} 'echo $SHELL'"), "/".as_ref());
        assert!(said.trim_end().ends_with(shell), "{host}: {said}");
    }
    // Each of these shells would change these words if it expanded them.
    let words = ["two  words", "it's \"$HOME\" !1 `id` \\n ~ * ; # {a,b}", ""];
    let script = r#"printf '%s|' $(hostname) $# "$1" "$2" "$3" "$WORDS"; echo"#;
    let cold = field.rlaunch("-H a,b,c,d").env("WORDS", words[1]).sh(script).args(["sh"]);
    let cold = cold.args(words).logging().run();
    let rest = format!("3|{}|{}|{}|{}|", words[0], words[1], words[2], words[1]);
    let expected = hosts.map(|host| format!("{host}|{rest}"));
    assert_eq!(cold.succeeded().sorted(), expected, "{cold}");
    cold.says(&["agent sent to a, b, c, d ("]).keeps_quiet_about(&["Welcome"]);
    let warm = field.rlaunch("-H a,b,c,d hostname").run();
    assert_eq!(warm.succeeded().sorted(), hosts, "{warm}");
    warm.says_nothing();
    // Shells that are not Bourne shells report in another way how a program ended.
    for (rank, host, code) in [(2, "c", 42), (3, "d", 43)] {
        let script = format!("test $RANK != {rank} || exit {code}; exec sleep 100");
        let ran = field.rlaunch("-H a,b,c,d").sh(&script).run();
        ran.ended_with(code).says(&[&format!("rank {rank} on {host}")]);
    }
}

#[test]
fn an_account_that_may_not_log_in() {
    let field = Field::new();
    let _shell = login_shell(&field, "b", "/usr/sbin/nologin");
    let ran = field.rlaunch("-H a,b,c hostname").run();
    ran.refused(202, &["b: ", "came back: This account is currently not available."]);
    ran.took_less_than(5).hints("chsh -s /bin/bash").keeps_quiet_about(&["a: ", "c: "]);
}

/// At a terminal such a shell looks as any other.
#[test]
fn a_shell_whose_stdout_leads_to_stderr_is_told_from_one_that_is_silent() {
    let field = Field::new();
    field.warm("a", Account::Root);
    let _files = ["a", "b"].map(|host| of_root(&field, host, ".bashrc", "exec 1>&2\n"));
    for line in ["-H a hostname", "-H b --agent-dir /tmp/none hostname"] {
        let ran = field.rlaunch(line).run();
        ran.refused(202, &["its login shell sends stdout to stderr"]).took_less_than(5);
        ran.hints("2>/dev/null").keeps_quiet_about(&["what came back"]);
    }
}

/// The bashrc of the first host is merely slow. With the others, the agent's command never runs:
/// one shell exits, and the other becomes a shell that reads commands from stdin and finds none. That of another account
/// never gets to them, and is ended.
#[test]
fn a_bashrc_that_sleeps_and_ones_that_end_the_matter() {
    let field = Field::new();
    field.warm("a,b,c", Account::Root);
    let _slow = of_root(&field, "a", ".bashrc", "sleep 1; echo Welcome\n");
    let _ends = of_root(&field, "b", ".bashrc", "exit 3\n");
    let _becomes = of_root(&field, "c", ".bashrc", "exec dash\n");
    let slow = field.rlaunch("-H a,d hostname").run();
    assert_eq!(slow.succeeded().sorted(), ["a", "d"], "{slow}");
    slow.keeps_quiet_about(&["Welcome"]);
    let hangs = Account::User.home().join(".bashrc");
    let _hangs = field.files(&["e"], hangs.to_str().unwrap(), "sleep 1000\n", 0o644);
    let other = field.rlaunch("-H e hostname").account(Account::User).within(SILENCE).spawn();
    let ran = field.rlaunch("-H b,c,d hostname").within(SILENCE).spawn().finish_first();
    ran.refused(202, &["2 of 3 hosts", "  b: ", "  c: no hello from the agent within 8 s"]);
    ran.hints("echo hello").hints("as ~/.bashrc, that starts another shell");
    ran.keeps_quiet_about(&["  d: "]);
    other.finish().refused(202, &["e: no hello from the agent within 8 s"]);
}

/// Where the server passes on no signals, as OpenSSH before 9.8 for root, the shell stays, and a second command would hang as
/// well. The hint has what finds and ends it.
#[test]
fn a_shell_that_hangs_is_ended_or_named() {
    let field = Field::new();
    let _hangs = of_root(&field, "b", ".bashrc", "echo $$ >>/tmp/hanging; sleep 1000\n");
    let ran = field.rlaunch("-H b hostname").within(SILENCE).spawn().finish_first();
    ran.refused(202, &["b: no "]);
    let alive = "for p in $(cat /tmp/hanging); do kill -0 $p 2>/dev/null && echo $p; done; true";
    let shells = field.on("b", alive);
    if shells.is_empty() {
        ran.keeps_quiet_about(&["may run on there"]);
    } else {
        ran.says(&["may run on there"]);
        ran.hints("ps -u \"$USER\" -o pid,etime,args | grep '[-]c .*rlaunch'")
            .hints("kill -KILL -PID");
    }
    // By the words of the hint.
    let end = "for p in $(cat /tmp/hanging); do kill -KILL -$p 2>/dev/null; done; rm /tmp/hanging";
    field.on("b", end);
}
