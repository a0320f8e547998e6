//! Suites of test programs: nccl-tests, and OSU's micro-benchmarks of MPI. Names of their tests and programs, and
//! places where hosts have them.

use super::parser::{NcclParser, OsuParser, TableParser};
use std::ffi::OsString;
use std::path::Path;

/// Project with test programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    NcclTests,
    Osu,
}

/// Test program of a suite.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Test {
    /// Name on the command line, which is that of the same measurement by rlaunch's own communicator, if there is
    /// one.
    pub(super) name: &'static str,
    /// File name of the program.
    pub(super) program: &'static str,
    /// Further names on the command line.
    aliases: &'static [&'static str],
    ranks: RankCount,
    pub(super) size: Size,
    pub(super) bus: BusFactor,
    /// Operation of a reduction, if the program does not print it.
    pub(super) op: Option<&'static str>,
}

/// Numbers of ranks that a test can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankCount {
    Any,
    Two,
    Even,
    AtLeastTwo,
}

/// Meaning of the sizes that a program prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    None,
    Message,
    /// Vector of each rank.
    Vector,
    /// Parts of all ranks together.
    Total,
    /// Part of one rank. Reports have the parts of all ranks together.
    Part,
}

/// Ratio of bus bandwidth to algorithm bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BusFactor {
    One,
    AllReduce,
    /// Collectives that leave each rank's own part where it is.
    OthersParts,
    BothDirections,
    Pairs,
}

impl BusFactor {
    /// Returns the formula of the bus bandwidth, and the ratio for a number of ranks.
    pub(super) fn formula(self, ranks: usize) -> (&'static str, f64) {
        let count = ranks.max(1) as f64;
        match self {
            BusFactor::One => ("algbw", 1.0),
            BusFactor::AllReduce => ("algbw * 2 (n - 1) / n", 2.0 * (count - 1.0) / count),
            BusFactor::OthersParts => ("algbw * (n - 1) / n", (count - 1.0) / count),
            BusFactor::BothDirections => ("algbw / 2", 0.5),
            BusFactor::Pairs => ("algbw / pairs", 2.0 / count.max(2.0)),
        }
    }
}

/// Error in the choice of a test, or in the number of its ranks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TestError {
    #[error("{program} is the program of {own}, not of {asked}")]
    OtherTest { program: String, own: &'static str, asked: &'static str },
    #[error("{program} {wants}, but there {are}", are = super::super::verb_and_count(*.ranks as usize))]
    Ranks { program: &'static str, wants: &'static str, ranks: u32 },
}

impl Test {
    const fn new(name: &'static str, program: &'static str, size: Size, bus: BusFactor) -> Test {
        Test { name, program, aliases: &[], ranks: RankCount::Any, size, bus, op: None }
    }

    const fn aliases(self, aliases: &'static [&'static str]) -> Test {
        Test { aliases, ..self }
    }

    const fn ranks(self, ranks: RankCount) -> Test {
        Test { ranks, ..self }
    }

    const fn sum(self) -> Test {
        Test { op: Some("sum"), ..self }
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.program == name || self.aliases.contains(&name)
    }

    /// Returns an error if the test cannot have this number of ranks.
    pub(super) fn check_ranks(&self, ranks: u32) -> Result<(), TestError> {
        let (fits, wants) = match self.ranks {
            RankCount::Any => (true, ""),
            RankCount::Two => (ranks == 2, "is between 2 ranks"),
            RankCount::Even => (ranks.is_multiple_of(2), "needs an even number of ranks"),
            RankCount::AtLeastTwo => (ranks >= 2, "needs 2 ranks or more"),
        };
        let error = || TestError::Ranks { program: self.program, wants, ranks };
        if fits { Ok(()) } else { Err(error()) }
    }
}

const NCCL_TESTS: &[Test] = &[
    Test::new("all_reduce", "all_reduce_perf", Size::Vector, BusFactor::AllReduce)
        .aliases(&["allreduce"]),
    Test::new("all_gather", "all_gather_perf", Size::Total, BusFactor::OthersParts)
        .aliases(&["allgather"]),
    Test::new("reduce_scatter", "reduce_scatter_perf", Size::Total, BusFactor::OthersParts),
    Test::new("all_to_all", "alltoall_perf", Size::Total, BusFactor::OthersParts)
        .aliases(&["alltoall"]),
    Test::new("broadcast", "broadcast_perf", Size::Vector, BusFactor::One).aliases(&["bcast"]),
    Test::new("reduce", "reduce_perf", Size::Vector, BusFactor::One),
    Test::new("gather", "gather_perf", Size::Total, BusFactor::OthersParts),
    Test::new("scatter", "scatter_perf", Size::Total, BusFactor::OthersParts),
    Test::new("sendrecv", "sendrecv_perf", Size::Message, BusFactor::One),
];

const OSU: &[Test] = &[
    Test::new("lat", "osu_latency", Size::Message, BusFactor::One)
        .aliases(&["latency"])
        .ranks(RankCount::Two),
    Test::new("bw", "osu_bw", Size::Message, BusFactor::One).ranks(RankCount::Two),
    Test::new("bibw", "osu_bibw", Size::Message, BusFactor::BothDirections).ranks(RankCount::Two),
    Test::new("mbw_mr", "osu_mbw_mr", Size::Message, BusFactor::Pairs).ranks(RankCount::Even),
    Test::new("multi_lat", "osu_multi_lat", Size::Message, BusFactor::One).ranks(RankCount::Even),
    collective("all_reduce", "osu_allreduce", Size::Vector, BusFactor::AllReduce)
        .aliases(&["allreduce"])
        .sum(),
    collective("all_gather", "osu_allgather", Size::Part, BusFactor::OthersParts)
        .aliases(&["allgather"]),
    collective("reduce_scatter", "osu_reduce_scatter", Size::Total, BusFactor::OthersParts).sum(),
    collective("all_to_all", "osu_alltoall", Size::Part, BusFactor::OthersParts)
        .aliases(&["alltoall"]),
    collective("broadcast", "osu_bcast", Size::Vector, BusFactor::One).aliases(&["bcast"]),
    collective("reduce", "osu_reduce", Size::Vector, BusFactor::One).sum(),
    collective("gather", "osu_gather", Size::Part, BusFactor::OthersParts),
    collective("scatter", "osu_scatter", Size::Part, BusFactor::OthersParts),
    collective("barrier", "osu_barrier", Size::None, BusFactor::One),
];

const fn collective(name: &'static str, program: &'static str, size: Size, bus: BusFactor) -> Test {
    Test::new(name, program, size, bus).ranks(RankCount::AtLeastTwo)
}

/// Directories of programs besides those in `PATH`. `{a,b}` stands for either. None is below the working directory, where
/// a stranger's program may stand.
const NCCL_PLACES: &[&str] =
    &["/usr/local/bin", "/usr/local/nccl-tests/build", "/opt/{nccl-tests,nccl_tests}/build"];
const OSU_PLACES: &[&str] = &[
    "/usr/local/bin",
    "{/usr/local,/usr,/opt/osu-micro-benchmarks,/opt/conda}/libexec/osu-micro-benchmarks/mpi/{pt2pt,collective}",
    "/usr/lib{,/x86_64-linux-gnu,/aarch64-linux-gnu}/osu-micro-benchmarks/mpi/{pt2pt,collective}",
    "/opt/osu-micro-benchmarks/{mpi/pt2pt,mpi/collective,c/mpi/pt2pt/standard,c/mpi/collective/blocking}",
    "/usr/lib64/{openmpi,mpich}/bin",
];

/// Replaces the braces of a place by each of the words in them.
fn expand(place: &str) -> Vec<String> {
    let parts = place.split_once('{').and_then(|(before, rest)| {
        let (words, after) = rest.split_once('}')?;
        Some((before, words, after))
    });
    let Some((before, words, after)) = parts else { return vec![place.to_owned()] };
    words.split(',').flat_map(|word| expand(&format!("{before}{word}{after}"))).collect()
}

impl Suite {
    /// Returns the project's name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Suite::NcclTests => "nccl-tests",
            Suite::Osu => "OSU Micro-Benchmarks",
        }
    }

    fn tests(self) -> &'static [Test] {
        match self {
            Suite::NcclTests => NCCL_TESTS,
            Suite::Osu => OSU,
        }
    }

    pub(crate) fn parser(self) -> Box<dyn TableParser> {
        match self {
            Suite::NcclTests => Box::new(NcclParser::default()),
            Suite::Osu => Box::new(OsuParser::default()),
        }
    }

    /// Finds a test by its name or that of its program.
    pub(super) fn test(self, name: &str) -> Result<&'static Test, String> {
        let found = self.tests().iter().find(|test| test.is_called(name));
        found.ok_or_else(|| {
            let names: Vec<&str> = self.tests().iter().map(|test| test.name).collect();
            format!("{name:?} is not a test of {}: {}", self.name(), names.join(", "))
        })
    }

    /// Returns the test that the user `asked` for, else that of the program, else `all_reduce`.
    pub(super) fn choose(
        self,
        asked: Option<&'static Test>,
        program: Option<&Path>,
    ) -> Result<&'static Test, TestError> {
        let file = program.and_then(Path::file_name).map(|name| name.to_string_lossy());
        let of_program = file.as_deref().and_then(|file| {
            let has_name = |test: &&Test| {
                test.program == file || self.other_names(test.program).iter().any(|n| n == file)
            };
            self.tests().iter().find(has_name)
        });
        match (asked, of_program) {
            (Some(asked), Some(own)) if asked != own => {
                let program = file.unwrap_or_default().into_owned();
                Err(TestError::OtherTest { program, own: own.name, asked: asked.name })
            }
            (Some(test), _) | (None, Some(test)) => Ok(test),
            (None, None) => {
                let default = |test: &&Test| test.name == "all_reduce";
                Ok(self.tests().iter().find(default).unwrap_or(&self.tests()[0]))
            }
        }
    }

    /// Returns the directories in which the program is looked for after those in `PATH`, as a shell would write them.
    pub(super) fn places(self) -> &'static [&'static str] {
        match self {
            Suite::NcclTests => NCCL_PLACES,
            Suite::Osu => OSU_PLACES,
        }
    }

    /// Returns the directories of [`places`](Suite::places), each by itself.
    pub(super) fn directories(self) -> Vec<String> {
        self.places().iter().flat_map(|place| expand(place)).collect()
    }

    /// Returns other names under which systems have a program: `all_reduce_perf_mpi` in NVIDIA's containers,
    /// `mpitests-osu_bw` in Red Hat's packages.
    pub(super) fn other_names(self, program: &str) -> Vec<OsString> {
        let name = match self {
            Suite::NcclTests => format!("{program}_mpi"),
            Suite::Osu => format!("mpitests-{program}"),
        };
        vec![name.into()]
    }

    /// Returns how to get the programs, as the text of a hint.
    pub(super) fn how_to_get(self) -> &'static str {
        match self {
            Suite::NcclTests => {
                "build nccl-tests on the hosts: git clone https://github.com/NVIDIA/nccl-tests /opt/nccl-tests && \
                 make -C /opt/nccl-tests MPI=1; NVIDIA's PyTorch containers have it"
            }
            Suite::Osu => {
                "install OSU's micro-benchmarks on the hosts: dnf install mpitests-openmpi, \
                 spack install osu-micro-benchmarks, or the sources of \
                 https://mvapich.cse.ohio-state.edu/benchmarks/"
            }
        }
    }

    /// Returns the arguments of a test. Sizes in bytes, from the first to the last, are doubled each time.
    pub(super) fn arguments(
        self,
        test: &Test,
        sizes: Option<(usize, usize)>,
        iterations: Option<u32>,
    ) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut option = |words_of_option: &[&str]| {
            words.extend(words_of_option.iter().map(|word| (*word).to_owned()));
        };
        match self {
            Suite::NcclTests => {
                let (first, last) = sizes.unwrap_or((8, 128 << 20));
                option(&["-b", &first.to_string(), "-e", &last.to_string()]);
                option(&["-f", "2", "-g", "1"]);
                if let Some(iterations) = iterations {
                    option(&["-n", &iterations.to_string()]);
                }
            }
            Suite::Osu => {
                // Minimum and maximum of the ranks, which only collectives have.
                if test.ranks == RankCount::AtLeastTwo {
                    option(&["-f"]);
                }
                if let Some((first, last)) = sizes.filter(|_| test.size != Size::None) {
                    option(&["-m", &format!("{first}:{last}")]);
                }
                if let Some(iterations) = iterations {
                    option(&["-i", &iterations.to_string()]);
                }
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITES: [Suite; 2] = [Suite::NcclTests, Suite::Osu];

    #[test]
    fn tests_have_each_name_once() {
        for suite in SUITES {
            for test in suite.tests() {
                for name in [&[test.name, test.program], test.aliases].concat() {
                    let called = suite.tests().iter().filter(|test| test.is_called(name));
                    assert_eq!(called.count(), 1, "{name}");
                    assert_eq!(suite.test(name), Ok(test));
                }
            }
            let error = suite.test("allreduces").unwrap_err();
            assert!(error.contains(&format!("not a test of {}: ", suite.name())), "{error}");
        }
    }

    #[test]
    fn a_program_tells_its_test() {
        let choose = |asked: Option<&str>, program: &str| {
            let asked = asked.map(|name| Suite::Osu.test(name).unwrap());
            let program = Some(program).filter(|program| !program.is_empty()).map(Path::new);
            Suite::Osu.choose(asked, program).map(|test| test.name)
        };
        assert_eq!(choose(None, ""), Ok("all_reduce"));
        assert_eq!(choose(None, "/x/osu_bw"), Ok("bw"));
        assert_eq!(choose(None, "mpitests-osu_bw"), Ok("bw"));
        assert_eq!(choose(Some("bw"), "/x/own"), Ok("bw"));
        assert_eq!(choose(Some("bw"), "/x/osu_bw"), Ok("bw"));
        let error = choose(Some("lat"), "/x/osu_bw").unwrap_err().to_string();
        assert_eq!(error, "osu_bw is the program of bw, not of lat");
    }

    #[test]
    fn places_are_directories_without_braces() {
        assert_eq!(expand("/a{,/b}/c/{d,e}"), ["/a/c/d", "/a/c/e", "/a/b/c/d", "/a/b/c/e"]);
        assert_eq!((expand("/a"), expand("a{b")), (vec!["/a".into()], vec!["a{b".into()]));
        let osu = Suite::Osu.directories();
        for directory in ["/usr/libexec/osu-micro-benchmarks/mpi/pt2pt", "/usr/lib64/openmpi/bin"] {
            assert!(osu.iter().any(|known| known == directory), "{directory} in {osu:?}");
        }
        let all = SUITES.into_iter().flat_map(Suite::directories);
        assert!(all.clone().all(|directory| !directory.contains(['{', '}', ':'])));
        assert!(all.clone().count() > SUITES.len());
    }

    #[test]
    fn numbers_of_ranks_are_checked() {
        let check = |name: &str, ranks| {
            let checked = Suite::Osu.test(name).unwrap().check_ranks(ranks);
            checked.map_err(|error| error.to_string())
        };
        let error = "osu_latency is between 2 ranks, but there are 3".to_owned();
        assert_eq!((check("lat", 2), check("lat", 3)), (Ok(()), Err(error)));
        let error = "osu_allreduce needs 2 ranks or more, but there is 1".to_owned();
        assert_eq!((check("all_reduce", 3), check("all_reduce", 1)), (Ok(()), Err(error)));
        let error = "osu_mbw_mr needs an even number of ranks, but there are 3".to_owned();
        assert_eq!((check("mbw_mr", 4), check("mbw_mr", 3)), (Ok(()), Err(error)));
        assert_eq!(Suite::NcclTests.test("all_reduce").unwrap().check_ranks(1), Ok(()));
    }

    #[test]
    fn bus_bandwidth_follows_from_the_number_of_ranks() {
        let factor = |bus: BusFactor, ranks| bus.formula(ranks).1;
        assert_eq!([2, 4].map(|n| factor(BusFactor::AllReduce, n)), [1.0, 1.5]);
        assert_eq!([2, 4].map(|n| factor(BusFactor::OthersParts, n)), [0.5, 0.75]);
        assert_eq!([2, 4].map(|n| factor(BusFactor::Pairs, n)), [1.0, 0.5]);
        for bus in [BusFactor::AllReduce, BusFactor::OthersParts, BusFactor::Pairs] {
            assert!([0, 1].iter().all(|n| factor(bus, *n).is_finite()), "{bus:?}");
        }
    }

    #[test]
    fn programs_are_told_what_to_measure() {
        let words = |suite: Suite, name: &str, sizes, iterations| {
            suite.arguments(suite.test(name).unwrap(), sizes, iterations).join(" ")
        };
        let nccl = |sizes, iterations| words(Suite::NcclTests, "all_reduce", sizes, iterations);
        assert_eq!(nccl(None, None), "-b 8 -e 134217728 -f 2 -g 1");
        assert_eq!(nccl(Some((8, 64)), Some(5)), "-b 8 -e 64 -f 2 -g 1 -n 5");
        assert_eq!(words(Suite::Osu, "lat", None, None), "");
        assert_eq!(words(Suite::Osu, "all_reduce", Some((4, 64)), Some(5)), "-f -m 4:64 -i 5");
        assert_eq!(words(Suite::Osu, "barrier", Some((4, 64)), None), "-f");
    }
}
