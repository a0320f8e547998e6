use super::*;
use crate::options::{EnvStyle, Options};
use crate::selection::{Plan, PortOptions};
use crate::testing::inventory;
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::job::EnvVar;
use std::net::IpAddr;

fn job_of(hosts: &str) -> RankMap {
    let hosts = crate::hosts::parse(&[hosts.into()]).unwrap();
    RankMap::by_slot(&hosts, None, false).unwrap()
}

/// Returns each node's first address that is not loopback.
fn addresses(inventories: &[Inventory]) -> Vec<IpAddr> {
    let first = |inventory: &Inventory| {
        let netdevs = inventory.netdevs.iter().filter(|n| n.kind != NetdevKind::Loopback);
        netdevs.flat_map(|netdev| &netdev.addresses).next().unwrap().0
    };
    inventories.iter().map(first).collect()
}

fn rank_configs(
    hosts: &str,
    inventories: &[Inventory],
    options: &Options,
    env: &[EnvVar],
) -> Vec<Vec<RankConfig>> {
    let map = job_of(hosts);
    let plan = Plan::new(inventories, &options.ports);
    let addresses = addresses(inventories);
    let seen = JobView { id: JobId(7), map: &map, inventories, plan: &plan, addresses: &addresses };
    let ports = vec![vec![21_000, 21_001, 21_002, 21_003]; inventories.len()];
    let fabric = Fabric::new(&map, inventories, &plan, options);
    decide(&UserChoices { options, env }, &seen, &fabric, &ports).unwrap()
}

fn text(setup: &RankConfig) -> Vec<String> {
    setup.defaults.iter().map(|default| format!("{}={}", default.name, default.value)).collect()
}

/// Returns the variables, as `NAME=value`, of the first rank on each of two nodes, up to those of the address of rank 0. The
/// nodes' GPUs are ignored.
fn defaults(inventories: &[Inventory; 2], env: &[EnvVar]) -> [Vec<String>; 2] {
    let without_gpus = inventories.clone().map(|i| Inventory { gpus: vec![], ..i });
    let decided = rank_configs("pc1:2,pc2:2", &without_gpus, &Options::default(), env);
    let is_own = |one: &String| !one.starts_with("MASTER_ADDR=");
    [0, 1].map(|node: usize| text(&decided[node][0]).into_iter().take_while(is_own).collect())
}

#[test]
fn a_pair_with_infiniband_uses_the_active_port_alone() {
    let pair = [inventory("connectx3"), inventory("connectx3")];
    let [one, _] = defaults(&pair, &[]);
    let wanted = [
        "OMP_NUM_THREADS=16", "NCCL_SOCKET_IFNAME==eno1", "GLOO_SOCKET_IFNAME=eno1",
        "TP_SOCKET_IFNAME=eno1", "OMPI_MCA_btl_tcp_if_include=eno1", "FI_TCP_IFACE=eno1",
        "NCCL_IB_HCA==mlx4_0:1", "UCX_NET_DEVICES=mlx4_0:1",
    ];
    assert_eq!(one, wanted);
}

#[test]
fn a_node_of_the_triangle_uses_both_ports_and_its_management_interface() {
    let [one, _] = defaults(&[inventory("spark"), inventory("spark")], &[]);
    assert!(one.contains(&"NCCL_IB_HCA==rocep1s0f0:1,rocep1s0f1:1".to_owned()), "{one:?}");
    assert!(one.contains(&"NCCL_SOCKET_IFNAME==enP7s7".to_owned()), "{one:?}");
}

#[test]
fn erdma_counts_in_compat_mode_alone() {
    let (compat, standard) = (inventory("erdma-compat"), inventory("erdma-standard"));
    let [one, _] = defaults(&[compat.clone(), compat.clone()], &[]);
    assert!(one.contains(&"NCCL_IB_HCA==erdma_0:1".to_owned()), "{one:?}");
    for pair in [[compat, standard.clone()], [standard.clone(), standard]] {
        let [one, other] = defaults(&pair, &[]);
        assert!(one.contains(&"NCCL_IB_DISABLE=1".to_owned()), "{one:?}");
        assert_eq!(one, other);
    }
}

#[test]
fn where_one_node_has_none_nobody_uses_rdma() {
    let pair = [inventory("connectx3"), inventory("siw")];
    for node in defaults(&pair, &[]) {
        assert!(node.contains(&"NCCL_IB_DISABLE=1".to_owned()), "{node:?}");
        let value = |name: &str| node.iter().find_map(|text| text.strip_prefix(name));
        assert_eq!(value("UCX_NET_DEVICES="), value("GLOO_SOCKET_IFNAME="), "{node:?}");
        assert!(!node.iter().any(|text| text.contains("HCA")));
    }
}

#[test]
fn gpus_that_meet_by_tcp_are_mentioned() {
    let map = job_of("ecs1,ecs2");
    let slow_network = |inventories: &[Inventory]| {
        let options = Options::default();
        let plan = Plan::new(inventories, &PortOptions::default());
        let network = Fabric::new(&map, inventories, &plan, &options).network;
        slow_network(&UserChoices { options: &options, env: &[] }, &map, inventories, &network)
    };
    let with_gpu = |name| {
        let gpus = inventory("connectx3").gpus;
        Inventory { gpus, ..inventory(name) }
    };
    let standard = [with_gpu("erdma-standard"), with_gpu("erdma-standard")];
    let (line, hint) = slow_network(&standard).unwrap();
    let why = "ecs1: erdma_0/1 takes RDMA_CM only, erdma_1/1 is DOWN: no carrier";
    assert_eq!(line, format!("NCCL will use TCP on every host ({why})"));
    assert!(hint.unwrap().contains("modprobe erdma compat_mode=Y"));
    let compat = [with_gpu("erdma-compat"), with_gpu("erdma-compat")];
    assert_eq!(slow_network(&compat), None);
    let without = [inventory("erdma-standard"), inventory("erdma-standard")];
    assert_eq!(slow_network(&without), None, "no GPU, no NCCL");
}

#[test]
fn whoever_has_chosen_a_network_is_left_alone() {
    let pair = [inventory("siw"), inventory("siw")];
    for name in ["NCCL_IB_HCA", "NCCL_NET_PLUGIN", "UCX_TLS"] {
        let rule = rlaunch_bootstrap::job::EnvRule::Set;
        let env = [EnvVar { name: name.into(), value: "x".into(), rule }];
        let [one, _] = defaults(&pair, &env);
        assert!(!one.iter().any(|text| text.contains("NCCL_IB")), "{one:?}");
    }
}

#[test]
fn with_gpus_jobs_are_kept_apart() {
    let pair = ["connectx3", "connectx3"].map(inventory);
    let decided = rank_configs("pc1,pc2", &pair, &Options::default(), &[]);
    let set = text(&decided[0][0]);
    for wanted in ["NCCL_SOCKET_MAGIC=7", "NCCL_RAS_ADDR=localhost:21001"] {
        assert!(set.contains(&wanted.to_owned()), "{wanted}: {set:?}");
    }
    // MASTER_PORT is the first port of rank 0's node.
    assert!(text(&decided[1][0]).contains(&"NCCL_RAS_ADDR=localhost:21000".to_owned()));
}

#[test]
fn a_masked_rank_sees_its_gpu_alone() {
    let options = Options { gpu_mask: true, ..Options::default() };
    let decided = rank_configs("big:3", &[inventory("dgx")], &options, &[]);
    let set = text(&decided[0][2]);
    let wanted = ["CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=2"];
    assert!(wanted.iter().all(|wanted| set.contains(&(*wanted).to_owned())), "{set:?}");
    let decided = rank_configs("pc", &[inventory("connectx3")], &options, &[]);
    assert!(text(&decided[0][0]).contains(&"HIP_VISIBLE_DEVICES=0".to_owned()));
}

#[test]
fn a_rank_of_jax_is_told_its_devices_where_they_are_not_that_of_its_number() {
    let devices = |hosts: &str, options: &Options, env: &[EnvVar]| -> Vec<Option<String>> {
        let decided = rank_configs(hosts, &[inventory("dgx")], options, env);
        let of_rank = |setup: &RankConfig| {
            let set = text(setup);
            set.iter().find_map(|one| Some(one.strip_prefix("JAX_LOCAL_DEVICE_IDS=")?.to_owned()))
        };
        decided[0].iter().map(of_rank).collect()
    };
    let some = |ids: &str| Some(ids.to_owned());
    let usual = Options::default();
    assert_eq!(devices("big", &usual, &[]), [some("0,1,2,3,4,5,6,7")]);
    assert_eq!(devices("big:2", &usual, &[]), [some("0,1,2,3"), some("4,5,6,7")]);
    assert_eq!(devices("big:8", &usual, &[]), vec![None; 8]);
    assert_eq!(devices("big:3", &usual, &[]), vec![None; 3]);
    let masked = Options { gpu_mask: true, ..Options::default() };
    assert_eq!(devices("big:8", &masked, &[]), vec![some("0"); 8]);
    let hidden = EnvVar {
        name: "CUDA_VISIBLE_DEVICES".into(),
        value: "2,3".into(),
        rule: rlaunch_bootstrap::job::EnvRule::Set,
    };
    assert_eq!(devices("big", &usual, &[hidden]), [None]);
}

#[test]
fn what_starts_processes_divides_the_processors_itself() {
    let names = |line: &str| -> Vec<String> {
        let words: Vec<_> = line.split(' ').map(std::ffi::OsString::from).collect();
        let starters = vec![crate::program::read(&words).starter];
        let options = Options { starters, horovod: true, ..Options::default() };
        let set = text(
            &rank_configs("a,b", &["connectx3", "connectx3"].map(inventory), &options, &[])[1][0],
        );
        set.iter().filter_map(|one| Some(one.split_once('=')?.0.to_owned())).collect()
    };
    let has = |names: &[String], name: &str| names.iter().any(|own| own.starts_with(name));
    let all = ["OMP_NUM_THREADS", "MASTER_ADDR", "HOROVOD_RANK", "PET_NNODES"];
    for (line, expected) in [
        ("python3 x.py", [true, true, true, false]),
        ("torchrun x.py", [false, true, true, true]),
        ("ray start", [false, false, false, false]),
    ] {
        let names = names(line);
        assert_eq!(all.map(|name| has(&names, name)), expected, "{line}: {names:?}");
    }
}

#[test]
fn ranks_that_share_a_gpu_are_hosts_of_their_own() {
    let options = Options { nccl_share_gpu: true, ..Options::default() };
    let decided = rank_configs("pc:2", &[inventory("connectx3")], &options, &[]);
    for (rank, setup) in decided[0].iter().enumerate() {
        let wanted = format!("NCCL_HOSTID=pc-{rank}");
        assert!(text(setup).contains(&wanted), "{wanted}: {:?}", text(setup));
    }
}

#[test]
fn ranks_that_share_a_switch_begin_with_nics_of_their_own() {
    let nodes = [inventory("dgx"), inventory("dgx")];
    let decided = rank_configs("a:8,b:8", &nodes, &Options::default(), &[]);
    let first: Vec<u32> = decided[0].iter().map(|setup| setup.nics[0].nic).collect();
    assert_eq!(first, [0, 1, 2, 3, 4, 5, 6, 7]);
    for setup in &decided[0] {
        assert_eq!(setup.nics.len(), 8);
        let near = setup.nics.iter().filter(|own| own.distance <= Distance::Switch).count();
        assert_eq!(near, 2, "two NICs hang at the switch of each GPU");
    }
}

#[test]
fn slots_that_were_not_asked_for_are_not_taken_for_gpus() {
    let hosts = crate::hosts::parse(&["a,b,c".into()]).unwrap();
    let map = RankMap::by_slot(&hosts, Some(3), false).unwrap();
    assert!(map.nodes.iter().all(|node| node.ranks.len() == 1));
    let decided = rank_configs("a,b,c", &vec![inventory("dgx"); 3], &Options::default(), &[]);
    assert!(decided.iter().all(|ranks| ranks.len() == 1), "eight GPUs, one rank each");
}

#[test]
fn tensorflow_is_told_the_ports_that_are_held() {
    let options = Options { env_styles: vec![EnvStyle::Tensorflow], ..Options::default() };
    let pair = ["connectx3", "connectx3"].map(inventory);
    let set = text(&rank_configs("pc1:2,pc2:1", &pair, &options, &[])[1][0]);
    let config = set.iter().find_map(|text| text.strip_prefix("TF_CONFIG=")).unwrap();
    let servers = r#"["192.168.1.11:21001","192.168.1.11:21002","192.168.1.11:21000"]"#;
    assert!(config.contains(servers) && config.contains(r#""index":2"#), "{config}");
}
