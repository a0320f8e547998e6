//! Who sends rlaunch a signal, by which way, and what ranks have of it.

use crate::support::{Field, launch_directory};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Rank that saves its work when it is told to end, below a shell that handles no signal.
const RANK: &str = r#"trap "echo TOLD" USR1
trap "sleep 0.7; : > /tmp/signals/$CASE; exit 0" TERM
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

/// A case: its name, the command that starts `./job`, the lines that a shell runs once ranks are up, with the command's
/// `$pid`, and the command's exit code.
const CASES: &[(&str, &str, &str, i32)] = &[
    ("closed-terminal", "python3 close.py", ":", 0),
    (
        "ctrl-c-then-terminate",
        "setsid env --default-signal=INT python3 terminate.py ./job",
        "kill -INT -$pid",
        130,
    ),
    // It sends its signal to rlaunch, and then to the whole group.
    ("timeout", "timeout 60 ./job", "kill -TERM $pid", 143),
    // After the hangup, rlaunch still passes on what comes.
    ("nohup", "nohup ./job", "kill -HUP $pid; kill -USR1 $pid; shows TOLD; kill $pid", 143),
    // Its patience is shorter than the grace of ranks, who keep theirs.
    ("service-manager", "./job", "kill $pid; sleep 0.3; kill -KILL $pid", 137),
    // Ahead of the time limit; ompi#2075, pytorch#154849.
    ("batch-system", "./job", "kill -USR1 $pid; shows TOLD; kill $pid", 143),
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
    for (name, start, then, _) in CASES {
        script += &format!("(case_of {name} '{start}' '{then}') 2>/dev/null &\n");
    }
    let codes = field.shell(&format!("{script}wait"), directory.path());
    for (name, _, _, code) in CASES {
        let out = fs::read_to_string(directory.path().join(name)).unwrap_or_default();
        assert!(codes.contains(&format!("{name} {code}\n")), "{codes}{name}: {out}");
        let saved = field.lab.path("a", format!("/tmp/signals/{name}").as_ref()).unwrap();
        field.wait_for(name, || saved.exists());
    }
}
