//! Fuzzing targets for `tests/fuzz`: parsers of host lists, configuration, patterns and programs' tables. Each target accepts
//! any bytes and panics only if the parser has a bug.

use crate::cli::config::file;
use crate::commands::bench::programs::parser::ProgramLine;
use crate::commands::bench::programs::suite::Suite;
use crate::hosts::ranges::MAX_HOSTS;
use crate::hosts::{self, Host, hostfile};
use crate::job::tag_pattern::{LineOrigin, TagPattern};
use crate::plan::env::env_file;
use crate::run::live::messages::{Reply, Request};
use rlaunch_bootstrap::frame::{self, FrameReader};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use rlaunch_bootstrap::protocol::session::{
    FromSession, SessionError, SessionKind, SessionStart, Terminal, TerminalSize, ToSession,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// Asserts that each host has a slot, and a name that is not empty and cannot be taken for an option of a
/// command.
fn check_hosts(hosts: &[Host]) {
    assert!(hosts.len() <= MAX_HOSTS);
    for host in hosts {
        assert!(host.slots > 0 && !host.name.is_empty() && !host.name.starts_with('-'));
        assert!(!host.name.contains(char::is_whitespace) && host.user.as_deref() != Some(""));
    }
}

/// Parses a hostfile. Asserts that an error names an existing line, and that parsed hosts are the same after
/// they are written and parsed again.
pub fn hostfile(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match hostfile::parse(&text) {
        Err((line, _)) => assert!((1..=text.lines().count()).contains(&line)),
        Ok(hosts) => {
            check_hosts(&hosts);
            assert_eq!(hostfile::parse(&hostfile::write(&hosts)), Ok(hosts));
        }
    }
}

/// Parses the value of a `-H` option. Asserts that the entries of the list, each in a `-H` of its own, give
/// the same hosts.
pub fn host_list(data: &[u8]) {
    let list = String::from_utf8_lossy(data).into_owned();
    let Ok(hosts) = hosts::parse(std::slice::from_ref(&list)) else { return };
    check_hosts(&hosts);
    let parts: Vec<String> = hosts::ranges::entries(&list).map(str::to_owned).collect();
    assert_eq!(hosts::parse(&parts), Ok(hosts));
}

/// Reads requests to a running job, and its replies. Asserts that each message is the same after it is written and read
/// again.
pub fn live_messages(data: &[u8]) {
    read_frames::<Request>(data);
    read_frames::<Reply>(data);
}

fn read_frames<T: Serialize + DeserializeOwned>(data: &[u8]) {
    let mut reader = FrameReader::default();
    reader.push(data);
    while let Ok(Some(message)) = reader.next_frame::<T>() {
        let Ok(written) = frame::encode(&message) else { continue };
        let mut again = FrameReader::default();
        again.push(&written);
        let read = again.next_frame::<T>().ok().flatten();
        // Compared as bytes, since numbers may be NaN.
        assert_eq!(read.and_then(|read| frame::encode(&read).ok()), Some(written));
    }
}

/// Returns the inputs of [`live_messages`] with which the fuzzer starts.
pub fn live_messages_seeds() -> Vec<Vec<u8>> {
    let size = TerminalSize { rows: 24, columns: 80 };
    let terminal = Some(Terminal { term: Some("xterm".into()), size });
    let kind = SessionKind::Command { argv: vec!["sh".into(), "-c".into()], terminal };
    let requests = [
        Request::Status,
        Request::Inspect(Inspection::Stacks { ranks: vec![Rank(3)], native: true }),
        Request::End,
        Request::Session(ToSession::Start(SessionStart { rank: Rank(1), kind })),
        Request::Session(ToSession::Stdin(b"ls".to_vec())),
    ];
    let replies = [
        Reply::Node { host: "a".into(), result: InspectionResult::Failed("late".into()) },
        Reply::Complete { missing: vec!["b".into()] },
        Reply::Session(FromSession::Failed(SessionError::TooMany)),
        Reply::Refused("it is ending".into()),
    ];
    vec![frames(&requests), frames(&replies)]
}

fn frames<T: Serialize>(messages: &[T]) -> Vec<u8> {
    messages.iter().flat_map(|message| frame::encode(message).unwrap_or_default()).collect()
}

/// Returns the inputs of [`hostfile`] with which the fuzzer starts.
pub fn hostfile_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "# two\r\na slots = 4 max_slots=8\n\tme@b\na\n[fd00::2]:3\nc user=you count=2\n",
        "n[01-03,7]:2\nr[1-2]n[08-11] slots=8 # racks\nfe80::1 slots=2\n[fe80::1%eth0]\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Returns the inputs of [`host_list`] with which the fuzzer starts.
pub fn host_list_seeds() -> Vec<Vec<u8>> {
    let texts = ["a,b:2, me@c,a:3", "n[01-16,20]:8,r[1-2]n[1-3],[fd00::2]:4,10.0.0.1"];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Parses an `rlaunch.toml`. Asserts that errors, hosts and settings name existing lines.
pub fn cluster(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = text.lines().count().max(1);
    match file::parse(text, Path::new("/c")) {
        Err(error) => {
            let shown = error.to_string();
            let line = shown.strip_prefix("/c:").and_then(|rest| rest.split(':').next());
            let line: usize = line.and_then(|line| line.parse().ok()).unwrap_or(0);
            assert!((1..=lines).contains(&line), "{shown}");
        }
        Ok(file) => {
            for host in &file.hosts {
                assert!((1..=lines).contains(&host.line) && !host.name.starts_with('-'));
                assert!(!host.bracketed().contains([' ', ',', '/']));
            }
            let of_profiles = file.profiles.iter().flat_map(|(_, settings)| settings);
            for setting in file.defaults.iter().chain(of_profiles).chain(&file.host_list) {
                let place = setting.origin.to_string();
                let line = place.strip_prefix("/c:").and_then(|line| line.parse().ok());
                assert!(line.is_some_and(|line: usize| (1..=lines).contains(&line)), "{place}");
            }
        }
    }
}

/// Parses the file of `--env-file`. Asserts that an error names an existing line, and that names and values
/// of variables are valid in an environment.
pub fn variables(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = text.lines().count();
    match env_file::parse(text) {
        Err((line, reason)) => assert!((1..=lines).contains(&line), "{line}: {reason}"),
        Ok(variables) => {
            for variable in variables {
                assert!((1..=lines).contains(&variable.number));
                assert!(!variable.name.is_empty() && !variable.name.contains(['=', '\0']));
                assert!(!variable.value.unwrap_or_default().contains('\0'));
            }
        }
    }
}

/// Returns the inputs of [`cluster`] with which the fuzzer starts.
pub fn cluster_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "[defaults]\ntransport = \"tcp\"\nnp = 0x3\nkill-after = 0.5\ntag-output = true\n\
         oob-if = ['eth0', \"eth1\"]\n[profile.x]\nhca = \"mlx5\"\n",
        "[hosts.titanic]\nssh = \"10.0.0.170\"\nuser = \"me\"\nport = 2222\nslots = 2\n\
         mesh = [\"192.168.100.2\", \"fd00::2\"]\n[hosts.\"a.b\"]\nhosts.c.slot = 1\n",
        "hosts = [\"a\", \"b:2\"] # two\nprofile = { y = { np = +4 } }\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Returns the inputs of [`variables`] with which the fuzzer starts.
pub fn variables_seeds() -> Vec<Vec<u8>> {
    let text = "\u{feff}# c\nA=1 # x\r\nexport B = 'two\nlines' # y\nC=\"\\n\\\"\\$d\"\nHERE\nD=\n";
    vec![text.as_bytes().to_vec()]
}

/// Parses a tag pattern. Asserts that a valid pattern is printed as it was typed, and that a tag made from it
/// is not empty and has no line break.
pub fn tag_pattern(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(pattern) = text.parse::<TagPattern>() else { return };
    assert_eq!(pattern.to_string(), text);
    assert_eq!(pattern.to_string().parse(), Ok(pattern.clone()));
    let origin = LineOrigin { rank: u32::MAX, host: "b".into(), local_rank: 0, pid: Some(7) };
    let tag = pattern.format(&origin, "12:00");
    assert!(!tag.is_empty() && !tag.contains('\n'));
    // Only `%t` makes a tag depend on the time.
    assert!(pattern.has_time() || tag == pattern.format(&origin, "13:00"));
}

/// Returns the inputs of [`tag_pattern`] with which the fuzzer starts.
pub fn tag_pattern_seeds() -> Vec<Vec<u8>> {
    let all = ["[%r,%h] ", "%t %h.%l (%p): ", "100%% of rank %r|", "%"];
    all.iter()
        .chain(&[TagPattern::default().to_string().as_str()])
        .map(|s| s.as_bytes().to_vec())
        .collect()
}

/// Reads the output of a test program by the parser of each suite. Asserts that numbers in rows are possible.
pub fn test_program(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for suite in [Suite::NcclTests, Suite::Osu] {
        let mut parser = suite.parser();
        for line in text.lines() {
            let ProgramLine::Row(row) = parser.line(line) else { continue };
            let times = [row.average_us, row.min_us, row.max_us, row.in_place_us];
            let rates = [row.gb_per_s, row.messages_per_s];
            let numbers = times.into_iter().chain(rates).flatten();
            assert!(
                numbers.into_iter().all(|number| number.is_finite() && number >= 0.0),
                "{row:?}"
            );
            assert!(row.average_us.is_some() || row.gb_per_s.is_some(), "{row:?}");
        }
        let facts = parser.facts();
        assert!(facts.ranks != Some(0) && facts.element != Some(""), "{facts:?}");
        let _ = (parser.wrong(), parser.incomplete());
    }
}

/// Returns the inputs of [`test_program`] with which the fuzzer starts.
pub fn test_program_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "# nccl-tests version 2.18.3 nccl-headers=23005 nccl-library=23005\n\
         #  Rank  0 Group  0 Pid 1 on a device  0 [0x19] H100\n\
         # size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n\
         500000 125000 float sum -1 188.69 2.65 3.97 0 187.07 2.67 4.01 N/A\n\
         1024 256 half -1 31.2 0.03 0.06 1.04858e+06\n\
         # Out of bounds values : 0 OK\n# Avg bus bandwidth    : 7.20321 \n",
        "# OSU MPI Allgather Latency Test v7.4\n# Datatype: MPI_CHAR.\n\
         # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n\
         1                       2.81              1.89              3.73          10\n",
        "# OSU MPI Multiple Bandwidth / Message Rate Test v5.6.3\n# [ pairs: 1 ] [ window size: 64 ]\n\
         # Size                  MB/s        Messages/s        Validation\n\
         1                       4.24        4235302.84              Pass\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
