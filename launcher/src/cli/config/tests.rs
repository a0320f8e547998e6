use super::*;
use crate::cli::args::JobArgs;
use crate::cli::command_line::built;
use crate::commands::bench::BenchArgs;
use crate::commands::reap::ReapArgs;
use crate::commands::topo::TopoArgs;
use clap::{CommandFactory, Parser};
use std::fs;
use tempfile::TempDir;

/// Creates a directory with an untrusted `rlaunch.toml`, and an environment with these variables.
fn untrusted_file(text: &str, variables: &[(&str, &str)]) -> (TempDir, ProcessEnv) {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("rlaunch.toml"), text).unwrap();
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    let (directory, home) = (scratch.path().to_owned(), scratch.path().join("home"));
    (scratch, ProcessEnv { variables, directory, home: Some(home) })
}

/// Creates a directory with a trusted `rlaunch.toml`, and an environment with these variables.
fn trusted_file(text: &str, variables: &[(&str, &str)]) -> (TempDir, ProcessEnv) {
    let (scratch, env) = untrusted_file(text, variables);
    let file = env.directory.join("rlaunch.toml");
    TrustStore::for_user(&env).unwrap().trust(&file, text, &[]).unwrap();
    (scratch, env)
}

fn words(line: &str) -> Vec<OsString> {
    std::iter::once("rlaunch").chain(line.split(' ')).map(OsString::from).collect()
}

/// Parses a command line with a trusted file and variables.
fn parsed<P: Parser>(
    line: &str,
    text: &str,
    variables: &[(&str, &str)],
) -> Result<(P, LoadedConfig), String> {
    let (scratch, env) = trusted_file(text, variables);
    let config = with_defaults(&built(JobArgs::command()), &built(P::command()), words(line), &env);
    let (words, config) = config.map_err(|error| {
        error.to_string().replace(&format!("{}/", scratch.path().display()), "")
    })?;
    Ok((P::try_parse_from(words).unwrap(), config))
}

fn job(line: &str, text: &str, variables: &[(&str, &str)]) -> JobArgs {
    parsed::<JobArgs>(line, text, variables).unwrap().0
}

fn error(line: &str, text: &str, variables: &[(&str, &str)]) -> String {
    parsed::<JobArgs>(line, text, variables).unwrap_err()
}

#[test]
fn flags_count_before_the_environment_before_the_profile_before_the_defaults() {
    let file = "[defaults]\nnp = 2\nwdir = \"/d\"\nradix = 5\nkill-after = 1\ntag-output = true\n\
                [profile.x]\nnp = 3\nwdir = \"/p\"\nradix = 6\n";
    let variables = [("RLAUNCH_NP", "4"), ("RLAUNCH_WDIR", "/e")];
    let args = job("--profile x --np 5 hostname", file, &variables);
    assert_eq!(args.hosts.ranks, Some(5));
    assert_eq!(args.environment.wdir, Some("/e".into()));
    assert_eq!(args.rendezvous.radix, Some(6));
    assert_eq!(args.termination.kill_after.as_secs(), 1);
    assert_eq!(args.command.argv, ["hostname"]);
    // Settings of a profile have no effect if it is not chosen. Options behind the program belong to the
    // program.
    let args = job("hostname --np 7", file, &[("RLAUNCH_PROFILE", "")]);
    assert_eq!((args.hosts.ranks, args.rendezvous.radix), (Some(2), Some(5)));
    assert_eq!(args.command.argv, ["hostname", "--np", "7"]);
    let args = job("hostname", file, &[("RLAUNCH_PROFILE", "x")]);
    assert_eq!(args.hosts.ranks, Some(3));
}

#[test]
fn lists_replace_each_other_and_variables_of_ranks_add_up() {
    let file = "[defaults]\nhosts = [\"a\", \"b:2\"]\nenv = [\"A=1\", \"B=1\"]\n\
                oob-if = [\"e0\", \"e1\"]\n[profile.x]\nenv = \"A=2\"\n[hosts.c]\n";
    let args = job("--profile x -x B=3 p", file, &[("RLAUNCH_OOB_IF", "e2,e3")]);
    assert_eq!(args.hosts.hosts, ["a", "b:2"]);
    assert_eq!(args.environment.env, ["A=1", "B=1", "A=2", "B=3"]);
    assert_eq!(args.rendezvous.oob_if, ["e2", "e3"]);
    assert_eq!(job("-H d p", file, &[]).hosts.hosts, ["d"]);
    // Without `hosts = [...]`, the job runs on all hosts of the file.
    assert_eq!(job("p", "[hosts.b]\n[hosts.a]\n", &[]).hosts.hosts, ["b", "a"]);
    assert_eq!(job("p", "[hosts.b]\n", &[("RLAUNCH_HOSTS", "x,y")]).hosts.hosts, ["x,y"]);
}

#[test]
fn it_is_known_who_names_the_hosts() {
    let names_hosts = |line: &str, file: &str, variables: &[(&str, &str)]| {
        parsed::<JobArgs>(line, file, variables).unwrap().1.names_hosts()
    };
    for (line, file, variables, expected) in [
        ("p", "", &[][..], false),
        ("p", "[hosts.b]\n", &[], true),
        ("-H a p", "[hosts.b]\n", &[], false),
        ("p", "", &[("RLAUNCH_HOSTS", "x,y")], true),
    ] {
        assert_eq!(names_hosts(line, file, variables), expected, "{line} {file}");
    }
}

#[test]
fn what_excludes_what_was_typed_is_left_out() {
    let file = "[defaults]\nrsh = \"ssh -x\"\nno-watch = true\n[profile.x]\nno-watch = false\n";
    let (args, config) = parsed::<JobArgs>("--port 2222 p", file, &[]).unwrap();
    assert!(args.connect.rsh.is_none() && args.network.mesh.no_watch);
    assert!(config.notes[0].ends_with("--port overrides rsh"), "{config:?}");
    assert!(config.hint().unwrap().contains("no-watch ("), "{config:?}");
    let args = job("--profile x --abort-on-link-down p", file, &[]);
    assert!(!args.network.mesh.no_watch && args.connect.rsh.is_some());
    let both = error("p", "[defaults]\nrsh = \"ssh\"\nport = 22\n", &[]);
    assert_eq!(both, "rlaunch.toml:3: `port` and `rsh` (rlaunch.toml:2) exclude each other");
}

#[test]
fn variables_of_ranks_are_no_options() {
    let variables = [
        ("RLAUNCH_HOST", "a"),
        ("RLAUNCH_INIT_TIMEOUT", "no number"),
        ("RLAUNCH_NO_SUCH", "1"),
        ("RLAUNCH_NP", ""),
        ("RLAUNCH_TAG_OUTPUT", "1"),
        ("RLAUNCH_VERBOSE", "2"),
        ("RLAUNCH_OVERSUBSCRIBE", "off"),
    ];
    let (args, config) = parsed::<JobArgs>("p", "", &variables).unwrap();
    assert!(args.hosts.hosts.is_empty() && args.network.init_timeout.is_none());
    assert!(!args.hosts.oversubscribe && args.hosts.ranks.is_none());
    assert_eq!(args.output.verbose, 2);
    assert_eq!(config.notes, ["RLAUNCH_NO_SUCH stands for no option"]);
    assert_eq!(config.effective.len(), 2, "{config:?}");
}

#[test]
fn a_variable_that_is_nearly_one_is_named() {
    let unread = |variables: &[(&str, &str)]| {
        parsed::<JobArgs>("p", "", variables).unwrap().1.unread_variables
    };
    let host = ("RLAUNCH_HOST", "a");
    assert_eq!(unread(&[host]), ["RLAUNCH_HOST is not read, but RLAUNCH_HOSTS is"]);
    let mistyped = [("RLAUNCH_HOSTFIL", "f"), ("RLAUNCH_TRANSPROT", "tcp")];
    let [hostfile, transport] = &unread(&mistyped)[..] else { panic!() };
    assert!(hostfile.ends_with("but RLAUNCH_HOSTFILE is"), "{hostfile}");
    assert!(transport.ends_with("but RLAUNCH_TRANSPORT is"), "{transport}");
    // Inside a rank these variables describe its job. Others are read by ranks, or are unlike any that is read.
    assert!(unread(&[host, ("RLAUNCH_JOB_ID", "5")]).is_empty());
    let others = ["INIT_TIMEOUT", "SPIN", "NODES", "LOG", "PYTHON", "EAGER_RANKS", "LIB"];
    for name in others {
        let name = format!("RLAUNCH_{name}");
        assert!(unread(&[(name.as_str(), "1")]).is_empty(), "{name}");
    }
}

#[test]
fn mistakes_are_named_where_they_stand() {
    let error_in = |line: &str| error("p", &format!("[defaults]\n\n{line}\n"), &[]);
    assert_eq!(
        error_in("tag_outputs = true"),
        "rlaunch.toml:3: unknown key `tag_outputs`: `tag-output` exists"
    );
    assert_eq!(error_in("xyzzy = 1"), "rlaunch.toml:3: unknown key `xyzzy`");
    assert_eq!(
        error_in("profile = \"x\""),
        "rlaunch.toml:3: `profile` can be set on the command line only"
    );
    assert_eq!(
        error_in("np = 0"),
        "rlaunch.toml:3: `np` cannot be `0`: a number of ranks, 1 or more"
    );
    assert_eq!(
        error_in("transport = \"tpc\""),
        "rlaunch.toml:3: `transport` cannot be `tpc`: auto, rdma or tcp"
    );
    assert_eq!(
        error_in("oversubscribe = \"x\""),
        "rlaunch.toml:3: `oversubscribe` is true or false"
    );
    assert_eq!(error_in("np = true"), "rlaunch.toml:3: `np` takes a value, not true or false");
    assert_eq!(error_in("np = [\"1\"]"), "rlaunch.toml:3: `np` takes one value");
    assert!(
        error_in("port = 70000").starts_with("rlaunch.toml:3: `port` cannot be `70000`: "),
        "{}",
        error_in("port = 70000")
    );
    // An error in a profile is reported even if the profile is not chosen.
    assert!(error("p", "[profile.x]\nnp = 0\n", &[]).starts_with("rlaunch.toml:2: "));
    assert_eq!(
        error("p", "", &[("RLAUNCH_NP", "x")]),
        "RLAUNCH_NP: `np` cannot be `x`: a number of ranks, 1 or more"
    );
    assert_eq!(
        error("--profile z p", "[profile.x]\n[profile.y]\n", &[]),
        "rlaunch.toml has no profile `z`: it has x, y"
    );
    assert!(error("--profile z --cluster none p", "", &[]).contains("there is no rlaunch.toml"));
}

#[test]
fn verbs_take_what_they_have() {
    let file = "[defaults]\nhosts = [\"a\", \"b\"]\nnp = 2\nssh-config = \"/c\"\nwdir = \"/d\"\n\
                transport = \"tcp\"\n[hosts.a]\nssh = \"10.0.0.1\"\n";
    let (args, config) = parsed::<TopoArgs>("--gids", file, &[]).unwrap();
    assert_eq!(
        (args.hosts.hosts, args.connect.ssh_config),
        (vec!["a".into(), "b".into()], Some("/c".into()))
    );
    assert_eq!(config.hosts.entries.len(), 1);
    let (args, _) = parsed::<TopoArgs>("--from x.tar", file, &[]).unwrap();
    assert!(args.hosts.hosts.is_empty());
    let (args, _) = parsed::<ReapArgs>("--all -H c", file, &[]).unwrap();
    assert_eq!(args.hosts.hosts, ["c"]);
    let (args, _) = parsed::<BenchArgs>("lat", file, &[]).unwrap();
    assert_eq!((args.ranks, args.measurement.hosts.len()), (Some(2), 2));
    // Errors in the configuration are reported for every verb.
    assert!(parsed::<TopoArgs>("--gids", "[defaults]\nnpp = 1\n", &[]).is_err());
}

#[test]
fn help_needs_no_file() {
    let (_scratch, env) = trusted_file("[defaults]\nnpp = 1\n", &[]);
    assert!(
        with_defaults(
            &built(JobArgs::command()),
            &built(JobArgs::command()),
            words("--help"),
            &env
        )
        .is_ok()
    );
}

/// Parses a command line in a directory with the untrusted file `local_file`; the user's own file has the
/// text `user_file`.
fn with_untrusted(
    line: &str,
    local_file: &str,
    user_file: Option<&str>,
) -> Result<(JobArgs, LoadedConfig), String> {
    let (scratch, env) = untrusted_file(local_file, &[]);
    if let Some(user_file) = user_file {
        let path = scratch.path().join("home/.config/rlaunch/rlaunch.toml");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, user_file).unwrap();
    }
    let plain = |text: String| text.replace(&format!("{}/", scratch.path().display()), "");
    let config =
        with_defaults(&built(JobArgs::command()), &built(JobArgs::command()), words(line), &env);
    let (words, config) = config.map_err(|error| plain(error.to_string()))?;
    Ok((JobArgs::try_parse_from(words).unwrap(), config))
}

#[test]
fn of_an_untrusted_file_harmless_keys_count_and_others_are_named() {
    let file = "[defaults]\nnp = 2\nrsh = \"x\"\nenv = [\"A=1\"]\ntransport = \"tcp\"\n\
                [hosts.b]\nssh = \"c\"\n[profile.x]\nnp = 3\n";
    let (args, config) = with_untrusted("p", file, None).unwrap();
    assert_eq!(
        (args.hosts.ranks, args.network.transport),
        (Some(2), rlaunch_plan::options::Transport::Tcp)
    );
    assert!(
        args.connect.rsh.is_none()
            && args.environment.env.is_empty()
            && args.hosts.hosts.is_empty()
    );
    assert!(config.hosts.entries.is_empty());
    let warning = config.warning().unwrap();
    let keys = "so rsh (line 3), env (line 4) and hosts (line 6) are ignored; `rlaunch trust` ";
    assert!(warning.contains(keys) && !warning.contains('\n'), "{warning}");
    assert!(config.check_no_hosts().is_err());
    // Options on the command line override the file, so they are not listed as ignored.
    let file = "[defaults]\nrsh = \"x\"\nhosts = [\"b\"]\n";
    let (_, config) = with_untrusted("--rsh y p", file, None).unwrap();
    assert!(config.warning().unwrap().contains("so hosts (line 3) are ignored"), "{config:?}");
    let (_, config) = with_untrusted("--rsh y -H a p", file, None).unwrap();
    assert_eq!(config.warning(), None);
    assert!(config.check_no_hosts().is_ok());
    let error = with_untrusted("--profile x p", "[profile.x]\nnp = 3\n", None).unwrap_err();
    let expected = "profile `x` of rlaunch.toml has no effect: the file is not trusted";
    assert_eq!(error, expected);
    // The key `name` is harmless, unless its value has an escape sequence for the terminal.
    let (_, config) = with_untrusted("p", "[defaults]\nname = \"\\u001b[2J\"\n", None).unwrap();
    assert!(config.warning().unwrap().contains("name (line 2)"), "{config:?}");
}

#[test]
fn groups_of_an_untrusted_file_stand_for_no_hosts() {
    let file = "[groups]\ngpu = [\"a\"]\n";
    let own = "[groups]\ncpu = [\"b\"]\n";
    let (_, config) = with_untrusted("-H @gpu p", file, Some(own)).unwrap();
    assert!(config.warning().unwrap().contains("so groups (line 2) are ignored"), "{config:?}");
    assert!(config.trust_hint().unwrap().starts_with("groups (line 2) of "), "{config:?}");
    let names: Vec<&str> = config.hosts.groups.iter().map(|group| &*group.name).collect();
    assert_eq!(names, ["cpu"]);
}

#[test]
fn no_key_that_needs_trust_counts_before_it() {
    const VALUES: [&str; 16] = [
        "true", "\"a\"", "\"1\"", "\"10\"", "\"full\"", "\"warn\"", "\"info\"", "\"ask\"",
        "\"docker:a\"", "\"docker\"", "\"all\"", "\"/a:/b\"", "\"srun\"", "\"never\"",
        "\"10.0.0.0/8\"", "\"oob_tcp_if_include e0\"",
    ];
    for key in untrusted::needing_trust() {
        let parsed = |value: &&str| {
            let file = format!("[defaults]\n{key} = {value}\n");
            let (_scratch, env) = untrusted_file(&file, &[]);
            with_defaults(&built(JobArgs::command()), &built(JobArgs::command()), words("p"), &env)
                .ok()
        };
        let counted = VALUES.iter().find_map(parsed);
        let (counted, config) = counted.unwrap_or_else(|| panic!("a value for `{key}`"));
        assert_eq!(counted, words("p"), "{key}");
        assert!(config.warning().unwrap().contains("(line 2)"), "{config:?}");
    }
}

#[test]
fn an_untrusted_file_takes_nothing_away_from_the_users_own() {
    let user_file = "[defaults]\nno-env = true\nnp = 4\nrsh = \"mine\"\n[hosts.o]\nssh = \"d\"\n\
               [profile.x]\nradix = 3\n";
    let local_file =
        "[defaults]\nno-env = false\nnp = 2\nrsh = \"x\"\n[hosts.n]\n[profile.x]\nradix = 9\n";
    let (args, config) = with_untrusted("--profile x p", local_file, Some(user_file)).unwrap();
    assert_eq!((args.hosts.hosts, args.hosts.ranks), (vec!["o".to_owned()], Some(4)));
    assert_eq!((args.connect.rsh.as_deref(), args.rendezvous.radix), (Some("mine"), Some(3)));
    assert!(args.environment.no_env);
    assert_eq!(config.hosts.entries[0].name, "o");
    assert!(config.warning().is_some());
    // The user's own keys override harmless ones, and an untrusted file does not add to them.
    let user_file =
        "[defaults]\nkill-after = 300\nrequire-rdma = true\nradix = 3\nmerge-stderr = false\n";
    let local_file = "[defaults]\nkill-after = 0\nrequire-rdma = false\nradix = 9\nmerge-stderr = true\n\
                no-record = true\ncontinue-on-error = true\nsingleton = \"ignore\"\n\
                tag-output = \"error: run\"\nnp = 2\n";
    let (args, config) = with_untrusted("p", local_file, Some(user_file)).unwrap();
    assert_eq!((args.termination.kill_after.as_secs(), args.rendezvous.radix), (300, Some(3)));
    assert!(args.network.require_rdma && !args.output.merge_stderr && !args.output.no_record);
    assert!(!args.termination.continue_on_error && args.output.tag_output.is_none());
    assert_eq!(args.hosts.ranks, Some(2));
    let keys = "kill-after (line 2), no-record (line 6), continue-on-error (line 7), singleton (line 8) \
                and tag-output (line 9) are ignored";
    assert!(config.warning().unwrap().contains(keys), "{config:?}");
    let (args, config) = with_untrusted("p", "[defaults]\ntag-output = true\n", None).unwrap();
    assert!(args.output.tag_output.is_some() && config.warning().is_none());
}

#[test]
fn a_file_that_names_a_changed_one_does_not_count() {
    let text = "[defaults]\nssh-config = \"ssh.cfg\"\nenv = [\"A=1\"]\n";
    let (scratch, env) = untrusted_file(text, &[]);
    let cfg = scratch.path().join("ssh.cfg");
    fs::write(&cfg, "Host a\n").unwrap();
    let review = Review::read(&scratch.path().join("rlaunch.toml"), JobArgs::command()).unwrap();
    review.trust(&env).unwrap();
    let read = || {
        let read =
            with_defaults(&built(JobArgs::command()), &built(JobArgs::command()), words("p"), &env);
        let (words, config) = read.unwrap();
        (JobArgs::try_parse_from(words).unwrap().connect.ssh_config, config)
    };
    let (path, config) = read();
    assert_eq!((path, config.warning()), (Some("ssh.cfg".into()), None));
    assert!(config.check_ssh_config_permissions);
    fs::write(&cfg, "ProxyCommand evil\n").unwrap();
    let (path, config) = read();
    assert_eq!(path, None);
    let warning = config.warning().unwrap();
    assert!(warning.starts_with("ssh.cfg, which "), "{warning}");
    assert!(warning.contains("ssh-config (line 2)"), "{warning}");
    assert!(warning.contains(" names, has changed since that was trusted, so "), "{warning}");
    fs::write(scratch.path().join("rlaunch.toml"), text.replace("A=1", "A=2")).unwrap();
    let (_, config) = read();
    assert!(
        config.warning().unwrap().contains("rlaunch.toml has changed since it was trusted, so ")
    );
}

#[test]
fn a_configuration_of_ssh_that_was_typed_is_the_users() {
    let file = "[defaults]\nssh-config = \"c\"\n";
    let is_of_file = |line: &str, variables: &[(&str, &str)]| {
        parsed::<JobArgs>(line, file, variables).unwrap().1.check_ssh_config_permissions
    };
    assert!(is_of_file("p", &[]));
    assert!(!is_of_file("--ssh-config d p", &[]));
    assert!(!is_of_file("p", &[("RLAUNCH_SSH_CONFIG", "d")]));
}
