//! Fuzzing targets for `tests/fuzz`. Each accepts any bytes and panics only if the parser has a bug.

use crate::cli::config::file;
use crate::commands::bench::programs::parser::ProgramLine;
use crate::commands::bench::programs::suite::Suite;
use std::path::Path;

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
            for group in &file.groups {
                assert!((1..=lines).contains(&group.line) && group.hosts().is_ok());
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

/// Returns the inputs of [`cluster`] with which the fuzzer starts.
pub fn cluster_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "[defaults]\ntransport = \"tcp\"\nnp = 0x3\nkill-after = 0.5\ntag-output = true\n\
         oob-if = ['eth0', \"eth1\"]\n[profile.x]\nhca = \"mlx5\"\n",
        "[hosts.titanic]\nssh = \"10.0.0.170\"\nuser = \"me\"\nport = 2222\nslots = 2\n\
         mesh = [\"192.168.100.2\", \"fd00::2\"]\n[hosts.\"a.b\"]\nhosts.c.slot = 1\n",
        "[groups]\ngpu = [\"a\", \"me@b:4\", \"n[1-2]\"]\ncpu = \"c,d\"\n",
        "hosts = [\"a\", \"b:2\"] # two\nprofile = { y = { np = +4 } }\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
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
