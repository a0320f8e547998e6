//! The libraries of Debian, with programs in C that are linked with them.

use super::{HOSTS, PATIENCE, for_each};
use crate::support::Field;
use rlaunch_lab::Account;
use rlaunch_lab::mpi::{DEBIAN, MpiLibrary, WHEELS};

#[test]
fn results_are_right() {
    super::results_are_right(&DEBIAN);
}

#[test]
fn mpi_abort_ends_the_job_with_its_code() {
    super::mpi_abort_ends_the_job_with_its_code(&DEBIAN);
}

#[test]
fn a_rank_that_leaves_before_mpi_finalize_is_named() {
    super::a_rank_that_leaves_before_mpi_finalize_is_named(&DEBIAN);
}

#[test]
fn a_rank_that_is_killed_in_a_collective_is_named() {
    super::a_rank_that_is_killed_in_a_collective_is_named(&DEBIAN);
}

/// The ranks that wait spin in the library.
#[test]
fn a_rank_that_never_enters_a_barrier_is_named() {
    for_each(&DEBIAN, |program| {
        let ran = program.run("--hang-timeout 3", "wait").run();
        ran.ended_with(124).says(&["no progress for ", " s: rank 0 on a: pause "]);
    });
}

#[test]
fn several_programs_are_one_world_that_does_not_grow() {
    super::several_programs_are_one_world_that_does_not_grow(&DEBIAN);
}

/// The library of a shell's programs is not known, so ranks are offered what each library needs.
#[test]
fn a_shell_may_run_several_programs_one_after_the_other() {
    for_each(&DEBIAN, |program| {
        let words = program.words.join(" ");
        let script = format!("{words} all 64 && {words} all 1024");
        let run = program.field.rlaunch("-H a:2,b:2").sh(&script).within(PATIENCE);
        let ran = run.run();
        assert_eq!(ran.succeeded().out(), program.right().repeat(2), "{ran}");
    });
}

/// Prints how the process manager is reached, and starts the program once a file is there.
const LATER: &str = r#"
[ "$RANK" != 0 ] || echo "${PMI_PORT##*:} $PMI_ID"
until [ -e /tmp/mpi/go ]; do sleep 0.02; done
exec "$@"
"#;

/// Script that begins as a client of PMI-1 does whose rank has this secret number, and as one of
/// PMIx whose rank is not known. Prints which of them is answered.
const STRANGER: &str = r#"
import socket, sys
for said in f"cmd=initack pmiid={sys.argv[2]}\n".encode(), b"\xff" * 8 + b"\x10\0\0\0" + b"\0" * 20:
    try:
        line = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30)
        line.sendall(said)
        answer = line.recv(1)
    except ConnectionError:
        answer = b""
    print("answered" if answer else "let go")
"#;

/// Another user is let go even if it knows the number of a rank, and the job's user if it does not.
#[test]
fn strangers_on_the_port_are_let_go_and_change_nothing() {
    for_each(&DEBIAN, |program| {
        let field = program.field;
        let run = field.rlaunch("-H a:2,b:2").args(["sh", "-c", LATER, "sh"]).args(&program.words);
        let mut running = run.args(["all", "1024"]).within(PATIENCE).spawn();
        running.wait_for_text("\n", 1);
        let out = running.out();
        let (port, number) = out.trim().split_once(' ').unwrap();
        let ask = |account, number| {
            let mut command = field.lab.on("a", account).unwrap();
            let output = command.args(["python3", "-c", STRANGER, port, number]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(ask(Account::User, number), "let go\nlet go\n", "{out}");
        assert_eq!(ask(Account::Root, "7"), "let go\nlet go\n", "{out}");
        assert_eq!(ask(Account::Root, number), "answered\nlet go\n", "{out}");
        let _go = field.files(&HOSTS, "/tmp/mpi/go", "", 0o644);
        let ran = running.finish();
        assert_eq!(ran.succeeded().out().split_once('\n').unwrap().1, program.right(), "{ran}");
    });
}

/// Starts the program at once on all ranks but the last, where it waits for a file.
const LATE: &str = r#"
until [ "$RANK" != 3 ] || [ -e /tmp/mpi/late ]; do sleep 0.05; done
exec "$@"
"#;

#[test]
fn a_rank_that_is_late_for_mpi_init_is_named_and_no_other() {
    for_each(&DEBIAN, |program| {
        let run = program.field.rlaunch("-H a:2,b:2").args(["sh", "-c", LATE, "sh"]);
        let run = run.args(&program.words).args(["all", "64"]);
        let mut running = run.within(PATIENCE).spawn();
        running.wait_for_stderr(" s for rank 3 on b", 1);
        let _late = program.field.files(&["b"], "/tmp/mpi/late", "", 0o644);
        let ran = running.finish();
        assert_eq!(ran.succeeded().out(), program.right(), "{ran}");
        ran.says(&[", as in MPI_Init and MPI_Finalize: waiting 1"]);
        ran.keeps_quiet_about(&["rank 0", "rank 1", "rank 2"]);
    });
}

/// Variables as `srun` and the launchers of MPI libraries set them, which lead nowhere.
const FOREIGN: [(&str, &str); 12] = [
    ("PMI_FD", "99"),
    ("PMI_PORT", "127.0.0.1:1"),
    ("PMI_RANK", "7"),
    ("PMI_SIZE", "9"),
    ("PMI_SPAWNED", "1"),
    ("PMIX_NAMESPACE", "x"),
    ("PMIX_RANK", "7"),
    ("PMIX_SERVER_URI2", "x.0;tcp4://127.0.0.1:1"),
    ("PMIX_SERVER_URI41", "x.0;tcp4://127.0.0.1:1"),
    ("OMPI_MCA_ess_base_jobid", "7"),
    ("OMPI_MCA_orte_local_daemon_uri", "x"),
    ("HYDI_CONTROL_FD", "98"),
];

/// A launcher may run inside another, and the start-up files of a host may set what others need.
#[test]
fn ranks_are_not_led_to_another_launcher() {
    for_each(&DEBIAN, |program| {
        let lines = FOREIGN.map(|(name, value)| format!("export {name}='{value}'\n")).concat();
        let home = Account::Root.home();
        let files = [".bashrc", ".bash_profile"].map(|name| {
            program.field.files(&["b"], home.join(name).to_str().unwrap(), &lines, 0o644)
        });
        for options in ["", "--login"] {
            let mut run = program.run(options, "all 64");
            for (name, value) in FOREIGN {
                run = run.env(name, value);
            }
            let ran = run.run();
            assert_eq!(ran.succeeded().out(), program.right(), "{ran}");
        }
        drop(files);
    });
}

/// The files that ranks have made by then are removed by the agent's guardian.
#[test]
fn an_agent_that_is_killed_leaves_nothing_of_its_ranks() {
    for libraries in [&DEBIAN[..], &WHEELS[..]] {
        for_each(libraries, |program| {
            let files =
                || HOSTS.map(|host| program.field.on(host, "find /tmp /var/tmp -maxdepth 2"));
            let before = files();
            // Some libraries make a directory there unless they are given another.
            let mut running = program.run("-x TMPDIR=/tmp/mpi", "wait").spawn();
            running.wait_for_text(" waits in process ", 4);
            let out = running.out();
            let process =
                out.lines().find_map(|line| line.strip_prefix("rank 0 waits in process "));
            let parent = format!("sed -n 's/^PPid://p' /proc/{}/status", process.unwrap());
            program.field.on("a", &format!("kill -9 $({parent})"));
            let ran = running.finish();
            // A rank of Open MPI may notice that its peer is gone, and abort, before the launcher does.
            assert!([206, 14].contains(&ran.code), "{ran}");
            ran.says(&["all processes ended on b"]);
            assert_eq!(files(), before, "{ran}");
        });
    }
}

#[test]
fn variables_for_mpi_are_listed() {
    let field = Field::new();
    let listed = |options: &str| {
        let ran = field.rlaunch(&format!("-H a,b --show env {options} true")).run();
        let out = ran.succeeded().out().into_owned();
        ["PMIX_*", "PMI_*"].map(|name| out.lines().filter(|line| line.contains(name)).count())
    };
    assert_eq!(listed(""), [2, 2]);
    assert_eq!(listed("--mpi pmi1"), [0, 2]);
    assert_eq!(listed("--mpi none"), [0, 0]);
    assert_eq!(listed("-np 1"), [0, 0]);
}

#[test]
fn the_interface_can_be_chosen() {
    let needed = |library: &MpiLibrary| match library.name {
        "mpich-debian" => "pmi1",
        _ => "pmix",
    };
    for_each(&DEBIAN, |program| {
        let options = format!("--mpi {}", needed(program.library));
        let ran = program.run(&options, "programs").run();
        assert_eq!(ran.succeeded().sorted().len(), 4, "{ran}");
    });
}
