//! The network between ranks of different hosts, on hosts without RDMA.

use crate::support::Field;

#[test]
fn who_insists_on_rdma_is_told_where_there_is_none() {
    let field = Field::new();
    for option in ["--transport rdma", "--require-rdma"] {
        let ran = field.rlaunch(&format!("-H a,b {option} true")).run();
        ran.refused(205, &["no RDMA on a, b: no RDMA device", "--transport auto uses TCP"]);
    }
    // A job on one host needs no network. Without an option, missing RDMA is not mentioned.
    field.rlaunch("-H a:2 --transport rdma true").run().succeeded();
    let ran = field.rlaunch("-H a,b true").run();
    ran.succeeded().says_nothing();
    let ran = field.rlaunch("-H a,b --require-rdma --transport tcp true").run();
    ran.refused(200, &["exclude each other"]);
    field.rlaunch("-H a,b --hca mlx5_0:x true").run().refused(200, &["ports are numbers from 1"]);
}

#[test]
fn what_nccl_has_used_is_said_at_the_end() {
    let field = Field::new();
    let script = "echo \"step of $RANK\"; test $RANK = 1 && exit 0; \
                  echo \"$(hostname):1:2 [0] NCCL INFO Using network Socket\"; echo $NCCL_DEBUG";
    let ran = field.rlaunch("-H a,b --nccl-verify").sh(script).run();
    assert_eq!(ran.succeeded().sorted(), ["INFO", "step of 0", "step of 1"], "{ran}");
    let err = ran.err();
    assert!(err.contains("rank 0 on a: TCP (Socket): RDMA is not used"), "{ran}");
    assert!(err.contains("rank 1 on b: NCCL has not said which network it uses"), "{ran}");
    // If the user sets NCCL_DEBUG, NCCL's lines are shown.
    let ran = field.rlaunch("-H a,b --nccl-verify -x NCCL_DEBUG=INFO").sh(script).run();
    assert!(ran.succeeded().out().contains("NCCL INFO Using network Socket"), "{ran}");
}

#[test]
fn a_plugin_of_nccl_must_be_on_every_host() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b --nccl-net-plugin /opt/none.so true").run();
    ran.refused(203, &["/opt/none.so of --nccl-net-plugin is not on a, b"]);
    let ran = field
        .rlaunch("-H a,b --nccl-net-plugin /etc/hostname")
        .sh("echo $NCCL_NET_PLUGIN ${NCCL_IB_DISABLE-unset}")
        .run();
    assert_eq!(ran.succeeded().sorted(), ["/etc/hostname unset"; 2], "{ran}");
}

#[test]
fn frameworks_find_rank_0() {
    let field = Field::new();
    let script = "test $JAX_COORDINATOR_ADDRESS = $MASTER_ADDR:$MASTER_PORT && \
                  echo $LOCAL_SIZE $CROSS_RANK $CROSS_SIZE $GROUP_WORLD_SIZE";
    let ran = field.rlaunch("-H a:2,b").sh(script).run();
    assert_eq!(ran.succeeded().sorted(), ["1 1 2 2", "2 0 2 2", "2 0 2 2"], "{ran}");
}

#[test]
fn other_launchers_variables_come_on_request() {
    let field = Field::new();
    let ran = field.rlaunch("-H a:2,b --env-style tensorflow").sh("echo $TF_CONFIG").run();
    let configs: Vec<serde_json::Value> =
        ran.succeeded().sorted().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let workers = configs[0]["cluster"]["worker"].as_array().unwrap();
    let mut servers: Vec<&str> = workers.iter().map(|server| server.as_str().unwrap()).collect();
    servers.sort_unstable();
    servers.dedup();
    assert_eq!(servers.len(), 3, "{ran}");
    let port = |server: &&str| server.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    assert!(servers.iter().all(|server| (21_000..=21_511).contains(&port(server))), "{ran}");
    let mut tasks: Vec<_> = configs.iter().map(|config| config["task"]["index"].as_u64()).collect();
    tasks.sort_unstable();
    assert_eq!(tasks, [Some(0), Some(1), Some(2)]);
    let ran = field
        .rlaunch("-H a,b --env-style slurm --env-style openmpi")
        .sh("echo $SLURM_PROCID $SLURM_NTASKS $SLURM_STEP_NODELIST ${OMPI_MCA_orte_hnp_uri%%:*}")
        .run();
    assert_eq!(ran.succeeded().sorted(), ["0 2 a,b 1.0;tcp", "1 2 a,b 1.0;tcp"], "{ran}");
    let ran = field.rlaunch("-H a,b").sh("echo ${TF_CONFIG-none} ${SLURM_PROCID-none}").run();
    assert_eq!(ran.succeeded().sorted(), ["none none"; 2]);
}

#[test]
fn processors_of_their_own_are_given_as_long_as_there_are_any() {
    let field = Field::new();
    let ran = field.rlaunch("-H a:2 --cpus-per-rank 1").sh("nproc").run();
    assert_eq!(ran.succeeded().sorted(), ["1", "1"], "{ran}");
    let ran = field.rlaunch("-H a:2 --cpus-per-rank 4000 true").run();
    ran.refused(200, &["a: 2 ranks of 4000 CPUs each are more than the"]);
    let ran = field.rlaunch("-H a --bind gpu true").run();
    ran.refused(200, &["a: rank 0 of this host has no GPU"]);
    let ran = field.rlaunch("-H a --bind none --cpus-per-rank 1 true").run();
    ran.refused(200, &["--cpus-per-rank is for --bind core"]);
}
