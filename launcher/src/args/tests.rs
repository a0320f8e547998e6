use super::spelling::respell;
use super::values::{parse_master_port, parse_port_range, parse_ranks, parse_seconds};
use super::*;
use clap::CommandFactory;

fn parse(line: &str) -> Args {
    let words = std::iter::once("rlaunch").chain(line.split(' ')).map(OsString::from).collect();
    Args::try_parse_from(respell(words).unwrap()).unwrap()
}

#[test]
fn the_definition_is_sound() {
    Args::command().debug_assert();
}

#[test]
fn mpiruns_spelling_ends_where_the_program_begins() {
    let args = parse("-H a,b,c -np 3 python train.py -np 7 --tag-output");
    assert_eq!(args.hosts.hosts, ["a,b,c"]);
    assert_eq!(args.hosts.ranks, Some(3));
    assert!(!args.output.tag_output);
    assert_eq!(args.argv, ["python", "train.py", "-np", "7", "--tag-output"]);
}

#[test]
fn values_are_not_taken_for_programs() {
    let args = parse("--tag-output -x A=1 -H a -H b:2 -vn 2 run -np");
    assert_eq!(args.argv, ["run", "-np"]);
    assert_eq!(args.hosts.ranks, Some(2));
    assert_eq!(parse("run -np 2 -- -odd").argv, ["-odd"]);
    for line in ["-n4 -Ha,b hostname", "-vn4 -H=a,b hostname", "-n=4 -Ha -Hb hostname"] {
        let args = parse(line);
        assert_eq!(
            (args.hosts.ranks, args.hosts.hosts.join(",")),
            (Some(4), "a,b".to_owned()),
            "{line}"
        );
        assert_eq!(args.argv, ["hostname"], "{line}");
    }
}

#[test]
fn unknown_options_are_no_programs() {
    let words = |line: &str| line.split(' ').map(OsString::from).collect();
    let error = respell(words("rlaunch -H a --tag-outptu hostname")).unwrap_err();
    assert!(error.to_string().contains("--tag-output exists"), "{error}");
    assert!(respell(words("rlaunch -H a -Q hostname")).is_err());
    assert!(respell(words("rlaunch -H a -- -Q hostname")).is_ok());
    assert!(respell(words("rlaunch --help")).is_ok());
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
}
