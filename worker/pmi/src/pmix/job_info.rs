//! What a client is told of the job before it asks, by the environment of its rank, and in answer to
//! its first request: all ranks of the job, their nodes and programs.
//!
//! The answer is equal for all clients of a node. Its size is about 220 bytes for each rank of the job.

use super::bfrops::{Item, Writer};
use crate::layout::{JobLayout, NodeLayout, RankPlace};
use crate::sorted_map::SortedMap;

/// Program of the job: its number of ranks, and the lowest of them.
#[derive(Clone, Copy, Debug, Default)]
struct Application {
    size: u32,
    first: u32,
}

/// Returns the body of the answer for the clients of the node `layout.here`.
pub(super) fn body(layout: &JobLayout) -> Vec<u8> {
    let applications = applications(layout);
    let mut writer = Writer::new();
    writer.count(1).string(layout.namespace.as_bytes());
    job(&mut writer, layout, &applications);
    nodes(&mut writer, layout);
    for (&number, application) in applications.iter() {
        let infos = [
            ("pmix.appnum", Item::U32(number)),
            ("pmix.app.size", Item::U32(application.size)),
            ("pmix.aldr", Item::Rank(application.first)),
        ];
        writer.key_value("pmix.app.arr", Item::Infos(&infos));
    }
    ranks(&mut writer, layout);
    writer.into_bytes()
}

/// Writes what holds for the job, and for this node.
fn job(writer: &mut Writer, layout: &JobLayout, applications: &SortedMap<u32, Application>) {
    let world = layout.world_size();
    writer.key_value("pmix.jobid", Item::Text(&layout.namespace));
    writer.key_value("pmix.job.size", Item::U32(world));
    writer.key_value("pmix.univ.size", Item::U32(world));
    writer.key_value("pmix.max.size", Item::U32(world));
    writer.key_value("pmix.job.napps", Item::U32(number(applications.len())));
    writer.key_value("pmix.num.nodes", Item::U32(number(layout.nodes.len())));
    if applications.len() > 1 {
        // Open MPI 5 has keys of its own for the programs.
        let list = |of: fn(&Application) -> u32| joined(applications.values().map(of), " ");
        let sizes = list(|application| application.size);
        writer.key_value("OMPI_APP_SIZES", Item::Text(&sizes));
        let firsts = list(|application| application.first);
        writer.key_value("OMPI_FIRST_RANKS", Item::Text(&firsts));
    } else {
        writer.key_value("pmix.app.size", Item::U32(world));
    }
    if let Some(directory) = &layout.directory {
        writer.key_value("pmix.tmpdir", Item::Text(directory));
        writer.key_value("pmix.nsdir", Item::Text(directory));
    }
    if let Some(here) = layout.nodes.get(layout.here) {
        for (key, value) in node_infos(here, &local_peers(here)) {
            writer.key_value(key, value);
        }
    }
}

/// Writes which ranks run on which node: a map of which older clients derive the rest, and an array for
/// each node.
fn nodes(writer: &mut Writer, layout: &JobLayout) {
    let mut map = Writer::new();
    map.count(1).size(layout.nodes.len() as u64);
    for node in &layout.nodes {
        map.key_value(&node.host, Item::Text(&local_peers(node)));
    }
    writer.key_value("pmix.mblob", Item::Bytes(&map.into_bytes()));
    for (index, node) in layout.nodes.iter().enumerate() {
        let peers = local_peers(node);
        let mut infos =
            vec![("pmix.hname", Item::Text(&node.host)), ("pmix.nodeid", Item::U32(number(index)))];
        infos.extend(node_infos(node, &peers));
        writer.key_value("pmix.node.arr", Item::Infos(&infos));
    }
}

/// Returns what holds for a node; `peers` is the list of its ranks.
fn node_infos<'a>(node: &NodeLayout, peers: &'a str) -> [(&'static str, Item<'a>); 4] {
    let size = Item::U32(number(node.ranks.len()));
    let first = node.ranks.iter().min().copied().unwrap_or(0);
    [
        ("pmix.local.size", size),
        ("pmix.node.size", size),
        ("pmix.lpeers", Item::Text(peers)),
        ("pmix.lldr", Item::Rank(first)),
    ]
}

/// Writes what holds for each rank, in the order of ranks.
fn ranks(writer: &mut Writer, layout: &JobLayout) {
    let mut places = SortedMap::default();
    for (index, node) in layout.nodes.iter().enumerate() {
        for (local, &rank) in node.ranks.iter().enumerate() {
            places.insert(rank, (index, node, local));
        }
    }
    let mut next_of_application = SortedMap::default();
    for (rank, (index, node, local)) in places.into_entries() {
        let local = u16::try_from(local).unwrap_or(u16::MAX);
        let application = application(layout, rank);
        let in_application: &mut u32 = next_of_application.get_or_insert_with(application, || 0);
        let mut proc = Writer::new();
        proc.count(1).u32(rank);
        proc.key_value("pmix.hname", Item::Text(&node.host));
        proc.key_value("pmix.nodeid", Item::U32(number(index)));
        proc.key_value("pmix.lrank", Item::U16(local));
        proc.key_value("pmix.nrank", Item::U16(local));
        proc.key_value("pmix.appnum", Item::U32(application));
        proc.key_value("pmix.apprank", Item::Rank(*in_application));
        proc.key_value("pmix.grank", Item::Rank(rank));
        if let Some(directory) = layout.rank_directory(rank).filter(|_| index == layout.here) {
            proc.key_value("pmix.pdir", Item::Text(&directory));
        }
        writer.key_value("pmix.pblob", Item::Bytes(&proc.into_bytes()));
        *in_application += 1;
    }
}

/// Returns the programs of the job, by number.
fn applications(layout: &JobLayout) -> SortedMap<u32, Application> {
    let mut applications = SortedMap::default();
    for rank in (0..layout.world_size()).rev() {
        let application: &mut Application =
            applications.get_or_insert_with(application(layout, rank), Application::default);
        application.size += 1;
        application.first = rank;
    }
    applications
}

fn application(layout: &JobLayout, rank: u32) -> u32 {
    let index = usize::try_from(rank).unwrap_or(usize::MAX);
    layout.application_of.get(index).copied().unwrap_or(0)
}

/// Returns the list of the ranks of a node.
fn local_peers(node: &NodeLayout) -> String {
    joined(node.ranks.iter().copied(), ",")
}

fn joined(numbers: impl Iterator<Item = u32>, separator: &str) -> String {
    let mut text = String::new();
    for number in numbers {
        if !text.is_empty() {
            text.push_str(separator);
        }
        text.push_str(&number.to_string());
    }
    text
}

fn number(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Variables of other launchers that a rank must not inherit. A client takes the dialect, and the server,
/// of the first address that it finds; this server speaks only that of version 3.
pub const REMOVED: [&str; 6] = [
    "PMIX_SERVER_URI61", "PMIX_SERVER_URI51", "PMIX_SERVER_URI41", "PMIX_SERVER_URI4",
    "PMIX_SERVER_URI21", "PMIX_SERVER_URI2",
];

/// Version of PMIx that the server passes itself off as, so that newer clients speak the dialect of
/// version 3.
const VERSION: &str = "3.2.5";

/// Returns the variables by which a rank finds the agent's port on 127.0.0.1. `directory` is a folder for
/// temporary files of the job.
pub fn environment(place: &RankPlace, port: u16, directory: &str) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    let mut add = |name: &str, value: &str| variables.push((name.to_owned(), value.to_owned()));
    add("PMIX_NAMESPACE", &place.namespace);
    add("PMIX_RANK", &place.rank.to_string());
    add("PMIX_SERVER_URI3", &format!("rlaunch.{};tcp4://127.0.0.1:{port}", place.node));
    add("PMIX_SECURITY_MODE", "native");
    add("PMIX_BFROP_BUFFER_TYPE", "PMIX_BFROP_BUFFER_NON_DESC");
    add("PMIX_GDS_MODULE", "hash");
    add("PMIX_HOSTNAME", &place.host);
    add("PMIX_SERVER_TMPDIR", directory);
    add("PMIX_SYSTEM_TMPDIR", directory);
    add("PMIX_VERSION", VERSION);
    // Open MPI 4 takes itself for a program without launcher unless it has the address of a daemon. It
    // never uses the address.
    add("OMPI_MCA_orte_local_daemon_uri", "1.0;tcp://127.0.0.1:1");
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmix::bfrops::Reader;
    use crate::testing;

    /// Returns keys and values of an answer as lines of text, without the map and the ranks.
    fn lines(bytes: &[u8]) -> Vec<String> {
        let mut reader = Reader::new(bytes);
        let mut lines = Vec::new();
        while !reader.is_at_end() {
            reader.count(1).unwrap();
            let key = reader.string().unwrap();
            lines.push(line(key, reader.value().unwrap()));
        }
        lines
    }

    fn line(key: &[u8], value: crate::pmix::bfrops::Value<'_>) -> String {
        let key = String::from_utf8_lossy(key);
        if let Some(infos) = value.infos() {
            let infos = infos.iter().map(|info| line(info.key, info.value));
            return format!("{key}[{}]", infos.collect::<Vec<_>>().join(" "));
        }
        let mut reader = Reader::new(value.encoded);
        match value.kind {
            3 => format!("{key}={}", String::from_utf8_lossy(reader.string().unwrap())),
            13 => format!("{key}={}u16", reader.u16().unwrap()),
            14 => format!("{key}={}", reader.u32().unwrap()),
            40 => format!("{key}={}rank", reader.u32().unwrap()),
            27 if key == "pmix.mblob" => {
                let mut map = Reader::new(reader.byte_object().unwrap());
                map.count(1).unwrap();
                let number = map.size().unwrap();
                format!("{key}={number} {}", lines(map.rest()).join(" "))
            }
            27 => {
                let mut proc = Reader::new(reader.byte_object().unwrap());
                proc.count(1).unwrap();
                let rank = proc.u32().unwrap();
                format!("{key}={rank} {}", lines(proc.rest()).join(" "))
            }
            kind => panic!("type {kind} of {key}"),
        }
    }

    fn answer(nodes: &[&[u32]], here: usize, application_of: &[u32]) -> Vec<String> {
        let application_of = application_of.to_vec();
        answer_for(&JobLayout { application_of, ..crate::testing::layout(nodes, here) })
    }

    fn answer_for(layout: &JobLayout) -> Vec<String> {
        let bytes = body(layout);
        let mut reader = Reader::new(&bytes);
        reader.count(1).unwrap();
        assert_eq!(reader.string(), Ok(&b"job"[..]));
        lines(reader.rest())
    }

    #[test]
    fn a_job_of_one_program_is_described() {
        let lines = answer(&[&[0, 1], &[2]], 1, &[0, 0, 0]);
        let expected = [
            "pmix.jobid=job",
            "pmix.job.size=3",
            "pmix.univ.size=3",
            "pmix.max.size=3",
            "pmix.job.napps=1",
            "pmix.num.nodes=2",
            "pmix.app.size=3",
            "pmix.local.size=1",
            "pmix.node.size=1",
            "pmix.lpeers=2",
            "pmix.lldr=2rank",
            "pmix.mblob=2 host0=0,1 host1=2",
            "pmix.node.arr[pmix.hname=host0 pmix.nodeid=0 pmix.local.size=2 pmix.node.size=2 \
             pmix.lpeers=0,1 pmix.lldr=0rank]",
            "pmix.node.arr[pmix.hname=host1 pmix.nodeid=1 pmix.local.size=1 pmix.node.size=1 \
             pmix.lpeers=2 pmix.lldr=2rank]",
            "pmix.app.arr[pmix.appnum=0 pmix.app.size=3 pmix.aldr=0rank]",
            "pmix.pblob=0 pmix.hname=host0 pmix.nodeid=0 pmix.lrank=0u16 pmix.nrank=0u16 \
             pmix.appnum=0 pmix.apprank=0rank pmix.grank=0rank",
            "pmix.pblob=1 pmix.hname=host0 pmix.nodeid=0 pmix.lrank=1u16 pmix.nrank=1u16 \
             pmix.appnum=0 pmix.apprank=1rank pmix.grank=1rank",
            "pmix.pblob=2 pmix.hname=host1 pmix.nodeid=1 pmix.lrank=0u16 pmix.nrank=0u16 \
             pmix.appnum=0 pmix.apprank=2rank pmix.grank=2rank",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_job_of_several_programs_is_described() {
        let lines = answer(&[&[0, 2], &[3, 1]], 0, &[0, 1, 1, 5]);
        for expected in [
            "pmix.job.napps=3",
            "OMPI_APP_SIZES=1 2 1",
            "OMPI_FIRST_RANKS=0 1 3",
            "pmix.lpeers=0,2",
            "pmix.mblob=2 host0=0,2 host1=3,1",
            "pmix.app.arr[pmix.appnum=1 pmix.app.size=2 pmix.aldr=1rank]",
            "pmix.app.arr[pmix.appnum=5 pmix.app.size=1 pmix.aldr=3rank]",
            "pmix.pblob=1 pmix.hname=host1 pmix.nodeid=1 pmix.lrank=1u16 pmix.nrank=1u16 \
             pmix.appnum=1 pmix.apprank=0rank pmix.grank=1rank",
            "pmix.pblob=2 pmix.hname=host0 pmix.nodeid=0 pmix.lrank=1u16 pmix.nrank=1u16 \
             pmix.appnum=1 pmix.apprank=1rank pmix.grank=2rank",
        ] {
            assert!(lines.iter().any(|line| line == expected), "{expected} is not in {lines:#?}");
        }
        assert!(!lines.iter().any(|line| line.starts_with("pmix.app.size")));
    }

    #[test]
    fn ranks_of_this_node_have_directories() {
        let mut layout = crate::testing::layout(&[&[0, 1], &[2]], 0);
        layout.directory = Some("/tmp/job/mpi".to_owned());
        let lines = answer_for(&layout);
        let with = |key: &str| lines.iter().filter(|line| line.contains(key)).collect::<Vec<_>>();
        assert_eq!(with("pmix.tmpdir"), ["pmix.tmpdir=/tmp/job/mpi"]);
        assert_eq!(with("pmix.nsdir"), ["pmix.nsdir=/tmp/job/mpi"]);
        let of_ranks = with("pmix.pdir=");
        assert!(of_ranks[0].ends_with(" pmix.pdir=/tmp/job/mpi/0"), "{of_ranks:?}");
        assert!(of_ranks[1].ends_with(" pmix.pdir=/tmp/job/mpi/1"), "{of_ranks:?}");
        assert_eq!(of_ranks.len(), 2);
    }

    #[test]
    fn the_answer_grows_by_a_limited_number_of_bytes_for_each_rank() {
        let ranks: Vec<u32> = (0..1000).collect();
        let small = body(&crate::testing::layout(&[&ranks[..500]], 0)).len();
        let large = body(&crate::testing::layout(&[&ranks], 0)).len();
        assert!((large - small) / 500 < 250, "{} bytes", (large - small) / 500);
    }

    #[test]
    fn a_rank_learns_its_place_and_its_server() {
        let layout = testing::layout(&[&[0, 1], &[2, 3]], 1);
        let variables = environment(&layout.place(3).unwrap(), 5000, "/tmp/job");
        let text: Vec<String> =
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            text,
            [
                "PMIX_NAMESPACE=job",
                "PMIX_RANK=3",
                "PMIX_SERVER_URI3=rlaunch.1;tcp4://127.0.0.1:5000",
                "PMIX_SECURITY_MODE=native",
                "PMIX_BFROP_BUFFER_TYPE=PMIX_BFROP_BUFFER_NON_DESC",
                "PMIX_GDS_MODULE=hash",
                "PMIX_HOSTNAME=host1",
                "PMIX_SERVER_TMPDIR=/tmp/job",
                "PMIX_SYSTEM_TMPDIR=/tmp/job",
                "PMIX_VERSION=3.2.5",
                "OMPI_MCA_orte_local_daemon_uri=1.0;tcp://127.0.0.1:1",
            ]
        );
        assert!(!variables.iter().any(|(name, _)| REMOVED.contains(&&**name)));
    }
}
