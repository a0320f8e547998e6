use super::options::{Dashes, Meaning, OPTIONS};
use super::translate::long_option;
use super::{Notices, mca};
use crate::cli::args::JobArgs;
use crate::cli::command_line::parse_job;
use crate::commands::bench::train::TrainArgs;
use clap::{CommandFactory, Parser};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn translate_options(
    command: &clap::Command,
    words: &[OsString],
) -> Result<(Vec<OsString>, Notices), clap::Error> {
    super::translate::translate_options(command, words, &|_| None)
}

fn built() -> clap::Command {
    let mut command = JobArgs::command();
    command.build();
    command
}

/// Translates a line, and formats the result: `--np|2|prog ignored(--mca pml) note(...)`.
fn translated(line: &str) -> Result<String, String> {
    let translated = translate_options(&built(), &words(line));
    let (words, notices) = translated.map_err(|error| error.to_string())?;
    let words: Vec<String> = words.iter().map(|word| word.display().to_string()).collect();
    Ok(format!("{}{notices}", words.join("|")))
}

#[track_caller]
fn becomes(line: &str, expected: &str) {
    assert_eq!(translated(line).as_deref(), Ok(expected), "{line}");
}

/// Checks that a line is refused with a message that has each of `texts`.
#[track_caller]
fn refuses(line: &str, texts: &[&str]) {
    let error = translated(line).unwrap_err();
    for text in texts {
        assert!(error.contains(text), "{line}: no `{text}` in {error}");
    }
}

#[test]
fn every_word_stands_for_an_option_that_there_is() {
    let command = built();
    let mut lacking = BTreeSet::new();
    let targets = OPTIONS.iter().filter_map(|foreign| match &foreign.meaning {
        Meaning::SameAs(option) | Meaning::Sets(option, _) => Some(*option),
        _ => None,
    });
    let by_values = ["env", "copy", "interfaces", "bind", "port", "rsh"];
    for option in targets.chain(mca::options()).chain(by_values) {
        if long_option(&command, option).is_none() {
            lacking.insert(option);
        }
    }
    assert!(lacking.is_empty(), "no such options: {lacking:?}");
}

#[test]
fn no_word_hides_an_option_of_rlaunch() {
    let command = built();
    let has_no_effect = |meaning: &Meaning| {
        matches!(meaning, Meaning::Silent(_) | Meaning::Ignored(_) | Meaning::Refused(_))
    };
    // An own option that is hidden has no effect either: configuration files may have it.
    let has_effect = |name| long_option(&command, name).is_some_and(|arg| !arg.is_hide_set());
    let hiding = OPTIONS.iter().filter(|foreign| {
        foreign.dashes == Dashes::Any && has_no_effect(&foreign.meaning) && has_effect(foreign.name)
    });
    let hiding: Vec<&str> = hiding.map(|foreign| foreign.name).collect();
    assert!(hiding.is_empty(), "these options of rlaunch have no effect: {hiding:?}");
}

#[test]
fn every_word_stands_once() {
    for (at, option) in OPTIONS.iter().enumerate() {
        assert!(!OPTIONS[..at].iter().any(|other| other.name == option.name), "{}", option.name);
        assert!(!option.name.contains('_') && !option.name.starts_with('-'), "{}", option.name);
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
    let (translated, notices) = translate_options(&built(), &typed).unwrap();
    let text: Vec<String> = translated.iter().map(|word| word.display().to_string()).collect();
    assert_eq!(
        text.join("|"),
        "-H|a,b,c,d|--np|4 |-x|NCCL_IB_DISABLE=0|-x|NCCL_DEBUG=INFO|--bind=none|--map-by=slot|\
         --env=OMPI_MCA_pml=ob1|--env=OMPI_MCA_btl=^openib|python3|train.py|-np|7"
    );
    assert_eq!(notices, Notices::default());
    let line = std::iter::once("rlaunch".into()).chain(translated);
    let args = JobArgs::try_parse_from(line).unwrap();
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
    becomes("-genvlist A,B -genvall p", "--no-env|--env=A|--env=B|p");
    refuses("-genv", &["'-genv' takes a value"]);
    refuses("-genv A", &["'-genv' takes a value"]);
    refuses("--mca pml", &["'--mca' takes a name and a value"]);
}

#[test]
fn binding_and_mapping_are_translated() {
    becomes("--bind-to core -report-bindings p", "--bind=core|--show=placement=stderr|p");
    becomes("-bind-to=hwthread p", "--cpus-per-rank=1|p");
    let note = "--bind-to socket: ranks are bound to NUMA nodes, as by --bind numa";
    becomes("--bind-to socket p", &format!("--bind=numa|p note({note})"));
    becomes("--bind-to core:if-supported p", "--bind=core|p");
    becomes("-bind-to user:1,0+2 p", "--bind=each:1/0,2|p");
    becomes("-bind-to hwthread:2 p", "--cpus-per-rank=2|p");
    refuses("-bind-to core:2 p", &["--cpus-per-rank N"]);
    becomes("--cpu-set 0-3 p", "--bind=each:c0-3|p");
    becomes("--map-by pe-list=0,1:ordered p", "--bind=each:c0/c1|p");
    becomes("--map-by pe-list=0,1 p", "--bind=each:c0,1|p");
    refuses("--bind-to tray p", &["'tray' for '--bind-to'", "socket and package"]);
    becomes(
        "-map-by ppr:2:node:PE=4,OVERSUBSCRIBE p",
        "--map-by=ppr:2:node|--cpus-per-rank=4|--oversubscribe|p",
    );
    becomes("--map-by :OVERSUBSCRIBE --oversubscribe p", "--oversubscribe|p");
    // Ranks are bound to what they are mapped by, unless another word says how, wherever it is.
    becomes("--map-by core p", "--map-by=slot|--bind=core|p");
    becomes("--map-by hwthread --bind-to none p", "--map-by=slot|--bind=none|p");
    becomes("--map-by core:pe=2 p", "--map-by=slot|--cpus-per-rank=2|p");
    refuses("--oversubscribe --map-by core:span p", &["--map-by node puts one rank"]);
    refuses("--map-by ppr:2:socket p", &["--npernode N", "2 for each socket"]);
    refuses("--rank-by socket p", &["--map-by numa"]);
    becomes("-bynode p", "--map-by=node|p");
    refuses("--display map,bind,topo p", &["rlaunch topo -H HOST"]);
    becomes("--display map,bind p", "--show=placement|p");
}

#[test]
fn parameters_with_a_meaning_take_effect() {
    becomes(
        "--mca btl_openib_if_include mlx5_0:1,mlx5_1 p",
        "--hca==mlx5_0:1,mlx5_1|--env=OMPI_MCA_btl_openib_if_include=mlx5_0:1,mlx5_1|p",
    );
    becomes(
        "--mca btl_openib_if_exclude mlx5_2 p",
        "--hca=^=mlx5_2|--env=OMPI_MCA_btl_openib_if_exclude=mlx5_2|p",
    );
    becomes("--mca hwloc_base_binding_policy core -gmca x 1 p", "--bind=core|--env=OMPI_MCA_x=1|p");
    becomes("--pmixmca gds hash --prtemca x 1 p", "--env=PMIX_MCA_gds=hash|p ignored(--prtemca x)");
    becomes(
        "--mca plm rsh --mca plm_base_verbose 5 p",
        "--launcher=ssh|p ignored(--mca plm_base_verbose)",
    );
    becomes("--mca mca_base_env_list A=1;B p", "--env=A=1|--env=B|p");
    becomes("--mca orte_abort_on_non_zero_status 0 p", "--continue-on-error|p");
    becomes("--mca orte_abort_on_non_zero_status 1 p", "p");
    becomes("--mca routed direct --mca plm_rsh_no_tree_spawn 1 p", "p");
    refuses("--mca rmaps_base_n_persocket 2 p", &["--map-by, --bind, --rankfile"]);
    refuses("--mca rmaps seq p", &["--map-by seq is not done here", "--rankfile FILE"]);
    becomes("--mca rmaps_base_oversubscribe true p", "--oversubscribe|p");
    becomes("--mca rmaps_base_oversubscribe 0 p", "p");
    becomes(
        "--mca orte_tag_output 1 -tag-output p",
        "--tag-output|p ignored(--mca orte_tag_output)",
    );
    becomes("--prtemca plm_ssh_num_concurrent 16 p", "--ssh-fanout=16|p");
    refuses("--mca hwloc_base_binding_policy tray p", &["--mca hwloc_base_binding_policy"]);
}

#[test]
fn interfaces_are_preferred_and_not_required() {
    becomes(
        "--mca btl_tcp_if_include bond0 --mca oob_tcp_if_include bond0 --mca pml ob1 p",
        "--env=OMPI_MCA_btl_tcp_if_include=bond0|--interfaces=oob_tcp_if_include bond0|\
         --env=OMPI_MCA_pml=ob1|p",
    );
    becomes(
        "--mca btl_tcp_if_include ib0 --mca oob_tcp_if_include eth0 p",
        "--env=OMPI_MCA_btl_tcp_if_include=ib0|--interfaces=oob_tcp_if_include eth0|p",
    );
    becomes(
        "-iface eth0 --mca btl_tcp_if_include ib0 p",
        "--oob-if|eth0|--env=OMPI_MCA_btl_tcp_if_include=ib0|p",
    );
    let line = ["rlaunch", "--interfaces=oob_tcp_if_include bond0", "p"];
    assert_eq!(JobArgs::try_parse_from(line).unwrap().compat.preferences.len(), 1);
    let texts = ["'10.1.0.0/33' for '--prtemca prte_if_include'", "10.1.0.0/16"];
    refuses("--prtemca prte_if_include 10.1.0.0/33 p", &texts);
}

#[test]
fn remote_shells_are_one_with_their_options() {
    becomes("--mca plm_rsh_agent /k.sh p", "--rsh=/k.sh|p");
    becomes("--mca plm_rsh_args -p2222 p", "--port=2222|p");
    let shell = |agent: &str, options: &str| {
        let words = ["--mca", "plm_rsh_args", options, "--mca", "plm_rsh_agent", agent, "p"];
        let (translated, _) = translate_options(&built(), &words.map(OsString::from)).unwrap();
        translated.iter().map(|word| word.display().to_string()).collect::<Vec<_>>().join("|")
    };
    assert_eq!(shell("ssh : rsh", "-p 2222"), "--port=2222|p");
    assert_eq!(shell("ssh", "-q -p 2222"), "--rsh=ssh -q -p 2222|p");
    assert_eq!(shell("rsh", "-p 2222"), "--rsh=rsh -p 2222|p");
    assert_eq!(shell("ssh", "-o ConnectionAttempts=10"), "p");
    becomes("--rsh x --mca plm_rsh_agent y p", "--rsh|x|p ignored(--mca plm_rsh_agent)");
    becomes("-launcher ssh -launcher-exec /k.sh p", "--launcher=ssh|--rsh|/k.sh|p");
    becomes("-launcher rsh p", "--rsh=rsh|p");
    refuses("-bootstrap lsf p", &["--rsh blaunch"]);
}

#[test]
fn slurm_is_meant_by_each_word_for_it() {
    for words in
        ["-launcher slurm", "-bootstrap slurm", "-rmk slurm", "--launcher srun", "--mca plm slurm"]
    {
        becomes(&format!("{words} p"), "--launcher=srun|p");
    }
    becomes("--mca plm ^slurm p", "--launcher=ssh|p");
    becomes("--launcher ssh --mca plm slurm p", "--launcher=ssh|p ignored(--mca plm)");
    becomes("-rmk user p", "p");
    becomes("-rmk lsf p", "p");
}

#[test]
fn lines_of_output_begin_as_the_words_say_together() {
    becomes("--timestamp-output p", "--tag-output=%t |p");
    becomes("--timestamp-output --tag-output p", "--tag-output=%t [%r,%h] |p");
    becomes("-prepend-pattern %r@%h: --timestamp-output p", "--tag-output=%t %r@%h:|p");
    becomes("--output tag,timestamp p", "--tag-output=%t [%r,%h] |p");
    becomes("--output tag-detailed:merge p", "--merge-stderr|--tag-output=[%r,%h:%p] |p");
    becomes("--output dir=/d p", "--output-dir=/d|p");
    becomes("--output-filename /d:nojobid p", "--output-dir=/d|p");
    refuses("--output-filename /d:nocopy p", &["> /dev/null"]);
    refuses("--output file=/f p", &["--output-dir DIR"]);
}

#[test]
fn an_attached_number_has_digits_alone() {
    becomes("-n4 p", "-n|4|p");
    becomes("-n=4 p", "-n|4|p");
    becomes("-novm p", "p");
    for word in ["-npx", "-nine", "-n4x"] {
        refuses(&format!("{word} p"), &[&format!("unexpected argument '{word}'")]);
    }
}

#[test]
fn variables_of_mpirun_count_less_than_words() {
    let set = |settings: &[(&str, &str)], line: &str| {
        let env = |name: &str| {
            settings
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| OsString::from(value))
        };
        let (translated, notices) =
            super::translate::translate_options(&built(), &words(line), &env).unwrap();
        let words: Vec<String> = translated.iter().map(|word| word.display().to_string()).collect();
        format!("{}{notices}", words.join("|"))
    };
    let policy = [("OMPI_MCA_rmaps_base_mapping_policy", "node")];
    assert_eq!(set(&policy, "p"), "--map-by=node|p");
    assert_eq!(set(&policy, "--map-by slot p"), "--map-by=slot|p");
    assert_eq!(set(&policy, "--mca rmaps_base_mapping_policy slot p"), "--map-by=slot|p");
    let newer =
        [("PRTE_MCA_hwloc_default_binding_policy", "none"), ("PRTE_MCA_prte_tag_output", "1")];
    assert_eq!(set(&newer, "p"), "--bind=none|--tag-output|p");
    assert_eq!(set(&[("OMPI_MCA_btl", "tcp"), ("OMPI_MCA_plm_rsh_agent", "x")], "p"), "p");
    let timeout = [("MPIEXEC_TIMEOUT", "9")];
    assert_eq!(set(&timeout, "p"), "--timeout=9|p");
    assert_eq!(set(&timeout, "--timeout 5 p"), "--timeout|5|p");
    assert_eq!(set(&[("MPIEXEC_TIMEOUT", "soon"), ("OMPI_MCA_rmaps", "")], "p"), "p");
}

/// Files that options name, in a directory for them.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        for (name, text) in [
            ("rankfile", "rank 0=localhost slot=1\nrank 1=localhost slot=0\n"),
            ("hosts", "localhost slots=2\n"),
            ("sequence", "localhost\nlocalhost\n"),
            ("programs", "# two\n-n 1 -x A='1 2' x y\n\n-n 1 z :\n"),
            ("settings", "# some\n-x FOO=1 --mca pml ob1\n-x HOME\n"),
            ("parameters", "pml = ob1 # one\n\nrmaps_base_mapping_policy=node\n"),
            ("x", ""),
        ] {
            std::fs::write(files.0.path().join(name), text).unwrap();
        }
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(files.path("x"), executable).unwrap();
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).into_os_string().into_string().unwrap()
    }

    /// Puts paths in the place of `{rankfile}` and others.
    fn named(&self, line: &str) -> String {
        let names = ["rankfile", "hosts", "sequence", "programs", "settings", "parameters"];
        let line = line.replace("{directory}", self.0.path().to_str().unwrap());
        let line = line.replace("{host}", "localhost");
        names.iter().fold(line, |line, name| line.replace(&format!("{{{name}}}"), &self.path(name)))
    }
}

#[test]
fn files_of_options_count_less_than_words() {
    let files = Files::new();
    let settings = files.path("settings");
    becomes(
        &format!("--tune {settings} --mca pml ucx p"),
        "--env=FOO=1|--env=HOME|--env=OMPI_MCA_pml=ucx|p",
    );
    becomes(
        &format!("-am {} p", files.path("parameters")),
        "--env=OMPI_MCA_pml=ob1|--map-by=node|p",
    );
    refuses("--tune /no/such p", &["--tune is not done here", "cannot read /no/such"]);
    std::fs::write(&settings, "\n--wdir /\n").unwrap();
    refuses(&format!("--tune {settings} p"), &["settings:2: `--wdir` is neither -x nor --mca"]);
    std::fs::write(&settings, "pml\n").unwrap();
    refuses(&format!("--tune {settings} p"), &["settings:1: `pml` has no ="]);
}

#[test]
fn programs_come_of_a_file() {
    let files = Files::new();
    let programs = files.path("programs");
    let parsed = |line: &str| {
        let typed = words("rlaunch").into_iter().chain(words(line)).collect();
        parse_job(typed).map(|(args, _)| args).map_err(|error| error.to_string())
    };
    for line in [format!("-configfile {programs}"), format!("run --app={programs}")] {
        let args = parsed(&line).unwrap();
        assert_eq!((args.hosts.ranks, &args.command.argv[..]), (Some(1), &words("x y")[..]));
        assert_eq!(args.environment.env, ["A=1 2"]);
        assert_eq!(args.other_programs.len(), 1);
        assert_eq!(args.other_programs[0].command.argv, ["z"]);
    }
    std::fs::write(&programs, "\u{feff}-np 2 x\r\n").unwrap();
    assert_eq!(parsed(&format!("--app {programs}")).unwrap().hosts.ranks, Some(2));
    // The program may have such an option, too.
    assert_eq!(parsed("x --app y").unwrap().command.argv, ["x", "--app", "y"]);
    let error = |line: &str| parsed(line).unwrap_err();
    assert!(
        error(&format!("--app {programs} p")).contains("names all programs, and p is one more")
    );
    assert!(error("--app /no/such").contains("cannot read /no/such"));
    assert!(error(&format!("-np 1 p : --app {programs}")).contains("before the first program"));
    std::fs::write(&programs, "a 'b\n").unwrap();
    assert!(error(&format!("--app {programs}")).contains("programs:1: a quotation mark"));
    std::fs::write(&programs, "\n").unwrap();
    assert!(error(&format!("--app {programs}")).contains("names no program"));
}

#[test]
fn each_option_of_mpirun_and_mpiexec_is_done_or_refused() {
    let files = Files::new();
    let mut wrong = Vec::new();
    let lines = include_str!("options.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let line = line.split(" # ").next().unwrap_or_default();
        let mut parts = line.splitn(3, ' ');
        let (_, kind) = (parts.next(), parts.next().unwrap());
        let options = files.named(parts.next().unwrap());
        if !options.starts_with('-') {
            continue;
        }
        let is_whole = line.contains("{programs}") && kind != "refused";
        let program = if is_whole { String::new() } else { format!(" {}", files.path("x")) };
        let typed =
            words("rlaunch").into_iter().chain(words(&format!("{options}{program}"))).collect();
        let found = match parse_job(typed) {
            Ok((args, line)) => match crate::cli::lower::job(args, &line.config) {
                Ok(_) if line.notices.to_string().contains("ignored(") => "noted".to_owned(),
                Ok(_) => "done".to_owned(),
                Err(error) if error.to_string().contains("--no-local") => "refused".to_owned(),
                Err(error) => format!("not lowered: {error}"),
            },
            Err(error) => {
                let error = error.to_string();
                let is_named =
                    error.contains("is not done here") || error.contains("invalid value");
                if is_named { "refused".to_owned() } else { error }
            }
        };
        let expected = if kind == "differs" { "done" } else { kind };
        if found != expected {
            wrong.push(format!("{line}: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn torchruns_words_mean_the_same() {
    becomes("--nnodes=2 --master_port 29500 p", "--nnodes=2|--master-port|29500|p");
    becomes(
        "--rdzv_backend c10d --rdzv-endpoint=a:29400 --rdzv_id 7 p",
        "p ignored(--rdzv_backend) ignored(--rdzv-endpoint) ignored(--rdzv_id)",
    );
    for kind in ["gpu", "auto"] {
        refuses(&format!("--nproc_per_node {kind} p"), &["'--nproc_per_node'", "as it has GPUs"]);
    }
    assert!(translated("--master-addr a p").unwrap().starts_with("p note(--master-addr a is "));
}

#[test]
fn what_is_mistyped_has_a_neighbour() {
    refuses("--tag-outptu p", &["'--tag-outptu'", "did you mean --tag-output?"]);
    refuses("-bind-too none p", &["did you mean --bind-to?"]);
    refuses("--report-binding p", &["did you mean --report-bindings?"]);
    refuses("-hoste a p", &["did you mean --host?"]);
    refuses("--hots a p", &["did you mean --hosts?"]);
    refuses("--rdzv_backedn c10d p", &["did you mean --rdzv-backend?"]);
    let error = translated("--ignore x p").unwrap_err();
    assert!(!error.contains("--ignored"), "{error}");
    // Notices are not options, so neither a file nor a variable can set them.
    for word in ["--ignored", "--remark"] {
        refuses(&format!("{word} x p"), &[&format!("unexpected argument '{word}'")]);
    }
}

#[test]
fn words_of_a_command_that_lacks_an_option_are_unknown_there() {
    let mut train = TrainArgs::command();
    train.build();
    let translated = |line: &str| translate_options(&train, &words(line));
    let (line, notices) = translated("-np 1,2 -bind-to none --mca pml ob1 p").unwrap();
    assert_eq!((line.len(), notices.to_string()), (5, String::new()));
    let error = translated("-bynode p").unwrap_err().to_string();
    assert!(error.contains("unexpected argument '-bynode'"), "{error}");
}

proptest! {
    /// Checks that the words of the program are not changed.
    #[test]
    fn the_program_is_left_alone(
        options in prop::collection::vec(
            prop::sample::select(vec![
                "-np 2", "--mca pml ob1", "-bind-to none", "-genv A 1", "-x B=1", "-vn 3",
                "--rdzv_id 7", "-map-by slot:OVERSUBSCRIBE", "--bind-to=core:if-supported", "-l", "-Ha,b:2",
            ]),
            0..6,
        ),
        program in prop::collection::vec("-{0,2}[a-z:=,_]{1,6}", 0..5),
    ) {
        let mut typed: Vec<OsString> = options.iter().flat_map(|option| words(option)).collect();
        let program: Vec<OsString> =
            std::iter::once("prog".to_owned()).chain(program).map(OsString::from).collect();
        typed.extend_from_slice(&program);
        let (translated, _) = translate_options(&built(), &typed).unwrap();
        prop_assert!(translated.ends_with(&program));
        // A translated line is not changed again.
        let again = translate_options(&built(), &translated).unwrap();
        prop_assert_eq!(again, (translated, Notices::default()));
    }

    #[test]
    fn anything_is_words_or_an_error(line in "(-{0,2}[a-z_=:^,0-9]{0,9} ?){0,6}|.{0,40}") {
        let typed = words(&line);
        if let Ok((translated, _)) = translate_options(&built(), &typed) {
            prop_assert!(translated.len() <= 4 * typed.len() + line.len());
        }
    }
}
