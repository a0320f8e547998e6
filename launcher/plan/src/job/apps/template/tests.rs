use super::*;
use crate::hosts::Host;
use crate::selection::{Plan, PortOptions};
use crate::testing;
use rlaunch_bootstrap::job::{EnvRule, EnvVar};

fn app(name: &str, words: &[&str]) -> AppSpec {
    let argv = ["x"].iter().chain(words).map(OsString::from).collect();
    AppSpec {
        name: Some(name.to_owned()),
        ..AppSpec::new(argv, WorkingDir::SameAsLauncher("/w".into()))
    }
}

fn set(app: &mut AppSpec, name: &str, value: &str) {
    app.env.push(EnvVar { name: name.into(), value: value.into(), rule: EnvRule::Set });
    app.user_set_vars.push(name.to_owned());
}

fn file(text: &str, dest: &str) -> TemplateFile {
    TemplateFile { source: "f.yaml".into(), text: text.to_owned(), dest: dest.to_owned() }
}

/// Renders the templates of two programs: the first has rank 0 on host `a`, the second has ranks 1 and 2 on
/// `b` and `c`.
fn rendered(apps: &[AppSpec]) -> Result<BTreeMap<Rank, RenderedTexts>, AppError> {
    let machines = testing::triangle();
    let table = testing::table_of(&machines, 1, &Plan::new(&machines, &PortOptions::default()));
    let host = |name: &str| Host { name: name.to_owned(), ..Host::this_machine() };
    let hosts = ["a", "b", "c"].map(host).into_iter().zip((0..).map(|rank| vec![Rank(rank)]));
    let map = RankMap::from_assignment(hosts.collect(), vec![Rank(1)]);
    render(apps, &map, &table, &addresses(apps))
}

/// Addresses of a job whose ports are 7001 and so on, in the order in which its templates name them.
fn addresses(apps: &[AppSpec]) -> JobAddresses {
    let ports = named_ports(apps).into_iter().map(|port| port.name).zip(7001..);
    JobAddresses { master: ([10, 0, 0, 1].into(), 29500), ports: ports.collect() }
}

#[test]
fn each_rank_has_what_it_named() {
    let words = ["--at={{rank.index}}/{{rank.local}}/{{world_size}}", "plain", "{{host.name}}"];
    let mut decode = app("decode", &words);
    set(&mut decode, "HCAS", "{{rank.hcas | join(\",\")}} {{rank.hca}}");
    set(&mut decode, "OTHERS", "{{app[\"srv\"].hosts[0]}} {{app.decode.hosts | join(' ')}}");
    set(&mut decode, "PLAIN", "x");
    decode.templates = vec![file("{{app.srv.oob_ip}}\n", "{{rank.index}}.yaml")];
    let rendered = rendered(&[app("srv", &["y"]), decode]).unwrap();
    let ranks: Vec<Rank> = rendered.keys().copied().collect();
    assert_eq!(ranks, [Rank(1), Rank(2)], "the first program has no template");
    let rank_texts = &rendered[&Rank(2)];
    assert_eq!(rank_texts.arguments, [(1, "--at=2/0/3".into()), (3, "c".into())]);
    let hcas = "rocep1s0f0,rocep1s0f1 rocep1s0f0";
    let env = [("HCAS", hcas), ("OTHERS", "a b c")];
    assert_eq!(rank_texts.env, env.map(|(name, value)| (name.into(), value.into())));
    let machines = testing::triangle();
    let table = testing::table_of(&machines, 1, &Plan::new(&machines, &PortOptions::default()));
    let content = format!("{}\n", table.nodes()[0].address).into_bytes();
    assert_eq!(rank_texts.files, [RankFile { path: "2.yaml".into(), content }]);
}

#[test]
fn nodes_and_the_master_are_known() {
    let words = ["{{nodes}}:{{node.index}}:{{node.ranks}}", "{{master.addr}}:{{master.port}}"];
    let last = app("y", &words);
    let mut own = last.clone();
    set(&mut own, "MASTER_PORT", "4000");
    for (last, port) in [(last, 29500), (own, 4000)] {
        let rendered = rendered(&[app("srv", &[]), last]).unwrap();
        let master = format!("10.0.0.1:{port}");
        let expected = [(1, "3:2:1".into()), (2, master.into())];
        assert_eq!(rendered[&Rank(2)].arguments, expected);
    }
}

#[test]
fn a_named_port_is_the_same_everywhere_and_free_where_its_program_is() {
    let words = ["{{port[\"y\"]}}", "{{ port['x'] + 1 }}", "--at={{app.srv.oob_ip}}:{{port['y']}}"];
    let apps = [app("srv", &words[..1]), app("y", &words)];
    let places: Vec<_> = named_ports(&apps).into_iter().map(|port| (port.name, port.app)).collect();
    assert_eq!(places, [("y".into(), 1), ("x".into(), 0)]);
    let rendered = rendered(&apps).unwrap();
    assert_eq!(rendered[&Rank(0)].arguments, [(1, "7001".into())]);
    assert_eq!(rendered[&Rank(1)].arguments[..2], [(1, "7001".into()), (2, "7003".into())]);
    let plain = [app("srv", &["port[\"z\"]"]), app("y", &[])];
    assert!(named_ports(&plain).is_empty(), "no template names it");
}

#[test]
fn braces_of_other_programs_stay_beside_ours() {
    let words =
        ["{{host.name}}:{{.State}} {{ json .Host }}", "{{post.title}}{{nodes}}{{ \"{{\" }}"];
    let mut first = app("srv", &words);
    set(&mut first, "FORMAT", "{{ title }}/{{rank.index}}");
    assert!(check(&first, &first.title(0)).is_ok());
    let rendered = rendered(&[first, app("y", &[])]).unwrap();
    let expected = ["a:{{.State}} {{ json .Host }}", "{{post.title}}3{{"];
    let arguments = &rendered[&Rank(0)].arguments;
    assert!(arguments.iter().map(|(_, word)| word).eq(expected), "{arguments:?}");
    assert_eq!(rendered[&Rank(0)].env, [("FORMAT".into(), "{{ title }}/0".into())]);
}

#[test]
fn what_looks_like_a_comment_or_a_statement_stays_beside_ours() {
    let rows = [
        ("{\"re\":\"{#(\\d+)#}\",\"rank\":{{rank.index}}}", "{\"re\":\"{#(\\d+)#}\",\"rank\":0}"),
        ("x=abc; echo ${#x} {{rank.index}}", "x=abc; echo ${#x} 0"),
        ("{printf \"{%d}\\n\",{{rank.index}}}", "{printf \"{%d}\\n\",0}"),
        ("{{x} {{rank.index}}", "{{x} 0"),
        ("{{ host.name ~ \"{{\" }}", "a{{"),
        ("{%- if rank.index == 0 %}{# none #}{{host.name}}{% endif %}", "a"),
    ];
    let words = rows.map(|(word, _)| word);
    let first = app("srv", &words);
    assert!(check(&first, &first.title(0)).is_ok());
    let rendered = rendered(&[first, app("y", &[])]).unwrap();
    let arguments = &rendered[&Rank(0)].arguments;
    let expected = rows.map(|(_, expected)| expected);
    assert!(arguments.iter().map(|(_, word)| word).eq(expected), "{arguments:?}");
}

#[test]
fn braces_of_other_programs_stay() {
    let words = [
        "{{1}}", "{x}", "{{.State.Status}}", "--format={{json .host}}",
        "{{range $host := .Hosts}}{{end}}", "{{ post.title }}", "{{name}}-{{ 'x' }}",
        "{% if a %}{{b}}", "{{", "}} host.name {{",
    ];
    let mut first = app("srv", &words);
    set(&mut first, "FORMAT", "{{.Names}} {{end");
    assert!(check(&first, &first.title(0)).is_ok());
    assert!(rendered(&[first, app("y", &[])]).unwrap().is_empty());
}

#[test]
fn nearly_a_placeholder_is_an_error() {
    let words = [
        "{{hostname}}", "{{ hots.name }}", "{{rnk.idnex}}", "{{100 - ranks.local}}",
        "{{apps['srv'].hosts}}", "{{worldsize}}", "{{oob_ip}}", "{{host.nam}}", "{{host.name",
        "{% for h in app.srv.hosts %}{{h}}", "{{node.idx}}", "{{nodes.index}}", "{{nnodes}}",
        "{{master_addr}}", "{{master.adr}}", "{{mastr.port}}", "{{port.x}}",
    ];
    for word in words {
        let apps = [app("srv", &[word]), app("y", &[])];
        assert!(rendered(&apps).is_err(), "{word}");
    }
}

#[test]
fn two_braces_can_be_written() {
    let words = ["{{ \"{{\" }}host.name}}", "{% for h in app.srv.hosts %}{{h}}{% endfor %}"];
    let rendered = rendered(&[app("srv", &words), app("y", &[])]).unwrap();
    let arguments = &rendered[&Rank(0)].arguments;
    assert_eq!(*arguments, [(1, "{{host.name}}".into()), (2, "a".into())]);
}

#[test]
fn what_is_not_known_is_an_error_with_the_text() {
    let error =
        |word: &str| rendered(&[app("srv", &[word]), app("y", &[])]).unwrap_err().to_string();
    for word in ["{{hst.name}}", "{{host.nam}}", "{{app.decode.oob_ip}}", "{{app['no'].hosts}}"] {
        let begin = format!(
            "application 1 (srv): cannot replace placeholders in `{word}` for rank 0: undefined"
        );
        assert!(error(word).starts_with(&begin), "{}", error(word));
    }
    for word in ["{{rank}}", "n{{ host }}", "{{app.srv}}", "{{app}}", "{{node}}"] {
        assert!(error(word).contains("several values"), "{}", error(word));
    }
    assert!(error("{{port}}").ends_with("a value for each name, as in port[\"NAME\"]"));
    let names = error("{{rank}}");
    assert!(["index", "local", "hcas"].iter().all(|name| names.contains(name)), "{names}");
    assert!(error("{{world_size | nope}}").contains("nope"));
    let mut secret = app("srv", &[]);
    set(&mut secret, "API_KEY", "{{host.no}} abc");
    let error = rendered(&[secret, app("y", &[])]).unwrap_err();
    assert!(!error.to_string().contains("abc"), "{error}");
    assert!(error.hint().unwrap().contains("host.oob_ip"));
}

#[test]
fn a_file_says_which_line_is_wrong() {
    let mut first = app("srv", &[]);
    first.templates = vec![file("a: 1\nb: {{no}}\n", "/x")];
    let error = rendered(&[first, app("y", &[])]).unwrap_err().to_string();
    assert!(error.contains("f.yaml") && error.contains("line 2: undefined"), "{error}");
}

#[test]
fn two_files_at_one_place_are_refused() {
    let table = |apps: &[AppSpec]| {
        let machines = testing::triangle();
        let table = testing::table_of(&machines, 1, &Plan::new(&machines, &PortOptions::default()));
        let host = Host { slots: 3, ..Host::this_machine() };
        let map =
            RankMap::from_assignment(vec![(host, vec![Rank(0), Rank(1), Rank(2)])], vec![Rank(1)]);
        render(apps, &map, &table, &addresses(apps))
    };
    let with = |text: &str, dest: &str| {
        let mut app = app("y", &[]);
        app.templates = vec![file(text, dest)];
        app
    };
    assert!(table(&[with("a", "x"), with("a", "/w/x")]).is_ok(), "they are the same");
    let error = table(&[with("a", "x"), with("b", "/w/x")]).unwrap_err();
    let expected =
        "application 2 (y): /w/x would have other content for rank 1 than for rank 0 on localhost";
    assert_eq!(error.to_string(), expected);
    assert!(table(&[app("z", &[]), with("{{rank.index}}", "x")]).is_err());
    assert!(table(&[app("z", &[]), with("{{rank.index}}", "x{{rank.index}}")]).is_ok());
}
