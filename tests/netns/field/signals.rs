//! Who sends rlaunch a signal, by which way, and what ranks have of it.

use crate::support::{Field, launch_directory};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Rank that saves its work when it is told to end, below a shell that handles no signal. It takes longer than anybody
/// waits who has little patience.
const RANK: &str = r#"trap "echo TOLD" USR1
save=0.7; [ $CASE != service-manager ] || save=4
trap "sleep $save; : > /tmp/signals/$CASE; exit 0" TERM
mkdir -p /tmp/signals; echo READY; while :; do sleep 0.05; done"#;

/// Types a command at a terminal, and closes it once ranks run: the kernel and the shell send a hangup.
const CLOSE: &str = "import os, pty, signal, time
pid, terminal = pty.fork()
if pid == 0:
    for number in (signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_DFL)
    os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])
os.write(terminal, b'./job\\n')
out = os.environ['CASE']
until = time.time() + 40
while not (os.path.exists(out) and 'READY' in open(out).read()) and time.time() < until: time.sleep(0.05)
os.close(terminal)
os.waitpid(pid, 0)
";

/// What Python programs do that start others: they get the Ctrl-C of the terminal too.
const TERMINATE: &str = "import subprocess, sys
program = subprocess.Popen(sys.argv[1:])
try: code = program.wait()
except KeyboardInterrupt:
    program.terminate()
    code = program.wait()
sys.exit(code)
";

struct Case {
    name: &'static str,
    /// Command that starts `./job`, in the background of a shell that is not interactive.
    start: &'static str,
    /// Lines for a shell once ranks are up, with the command's `$pid`.
    then: &'static str,
    /// Exit code of the command.
    code: i32,
    /// Text that rlaunch prints.
    says: &'static str,
}

const fn case(
    name: &'static str,
    start: &'static str,
    then: &'static str,
    code: i32,
    says: &'static str,
) -> Case {
    Case { name, start, then, code, says }
}

const CASES: &[Case] = &[
    // Its shell does not wait for what rlaunch prints.
    case("closed-terminal", "python3 close.py", ":", 0, ""),
    case(
        "ctrl-c-then-terminate",
        "setsid env --default-signal=INT python3 terminate.py ./job",
        "kill -INT -$pid",
        130,
        "interrupted: 1 rank ended",
    ),
    // It sends its signal to rlaunch, and then to the whole group.
    case("timeout", "timeout 60 ./job", "kill -TERM $pid", 143, "error: ended by SIGTERM"),
    // After the hangup, rlaunch still passes on what comes.
    case(
        "nohup",
        "nohup ./job",
        "kill -HUP $pid; kill -USR1 $pid; shows TOLD; kill $pid",
        143,
        "error: ended by SIGTERM",
    ),
    // A Ctrl-C is not meant for commands in the background of a script, which ignore it.
    case(
        "background",
        "./job",
        "kill -INT $pid; kill -QUIT $pid; kill -USR1 $pid; shows TOLD; kill $pid",
        143,
        "error: ended by SIGTERM",
    ),
    // Whoever starts rlaunch may have blocked what it relies on.
    case(
        "blocked",
        "timeout -k 20 60 env --block-signal=TERM,URG,USR1 ./job",
        "kill -TERM $pid",
        143,
        "error: ended by SIGTERM",
    ),
    // Its patience is shorter than the grace of ranks, who keep theirs.
    case("service-manager", "./job", "kill $pid; sleep 0.3; kill -KILL $pid", 137, ""),
    // Ahead of the time limit; ompi#2075, pytorch#154849.
    case(
        "batch-system", "./job", "kill -USR1 $pid; shows TOLD; kill $pid", 143,
        "error: ended by SIGTERM",
    ),
    // The kernel would end rlaunch without a word, and its agents would find it gone.
    case(
        "quit", "env --default-signal=QUIT ./job", "kill -QUIT $pid", 131,
        "error: ended by SIGQUIT",
    ),
    case("cpu-time", "./job", "kill -XCPU $pid", 152, "hint: rlaunch has used the CPU time"),
    case("alarm", "./job", "kill -ALRM $pid", 142, "error: ended by SIGALRM"),
];

/// Each rank has the time to save its work, whoever ends the job.
#[test]
fn ranks_save_their_work_whoever_ends_the_job() {
    let (field, directory) = (Field::new(), launch_directory());
    let _scratch = field.scratch(&["a"], "/tmp/signals");
    let rlaunch = field.rlaunch.display();
    let words = "-H a --wdir /tmp --kill-after 20 -x CASE";
    let job = format!(
        "#!/bin/sh\nexec {rlaunch} {words} sh -c 'sh -c \"$0\"; exit' '{RANK}' >$CASE 2>&1\n"
    );
    for (name, text) in [("job", job.as_str()), ("close.py", CLOSE), ("terminate.py", TERMINATE)] {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    // The limit ends loops of a job that does not come up.
    let mut script = "shows() { i=0; until grep -qs $1 $CASE || [ $((i += 1)) = 800 ]; do sleep 0.05; done; }\n\
        case_of() { export CASE=$1; $2 & pid=$!; shows READY; eval \"$3\"; wait $pid; echo $1 $?; }\n"
        .to_owned();
    for Case { name, start, then, .. } in CASES {
        script += &format!("(case_of {name} '{start}' '{then}') 2>/dev/null &\n");
    }
    let codes = field.shell(&format!("{script}wait"), directory.path());
    for Case { name, code, says, .. } in CASES {
        let out = fs::read_to_string(directory.path().join(name)).unwrap_or_default();
        let has_code = codes.contains(&format!("{name} {code}\n"));
        assert!(has_code && out.contains(says), "{codes}{name}: {out}");
        let saved = field.lab.path("a", format!("/tmp/signals/{name}").as_ref()).unwrap();
        field.wait_for(name, || saved.exists());
    }
}
