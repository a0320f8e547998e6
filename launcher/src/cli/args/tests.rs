use super::values::{
    parse_listed_job, parse_master_port, parse_port_range, parse_ranks, parse_seconds,
};
use super::*;
use crate::cli::command_line::translate_job;
use clap::CommandFactory;
use rlaunch_plan::job::options::DryRun;
use rlaunch_plan::job::stdin::StdinArg;
use rlaunch_plan::job::tag_pattern::TagPattern;
use rlaunch_plan::map::{MapBy, RankBy};

fn parse(line: &str) -> JobArgs {
    let words = std::iter::once("rlaunch").chain(line.split(' ')).map(OsString::from).collect();
    JobArgs::try_parse_from(translate_job(words).unwrap().0).unwrap()
}

#[test]
fn the_definition_is_sound() {
    JobArgs::command().debug_assert();
}

#[test]
fn mpiruns_spelling_ends_where_the_program_begins() {
    let args = parse("-H a,b,c -np 3 python train.py -np 7 --tag-output");
    assert_eq!(args.hosts.hosts, ["a,b,c"]);
    assert_eq!(args.hosts.ranks, Some(3));
    assert_eq!(args.output.tag_output, None);
    assert_eq!(args.command.argv, ["python", "train.py", "-np", "7", "--tag-output"]);
}

#[test]
fn hosts_and_orders_are_read_as_they_are_typed() {
    let args = parse("--machinefile f --hostfile=g --exclude n[1-2] --ppn 4 --rank-by node x");
    assert_eq!(args.hosts.hostfiles, [std::path::Path::new("f"), std::path::Path::new("g")]);
    assert_eq!(args.hosts.exclude, ["n[1-2]"]);
    assert_eq!((args.hosts.per_node, args.hosts.map_by), (Some(4), MapBy::Slot));
    assert_eq!(args.hosts.rank_by, Some(RankBy::Node));
    assert_eq!(parse("--nproc-per-node 2 x").hosts.per_node, Some(2));
    assert_eq!(parse("--map-by ppr:2:node x").hosts.map_by, MapBy::Ppr(2));
    let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
    let error = JobArgs::try_parse_from(words("rlaunch --map-by core x")).unwrap_err().to_string();
    assert!(error.contains("slot, node, ppr:N:node, numa or gpu are understood"), "{error}");
}

#[test]
fn values_are_not_taken_for_programs() {
    let args = parse("--tag-output -x A=1 -H a -H b:2 -vn 2 run -np");
    assert_eq!(args.command.argv, ["run", "-np"]);
    assert_eq!(args.hosts.ranks, Some(2));
    assert_eq!(args.output.tag_output, Some(TagPattern::default()));
    let args = parse("--tag-output=%t:%r --stdin all --output-filename x -q cat %r");
    assert_eq!(args.output.tag_output.map(|tag| tag.to_string()), Some("%t:%r".to_owned()));
    assert_eq!((args.output.stdin, args.output.quiet), (Some(StdinArg::All), true));
    assert_eq!(args.output.output_dir, Some("x".into()));
    assert_eq!(args.command.argv, ["cat", "%r"]);
    assert_eq!(parse("run -np 2 -- -odd").command.argv, ["-odd"]);
    let args = parse("--dry-run -np 2 hostname");
    assert_eq!((args.hosts.ranks, args.output.dry_run), (Some(2), Some(DryRun::Agents)));
    assert_eq!(args.command.argv, ["hostname"]);
    for line in ["-n4 -Ha,b hostname", "-vn4 -H=a,b hostname", "-n=4 -Ha -Hb hostname"] {
        let args = parse(line);
        assert_eq!(
            (args.hosts.ranks, args.hosts.hosts.join(",")),
            (Some(4), "a,b".to_owned()),
            "{line}"
        );
        assert_eq!(args.command.argv, ["hostname"], "{line}");
    }
}

#[test]
fn unknown_options_are_no_programs() {
    let words = |line: &str| line.split(' ').map(OsString::from).collect();
    let error = translate_job(words("rlaunch -H a --tag-outptu hostname")).unwrap_err();
    assert!(error.to_string().contains("did you mean --tag-output?"), "{error}");
    assert!(translate_job(words("rlaunch -H a -Q hostname")).is_err());
    assert!(translate_job(words("rlaunch -H a -- -Q hostname")).is_ok());
    assert!(translate_job(words("rlaunch --help")).is_ok());
    let pattern = JobArgs::try_parse_from(words("rlaunch --tag-output=%q hostname")).unwrap_err();
    assert!(pattern.to_string().contains("there is no %q; there are %r rank"), "{pattern}");
    assert!(JobArgs::try_parse_from(words("rlaunch --quiet -v hostname")).is_err());
}

#[test]
fn ranges_and_times_are_checked() {
    assert!(parse_port_range("21511-21000").is_err());
    assert!(parse_port_range("1-2").is_err());
    assert!(parse_port_range("30000-30608").unwrap_err().contains("eRDMA"));
    assert!(parse_port_range("30623-30700").is_err());
    assert!(parse_port_range("30624-30700").is_ok());
    assert_eq!(parse_master_port("29500"), Ok(29500));
    assert!(parse_master_port("30623").unwrap_err().contains("eRDMA"));
    assert!(parse_master_port("0").is_err() && parse_master_port("65536").is_err());
    assert_eq!(parse_seconds("0.5"), Ok(std::time::Duration::from_millis(500)));
    assert!(parse_seconds("-1").is_err());
    assert_eq!(parse_ranks(" 4 "), Ok(4));
    assert!(parse_ranks("0").is_err());
    assert_eq!(parse_listed_job("amber-3"), Ok("amber-3".to_owned()));
    assert!(parse_listed_job("-3").unwrap_err().contains("`rlaunch jobs -n 3` lists"));
}
