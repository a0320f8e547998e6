//! Tests of `--dry-run=offline` that the printed lines, parsed again, agree with the command line.

use crate::cli::command_line::parse_job;
use crate::cli::lower;
use proptest::prelude::*;
use rlaunch_engine::run::show::{offline, program_lines};
use rlaunch_plan::hosts::{Host, HostSet, SlotsBy};
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::options::DryRun;
use rlaunch_plan::map::{MapBy, RankMap, placement_line};
use rlaunch_text::exit::Exit;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Job as given on a command line.
#[derive(Clone, Debug)]
struct JobLine {
    /// Lists of hosts, one for each `-H`.
    hosts: Vec<Vec<HostWord>>,
    np: Option<u32>,
    by_node: bool,
    oversubscribe: bool,
    env: Vec<(String, String)>,
    wdir: Option<Vec<u8>>,
    program: Vec<Vec<u8>>,
    /// Number that selects the spelling of options.
    spelling: usize,
}

#[derive(Clone, Debug)]
struct HostWord {
    user: Option<String>,
    name: String,
    slots: Option<u32>,
}

impl HostWord {
    fn typed(&self) -> String {
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        match self.slots {
            Some(slots) if self.name.contains(':') => format!("{user}[{}]:{slots}", self.name),
            Some(slots) => format!("{user}{}:{slots}", self.name),
            None => format!("{user}{}", self.name),
        }
    }

    fn host(&self) -> Host {
        let HostWord { user, name, slots } = self.clone();
        let slots_by = if slots.is_some() { SlotsBy::Given } else { SlotsBy::One };
        Host { user, name, slots: slots.unwrap_or(1), slots_by }
    }
}

impl JobLine {
    /// Returns the hosts without duplicates.
    fn hosts(&self) -> Vec<Host> {
        let mut hosts = HostSet::default();
        for host_word in self.hosts.iter().flatten() {
            hosts.add(host_word.host()).unwrap();
        }
        hosts.into_hosts()
    }

    fn order(&self) -> MapBy {
        if self.by_node { MapBy::Node } else { MapBy::Slot }
    }

    /// Spells an option in one of four ways.
    fn spelled(&self, short: &str, long: &str, value: &str) -> Vec<OsString> {
        let words = match self.spelling % 4 {
            0 => vec![short.to_owned(), value.to_owned()],
            1 => vec![format!("{short}{value}")],
            2 => vec![format!("--{long}={value}")],
            _ => vec![format!("--{long}"), value.to_owned()],
        };
        words.into_iter().map(OsString::from).collect()
    }

    fn typed(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["rlaunch".into(), "--dry-run=offline".into()];
        for list in &self.hosts {
            let list = list.iter().map(HostWord::typed).collect::<Vec<_>>().join(",");
            words.extend(self.spelled("-H", "hosts", &list));
        }
        words.extend(self.np.iter().flat_map(|np| self.spelled("-n", "np", &np.to_string())));
        words.extend(self.by_node.then(|| "--map-by=node".into()));
        words.extend(self.oversubscribe.then(|| "--oversubscribe".into()));
        for (name, value) in &self.env {
            words.extend(["-x".into(), format!("{name}={value}").into()]);
        }
        if let Some(wdir) = &self.wdir {
            words.push(OsString::from_vec([b"--wdir=", &wdir[..]].concat()));
        }
        if self.program[0].starts_with(b"-") || self.spelling < 6 {
            words.push("--".into());
        }
        words.extend(self.program.iter().cloned().map(OsString::from_vec));
        words
    }
}

fn host_word() -> impl Strategy<Value = HostWord> {
    let name =
        prop_oneof!["[a-d]{1,2}", "[a-z][a-z0-9.-]{0,9}", "fd00::[1-9]", "10\\.0\\.0\\.[1-9]"];
    let user = proptest::option::weighted(0.2, "[a-z]{1,4}");
    (user, name, proptest::option::of(1..5u32)).prop_map(|(user, name, slots)| HostWord {
        user,
        name,
        slots,
    })
}

/// Generates words with unusual characters or bytes that are not UTF-8, but without separators and templates.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let odd = "[a-e0-9'\"\\\\$` \n\t=~*;&|<>(){}#!-]{0,8}".prop_map(String::into_bytes);
    let text = "[^\\x00]{0,6}".prop_map(String::into_bytes);
    let bytes = proptest::collection::vec(1..=255u8, 0..6);
    let options = ["--", "-", "-np", "--dry-run", "-x", "run"].map(|word| word.as_bytes().to_vec());
    let options = proptest::sample::select(options.to_vec());
    let is_for_one =
        |word: &Vec<u8>| word != b":" && word != b"\\:" && !word.windows(2).any(|two| two == b"{{");
    prop_oneof![4 => odd, 1 => text, 1 => bytes, 1 => options]
        .prop_filter("one program's", is_for_one)
}

/// Generates variables without a special meaning, and with names that do not suggest a secret.
fn variable() -> impl Strategy<Value = (String, String)> {
    let value = "[^\\x00]{0,8}".prop_filter("no template", |value| !value.contains("{{"));
    ("[A-J][A-J0-9_]{0,5}", value)
}

fn job_line() -> impl Strategy<Value = JobLine> {
    let hosts = proptest::collection::vec(proptest::collection::vec(host_word(), 1..4), 1..3);
    let env = proptest::collection::vec(variable(), 0..4);
    let is_path =
        |word: &Vec<u8>| !word.is_empty() && !word.split(|c| *c == b'/').any(|name| name == b"..");
    let wdir = proptest::option::of(word().prop_filter("a path", is_path));
    let program = proptest::collection::vec(word(), 1..5);
    let rest = (any::<bool>(), proptest::option::of(1..20u32), any::<bool>(), 0..12usize);
    (hosts, env, wdir, program, rest).prop_map(|(hosts, env, wdir, program, rest)| {
        let (by_node, np, oversubscribe, spelling) = rest;
        let mut job_line =
            JobLine { hosts, np, by_node, oversubscribe, env, wdir, program, spelling };
        let slots: u32 = job_line.hosts().iter().map(|host| host.slots).sum();
        if !oversubscribe {
            job_line.np = np.map(|np| np.min(slots));
        }
        job_line
    })
}

/// Makes a job from a command line.
fn lowered(words: Vec<OsString>) -> JobSpec {
    let (args, line) = parse_job(words).unwrap();
    lower::job(args, &line.config).unwrap().spec
}

fn printed(words: Vec<OsString>) -> String {
    let job = lowered(words);
    assert_eq!(job.dry_run, Some(DryRun::Offline));
    program_lines(&job, Some(&job.map_ranks().unwrap()))
}

/// Splits a line into words as bash does.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = vec![Vec::new()];
    let mut rest = line.as_bytes();
    while let [first, then @ ..] = rest {
        let word = words.last_mut().unwrap();
        rest = then;
        match (first, then) {
            (b' ', _) => words.push(Vec::new()),
            (b'\\', [c, then @ ..]) => {
                word.push(*c);
                rest = then;
            }
            (b'$', [b'\'', then @ ..]) => rest = escaped(then, word),
            (b'\'', _) => {
                let end = then.iter().position(|&c| c == b'\'').unwrap();
                word.extend(&then[..end]);
                rest = &then[end + 1..];
            }
            (c, _) => word.push(*c),
        }
    }
    words
}

/// Reads a quoted text up to the closing quote and appends it to `word`. Returns the rest of the line.
fn escaped<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> &'a [u8] {
    loop {
        let (byte, then) = match rest {
            [b'\'', then @ ..] => return then,
            [b'\\', b'n', then @ ..] => (b'\n', then),
            [b'\\', b't', then @ ..] => (b'\t', then),
            [b'\\', b'x', high, low, then @ ..] => {
                let digits = [*high, *low];
                (u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap(), then)
            }
            [b'\\', c, then @ ..] | [c, then @ ..] => (*c, then),
            [] => panic!("no closing quote"),
        };
        word.push(byte);
        rest = then;
    }
}

/// Printed lines, parsed.
#[derive(Debug, Default, PartialEq)]
struct ParsedLines {
    /// Name, slots, and ranks by local rank, of each host.
    hosts: Vec<(String, u32, Vec<u32>)>,
    wdir: (String, Vec<u8>),
    env: BTreeMap<Vec<u8>, Vec<u8>>,
    program: Vec<Vec<u8>>,
}

impl ParsedLines {
    fn from(text: &str) -> ParsedLines {
        let mut read = ParsedLines::default();
        for line in text.lines() {
            let mut words = words(line).into_iter();
            let string = |word: Vec<u8>| String::from_utf8(word).unwrap();
            let keyword = string(words.next().unwrap());
            match (keyword.as_str(), &words.collect::<Vec<_>>()[..]) {
                ("host", [name, slots, ranks]) => {
                    let slots = string(slots.clone())["slots=".len()..].parse().unwrap();
                    let ranks = string(ranks.clone())["ranks=".len()..].to_owned();
                    read.hosts.push((string(name.clone()), slots, numbers(&ranks)));
                }
                ("wdir", [how, path]) => read.wdir = (string(how.clone()), path.clone()),
                ("env", [word]) => {
                    let at = word.iter().position(|&c| c == b'=').unwrap();
                    read.env.insert(word[..at].to_vec(), word[at + 1..].to_vec());
                }
                ("program", argv) => read.program = argv.to_vec(),
                (keyword, rest) => panic!("{keyword} {rest:?}"),
            }
        }
        read
    }
}

fn numbers(ranks: &str) -> Vec<u32> {
    let run = |run: &str| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        first.parse().unwrap()..=last.parse().unwrap()
    };
    let ranks = Some(ranks).filter(|ranks| *ranks != "none");
    ranks.into_iter().flat_map(|ranks| ranks.split(',')).flat_map(run).collect()
}

/// Returns the lines that should be printed.
fn expected(job_line: &JobLine) -> ParsedLines {
    let hosts = job_line.hosts();
    let map =
        RankMap::place(job_line.order(), &hosts, job_line.np, job_line.oversubscribe).unwrap();
    let ranks_of = |host: &Host| {
        let node = map.nodes.iter().find(|node| node.host == *host);
        node.map(|node| node.ranks.iter().map(|rank| rank.0).collect()).unwrap_or_default()
    };
    let here = lower::here().unwrap().path;
    let preferred = ("preferred".to_owned(), here.as_os_str().as_bytes().to_vec());
    let required = job_line.wdir.clone().map(|wdir| {
        // A relative directory is below this one, and has no empty names.
        let below: PathBuf = here.join(OsStr::from_bytes(&wdir)).components().collect();
        let typed = PathBuf::from(OsString::from_vec(wdir.clone()));
        // `~` is the home on each host.
        let is_whole = typed.is_absolute() || typed.starts_with("~");
        let path = if is_whole { wdir } else { below.into_os_string().into_vec() };
        ("required".to_owned(), path)
    });
    let env = job_line.env.iter().cloned();
    ParsedLines {
        hosts: hosts.iter().map(|host| (host.to_string(), host.slots, ranks_of(host))).collect(),
        wdir: required.unwrap_or(preferred),
        env: env.map(|(name, value)| (name.into_bytes(), value.into_bytes())).collect(),
        program: job_line.program.clone(),
    }
}

proptest! {
    #[test]
    fn what_is_printed_says_what_was_typed(job_line in job_line()) {
        let text = printed(job_line.typed());
        prop_assert_eq!(ParsedLines::from(&text), expected(&job_line), "{}", text);
    }
}

fn line(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

#[test]
fn a_job_in_lines() {
    let words = ["rlaunch", "--dry-run=offline", "-H", "a:2,me@b,c", "-np", "3", "-x", "A=1 2"];
    let more = ["--map-by", "node", "--wdir", "/data", "python3", "-c", "import x\nx.y()"];
    let text = printed(line(&[&words[..], &more[..]].concat()));
    let expected = "host a slots=2 ranks=0\nhost me@b slots=1 ranks=1\nhost c slots=1 ranks=2\n\
        wdir required /data\nenv 'A=1 2'\nprogram python3 -c $'import x\\nx.y()'\n";
    assert_eq!(text, expected);
}

#[test]
fn secrets_are_left_out() {
    let words = ["rlaunch", "--dry-run=offline", "-H", "a", "-x", "HF_TOKEN=abc", "p", "--key=abc"];
    let text = printed(line(&words));
    assert!(text.contains("env 'HF_TOKEN=(set, 3 chars)'\n"), "{text}");
    assert!(text.ends_with("program p '--key=(set, 3 chars)'\n"), "{text}");
}

#[test]
fn a_picture_needs_the_hosts() {
    let words =
        ["rlaunch", "--dry-run=offline", "--show", "placement=svg", "-H", "nosuchhost", "true"];
    let failed = offline(&lowered(line(&words))).unwrap_err();
    assert_eq!(failed.exit, Exit::USAGE);
    assert!(failed.message.contains("asks no host"), "{}", failed.message);
}

#[test]
fn mistakes_are_those_of_a_job() {
    let words = ["rlaunch", "--dry-run=offline", "-H", "a", "-np", "3", "true"];
    let failed = offline(&lowered(line(&words))).unwrap_err();
    assert_eq!(failed.exit, Exit::USAGE);
    assert!(
        failed.message.contains("3 ranks need 3 slots; a has 1: use -H a:3"),
        "{}",
        failed.message
    );
    let words = ["rlaunch", "--dry-run=online", "-H", "a", "true"];
    assert!(parse_job(line(&words)).is_err());
}

/// What a job says of its hosts and ranks before it starts stands in the transcripts, and nothing else does.
#[test]
fn jobs_of_the_readme_say_what_stands_there() {
    let readme = include_str!("../../../README.md");
    let mut lines = readme.lines();
    let mut jobs = 0;
    while let Some(line) = lines.next() {
        let Some(typed) = line.strip_prefix("    $ rlaunch -") else { continue };
        // The file of the page is not here.
        let typed = format!("rlaunch -{}", typed.replace("--copy train.py ", ""));
        let job = lowered(words(&typed).into_iter().map(OsString::from_vec).collect());
        let says = placement_line(&job.map_ranks().unwrap(), job.map_by, job.oversubscribe);
        let mut shown = lines.by_ref().map(str::trim_start).take_while(|line| !line.is_empty());
        assert_eq!(says.is_some(), shown.any(|line| line.starts_with("placement: ")), "{typed}");
        jobs += 1;
    }
    assert!(jobs > 2, "{jobs}");
}
