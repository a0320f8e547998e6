use super::mca;
use super::translate::{long_option, translate};
use super::words::{Meaning, WORDS};
use crate::cli::args::Args;
use clap::{CommandFactory, Parser};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ffi::OsString;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn built() -> clap::Command {
    let mut command = Args::command();
    command.build();
    command
}

/// rlaunch's own words for a line.
fn spelled(line: &str) -> Result<String, String> {
    let spelled = translate(&built(), &words(line)).map_err(|error| error.to_string())?;
    let spelled: Vec<String> = spelled.iter().map(|word| word.display().to_string()).collect();
    Ok(spelled.join("|"))
}

#[track_caller]
fn becomes(line: &str, expected: &str) {
    assert_eq!(spelled(line).as_deref(), Ok(expected), "{line}");
}

/// A line that is refused, with each of `texts`.
#[track_caller]
fn refuses(line: &str, texts: &[&str]) {
    let error = spelled(line).unwrap_err();
    for text in texts {
        assert!(error.contains(text), "{line}: no `{text}` in {error}");
    }
}

#[test]
fn every_word_stands_for_an_option_that_there_is() {
    let command = built();
    let mut lacking = BTreeSet::new();
    let targets = WORDS.iter().filter_map(|word| match &word.meaning {
        Meaning::Is(option) | Meaning::Sets(option, _) => Some(*option),
        _ => None,
    });
    let by_values = ["env", "preload", "ignored", "remark", "interfaces", "bind", "port", "rsh"];
    for option in targets.chain(mca::options()).chain(by_values) {
        if long_option(&command, option).is_none() {
            lacking.insert(option);
        }
    }
    assert!(lacking.is_empty(), "no such options: {lacking:?}");
}

#[test]
fn every_word_stands_once() {
    for (at, word) in WORDS.iter().enumerate() {
        assert!(!WORDS[..at].iter().any(|other| other.name == word.name), "{}", word.name);
        assert!(!word.name.contains('_') && !word.name.starts_with('-'), "{}", word.name);
    }
}

#[test]
fn the_line_of_resnet_50() {
    let mut typed = words("--allow-run-as-root -H a,b,c,d -np");
    typed.push("4 ".into());
    typed.extend(words(
        "-x NCCL_IB_DISABLE=0 -x NCCL_DEBUG=INFO --mca pml ob1 --mca btl ^openib -bind-to none \
         -map-by slot python3 train.py -np 7",
    ));
    let spelled = translate(&built(), &typed).unwrap();
    let text: Vec<String> = spelled.iter().map(|word| word.display().to_string()).collect();
    assert_eq!(
        text.join("|"),
        "-H|a,b,c,d|--np|4 |-x|NCCL_IB_DISABLE=0|-x|NCCL_DEBUG=INFO|--bind=none|--map-by=slot|\
         --ignored=--mca pml|--ignored=--mca btl|python3|train.py|-np|7"
    );
    let line = std::iter::once("rlaunch".into()).chain(spelled);
    let args = Args::try_parse_from(line).unwrap();
    assert_eq!((args.hosts.ranks, args.command.argv.len()), (Some(4), 4));
}

#[test]
fn one_dash_does_for_long_options() {
    becomes("-hosts a,b -wdir /tmp -timeout 5 prog", "--host|a,b|--wdir|/tmp|--timeout|5|prog");
    becomes("-np=4 -oversubscribe prog", "--np=4|--oversubscribe|prog");
    becomes("--kill_after 3 -kill_after=3 prog", "--kill-after|3|--kill-after=3|prog");
    becomes("-n4 -vn 2 -Ha,b prog", "-n|4|-vn|2|-H|a,b|prog");
    becomes("-host a -verbose prog -host b", "--host|a|--verbose|prog|-host|b");
    becomes("-l -prepend-rank -- -l", "--tag-output|--|-l");
    becomes("--n 2 --x A=1 --x B prog", "--np|2|--env|A=1|--env|B|prog");
    becomes("-help", "--help");
    becomes("-h", "-h");
}

#[test]
fn variables_are_given_as_mpiexec_has_them() {
    becomes("-genv A 1 -env B=2 -genv C -x p", "--env=A=1|--env=B=2|--env=C=-x|p");
    becomes("-genvlist A,B -genvall p", "--env=A|--env=B|p");
    refuses("-genv", &["'-genv' takes a value"]);
    refuses("-genv A", &["'-genv' takes a value"]);
    refuses("--mca pml", &["'--mca' takes a name and a value"]);
}

#[test]
fn binding_and_mapping_are_translated() {
    becomes("--bind-to core -report-bindings p", "--bind=core|--show=placement|p");
    becomes("-bind-to=hwthread p", "--cpus-per-rank=1|p");
    let told = "--remark=--bind-to socket: ranks are bound to NUMA nodes, as by --bind numa";
    becomes("--bind-to socket p", &format!("--bind=numa|{told}|p"));
    becomes("--bind-to core:if-supported p", "--bind=core|--ignored=--bind-to :if-supported|p");
    refuses("--bind-to tray p", &["'tray' for '--bind-to'", "socket and package"]);
    becomes(
        "-map-by ppr:2:node:PE=4,OVERSUBSCRIBE p",
        "--map-by=ppr:2:node|--cpus-per-rank=4|--oversubscribe|p",
    );
    becomes("--map-by :OVERSUBSCRIBE --oversubscribe p", "--oversubscribe|p");
    becomes(
        "--oversubscribe --map-by core:span p",
        "--oversubscribe|--map-by=slot|--ignored=--map-by :span|p",
    );
    becomes("-bynode p", "--map-by=node|p");
    becomes("--display map,bind,topo p", "--show=placement|--ignored=--display topo|p");
    becomes("--output tag:pretty p", "--tag-output|--ignored=--output pretty|p");
}

#[test]
fn parameters_with_a_meaning_take_effect() {
    becomes("--mca btl_openib_if_include mlx5_0:1,mlx5_1 p", "--hca==mlx5_0:1,mlx5_1|p");
    becomes("--mca btl_openib_if_exclude mlx5_2 p", "--hca=^=mlx5_2|p");
    becomes("--mca hwloc_base_binding_policy core -gmca x 1 p", "--bind=core|--ignored=-gmca x|p");
    becomes("--mca rmaps_base_oversubscribe true p", "--oversubscribe|p");
    becomes("--mca rmaps_base_oversubscribe 0 p", "p");
    becomes(
        "--mca orte_tag_output 1 -tag-output p",
        "--tag-output|--ignored=--mca orte_tag_output|p",
    );
    becomes("--prtemca plm_ssh_num_concurrent 16 p", "--ssh-fanout=16|p");
    refuses("--mca hwloc_base_binding_policy tray p", &["--mca hwloc_base_binding_policy"]);
}

#[test]
fn interfaces_are_preferred_and_not_required() {
    becomes(
        "--mca btl_tcp_if_include bond0 --mca oob_tcp_if_include bond0 --mca pml ob1 p",
        "--interfaces=oob_tcp_if_include bond0|--ignored=--mca pml|p",
    );
    becomes(
        "--mca btl_tcp_if_include ib0 --mca oob_tcp_if_include eth0 p",
        "--ignored=--mca btl_tcp_if_include|--interfaces=oob_tcp_if_include eth0|p",
    );
    becomes(
        "-iface eth0 --mca btl_tcp_if_include ib0 p",
        "--oob-if|eth0|--ignored=--mca btl_tcp_if_include|p",
    );
    let line = ["rlaunch", "--interfaces=oob_tcp_if_include bond0", "p"];
    assert_eq!(Args::try_parse_from(line).unwrap().foreign.preferences.len(), 1);
    let texts = ["'10.1.0.0/33' for '--prtemca prte_if_include'", "10.1.0.0/16"];
    refuses("--prtemca prte_if_include 10.1.0.0/33 p", &texts);
}

#[test]
fn remote_shells_are_one_with_their_options() {
    becomes("--mca plm_rsh_agent /k.sh p", "--rsh=/k.sh|p");
    becomes("--mca plm_rsh_args -p2222 p", "--port=2222|p");
    let shell = |agent: &str, options: &str| {
        let words = ["--mca", "plm_rsh_args", options, "--mca", "plm_rsh_agent", agent, "p"];
        let spelled = translate(&built(), &words.map(OsString::from)).unwrap();
        spelled.iter().map(|word| word.display().to_string()).collect::<Vec<_>>().join("|")
    };
    assert_eq!(shell("ssh : rsh", "-p 2222"), "--port=2222|p");
    assert_eq!(shell("ssh", "-q -p 2222"), "--rsh=ssh -q -p 2222|p");
    assert_eq!(shell("rsh", "-p 2222"), "--rsh=rsh -p 2222|p");
    assert_eq!(shell("ssh", "-o ConnectionAttempts=10"), "p");
    becomes("--rsh x --mca plm_rsh_agent y p", "--rsh|x|--ignored=--mca plm_rsh_agent|p");
    becomes("-launcher ssh -launcher-exec /k.sh p", "--rsh|/k.sh|p");
    becomes("-launcher rsh p", "--rsh=rsh|p");
    becomes("-bootstrap slurm p", "--ignored=-launcher slurm|p");
}

#[test]
fn torchruns_words_mean_the_same() {
    becomes("--nnodes=2 --master_port 29500 p", "--nnodes=2|--master-port|29500|p");
    becomes(
        "--rdzv_backend c10d --rdzv-endpoint=a:29400 --rdzv_id 7 p",
        "--ignored=--rdzv_backend|--ignored=--rdzv-endpoint|--ignored=--rdzv_id|p",
    );
    for kind in ["gpu", "auto"] {
        refuses(&format!("--nproc_per_node {kind} p"), &["'--nproc_per_node'", "as it has GPUs"]);
    }
    assert!(
        spelled("--master-addr a p").unwrap().starts_with("--remark=--master-addr a is left out")
    );
}

#[test]
fn what_is_mistyped_has_a_neighbour() {
    refuses("--tag-outptu p", &["'--tag-outptu'", "--tag-output exists"]);
    refuses("-bind-too none p", &["--bind-to exists"]);
    refuses("--report-binding p", &["--report-bindings exists"]);
    refuses("-hoste a p", &["--host exists"]);
    refuses("--hots a p", &["--hosts exists"]);
    refuses("--rdzv_backedn c10d p", &["--rdzv-backend exists"]);
    let error = spelled("--ignore x p").unwrap_err();
    assert!(!error.contains("--ignored"), "{error}");
}

#[test]
fn words_of_a_command_that_lacks_an_option_are_unknown_there() {
    let mut train = crate::cli::args::TrainArgs::command();
    train.build();
    let of = |line: &str| translate(&train, &words(line)).map(|words| words.len());
    assert_eq!(of("-np 1,2 -bind-to none --mca pml ob1 p").unwrap(), 5);
    assert!(of("-bynode p").unwrap_err().to_string().contains("unexpected argument '-bynode'"));
}

proptest! {
    /// Whatever is typed, the program is left as it is.
    #[test]
    fn the_program_is_left_alone(
        options in prop::collection::vec(
            prop::sample::select(vec![
                "-np 2", "--mca pml ob1", "-bind-to none", "-genv A 1", "-x B=1", "-vn 3",
                "--rdzv_id 7", "-map-by slot:OVERSUBSCRIBE", "--bind-to=core:x", "-l", "-Ha,b:2",
            ]),
            0..6,
        ),
        program in prop::collection::vec("-{0,2}[a-z:=,_]{1,6}", 0..5),
    ) {
        let mut typed: Vec<OsString> = options.iter().flat_map(|option| words(option)).collect();
        let program: Vec<OsString> =
            std::iter::once("prog".to_owned()).chain(program).map(OsString::from).collect();
        typed.extend_from_slice(&program);
        let spelled = translate(&built(), &typed).unwrap();
        prop_assert!(spelled.ends_with(&program));
        // What is spelled stays so.
        prop_assert_eq!(translate(&built(), &spelled).unwrap(), spelled);
    }

    #[test]
    fn anything_is_words_or_an_error(line in "(-{0,2}[a-z_=:^,0-9]{0,9} ?){0,6}|.{0,40}") {
        let typed = words(&line);
        if let Ok(spelled) = translate(&built(), &typed) {
            prop_assert!(spelled.len() <= 4 * typed.len() + line.len());
        }
    }
}
