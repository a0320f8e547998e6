//! Programs on the launcher's machine: the source of a push, and the destination of a fetch.

use super::files::Looked;
use super::report::{LOCAL, Reporter};
use super::tree::ReadTree;
use super::{CONNECT_DIRECT, RoleError, Settings, files, rank, read_line, tree};
use crate::link::{Link, LinkError, Peer, dial, over_command};
use rlaunch_copy::Hash;
use rlaunch_copy::control::{Hex, Report, Request, Role};
use std::io::{self, BufRead, StdinLock};
use std::path::Path;
use std::process::Child;
use std::thread::JoinHandle;

/// Sends files to rank 0.
pub fn send(via: &[String]) -> Result<(), RoleError> {
    as_local(|me, request, input| {
        send_to_first(me, request, input, via).inspect_err(|error| me.failed(error))
    })
}

/// Receives files from every rank, into a directory of the host's name.
pub fn fetch(via: &[String]) -> Result<(), RoleError> {
    as_local(|me, request, input| fetch_all(me, request, input, via))
}

/// Runs a program that reads its request, and then where ranks listen.
fn as_local(
    run: impl FnOnce(&Reporter, &Request, &mut StdinLock<'static>) -> Result<(), RoleError>,
) -> Result<(), RoleError> {
    let mut input = io::stdin().lock();
    let request = read_line::<Request>(&mut input);
    match request.and_then(|request| request.ok_or(RoleError::NoRequest)) {
        Ok(request) => run(&Reporter::to_stdout(LOCAL, &request.hosts), &request, &mut input),
        Err(error) => {
            Reporter::to_stdout(LOCAL, &[]).failed(&error);
            Err(error)
        }
    }
}

/// Sends files to rank 0, which passes them on.
pub(super) fn send_to_first(
    me: &Reporter,
    request: &Request,
    input: &mut impl BufRead,
    via: &[String],
) -> Result<(), RoleError> {
    let settings = Settings::of(request)?;
    let Role::Source { paths } = &request.role else { return Err(RoleError::NoSource) };
    // While the job reaches its hosts. A tree that is too large is refused before they wait for it.
    let tree = settings.tree.map(|limit| files::look(paths, Some(limit), me)).transpose()?;
    let mut early = tree.map(|looked| EarlyReading::begin(looked, &settings, me));
    let mut read: Option<ReadTree> = None;
    let first = loop {
        match next_word(input, me)?.ok_or_else(|| not_listening(me, 0))? {
            Word::Reached => {
                if let Some(early) = early.take() {
                    let tree = early.renew(me, paths, &settings)?;
                    me.report(&Report::Content { hash: tree.content });
                    read = Some(tree);
                }
            }
            Word::Since(former) => {
                let patch = read.as_ref().and_then(|tree| tree.patch_since(former, me));
                me.report(&Report::Patch { bytes: patch.map(|patch| Hex(patch.encode())) });
            }
            Word::Listens(peer) if peer.rank == 0 => break peer,
            Word::Listens(_) => {}
        }
    };
    let (link, command) = connect(me, &settings, &first, via)?;
    let original = || match (read, early) {
        (Some(read), _) => Ok(read.original),
        (None, Some(early)) => early.join().map(|read| read.original),
        (None, None) => rank::look_and_hash(me, paths, &settings),
    };
    let sent = rank::send_files(me, original, &settings, link);
    end(command);
    let manifest = sent?;
    if let Some(place) = &settings.last {
        tree::keep(place, manifest.content(), &manifest, me);
    }
    me.report(&Report::Done {
        rank: LOCAL,
        files: rank::count_files(&manifest),
        bytes: manifest.bytes(),
        received: 0,
        unchanged: manifest.bytes(),
        seconds: 0.0,
        root: String::new(),
    });
    Ok(())
}

/// Working tree that a thread of its own reads while the job reaches its hosts. Nobody waits for it if there is nobody to send
/// to.
struct EarlyReading {
    looked: Vec<Looked>,
    hashing: JoinHandle<Result<ReadTree, RoleError>>,
}

impl EarlyReading {
    fn begin(looked: Vec<Looked>, settings: &Settings, me: &Reporter) -> EarlyReading {
        let (own, settings, me) = (looked.clone(), settings.clone(), me.clone());
        let hashing = std::thread::spawn(move || {
            files::original(own, &settings, &me).map(|read| ReadTree::new(read, &settings))
        });
        EarlyReading { looked, hashing }
    }

    fn join(self) -> Result<ReadTree, RoleError> {
        joined(self.hashing)
    }

    /// Returns what is in the tree now, of which only what has changed meanwhile is read again.
    fn renew(
        self,
        me: &Reporter,
        paths: &[String],
        settings: &Settings,
    ) -> Result<ReadTree, RoleError> {
        let EarlyReading { looked, hashing } = self;
        match joined(hashing) {
            Ok(read) if looked.iter().all(Looked::is_unchanged) => Ok(read),
            // An error may be that of a file that has gone.
            Ok(_) | Err(_) => {
                let original = rank::look_and_hash(me, paths, settings)?;
                Ok(ReadTree::new(original, settings))
            }
        }
    }
}

/// Returns what a thread returns, or panics as it has.
fn joined<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

type Fetching = Vec<(u32, JoinHandle<Result<(), RoleError>>)>;

/// Receives files from every rank, and reports what failed. Those of one host arrive even if those
/// of another do not.
pub(super) fn fetch_all(
    me: &Reporter,
    request: &Request,
    input: &mut impl BufRead,
    via: &[String],
) -> Result<(), RoleError> {
    let fetching = begin_all(me, request, input, via).inspect_err(|error| me.failed(error))?;
    // A host that does not listen has failed, and its program has said why.
    let missing = (0..).zip(&request.hosts).map(|(rank, _)| rank);
    let missing = missing.filter(|rank| fetching.iter().all(|(there, _)| there != rank)).min();
    let mut first = missing.map(|rank| not_listening(me, rank));
    for (_, thread) in fetching {
        first = first.or(joined(thread).err());
    }
    first.map_or(Ok(()), Err)
}

/// Begins to receive from each rank as soon as it listens.
fn begin_all(
    me: &Reporter,
    request: &Request,
    input: &mut impl BufRead,
    via: &[String],
) -> Result<Fetching, RoleError> {
    let settings = Settings::of(request)?;
    let destination = files::below_home(&request.destination)?;
    let mut fetching = Fetching::new();
    while fetching.len() < request.hosts.len() {
        let Some(peer) = next_peer(input, me)? else { break };
        if fetching.iter().any(|(rank, _)| *rank == peer.rank) {
            continue;
        }
        let (local, me) = (me.clone(), me.for_rank(peer.rank));
        let (settings, via) = (settings.clone(), via.to_vec());
        let (rank, directory) = (peer.rank, destination.join(folder(&peer.host)));
        let fetch = move || {
            let fetched = fetch_one(&me, &settings, &peer, &directory, &via);
            fetched.inspect_err(|error| match error {
                // The disk is that of this machine.
                RoleError::Stage(_) => local.failed(error),
                error => me.failed(error),
            })
        };
        fetching.push((rank, std::thread::spawn(fetch)));
    }
    Ok(fetching)
}

fn fetch_one(
    me: &Reporter,
    settings: &Settings,
    peer: &Peer,
    directory: &Path,
    via: &[String],
) -> Result<(), RoleError> {
    // To the rank, this is the program on the launcher's machine.
    let (link, command) = connect(me, settings, peer, via)?;
    let received = rank::receive_files(me, directory, settings, (link, None));
    end(command);
    received
}

/// Returns the directory of a host: its name, which may be an address with a port or a user.
fn folder(host: &str) -> String {
    match host {
        "" | "." | ".." => format!("host-{host}"),
        host => host.replace(['/', '\0'], "_"),
    }
}

/// What the launcher says.
enum Word {
    /// The job has reached its hosts.
    Reached,
    /// It asks what has changed since the tree had this content.
    Since(Hash),
    Listens(Peer),
}

/// Reads what the launcher says next; `None` at the end.
fn next_word(input: &mut impl BufRead, me: &Reporter) -> Result<Option<Word>, RoleError> {
    while let Some(report) = read_line::<Report>(input)? {
        match report {
            Report::Reached => return Ok(Some(Word::Reached)),
            Report::Since { hash } => return Ok(Some(Word::Since(hash))),
            Report::Listening { rank, addresses, port } => {
                let host = me.name_of(rank).to_owned();
                return Ok(Some(Word::Listens(Peer { rank, host, addresses, port })));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Reads where the next rank listens; `None` at the end.
fn next_peer(input: &mut impl BufRead, me: &Reporter) -> Result<Option<Peer>, RoleError> {
    while let Some(word) = next_word(input, me)? {
        if let Word::Listens(peer) = word {
            return Ok(Some(peer));
        }
    }
    Ok(None)
}

fn not_listening(me: &Reporter, rank: u32) -> RoleError {
    RoleError::NotListening { host: me.name_of(rank).to_owned() }
}

/// Connects to a rank: directly, or else by the command.
fn connect(
    me: &Reporter,
    settings: &Settings,
    peer: &Peer,
    via: &[String],
) -> Result<(Link, Option<Child>), RoleError> {
    let party = settings.party(LOCAL);
    let error = match dial(peer, &party, settings.streams, CONNECT_DIRECT) {
        Ok(link) => return Ok((link, None)),
        Err(error @ LinkError::Unreachable { .. }) if !via.is_empty() => error,
        Err(error) => return Err(error.into()),
    };
    me.note(format!("{error}; bytes go by way of the job"));
    let rank = peer.rank.to_string();
    let words = via.iter().map(|word| word.replace("{rank}", &rank));
    let command: Vec<String> = words.chain([peer.port.to_string()]).collect();
    let (link, child) = over_command(&command, (peer.rank, &peer.host), &party)?;
    Ok((link, Some(child)))
}

/// Ends the command that carried bytes.
fn end(command: Option<Child>) {
    if let Some(mut child) = command {
        // It may have ended with the connection.
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_copy::control::{Secret, TreeLimit};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Arc, Mutex};
    use tempfile::TempDir;

    /// Working tree, and what is asked of the program that sends it.
    struct Tree {
        directory: TempDir,
        request: Request,
    }

    impl Tree {
        fn new() -> Tree {
            let directory = TempDir::new().unwrap();
            fs::create_dir_all(directory.path().join("sub")).unwrap();
            fs::write(directory.path().join("x"), "one").unwrap();
            fs::write(directory.path().join("sub/y"), "two").unwrap();
            let paths = vec![directory.path().to_str().unwrap().to_owned()];
            let request = Request {
                secret: Secret([7; 32]),
                hosts: vec!["a".into()],
                plain: false,
                streams: 1,
                destination: "~/x".into(),
                verify: false,
                limit: None,
                role: Role::Source { paths },
                tree: Some(TreeLimit { files: 10, bytes: 1 << 20 }),
                last: None,
                image: None,
            };
            Tree { directory, request }
        }

        fn paths(&self) -> &[String] {
            let Role::Source { paths } = &self.request.role else { unreachable!() };
            paths
        }

        fn settings(&self) -> Settings {
            Settings::of(&self.request).unwrap()
        }

        /// Reads what is there.
        fn content(&self) -> Hash {
            let me = Reporter::new(LOCAL, &[], io::sink());
            let read = rank::look_and_hash(&me, self.paths(), &self.settings()).unwrap();
            read.manifest().content()
        }
    }

    #[test]
    fn what_changes_here_while_hosts_are_reached_is_read_again() {
        let tree = Tree::new();
        let (me, settings) = (Reporter::new(LOCAL, &[], io::sink()), tree.settings());
        let place = |name: &str| tree.directory.path().join(name);
        let changes: [&dyn Fn(); 7] = [
            &|| (),
            &|| fs::write(place("x"), "four").unwrap(),
            &|| fs::write(place("new"), "").unwrap(),
            &|| fs::write(place("sub/new"), "").unwrap(),
            &|| fs::remove_file(place("sub/y")).unwrap(),
            &|| fs::set_permissions(place("x"), Permissions::from_mode(0o700)).unwrap(),
            // The thread that reads may find that it is gone.
            &|| fs::remove_dir_all(place("sub")).unwrap(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let before = tree.content();
            let looked = files::look(tree.paths(), settings.tree, &me).unwrap();
            let early = EarlyReading::begin(looked.clone(), &settings, &me);
            change();
            let is_unchanged = looked.iter().all(Looked::is_unchanged);
            assert_eq!(is_unchanged, number == 0, "change {number}");
            let now = early.renew(&me, tree.paths(), &settings).unwrap().content;
            assert_eq!((now, now == before), (tree.content(), number == 0), "change {number}");
        }
        let looked = files::look(tree.paths(), settings.tree, &me).unwrap();
        fs::remove_dir_all(tree.directory.path()).unwrap();
        assert!(!looked.iter().any(Looked::is_unchanged));
        let early = EarlyReading::begin(looked, &settings, &me);
        let failed = early.renew(&me, tree.paths(), &settings).map(drop).unwrap_err();
        assert!(failed.text().ends_with(" does not exist"), "{failed}");
        assert!(!tree.directory.path().exists());
    }

    #[test]
    fn a_tree_is_told_once_hosts_are_reached() {
        let tree = Tree::new();
        for (said, is_told) in
            [("", false), ("\"reached\"\n", true), ("\"reached\"\n\"reached\"\n", true)]
        {
            let lines = Lines::default();
            let me = Reporter::new(LOCAL, &tree.request.hosts, lines.clone());
            let sent = send_to_first(&me, &tree.request, &mut said.as_bytes(), &[]);
            assert!(matches!(sent, Err(RoleError::NotListening { .. })), "{said}");
            let told = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            let told: Vec<&str> = told.lines().filter(|line| line.contains("content")).collect();
            let content = serde_json::to_string(&Report::Content { hash: tree.content() }).unwrap();
            assert_eq!(told, if is_told { vec![&*content] } else { Vec::new() }, "{said}");
        }
    }

    /// What a program has said.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_host_is_one_directory() {
        assert_eq!(folder("me@a:2222"), "me@a:2222");
        assert_eq!(folder("../../etc"), ".._.._etc");
        assert_eq!(folder(".."), "host-..");
    }

    #[test]
    fn other_reports_are_not_where_a_rank_listens() {
        let me = Reporter::new(LOCAL, &["a".into(), "b".into()], io::sink());
        let lines = "{\"note\":{\"rank\":0,\"text\":\"x\"}}\n\
                     {\"listening\":{\"rank\":1,\"addresses\":[\"10.0.0.1\"],\"port\":5}}\n";
        let mut input = lines.as_bytes();
        let peer = next_peer(&mut input, &me).unwrap().unwrap();
        assert_eq!((peer.rank, peer.host.as_str(), peer.port), (1, "b", 5));
        assert_eq!(next_peer(&mut input, &me).unwrap(), None);
        assert!(next_peer(&mut &b"{}\n"[..], &me).is_err());
    }
}
