//! Programs that start processes themselves, such as torchrun and Ray, and scripts and modules of Python that are named without
//! it. Stand-ins of these programs print what they are told.

use crate::support::{Field, launch_directory};
use std::path::Path;

const TORCHRUN: &str = "/tmp/starters/torchrun";
const RAY: &str = "/tmp/starters/ray";
/// Program that prints a line of variables, `-` for those that are not set.
const PRINT: &str = "#!/bin/sh\n\
    echo ${PET_NNODES--} ${PET_NODE_RANK--} ${PET_MASTER_ADDR--} ${PET_MASTER_PORT--} \
    ${OMP_NUM_THREADS--} ${RANK--} ${MASTER_ADDR--} ${RLAUNCH_RANK--} $RLAUNCH_HOST\n";

#[test]
fn torchrun_is_told_its_place_once_on_each_host() {
    let field = Field::new();
    let _torchrun = field.files(&["a", "b", "c"], TORCHRUN, PRINT, 0o755);
    let run = |words: &str| {
        let line = format!("--no-tag -H a:2,b:2 {words}");
        let ran = field.rlaunch(&line).run();
        let lines = ran.succeeded().sorted();
        (ran, lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect())
    };
    let (ran, lines): (_, Vec<Vec<String>>) = run(&format!("{TORCHRUN} --nproc-per-node 8 x.py"));
    let address = field.lab.address("a").unwrap().to_string();
    assert_eq!(lines.len(), 2, "{ran}");
    for (number, (line, host)) in lines.iter().zip(["a", "b"]).enumerate() {
        let number = number.to_string();
        assert_eq!(line[..3], ["2", &number, &address], "{ran}");
        assert!(line[3].parse::<u16>().is_ok() && line[3] == lines[0][3], "{ran}");
        assert_eq!(line[4..], ["-", &number, &address, &number, host], "{ran}");
    }
    ran.says(&[
        "torchrun starts processes itself: each host gets one torchrun, whatever its slots",
    ]);
    let (ran, lines) = run(&format!("{TORCHRUN} --standalone x.py"));
    assert!(lines.iter().all(|line| line[..4] == ["-", "-", "-", "-"]), "{ran}");
    // The user may ask for more.
    let (ran, lines) = run(&format!("--npernode 2 {TORCHRUN} x.py"));
    assert_eq!(lines.len(), 4, "{ran}");
    ran.keeps_quiet_about(&["starts processes itself"]);
    let said = "torchrun expects 3 nodes, but this job starts 2: without --nnodes";
    field.rlaunch(&format!("-H a,b {TORCHRUN} --nnodes 3 x.py")).run().succeeded().says(&[said]);
    for nodes in ["2", "1:3", "{{nodes}}"] {
        let run = field.rlaunch("-H a,b").args([TORCHRUN, "--nnodes", nodes, "x.py"]);
        run.run().succeeded().keeps_quiet_about(&["torchrun expects"]);
    }
    // Two of them are two jobs of torchrun.
    let line = format!("--no-tag -H a,b,c -np 1 {TORCHRUN} x.py : -np 2 {TORCHRUN} y.py");
    let ran = field.rlaunch(&line).run();
    let lines = ran.succeeded().sorted();
    let port = |line: &str| line.split(' ').nth(3).map(str::to_owned);
    let of_b = field.lab.address("b").unwrap();
    assert!(lines[0].starts_with(&format!("1 0 {address} ")), "{ran}");
    assert!(lines[1].starts_with(&format!("2 0 {of_b} ")), "{ran}");
    assert!(lines[2].starts_with(&format!("2 1 {of_b} ")), "{ran}");
    assert_eq!(port(&lines[1]), port(&lines[2]), "{ran}");
}

#[test]
fn what_would_be_alone_on_each_host_is_said() {
    let field = Field::new();
    let deepspeed = "/tmp/starters/deepspeed";
    let accelerate = "/tmp/starters/accelerate";
    let script = "/tmp/starters/t.py";
    let _programs =
        [deepspeed, accelerate, script].map(|path| field.files(&["a", "b"], path, PRINT, 0o755));
    let said = "does not learn of the other hosts";
    for words in [
        &[deepspeed, script][..],
        &[accelerate, "launch", "--num_processes", "2", script],
        &["bash", "-c", "true torchrun --nproc-per-node 2 t.py"],
    ] {
        field.rlaunch("-H a,b").args(words).run().says(&[said]);
        field.rlaunch("-H a").args(words).run().keeps_quiet_about(&[said]);
    }
    for words in [
        &[deepspeed, "--hostfile", "hosts", script][..],
        &[accelerate, "launch", script],
        &[accelerate, "launch", "--num_processes=4", "--num_machines=2", script],
        &["bash", "-c", "true torchrun --standalone t.py"],
        &["echo", "torchrun"],
    ] {
        field.rlaunch("-H a,b").args(words).run().keeps_quiet_about(&[said]);
    }
}

#[test]
fn a_service_has_no_variables_of_ranks_unless_they_are_asked_for() {
    let field = Field::new();
    let _ray = field.files(&["a", "b"], RAY, PRINT, 0o755);
    let ran = field.rlaunch("--no-tag -H a:4,b").args([RAY, "start", "--block"]).run();
    assert_eq!(ran.succeeded().sorted(), ["- - - - - - - 0 a", "- - - - - - - 1 b"], "{ran}");
    let run = field.rlaunch("-H a,b -x RANK={{rank.index}} -x MASTER_ADDR={{master.addr}}");
    let ran = run.args([RAY, "start"]).run();
    let address = field.lab.address("a").unwrap();
    let told = [("0", "a"), ("1", "b")]
        .map(|(rank, host)| format!("- - - - - {rank} {address} {rank} {host}"));
    assert_eq!(ran.succeeded().sorted(), told, "{ran}");
    let ran = field.rlaunch("-H a,b --dry-run").args([RAY, "start"]).run();
    assert!(!ran.succeeded().out().contains("MASTER_ADDR"), "{ran}");
}

#[test]
fn python_runs_scripts_and_modules_that_are_named_without_it() {
    let field = Field::new();
    let directory = launch_directory();
    let root = directory.path().to_str().unwrap().to_owned();
    let files = |hosts: &[&str]| {
        let text = "import os, sys\nprint(sys.argv[1:], os.environ['RANK'])\n";
        ["ddp.py", "pkg/__init__.py", "pkg/train.py"].map(|name| {
            let own = if name.ends_with("__init__.py") { "" } else { text };
            field.files(hosts, &format!("{root}/{name}"), own, 0o644)
        })
    };
    for name in ["ddp.py", "pkg/__init__.py", "pkg/train.py"] {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let own = if name.ends_with("__init__.py") {
            ""
        } else {
            "import os, sys\nprint(sys.argv[1:], os.environ['RANK'])\n"
        };
        std::fs::write(path, own).unwrap();
    }
    let run = |line: &str| field.rlaunch(line).in_directory(directory.path()).run();
    {
        let _files = files(&["a", "b"]);
        for line in [
            "--no-tag -H a,b ddp.py --lr 1",
            "--no-tag -H a:2 --nproc_per_node 2 ddp.py --lr 1",
            "--no-tag -H a,b -m pkg.train --lr 1",
            "--no-tag -H a,b --module pkg.train --lr 1",
        ] {
            let expected = ["['--lr', '1'] 0", "['--lr', '1'] 1"];
            let ran = run(line);
            assert_eq!(ran.succeeded().sorted(), expected, "{line}: {ran}");
        }
    }
    let _ddp = field.files(&["a"], &format!("{root}/ddp.py"), "", 0o644);
    let ran = run("-H a,b --copy ddp.py ddp.py --lr 1");
    assert_eq!(ran.succeeded().sorted(), ["['--lr', '1'] 0", "['--lr', '1'] 1"], "{ran}");
    run("-H a,b ddp.py").refused(203, &["ddp.py is not on b"]).hints("--copy ddp.py ddp.py");
    let ran = run("-H a,b -m pkg.train");
    ran.refused(203, &["pkg/train.py is not on a, b"]).hints("--sync");
    let ran = run("-H a,b python3 -m pkg.train");
    ran.refused(203, &["pkg/train.py is not on a, b"]).hints("--sync python3 -m pkg.train");
    let _torchrun = field.files(&["a", "b"], TORCHRUN, PRINT, 0o755);
    let line = format!("-H a,b {TORCHRUN} --nproc-per-node 2 ddp.py");
    run(&line).refused(203, &["ddp.py is not on b"]);
}

#[test]
fn a_virtual_environment_that_hosts_lack_is_said() {
    let field = Field::new();
    let directory = launch_directory();
    let bin = directory.path().join("venv/bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink("/usr/bin/python3", bin.join("python3")).unwrap();
    let path = format!("{}:{}", bin.display(), crate::support::PATH);
    let run = |hosts: &str| {
        let run = field.rlaunch(hosts).args(["python3", "-c", "print(1)"]).env("PATH", &path);
        run.env("VIRTUAL_ENV", bin.parent().unwrap().to_str().unwrap()).run()
    };
    let here = bin.join("python3");
    let line = format!("python3 is /usr/bin/python3 on a, b, and {} here", here.display());
    let ran = run("-H a,b");
    ran.succeeded().says(&[&line]);
    let _python = field.files(
        &["a", "b"],
        here.to_str().unwrap(),
        "#!/bin/sh\nexec /usr/bin/python3 \"$@\"\n",
        0o755,
    );
    run("-H a,b").succeeded().keeps_quiet_about(&["python3 is"]);
    assert!(Path::new("/usr/bin/python3").exists());
}

#[test]
fn the_error_that_a_rank_has_recorded_is_in_the_message() {
    let field = Field::new();
    let script = r#"[ $RANK = 1 ] || exec sleep 1000
        echo '{"message": {"message": "ValueError: no data", "extraInfo": {}}}' >$TORCHELASTIC_ERROR_FILE; exit 3"#;
    let ran = field.rlaunch("-H a,b").sh(script).run();
    ran.refused(3, &["rank 1 on b (pid ", "exited with code 3: ValueError: no data"]);
    let script = "echo junk >$TORCHELASTIC_ERROR_FILE; exit 3";
    let ran = field.rlaunch("-H a").sh(script).run();
    ran.refused(3, &["rank 0 on a "]).keeps_quiet_about(&["junk", "code 3:"]);
    assert!(field.job_directories().is_empty());
}

#[test]
fn ranks_of_tensorflow_that_would_train_alone_are_said() {
    let field = Field::new();
    let directory = launch_directory();
    let text = "# tf.distribute.MultiWorkerMirroredStrategy()\nprint('trained')\n";
    std::fs::write(directory.path().join("keras.py"), text).unwrap();
    let run = |words: &str| {
        let line = format!("-H a,b --copy keras.py {words} keras.py");
        field.rlaunch(&line).in_directory(directory.path()).run()
    };
    let ran = run("");
    ran.succeeded().says(&["TF_CONFIG", "--env-style tensorflow keras.py"]);
    for words in ["--env-style tensorflow", "-x TF_CONFIG={}", "-np 1"] {
        run(words).succeeded().keeps_quiet_about(&["TF_CONFIG"]);
    }
}
