//! Messages between the launcher and the programs that copy, each a line of JSON.
//!
//! A program reads one [`Request`] from its standard input, and writes [`Report`]s to its standard
//! output. The launcher's own child, which is in no job, then reads the [`Report::Listening`] of the
//! ranks that it has to connect to, as the launcher got them, and before that a [`Report::Reached`] and perhaps
//! a [`Report::Since`] if it sends a working tree.

use std::fmt;
use std::net::IpAddr;

use crate::chunks::Hash;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Secret of one copy, by which its hosts know each other. Nothing prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

/// Request of the launcher to a program that copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// 64 hexadecimal digits.
    pub secret: Secret,
    /// Names of the ranks' hosts as the user knows them, for messages and for folders of a fetch.
    pub hosts: Vec<String>,
    /// Whether chunks are sent without encryption. All else is encrypted, the hashes by which chunks
    /// are checked included.
    pub plain: bool,
    /// Number of connections between two hosts.
    pub streams: u32,
    /// Directory that files go to. `~/` and relative paths are below the home directory.
    pub destination: String,
    /// Whether both ends read their files again and compare.
    pub verify: bool,
    /// Bytes per second that a host sends at most.
    pub limit: Option<u64>,
    pub role: Role,
    /// How large a working tree may be: without what git ignores it goes to hosts, where what came
    /// with it before and is gone is removed. `None` if the files are no working tree.
    pub tree: Option<TreeLimit>,
    /// File of the launcher's machine that keeps the list of what was copied of the working tree last. `None` for ranks.
    pub last: Option<String>,
    /// Image whose layers are the files.
    pub image: Option<ImageCopy>,
}

/// Image of a container engine, whose parts are files on their way: each of its layers is one, without those that all
/// hosts have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageCopy {
    /// Name by which the engine of the source knows it.
    pub name: String,
    /// Its bytes, to all appearances.
    pub size: u64,
    /// Engine of the source.
    pub engine: String,
    /// Engine of hosts, if the user has named one.
    pub engine_of_hosts: Option<String>,
    /// Layers that do not travel, by the digests of their content.
    pub left_out: Vec<String>,
    /// Directory in which the source may put what it sends; `None` for a rank, which has the job's.
    pub scratch: Option<String>,
}

/// Question of the launcher to a program, which answers it and ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Which images container engines have: all engines of the host, or this one.
    Images { engine: Option<String> },
    /// Asks for the files that copies have put on the host.
    Copies,
    /// Asks to remove working trees, by their directories, and what copies have left that is of no use.
    Prune { trees: Vec<String> },
}

/// Answer to a [`Question`]. The last one of a rank is an [`Answer::End`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Images of one engine.
    Images {
        rank: u32,
        engine: EngineImages,
    },
    Copies {
        rank: u32,
        copies: Vec<CopyInfo>,
    },
    Pruned {
        rank: u32,
        pruned: Pruned,
    },
    /// An engine is there, but does not answer.
    NoImages {
        rank: u32,
        engine: String,
        text: String,
    },
    End {
        rank: u32,
    },
}

/// File or directory that copies have put on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyInfo {
    pub path: String,
    /// Directory that it went into.
    pub root: String,
    pub files: u64,
    pub bytes: u64,
    /// Time of the last copy, in seconds since 1970.
    pub secs: i64,
    /// Whether it is a working tree.
    pub is_tree: bool,
    /// Whether a process is in that tree.
    pub is_used: bool,
}

/// Amount that was removed from a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pruned {
    /// Working trees of which nothing is left.
    pub trees: u64,
    pub files: u64,
    pub bytes: u64,
}

/// Images that a container engine has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineImages {
    /// Its command, such as `docker`.
    pub name: String,
    /// Whether it loads an image without the layers that it has.
    pub takes_parts: bool,
    pub images: Vec<ImageInfo>,
}

/// Description of an image by its engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// With tags.
    pub names: Vec<String>,
    /// Digest that this engine calls its id: of another kind in another engine, or with another storage driver.
    pub id: String,
    /// Digests in registries.
    pub digests: Vec<String>,
    /// Digests of the layers' contents, the lowest first.
    pub layers: Vec<String>,
    /// Time at which it was made, as the engine writes it.
    pub created: String,
    pub architecture: String,
    /// Digest of what containers of it run with: program, variables, user, directory and the like.
    pub config: String,
    pub size: u64,
}

/// How large a working tree may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeLimit {
    pub files: u64,
    pub bytes: u64,
}

/// Part of a program in the copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Receive, and send on to the next rank.
    Relay,
    /// Send these files and directories.
    Source { paths: Vec<String> },
}

/// Report of a program that copies to the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// All hosts are reached: what the working tree contains now is what is copied. The launcher makes this one.
    Reached,
    /// Question of the launcher what has changed since the working tree contained what this hash says.
    Since { hash: Hash },
    /// Answer to it: an encoded patch ([`crate::Patch`]); `None` if that is not known, or too much.
    Patch { bytes: Option<Hex> },
    /// The rank can be connected to.
    Listening { rank: u32, addresses: Vec<IpAddr>, port: u16 },
    /// The files of this rank are in the directory of another one, which gets them.
    Shares { rank: u32, with: u32 },
    /// Bytes of the files to be sent that were read, or are known without that, before anything is sent.
    Reading { rank: u32, bytes: u64, total: u64 },
    /// Bytes so far.
    Progress { rank: u32, received: u64, written: u64, total: u64, waits_for: Limit },
    /// All files are there.
    Done {
        rank: u32,
        files: u64,
        bytes: u64,
        /// Bytes that came over the network.
        received: u64,
        /// Bytes that were there before.
        unchanged: u64,
        seconds: f64,
        /// Directory that the files are in.
        root: String,
    },
    /// All files are there, and the engine of the host reads them.
    Loading { rank: u32, engine: String },
    /// The engine has refused them, or there is none.
    NotLoaded { rank: u32, text: String, hint: Option<String> },
    /// The working tree is larger than it may be, and is not copied.
    TooLarge { files: u64, bytes: u64 },
    /// Hash of the working tree's list of files, with what they contain.
    Content { hash: Hash },
    /// The rank cannot go on.
    Failed { rank: u32, text: String, hint: Option<String> },
    /// Something that the user may want to know.
    Note { rank: u32, text: String },
}

/// Cause of most of a rank's waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Wire,
    Disk,
    Cpu,
    /// The hosts before it.
    Upstream,
    /// The hosts after it.
    Downstream,
    Nothing,
}

/// Bytes that are hexadecimal digits on their way.
#[derive(Clone, PartialEq, Eq)]
pub struct Hex(pub Vec<u8>);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&digits(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hex, D::Error> {
        let digits = String::deserialize(deserializer)?;
        bytes(&digits).map(Hex).ok_or_else(|| D::Error::custom("no hexadecimal digits"))
    }
}

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hex(of {} bytes)", self.0.len())
    }
}

fn digits(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| (*byte as char).to_digit(16);
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some((digit(high)? * 16 + digit(low)?) as u8)).collect()
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&digits(&self.0))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        let digits = String::deserialize(deserializer)?;
        // Does not repeat what came: it may be a secret with one digit too many.
        parse(&digits).ok_or_else(|| D::Error::custom("a secret has 64 hexadecimal digits"))
    }
}

fn parse(digits: &str) -> Option<Secret> {
    bytes(digits)?.try_into().ok().map(Secret)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            secret: Secret(std::array::from_fn(|index| index as u8 * 7)),
            hosts: vec!["a".into(), "b".into()],
            plain: false,
            streams: 4,
            destination: "~/data".into(),
            verify: true,
            limit: Some(100_000_000),
            role: Role::Source { paths: vec!["hf:a/b".into()] },
            tree: Some(TreeLimit { files: 5, bytes: 1 << 30 }),
            last: Some("/state/x".into()),
            image: None,
        }
    }

    #[test]
    fn a_request_is_one_line() {
        for role in [Role::Relay, Role::Source { paths: vec!["x\ny".into()] }] {
            let request = Request { role, ..request() };
            let line = serde_json::to_string(&request).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
        }
    }

    #[test]
    fn reports_survive_their_way() {
        let reports = [
            Report::Reached,
            Report::Since { hash: crate::hash(b"x") },
            Report::Patch { bytes: Some(Hex((0..=255).collect())) },
            Report::Patch { bytes: None },
            Report::Listening { rank: 3, addresses: vec!["::1".parse().unwrap()], port: 7000 },
            Report::Shares { rank: 1, with: 0 },
            Report::Reading { rank: 0, bytes: 1, total: 2 },
            Report::Progress { rank: 0, received: 1, written: 2, total: 3, waits_for: Limit::Disk },
            Report::Done {
                rank: 1,
                files: 12,
                bytes: 1 << 40,
                received: 5,
                unchanged: 6,
                seconds: 9.8,
                root: "/home/u/data".into(),
            },
            Report::Loading { rank: 1, engine: "docker".into() },
            Report::NotLoaded { rank: 1, text: "no space".into(), hint: Some("df".into()) },
            Report::TooLarge { files: 7, bytes: 1 << 40 },
            Report::Failed { rank: 2, text: "no space".into(), hint: None },
            Report::Note { rank: 2, text: "x".into() },
        ];
        for report in reports {
            let line = serde_json::to_string(&report).unwrap();
            assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
        }
        let listening = r#"{"listening":{"rank":0,"addresses":["10.0.0.1"],"port":7}}"#;
        let addresses = vec!["10.0.0.1".parse().unwrap()];
        let expected = Report::Listening { rank: 0, addresses, port: 7 };
        assert_eq!(serde_json::from_str::<Report>(listening).unwrap(), expected);
    }

    #[test]
    fn questions_and_answers_are_lines() {
        let image = ImageInfo { names: vec!["x\n:1".into()], ..ImageInfo::default() };
        let engine = EngineImages { name: "docker".into(), takes_parts: true, images: vec![image] };
        for answer in [Answer::Images { rank: 1, engine }, Answer::End { rank: 1 }] {
            let line = serde_json::to_string(&answer).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Answer>(&line).unwrap(), answer);
        }
        let question = serde_json::from_str::<Question>(r#"{"images":{"engine":null}}"#);
        assert_eq!(question.unwrap(), Question::Images { engine: None });
    }

    #[test]
    fn a_secret_is_64_digits_and_nothing_prints_it() {
        let line = serde_json::to_string(&request()).unwrap();
        let digits: String = (0..32).map(|index| format!("{:02x}", index * 7)).collect();
        assert!(line.contains(&digits), "{line}");
        assert!(!format!("{:?}", request()).contains(&digits[..8]));
        let long = format!("{digits}0");
        for wrong in ["", "00", &digits[1..], &long, &"g".repeat(64), &"é".repeat(32)] {
            let error = serde_json::from_value::<Secret>(wrong.into()).unwrap_err().to_string();
            assert_eq!(error, "a secret has 64 hexadecimal digits");
        }
    }
}
