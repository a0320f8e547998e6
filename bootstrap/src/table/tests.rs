use super::*;
use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::{Value, json};

/// What the documentation shows: every field has a value somewhere.
const EXAMPLE: &str = include_str!("../../rank-table.example.json");
const SCHEMA: &str = include_str!("../../rank-table.schema.json");

fn address_of(node: u32) -> IpAddr {
    IpAddr::from([10, 1, 0, node as u8 + 1])
}

fn nic(node: u32, device: &str) -> Nic {
    Nic {
        device: device.into(),
        port: 1,
        gid_index: Some(3),
        gid: Some(format!("0000:0000:0000:0000:0000:ffff:0a02:{:04x}", node + 1)),
        netdev: Some("eth1".into()),
        address: Some(IpAddr::from([10, 2, 0, node as u8 + 1])),
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

fn rank(rank: u32, node: u32, local_rank: u32, nics: Vec<u32>) -> RankRow {
    RankRow {
        rank: Rank(rank),
        node: NodeId(node),
        local_rank: LocalRank(local_rank),
        address: address_of(node),
        gpu: Some("0000:17:00.0".into()),
        numa_node: Some(0),
        cpus: Some("0-3,8".into()),
        nics,
    }
}

/// Node 1 has its ranks in another order than the others.
fn rows() -> Rows {
    let places = [(0, 0, 0), (1, 0, 1), (2, 1, 1), (3, 2, 0), (4, 1, 0)];
    Rows {
        version: TABLE_VERSION,
        job: JobId(1).to_string(),
        world_size: 5,
        nodes: (0..3).map(|n| node(n, &["mlx5_0", "mlx5_1"])).collect(),
        ranks: places.into_iter().map(|(r, n, local)| rank(r, n, local, vec![1, 0])).collect(),
        rule: PairRule::SharedMemoryThenTcp,
        exceptions: vec![Exception {
            a: NodeId(1),
            b: NodeId(2),
            nic_a: Some(0),
            nic_b: Some(1),
            connect: Connect::Rdma,
        }],
    }
}

fn error(change: impl Fn(&mut Rows)) -> TableError {
    let mut rows = rows();
    change(&mut rows);
    RankTable::try_from(rows).unwrap_err()
}

#[test]
fn both_ends_of_a_pair_conclude_the_same() {
    let table = RankTable::try_from(rows()).unwrap();
    let connect = |a, b| table.pair(Rank(a), Rank(b)).unwrap().connect;
    assert_eq!(connect(2, 4), Connect::SharedMemory);
    assert_eq!(connect(0, 2), Connect::Tcp);
    assert_eq!(connect(4, 3), Connect::Rdma);
    assert_eq!(table.pair(Rank(3), Rank(2)).unwrap().nic_a, Some(1));
    assert_eq!(table.pair(Rank(2), Rank(3)).unwrap().nic_a, Some(0));
    assert_eq!(table.pair(Rank(0), Rank(5)), None);
    assert_eq!(table.pair(Rank(5), Rank(0)), None);
}

#[test]
fn there_is_no_table_with_a_hole_or_a_duplicate() {
    let missing = TableError::WorldSize { found: 4, expected: 5 };
    assert_eq!(error(|rows| drop(rows.ranks.pop())), missing);
    let double = TableError::OutOfOrder { what: "rank", index: 4, found: 3 };
    assert_eq!(double.to_string(), "row 4 of the ranks is that of rank 3");
    assert_eq!(error(|rows| rows.ranks[4].rank = Rank(3)), double);
    let swapped = TableError::OutOfOrder { what: "node", index: 0, found: 1 };
    assert_eq!(error(|rows| rows.nodes.swap(0, 1)), swapped);
    assert_eq!(error(|rows| rows.ranks[0].node = NodeId(7)), TableError::Dangling(Rank(0)));
    for (rank, local) in [(1, 0), (1, 2), (4, 1), (4, 2), (3, 1)] {
        let node = rows().ranks[rank].node;
        let place = |rows: &mut Rows| rows.ranks[rank].local_rank = LocalRank(local);
        assert_eq!(error(place), TableError::LocalRanks(node), "rank {rank} at {local}");
    }
    let nobody = |rows: &mut Rows| {
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
    let elsewhere = |rows: &mut Rows| rows.ranks[2].address = rows.nodes[0].address;
    assert_eq!(error(elsewhere), TableError::Address(Rank(2)));
    assert_eq!(error(|rows| rows.ranks[0].nics = vec![2]), TableError::Dangling(Rank(0)));
    assert_eq!(error(|rows| rows.ranks[0].nics = vec![1, 1]), TableError::RankNics(Rank(0)));
    let twice = |rows: &mut Rows| rows.nodes[2].nics[1].device = "mlx5_0".into();
    assert_eq!(error(twice), TableError::NodeNics(NodeId(2)));
    let mut two_ports = rows();
    two_ports.nodes[2].nics[1] = Nic { port: 2, ..nic(2, "mlx5_0") };
    assert!(RankTable::try_from(two_ports).is_ok());
}

#[test]
fn an_exception_is_one() {
    let refused = |change: fn(&mut Exception)| {
        let found = error(|rows| change(&mut rows.exceptions[0]));
        assert!(matches!(found, TableError::Exception(..)), "{found:?}");
    };
    refused(|exception| exception.a = NodeId(2));
    refused(|exception| (exception.a, exception.b) = (NodeId(2), NodeId(1)));
    refused(|exception| exception.b = NodeId(3));
    refused(|exception| exception.nic_b = Some(2));
    refused(|exception| exception.nic_a = None);
    refused(|exception| exception.connect = Connect::SharedMemory);
    refused(|exception| {
        *exception = Exception { nic_a: None, nic_b: None, connect: Connect::Tcp, ..*exception };
    });
    let double = |rows: &mut Rows| rows.exceptions.push(rows.exceptions[0].clone());
    assert_eq!(error(double), TableError::Exception(NodeId(1), NodeId(2)));
    let unordered =
        |rows: &mut Rows| rows.exceptions.push(Exception { a: NodeId(0), ..rows.exceptions[0] });
    assert_eq!(error(unordered), TableError::Exception(NodeId(0), NodeId(2)));
}

/// Any table of a few nodes and ranks.
fn any_rows() -> impl Strategy<Value = Rows> {
    let nodes = prop::collection::vec((1..4_u32, 0..4_usize), 1..5);
    nodes.prop_flat_map(|nodes| {
        let mut places = Vec::new();
        let mut pairs = Vec::new();
        for (n, &(ranks, _)) in (0..).zip(&nodes) {
            places.extend((0..ranks).map(|local| (n, local)));
            pairs.extend((0..n).map(|low| (low, n)));
        }
        pairs.sort_unstable();
        let world = places.len();
        let choices = prop::collection::vec(any::<(u32, u32, u8)>(), pairs.len());
        let own = prop::collection::vec(any::<prop::sample::Index>(), world);
        let count = 0..=pairs.len();
        (Just(nodes), Just(places).prop_shuffle(), subsequence(pairs, count), choices, own)
            .prop_map(|(nodes, places, pairs, choices, own)| {
                some_rows(&nodes, &places, &pairs, &choices, &own)
            })
    })
}

fn some_rows(
    nodes: &[(u32, usize)],
    places: &[(u32, u32)],
    pairs: &[(u32, u32)],
    choices: &[(u32, u32, u8)],
    own: &[prop::sample::Index],
) -> Rows {
    const DEVICES: [&str; 3] = ["mlx5_0", "mlx5_1", "rxe0"];
    let nics = |node: u32| nodes[node as usize].1;
    let with = |(&(a, b), &(nic_a, nic_b, by)): (&(u32, u32), &(u32, u32, u8))| {
        let (count_a, count_b) = (nics(a) as u32, nics(b) as u32);
        let connects = [Connect::Tcp, Connect::Rdma, Connect::RdmaCm];
        (count_a > 0 && count_b > 0).then(|| Exception {
            a: NodeId(a),
            b: NodeId(b),
            nic_a: Some(nic_a % count_a),
            nic_b: Some(nic_b % count_b),
            connect: connects[usize::from(by) % connects.len()],
        })
    };
    let ranks = (0..).zip(places.iter().zip(own));
    Rows {
        version: TABLE_VERSION,
        job: JobId(u128::MAX - 7).to_string(),
        world_size: places.len() as u32,
        nodes: (0..).zip(nodes).map(|(n, &(_, nics))| node(n, &DEVICES[..nics])).collect(),
        ranks: ranks
            .map(|(r, (&(n, local), own))| {
                let nics = nics(n);
                let best = (nics > 0).then(|| own.index(nics) as u32);
                rank(r, n, local, best.into_iter().collect())
            })
            .collect(),
        rule: PairRule::SharedMemoryThenTcp,
        exceptions: pairs.iter().zip(choices).filter_map(with).collect(),
    }
}

proptest! {
    #[test]
    fn every_pair_of_any_table_mirrors_itself(rows in any_rows()) {
        let table = RankTable::try_from(rows.clone()).unwrap();
        let all = || (0..table.world_size()).map(Rank);
        for (a, b) in all().flat_map(|a| all().map(move |b| (a, b))) {
            let (here, there) = (table.pair(a, b).unwrap(), table.pair(b, a).unwrap());
            let Pair { nic_a, nic_b, connect, .. } = here;
            prop_assert_eq!(there, Pair { a: b, b: a, nic_a: nic_b, nic_b: nic_a, connect });
            let (node_a, node_b) = (rows.ranks[a.index()].node, rows.ranks[b.index()].node);
            let ends = (node_a.min(node_b), node_a.max(node_b));
            let exception = rows.exceptions.iter().find(|e| (e.a, e.b) == ends);
            let expected = match exception {
                _ if node_a == node_b => (Connect::SharedMemory, None, None),
                None => (Connect::Tcp, None, None),
                Some(e) if node_a == e.a => (e.connect, e.nic_a, e.nic_b),
                Some(e) => (e.connect, e.nic_b, e.nic_a),
            };
            prop_assert_eq!((connect, nic_a, nic_b), expected);
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
    assert!(refused.contains("the local ranks of node 0 have a hole or a duplicate"), "{refused}");
    assert!(postcard::from_bytes::<RankTable>(&postcard::to_allocvec(&rows).unwrap()).is_err());
}

/// One node without RDMA and a pair with it; what a reader of version 1 knows must stay.
#[test]
fn the_example_is_what_is_written() {
    let mut rows = rows();
    rows.world_size = 3;
    rows.nodes[0] = NodeRow { arch: "aarch64".into(), ..node(0, &[]) };
    rows.ranks.truncate(3);
    rows.ranks[0] = RankRow { gpu: None, numa_node: None, cpus: None, ..rank(0, 0, 0, vec![]) };
    rows.ranks[1] = rank(1, 1, 0, vec![0, 1]);
    rows.ranks[2] = rank(2, 2, 0, vec![1]);
    rows.nodes[1].nics[1] = Nic {
        gid_index: None,
        gid: None,
        netdev: None,
        address: None,
        mtu: None,
        rate_mbps: None,
        ..nic(1, "mlx5_1")
    };
    let table = RankTable::try_from(rows).unwrap();
    let written = serde_json::to_string_pretty(&table).unwrap() + "\n";
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

/// Pointers to everything in `value`, itself included.
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

/// Whatever the schema lets pass can be read.
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
            let readable = serde_json::from_value::<Rows>(changed.clone()).is_ok();
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
