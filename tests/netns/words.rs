//! Command lines of other launchers, with rlaunch in their place.

use crate::support::{Field, Run, launch_directory};
use std::fs;
use std::path::Path;

/// Directory of the guides' programs on the hosts.
const PROGRAMS: &str = "/tmp/words";
/// Program in place of the guides' programs. It asserts that the variable in its first argument,
/// and WORLD_SIZE, have the value in the second.
const STAND_IN: &str = r#"import os, sys
name, expected = sys.argv[1:3]
assert os.environ[name] == expected, f"{name}={os.environ[name]}"
assert int(os.environ["WORLD_SIZE"]) == int(expected)
print("rank", os.environ["RANK"], "of", os.environ[name], *(os.environ.get(n) for n in sys.argv[3:]))
"#;
const NVIDIA_SMI: &str =
    "#!/bin/sh\n[ \"$OMPI_COMM_WORLD_SIZE\" = 3 ] && echo smi $OMPI_COMM_WORLD_RANK\n";
const PYTHON: &str = "#!/bin/sh\nexec python3 \"$@\"\n";

/// Prepares a command line of a guide, in which only the addresses that readers insert are
/// replaced.
fn line<'a>(field: &'a Field, words: &[&str]) -> Run<'a> {
    let [a, b, c, d] =
        ["a", "b", "c", "d"].map(|host| field.lab.address(host).unwrap().to_string());
    let filled = words.iter().map(|word| {
        let word = word.replace("<master_IP>", &a).replace("<worker1_IP>", &b);
        word.replace("<worker2_IP>", &c).replace("<worker3_IP>", &d)
    });
    let path = format!("{PROGRAMS}:{}", crate::support::PATH);
    field.rlaunch("").args(filled).env("PATH", &path)
}

/// Splits a line without quotes into words.
fn split(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn ranks(count: usize, of: &str) -> Vec<String> {
    (0..count).map(|rank| format!("rank {rank} of {of}")).collect()
}

#[test]
fn every_mpirun_of_the_guides_runs_with_rlaunch_in_its_place() {
    let field = Field::new();
    let hosts = ["a", "b", "c", "d"];
    let _programs = field.scratch(&hosts, PROGRAMS);
    let _files = [
        field.files(&hosts, "/tmp/words/tf_cnn_benchmarks.py", STAND_IN, 0o644),
        field.files(&hosts, "/tmp/words/nvidia-smi", NVIDIA_SMI, 0o755),
        field.files(&hosts, "/tmp/words/python", PYTHON, 0o755),
    ];

    let everybody = "--allow-run-as-root -H <master_IP>,<worker1_IP>,<worker2_IP>,<worker3_IP> -np";
    let ran = line(&field, &[&split(everybody)[..], &["4", "hostname"]].concat()).run();
    assert_eq!(ran.succeeded().sorted(), hosts, "{ran}");
    ran.keeps_quiet_about(&["ignored"]);

    let workers = "--allow-run-as-root -H <worker1_IP>,<worker2_IP>,<worker3_IP> -np 3 nvidia-smi";
    let ran = line(&field, &split(workers)).run();
    assert_eq!(ran.succeeded().sorted(), ["smi 0", "smi 1", "smi 2"], "{ran}");

    // The training command. Its number of ranks has the trailing blank that the guide has.
    let train = "-x NCCL_IB_DISABLE=0 -x NCCL_DEBUG=INFO python3 /tmp/words/tf_cnn_benchmarks.py";
    let program = ["HOROVOD_SIZE", "4", "NCCL_IB_DISABLE", "NCCL_DEBUG"];
    let words = [&split(everybody)[..], &["4 "], &split(train), &program].concat();
    let ran = line(&field, &words).run();
    let expected = ranks(4, "4 0 INFO");
    assert_eq!(ran.succeeded().sorted(), expected, "{ran}");

    // In an MPIJob, the operator names the hosts.
    let directory = launch_directory();
    let hostfile = directory.path().join("hostfile");
    fs::write(&hostfile, "a slots=1\nb slots=1\n").unwrap();
    let job = "-np 2 --allow-run-as-root --mca btl_tcp_if_include bond0 \
               --mca oob_tcp_if_include bond0 --mca pml ob1 --mca btl ^openib \
               python /tmp/words/tf_cnn_benchmarks.py OMPI_COMM_WORLD_SIZE 2";
    let run = line(&field, &split(job));
    let ran = run.env("OMPI_MCA_orte_default_hostfile", hostfile.to_str().unwrap()).run();
    assert_eq!(ran.succeeded().sorted(), ranks(2, "2"), "{ran}");
    ran.says(&[
        "warning: a, b have no interface of --mca oob_tcp_if_include bond0: their agents use others",
    ]);
}

#[test]
fn words_without_a_meaning_are_named_on_one_line() {
    let field = Field::new();
    let program = "import os; assert os.environ['WORLD_SIZE'] == '4'; \
                   assert os.environ['OMPI_MCA_btl'] == '^openib'; print(os.environ['RANK'])";
    let before = "--allow-run-as-root -H a,b,c,d -np";
    let after = "-x NCCL_IB_DISABLE=0 -x NCCL_DEBUG=INFO --mca pml ob1 --mca btl ^openib \
                 --mca plm_base_verbose 5 -bind-to none -map-by slot python3 -c";
    let words = [&split(before)[..], &["4 "], &split(after), &[program]].concat();
    let ran = field.rlaunch("").args(words).run();
    assert_eq!(ran.succeeded().sorted(), ["0", "1", "2", "3"], "{ran}");
    let err = ran.err();
    let lines: Vec<&str> = err.lines().filter(|line| line.contains("ignored")).collect();
    assert_eq!(lines, ["ignored: --mca plm_base_verbose"], "{ran}");

    let ran = field.rlaunch("--allow-run-as-root -H a,b,c -np 4 hostname").run();
    ran.refused(200, &["4 ranks need 4 slots; there are 3 (a 1, b 1, c 1): use -H a:2,b,c"]);
    field
        .rlaunch("-H a -bind-too none true")
        .run()
        .ended_with(200)
        .says(&["did you mean --bind-to?"]);
}

#[test]
fn mpiexecs_and_torchruns_words_take_effect() {
    let field = Field::new();
    // One processor for each rank, an additional variable, and lines tagged with their ranks.
    let words =
        "-hosts a,b -n 2 -genv GREETING hello -prepend-rank -bind-to hwthread -launcher ssh";
    let ran = field.rlaunch(words).sh("echo $GREETING $(nproc)").run();
    assert_eq!(ran.succeeded().sorted(), ["[0,a] hello 1", "[1,b] hello 1"], "{ran}");

    // An MCA parameter is only a preference, but an option must be satisfied.
    let address = field.on("a", "ip -4 -o addr show dev eth0 primary scope global | head -1");
    let address = address.split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_owned();
    let ran = field.rlaunch("-H a,b --mca oob_tcp_if_include eth0").sh("echo $MASTER_ADDR").run();
    assert_eq!(ran.succeeded().sorted(), [&*address, &*address], "{ran}");
    ran.keeps_quiet_about(&["warning", "ignored"]);
    let ran = field.rlaunch("-H a,b -iface bond0 true").run();
    ran.refused(204, &["a has no address for --oob-if bond0"]);

    let torch = "-H a,b --nnodes 2 --master_port 29517 --rdzv_backend c10d --master-addr a";
    let ran = field.rlaunch(torch).sh("echo $MASTER_PORT").run();
    assert_eq!(ran.succeeded().sorted(), ["29517", "29517"], "{ran}");
    ran.says(&["ignored: --rdzv_backend\n", "--master-addr a is left out"]);
    let ran = field.rlaunch("-H a,b,c --nnodes 2 true").run();
    ran.refused(200, &["--nnodes 2, but there are 3 hosts: a, b, c"]);
    let ran = field.rlaunch("-H a,b --nnodes 1:2 true").run();
    ran.ended_with(200).says(&["takes no MIN:MAX"]);
    let ran = field.rlaunch("-H a,b --nproc_per_node gpu true").run();
    ran.ended_with(200).says(&["rlaunch takes a number here"]);
}

#[test]
fn a_rankfile_says_where_each_rank_runs() {
    let field = Field::new();
    let directory = launch_directory();
    let file = directory.path().join("ranks");
    fs::write(&file, "rank 1=a slot=p0\nrank 0=b slot=p0 # first\nrank 2=b slot=0\n").unwrap();
    let cpus = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status";
    let script = format!("echo $RANK $(hostname) $({cpus})");
    let words = format!("--rankfile {} --report-bindings -np 2", file.display());
    let ran = field.rlaunch(&words).sh(&script).run();
    // What is reported is not among the ranks' lines.
    assert_eq!(ran.succeeded().sorted(), ["0 b 0", "1 a 0"], "{ran}");
    ran.says(&["as named"]);
    let ran = field.rlaunch(&format!("--rankfile {} -H a,c true", file.display())).run();
    ran.refused(200, &["rank 0 of the rankfile is on b, and the hosts are a, c"]);
    // A file of programs, whose hosts are those of the job.
    fs::write(&file, "-n 1 sh -c 'echo one $RANK'\n-n 1 sh -c 'echo two $RANK'\n").unwrap();
    let ran = field.rlaunch(&format!("-H a,b -configfile {}", file.display())).run();
    assert_eq!(ran.succeeded().sorted(), ["one 0", "two 1"], "{ran}");
}

/// Program that listens on the port until a file tells it to end.
const LISTENER: &str = "import socket, os, time
listener = socket.create_server(('', 29518))
print('listens', flush=True)
while not os.path.exists('/tmp/words-go/on'): time.sleep(0.02)
";

#[test]
fn a_master_port_that_is_taken_is_said_and_one_that_was_used_is_not() {
    let field = Field::new();
    let first = field.rlaunch("-H b,a --master-port 29518").args(["python3", "-c"]);
    let mut first = first.args([LISTENER]).spawn();
    first.wait_for_text("listens", 2);
    // Both ranks of the first job listen on this port. Its rank 1 is on a, where rank 0 of this job
    // is.
    let ran = field.rlaunch("-H a,c --master-port 29518 true").spawn().finish_first();
    ran.refused(204, &["port 29518 of --master-port is taken on a\n"]).hints("ss -tlnp sport");
    let go_on = field.files(&["a", "b"], "/tmp/words-go/on", "", 0o644);
    first.finish().succeeded();
    drop(go_on);
    // Rank 1 connects to rank 0, which closes first, so its end of the connection remains in
    // TIME_WAIT.
    let meet = "import os, socket
where = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
if os.environ['RANK'] == '0':
    listener = socket.create_server(where)
    os.system('rlaunch barrier')
    listener.accept()[0].close()
else:
    os.system('rlaunch barrier')
    assert socket.create_connection(where).recv(1) == b''
print('met')";
    for _ in 0..2 {
        let run = field.rlaunch("-H a,b --master-port 29518 python3 -c").args([meet]);
        assert_eq!(run.run().succeeded().sorted(), ["met", "met"]);
    }
}

#[test]
fn a_command_line_without_words_leads_on() {
    let ran = Field::new().rlaunch("").run();
    ran.ended_with(200).says(&["rlaunch -H host1,host2 hostname", "doctor --try", "rlaunch help"]);
    assert_eq!(ran.err().lines().count(), 6, "{ran}");
}

#[test]
fn shells_take_the_completions_and_man_the_page() {
    let field = Field::new();
    let rlaunch = field.rlaunch.display().to_string();
    let shell = |line: &str| {
        let line = format!("rlaunch() {{ {rlaunch} \"$@\"; }}\n{line}");
        field.shell(&format!("bash -c '{}' 2>&1", line.replace('\'', r"'\''")), Path::new("/"))
    };
    let complete = |words: &str, position: usize| {
        shell(&format!(
            "eval \"$(rlaunch completions bash)\"; COMP_WORDS=({words}); COMP_CWORD={position}; \
             cur=${{COMP_WORDS[-1]}}; _rlaunch rlaunch \"$cur\" rlaunch; echo \"${{COMPREPLY[@]}}\""
        ))
    };
    assert_eq!(complete("rlaunch --master-p", 1).trim(), "--master-port");
    assert_eq!(complete("rlaunch topo --gi", 2).trim(), "--gids");
    assert_eq!(complete("rlaunch compl", 1).trim(), "completions");
    // Words that only rlaunch knows.
    let asked = |words: &str, position: usize| {
        shell(&format!(
            "eval \"$(rlaunch completions bash)\"; COMP_WORDS=({words}); COMP_CWORD={position}; \
             COMP_LINE=\"{words}\"; COMP_POINT=${{#COMP_LINE}}; \
             cur=${{COMP_WORDS[-1]}}; _rlaunch_words rlaunch \"$cur\" rlaunch; echo \"${{COMPREPLY[@]}}\""
        ))
    };
    assert_eq!(asked("rlaunch help securi", 2).trim(), "security");
    assert_eq!(asked("rlaunch help mtu.pa", 2).trim(), "mtu.path");
    assert_eq!(asked("rlaunch topo --gi", 2).trim(), "--gids");
    assert!(shell("SHELL=/bin/bash rlaunch completions").starts_with("in bash:\n"));
    for (verb, wanted) in [("", "--master-port"), ("topo", "--gids"), ("bench train", "--np")] {
        // The page is in roff, in which hyphens are escaped.
        let page = shell(&format!("rlaunch man {verb}"));
        let plain = page.replace("\\-", "-");
        assert!(page.starts_with(".ie") && plain.contains(wanted), "{verb}: {page}");
    }
    assert!(shell("rlaunch man tipo; echo $?").ends_with("200\n"));
    let topic = shell("rlaunch man env");
    assert!(topic.contains(".TH rlaunch-env 7") && topic.contains("MASTER_ADDR"), "{topic}");
    // A pipe gets the text itself, a terminal gets the output of the pager, or the text if no pager
    // can be run.
    let title = "# The environment of a rank";
    assert!(shell("PAGER=tac rlaunch help env").starts_with(title));
    let at_terminal = |pager: &str| {
        shell(&format!(
            "export TERM=xterm PAGER=\"{pager}\"; script -qec \"{rlaunch} help env\" /dev/null"
        ))
    };
    let title = "The environment of a rank";
    let reversed = at_terminal("tac");
    assert!(reversed.trim_end().ends_with(&format!("\n{title}")), "{reversed}");
    for plain in ["/nonexistent/pager", "", "cat"] {
        let page = at_terminal(plain);
        assert!(page.starts_with(&format!("\x1b[1m{title}\x1b[0m")), "{page:?}");
        assert!(!page.contains('`') && !page.contains("\n#"), "{page}");
    }
    // A terminal without man gets the text, and no roff.
    let words = format!("env PATH=/none PAGER=cat TERM=xterm {rlaunch} man topo");
    let text = shell(&format!("script -qec \"{words}\" /dev/null"));
    assert!(text.contains("--gids") && !text.contains(".TH"), "{text}");
    assert!(shell("set -o pipefail; rlaunch help env | head -1; echo $?").ends_with("\n0\n"));
}
