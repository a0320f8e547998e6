//! Jobs on a GPU of this machine, if there is one. All hosts of the lab have the same GPU.

use crate::support::Field;
use crate::training::{PATIENCE, TRAIN, project};
use rlaunch_lab::python;

const SCRIPT: &str = "train.py --backend nccl --steps 20 --loss-every 20";

#[test]
fn gpu_is_seen_through_rlaunch() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b nvidia-smi -L").run();
    let gpus = ran.succeeded().out().lines().filter(|line| line.starts_with("GPU 0: ")).count();
    assert_eq!(gpus, 2, "{ran}");
}

#[test]
fn gpu_torch_trains_by_nccl() {
    let field = Field::new();
    let (directory, preload) = project(&TRAIN);
    let line = format!("-H a{preload} --nccl-verify {} {SCRIPT}", python::PROGRAM);
    let ran = field.rlaunch(&line).in_directory(directory.path()).within(PATIENCE).run();
    assert!(ran.succeeded().out().contains("step 20 loss "), "{ran}");
}

/// Without `--nccl-share-gpu` NCCL treats two ranks on one GPU as an error.
#[test]
fn gpu_torch_ranks_may_share_it() {
    let field = Field::new();
    let (directory, preload) = project(&TRAIN);
    let line =
        format!("-H a:2{preload} --nccl-share-gpu --nccl-verify {} {SCRIPT}", python::PROGRAM);
    let ran = field.rlaunch(&line).in_directory(directory.path()).within(PATIENCE).run();
    assert!(ran.succeeded().out().contains("step 20 loss "), "{ran}");
    ran.says(&["ranks share GPUs", "rank 0 on a: ", "rank 1 on a: "]);
}
