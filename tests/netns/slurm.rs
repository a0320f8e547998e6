//! Jobs inside allocations of a real Slurm, whose agents start by srun and not by SSH.

use crate::running::{Outcome, Running};
use crate::support::{BOUND, Field, PATH};
use rlaunch_lab::{Account, Process, Slurm};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Nodes of the cluster. Their sshds are off.
const NODES: [&str; 4] = ["a", "b", "c", "d"];
/// Rank that says that it runs, and dies of SIGTERM.
const RANK: &str = "echo up; exec sleep 1000";
/// Words of a rank that stands for itself: its number, its node, its step and whether it is in the job's cgroup.
const WHERE: &str = concat!(
    r#"echo "$RANK:$SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURMD_NODENAME $SLURM_STEP_ID $SLURM_JOB_ID "#,
    r#"$SLURM_SUBMIT_DIR $(grep -c "job_$SLURM_JOB_ID/step_$SLURM_STEP_ID" /proc/self/cgroup)""#
);

/// Program of [`SITES`], on each node as `/tmp/a.out`.
const PROGRAM: &str = r#"#!/bin/sh
echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, threads $OMP_NUM_THREADS, cpus $(nproc), fork $OMPI_MCA_mpi_warn_on_fork"
"#;
/// Job scripts in the forms that the pages of sites give, with rlaunch in place of mpirun, and a line of each rank: of UC
/// Berkeley's Savio (brc-draft-documentation, 3-mpi.sh), UiT's Stallo (hpc-doc, slurm-MPI-OMP.sh), Oxford's ARC
/// (arc-software-guide, arc_r_mpi.rst), NCSA's Delta and ORNL's CADES (RBigData's mpi_balance).
const SITES: [(&str, &str, &[&str]); 5] = [
    (
        "savio",
        "#!/bin/bash
#SBATCH --job-name=test
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=1
#SBATCH --time=00:01:00
rlaunch ./a.out",
        &["rank 0 of 4, local 0", "rank 1 of 4", "rank 2 of 4", "rank 3 of 4", "threads 1, cpus 1"],
    ),
    (
        "stallo",
        "#!/bin/bash -l
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --time=0-00:05:00
#SBATCH --mem-per-cpu=100MB
#SBATCH --mail-type=ALL
export PATH=/tmp/dist:$PATH
SCRATCH_DIRECTORY=/tmp/work-${SLURM_JOBID}
mkdir -p ${SCRATCH_DIRECTORY}
cd ${SCRATCH_DIRECTORY}
cp ${SLURM_SUBMIT_DIR}/a.out my_binary.x
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK}
time rlaunch ./my_binary.x > my_output
cat my_output
cd ${SLURM_SUBMIT_DIR}
rm -rf ${SCRATCH_DIRECTORY}",
        &["rank 0 of 1, local 0, threads 2, cpus 2"],
    ),
    (
        "arc",
        "#! /bin/bash
#SBATCH --job-name=mpi-test
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=00:10:00
rlaunch -np 1 ./a.out",
        &["rank 0 of 1, local 0"],
    ),
    (
        "delta",
        "#!/bin/bash
#SBATCH --job-name bal
#SBATCH --nodes=2
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time 00:01:00
export OMPI_MCA_mpi_warn_on_fork=0
rlaunch --map-by ppr:2:node ./a.out",
        &["rank 0 of 4, local 0", "rank 1 of 4", "rank 2 of 4", "rank 3 of 4", "fork 0"],
    ),
    (
        "cades",
        "#!/bin/bash
#SBATCH -J hello_balance
#SBATCH -N 2
#SBATCH --ntasks-per-node 2
#SBATCH --mem=200M
#SBATCH -t 00:01:00
export OMPI_MCA_mpi_warn_on_fork=0
rlaunch --mca btl tcp,self ./a.out",
        &["rank 0 of 4, local 0", "rank 1 of 4", "rank 2 of 4", "rank 3 of 4", "fork 0"],
    ),
];

/// Slurm on the first hosts of a lab.
struct Cluster<'f> {
    field: &'f Field,
    slurm: Slurm<'f>,
}

impl<'f> Cluster<'f> {
    fn new(field: &'f Field) -> Cluster<'f> {
        let slurm = Slurm::start(&field.lab, &NODES).unwrap();
        for node in NODES {
            field.lab.sshd(node).unwrap().stop().unwrap();
        }
        Cluster { field, slurm }
    }

    /// Makes a command of Slurm on the launch node.
    fn command(&self, account: Account, words: &str) -> Command {
        let mut command = self.slurm.command(account);
        command.env_clear().args(words.split_whitespace());
        command.env("SLURM_CONF", self.slurm.conf()).env("PATH", PATH).env("LANG", "C.UTF-8");
        command.env("HOME", account.home()).env("USER", account.name());
        command.env("R", &self.field.rlaunch).stdin(Stdio::null());
        command
    }

    /// Starts a shell script in an allocation, where $R is rlaunch.
    fn salloc(&self, options: &str, script: &str) -> Running<'f> {
        let mut command = self.command(Account::User, &format!("salloc -Q {options} sh -c"));
        command.arg(script).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(self.field, &mut command, BOUND)
    }

    fn run(&self, options: &str, script: &str) -> Outcome {
        let outcome = self.salloc(options, script).finish_first();
        self.assert_idle(&outcome);
        outcome
    }

    /// Runs a command of Slurm as its administrator, and returns what it prints.
    fn control(&self, words: &str) -> String {
        let output = self.command(Account::Root, words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        assert!(output.status.success(), "{words}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Returns the number of the only job.
    fn job(&self) -> String {
        self.control("squeue -h -o %i")
    }

    /// Cancels the only job, and returns how its rlaunch ended once nothing is left of it.
    fn cancel(&self, running: Running<'_>) -> Outcome {
        self.control(&format!("scancel {}", self.job()));
        let ended = running.finish_first();
        self.assert_idle(&ended);
        ended
    }

    /// Lists what runs on nodes beside Slurm itself.
    fn started(&self) -> Vec<Process> {
        let mut processes = self.field.started();
        processes.retain(|process| {
            let program = process.args[0].rsplit('/').next().unwrap_or_default();
            !program.starts_with("slurm")
                && program != "munged"
                && process.args.last().unwrap() != "100000000"
        });
        processes
    }

    /// Asserts that soon nothing of a job is left on any node.
    fn assert_idle(&self, outcome: &Outcome) {
        self.field.wait_for(&format!("the nodes to be idle after {outcome}"), || {
            self.started().is_empty()
        });
    }

    /// Copies rlaunch to /tmp/dist on nodes, until the guard is dropped.
    fn install(&self, nodes: &[&str]) -> impl Drop + use<> {
        for node in nodes {
            let mut copy = self.field.lab.on(node, Account::Root).unwrap();
            let from = self.field.rlaunch.parent().unwrap();
            let mut pack = Command::new("tar")
                .arg("-C")
                .arg(from)
                .args(["-c", "."])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            copy.args(["sh", "-c", "mkdir -m 755 /tmp/dist && exec tar -C /tmp/dist -x"]);
            assert!(copy.stdin(pack.stdout.take().unwrap()).status().unwrap().success());
            assert!(pack.wait().unwrap().success());
        }
        self.field.scratch(nodes, "/tmp/dist")
    }

    fn wait_for_ranks(&self, count: usize) {
        self.field.wait_for("the ranks", || {
            self.started().iter().filter(|process| process.args[0] == "sleep").count() == count
        });
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        let stopped = self.slurm.stop();
        let started =
            NODES.into_iter().try_for_each(|node| self.field.lab.sshd(node)?.restart(&[]));
        assert!(std::thread::panicking() || stopped.and(started).is_ok());
    }
}

#[test]
fn agents_start_by_one_step_for_all_nodes() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    let ran = cluster.run("-N3 --ntasks-per-node=2", &format!("$R sh -c '{WHERE}' 2>&1"));
    ran.succeeded();
    let job = ran
        .out()
        .lines()
        .find_map(|line| Some(line.split_once("Slurm's job ")?.1.to_owned()))
        .unwrap();
    let job = job.split(' ').next().unwrap();
    for (rank, node) in [(0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, "c"), (5, "c")] {
        let line = format!("{rank}:{rank}/6 {} {node} 0 {job} /tmp ", rank % 2);
        assert!(ran.out().contains(&line), "{line}: {ran}");
    }
    // Warm: the agents are in the nodes' caches. What a rank prints and reads goes as it does by SSH, and its code is rlaunch's.
    let echo =
        "head -c 20000000 /dev/zero | $R -q --stdin 1 sh -c 'cat | wc -c; exit $((3 * RANK))'";
    let ran = cluster.run("-N2", echo);
    ran.ended_with(3);
    assert!(ran.out().lines().any(|line| line.ends_with("20000000")), "{ran}");
    // What would change a step is kept from it.
    let spoiled = "SLURM_KILL_BAD_EXIT=1 SRUN_CPUS_PER_TASK=1 SLURM_EXACT=1 SLURM_HOSTFILE=/nowhere SLURM_LABELIO=1";
    let ran = cluster.run(
        "-N2 --exclusive -w a,b",
        &format!("{spoiled} $R -q -H b:1,a:1 sh -c 'hostname; nproc'"),
    );
    ran.succeeded();
    assert_eq!(ran.out().split_whitespace().filter(|word| *word == "2").count(), 2, "{ran}");
    let ran = cluster.run(
        "-N2",
        "$R -q -x 'SLURM_*' -np 1 sh -c 'echo $SLURM_NODE_ALIASES$SLURM_TASKS_PER_NODE'",
    );
    ran.succeeded();
    assert!(ran.out().contains("1(x2)"), "{ran}");
}

/// The daemon of a node hangs, so that no agent of the step has started.
#[test]
fn scancel_while_agents_start() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    let go = cluster.slurm.conf().with_file_name("go");
    let waits =
        format!("echo begun; until [ -e {} ]; do sleep 0.1; done; exec $R true", go.display());
    let mut running = cluster.salloc("-N2 -w a,b", &waits);
    running.wait_for_text("begun", 1);
    field.on("b", "kill -STOP $(cat /tmp/slurm-*/slurmd.pid)");
    std::fs::write(go, "").unwrap();
    let job = cluster.job();
    field.wait_for("the step", || cluster.control("squeue -h -s -o %j").contains("rlaunch"));
    cluster.control(&format!("scancel {job}"));
    field.on("b", "kill -CONT $(cat /tmp/slurm-*/slurmd.pid)");
    let ended = running.finish_first();
    cluster.assert_idle(&ended);
    ended.says(&["srun of Slurm's job"]);
}

/// All agents have called, and one waits for the login shell of its node.
#[test]
fn scancel_while_agents_prepare() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    let profile = Account::User.home().join(".bash_profile");
    let _hangs = field.files(&["b"], profile.to_str().unwrap(), "sleep 1000\n", 0o644);
    let mut running = cluster.salloc("-N2 -w a,b", "exec $R --login true");
    running.wait_for_stderr(" s for: b (preparing)", 1);
    let state = format!("Slurm's job {} is ", cluster.job());
    let ended = cluster.cancel(running);
    // Which comes first, srun's words or its agents' ends, is chance.
    assert!([&*state, "CANCELLED AT"].iter().any(|said| ended.err().contains(said)), "{ended}");
}

#[test]
fn scancel_while_ranks_run() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    for (rank, is_stubborn) in
        [(RANK, false), ("trap '' TERM; echo up; sleep 1000; sleep 1000", true)]
    {
        let mut running = cluster.salloc("-N2", &format!("$R sh -c \"{rank}\""));
        running.wait_for_text("up", 2);
        let ended = cluster.cancel(running);
        ended.says(&["Slurm ends the job: STEP ", "CANCELLED AT"]);
        assert!(is_stubborn || !ended.err().contains("SIGKILL"), "{ended}");
    }
}

/// A rank has failed, and another takes its time: the failure stays the reason.
#[test]
fn scancel_while_ranks_end() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    let rank = "trap 'echo ending' TERM; echo up; [ \\$RANK = 1 ] || { sleep 1; exit 3; }; while :; do sleep 1; done";
    let mut running =
        cluster.salloc("-N2 -w a,b", &format!("exec $R --kill-after 1000 sh -c \"{rank}\""));
    running.wait_for_text("ending", 1);
    cluster.cancel(running).says(&["rank 0 on a (pid ", "exited with code 3"]);
}

#[test]
fn signals_and_suspension_reach_the_ranks() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    let rank = "trap 'echo first' USR1; trap 'echo second' USR2; trap 'exit 0' INT; echo up; while :; do sleep 0.1; done";
    let mut running = cluster.salloc("-N2", &format!("exec $R --node-timeout 4 sh -c \"{rank}\""));
    running.wait_for_text("up", 2);
    let job = cluster.job();
    for (signal, word) in [("USR1", "first"), ("USR2", "second")] {
        cluster.control(&format!("scancel -s {signal} {job}"));
        running.wait_for_text(word, 2);
    }
    cluster.control(&format!("scontrol suspend {job}"));
    running.wait_for_stderr(&format!("Slurm's job {job} is suspended"), 1);
    cluster.control(&format!("scontrol resume {job}"));
    running.wait_for_stderr(&format!("Slurm's job {job} runs again"), 1);
    cluster.control(&format!("scancel -s USR1 {job}"));
    running.wait_for_text("first", 4);
    cluster.control(&format!("scancel {job}"));
    cluster.assert_idle(&running.finish_first());
}

#[test]
fn a_lost_agent_is_reaped_by_another_step() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    let mut running = cluster.salloc("-N2 -w a,b", &format!("exec $R sh -c \"{RANK}\""));
    running.wait_for_text("up", 2);
    cluster.wait_for_ranks(2);
    // The agent and its guardian at once, so that nothing on the host ends the rank.
    let agents = cluster
        .started()
        .into_iter()
        .filter(|process| process.host == "b" && process.args[0].ends_with("rlaunch-worker"));
    let agents: Vec<String> = agents.map(|process| process.pid.to_string()).collect();
    assert_eq!(agents.len(), 2);
    // Slurm ends what is left of a task with TERM, which an agent that is stopped does not get any more.
    // If one of the two is killed, the other may end with it, so that its kill fails.
    for (signal, may_fail) in [("-STOP", false), ("-KILL", true)] {
        let killed = Command::new("kill").arg(signal).args(&agents).status().unwrap();
        assert!(killed.success() || may_fail, "{signal}");
    }
    let ended = running.finish_first();
    ended.ended_with(206);
    cluster.assert_idle(&ended);
    ended.says(&["node b is lost", "b: agent lost, nothing more found"]);
}

#[test]
fn what_is_no_job_of_slurm_for_rlaunch_is_said() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    cluster.run("-N1 : -N1", "exec $R hostname").refused(200, &["heterogeneous"]);
    let _copy = cluster.install(&["a", "b"]);
    let smaller = cluster.run("-N3 -w a,b,c", "srun -N1 -n1 -w b /tmp/dist/rlaunch -q hostname");
    smaller.succeeded();
    assert_eq!(smaller.out().trim(), "b", "{smaller}");
    let copies = cluster.run("-N2 -w a,b", "srun -N2 -n2 /tmp/dist/rlaunch -np 1 hostname");
    copies.succeeded();
    assert_eq!(copies.err().matches("srun has started 2 rlaunches").count(), 1, "{copies}");
    let elsewhere = cluster.run("-N1 -w a", "$R --launcher srun -H d hostname");
    elsewhere.refused(200, &["--launcher srun is for the nodes of a Slurm job, and d is none"]);
    let mixed = cluster.run("-N1 -w a", "exec $R -H a,h hostname");
    mixed.says(&["h is no node of Slurm's job"]);
    let outside = field.rlaunch("--launcher srun -np 1 hostname").spawn().finish_first();
    outside.refused(200, &["--launcher srun is for the nodes of a Slurm job, and SLURM_JOB_ID"]);
    let broken = cluster.run("-N1", "SLURM_JOB_ID=77 exec $R hostname");
    broken.ended_with(201);
    broken.says(&["srun of Slurm's job 77", "Invalid job id"]).hints("--launcher ssh");
    // By SSH after all: the sshd of this node is off.
    let ran = cluster.run("-N1", "exec $R --launcher ssh hostname");
    ran.ended_with(201);
    ran.says(&["by SSH ranks end with Slurm's job"]);
}

#[test]
fn ranks_by_ssh_keep_to_the_job_and_end_with_it() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    let nodes = ["a", "b"];
    nodes.iter().for_each(|node| field.lab.sshd(node).unwrap().restart(&[]).unwrap());
    // Each node has two CPUs, of which the job has one.
    let of_job = |what: &str| format!("exec $R --launcher ssh --bind none {what}");
    let ran = cluster.run("-N2 -n2 -w a,b", &of_job("env -u OMP_NUM_THREADS nproc"));
    ran.succeeded();
    assert_eq!(ran.out().split_whitespace().collect::<Vec<_>>(), ["1", "1"], "{ran}");
    // A host beside the job is held by nothing.
    let mixed = cluster.run("-N1 -n1 -w a", &of_job("-H a,h hostname"));
    mixed.succeeded();
    let others = cluster.run("-N1 -n1 -w a", &of_job("-H $USER@a hostname"));
    others.says(&["@a, with a user, is no node of Slurm's job", "none of their ranks ends with"]);
    for rank in [RANK, "trap '' TERM; echo up; sleep 1000; sleep 1000"] {
        let script = format!("exec $R --launcher ssh --max-restarts 3 sh -c \"{rank}\"");
        let mut running = cluster.salloc("-N2 -w a,b", &script);
        running.wait_for_text("up", 2);
        let job = cluster.job();
        // Signals for ranks do not end the task that waits.
        for signal in ["USR1", "USR2", "TERM", "INT", "HUP", "QUIT", "ALRM"] {
            cluster.control(&format!("scancel -s {signal} {job}"));
        }
        // What a signal ends is gone within a second.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(cluster.control("squeue -h -s -o %j").matches("rlaunch").count(), 1);
        cluster.wait_for_ranks(2);
        cluster.control(&format!("scancel {job}"));
        let ended = running.finish_first();
        cluster.assert_idle(&ended);
        ended.says(&[&format!("its task in Slurm's job {job} "), "CANCELLED AT"]);
        assert!(!ended.err().contains("restart"), "{ended}");
    }
    // A launcher that dies leaves no step behind in a job that goes on.
    let script = format!("$R --launcher ssh sh -c \"{RANK}\"; exec sleep 999");
    let mut running = cluster.salloc("--kill-command=TERM -N2 -w a,b", &script);
    running.wait_for_text("up", 2);
    let launcher = format!("^{} --launcher ssh", field.rlaunch.display());
    assert!(Command::new("pkill").args(["-KILL", "-f", &launcher]).status().unwrap().success());
    let job = cluster.job();
    field
        .wait_for("the step to end", || !cluster.control("squeue -h -s -o %j").contains("rlaunch"));
    assert_eq!(cluster.control("squeue -h -o %T"), "RUNNING");
    cluster.control(&format!("scancel {job}"));
    cluster.assert_idle(&running.finish_first());
}

#[test]
fn job_scripts_of_sites_run() {
    let field = Field::new();
    let cluster = Cluster::new(&field);
    let _copy = cluster.install(&["a"]);
    let _programs = field.files(&NODES, "/tmp/a.out", PROGRAM, 0o755);
    let _outputs = field.scratch(&["a"], "/tmp/outputs");
    field.on("a", "mkdir -m 777 /tmp/outputs");
    // The first node of each job is the one that has rlaunch.
    for (site, script, _) in SITES {
        let words = format!("sbatch -w a -o /tmp/outputs/{site}");
        let mut sbatch = cluster.command(Account::User, &words);
        sbatch.env("PATH", format!("/tmp/dist:{PATH}")).stdin(Stdio::piped());
        let mut sbatch = sbatch.stdout(Stdio::null()).spawn().unwrap();
        sbatch.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(sbatch.wait().unwrap().success(), "{site}");
    }
    field.wait_for("the jobs to end", || cluster.control("squeue -h").is_empty());
    for (site, _, lines) in SITES {
        let output = field.on("a", &format!("cat /tmp/outputs/{site}"));
        for line in lines {
            assert!(output.contains(line), "{site} lacks {line}: {output}");
        }
    }
}
