//! The hosts of a job, the ranks that they run, and what is printed about them.

use crate::running::Running;
use crate::support::{BOUND, Field, launch_directory};
use rlaunch_lab::Account;
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// Shell line that prints a rank's number, its local rank and its host.
const WHERE: &str = "echo $RANK $LOCAL_RANK $(hostname)";

/// Returns the number of GPUs that programs on the lab's hosts can use: those of this machine.
fn gpus(field: &Field) -> usize {
    let drivers = "/sys/bus/pci/drivers/nvidia /sys/bus/pci/drivers/amdgpu";
    let count = field.on("a", &format!("ls {drivers} 2>/dev/null | grep -c '^[0-9a-f]*:' || true"));
    count.trim().parse().unwrap()
}

#[test]
fn a_host_without_ranks_is_said_with_what_helps() {
    let field = Field::new();
    field.warm("a,b,c", Account::Root);
    let ran = field.rlaunch("-H a:8,b:8 -np 2 hostname").run();
    assert_eq!(ran.succeeded().out(), "a\na\n", "{ran}");
    let line = "placement: a 0-1 · b none — 1 of 2 hosts idle; --map-by node spreads";
    assert_eq!(ran.said(), [line], "{ran}");
    let ran = field.rlaunch("-H a:8,b:8 -np 2 --map-by node hostname").run();
    assert_eq!(ran.succeeded().sorted(), ["a", "b"], "{ran}");
    ran.says_nothing();

    let ran = field.rlaunch("-H a,b --oversubscribe -np 3 hostname").run();
    let line = "placement: a 0-1 · b 2 — more ranks than slots: a";
    assert_eq!(ran.succeeded().said(), [line], "{ran}");
}

#[test]
fn a_terminal_shows_first_contact_in_a_line_that_goes_and_later_jobs_without() {
    let field = Field::new();
    field.forget_agents(&["a"], Account::Root);
    let shown = || {
        let line = format!("{} -H a:2 --wdir / pwd", field.rlaunch.display());
        let mut command = field.lab.exec_in(Account::Root, Path::new("/"));
        command.args(["script", "-qefc", &line, "/dev/null"]).env("TERM", "xterm");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (keyboard, running) = Running::with_keyboard(&field, &mut command, BOUND);
        let ran = running.finish();
        drop(keyboard);
        ran.succeeded().out().into_owned()
    };
    let cold = shown();
    let (_, after) = cold.split_once("preparing 1 host… ").expect(&cold);
    // Spaces replace the line before anything else comes.
    let (line, after) = after.split_once('\r').expect(&cold);
    assert!(line.contains(" MiB each") && !line.contains('\n'), "{cold:?}");
    assert!(after.starts_with("     "), "{cold:?}");
    assert!(!shown().contains("preparing"), "{cold:?}");
}

#[test]
fn ranks_are_dealt_out_and_numbered_as_asked() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b --npernode 2").sh(WHERE).run();
    assert_eq!(ran.succeeded().sorted(), ["0 0 a", "1 1 a", "2 0 b", "3 1 b"], "{ran}");
    let ran = field.rlaunch("-H a,b --map-by ppr:2:node --rank-by node").sh(WHERE).run();
    assert_eq!(ran.succeeded().sorted(), ["0 0 a", "1 0 b", "2 1 a", "3 1 b"], "{ran}");
    let ran = field.rlaunch("-H a:2,b:2,c --exclude b,c --map-by numa").sh(WHERE).run();
    assert_eq!(ran.succeeded().sorted(), ["0 0 a", "1 1 a"], "{ran}");

    let refused = |words: &str, texts: &[&str]| {
        field.rlaunch(words).args(["true"]).run().refused(200, texts);
    };
    refused("-H a,b --exclude d", &["--exclude d is not among the hosts: a, b"]);
    refused("-H a,b:1 --ppn 2", &["b has 1: use b:2"]);
    refused("-H a,n[3-1]", &["in -H a,n[3-1]: `n[3-1]`: `3-1` runs backwards"]);
    let each = gpus(&field) + 1;
    let words = format!("-H a:{each} --map-by gpu");
    let ran = field.rlaunch(&words).args(["true"]).run();
    ran.refused(200, &[&format!("a: {each} ranks, {} GPUs", each - 1)]).hints("--oversubscribe");
}

#[test]
fn a_hostfile_names_hosts_and_their_slots() {
    let field = Field::new();
    let directory = launch_directory();
    let config = directory.path().join("config");
    fs::write(&config, "Host n01\nHostName a\nHost n02\nHostName b\n").unwrap();
    fs::write(directory.path().join("hosts"), "# racks\nn[01-02] slots=2\nc:1 # one\n").unwrap();
    let run = field.rlaunch("--hostfile hosts --ssh-config config").in_directory(directory.path());
    let ran = run.sh(WHERE).run();
    let expected = ["0 0 a", "1 1 a", "2 0 b", "3 1 b", "4 0 c"];
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    // -H selects from them.
    let run = field.rlaunch("--machinefile hosts -H c,n01:1 --ssh-config config");
    let ran = run.in_directory(directory.path()).sh(WHERE).run();
    assert_eq!(ran.succeeded().sorted(), ["0 0 c", "1 0 a"], "{ran}");

    let run = field.rlaunch("hostfile --hostfile hosts --exclude n02");
    let ran = run.in_directory(directory.path()).run();
    let expected = "# hosts of hosts\nn01 slots=2\nc slots=1\n";
    assert_eq!(ran.succeeded().out(), expected, "{ran}");
    fs::write(directory.path().join("hosts"), "a\n\nb sluts=2\n").unwrap();
    let ran = field.rlaunch("--hostfile hosts true").in_directory(directory.path()).run();
    ran.refused(200, &["hosts:3: `sluts=` is not known"]).hints("`a slots=4`");
}

#[test]
fn hosts_of_a_file_without_slots_run_a_rank_for_each_gpu() {
    let field = Field::new();
    let directory = launch_directory();
    field.warm("a,b", Account::Root);
    fs::write(directory.path().join("hosts"), "a\nb\n").unwrap();
    let run = |words: &str| {
        let run = field.rlaunch("--hostfile hosts").args(words.split_whitespace());
        run.in_directory(directory.path()).sh("echo $WORLD_SIZE $(hostname)").run()
    };
    let gpus = gpus(&field);
    let slots = gpus.max(1);
    let ran = run("");
    let line = |host| format!("{} {host}", slots * 2);
    let expected = [vec![line("a"); slots], vec![line("b"); slots]].concat();
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");
    match gpus {
        0 => ran.says(&["placement: a 0 · b 1 — 1 slot where there is no GPU: a, b\n"]),
        _ => ran.keeps_quiet_about(&["placement"]),
    };
    // A host that is not needed is released; `run` checks that nothing is left on it.
    let ran = run("-np 1 -v");
    assert_eq!(ran.succeeded().out(), "1 a\n", "{ran}");
    ran.says(&["placement: a 0 · b none — 1 of 2 hosts idle"]);
    let many = slots * 2 + 1;
    let ran = run(&format!("-np {many}"));
    ran.refused(200, &[&format!("{many} ranks need {many} slots; there are {} (a ", slots * 2)]);
    // An explicit number of ranks per host does not need GPUs.
    let ran = run("--npernode 2 -np 3");
    assert_eq!(ran.succeeded().sorted(), ["3 a", "3 a", "3 b"], "{ran}");
    ran.keeps_quiet_about(&["placement"]);
}

#[test]
fn hosts_that_were_allocated_are_found() {
    let field = Field::new();
    let directory = launch_directory();
    let nodes = directory.path().join("nodes");
    fs::write(&nodes, "b\nb\nc\n").unwrap();
    let nodes = nodes.to_str().unwrap();
    let slurm =
        [("SLURM_JOB_ID", "4711"), ("SLURM_JOB_NODELIST", "a,b"), ("SLURM_TASKS_PER_NODE", "2,1")];
    let pbs = [("PBS_NODEFILE", nodes)];
    let mpi_job = [("OMPI_MCA_orte_default_hostfile", nodes)];
    let run = |words: &str, settings: &[&[(&str, &str)]]| {
        let settings = settings.concat();
        settings.iter().fold(field.rlaunch(words), |run, (name, value)| run.env(name, value))
    };
    let ran = run("--launcher ssh", &[&slurm, &pbs]).sh(WHERE).run();
    assert_eq!(ran.succeeded().sorted(), ["0 0 a", "1 1 a", "2 0 b"], "{ran}");
    ran.says(&["hosts of Slurm's job 4711 (SLURM_JOB_NODELIST): a, b\n"]);
    let ran = run("", &[&pbs, &mpi_job]).sh(WHERE).run();
    assert_eq!(ran.succeeded().sorted(), ["0 0 b", "1 1 b", "2 0 c"], "{ran}");
    ran.says(&[&format!("hosts of {nodes} (PBS_NODEFILE): b, c\n")]);
    // Hosts on the command line count, and the allocation is not mentioned.
    let ran = run("-H c hostname", &[&slurm, &pbs]).run();
    assert_eq!(ran.succeeded().says_nothing().out(), "c\n", "{ran}");

    let listed = |settings: &[&[(&str, &str)]]| {
        let ran = run("hostfile", settings).run();
        ran.succeeded().out().into_owned()
    };
    let expected = "# hosts of Slurm's job 4711 (SLURM_JOB_NODELIST)\na slots=2\nb slots=1\n";
    assert_eq!(listed(&[&slurm, &pbs, &mpi_job]), expected);
    let expected = format!("# hosts of {nodes} (PBS_NODEFILE)\nb slots=2\nc slots=1\n");
    assert_eq!(listed(&[&pbs, &mpi_job]), expected);
    let lsf = [("LSB_MCPU_HOSTS", "a 2 b 1")];
    let expected = "# hosts of LSF's allocation (LSB_MCPU_HOSTS)\na slots=2\nb slots=1\n";
    assert_eq!(listed(&[&lsf, &mpi_job]), expected);
    let flux = [("FLUX_URI", "local:///run/flux/local")];
    run("true", &[&flux]).run().succeeded().says(&["$(flux hostlist local)"]);
    // A shell that has lost the list of Slurm's hosts.
    run("true", &[&slurm[..1]])
        .run()
        .succeeded()
        .says(&["hosts that Slurm has allocated", "squeue"]);
    let expected = format!("# hosts of {nodes} ({})\n", mpi_job[0].0);
    assert!(listed(&[&mpi_job]).starts_with(&expected));
    let expected = "# hosts of this machine: no others are named\nlocalhost slots=1\n";
    assert_eq!(listed(&[]), expected);
    let wrong = [("SLURM_TASKS_PER_NODE", "2(y2)")];
    let ran = run("true", &[&slurm[..2], &wrong]).run();
    ran.refused(200, &["SLURM_TASKS_PER_NODE is `2(y2)`"]).hints("SLURM_JOB_NODELIST");
}
