//! Command lines as the pages of frameworks have them, what must come, and the framework's own way to start the same.

use super::Wanted::{self, Prints, Says};

/// Command line of a framework.
#[derive(Debug)]
pub(super) struct Row {
    /// Framework and version; that it is a stand-in, if it is one.
    pub(super) framework: &'static str,
    /// Directory with its programs on hosts.
    pub(super) programs: &'static str,
    /// What is typed after `rlaunch`; or all of it, on host a, where `mpirun` is rlaunch.
    pub(super) line: &'static str,
    pub(super) wanted: Wanted,
    /// The framework's own way, in words of `own.sh`; empty if it has none for several hosts.
    pub(super) own: &'static str,
    pub(super) is_on_host: bool,
    /// Whether the framework tells others its host's own name, or the address of that, so that the line may fail where this
    /// is 127.0.1.1, if the framework's own way does.
    pub(super) tells_own_name: bool,
}

impl Row {
    const fn telling_own_name(self) -> Row {
        Row { tells_own_name: true, ..self }
    }
}

const fn row(
    (framework, programs): (&'static str, &'static str),
    line: &'static str,
    wanted: Wanted,
    own: &'static str,
) -> Row {
    let (is_on_host, tells_own_name) = (false, false);
    Row { framework, programs, line, wanted, own, is_on_host, tells_own_name }
}

/// A line that is typed on host a, and starts `mpirun`.
const fn by_mpirun(
    (framework, programs): (&'static str, &'static str),
    line: &'static str,
    wanted: Wanted,
) -> Row {
    let (is_on_host, tells_own_name) = (true, false);
    Row { framework, programs, line, wanted, own: line, is_on_host, tells_own_name }
}

pub(super) const TORCH: (&str, &str) = ("torch 2.15.0", "/run/rlaunch-python/bin");
const LIGHTNING: (&str, &str) =
    ("Lightning 2.6.6", "/run/rlaunch-lightning/bin:/run/rlaunch-python/bin");
const ACCELERATE: (&str, &str) =
    ("accelerate 1.15.0", "/run/rlaunch-starters/bin:/run/rlaunch-python/bin");
const DEEPSPEED: (&str, &str) =
    ("DeepSpeed 0.19.8", "/run/rlaunch-starters/bin:/run/rlaunch-python/bin");
const OLD_JAX: (&str, &str) = ("JAX 0.10.2", "/run/rlaunch-jax-0.10/bin");
const JAX: (&str, &str) = ("JAX 0.12.0.1", "/run/rlaunch-jax/bin");
const TENSORFLOW: (&str, &str) = ("TensorFlow 2.21.0", "/run/rlaunch-tensorflow/bin");
pub(super) const RAY: (&str, &str) = ("Ray 2.60.0", "/run/rlaunch-ray/bin");
const DASK: (&str, &str) = ("Dask 2026.8.0", "/run/rlaunch-dask/bin");
/// Directory with the stand-ins, below that of the programs.
const VLLM: (&str, &str) = ("vLLM (stand-in)", "stand-ins");
const SGLANG: (&str, &str) = ("SGLang (stand-in)", "stand-ins");

const OWN_TORCHRUN: &str =
    "each 2 torchrun --nnodes 2 --node-rank %i --master-addr $A --nproc-per-node 2 ddp.py";
const OWN_JAX: &str = "each 2 python3 add_up.py $A:12345 2 %i";
const OWN_JAX_OF_TWO: &str =
    r#"each 2 "for of in 0 1; do python3 add_up.py $A:12345 4 \$((2 * %i + of)) & done; wait""#;
const OWN_RAY: &str =
    "each 3 ray symmetric-run --address $A:6379 --min-nodes 3 -- python3 driver.py 3";
const OWN_TENSORFLOW: &str = r#"each 2 "TF_CONFIG='{\"cluster\": {\"worker\": [\"$A:2222\", \"$B:2222\"]}, \
    \"task\": {\"type\": \"worker\", \"index\": %i}}' python3 workers.py""#;

/// All rows, a framework after the other.
pub(super) const ROWS: &[Row] = &[
    row(
        TORCH,
        "-H a,b,c -np 3 python3 ddp.py",
        Prints("sum 6 of 3", 3),
        "each 3 torchrun --nnodes 3 --node-rank %i --master-addr $A --nproc-per-node 1 ddp.py",
    ),
    row(TORCH, "-H a,b torchrun --nproc-per-node 2 ddp.py", Prints("sum 10 of 4", 4), OWN_TORCHRUN),
    row(
        TORCH,
        "-H a:2,b:2 torchrun --nproc-per-node 2 ddp.py",
        Prints("sum 10 of 4", 4),
        OWN_TORCHRUN,
    ),
    row(
        TORCH,
        "-H a,b python3 -m torch.distributed.run --nproc-per-node 2 ddp.py",
        Prints("sum 10 of 4", 4),
        OWN_TORCHRUN,
    ),
    row(
        TORCH,
        "-H a,b torchrun --standalone --nproc-per-node 2 ddp.py",
        Prints("sum 3 of 2", 4),
        "each 2 torchrun --standalone --nproc-per-node 2 ddp.py",
    ),
    row(
        TORCH,
        "-H a,b torchrun --nnodes {{nodes}} --node-rank {{node.index}} --master-addr {{master.addr}} \
         --master-port {{master.port}} --nproc-per-node 2 ddp.py",
        Prints("sum 10 of 4", 4),
        OWN_TORCHRUN,
    ),
    row(
        TORCH,
        "-H a,b torchrun --nnodes 2 --nproc-per-node 2 --rdzv-id 7 --rdzv-backend c10d \
         --rdzv-endpoint {{master.addr}}:{{master.port}} ddp.py",
        Prints("sum 10 of 4", 4),
        "each 2 torchrun --nnodes 2 --nproc-per-node 2 --rdzv-id 7 --rdzv-backend c10d \
         --rdzv-endpoint $A:29400 ddp.py",
    ),
    row(TORCH, "-H a,b --nproc_per_node 2 ddp.py", Prints("sum 10 of 4", 4), OWN_TORCHRUN),
    row(TORCH, "-H a,b ddp.py --epochs 3", Prints("sum 3 of 2", 2), ""),
    row(
        TORCH,
        "-H a,b -np 2 -m pkg.train",
        Prints("sum 3 of 2", 2),
        "each 2 torchrun --nnodes 2 --node-rank %i --master-addr $A --nproc-per-node 1 -m pkg.train",
    ),
    row(
        LIGHTNING,
        "-H a,b python3 fit.py 2 1",
        Prints("sum 3 of 2", 2),
        "each 2 python3 -m torch.distributed.run --nnodes 2 --node-rank %i --master-addr $A --nproc-per-node 1 fit.py 2 1",
    ),
    row(
        LIGHTNING,
        "-H a:2,b:2 python3 fit.py 2 2",
        Prints("sum 10 of 4", 4),
        "each 2 python3 -m torch.distributed.run --nnodes 2 --node-rank %i --master-addr $A --nproc-per-node 2 fit.py 2 2",
    ),
    row(
        LIGHTNING,
        "-H a,b python3 -m torch.distributed.run --nproc-per-node 2 fit.py 2 2",
        Prints("sum 10 of 4", 4),
        "each 2 python3 -m torch.distributed.run --nnodes 2 --node-rank %i --master-addr $A --nproc-per-node 2 fit.py 2 2",
    ),
    // Two processes for four devices: Lightning itself says so, where it knows who has started it.
    row(LIGHTNING, "-H a,b python3 fit.py 2 2", Says("world size"), ""),
    row(ACCELERATE, "-H a:2,b:2 python3 gathered.py", Prints("sum 10 of 4", 4), ""),
    by_mpirun(
        ACCELERATE,
        "accelerate launch --cpu --mpirun_hostfile hosts --num_machines 2 --num_processes 4 --main_process_ip $A --main_process_port 29500 gathered.py",
        Prints("sum 10 of 4", 4),
    ),
    row(DEEPSPEED, "-H a:2,b:2 python3 deep.py", Prints("sum 10 of 4", 4), ""),
    by_mpirun(
        DEEPSPEED,
        "deepspeed --launcher openmpi --hostfile hosts deep.py",
        Prints("sum 10 of 4", 4),
    ),
    row(OLD_JAX, "-H a,b python3 add_up.py", Prints("sum 3 of 2", 2), OWN_JAX).telling_own_name(),
    row(
        OLD_JAX,
        "-H a,b python3 add_up.py {{master.addr}}:{{master.port}} {{world_size}} {{rank.index}}",
        Prints("sum 3 of 2", 2),
        OWN_JAX,
    )
    .telling_own_name(),
    row(JAX, "-H a,b python3 add_up.py", Prints("sum 3 of 2", 2), OWN_JAX).telling_own_name(),
    row(JAX, "-H a:2,b:2 python3 add_up.py", Prints("sum 10 of 4", 4), OWN_JAX_OF_TWO)
        .telling_own_name(),
    row(
        JAX,
        "-H a,b python3 add_up.py {{master.addr}}:{{master.port}} {{world_size}} {{rank.index}}",
        Prints("sum 3 of 2", 2),
        OWN_JAX,
    )
    .telling_own_name(),
    row(
        TENSORFLOW,
        "--env-style tensorflow -H a,b python3 workers.py",
        Prints("sum 3 of 2", 2),
        OWN_TENSORFLOW,
    ),
    row(
        TENSORFLOW,
        "--env-style slurm -H a,b python3 workers.py SlurmClusterResolver",
        Prints("sum 3 of 2", 2),
        OWN_TENSORFLOW,
    ),
    row(TENSORFLOW, "-H a,b python3 workers.py", Says("--env-style tensorflow"), ""),
    row(
        RAY,
        "--serve -H a,b,c ray symmetric-run --address {{master.addr}}:6379 --min-nodes 3 -- python3 driver.py 3",
        Prints("tasks 6 on 3 nodes", 1),
        OWN_RAY,
    ),
    row(
        RAY,
        "--serve -H a,b,c ray symmetric-run --address a:6379 --min-nodes 3 -- python3 driver.py 3",
        Prints("tasks 6 on 3 nodes", 1),
        "each 3 ray symmetric-run --address a:6379 --min-nodes 3 -- python3 driver.py 3",
    )
    .telling_own_name(),
    row(
        RAY,
        r#"--serve -H a -np 1 --name head ray start --head --port 6379 --block
         : -H b,c --after ready:tcp:a:6379 ray start --address '{{app["head"].oob_ip}}:6379' --block
         : -H a -np 1 --after ready:tcp:a:6379 -x 'RAY_ADDRESS={{app["head"].oob_ip}}:6379' python3 driver.py 3"#,
        Prints("tasks 6 on 3 nodes", 1),
        "at a ray start --head --port 6379; each 3 'test %i = 0 || ray start --address '$A:6379; \
         at a RAY_ADDRESS=$A:6379 python3 driver.py 3; each 3 ray stop",
    ),
    row(
        DASK,
        "--serve -H a -np 1 --name scheduler dask scheduler --port 8786 : -H b,c --after ready:tcp:a:8786 \
         dask worker '{{app[\"scheduler\"].oob_ip}}:8786' : -H a -np 1 --after ready:tcp:a:8786 \
         python3 client.py '{{app[\"scheduler\"].oob_ip}}:8786' 2",
        Prints("squares 285 on 2 hosts", 1),
        "",
    ),
    row(
        DASK,
        "-H a,b,c:2 python3 client.py",
        Prints("squares 285 on 1 hosts", 1),
        "mpirun.openmpi --allow-run-as-root -H a,b,c:2 -x PATH python3 client.py",
    )
    .telling_own_name(),
    row(
        VLLM,
        "--serve -H a,b vllm serve org/model -tp 2 --nnodes {{nodes}} --node-rank {{node.index}} \
         --master-addr {{master.addr}} '{{ \"--headless\" if node.index }}'",
        Prints("serving org/model on 2 nodes", 1),
        "each 2 'test %i = 1 && headless=--headless; vllm serve org/model -tp 2 --nnodes 2 --node-rank %i \
         --master-addr '$A' $headless'",
    ),
    row(
        SGLANG,
        "--serve -H a,b python3 -m sglang.launch_server --model-path org/model --tp 2 \
         --dist-init-addr {{master.addr}}:20000 --nnodes {{nodes}} --node-rank {{node.index}}",
        Prints("serving org/model on 2 nodes", 1),
        "each 2 python3 -m sglang.launch_server --model-path org/model --tp 2 --dist-init-addr $A:20000 \
         --nnodes 2 --node-rank %i",
    ),
];
