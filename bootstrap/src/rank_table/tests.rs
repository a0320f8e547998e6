use super::*;
use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::{Value, json};

/// Table of the documentation, in which every field has a value somewhere.
const EXAMPLE: &str = include_str!("../../rank-table.example.json");
const SCHEMA: &str = include_str!("../../rank-table.schema.json");

fn address_of(node: u32) -> IpAddr {
    IpAddr::from([10, 1, 0, node as u8 + 1])
}

fn nic(node: u32, device: &str) -> Nic {
    Nic {
        device: device.into(),
        port: 1,
        rail: u32::from(device != "mlx5_0"),
        transport: Transport::Roce,
        software: device.starts_with("rxe"),
        by_manager: false,
        gid_index: Some(3),
        gid: Some(format!("0000:0000:0000:0000:0000:ffff:0a02:{:04x}", node + 1)),
        netdev: Some("eth1".into()),
        address: Some(IpAddr::from([10, 2, 0, node as u8 + 1])),
        networks: vec![if device == "mlx5_0" { "10.2.0.0/16" } else { "10.3.0.0/16" }.into()],
        mtu: Some(4096),
        rate_mbps: Some(100_000),
    }
}

fn node(number: u32, nics: &[&str]) -> NodeRow {
    NodeRow {
        node: NodeId(number),
        host: format!("h{number}"),
        hostname: format!("h{number}.example"),
        arch: "x86_64".into(),
        address: address_of(number),
        addresses: vec![InterfaceAddress {
            interface: "eth0".into(),
            address: address_of(number),
            prefix: 16,
        }],
        nics: nics.iter().map(|device| nic(number, device)).collect(),
    }
}

fn near(nic: u32) -> RankNic {
    RankNic { nic, distance: Distance::Switch }
}

fn end(node: u32, nic: u32) -> NicId {
    NicId { node: NodeId(node), nic }
}

fn rank(rank: u32, node: u32, local_rank: u32, nics: Vec<u32>) -> RankRow {
    RankRow {
        rank: Rank(rank),
        node: NodeId(node),
        local_rank: LocalRank(local_rank),
        address: address_of(node),
        gpu: Some("0000:17:00.0".into()),
        numa_node: Some(0),
        cpus: Some("0-3,8".into()),
        nics: nics.into_iter().map(near).collect(),
    }
}

/// Makes a table in which the local ranks of node 1 are in the opposite order of the ranks: rank 2
/// has local rank 1, and rank 4 has local rank 0.
fn rows() -> UncheckedTable {
    let places = [(0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 2, 0), (4, 1, 0)];
    UncheckedTable {
        version: TABLE_VERSION,
        job: JobId(1).to_string(),
        world_size: 5,
        nodes: (0..3).map(|n| node(n, &["mlx5_0", "mlx5_1"])).collect(),
        ranks: places.into_iter().map(|(r, n, local)| rank(r, n, local, vec![1, 0])).collect(),
        rule: PairRule::SharedMemoryThenRdmaThenTcp,
        packet_priority: PacketPriority::default(),
        exceptions: vec![PairException { a: end(1, 0), b: end(2, 1), reach: true, mtu: None }],
    }
}

fn error(change: impl Fn(&mut UncheckedTable)) -> TableError {
    let mut rows = rows();
    change(&mut rows);
    RankTable::try_from(rows).unwrap_err()
}

#[test]
fn both_ends_of_a_pair_conclude_the_same() {
    let table = RankTable::try_from(rows()).unwrap();
    let connect = |a, b| table.pair(Rank(a), Rank(b)).unwrap().connect;
    assert_eq!(connect(2, 4), PairTransport::SharedMemory);
    assert_eq!(connect(0, 2), PairTransport::Rdma);
    assert_eq!(table.pair(Rank(0), Rank(5)), None);
    assert_eq!(table.pair(Rank(5), Rank(0)), None);
}

/// Returns the NICs that connect ranks 0 and 3, which run on nodes 0 and 2, and their transport.
fn chosen(change: impl Fn(&mut UncheckedTable)) -> (Option<u32>, Option<u32>, PairTransport) {
    let mut rows = rows();
    rows.exceptions.clear();
    change(&mut rows);
    let table = RankTable::try_from(rows).unwrap();
    let Pair { nic_a, nic_b, connect, .. } = table.pair(Rank(0), Rank(3)).unwrap();
    (nic_a, nic_b, connect)
}

#[test]
fn the_nearest_nics_with_a_common_network_are_taken() {
    let both = |nic| (Some(nic), Some(nic), PairTransport::Rdma);
    assert_eq!(chosen(|_| {}), both(1), "both are equally near, and 1 comes first");
    assert_eq!(chosen(|rows| rows.ranks[0].nics[1].distance = Distance::Same), both(0));
    let far = |rows: &mut UncheckedTable| rows.ranks[3].nics[0].distance = Distance::System;
    assert_eq!(chosen(far), both(0), "one far end is too much");
    assert_eq!(chosen(|rows| rows.nodes[2].nics[1].rate_mbps = Some(40_000)), both(0));
    assert_eq!(chosen(|rows| rows.nodes[0].nics[1].networks.clear()), both(0));
    assert_eq!(chosen(|rows| rows.nodes[0].nics[1].transport = Transport::Infiniband), both(0));
    assert_eq!(chosen(|rows| rows.nodes[2].nics[1].software = true), both(0));
    let unreachable = |rows: &mut UncheckedTable| {
        rows.exceptions =
            vec![PairException { a: end(0, 1), b: end(2, 1), reach: false, mtu: None }];
    };
    assert_eq!(chosen(unreachable), both(0));
}

#[test]
fn of_one_network_equal_rails_are_taken() {
    let flat = |rows: &mut UncheckedTable| {
        rows.ranks[3].nics.reverse();
        rows.nodes.iter_mut().flat_map(|node| &mut node.nics).for_each(|nic| {
            nic.networks = vec!["10.0.0.0/8".into()];
        });
    };
    assert_eq!(chosen(flat), (Some(1), Some(1), PairTransport::Rdma));
    let crossed = |rows: &mut UncheckedTable| {
        flat(rows);
        rows.nodes[2].nics.iter_mut().for_each(|nic| nic.rail = 1 - nic.rail);
    };
    assert_eq!(chosen(crossed), (Some(1), Some(0), PairTransport::Rdma));
}

#[test]
fn where_no_nics_meet_tcp_is_used() {
    let tcp = (None, None, PairTransport::Tcp);
    assert_eq!(chosen(|rows| rows.rule = PairRule::SharedMemoryThenTcp), tcp);
    assert_eq!(chosen(|rows| rows.ranks[0].nics.clear()), tcp);
    let iwarp = |nics: &mut [Nic]| {
        nics.iter_mut().for_each(|nic| {
            (nic.transport, nic.by_manager) = (Transport::Iwarp, true);
        });
    };
    assert_eq!(chosen(|rows| iwarp(&mut rows.nodes[0].nics)), tcp);
    let (.., connect) = chosen(|rows| rows.nodes.iter_mut().for_each(|n| iwarp(&mut n.nics)));
    assert_eq!(connect, PairTransport::RdmaCm);
}

#[test]
fn the_smaller_mtu_is_that_of_the_pair() {
    let mut rows = rows();
    rows.nodes[2].nics[1].mtu = Some(1024);
    let table = RankTable::try_from(rows).unwrap();
    for (a, b) in [(0, 3), (3, 0)] {
        assert_eq!(table.pair(Rank(a), Rank(b)).unwrap().mtu, Some(1024));
    }
}

#[test]
fn there_is_no_table_with_a_hole_or_a_duplicate() {
    let missing = TableError::WorldSize { found: 4, expected: 5 };
    assert_eq!(error(|rows| drop(rows.ranks.pop())), missing);
    let double = TableError::OutOfOrder { what: "rank", index: 4, found: 3 };
    assert_eq!(double.to_string(), "row 4 of the ranks belongs to rank 3");
    assert_eq!(error(|rows| rows.ranks[4].rank = Rank(3)), double);
    let swapped = TableError::OutOfOrder { what: "node", index: 0, found: 1 };
    assert_eq!(error(|rows| rows.nodes.swap(0, 1)), swapped);
    assert_eq!(error(|rows| rows.ranks[0].node = NodeId(7)), TableError::UnknownNodeOrNic(Rank(0)));
    for (rank, local) in [(1, 0), (1, 2), (4, 1), (4, 2), (3, 1)] {
        let node = rows().ranks[rank].node;
        let place = |rows: &mut UncheckedTable| rows.ranks[rank].local_rank = LocalRank(local);
        assert_eq!(error(place), TableError::LocalRanks(node), "rank {rank} at {local}");
    }
    let nobody = |rows: &mut UncheckedTable| {
        rows.world_size = 0;
        rows.ranks.clear();
    };
    assert_eq!(error(nobody), TableError::Empty);
}

#[test]
fn rows_at_odds_with_one_another_are_no_table() {
    assert_eq!(error(|rows| rows.version = 9), TableError::Version(9));
    for job in ["", "1", "0000000000000000000000000000000G", &"A".repeat(32), &"é".repeat(16)] {
        assert_eq!(error(|rows| rows.job = job.into()), TableError::Job, "{job}");
    }
    let elsewhere = |rows: &mut UncheckedTable| rows.ranks[2].address = rows.nodes[0].address;
    assert_eq!(error(elsewhere), TableError::Address(Rank(2)));
    assert_eq!(
        error(|rows| rows.ranks[0].nics = vec![near(2)]),
        TableError::UnknownNodeOrNic(Rank(0))
    );
    let double = |rows: &mut UncheckedTable| rows.ranks[0].nics = vec![near(1), near(1)];
    assert_eq!(error(double), TableError::RankNics(Rank(0)));
    let twice = |rows: &mut UncheckedTable| rows.nodes[2].nics[1].device = "mlx5_0".into();
    assert_eq!(error(twice), TableError::NodeNics(NodeId(2)));
    for other in [
        Nic { port: 2, ..nic(2, "mlx5_0") },
        Nic { address: "fd00::2".parse().ok(), ..nic(2, "mlx5_0") },
    ] {
        let mut two_ports = rows();
        two_ports.exceptions.clear();
        two_ports.nodes[2].nics[1] = other;
        assert!(RankTable::try_from(two_ports).is_ok());
    }
}

#[test]
fn an_exception_is_one() {
    let refused = |change: fn(&mut PairException)| {
        let found = error(|rows| change(&mut rows.exceptions[0]));
        assert!(matches!(found, TableError::Exception(..)), "{found:?}");
    };
    refused(|exception| exception.a = end(2, 0));
    refused(|exception| (exception.a, exception.b) = (end(2, 1), end(1, 0)));
    refused(|exception| exception.b = end(3, 1));
    refused(|exception| exception.b = end(2, 2));
    refused(|exception| exception.reach = false);
    refused(|exception| exception.b = end(2, 0));
    let other = |rows: &mut UncheckedTable| rows.nodes[1].nics[0].transport = Transport::Iwarp;
    assert_eq!(error(other), TableError::Exception(NodeId(1), NodeId(2)));
    let double = |rows: &mut UncheckedTable| rows.exceptions.push(rows.exceptions[0]);
    assert_eq!(error(double), TableError::Exception(NodeId(1), NodeId(2)));
    let unordered = |rows: &mut UncheckedTable| {
        rows.exceptions.push(PairException { a: end(0, 0), ..rows.exceptions[0] });
    };
    assert_eq!(error(unordered), TableError::Exception(NodeId(0), NodeId(2)));
}

fn any_rows() -> impl Strategy<Value = UncheckedTable> {
    let nodes = prop::collection::vec((1..4_u32, 0..4_usize), 1..5);
    nodes.prop_flat_map(|nodes| {
        let mut places = Vec::new();
        let mut pairs = Vec::new();
        let ends = |n: usize, nics: usize| (0..nics as u32).map(move |nic| end(n as u32, nic));
        for (n, &(ranks, nics)) in nodes.iter().enumerate() {
            places.extend((0..ranks).map(|local| (n as u32, local)));
            for (low, &(_, others)) in nodes[..n].iter().enumerate() {
                pairs.extend(ends(low, others).flat_map(|a| ends(n, nics).map(move |b| (a, b))));
            }
        }
        pairs.sort_unstable();
        let world = places.len();
        let own = prop::collection::vec(any::<(prop::sample::Index, bool)>(), world);
        let count = 0..=pairs.len();
        let rdma = any::<bool>();
        (Just(nodes), Just(places).prop_shuffle(), subsequence(pairs, count), own, rdma).prop_map(
            |(nodes, places, pairs, own, rdma)| some_rows(&nodes, &places, &pairs, &own, rdma),
        )
    })
}

fn some_rows(
    nodes: &[(u32, usize)],
    places: &[(u32, u32)],
    pairs: &[(NicId, NicId)],
    own: &[(prop::sample::Index, bool)],
    rdma: bool,
) -> UncheckedTable {
    const DEVICES: [&str; 3] = ["mlx5_0", "mlx5_1", "rxe0"];
    let rows: Vec<NodeRow> =
        (0..).zip(nodes).map(|(n, &(_, nics))| node(n, &DEVICES[..nics])).collect();
    let reaches = |a: NicId, b: NicId| {
        let nic = |end: NicId| &rows[end.node.index()].nics[end.nic as usize];
        nic(a).can_reach(nic(b))
    };
    let exceptions = pairs
        .iter()
        .map(|&(a, b)| PairException { a, b, reach: !reaches(a, b), mtu: None })
        .collect();
    let ranks = (0..).zip(places.iter().zip(own)).map(|(r, (&(n, local), (best, far)))| {
        let nics = nodes[n as usize].1;
        let best = (nics > 0).then(|| best.index(nics) as u32);
        let others = (0..nics as u32).filter(|nic| Some(*nic) != best && *far);
        let mut row = rank(r, n, local, best.into_iter().chain(others).collect());
        if let (true, Some(last)) = (*far, row.nics.last_mut()) {
            last.distance = Distance::System;
        }
        row
    });
    UncheckedTable {
        version: TABLE_VERSION,
        job: JobId(u128::MAX - 7).to_string(),
        world_size: places.len() as u32,
        ranks: ranks.collect(),
        nodes: rows.clone(),
        rule: if rdma {
            PairRule::SharedMemoryThenRdmaThenTcp
        } else {
            PairRule::SharedMemoryThenTcp
        },
        packet_priority: PacketPriority::default(),
        exceptions,
    }
}

proptest! {
    #[test]
    fn every_pair_of_any_table_mirrors_itself(rows in any_rows()) {
        let table = RankTable::try_from(rows.clone()).unwrap();
        let all = || (0..table.world_size()).map(Rank);
        for (a, b) in all().flat_map(|a| all().map(move |b| (a, b))) {
            let (here, there) = (table.pair(a, b).unwrap(), table.pair(b, a).unwrap());
            let Pair { nic_a, nic_b, connect, mtu, .. } = here;
            prop_assert_eq!(there, Pair { a: b, b: a, nic_a: nic_b, nic_b: nic_a, connect, mtu });
            let (row_a, row_b) = (&rows.ranks[a.index()], &rows.ranks[b.index()]);
            let reach = |a: u32, b: u32| {
                let ends = [NicId { node: row_a.node, nic: a }, NicId { node: row_b.node, nic: b }];
                let excepted = rows.exceptions.iter().find(|e| ends.contains(&e.a) && ends.contains(&e.b));
                let nic = |end: NicId| &rows.nodes[end.node.index()].nics[end.nic as usize];
                excepted.map_or(nic(ends[0]).can_reach(nic(ends[1])), |e| e.reach)
            };
            let mut some = row_a.nics.iter().flat_map(|a| row_b.nics.iter().map(|b| (a.nic, b.nic)));
            let rdma = rows.rule == PairRule::SharedMemoryThenRdmaThenTcp
                && row_a.node != row_b.node
                && some.any(|(a, b)| reach(a, b));
            match (nic_a, nic_b) {
                (Some(nic_a), Some(nic_b)) => prop_assert!(rdma && reach(nic_a, nic_b)),
                (None, None) => prop_assert!(!rdma),
                _ => prop_assert!(false, "a NIC at one end alone"),
            }
        }
    }

    #[test]
    fn any_table_survives_both_formats(rows in any_rows()) {
        let table = RankTable::try_from(rows).unwrap();
        let wire = postcard::to_allocvec(&table).unwrap();
        prop_assert_eq!(&postcard::from_bytes::<RankTable>(&wire).unwrap(), &table);
        let text = serde_json::to_string(&table).unwrap();
        prop_assert_eq!(&serde_json::from_str::<RankTable>(&text).unwrap(), &table);
    }

    #[test]
    fn no_row_of_any_table_can_go(rows in any_rows(), which in any::<prop::sample::Index>()) {
        let mut short = rows.clone();
        short.ranks.remove(which.index(rows.ranks.len()));
        prop_assert!(RankTable::try_from(short.clone()).is_err());
        short.world_size -= 1;
        let last = which.index(rows.ranks.len()) + 1 == rows.ranks.len();
        prop_assert!(last || RankTable::try_from(short).is_err());
        let mut short = rows.clone();
        short.nodes.remove(which.index(rows.nodes.len()));
        prop_assert!(RankTable::try_from(short).is_err());
    }
}

#[test]
fn reading_a_table_checks_it() {
    let mut rows = rows();
    rows.ranks[1].local_rank = LocalRank(0);
    let text = serde_json::to_string(&rows).unwrap();
    let refused = serde_json::from_str::<RankTable>(&text).unwrap_err().to_string();
    assert!(refused.contains("the local ranks of node 0 have a gap or a duplicate"), "{refused}");
    assert!(postcard::from_bytes::<RankTable>(&postcard::to_allocvec(&rows).unwrap()).is_err());
}

/// The example has one node without RDMA and two nodes with RDMA. Readers of this version must be
/// able to read later tables of the same version.
#[test]
fn the_example_is_what_is_written() {
    let mut rows = rows();
    rows.world_size = 3;
    rows.nodes[0] = NodeRow { arch: "aarch64".into(), ..node(0, &[]) };
    rows.ranks.truncate(3);
    rows.ranks[0] = RankRow { gpu: None, numa_node: None, cpus: None, ..rank(0, 0, 0, vec![]) };
    rows.ranks[1] = rank(1, 1, 0, vec![0, 1]);
    rows.ranks[2] = rank(2, 2, 0, vec![1]);
    rows.exceptions = vec![PairException { a: end(1, 0), b: end(2, 1), reach: true, mtu: None }];
    rows.nodes[1].nics[1] = Nic {
        gid_index: None,
        gid: None,
        netdev: None,
        address: None,
        networks: vec![],
        mtu: None,
        rate_mbps: None,
        ..nic(1, "mlx5_1")
    };
    let table = RankTable::try_from(rows).unwrap();
    let written = serde_json::to_string_pretty(&table).unwrap() + "\n";
    if std::env::var_os("RLAUNCH_BLESS").is_some() {
        std::fs::write("rank-table.example.json", &written).unwrap();
        return;
    }
    assert_eq!(written, EXAMPLE, "a change of meaning needs a new TABLE_VERSION");
    assert_eq!(serde_json::from_str::<RankTable>(EXAMPLE).unwrap(), table);
}

fn schema() -> jsonschema::Validator {
    let schema = serde_json::from_str(SCHEMA).unwrap();
    jsonschema::options().should_validate_formats(true).build(&schema).unwrap()
}

fn example() -> Value {
    serde_json::from_str(EXAMPLE).unwrap()
}

/// Returns JSON pointers to `value` and to everything in it.
fn places(value: &Value) -> Vec<String> {
    let below = |(key, value): (String, &Value)| {
        places(value).into_iter().map(|place| format!("/{key}{place}")).collect::<Vec<_>>()
    };
    let mut found = vec![String::new()];
    match value {
        Value::Array(list) => {
            let keys = (0..).map(|at: usize| at.to_string());
            found.extend(keys.zip(list).flat_map(below));
        }
        Value::Object(map) => found.extend(map.iter().map(|(k, v)| (k.clone(), v)).flat_map(below)),
        _ => {}
    }
    found
}

#[test]
fn the_schema_describes_the_example() {
    let text: Value = serde_json::from_str(SCHEMA).unwrap();
    assert!(jsonschema::meta::is_valid(&text));
    let errors: Vec<String> = schema().iter_errors(&example()).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn the_schema_knows_every_field_and_no_other() {
    let (schema, example) = (schema(), example());
    for place in places(&example) {
        let Some(object) = example.pointer(&place).and_then(Value::as_object) else { continue };
        let mut more = example.clone();
        more.pointer_mut(&place).unwrap()["surplus"] = json!(1);
        assert!(!schema.is_valid(&more), "{place}/surplus");
        for key in object.keys() {
            let mut less = example.clone();
            less.pointer_mut(&place).unwrap().as_object_mut().unwrap().remove(key);
            assert!(!schema.is_valid(&less), "without {place}/{key}");
        }
    }
}

/// Every document that the schema accepts must be readable.
#[test]
fn the_schema_is_no_looser_than_the_types() {
    let (schema, example) = (schema(), example());
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(0.5),
        json!(256),
        json!(65_536),
        json!(1_u64 << 32),
        json!(""),
        json!("odd"),
        json!("10.1.0.1/16"),
        json!("fe80::1%eth0"),
        json!("tcp"),
        json!([]),
        json!({}),
    ];
    let mut both = 0;
    for place in places(&example) {
        for value in &odd {
            let mut changed = example.clone();
            *changed.pointer_mut(&place).unwrap() = value.clone();
            let readable = serde_json::from_value::<UncheckedTable>(changed.clone()).is_ok();
            let valid = schema.is_valid(&changed);
            assert!(readable || !valid, "{place}: {value} is valid and cannot be read");
            both += u32::from(readable && valid);
        }
    }
    assert!(both > 50, "the schema refuses what it should not: {both}");
}

proptest! {
    #[test]
    fn any_table_is_as_the_schema_says(rows in any_rows()) {
        let table = serde_json::to_value(RankTable::try_from(rows).unwrap()).unwrap();
        let errors: Vec<String> = schema().iter_errors(&table).map(|e| e.to_string()).collect();
        prop_assert!(errors.is_empty(), "{:?}", errors);
    }
}

fn layout() -> RankLayout {
    let node = |host: &str, ranks: &[u32]| NodeRanks {
        host: host.to_owned(),
        ranks: ranks.iter().copied().map(Rank).collect(),
    };
    RankLayout { nodes: vec![node("a", &[0, 2]), node("b", &[1])], first_ranks: vec![Rank(2)] }
}

#[test]
fn a_message_has_the_table_and_the_layout() {
    let message = layout().encode_message(b"{}").unwrap();
    let message = TableMessage::parse(&message.into()).unwrap();
    assert_eq!(message.json(), b"{}");
    assert_eq!(message.layout().unwrap(), layout());
}

#[test]
fn programs_follow_each_other() {
    let programs: Vec<usize> = (0..3).map(|rank| layout().application_of(Rank(rank))).collect();
    assert_eq!(programs, [0, 0, 1]);
}

#[test]
fn messages_that_are_cut_off_are_refused() {
    let message = layout().encode_message(b"{\"version\":4}").unwrap();
    for length in 0..message.len() {
        let cut = TableMessage::parse(&message[..length].to_vec().into());
        assert!(cut.is_err() || cut.unwrap().layout().is_err(), "{length}");
    }
}
