//! `image:NAME`: an image that some hosts lack, to their container engines.
//!
//! Two images are one if a digest says so. Ids are no such digest: that of an image is another one in another engine, or
//! with another storage driver. Of a host whose engine takes parts, layers that it has do not travel.

use super::attempt::{self, Ahead, AttemptEnd, Origin};
use super::{Copied, CopyArgs, FileCopy, HostCopy, LeftOut, TransferArgs, Way, ask};
use crate::cli::args::ConnectArgs;
use crate::cli::config::LoadedConfig;
use nix::fcntl::{Flock, FlockArg};
use rlaunch_copy::control::{Answer, EngineImages, ImageCopy, ImageInfo, Question};
use rlaunch_engine::run::job_run::Launch;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Begin of a word that names an image.
pub(super) const IMAGE: &str = "image:";
/// What names of images may begin with, and mean the same without.
const USUAL: [&str; 3] = ["docker.io/library/", "docker.io/", "localhost/"];
/// Least length of the beginning of an id that names an image.
const ID: usize = 6;
/// Begin of the names of directories in which images are made ready.
const SCRATCH: &str = "rlaunch-image-";
/// File in such a directory that is locked while it is needed.
const LOCK: &str = "lock";
/// How images travel to the hosts of a job.
const TRANSFER: TransferArgs =
    TransferArgs { plain: false, limit: None, streams: 4, verify: false };

/// Engines of one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Engines {
    pub(super) answering: Vec<EngineImages>,
    /// What engines said that are there and do not answer.
    pub(super) refusals: Vec<String>,
}

/// Image that somebody wants on hosts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    /// Host that has it; `None` for this machine.
    pub(super) from: Option<&'a str>,
    /// Engine, if the user has named one.
    pub(super) engine: Option<&'a str>,
    /// Hosts that are to have it; `None` for all.
    pub(super) hosts: Option<&'a [String]>,
}

/// Takes the engine that the user has named from options of connections, where it is that of an image to run in.
pub(super) fn take_engine(connect: &mut ConnectArgs) -> Option<&'static str> {
    connect.image.engine.take().map(<&'static str>::from)
}

impl Engines {
    pub(super) fn new(answers: Vec<Answer>) -> Engines {
        let mut engines = Engines::default();
        for answer in answers {
            match answer {
                Answer::Images { engine, .. } => engines.answering.push(engine),
                Answer::NoImages { text, .. } => engines.refusals.push(text),
                Answer::Copies { .. } | Answer::Pruned { .. } | Answer::End { .. } => {}
            }
        }
        engines
    }

    /// Finds an image by name or id.
    fn find(&self, name: &str) -> Option<(&EngineImages, &ImageInfo)> {
        let id = name.strip_prefix("sha256:").unwrap_or(name);
        let has_id = |image: &ImageInfo| id.len() >= ID && image.id.starts_with(id);
        self.first(|image| has_name(image, name)).or_else(|| self.first(has_id))
    }

    fn first(&self, is_it: impl Fn(&ImageInfo) -> bool) -> Option<(&EngineImages, &ImageInfo)> {
        let mut all = self
            .answering
            .iter()
            .flat_map(|engine| engine.images.iter().map(move |image| (engine, image)));
        all.find(|(_, image)| is_it(image))
    }

    /// Says why no engine answers.
    pub(super) fn refusal(&self) -> String {
        match self.refusals.first() {
            Some(text) => text.clone(),
            None => "no container engine is installed: docker, podman or nerdctl".to_owned(),
        }
    }
}

/// What a host needs in order to have an image.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    /// All but this many of the lowest layers.
    Above(usize),
}

fn need(engine: &EngineImages, image: &ImageInfo, name: &str) -> Need {
    // A name that the host lacks comes with the image. An id is no name.
    let is_named = |there: &ImageInfo| has_name(there, name) || !has_name(image, name);
    if engine.images.iter().any(|there| is_same(there, image) && is_named(there)) {
        return Need::Nothing;
    }
    if !engine.takes_parts {
        return Need::Above(0);
    }
    let common = |there: &ImageInfo| {
        let pairs = there.layers.iter().zip(&image.layers);
        pairs.take_while(|(one, other)| one == other).count()
    };
    Need::Above(engine.images.iter().map(common).max().unwrap_or(0))
}

/// Tells whether two engines mean the same image. One of another name may have the same layers and run something else, and a
/// build that is to be reproducible gives every image one date.
pub(super) fn is_same(one: &ImageInfo, other: &ImageInfo) -> bool {
    fn parts(image: &ImageInfo) -> (&[String], &str, &str, &str) {
        (&image.layers, &image.created, &image.architecture, &image.config)
    }
    one.id == other.id
        || one.digests.iter().any(|digest| other.digests.contains(digest))
        || !one.layers.is_empty() && parts(one) == parts(other)
}

fn has_name(image: &ImageInfo, name: &str) -> bool {
    let name = canonical(name);
    image.names.iter().any(|known| canonical(known) == name)
}

/// Returns a name as all engines understand it.
pub(super) fn canonical(name: &str) -> String {
    let short = USUAL.iter().find_map(|usual| name.strip_prefix(usual)).unwrap_or(name);
    let last = short.rsplit('/').next().unwrap_or(short);
    if last.contains([':', '@']) { short.to_owned() } else { format!("{short}:latest") }
}

/// Image, and hosts that lack it.
struct Plan {
    image: ImageCopy,
    lacking: Vec<String>,
    /// Hosts that have it.
    there: Vec<HostCopy>,
}

/// Asks all machines, and decides what goes where. Adds hosts without an engine to `left_out`.
async fn plan(
    wanted: Wanted<'_>,
    origin: Origin<'_>,
    left_out: &mut Vec<LeftOut>,
) -> Result<Plan, Failed> {
    let question = Question::Images { engine: wanted.engine.map(str::to_owned) };
    // Its images may be those of another engine than that of hosts.
    let own_question = Question::Images { engine: None };
    let own = async {
        match wanted.from {
            Some(_) => Ok(Vec::new()),
            None => ask::here(origin.agent(), &own_question).await,
        }
    };
    // Each ends by itself, since a job that is dropped could not say how it ended.
    let (hosts, own) = tokio::join!(ask::hosts(origin, &question), own);
    let (hosts, own) = (hosts?, own?);
    let hosts = hosts.into_iter().map(|(host, answers)| (host, Engines::new(answers)));
    let mut hosts: Vec<(String, Engines)> = hosts.collect();
    hosts.retain(|(host, _)| left_out.iter().all(|left| left.host != *host));
    if let Some(wanted) = wanted.hosts {
        hosts.retain(|(host, _)| wanted.contains(host));
    }
    let source = match wanted.from {
        Some(from) => {
            let is_source = |host: &str| host == from || host.rsplit('@').next() == Some(from);
            let place = hosts.iter().position(|(host, _)| is_source(host));
            let place = place.ok_or_else(|| {
                let failed =
                    Failed::new(Exit::USAGE, format!("--from {from} is not among the hosts"));
                failed.hint(Some("-H names it too"))
            })?;
            hosts.remove(place).1
        }
        None => Engines::new(own),
    };
    decide(wanted, &source, hosts, left_out)
}

fn decide(
    wanted: Wanted<'_>,
    source: &Engines,
    hosts: Vec<(String, Engines)>,
    left_out: &mut Vec<LeftOut>,
) -> Result<Plan, Failed> {
    let name = wanted.name;
    let Some((engine, image)) = source.find(name) else { return Err(no_image(wanted, source)) };
    let (mut lacking, mut there, mut lowest) = (Vec::new(), Vec::new(), image.layers.len());
    for (host, engines) in hosts {
        let Some(own) = engines.answering.first() else {
            let why = format!("{host}: {}", engines.refusal());
            left_out.push(LeftOut { host, why, hint: None, exit: Exit::FILES });
            continue;
        };
        match need(own, image, name) {
            Need::Nothing => there.push(HostCopy {
                host,
                files: 0,
                bytes: 0,
                received: 0,
                root: own.name.clone(),
            }),
            Need::Above(count) => {
                lowest = lowest.min(count);
                lacking.push(host);
            }
        }
    }
    let (below, above) = image.layers.split_at(lowest);
    // The same content may be a layer twice.
    let left_out_layers = below.iter().filter(|layer| !above.contains(layer)).cloned().collect();
    let image = ImageCopy {
        name: name.to_owned(),
        size: image.size,
        engine: engine.name.clone(),
        engine_of_hosts: wanted.engine.map(str::to_owned),
        left_out: left_out_layers,
        scratch: None,
    };
    Ok(Plan { image, lacking, there })
}

fn no_image(wanted: Wanted<'_>, source: &Engines) -> Failed {
    let (name, machine) = (wanted.name, wanted.from.unwrap_or("this machine"));
    let Some(engine) = source.answering.first() else {
        return Failed::new(Exit::FILES, format!("{machine}: {}", source.refusal()));
    };
    let engine = &engine.name;
    let failed = Failed::new(Exit::FILES, format!("{machine} has no image {name}"));
    failed.hint(Some(match wanted.from {
        Some(_) => "rlaunch images -H HOSTS shows which host has which".to_owned(),
        None => format!("{engine} image ls; {engine} pull {name}"),
    }))
}

/// Copies an image to the hosts that lack it. Hosts that fail are added to `left_out`. Also returns the hosts that have had
/// it already.
pub(super) async fn push(
    wanted: Wanted<'_>,
    args: &CopyArgs,
    config: &LoadedConfig,
    left_out: &mut Vec<LeftOut>,
) -> Result<(Copied, Vec<HostCopy>), Failed> {
    let Plan { image, lacking, there } = plan(wanted, Origin::of(args, config), left_out).await?;
    if lacking.is_empty() {
        return Ok((Copied { hosts: Vec::new(), seconds: 0.0 }, there));
    }
    let scratch = Scratch::make()?;
    let image = ImageCopy { scratch: Some(scratch.path()?), ..image };
    let from = wanted.from.map(str::to_owned);
    let copy = FileCopy { way: Way::Image { image, hosts: lacking, from }, args: args.clone() };
    let copied = super::run(&copy, config, left_out).await?;
    Ok((copied, there))
}

/// Makes sure that the hosts of a job have the images that they get from this machine (`--pull push`), before it starts.
pub(crate) async fn place(job: &Launch) -> Result<(), Failed> {
    if job.reach.here || job.spec.dry_run.is_some() {
        return Ok(());
    }
    let hosts = attempt::hosts_with_ranks(&job.spec);
    let images = hosts
        .iter()
        .filter_map(|host| Some((job.reach.container_of(host)?.pushed_image()?, host.to_string())));
    for ((engine, name), hosts) in text::grouped(images.collect::<Vec<_>>()) {
        place_one(job, (engine, name), &hosts).await?;
    }
    Ok(())
}

async fn place_one(
    job: &Launch,
    (engine, name): (&str, &str),
    hosts: &[String],
) -> Result<(), Failed> {
    let wanted = Wanted { name, from: None, engine: Some(engine), hosts: Some(hosts) };
    let ahead = Ahead::of(job);
    let mut left_out = Vec::new();
    let Plan { image, lacking, .. } = plan(wanted, Origin::Job(&ahead), &mut left_out).await?;
    if left_out.is_empty() && !lacking.is_empty() {
        let scratch = Scratch::make()?;
        let image = ImageCopy { scratch: Some(scratch.path()?), ..image };
        let way = Way::Image { image, hosts: lacking, from: None };
        let launch = Origin::Job(&ahead).launch_copy(&way, &[])?;
        match attempt::run(&way, &TRANSFER, launch).await?.0 {
            AttemptEnd::Complete { refused, .. } => left_out.extend(refused),
            AttemptEnd::Without { lost, .. } => left_out.push(lost),
        }
    }
    let Some(LeftOut { why, hint, exit, .. }) = left_out.into_iter().next() else { return Ok(()) };
    Err(Failed::new(exit, format!("cannot copy image {name}: {why}")).hint(hint))
}

/// Directory of this machine in which an image is made ready, which nobody else can read. It is removed when this is
/// dropped, and if this process is killed by the next one that makes such a directory.
struct Scratch {
    directory: TempDir,
    _lock: Flock<File>,
}

impl Scratch {
    fn make() -> Result<Scratch, Failed> {
        let place = std::env::temp_dir();
        sweep(&place);
        Scratch::make_in(&place).map_err(|error| {
            let message = format!("cannot make a directory in {}: {error}", place.display());
            Failed::new(Exit::FILES, message).hint(Some("TMPDIR=DIR takes another one"))
        })
    }

    fn make_in(place: &Path) -> std::io::Result<Scratch> {
        let private = Permissions::from_mode(0o700);
        let mut builder = tempfile::Builder::new();
        let directory = builder.prefix(SCRATCH).permissions(private).tempdir_in(place)?;
        let file = File::create(directory.path().join(LOCK))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|(_, errno)| std::io::Error::from(errno))?;
        Ok(Scratch { directory, _lock: lock })
    }

    fn path(&self) -> Result<String, Failed> {
        let path = self.directory.path();
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| Failed::new(Exit::USAGE, format!("{} is not UTF-8", path.display())))
    }
}

/// Removes what processes have left that were killed.
fn sweep(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_string_lossy().starts_with(SCRATCH);
        let is_own = || {
            let metadata = entry.metadata();
            metadata.is_ok_and(|of| of.is_dir() && of.uid() == nix::unistd::geteuid().as_raw())
        };
        if !is_named || !is_own() {
            continue;
        }
        // Without a lock yet, it is about to be used.
        let Ok(file) = File::open(entry.path().join(LOCK)) else { continue };
        if let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // What cannot be removed is tried again next time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, id: &str, layers: &[&str]) -> ImageInfo {
        ImageInfo {
            names: vec![name.to_owned()],
            id: id.to_owned(),
            layers: layers.iter().map(|layer| (*layer).to_owned()).collect(),
            created: "2024".into(),
            size: 7,
            ..ImageInfo::default()
        }
    }

    fn engine(name: &str, images: Vec<ImageInfo>) -> Engines {
        let engine = EngineImages { name: name.into(), takes_parts: name == "docker", images };
        Engines { answering: vec![engine], refusals: Vec::new() }
    }

    const WANTED: Wanted<'static> = Wanted { name: "x:1", from: None, engine: None, hosts: None };

    fn planned(hosts: Vec<(&str, Engines)>) -> (Plan, Vec<LeftOut>) {
        let source = engine("docker", vec![image("x:1", "a", &["1", "2", "3", "1"])]);
        let hosts = hosts.into_iter().map(|(host, engines)| (host.to_owned(), engines)).collect();
        let mut left_out = Vec::new();
        let plan = decide(WANTED, &source, hosts, &mut left_out).unwrap();
        (plan, left_out)
    }

    #[test]
    fn names_of_engines_are_those_that_people_type() {
        for (name, expected) in [
            ("docker.io/library/ubuntu", "ubuntu:latest"),
            ("localhost/lab/x:1", "lab/x:1"),
            ("ghcr.io/x/y", "ghcr.io/x/y:latest"),
            ("host:5000/x", "host:5000/x:latest"),
            ("x@sha256:ab", "x@sha256:ab"),
        ] {
            assert_eq!(canonical(name), expected);
        }
    }

    #[test]
    fn an_image_is_known_by_digests_and_not_by_its_id() {
        let docker = image("x:1", "config", &["1", "2"]);
        let packed = ImageInfo { id: "index".into(), ..docker.clone() };
        assert!(is_same(&docker, &packed));
        let later = ImageInfo { created: "2025".into(), ..packed.clone() };
        assert!(!is_same(&docker, &later));
        let runs_something_else = ImageInfo { config: "other".into(), ..packed };
        assert!(!is_same(&docker, &runs_something_else));
        let of_registry =
            |id: &str| ImageInfo { digests: vec!["sha256:d".into()], ..image("x:1", id, &[]) };
        assert!(is_same(&of_registry("a"), &of_registry("b")));
        assert!(!is_same(&image("x:1", "a", &[]), &image("x:1", "b", &[])));
    }

    #[test]
    fn only_what_some_host_lacks_travels() {
        let has = |layers: &[&str]| engine("docker", vec![image("base:1", "b", layers)]);
        let (plan, _) = planned(vec![("a", has(&["1", "2"])), ("b", has(&["1", "2", "3"]))]);
        // The lowest layer is the uppermost too.
        assert_eq!(
            (plan.image.left_out, plan.lacking),
            (vec!["2".to_owned()], vec!["a".to_owned(), "b".into()])
        );
        // What is above another layer is not there.
        let (plan, _) = planned(vec![("a", has(&["0", "2"]))]);
        assert_eq!(plan.image.left_out, [""; 0]);
        let (plan, _) =
            planned(vec![("a", has(&["1", "2", "3"])), ("b", engine("podman", Vec::new()))]);
        assert_eq!(plan.image.left_out, [""; 0]);
    }

    #[test]
    fn a_host_that_has_the_image_gets_nothing() {
        let there =
            || engine("podman", vec![image("localhost/x:1", "other", &["1", "2", "3", "1"])]);
        let (plan, left_out) = planned(vec![("a", there()), ("b", Engines::default())]);
        assert_eq!((plan.lacking, plan.there[0].host.as_str()), (Vec::new(), "a"));
        assert!(left_out[0].why.starts_with("b: no container engine is installed"), "{left_out:?}");
        // The image is there by another name, and gets this one.
        let named = engine("docker", vec![image("y:1", "a", &["1", "2", "3", "1"])]);
        let (plan, _) = planned(vec![("a", named)]);
        assert_eq!((plan.lacking.len(), plan.image.left_out.len()), (1, 4));
        let refused =
            Engines { answering: Vec::new(), refusals: vec!["docker image ls: no".into()] };
        let (_, left_out) = planned(vec![("a", refused)]);
        assert_eq!(left_out[0].why, "a: docker image ls: no");
    }

    #[test]
    fn an_image_that_is_not_here_is_named() {
        let source = engine("docker", vec![image("y:1", "0123456789", &["1"])]);
        let failed = |wanted| decide(wanted, &source, Vec::new(), &mut Vec::new()).err().unwrap();
        assert_eq!(failed(WANTED).message, "this machine has no image x:1");
        assert_eq!(failed(WANTED).hints, ["docker image ls; docker pull x:1"]);
        let from = failed(Wanted { from: Some("b"), ..WANTED });
        assert_eq!(from.message, "b has no image x:1");
        let by_id = Wanted { name: "012345", ..WANTED };
        assert!(decide(by_id, &source, Vec::new(), &mut Vec::new()).is_ok());
    }

    #[test]
    fn directories_of_killed_processes_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let held = Scratch::make_in(place.path()).unwrap();
        let mode = fs::metadata(held.directory.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let left = place.path().join(format!("{SCRATCH}left"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join(LOCK), "").unwrap();
        let unlocked = place.path().join(format!("{SCRATCH}new"));
        fs::create_dir(&unlocked).unwrap();
        sweep(place.path());
        assert!(held.directory.path().exists() && unlocked.exists() && !left.exists());
        drop(held);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
