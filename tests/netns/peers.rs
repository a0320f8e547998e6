//! Claims of tests/README.md about other launchers, checked with those launchers, as Debian
//! packages them, on the lab's hosts.

use crate::support::{Field, launch_directory};
use rlaunch_lab::python;
use std::fs;
use std::path::Path;

const MPIRUN: &str = "mpirun.openmpi --allow-run-as-root";
const HYDRA: &str = "mpiexec.hydra -launcher ssh";

/// Returns the stdout and stderr of a shell line on the launch node. It runs in `/`, since Open MPI
/// and Hydra need the current directory on every host. A launcher that hangs, which happens rarely,
/// is run again.
fn run(field: &Field, line: &str) -> String {
    const ATTEMPTS: usize = 3;
    let quoted = line.replace('\'', "'\\''");
    let bounded = format!("timeout -k 1 40 sh -c '{quoted}' 2>&1; echo \" $?\"");
    for _ in 0..ATTEMPTS {
        let printed = field.shell(&bounded, Path::new("/"));
        let (text, code) = printed.trim_end().rsplit_once(' ').unwrap();
        // Exit codes of timeout(1): ended by SIGTERM, or by SIGKILL.
        if !["124", "137"].contains(&code) {
            return text.to_owned();
        }
        for host in ["a", "b"] {
            field.on(host, "pkill -9 'orted|hydra' || true");
        }
    }
    panic!("{line}: hangs each time");
}

/// Returns the lines that a shell line prints, sorted, without a warning of Open MPI: rarely, it
/// moves an ssh process to a process group only after that process has done so itself.
fn sorted(field: &Field, line: &str) -> Vec<String> {
    let text = run(field, line);
    let words = text.lines().filter(|line| !line.contains("plm:rsh: Warning: setpgid("));
    let mut lines: Vec<String> = words.map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn hosts_are_named_by_options_and_files() {
    let field = Field::new();
    let project = launch_directory();
    let file = |name: &str, text: &str| {
        let path = project.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (of_mpirun, of_hydra) = (file("m", "a slots=1\nb slots=1\n"), file("h", "a:1\nb:1\n"));
    for line in [
        format!("{MPIRUN} -H a,b -np 2 hostname"),
        format!("{MPIRUN} --hostfile {of_mpirun} -np 2 hostname"),
        format!("{HYDRA} -hosts a,b -n 2 hostname"),
        format!("{HYDRA} -f {of_hydra} -n 2 hostname"),
        // As mpi-operator does.
        format!("OMPI_MCA_orte_default_hostfile={of_mpirun} {MPIRUN} -np 2 hostname"),
        format!("HYDRA_HOST_FILE={of_hydra} {HYDRA} -n 2 hostname"),
    ] {
        assert_eq!(sorted(&field, &line), ["a", "b"], "{line}");
    }
    let range = run(&field, &format!("{MPIRUN} -H 'a[1-2]' -np 2 hostname"));
    assert!(range.contains("illegal character"), "{range}");
}

#[test]
fn hosts_are_found_of_allocations() {
    let field = Field::new();
    let slurm = "SLURM_JOBID=1 SLURM_JOB_ID=1 SLURM_NODELIST=a,b SLURM_JOB_NODELIST=a,b \
                 SLURM_TASKS_PER_NODE='1(x2)' SLURM_NNODES=2";
    let line = format!("{slurm} {MPIRUN} --mca plm rsh -np 2 hostname");
    assert_eq!(sorted(&field, &line), ["a", "b"]);
    let known = run(&field, "ompi_info");
    for name in ["ras: slurm", "ras: gridengine"] {
        assert!(known.contains(name), "{known}");
    }
    let project = launch_directory();
    let nodes = project.path().join("nodes");
    fs::write(&nodes, "a\nb\n").unwrap();
    let pbs = format!("PBS_JOBID=1 PBS_ENVIRONMENT=PBS_BATCH PBS_NODEFILE={}", nodes.display());
    assert_eq!(sorted(&field, &format!("{pbs} {HYDRA} -n 2 hostname")), ["a", "b"]);
    let known = run(&field, "mpiexec.hydra -help");
    assert!(known.contains("(user slurm ll lsf sge pbs cobalt)"), "{known}");
}

#[test]
fn who_runs_where_is_said_on_request() {
    let field = Field::new();
    let map = run(&field, &format!("{MPIRUN} --display-map -H a,b -np 2 true"));
    assert!(map.contains("Data for node: b\tNum slots: 1"), "{map}");
    // Without printing its rank.
    let all = run(&field, &format!("{HYDRA} -verbose -hosts a,b -n 2 true"));
    assert!(all.contains("proxy: b (1 cores)"), "{all}");
    // No process is started.
    let dry = run(&field, &format!("{MPIRUN} --do-not-launch --display-map -H a,b -np 2 echo ran"));
    assert!(dry.contains("Data for node: b") && !dry.lines().any(|line| line == "ran"), "{dry}");
    let options = run(&field, "mpiexec.hydra -help");
    assert!(!options.contains("dry") && !options.contains("do-not-launch"), "{options}");
}

#[test]
fn several_programs_and_settings_from_files() {
    let field = Field::new();
    for line in [
        format!("{MPIRUN} -H a,b -np 1 echo x : -np 1 echo y"),
        format!("{HYDRA} -hosts a,b -n 1 echo x : -n 1 echo y"),
    ] {
        assert_eq!(sorted(&field, &line), ["x", "y"], "{line}");
    }
    let project = launch_directory();
    let (words, parameters) = (project.path().join("words"), project.path().join("parameters"));
    fs::write(&words, "-n 1 echo of a file\n").unwrap();
    let line = format!("{HYDRA} -hosts a -configfile {}", words.display());
    assert_eq!(sorted(&field, &line), ["of a file"]);
    fs::write(&parameters, "orte_tag_output = 1\n").unwrap();
    let file = format!("OMPI_MCA_mca_base_param_files={}", parameters.display());
    let line = format!("{file} {MPIRUN} -H a -np 1 echo x");
    let printed = run(&field, &line);
    assert!(printed.ends_with("[1,0]<stdout>:x\n"), "{printed}");
}

/// Program of both ranks, which prints a line in two halves.
const HALVES: &str = "sh -c 'printf half; sleep 2; echo whole'";

#[test]
fn tags_run_together_and_files_are_for_each_rank() {
    let field = Field::new();
    let tagged = run(&field, &format!("{MPIRUN} --tag-output -H a,b -np 2 {HALVES}"));
    assert!(tagged.contains(">:half[1,"), "{tagged}");
    let tagged = run(&field, &format!("{HYDRA} -prepend-rank -hosts a,b -n 2 {HALVES}"));
    assert!(tagged.contains("] half["), "{tagged}");
    // Open MPI's files are on the hosts, Hydra's are on the launch node.
    let _files = field.scratch(&["a", "b"], "/tmp/of-ranks");
    run(&field, &format!("{MPIRUN} --output-filename /tmp/of-ranks -H a,b -np 2 hostname"));
    for host in ["a", "b"] {
        assert_eq!(field.on(host, "cat $(find /tmp/of-ranks -name stdout)"), format!("{host}\n"));
    }
    let project = launch_directory();
    let pattern = project.path().join("%r");
    let line = format!("{HYDRA} -outfile-pattern {} -hosts a,b -n 2 hostname", pattern.display());
    run(&field, &line);
    for (rank, host) in ["a", "b"].into_iter().enumerate() {
        let file = project.path().join(rank.to_string());
        assert_eq!(fs::read_to_string(file).unwrap(), format!("{host}\n"));
    }
}

#[test]
fn nobody_but_torchrun_begins_again() {
    let field = Field::new();
    for options in [run(&field, &format!("{MPIRUN} --help")), run(&field, "mpiexec.hydra -help")] {
        assert!(options.contains("-n") && !options.contains("restart"), "{options}");
    }
}

/// Program for torchrun: both ranks print a line in halves, and rank 1 fails the first time.
const PROGRAM: &str = "
import os, sys, time
print('half', end='', flush=True); time.sleep(2); print(' whole', flush=True)
sys.exit(os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')
";

#[test]
fn torch_tags_writes_files_and_begins_again() {
    let field = Field::new();
    let _program = field.files(&["a"], "/tmp/torchrun/program.py", PROGRAM, 0o644);
    let _logs = field.scratch(&["a"], "/tmp/torchrun-logs");
    let printed = field.on(
        "a",
        &format!(
            "{} -m torch.distributed.run --nnodes 1 --nproc-per-node 2 --max-restarts 1 --tee 1 \
             --log-dir /tmp/torchrun-logs /tmp/torchrun/program.py 2>&1",
            python::PROGRAM
        ),
    );
    assert!(printed.contains("]:half["), "{printed}");
    let logs = field.on("a", "find /tmp/torchrun-logs -name stdout.log | sort");
    let ends = ["attempt_0/0", "attempt_0/1", "attempt_1/0", "attempt_1/1"];
    let logs: Vec<&str> = logs.lines().collect();
    assert_eq!(logs.len(), ends.len(), "{logs:?}");
    assert!(ends.iter().zip(&logs).all(|(end, log)| log.contains(end)), "{logs:?}");
    // torchrun takes one script, and has no option for a dry run.
    let options = field.on("a", &format!("{} -m torch.distributed.run --help", python::PROGRAM));
    assert!(options.contains("training_script") && !options.contains("dry"), "{options}");
}
