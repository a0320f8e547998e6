//! What people have reported about launchers, as one table: the report, its trial with rlaunch, and what must come.
//! A report that needs a setup of its own has a test elsewhere, which the table names.

use crate::running::is_about_a_wait;
use crate::support::{Field, PATH, launch_directory};
use rlaunch_lab::Account;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::thread;

/// Number of trials at once.
const THREADS: usize = 4;

struct Trial {
    /// Project, its issue if the trial follows one, and what happened there.
    reported: &'static str,
    way: Way,
}

enum Way {
    /// Test, as `FILE::NAME`.
    Test(&'static str),
    /// Line for a shell on the launch node, in `/`; `$D` is an empty directory.
    Line(&'static str, Expected),
}

struct Expected {
    code: i32,
    stdout: &'static str,
    /// Texts on stderr. Without any, it has to be empty.
    says: &'static [&'static str],
}

const fn test(reported: &'static str, test: &'static str) -> Trial {
    Trial { reported, way: Way::Test(test) }
}

/// Trial that succeeds and says nothing of its own.
const fn prints(reported: &'static str, line: &'static str, stdout: &'static str) -> Trial {
    Trial { reported, way: Way::Line(line, Expected { code: 0, stdout, says: &[] }) }
}

const fn fails(
    reported: &'static str,
    line: &'static str,
    code: i32,
    says: &'static [&'static str],
) -> Trial {
    Trial { reported, way: Way::Line(line, Expected { code, stdout: "", says }) }
}

const TRIALS: &[Trial] = &[
    // Signals, and the terminal.
    test(
        "singularity#5987: nohup does not keep a job from ending with its terminal",
        "tests/netns/ending.rs::a_hangup_that_is_ignored_from_the_start_ends_nothing",
    ),
    test(
        "cockroachdb#48070, pytorch#119856: a signal that comes twice by itself skips the grace",
        "tests/netns/ending.rs::a_signal_that_comes_twice_by_itself_leaves_the_grace",
    ),
    test(
        "singularity#5987: the same of a command beside a rank",
        "tests/netns/sessions.rs::a_command_under_nohup_outlives_the_terminal",
    ),
    test(
        "timeout, batch systems, service managers: wrappers, a closed terminal and Ctrl-C take the grace away",
        "tests/netns/field/signals.rs::ranks_save_their_work_whoever_ends_the_job",
    ),
    test(
        "pytorch#154849, ompi#2075: SIGUSR1 kills the shell around a program that waits for it",
        "tests/netns/ending.rs::a_signal_reaches_the_program_that_waits_for_it",
    ),
    prints(
        "Python's subprocess: SIGPIPE stays ignored in programs, so that `yes | head` complains",
        "rlaunch -H d bash -c 'yes | head -n 1'",
        "y\n",
    ),
    prints(
        "Hydra: ranks inherit blocked signals",
        "rlaunch -H a grep SigBlk /proc/self/status",
        "SigBlk:\t0000000000000000\n",
    ),
    fails(
        "Open MPI: a parent that ignores SIGCHLD takes the exit codes away",
        "trap '' CHLD; exec rlaunch -H c sh -c 'exit 3'",
        3,
        &["rank 0 on c (pid ", "exited with code 3"],
    ),
    fails(
        "mpirun: a job in a pipeline of CI runs for ever",
        "rlaunch -H d --timeout 0.5 sleep 60",
        124,
        &["error: not done within 0.5 s (--timeout)"],
    ),
    // Exit codes.
    fails(
        "pdsh, parallel-ssh: code 255 of a program is taken for a failure of ssh",
        "rlaunch -H a sh -c 'exit 255'",
        255,
        &["error: rank 0 on a (pid ", "exited with code 255"],
    ),
    fails(
        "torchrun: the code of the rank that failed becomes 1",
        "rlaunch -H b,c sh -c '[ $RANK = 0 ] || exit 42; sleep 60'",
        42,
        &["error: rank 1 on c (pid ", "exited with code 42", "all processes ended on b, c"],
    ),
    fails(
        "Slurm: a program's own code above 128 is reported as a signal",
        "rlaunch -H b sh -c 'exit 143'",
        143,
        &["exited with code 143"],
    ),
    fails(
        "mpi-operator: nothing says that a rank was killed, as for want of memory",
        "rlaunch -H d sh -c 'kill -9 $$'",
        137,
        &["error: rank 0 on d (pid ", "was killed by signal 9 (SIGKILL)"],
    ),
    fails(
        "nix: waitpid returns an error for a process that a real-time signal has killed",
        "rlaunch -H d sh -c 'kill -34 $$'",
        162,
        &["error: rank 0 on d (pid ", "was killed by signal 34"],
    ),
    fails(
        "Horovod: the traceback of the rank that failed is far above the last line, or lost",
        "rlaunch -H a sh -c '/usr/bin/python3 -c \"raise ValueError(7)\" || { sleep 0.2; seq 100; exit 1; }' >/dev/null",
        1,
        &["exited with code 1", "its last lines on stderr:", "  ValueError: 7\n"],
    ),
    // Output.
    test(
        "MAESTROeX#317: output on a full disk ends the job without a word",
        "tests/netns/output.rs::output_that_cannot_be_written_is_an_error",
    ),
    fails(
        "a shell with `ulimit -f`: the launcher is killed, and nothing says why",
        "ulimit -f 8; exec rlaunch -H a head -c 100000 /dev/zero >$D/out",
        203,
        &["error: ", "File too large"],
    ),
    fails(
        "Hydra: a rank that closes its streams counts as ended",
        "rlaunch -H a sh -c 'exec >&- 2>&-; sleep 0.3; exit 5'",
        5,
        &["exited with code 5"],
    ),
    prints(
        "paramiko, ssh: a child in the background that has stdout open holds the end up",
        "rlaunch -H b sh -c 'sleep 1000 & echo done'",
        "done\n",
    ),
    prints(
        "Open MPI: a daemon that a rank has started survives the job",
        "rlaunch -H c sh -c 'setsid sleep 1000 >/dev/null 2>&1 & echo done'",
        "done\n",
    ),
    prints(
        "docker: /dev/stdout cannot be opened where stdout is a socket",
        "rlaunch -H d sh -c 'echo out >/dev/stdout; echo more >/proc/self/fd/1'",
        "out\nmore\n",
    ),
    prints(
        "torchrun: UnicodeDecodeError where a rank prints other bytes than UTF-8",
        "rlaunch -H a printf '\\377\\376\\n' | od -An -tx1",
        " ff fe 0a\n",
    ),
    prints(
        "parallel-ssh: lines that end as on Windows come without their end",
        "rlaunch -H c printf 'a\\r\\nb\\n' | od -An -tx1",
        " 61 0d 0a 62 0a\n",
    ),
    prints(
        "mpirun: fails where it was started with stdout closed, as by some daemons",
        "rlaunch -H a hostname >&-",
        "",
    ),
    // Standard input.
    prints(
        "ssh, mpirun: read the lines of the shell's loop around them",
        "printf '1\\n2\\n' | while read n; do rlaunch -H d --stdin none echo $n; done",
        "1\n2\n",
    ),
    prints(
        "Hydra: input with null bytes is cut",
        "printf 'a\\0b' | rlaunch -H b od -An -tx1",
        " 61 00 62\n",
    ),
    prints(
        "shells: a named pipe that is opened twice loses its writer",
        "mkfifo $D/pipe; (sleep 1; echo hi >$D/pipe) & rlaunch -H a --stdin $D/pipe cat",
        "hi\n",
    ),
    test(
        "pv, io::copy of Rust: a reader that waits in splice(2) stops who writes to it, and no signal helps",
        "tests/netns/field/pipes.rs::output_whose_reader_splices_it_to_a_socket_that_nobody_reads",
    ),
    // Arguments.
    test(
        "DeepSpeed PR#4265: a line for a shell, and variables in front of a program",
        "tests/netns/field/words.rs::a_line_for_a_shell_goes_to_one",
    ),
    prints(
        "ssh, pdsh: empty arguments vanish, and blanks split arguments",
        "rlaunch -H a printf '[%s]\\n' a '' 'b  c'",
        "[a]\n[]\n[b  c]\n",
    ),
    prints(
        "DeepSpeed, ssh: a second shell expands what the first has quoted",
        "rlaunch -H b printf '%s\\n' '$HOME' '*' \"it's\" 'a\"b' 'x;y' '\\'",
        "$HOME\n*\nit's\na\"b\nx;y\n\\\n",
    ),
    prints(
        "torchrun: options of the program are taken for those of the launcher",
        "rlaunch -H d echo -np 4 --help -x",
        "-np 4 --help -x\n",
    ),
    prints(
        "mpirun: `--` in front of the program is taken for the program",
        "rlaunch -H a -- echo x",
        "x\n",
    ),
    prints(
        "mpirun, Hydra: no argument can be a colon",
        "rlaunch -H b echo a:b '\\:' c",
        "a:b : c\n",
    ),
    prints(
        "pdsh, ssh: a long argument does not fit into the remote command line",
        "rlaunch -H c sh -c 'echo ${#1}' sh \"$(head -c 100000 /dev/zero | tr '\\0' x)\"",
        "100000\n",
    ),
    // Variables.
    test(
        "cbio-cluster#128: PWD and variables of the launching machine are those of ranks",
        "tests/netns/field/words.rs::variables_of_one_machine_stay_there",
    ),
    prints(
        "Open MPI: -x cuts a value at its newline or comma",
        "rlaunch -H a -x 'V=a\nb\"c;d,e' printenv V",
        "a\nb\"c;d,e\n",
    ),
    prints(
        "DeepSpeed: quotes and comments in a file of variables become part of values",
        "printf 'A=\"x y\" # z\\nexport B=1\\n' >$D/env
         rlaunch -H b --env-file $D/env sh -c 'echo \"$A$B\"'",
        "x y1\n",
    ),
    fails(
        "mpirun: -x of a variable that is not set is a warning, and the job fails later",
        "rlaunch -H c -x NOT_HERE true",
        200,
        &["error: `-x NOT_HERE`: NOT_HERE is not set here", "-x NOT_HERE=VALUE"],
    ),
    fails("horovodrun: -x without a name", "rlaunch -H d -x =1 true", 200, &["name is missing"]),
    prints(
        "mpi4py, torchrun: a value that is not UTF-8 ends the launcher",
        "V=$(printf '\\377') rlaunch -H a printenv V | od -An -tx1",
        " ff 0a\n",
    ),
    prints(
        "ssh, Perl: an unknown locale here prints warnings everywhere",
        "LC_ALL=xx_XX rlaunch -H b hostname",
        "b\n",
    ),
    fails(
        "DeepSpeed: a PATH that hosts do not have ends in `command not found`",
        "rlaunch -H c -x PATH=/nonexistent hostname",
        127,
        &["error: hostname is not on c", "pass -x PATH"],
    ),
    // Hosts, and files that name them.
    test(
        "paramiko#22: a name whose first address is dead has no other",
        "tests/netns/field/connections.rs::a_dead_address_of_a_name_costs_a_moment",
    ),
    test(
        "varuna#4, net-ssh#121: servers with a second factor or other algorithms get wrong hints",
        "tests/netns/field/connections.rs::what_rlaunchs_client_cannot_do_is_left_to_ssh",
    ),
    test(
        "openshift/jenkins#83: a uid without a name logs in as the user of its image",
        "tests/netns/field/words.rs::an_account_without_a_name_is_not_root",
    ),
    test(
        "DeepSpeed#1924: a port behind a host's name starts as many ranks",
        "tests/netns/field/words.rs::a_port_is_not_a_number_of_ranks",
    ),
    test(
        "mpich#6681: a hostfile that was written on Windows",
        "tests/netns/field/connections.rs::a_hostfile_of_another_system_is_read",
    ),
    prints(
        "DeepSpeed: a comment or an empty line in a hostfile is an error",
        "printf '# x\\n\\n \\t\\nd slots=1 # y\\n' >$D/h; rlaunch --hostfile $D/h hostname",
        "d\n",
    ),
    fails(
        "mpirun: an empty hostfile runs everything here",
        ": >$D/h; rlaunch --hostfile $D/h hostname",
        200,
        &["/h names no host", "hint: a hostfile has a line for each host"],
    ),
    fails(
        "horovodrun: a directory as hostfile ends in a traceback",
        "rlaunch --hostfile $D hostname",
        200,
        &["error: cannot read /", "Is a directory"],
    ),
    prints(
        "torchrun, DeepSpeed: a host that is named twice gets one rank, or is refused",
        "rlaunch -H a,a sh -c 'echo $LOCAL_WORLD_SIZE'",
        "2\n2\n",
    ),
    fails(
        "Hydra: a name with an underscore is refused, or blamed for something else",
        "rlaunch -H no_such_host hostname",
        201,
        &["no_such_host: cannot look up"],
    ),
    prints(
        "Open MPI: an IPv6 address is split at its colons",
        "rlaunch -H '[::1]:2' echo x",
        "x\nx\n",
    ),
    fails(
        "DeepSpeed: slots=0 fails much later",
        "rlaunch -H a:0 hostname",
        200,
        &["`a:0`: `0` is not a number of slots"],
    ),
    fails(
        "russh#301: what to type about a changed host key leaves the port out",
        "ssh-keygen -q -t ed25519 -N '' -f $D/key
         echo \"[a]:2222 $(cut -d ' ' -f 1,2 $D/key.pub)\" >$D/known
         cat >$D/config <<END
Port 2222
UserKnownHostsFile $D/known
ProxyCommand bash -c 'exec 3<>/dev/tcp/%h/22 4<&0; cat <&4 >&3 & exec cat <&3'
END
         rlaunch --ssh-config $D/config -H a hostname",
        201,
        &["a: its host key has changed", "ssh-keygen -R '[a]:2222' -f "],
    ),
    // Directories, programs, and limits.
    test(
        "mpirun, Hydra: a relative --wdir is below the home directory of the host",
        "tests/netns/field/words.rs::a_relative_directory_is_below_the_launchers",
    ),
    test(
        "mpich#1872, apptainer#2754: links in the working directory are resolved",
        "tests/netns/field/words.rs::a_directory_is_known_by_the_path_that_the_user_went",
    ),
    test(
        "moby#42680: no rank starts where a container forbids clone3",
        "tests/netns/field/hosts.rs::ranks_start_where_recent_system_calls_are_forbidden",
    ),
    test(
        "ompi#4528: \"No such file\" about a program that is there",
        "tests/netns/field/hosts.rs::what_a_program_lacks_is_named_before_any_rank_starts",
    ),
    test(
        "ompi#12489: many ranks fail where few files may be open",
        "tests/netns/field/connections.rs::ranks_that_take_too_many_files_are_told_before_they_start",
    ),
    test(
        "nccl#290: no cause is named where /dev/shm is small",
        "launcher/plan/src/checks/limits.rs::shared_memory_that_is_small_or_full",
    ),
    test(
        "ompi#3798: a host's TMPDIR is too long for the names of sockets",
        "tests/netns/field/hosts.rs::files_stay_below_the_hosts_tmpdir_however_long_its_path_is",
    ),
    test(
        "a package that had brought another csh: agents do not start",
        "tests/netns/field/hosts.rs::bsd_csh_as_login_shell_starts_agents_that_are_there",
    ),
    test(
        "conda: a first line that is longer than the kernel reads lets sh run Python",
        "tests/netns/field/hosts.rs::no_shell_runs_what_another_interpreter_is_for",
    ),
    test(
        "mpirun: a login shell that prints into a file is waited for without a word",
        "tests/netns/field/hosts.rs::a_shell_whose_stdout_leads_to_a_file_is_not_a_connection_that_stalls",
    ),
    prints(
        "Dask, mpirun: a low soft limit of open files ends the launcher",
        "ulimit -S -n 20; rlaunch -H a hostname",
        "a\n",
    ),
    prints(
        "horovodrun: a path with a blank is two paths",
        "printf 'echo \"ran $1\"\\n' >\"$D/my script.sh\"
         rlaunch -H c --preload \"$D/my script.sh\" sh -c 'sh \"$RLAUNCH_PRELOAD_DIR/my script.sh\" x'",
        "ran x\n",
    ),
];

#[test]
fn what_was_reported_of_others_is_not_so_here() {
    let field = Field::new();
    field.warm("a,b,c,d", Account::Root);
    let (next, wrong) = (Mutex::new(TRIALS.iter()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let trial = next.lock().unwrap().next();
            let Some(trial) = trial else { return };
            if let Way::Line(line, expected) = &trial.way
                && let Err(seen) = compare(&field, line, expected)
            {
                wrong.lock().unwrap().push(format!("{}\n$ {line}\n{seen}", trial.reported));
            }
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} trials:\n{}", wrong.len(), wrong.join("\n"));
}

/// Runs the line; returns what it did if that is not as expected.
fn compare(field: &Field, line: &str, expected: &Expected) -> Result<(), String> {
    let directory = launch_directory();
    let beside = field.rlaunch.parent().unwrap().display();
    let mut command = field.lab.exec_in(Account::Root, Path::new("/"));
    command.args(["timeout", "60", "sh", "-c", line]).env_clear().stdin(Stdio::null());
    command.env("PATH", format!("{beside}:{PATH}")).env("LANG", "C.UTF-8");
    command.env("HOME", Account::Root.home()).env("USER", "root").env("LOGNAME", "root");
    let output = command.env("D", directory.path()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (code, stdout, stderr) = (output.status.code(), text(&output.stdout), text(&output.stderr));
    let is_said = match expected.says {
        [] => stderr.lines().all(is_about_a_wait),
        says => says.iter().all(|text| stderr.contains(text)),
    };
    if code == Some(expected.code) && stdout == expected.stdout && is_said {
        return Ok(());
    }
    let Expected { code: wanted, stdout: out, says } = expected;
    Err(format!("{code:?}, {stdout:?}\n{stderr}wanted: {wanted}, {out:?}, {says:?}\n"))
}

#[test]
fn tests_of_reports_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for Trial { reported, way } in TRIALS {
        let Way::Test(test) = way else { continue };
        let (file, name) = test.split_once("::").unwrap();
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        assert!(text.contains(&format!("fn {name}()")), "{reported}: no test {test}");
    }
}
