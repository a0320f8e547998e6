//! Variables that a rank has in its environment, and variables that it must not have.

use crate::support::{Field, PATH, Run, Undo};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rlaunch_lab::Account;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

type Variables = HashMap<String, String>;

/// Runs the program `env` and returns the environments of ranks 0, 1, ….
fn environments(run: Run<'_>, ranks: usize) -> Vec<Variables> {
    let ran = run.args(["env"]).run();
    ran.succeeded();
    let mut found = vec![Variables::new(); ranks];
    for line in ran.out().lines() {
        let (tag, line) = line.strip_prefix('[').unwrap().split_once("] ").unwrap();
        let rank: usize = tag.split_once(',').unwrap().0.parse().unwrap();
        let (name, value) = line.split_once('=').unwrap();
        found[rank].insert(name.into(), value.into());
    }
    found
}

fn assert_has(variables: &Variables, expected: &[(&str, &str)]) {
    for &(name, value) in expected {
        assert_eq!(variables.get(name).map(String::as_str), Some(value), "{name}: {variables:#?}");
    }
}

#[test]
fn every_rank_knows_its_place() {
    let field = Field::new();
    let found = environments(field.rlaunch("--tag-output -H a:2,b -np 3"), 3);
    let home = Account::Root.home();
    // Rank, local rank, number of ranks on the node, node, host.
    let places = [("0", "0", "2", "0", "a"), ("1", "1", "2", "0", "a"), ("2", "0", "1", "1", "b")];
    for (variables, (rank, local, there, node, host)) in found.iter().zip(places) {
        let expected = [
            ("RANK", rank),
            ("WORLD_SIZE", "3"),
            ("LOCAL_RANK", local),
            ("LOCAL_WORLD_SIZE", there),
            ("GROUP_RANK", node),
            ("NODE_RANK", node),
            ("OMPI_COMM_WORLD_RANK", rank),
            ("OMPI_COMM_WORLD_SIZE", "3"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", local),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", there),
            ("OMPI_COMM_WORLD_NODE_RANK", local),
            ("OMPI_UNIVERSE_SIZE", "3"),
            ("PMI_RANK", rank),
            ("PMI_SIZE", "3"),
            ("MPI_LOCALRANKID", local),
            ("MPI_LOCALNRANKS", there),
            ("ROLE_RANK", rank),
            ("ROLE_WORLD_SIZE", "3"),
            ("ROLE_NAME", "default"),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
            ("TORCHELASTIC_MAX_RESTARTS", "0"),
            ("RLAUNCH_HOST", host),
            ("RLAUNCH_NODES", "2"),
            ("PYTHONUNBUFFERED", "1"),
            ("HOME", home.to_str().unwrap()),
            ("USER", "root"),
        ];
        assert_has(variables, &expected);
        let id = &variables["RLAUNCH_JOB_ID"];
        assert_eq!(&variables["TORCHELASTIC_RUN_ID"], id);
        let error_file = &variables["TORCHELASTIC_ERROR_FILE"];
        assert!(error_file.ends_with(&format!("/error-{rank}.json")), "{error_file}");
        assert!(id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit()), "{id}");
    }
    for name in ["MASTER_ADDR", "MASTER_PORT", "RLAUNCH_JOB_ID"] {
        assert!(found.iter().all(|variables| variables[name] == found[0][name]), "{name}");
    }
    let address = field.lab.address("a").unwrap();
    assert_eq!(found[0]["MASTER_ADDR"], address.to_string());
    let uri = format!("1.0;tcp://{address}:0");
    assert!(found.iter().all(|variables| variables["OMPI_MCA_orte_hnp_uri"] == uri), "{uri}");
    let port: u16 = found[0]["MASTER_PORT"].parse().unwrap();
    assert!((21000..=21511).contains(&port), "{port}");
}

#[test]
fn ports_come_from_the_range_and_taken_ones_are_left_alone() {
    let field = Field::new();
    // Rank 0's host needs three ports: MASTER_PORT, one for Horovod's store, and one on which other
    // agents reach its own.
    let run = || field.rlaunch("--tag-output --port-range 23000-23002 -H a,b");
    let first = environments(run(), 2);
    let port = |name: &str| first[0][name].parse::<u16>().unwrap();
    let ports = [port("MASTER_PORT"), port("HOROVOD_GLOO_RENDEZVOUS_PORT")];
    assert!(ports.iter().all(|port| (23000..=23002).contains(port)), "{ports:?}");
    assert_ne!(ports[0], ports[1]);
    // A program on a listens on one of the three. A job that needs two gets the others, whichever
    // it tries first.
    let _listener = listener(&field, "a", 23000);
    for _ in 0..4 {
        let run =
            field.rlaunch("--port-range 23000-23002 --no-horovod -H a,b printenv MASTER_PORT");
        let ran = run.spawn().finish_first();
        let out = ran.succeeded().out();
        assert!(["23001\n23001\n", "23002\n23002\n"].contains(&&*out), "{ran}");
    }
    let ran = field.rlaunch("--port-range 23000-23000 -H a,b true").spawn().finish_first();
    ran.refused(204, &["23000-23000", "on a"]).hints("--port-range");
}

/// Starts a program on `host` that listens on `port` until the guard is dropped.
fn listener<'a>(field: &'a Field, host: &'a str, port: u16) -> impl Drop + 'a {
    let listen =
        format!("import socket, time; s = socket.create_server((\"\", {port})); time.sleep(1000)");
    let mut python = field.lab.on(host, Account::Root).unwrap();
    let mut python = python.args(["python3", "-c", &listen]).spawn().unwrap();
    // A socket in state 0A listens; /proc writes ports in hexadecimal.
    let listens = format!("grep -q ':{port:04X} .* 0A ' /proc/net/tcp && echo yes || :");
    field.wait_for("the listener", || field.on(host, &listens) == "yes\n");
    Undo(move || {
        for process in field.ranks().iter().filter(|process| process.args[0] == "python3") {
            nix::sys::signal::kill(Pid::from_raw(process.pid), Signal::SIGKILL)?;
        }
        python.wait().map(drop)
    })
}

/// Ray's workers on other hosts have their sockets in the TMPDIR of its head.
#[test]
fn the_directory_of_a_job_has_one_short_name_on_all_hosts() {
    let field = Field::new();
    let script = "stat -c '%a %U' $TMPDIR; basename $TMPDIR; ls -A $TMPDIR";
    let ran = field.rlaunch("-H a,b,c --no-tag").sh(script).run();
    let lines = ran.succeeded().sorted();
    let names: Vec<&String> = lines.iter().filter(|line| line.starts_with("rlaunch-")).collect();
    assert_eq!(names.len(), 3, "{ran}");
    assert!(names[0].len() <= 24 && names.iter().all(|name| *name == names[0]), "{ran}");
    assert_eq!(lines.iter().filter(|line| *line == "700 root").count(), 3, "{ran}");
    assert_eq!(lines.iter().filter(|line| *line == ".rlaunch").count(), 3, "{ran}");
    let again = field.rlaunch("-H a").sh("basename $TMPDIR").run();
    assert_ne!(again.succeeded().out().trim(), names[0]);
    assert!(field.job_directories().is_empty());
}

#[test]
fn other_launches_and_other_machines_stay_out() {
    let field = Field::new();
    let foreign = [
        ("PMI_RANK", "9"),
        ("PMI_FD", "5"),
        ("PMIX_NAMESPACE", "x"),
        ("SLURM_PROCID", "4"),
        ("SLURM_JOB_ID", "77"),
        ("OMPI_MCA_orte_hnp_uri", "1234"),
        ("OMPI_COMM_WORLD_RANK", "9"),
        ("HYDRA_HOST_FILE", "x"),
        ("RANK", "99"),
        ("WORLD_SIZE", "99"),
        ("MASTER_ADDR", "203.0.113.9"),
        ("XDG_RUNTIME_DIR", "/run/user/4242"),
        ("SSH_AUTH_SOCK", "/nonexistent"),
        ("PWD", "/nonexistent"),
        ("TMPDIR", "/nonexistent"),
        ("USER", "somebody"),
        ("LOGNAME", "somebody"),
        ("MPLBACKEND", "module://matplotlib_inline.backend_inline"),
        ("JPY_PARENT_PID", "4242"),
        ("FORCE_COLOR", "1"),
        ("VSCODE_IPC_HOOK_CLI", "/nonexistent"),
        ("GIT_ASKPASS", "/nonexistent"),
        ("PBS_JOBID", "77"),
        ("FLUX_JOB_ID", "77"),
    ];
    let mut run = field.rlaunch("--mpi none --tag-output -H a,b");
    for (name, value) in foreign {
        run = run.env(name, value);
    }
    let run = run.env("NCCL_DEBUG", "a b'c\"$d").env("OMPI_MCA_btl", "tcp");
    for (rank, variables) in environments(run, 2).iter().enumerate() {
        for (name, value) in foreign {
            assert_ne!(variables.get(name).map(String::as_str), Some(value), "{name}");
        }
        for prefix in ["PMI_", "PMIX_", "SLURM_", "HYDRA_", "JPY_", "VSCODE_", "PBS_", "FLUX_"] {
            assert!(!variables.keys().any(|name| name.starts_with(prefix)), "{variables:#?}");
        }
        assert_has(variables, &[("RANK", &rank.to_string()), ("USER", "root")]);
        assert_has(variables, &[("NCCL_DEBUG", "a b'c\"$d"), ("OMPI_MCA_btl", "tcp")]);
    }
}

#[test]
fn gpus_that_this_shell_hides_are_said() {
    let field = Field::new();
    let run = |words: &str| {
        let run = field.rlaunch(words).env("CUDA_VISIBLE_DEVICES", "0,1");
        run.sh("echo ${CUDA_VISIBLE_DEVICES-none}").run()
    };
    let line = "CUDA_VISIBLE_DEVICES=0,1 of this shell holds on all hosts";
    let ran = run("-H a,b");
    assert_eq!(ran.succeeded().out(), "0,1\n0,1\n", "{ran}");
    ran.says(&[line]);
    for words in ["-H a,b -x CUDA_VISIBLE_DEVICES", "-H a --no-env"] {
        run(words).succeeded().keeps_quiet_about(&["of this shell"]);
    }
}

#[test]
fn home_is_the_hosts() {
    let field = Field::new();
    let run = field.rlaunch("--tag-output -H root@a").account(Account::User);
    let root = Account::Root.home();
    let expected = [("HOME", root.to_str().unwrap()), ("USER", "root"), ("LOGNAME", "root")];
    assert_has(&environments(run, 1)[0], &expected);
}

#[test]
fn asking_for_a_variable_wins() {
    let field = Field::new();
    let run = field.rlaunch("--tag-output -H a,b -x GIVEN=here -x TAKEN -x HOME=/tmp -x EMPTY=");
    let run = run.args(["-x", "ODD=a=b c", "-x", "MASTER_PORT=4000"]);
    let run = run.env("TAKEN", "from there").env("PYTHONUNBUFFERED", "0").env("GIVEN", "there");
    for variables in environments(run, 2) {
        let expected = [
            ("GIVEN", "here"),
            ("TAKEN", "from there"),
            ("HOME", "/tmp"),
            ("EMPTY", ""),
            ("ODD", "a=b c"),
            ("MASTER_PORT", "4000"),
            ("PYTHONUNBUFFERED", "0"),
        ];
        assert_has(&variables, &expected);
    }
}

#[test]
fn search_paths_meet() {
    let field = Field::new();
    let bashrc = Account::Root.home().join(".bashrc");
    let text = "export PATH=/host/bin:$PATH PYTHONPATH=/host/python\n";
    let _bashrc = field.files(&["a"], bashrc.to_str().unwrap(), text, 0o644);
    let own = format!("/launcher/bin:{PATH}");
    let run = field.rlaunch("--tag-output -H a");
    let run = run.env("PATH", &own).env("PYTHONPATH", "/launcher/python");
    let variables = &environments(run, 1)[0];
    let path = &variables["PATH"];
    // First the launcher's entries, then other entries of the host, without duplicates.
    assert!(path.starts_with(&own), "{path}");
    assert!(path.split(':').any(|entry| entry == "/host/bin"), "{path}");
    let mut entries: Vec<&str> = path.split(':').collect();
    entries.sort_unstable();
    entries.dedup();
    assert_eq!(entries.len(), path.split(':').count(), "{path}");
    let lib = &variables["RLAUNCH_LIB"];
    assert_eq!(variables["PYTHONPATH"], format!("/host/python:/launcher/python:{lib}/python"));
    assert_eq!(&variables["LD_LIBRARY_PATH"], lib);
}

#[test]
fn secrets_are_on_no_command_line_and_in_no_log() {
    let field = Field::new();
    let secret = "hf_9f6b2c1d8e7a";
    field.forget_agents(&["b"], Account::Root);
    let run = field.rlaunch("-vv -H a,b -x HF_TOKEN").env("HF_TOKEN", secret);
    let run = run.env("WANDB_API_KEY", secret);
    let mut running = run.sh("echo ${#HF_TOKEN} ${#WANDB_API_KEY}; exec sleep 1000").spawn();
    running.wait_for_lines(2);
    let sleepers = || field.ranks().iter().filter(|rank| rank.args == ["sleep", "1000"]).count();
    field.wait_for("both ranks to sleep", || sleepers() == 2);
    let mut seen = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let program = line.split('\0').next().unwrap();
        let is_of_job = line == "sleep\x001000\0" || line.contains("\0HF_TOKEN\0");
        seen += usize::from(is_of_job || program.ends_with("rlaunch-worker"));
        assert!(!line.contains(secret), "{line}");
    }
    // Two ranks, two agents with their guardians, and rlaunch itself were checked.
    assert!(seen >= 7, "{seen}");
    running.signal(Signal::SIGTERM);
    let ran = running.finish();
    let length = secret.len();
    assert_eq!(ran.ended_with(143).out(), format!("{length} {length}\n").repeat(2));
    ran.says(&["DEBUG"]).keeps_quiet_about(&[secret]);
}

#[test]
fn preloaded_files_are_where_the_environment_says() {
    let field = Field::new();
    let directory = crate::support::launch_directory();
    fs::write(directory.path().join("data.txt"), "the data\n").unwrap();
    let run = field.rlaunch("-H a,b --preload data.txt").in_directory(directory.path());
    let ran = run.sh("cat $RLAUNCH_PRELOAD_DIR/data.txt; echo $RLAUNCH_PRELOAD_DIR").run();
    let lines = ran.succeeded().sorted();
    assert_eq!(lines[2..], ["the data", "the data"], "{ran}");
    for (host, line) in ["a", "b"].iter().zip(&lines) {
        let outside = field.lab.path(host, Path::new(line)).unwrap();
        assert!(!outside.exists(), "{line} is left on {host}");
    }
}
