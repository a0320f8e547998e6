//! Training on several hosts with the programs in `examples`: with numpy, and with torch over gloo
//! and over rlaunch's own backend.

use crate::running::Outcome;
use crate::support::{Field, launch_directory};
use rlaunch_lab::python;
use std::fs;
use std::io::Write;
use std::time::Duration;
use tempfile::TempDir;

/// Time limit for three ranks of torch on two busy cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

const NETS: (&str, &str) = ("nets.py", include_str!("../../examples/resnet/nets.py"));
const RESNET: [(&str, &str); 4] = [
    ("resnet.py", include_str!("../../examples/resnet/resnet.py")),
    ("by_numpy.py", include_str!("../../examples/resnet/by_numpy.py")),
    ("by_torch.py", include_str!("../../examples/resnet/by_torch.py")),
    NETS,
];
pub(crate) const TRAIN: [(&str, &str); 2] =
    [("train.py", include_str!("../../examples/torch_ddp/train.py")), NETS];
/// Message of a rank in which gloo still released tensors while Python ended. This is a race in
/// torch itself (pytorch#179291), after the training.
const GLOO_ABORTED: &str = "terminate called without an active exception";
/// Option of ranks that compute: all hosts share this machine's processors, and threads of two ranks on them wait for each
/// other while they spin.
pub(crate) const ONE_THREAD: &str = "-x OMP_NUM_THREADS=1";
/// Python program that calls every collective among several ranks.
const COLLECTIVES: &str = include_str!("../../worker/comm/python/tests/torch_ranks.py");

/// Makes a directory with `files` on the launching machine only, and returns it with the options
/// that send its files to hosts.
pub(crate) fn project(files: &[(&str, &str)]) -> (TempDir, String) {
    let directory = launch_directory();
    let mut options = String::new();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
        options += &format!(" --preload {name}");
    }
    (directory, options)
}

/// Returns the number after the last `before` in stdout.
fn number(ran: &Outcome, before: &str) -> f64 {
    let out = ran.succeeded().out();
    let rest = out.rsplit_once(before).unwrap_or_else(|| panic!("no `{before}` in\n{ran}")).1;
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

/// Prints a line even in a test that passes, whose `println!` libtest would hide.
fn tell(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").unwrap();
}

fn relative(one: f64, other: f64) -> f64 {
    (one - other).abs() / other.abs()
}

#[test]
fn numpy_ranks_train_as_one_process_with_all_images_does() {
    let field = Field::new();
    let (directory, preload) = project(&RESNET);
    let mut alone = None;
    for (hosts, ranks) in [("a", 1), ("a:2,b,c", 4)] {
        let options = "--backend numpy --norm group --dtype float64 --steps 4 --warmup 1";
        let batch = 16 / ranks;
        let script = format!("python3 resnet.py {options} --batch-size {batch}");
        let line = format!("-H {hosts} -np {ranks} {ONE_THREAD}{preload} {script}");
        let ran = field.rlaunch(&line).in_directory(directory.path()).within(PATIENCE).run();
        let (loss, total) =
            (number(&ran, "loss of the last step:"), number(&ran, "total images/sec:"));
        let (of_one, total_of_one) = *alone.get_or_insert((loss, total));
        assert!((loss - of_one).abs() < 1e-6, "{loss} and not {of_one}: {ran}");
        let efficiency = total / total_of_one / f64::from(ranks);
        tell(&format!(
            "numpy, ranks: {ranks}, images/sec: {total:.1}, efficiency: {efficiency:.2}"
        ));
    }
}

/// Trains on two hosts with the options `words`.
fn train(field: &Field, (directory, preload): &(TempDir, String), words: &str) -> Outcome {
    let script = format!("{} train.py {words}", python::PROGRAM);
    let run = field.rlaunch(&format!("-H a,b -np 2 {ONE_THREAD}{preload} {script}"));
    run.in_directory(directory.path()).within(PATIENCE).run()
}

#[test]
fn torch_trains_by_rlaunch_as_by_gloo() {
    let field = Field::new();
    let project = project(&TRAIN);
    // In a deep network rounding errors grow from step to step, so this network uses float64. Wrong
    // gradients show in the second step already.
    let deep = "--model resnet18 --norm group --dtype float64 --batch-size 2 --rate 0.01 --steps 2";
    let by = |backend| {
        let words = format!("{deep} --backend {backend}");
        let mut ran = train(&field, &project, &words);
        if backend == "gloo" && ran.err().contains(GLOO_ABORTED) {
            tell("gloo aborted while it ended; once more");
            ran = train(&field, &project, &words);
        }
        (number(&ran, "step 2 loss"), number(&ran, "total images/sec:"))
    };
    let ((gloo, gloo_rate), (own, own_rate)) = (by("gloo"), by("rlaunch"));
    assert!(relative(own, gloo) < 1e-4, "{own} and not {gloo}");
    let ratio = own_rate / gloo_rate;
    tell(&format!("torch: images/sec {own_rate:.1}, {ratio:.2} of gloo's {gloo_rate:.1}"));
}

/// What torch.compile leaves is where it is without rlaunch, in both places in which torch looks for it.
#[test]
fn torch_finds_what_earlier_jobs_have_compiled() {
    const SHOW: &str = "import os; from torch._inductor.runtime import cache_dir_utils as c; \
                        os.makedirs(c.default_cache_dir(), exist_ok=True); \
                        print(os.path.realpath(c.default_cache_dir()), c.cache_dir())";
    let field = Field::new();
    let _gone = field.scratch(&["a"], "/tmp/torchinductor_root");
    let line = format!("-H a --show env {} -c", python::PROGRAM);
    let ran = field.rlaunch(&line).args([SHOW]).within(PATIENCE).run();
    let said = ran.succeeded().out();
    let last = said.lines().last();
    assert_eq!(last, Some("/tmp/torchinductor_root /tmp/torchinductor_root"), "{ran}");
    assert!(said.lines().any(|line| line.starts_with("TORCHINDUCTOR_CACHE_DIR ")), "{ran}");
}

#[test]
fn torch_resnet_trains_as_one_process_with_all_images_does() {
    let field = Field::new();
    let (directory, preload) = project(&RESNET);
    let mut losses = Vec::new();
    for (hosts, batch) in [("a", 4), ("a,b", 2)] {
        let options = "--backend rlaunch --model tiny --norm group --dtype float64 --warmup 1";
        let script = format!("{} resnet.py {options}", python::PROGRAM);
        let line =
            format!("-H {hosts} {ONE_THREAD}{preload} {script} --steps 3 --batch-size {batch}");
        let run = field.rlaunch(&line);
        let ran = run.in_directory(directory.path()).within(PATIENCE).run();
        losses.push(number(&ran, "loss of the last step:"));
    }
    assert!((losses[0] - losses[1]).abs() < 1e-6, "{losses:?}");
}

#[test]
fn torch_collectives_do_what_they_are_called() {
    let field = Field::new();
    let run = field.rlaunch("-H a:2,b").args([python::PROGRAM, "-c", COLLECTIVES]);
    let ran = run.within(PATIENCE).run();
    assert_eq!(ran.succeeded().out(), "as it should be\n".repeat(3), "{ran}");
}

/// Program whose rank 1 does not take part in the exchange of gradients.
const LEFT_ALONE: &str = r#"
import torch, torch.distributed as dist
dist.init_process_group("rlaunch")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
if dist.get_rank() == 1:
    store.wait(["over"])
else:
    try:
        net(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:
        print(error)
    store.set("over", "")
"#;

#[test]
fn torch_gradients_that_do_not_come_say_whose() {
    let field = Field::new();
    let run = field.rlaunch("-H a,b").args([python::PROGRAM, "-c", LEFT_ALONE]);
    let ran = run.env("RLAUNCH_COMM_TIMEOUT", "10").within(PATIENCE).run();
    let out = ran.succeeded().out();
    assert!(out.contains("all_reduce: ") && out.contains("rank 1 on b"), "{ran}");
}
