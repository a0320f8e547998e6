//! What was typed after `rlaunch bench`.

use super::{Args, HostArgs, NetworkArgs, PlacingArgs, ReachArgs, values};
use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The largest size, in bytes.
const LARGEST: usize = 1 << 30;

/// Measure messages and collectives of rlaunch's communicator between hosts.
///
/// A small program is sent along and run as ranks; over what they reach each other (shared memory,
/// TCP, RDMA) is chosen as for a job, by --transport and what the hosts have. A line per size is
/// printed as soon as it is measured, and what arrives is compared with what was sent.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch bench",
    max_term_width = 100,
    override_usage = "rlaunch bench [OPTIONS] lat|bw|coll [COLLECTIVE]\n       \
                      rlaunch bench train --np N,... [OPTIONS] PROGRAM [ARGUMENT]...",
    after_help = "\
Examples:
  rlaunch bench lat -H a,b                       one way of a ping-pong, 8 bytes to 4 MiB
  rlaunch bench lat -H a:2 --sizes 8             the same within a host, over shared memory
  rlaunch bench bw -H a,b --transport tcp        many messages at once, over TCP
  rlaunch bench coll all_reduce -H a:4,b:4       8 ranks on two hosts, 8 bytes to 16 MiB
  rlaunch bench coll all_gather -H a,b --sizes 1K,1M --type u8 --json
  rlaunch bench train -H a,b --np 1,2 ./train    how a program scales; see bench train --help

Columns:
  bytes      of each message, of each rank's vector (all_reduce, reduce, broadcast), or of all
             ranks' parts together (gather, scatter, all_gather, reduce_scatter, all_to_all)
  time       of one message or call in microseconds, the slowest rank's: the median, the least and
             the 99th percentile of batches of 200 us or more, which ranks begin together
  algbw      bytes / median time; GB are 10^9 bytes
  busbw      what each rank's link carries, whatever the number n of ranks, as nccl-tests has it:
             algbw * 2 (n - 1) / n for all_reduce,
             algbw * (n - 1) / n for gather, scatter, all_gather, reduce_scatter, all_to_all,
             algbw for lat, bw, broadcast and reduce"
)]
pub(crate) struct BenchArgs {
    /// lat: one way of a ping-pong of 2 ranks; bw: messages from rank 0 to rank 1, many at once;
    /// coll: a collective of all ranks
    #[arg(value_name = "lat|bw|coll", hide_possible_values = true)]
    pub(crate) what: What,

    /// Which, for coll: all_reduce, reduce, broadcast, gather, scatter, all_gather, reduce_scatter,
    /// all_to_all or barrier
    #[arg(value_name = "COLLECTIVE", value_parser = COLLECTIVES, hide_possible_values = true)]
    pub(crate) collective: Option<String>,

    /// Hosts, as for a job: `:N` gives a host N ranks
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...")]
    pub(crate) hosts: Vec<String>,

    /// How many ranks, also `-np N`; without it, one for each slot
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = values::parse_ranks)]
    pub(crate) ranks: Option<u32>,

    /// Allow more ranks than slots
    #[arg(long)]
    pub(crate) oversubscribe: bool,

    /// From one size to another, doubled each time, or these; K, M and G are powers of 1024.
    /// 8..4M for lat and bw, 8..16M for coll
    #[arg(long, value_name = "FIRST..LAST|SIZE,...")]
    pub(crate) sizes: Option<Sizes>,

    /// The type of elements: f16, bf16, f32, f64, i32, i64, u8 or u64
    #[arg(
        long = "type", value_name = "TYPE", default_value = "f32", hide_possible_values = true,
        value_parser = ["f16", "bf16", "f32", "f64", "i32", "i64", "u8", "u64"]
    )]
    pub(crate) element: String,

    /// What all_reduce, reduce and reduce_scatter do: sum, prod, min or max
    #[arg(
        long, value_name = "OP", default_value = "sum", hide_possible_values = true,
        value_parser = ["sum", "prod", "min", "max"]
    )]
    pub(crate) op: String,

    /// So many batches of each size; without it as many as a second has, 10 to 1000
    #[arg(
        long, value_name = "N", visible_alias = "iters",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub(crate) iterations: Option<u32>,

    /// Print all as one JSON object at the end, in place of the table
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) placing: PlacingArgs,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    #[command(flatten)]
    pub(crate) reach: ReachArgs,
}

const COLLECTIVES: [&str; 9] = [
    "all_reduce",
    "reduce",
    "broadcast",
    "gather",
    "scatter",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
];

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    Lat,
    Bw,
    Coll,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            What::Lat => "lat",
            What::Bw => "bw",
            What::Coll => "coll",
        })
    }
}

/// In bytes, in the order in which they are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let Some((first, last)) = text.split_once("..") else {
            return text.split(',').map(size).collect::<Result<_, _>>().map(Sizes);
        };
        let (first, last) = (size(first)?, size(last)?);
        if first == 0 || first > last {
            return Err("the first of a range is 1 or more, and the last not less".to_owned());
        }
        Ok(Sizes(
            std::iter::successors(Some(first), |size| Some(size * 2))
                .take_while(|size| *size <= last)
                .collect(),
        ))
    }
}

fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.trim().char_indices().last() {
        Some((at, 'K' | 'k')) => (&text.trim()[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text.trim()[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text.trim()[..at], 1 << 30),
        _ => (text.trim(), 1),
    };
    let number = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    number
        .filter(|size| *size <= LARGEST)
        .ok_or_else(|| format!("{text:?} is no size up to 1G, as 8, 64K or 16M"))
}

/// A line that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("rlaunch bench coll needs a collective: {}", COLLECTIVES.join(", "))]
    NoCollective,
    #[error("rlaunch bench {0} takes no collective, and {1} was given")]
    Collective(What, String),
    #[error("rlaunch bench {what} is between 2 ranks, and there {are}", are = are(*.ranks))]
    Ranks { what: What, ranks: u32 },
    #[error(transparent)]
    Program(#[from] clap::Error),
}

fn are(ranks: u32) -> String {
    if ranks == 1 { "is 1".to_owned() } else { format!("are {ranks}") }
}

impl BenchArgs {
    /// The job that measures, with what it runs.
    pub(crate) fn into_job(self, program: &Path) -> Result<Args, BenchError> {
        let what = match (self.what, self.collective) {
            (What::Coll, Some(collective)) => collective,
            (What::Coll, None) => return Err(BenchError::NoCollective),
            (what, None) => what.to_string(),
            (what, Some(collective)) => return Err(BenchError::Collective(what, collective)),
        };
        let is_collective = self.what == What::Coll;
        let last: usize = if is_collective { 16 << 20 } else { 4 << 20 };
        let usual = || Sizes((3..=last.ilog2()).map(|power| 1 << power).collect());
        let sizes = match what.as_str() {
            "barrier" => Sizes(vec![0]),
            _ => self.sizes.unwrap_or_else(usual),
        };
        let sizes: Vec<String> = sizes.0.iter().map(ToString::to_string).collect();
        let element = if is_collective { self.element } else { "u8".to_owned() };
        let batches = self.iterations.unwrap_or(0).to_string();
        let form = if self.json { "json" } else { "table" };
        let name = program.file_name().unwrap_or(program.as_os_str());
        let mut words: Vec<OsString> =
            ["rlaunch", "--stdin", "none", "--preload"].map(OsString::from).into();
        words.push(program.into());
        words.push(name.to_owned());
        words.extend([what, sizes.join(","), element, self.op, batches].map(OsString::from));
        words.push(form.into());
        let args = Args::try_parse_from(words)?;
        let (hosts, ranks, oversubscribe) = (self.hosts, self.ranks, self.oversubscribe);
        let hosts = HostArgs { hosts, ranks, oversubscribe, ..args.hosts };
        let (placing, network, reach) = (self.placing, self.network, self.reach);
        Ok(Args { hosts, placing, network, reach, ..args })
    }

    /// How many ranks it takes, where that is not up to the user.
    pub(crate) fn check_ranks(what: What, ranks: u32) -> Result<(), BenchError> {
        match (what, ranks) {
            (What::Coll, _) | (_, 2) => Ok(()),
            _ => Err(BenchError::Ranks { what, ranks }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<String, BenchError> {
        let words = ["rlaunch bench"].into_iter().chain(line.split(' '));
        let args = BenchArgs::try_parse_from(words)?.into_job(Path::new("/x/rlaunch-bench"))?;
        let words = args.command.argv.iter().map(|word| word.to_string_lossy().into_owned());
        Ok(words.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn sizes_are_doubled_or_listed() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(sizes("8..64").unwrap(), [8, 16, 32, 64]);
        assert_eq!(sizes("3..10").unwrap(), [3, 6]);
        assert_eq!(sizes("0,1k,2M").unwrap(), [0, 1024, 2 << 20]);
        for bad in ["", "8..", "9..8", "0..8", "2G", "8,x", "K", "-1", "18446744073709551615G"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_was_typed_becomes_a_job() {
        let said = words("coll all_gather -H a:2,b --sizes 8,16 --type u8 --json").unwrap();
        assert_eq!(said, "rlaunch-bench all_gather 8,16 u8 sum 0 json");
        let said = words("lat -H a,b --sizes 8 --iterations 5").unwrap();
        assert_eq!(said, "rlaunch-bench lat 8 u8 sum 5 table");
        assert!(words("coll all_reduce -H a").unwrap().contains(" 8,16,32,"));
        assert_eq!(words("coll barrier -H a").unwrap(), "rlaunch-bench barrier 0 f32 sum 0 table");
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        let said = |line: &str| words(line).unwrap_err().to_string();
        assert!(
            said("coll -H a").starts_with("rlaunch bench coll needs a collective: all_reduce,")
        );
        assert!(said("lat barrier").contains("takes no collective"));
        assert!(said("coll allreduce").contains("invalid value 'allreduce'"));
        let one = BenchArgs::check_ranks(What::Lat, 1).unwrap_err().to_string();
        assert_eq!(one, "rlaunch bench lat is between 2 ranks, and there is 1");
        assert!(BenchArgs::check_ranks(What::Coll, 1).is_ok());
    }
}
