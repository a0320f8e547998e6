//! Whole copies between places of this process.

use super::local::{fetch_all, send_to_first};
use super::rank::{serve_at, take_part};
use super::report::Reporter;
use super::{LOCAL, RoleError, Settings, listing};
use crate::link::proxy::{self, Fault};
use crate::link::{Acceptor, Peer, dial, lock};
use rlaunch_bootstrap::job::PortRange;
use rlaunch_copy::control::{Report, Request, Role, Secret};
use rlaunch_copy::{CHUNK, Message};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ANY: PortRange = PortRange { first: 0, last: 0 };
/// Length of the large file: three chunks and a half.
const LARGE: usize = 7 << 19;

/// Output of several programs.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn reports(&self) -> Vec<Report> {
        let bytes = lock(&self.0).clone();
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }
}

/// Hosts of a copy, and what is copied.
struct Copy {
    source: TempDir,
    hosts: Vec<TempDir>,
    change: fn(&mut Request),
    /// Fault of the connection to this rank.
    fault: Option<(usize, Fault)>,
}

/// What has become of a copy.
struct Outcome {
    /// Result of the program on the launcher's machine, if there was one.
    local: Result<(), RoleError>,
    ranks: Vec<Result<(), RoleError>>,
    reports: Vec<Report>,
}

impl Outcome {
    /// Returns what each rank received and found.
    fn amounts(&self) -> BTreeMap<u32, (u64, u64)> {
        let amounts = self.reports.iter().filter_map(|report| match report {
            Report::Done { rank, received, unchanged, .. } if *rank != LOCAL => {
                Some((*rank, (*received, *unchanged)))
            }
            _ => None,
        });
        amounts.collect()
    }

    fn all_is_well(&self) {
        let all = [&self.local].into_iter().chain(&self.ranks);
        let errors: Vec<String> =
            all.filter_map(|result| result.as_ref().err()).map(RoleError::text).collect();
        assert_eq!(errors, Vec::<String>::new());
    }

    /// Returns the ranks and texts of reported failures.
    fn failed(&self) -> Vec<(u32, String)> {
        let failed = self.reports.iter().filter_map(|report| match report {
            Report::Failed { rank, text, .. } => Some((*rank, text.clone())),
            _ => None,
        });
        failed.collect()
    }

    /// Returns the errors, that of the program on the launcher's machine first.
    fn errors(&self) -> Vec<String> {
        let all = [&self.local].into_iter().chain(&self.ranks);
        all.map(|result| result.as_ref().map_or_else(RoleError::text, |_| "ok".into())).collect()
    }
}

/// Returns bytes without a pattern, so that no two chunks are equal.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Returns what is in a directory: modes, contents and targets by path.
fn contents(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_dir() {
                left.push(path.clone());
                b"directory".to_vec()
            } else if metadata.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            let mode = if metadata.is_symlink() { 0 } else { metadata.permissions().mode() };
            let relative = path.strip_prefix(root).unwrap().to_owned();
            all.insert(relative, (mode, content));
        }
    }
    all
}

impl Copy {
    /// Makes a tree to be copied, and empty hosts.
    fn new(hosts: usize) -> Copy {
        let source = TempDir::new().unwrap();
        let tree = source.path().join("tree");
        fs::create_dir_all(tree.join("deep/empty")).unwrap();
        fs::write(tree.join("deep/large"), bytes(LARGE, 1)).unwrap();
        fs::write(tree.join("none"), "").unwrap();
        fs::write(tree.join("run.sh"), "exit\n").unwrap();
        fs::set_permissions(tree.join("run.sh"), Permissions::from_mode(0o750)).unwrap();
        symlink("deep/large", tree.join("link")).unwrap();
        let hosts = (0..hosts).map(|_| TempDir::new().unwrap()).collect();
        Copy { source, hosts, change: as_it_is, fault: None }
    }

    fn tree(&self) -> PathBuf {
        self.source.path().join("tree")
    }

    fn request(&self, role: Role, destination: &Path) -> Request {
        let mut request = Request {
            secret: Secret([7; 32]),
            hosts: (0..self.hosts.len()).map(|rank| format!("h{rank}")).collect(),
            plain: false,
            streams: 1,
            destination: destination.to_str().unwrap().to_owned(),
            verify: false,
            limit: None,
            role,
            tree: None,
            last: None,
            image: None,
        };
        (self.change)(&mut request);
        request
    }

    fn source(&self) -> Role {
        Role::Source { paths: vec![self.tree().to_str().unwrap().to_owned()] }
    }

    fn acceptors(&self) -> Vec<Acceptor> {
        self.hosts.iter().map(|_| Acceptor::open(&[HERE], ANY).unwrap()).collect()
    }

    /// Returns the port by which a rank is reached.
    fn port(&self, rank: usize, acceptor: &Acceptor) -> u16 {
        match self.fault {
            Some((at, fault)) if at == rank => proxy::start(acceptor.port(), fault),
            _ => acceptor.port(),
        }
    }

    /// Copies from the launcher's machine, or from rank 0 if its role is to have the files.
    fn run(&self, role: &Role) -> Outcome {
        let lines = Lines::default();
        let acceptors = self.acceptors();
        let ports: Vec<u16> =
            acceptors.iter().enumerate().map(|(rank, to)| self.port(rank, to)).collect();
        let names = self.request(Role::Relay, Path::new("/")).hosts;
        let reporter = |rank: u32| Reporter::new(rank, &names, lines.clone());
        let is_pushed = *role == Role::Relay;
        let (local, ranks) = thread::scope(|scope| {
            let place = |rank: usize| {
                let upstream = match rank.checked_sub(1) {
                    Some(before) => Some(before as u32),
                    None => is_pushed.then_some(LOCAL),
                };
                let downstream = ports.get(rank + 1).map(|port| Peer {
                    rank: rank as u32 + 1,
                    host: names[rank + 1].clone(),
                    addresses: vec![HERE],
                    port: *port,
                });
                let (me, acceptor) = (reporter(rank as u32), &acceptors[rank]);
                let request = self.request(role.clone(), self.hosts[rank].path());
                move || {
                    let settings = Settings::of(&request)?;
                    let done =
                        take_part(&me, &request, &settings, acceptor, (upstream, downstream));
                    done.inspect_err(|error| me.failed(error))
                }
            };
            let ranks: Vec<_> =
                (0..self.hosts.len()).map(|rank| scope.spawn(place(rank))).collect();
            let local = if is_pushed {
                let me = reporter(LOCAL);
                let request = self.request(self.source(), Path::new("/"));
                let sent = send_to_first(&me, &request, &mut &listening(0, ports[0])[..], &[]);
                sent.inspect_err(|error| me.failed(error))
            } else {
                Ok(())
            };
            let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            (local, ranks)
        });
        Outcome { local, ranks, reports: lines.reports() }
    }

    fn push(&self) -> Outcome {
        self.run(&Role::Relay)
    }

    /// Checks that hosts have the tree, and nothing else.
    fn hosts_have_all(&self) {
        let expected = contents(self.source.path());
        for (rank, host) in self.hosts.iter().enumerate() {
            assert!(contents(host.path()) == expected, "host {rank}");
        }
    }

    /// Checks that what has a name on a host is whole.
    fn nothing_is_half(&self) {
        let expected = contents(self.source.path());
        for host in &self.hosts {
            for (path, (_, content)) in contents(host.path()) {
                let is_unfinished = path.to_string_lossy().contains(".rlaunch-");
                assert!(is_unfinished || expected[&path].1 == content, "{}", path.display());
            }
        }
    }
}

/// Returns the same amounts for each of several ranks.
fn each(ranks: u32, amounts: (u64, u64)) -> BTreeMap<u32, (u64, u64)> {
    (0..ranks).map(|rank| (rank, amounts)).collect()
}

fn as_it_is(_: &mut Request) {}

fn plain(request: &mut Request) {
    request.plain = true;
}

/// Lets threads of a copy that has failed end: until then they hold its unfinished files.
fn settle() {
    thread::sleep(Duration::from_millis(500));
}

/// Returns the line that tells where a rank listens.
fn listening(rank: u32, port: u16) -> Vec<u8> {
    let report = Report::Listening { rank, addresses: vec![HERE], port };
    let mut line = serde_json::to_vec(&report).unwrap();
    line.push(b'\n');
    line
}

#[test]
fn a_tree_goes_down_the_chain_once() {
    let copy = Copy::new(4);
    let total = LARGE as u64 + 5;
    let outcome = copy.push();
    outcome.all_is_well();
    copy.hosts_have_all();
    assert_eq!(outcome.amounts(), each(4, (total, 0)));
    let again = copy.push();
    again.all_is_well();
    assert_eq!(again.amounts(), each(4, (0, total)));
    copy.hosts_have_all();
}

#[test]
fn a_changed_byte_sends_its_chunk() {
    let copy = Copy::new(3);
    copy.push().all_is_well();
    let large = copy.tree().join("deep/large");
    let mut content = fs::read(&large).unwrap();
    content[CHUNK as usize + 5] ^= 1;
    fs::write(&large, content).unwrap();
    let outcome = copy.push();
    outcome.all_is_well();
    copy.hosts_have_all();
    let rest = LARGE as u64 + 5 - CHUNK;
    assert_eq!(outcome.amounts(), each(3, (CHUNK, rest)));
}

#[test]
fn a_host_that_lacks_what_those_before_it_have_gets_it_from_them() {
    let mut copy = Copy::new(3);
    copy.push().all_is_well();
    copy.hosts[2] = TempDir::new().unwrap();
    fs::remove_file(copy.hosts[0].path().join("tree/run.sh")).unwrap();
    let outcome = copy.push();
    outcome.all_is_well();
    copy.hosts_have_all();
    let total = LARGE as u64 + 5;
    let expected = [(0, (5, total - 5)), (1, (0, total)), (2, (total, 0))];
    assert_eq!(outcome.amounts(), BTreeMap::from(expected));
}

#[test]
fn all_ways_of_sending_bring_the_same() {
    let changes: [fn(&mut Request); 4] = [
        plain,
        |request| request.streams = 4,
        |request| (request.plain, request.streams, request.verify) = (true, 3, true),
        |request| request.limit = Some(20 << 20),
    ];
    for change in changes {
        let copy = Copy { change, ..Copy::new(3) };
        copy.push().all_is_well();
        copy.hosts_have_all();
    }
}

#[test]
fn a_limit_is_kept() {
    let copy = Copy { change: |request| request.limit = Some(4 << 20), ..Copy::new(1) };
    let begin = std::time::Instant::now();
    copy.push().all_is_well();
    // The last chunk is half a one, and need not wait for itself.
    assert!(begin.elapsed() > Duration::from_millis(700), "{:?}", begin.elapsed());
}

#[test]
fn a_slow_wire_only_takes_longer() {
    let fault = Fault { delay: Duration::from_millis(20), ..Fault::default() };
    let copy = Copy { fault: Some((1, fault)), ..Copy::new(3) };
    let outcome = copy.push();
    outcome.all_is_well();
    copy.hosts_have_all();
    let is_progress = |report: &Report| matches!(report, Report::Progress { .. });
    assert!(outcome.reports.iter().any(is_progress), "{:?}", outcome.reports);
}

#[test]
fn a_host_that_receives_the_list_says_that_it_is_there() {
    let copy = Copy::new(1);
    let acceptor = copy.acceptors().remove(0);
    let (host, port) = ("h0".to_owned(), acceptor.port());
    let peer = Peer { rank: 0, host, addresses: vec![HERE], port };
    let settings = Settings::of(&copy.request(copy.source(), Path::new("/"))).unwrap();
    let within = Duration::from_secs(10);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let local = (LOCAL, "this machine");
            let mut link = acceptor.accept(&settings.party(0), local, within).unwrap();
            listing::receive(&mut link, None).is_err()
        });
        let mut link = dial(&peer, &settings.party(LOCAL), 1, within).unwrap();
        // Nothing was sent that it could be an answer to.
        assert_eq!(link.receivers[0].receive().unwrap().message, Message::Beat);
        link.handle.close();
        assert!(receiving.join().unwrap());
    });
}

#[test]
fn what_came_before_a_cut_is_not_sent_again() {
    let fault = Fault { cut_at: Some(5 << 19), ..Fault::default() };
    let mut copy = Copy { fault: Some((1, fault)), ..Copy::new(4) };
    let outcome = copy.push();
    let errors = outcome.errors();
    assert!(errors.iter().all(|error| error != "ok"), "{errors:?}");
    // Which end of the cut connection says so first is a matter of chance.
    let ended = |error: &String| error.contains("the connection to h") && error.contains("ended");
    assert!(errors.iter().all(ended), "{errors:?}");
    copy.nothing_is_half();
    copy.fault = None;
    settle();
    let resumed = copy.push();
    resumed.all_is_well();
    copy.hosts_have_all();
    let amounts = resumed.amounts();
    assert!(amounts.values().all(|(received, found)| received + found == LARGE as u64 + 5));
    // Ranks after the cut may not have been sent anything yet.
    let found = [amounts[&0].1, amounts[&1].1];
    assert!(found.iter().all(|found| *found >= CHUNK), "{amounts:?}");
}

#[test]
fn what_was_altered_on_the_way_is_not_taken() {
    let expected = [
        (false, "h1: ", "what came from h0 was altered on the way"),
        (true, "h0: ", "a part of tree/deep/large from h0 is not what it was when the copy began"),
    ];
    for (is_plain, blamed, text) in expected {
        let fault = Fault { flip_at: Some(3 << 19), ..Fault::default() };
        let change = if is_plain { plain } else { as_it_is };
        let mut copy = Copy { change, fault: Some((1, fault)), ..Copy::new(3) };
        let outcome = copy.push();
        let errors = outcome.errors();
        assert_eq!(errors[2], text);
        // All others say which host it was.
        for error in [&errors[0], &errors[1], &errors[3]] {
            assert!(error.starts_with(blamed), "{errors:?}");
        }
        copy.nothing_is_half();
        copy.fault = None;
        settle();
        copy.push().all_is_well();
        copy.hosts_have_all();
    }
}

#[test]
fn no_host_is_to_blame_for_damage_that_comes_from_here() {
    let fault = Fault { flip_at: Some(3 << 19), ..Fault::default() };
    let copy = Copy { change: plain, fault: Some((0, fault)), ..Copy::new(3) };
    let outcome = copy.push();
    let failed = outcome.failed();
    let text = "a part of tree/deep/large from this machine is not what it was when the copy began";
    assert_eq!(failed, vec![(LOCAL, text.to_owned()); 4]);
}

#[test]
fn a_host_that_cannot_write_is_named_everywhere() {
    let copy = Copy::new(4);
    // A file is where the tree's directory is to be. Nobody but the copy may remove it.
    let place = copy.hosts[2].path().join("file");
    fs::write(&place, "not a directory").unwrap();
    let copy = Copy {
        change: |request| {
            let inside = format!("{}/file", request.destination);
            if Path::new(&inside).is_file() {
                request.destination = inside;
            }
        },
        ..copy
    };
    let outcome = copy.push();
    let errors = outcome.errors();
    let own = errors[3].clone();
    assert_eq!(own, format!("{} is not a directory", place.display()));
    for error in [&errors[0], &errors[1], &errors[2], &errors[4]] {
        assert_eq!(*error, format!("h2: {own}"));
    }
    assert_eq!(outcome.failed(), vec![(2, own); 5]);
}

#[test]
fn another_secret_is_not_let_in() {
    let copy = Copy::new(1);
    let acceptors = copy.acceptors();
    let names = ["h0".to_owned()];
    let me = Reporter::new(LOCAL, &names, io::sink());
    let request = copy.request(copy.source(), Path::new("/"));
    let settings = Settings::of(&request).unwrap();
    let port = acceptors[0].port();
    let accepting = thread::spawn({
        let party = settings.party(0);
        let acceptor = acceptors.into_iter().next().unwrap();
        move || acceptor.accept(&party, (LOCAL, "this machine"), Duration::from_secs(3)).is_err()
    });
    let other = Request { secret: Secret([8; 32]), ..request };
    let error = send_to_first(&me, &other, &mut &listening(0, port)[..], &[]).unwrap_err();
    assert!(error.text().contains("another copy"), "{}", error.text());
    assert!(accepting.join().unwrap(), "nobody was accepted");
    assert!(contents(copy.hosts[0].path()).is_empty());
}

#[test]
fn the_first_rank_may_have_the_files() {
    let mut copy = Copy::new(3);
    let outcome = copy.run(&copy.source());
    outcome.all_is_well();
    let total = LARGE as u64 + 5;
    let expected = [(0, (0, total)), (1, (total, 0)), (2, (total, 0))];
    assert_eq!(outcome.amounts(), BTreeMap::from(expected));
    assert!(contents(copy.hosts.remove(0).path()).is_empty());
    copy.hosts_have_all();
}

#[test]
fn every_host_is_fetched_from_into_a_directory_of_its_name() {
    let copy = Copy::new(2);
    let destination = TempDir::new().unwrap();
    let acceptors = copy.acceptors();
    let mut input = listening(1, acceptors[1].port());
    input.extend(listening(0, acceptors[0].port()));
    let lines = Lines::default();
    let names = copy.request(Role::Relay, Path::new("/")).hosts;
    let reporter = |rank: u32| Reporter::new(rank, &names, lines.clone());
    let paths = [copy.tree().to_str().unwrap().to_owned()];
    let request = copy.request(Role::Relay, destination.path());
    let settings = Settings::of(&request).unwrap();
    thread::scope(|scope| {
        for (rank, acceptor) in acceptors.iter().enumerate() {
            let (me, paths, settings) = (reporter(rank as u32), &paths, &settings);
            scope.spawn(move || serve_at(&me, paths, settings, acceptor).unwrap());
        }
        fetch_all(&reporter(LOCAL), &request, &mut &input[..], &[]).unwrap();
    });
    for host in ["h0", "h1"] {
        assert!(contents(&destination.path().join(host)) == contents(copy.source.path()), "{host}");
    }
    let outcome = Outcome { local: Ok(()), ranks: Vec::new(), reports: lines.reports() };
    let total = LARGE as u64 + 5;
    assert_eq!(outcome.amounts(), each(2, (total, 0)));
}

#[test]
fn a_host_that_does_not_listen_does_not_keep_others_from_being_fetched() {
    let copy = Copy::new(2);
    let destination = TempDir::new().unwrap();
    let acceptors = copy.acceptors();
    let names = copy.request(Role::Relay, Path::new("/")).hosts;
    let reporter = |rank: u32| Reporter::new(rank, &names, io::sink());
    let paths = [copy.tree().to_str().unwrap().to_owned()];
    let request = copy.request(Role::Relay, destination.path());
    let settings = Settings::of(&request).unwrap();
    let error = thread::scope(|scope| {
        scope.spawn(|| serve_at(&reporter(1), &paths, &settings, &acceptors[1]).unwrap());
        let input = listening(1, acceptors[1].port());
        fetch_all(&reporter(LOCAL), &request, &mut &input[..], &[]).unwrap_err()
    });
    assert_eq!(error.text(), "h0 does not listen");
    assert!(contents(&destination.path().join("h1")) == contents(copy.source.path()));
}

#[test]
fn a_rank_without_tcp_is_reached_by_the_command() {
    let copy = Copy::new(1);
    let acceptors = copy.acceptors();
    let lines = Lines::default();
    let names = copy.request(Role::Relay, Path::new("/")).hosts;
    let reporter = |rank: u32| Reporter::new(rank, &names, lines.clone());
    // Nothing listens at that address.
    let addresses = vec![IpAddr::from([127, 0, 0, 2])];
    let listening = Report::Listening { rank: 0, addresses, port: acceptors[0].port() };
    let input = serde_json::to_vec(&listening).unwrap();
    let script = "[ $0 = 0 ] && exec 3<>/dev/tcp/127.0.0.1/$1; cat <&3 & exec cat >&3";
    let via = ["bash", "-c", script, "{rank}"].map(str::to_owned);
    let received = copy.request(Role::Relay, copy.hosts[0].path());
    let sent = copy.request(copy.source(), Path::new("/"));
    let settings = Settings::of(&sent).unwrap();
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let upstream = (Some(LOCAL), None);
            take_part(&reporter(0), &received, &settings, &acceptors[0], upstream).unwrap();
        });
        send_to_first(&reporter(LOCAL), &sent, &mut &input[..], &via).unwrap();
        receiving.join().unwrap();
    });
    copy.hosts_have_all();
    let reports = lines.reports();
    let mut notes = reports.iter().filter_map(|report| match report {
        Report::Note { text, .. } => Some(text),
        _ => None,
    });
    assert!(notes.any(|text| text.ends_with("; bytes go by way of the job")), "{reports:?}");
}

#[test]
fn what_is_missing_here_is_said_to_all() {
    let copy = Copy::new(2);
    fs::remove_dir_all(copy.tree()).unwrap();
    let outcome = copy.push();
    let errors = outcome.errors();
    let own = format!("{} does not exist", copy.tree().display());
    assert_eq!(errors[0], own);
    assert_eq!(errors[1..], [format!("this machine: {own}"), format!("this machine: {own}")]);
}
