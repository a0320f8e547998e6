//! Tests with planted files: each rule finds its violation, and tidy files have no findings.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::edges::RoomGraph;
use super::finding::Rule;
use super::names::{GivenUp, word};
use super::*;

/// Workspace with one crate, whose folder is `box`.
struct Planted {
    folder: TempDir,
    crates: Vec<Crate>,
}

/// Writes files into a new workspace. Paths are relative to the crate's `src`.
fn plant(files: &[(&str, &str)]) -> Planted {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join("box/src").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let roots = ["main.rs", "lib.rs"].map(|name| Path::new("box/src").join(name));
    let roots = roots.into_iter().filter(|root| folder.path().join(root).exists()).collect();
    let crates = vec![Crate { folder: "box".into(), name: "rlaunch-box".into(), roots }];
    Planted { folder, crates }
}

const NOTHING: Rules<'static> =
    Rules { orders: &[], pages: &[], code_maps: &[], given_up: &[], known: &[] };

const LAYERS: &[&[&[&str]]] = &[&[&["base"]], &[&["left", "upper_left"], &["right"]], &[&["top"]]];
const ORDERED: Rules<'static> =
    Rules { orders: &[Order { krate: "box", layers: LAYERS, pending: None }], ..NOTHING };

/// Files that `LAYERS` allows; tests add others.
const TIDY: &[(&str, &str)] = &[
    (
        "main.rs",
        "mod base; mod left; mod right; mod top; mod upper_left;\nfn main() { top::run(); }",
    ),
    ("base.rs", "pub struct Ground;"),
    ("left.rs", "mod inner;\nuse crate::base::Ground;"),
    ("left/inner.rs", "use super::super::base::Ground;"),
    ("upper_left/mod.rs", "use crate::left;"),
    ("right.rs", "use crate::base;"),
    ("top.rs", "use crate::{base::Ground, left, right};\npub fn run() {}"),
];

impl Planted {
    fn report(&self, rules: &Rules<'_>) -> TidyReport {
        let sources = read_sources(self.folder.path()).unwrap();
        rules.inspect(self.folder.path(), &self.crates, &sources, None).unwrap()
    }

    /// Returns findings as they are printed, without the remedy.
    fn findings(&self, rules: &Rules<'_>) -> Vec<String> {
        let findings = self.report(rules).findings;
        findings.iter().map(|found| found.to_string().split(" — ").next().unwrap().into()).collect()
    }

    fn room_graph(&self) -> RoomGraph {
        room_graph(&self.crates[0], &read_sources(self.folder.path()).unwrap())
    }

    /// Lists pairs of top-level modules that an edge joins.
    fn edges(&self) -> Vec<String> {
        let plan = self.room_graph();
        let mut edges: Vec<String> =
            plan.edges.iter().map(|edge| format!("{} {}", edge.from, edge.to)).collect();
        edges.dedup();
        edges
    }
}

/// Plants the tidy files with some of them replaced.
fn plant_with(changed: &[(&'static str, &'static str)]) -> Planted {
    let mut files = TIDY.to_vec();
    files.retain(|(path, _)| changed.iter().all(|(other, _)| other != path));
    files.extend(changed);
    plant(&files)
}

#[test]
fn a_tidy_tree_has_no_findings() {
    assert_eq!(plant(TIDY).findings(&ORDERED), Vec::<String>::new());
}

#[test]
fn an_edge_that_points_up_is_found_however_it_is_written() {
    for text in [
        "use crate::top::run;",
        "use crate::{top};",
        "use super::top::*;",
        "fn f() { crate::top::run(); }",
        "fn f() -> Option<super::top::Run> { None }",
        "fn f() { println!(\"{}\", crate::top::run()); }",
        "fn f() { use crate::top; }",
        "#[serde(with = \"crate::top\")] struct A;",
        "#[arg(value_parser = crate::top::run)] struct A;",
        "mod inline { use super::super::top; }",
        "impl crate::top::Run for A {}",
        "macro_rules! m { () => { $crate::top::run() } }",
    ] {
        let planted = plant_with(&[("base.rs", text)]);
        let findings = planted.findings(&ORDERED);
        assert_eq!(findings.len(), 1, "{text}: {findings:?}");
        assert!(findings[0].starts_with("box/src/base.rs:1: `base` uses `"), "{findings:?}");
        assert!(findings[0].ends_with("but `top` is above `base`"), "{findings:?}");
    }
}

#[test]
fn branches_never_see_each_other_and_a_branch_has_an_order() {
    let found = |file, text| plant_with(&[(file, text)]).findings(&ORDERED);
    let apart = "box/src/right.rs:2: `right` uses `crate::left::A`, but `right` and `left` must not \
                 use each other";
    assert_eq!(found("right.rs", "\nuse crate::left::A;"), [apart]);
    assert_eq!(found("right.rs", "use crate::upper_left::A;").len(), 1);
    assert_eq!(found("upper_left/mod.rs", "use crate::right::A;").len(), 1);
    let up = found("left.rs", "mod inner;\n\nuse crate::upper_left::A;");
    assert!(up.iter().any(|up| up.contains("left.rs:3: ") && up.contains("is above")), "{up:?}");
}

#[test]
fn the_root_lies_above_all() {
    let main = "mod base; mod left; mod right; mod top; mod upper_left;\npub struct Met;\nuse base::Ground;";
    let planted = plant_with(&[("main.rs", main), ("top.rs", "use crate::{Ground, Met};")]);
    let expected = "box/src/top.rs:1: `top` uses `crate::Met`, but `main` is the root of the crate";
    assert_eq!(planted.findings(&ORDERED), [expected]);
}

#[test]
fn comments_tests_and_visibility_make_no_edges() {
    let planted = plant_with(&[
        (
            "base.rs",
            "//! [`crate::top`]\n/// [`crate::top::Run`]\npub(in crate::top) struct A;\n\
             #[cfg(test)] mod tests { use crate::top; }\n#[cfg(all(test, unix))] mod more;\n\
             #[cfg(test)] use crate::top::run;\n#[test] fn f() { crate::top::run(); }\n\
             impl A { #[cfg(test)] fn g() { crate::top::run(); } }",
        ),
        ("base/more.rs", "use crate::top;"),
    ]);
    assert_eq!(planted.findings(&ORDERED), Vec::<String>::new());
    let planted =
        plant_with(&[("base.rs", "#[cfg(any(test, unix))] mod tests { use crate::top; }")]);
    assert_eq!(planted.findings(&ORDERED).len(), 1);
}

#[test]
fn re_exports_are_of_the_room_that_has_them() {
    let planted = plant(&[
        (
            "lib.rs",
            "mod a; mod b; mod c; mod d; mod e;\npub use a::A; pub use b::*;\npub use c::m;\n\
             pub use anyhow::anyhow;\npub(crate) use textual;",
        ),
        ("a.rs", "pub struct A;"),
        ("b.rs", "pub use crate::a::A as Other; pub struct B;"),
        ("c.rs", "macro_rules! m { () => {} }\npub(crate) use m;"),
        ("e.rs", "macro_rules! textual { () => {} }"),
        ("d.rs", "use crate::{A, B, anyhow, m, textual};\nuse crate::b::Other;"),
    ]);
    assert_eq!(planted.edges(), ["b a", "d a", "d b", "d c", "d e"]);
}

#[test]
fn what_the_root_does_with_its_re_exports_is_an_edge() {
    let planted = plant(&[
        ("lib.rs", "mod a; mod b;\npub use a::A;\npub use b::B;\npub fn run() -> A { a::new() }"),
        ("a.rs", "pub struct A;"),
        ("b.rs", "pub struct B;"),
    ]);
    assert_eq!(planted.edges(), ["lib a"]);
}

#[test]
fn cycles_are_found_through_files_and_folders() {
    let planted = plant(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "\nuse crate::b::B;"),
        ("b/mod.rs", "mod inner;"),
        ("b/inner.rs", "fn f() { crate::c::run(); }"),
        ("c.rs", "use crate::a;"),
        ("d.rs", "use crate::a;"),
    ]);
    assert_eq!(
        planted.findings(&NOTHING),
        [
            "box/src/a.rs:2: `crate::b::B` closes a cycle: a → b → c → a",
            "box/src/b/inner.rs:1: `crate::c::run` closes a cycle: b → c → a → b",
            "box/src/c.rs:1: `crate::a` closes a cycle: c → a → b → c",
        ]
    );
    let drawn = order::draw(&planted.room_graph());
    assert_eq!(drawn, "   2  d\n   1  lib (a ↔ b ↔ c)\n");
}

#[test]
fn files_of_other_crates_are_not_looked_at() {
    let planted = plant(&[
        ("lib.rs", "#[path = \"../../other/src/loan.rs\"] mod loan; mod a;"),
        ("a.rs", "use crate::loan::Loan; struct Twice;"),
        ("../../other/src/loan.rs", "use crate::a; struct Twice;"),
    ]);
    assert_eq!(planted.edges(), Vec::<String>::new());
    assert_eq!(planted.findings(&NOTHING), Vec::<String>::new());
}

#[test]
fn folders_and_the_declared_order_are_the_same() {
    let main = "mod base; mod left; mod new; mod top; mod upper_left;";
    let planted = plant_with(&[("main.rs", main), ("new.rs", ""), ("top.rs", "")]);
    let expected = [
        "box/src/new.rs:1: `new` is not in the order of box",
        "tests/lab/src/tidy/rooms.rs:1: the order of box has `right`, which does not exist",
    ];
    assert_eq!(planted.findings(&ORDERED), expected);
}

#[test]
fn a_pending_order_is_not_held_until_each_folder_is_in_it() {
    let orders = [Order { krate: "box", layers: LAYERS, pending: Some("being moved") }];
    let rules = Rules { orders: &orders, ..NOTHING };
    let main = "mod base; mod left; mod new; mod right; mod top; mod upper_left;";
    let text = "use crate::top;";
    let planted = plant_with(&[("main.rs", main), ("new.rs", text), ("base.rs", text)]);
    assert_eq!(planted.findings(&rules), Vec::<String>::new());
    let expected = "tests/lab/src/tidy/rooms.rs:1: the order of box is pending, though each folder is \
                    in it";
    assert_eq!(plant(TIDY).findings(&rules), [expected]);
}

#[test]
fn long_files_and_functions_are_found() {
    let long = format!("struct A;\nimpl A {{\n    fn f() {{\n{}    }}\n}}\n", "\n".repeat(69));
    let short = format!("fn f() {{\n{}}}\n", "\n".repeat(68));
    let planted = plant(&[
        ("lib.rs", &format!("{long}{short}")),
        ("long.rs", &"\n".repeat(601)),
        ("short.rs", &"\n".repeat(600)),
    ]);
    assert_eq!(
        planted.findings(&NOTHING),
        [
            "box/src/lib.rs:3: `A::f` has 71 lines, of 70 at most",
            "box/src/long.rs:601: the file has 601 lines, of 600 at most",
        ]
    );
}

#[test]
fn a_type_name_that_stands_twice_is_found() {
    let planted = plant(&[
        (
            "lib.rs",
            "mod a;\nmod b;\nstruct Once;\n#[cfg(unix)] type Only = u8;\n#[cfg(not(unix))] type Only = u16;",
        ),
        ("a.rs", "pub enum Twice {}\n#[cfg(test)] mod tests { struct Once; }"),
        (
            "b.rs",
            "mod inner { trait Twice {} }\nfn f() { struct Once; }\nimpl Iterator for A { type Item = u8; }",
        ),
    ]);
    let expected = "box/src/a.rs:1: `Twice` is the name of 2 types, here and at box/src/b.rs:1";
    assert_eq!(planted.findings(&NOTHING), [expected]);
}

#[test]
fn words_that_were_given_up_are_found_in_names_of_files_and_identifiers() {
    const LIST: &[Vocabulary] = &[
        Vocabulary { crates: &["box"], words: &[word("Crew", "Nodes")] },
        Vocabulary { crates: &[], words: &[word("see_out", "run_to_completion")] },
        Vocabulary { crates: &["another"], words: &[word("fine", "good")] },
    ];
    let planted = plant(&[
        ("lib.rs", "// see_out\nfn fine(crew: Crew) -> &str { \"see_out\" }\n"),
        ("see_out_all.rs", "fn f() { println!(\"{}\", SEE_OUT); }"),
    ]);
    assert_eq!(
        planted.findings(&Rules { given_up: LIST, ..NOTHING }),
        [
            "box/src/lib.rs:2: `Crew` has the word `Crew`, which was given up",
            "box/src/see_out_all.rs:1: `SEE_OUT` has the word `see_out`, which was given up",
            "box/src/see_out_all.rs:1: `see_out_all` has the word `see_out`, which was given up",
        ]
    );
}

#[test]
fn words_that_were_given_up_are_found_in_comments_and_markdown_if_asked_for() {
    const WORDS: &[GivenUp] =
        &[word("see_out", "run_to_completion").in_prose(), word("Crew", "Nodes").in_prose()];
    const LIST: &[Vocabulary] = &[
        Vocabulary { crates: &["box"], words: WORDS },
        Vocabulary { crates: &["another"], words: &[word("fine", "good").in_prose()] },
        Vocabulary { crates: &[], words: &[word("silent", "quiet")] },
    ];
    let text = "//! Fine and silent.\n\
                const A: &str = \"// see out\";\nconst B: &str = r#\"/* see out\"#;\n\
                /// A job that others see\n/// out.\nfn f(a: char) { a == '\"' }\n\
                // They see.\n\nfn g() { 0 } // Out, and the crew of a `Crew`.\n\
                /* It was\n /* seen */ See-Out. */\nconst C: u8 = 1 / 2;\n// See\nstatic OUT: u8 = 1;";
    let planted = plant(&[
        ("lib.rs", text),
        ("page.md", "# See\n\nOut: all of it see\nout.\n"),
        ("../../page.md", "All fine, and silent.\n"),
    ]);
    assert_eq!(
        planted.findings(&Rules { given_up: LIST, ..NOTHING }),
        [
            "box/src/lib.rs:4: the text has the word `see_out`, which was given up",
            "box/src/lib.rs:9: the text has the word `Crew`, which was given up",
            "box/src/lib.rs:11: the text has the word `see_out`, which was given up",
            "box/src/page.md:3: the text has the word `see_out`, which was given up",
            "page.md:1: the text has the word `fine`, which was given up",
        ]
    );
}

#[test]
fn a_page_is_as_long_as_it_may_be() {
    let pages = [Page { file: "box/src/page.md", bytes: 5 }, Page { file: "gone", bytes: 1 }];
    let rules = Rules { pages: &pages, ..NOTHING };
    assert_eq!(plant(&[("page.md", "12345")]).findings(&rules), Vec::<String>::new());
    let expected = "box/src/page.md:1: the page has 6 bytes, of 5 at most";
    assert_eq!(plant(&[("page.md", "123456")]).findings(&rules), [expected]);
}

#[test]
fn doc_comments_begin_with_their_subject() {
    let text = "//! Of all things.\n\n/// Office hours.\nstruct A {\n    /// What it is.\n    b: u8,\n}\n\
                enum E {\n    #[doc = \" The same again.\"]\n    C,\n}\n\
                /// Who\n/// calls.\nfn f() {}\n\
                // What a plain comment says.\n/// Returns what it has.\n/// Who.\nfn g() {}\n\
                #[cfg(test)]\n/// What tests do.\nmod tests { /** As here. */ struct T; }\n\
                impl A { #[cfg(test)] fn h() { /** By the way. */ struct S; } }\n\
                mod inner {\n    //! By day.\n}\nmod loose;";
    let planted = plant(&[("lib.rs", text), ("loose.rs", "#![cfg(test)]\n//! Whose?\n")]);
    let mut found = planted.findings(&NOTHING);
    found.retain(|finding| finding.contains("begins"));
    let expected = [(1, "Of"), (5, "What"), (9, "The same"), (12, "Who"), (24, "By")];
    let expected = expected
        .map(|(line, word)| format!("box/src/lib.rs:{line}: the doc comment begins with `{word}`"));
    assert_eq!(found, expected);
}

#[test]
fn vague_words_are_found_in_doc_comments() {
    let text = "//! Asks so\n//! many, and whole, so much.\n// Nobody cares who does.\n\
                struct A {\n    /// The rank WHO asked somebody.\n    b: u8,\n}\n\
                #[test]\n/// Whoever.\nfn f() {}";
    assert_eq!(
        plant(&[("lib.rs", text)]).findings(&NOTHING),
        [
            "box/src/lib.rs:1: the doc comment has `so many`",
            "box/src/lib.rs:5: the doc comment has `somebody`",
            "box/src/lib.rs:5: the doc comment has `who`",
        ]
    );
}

const MAPS: &[CodeMap] = &[CodeMap { file: "box/src/map.md", crates: &["box"] }];

#[test]
fn the_code_map_has_a_row_for_each_room_in_their_order() {
    let rules = Rules { code_maps: MAPS, ..ORDERED };
    let found = |map: &'static str| plant_with(&[("map.md", map)]).findings(&rules);
    let good = "| `box/src/elsewhere/` | no |\n## Code map\n\n| room | what |\n|---|---|\n\
                | `box/src/base.rs` | `x` |\n| `box/src/{left,upper_left,right}` | |\n\
                | `box/src/top.rs` | |\n## More\n| `nothing` | |\n";
    let expected = "box/src/map.md:7: the code map names `box/src/right`, which does not exist";
    assert_eq!(found(good), [expected]);
    let bad = "## Code map\n| `box/src/top.rs` | |\n| `box/src/base.rs` | |\n\
               | `box/src/upper_left/` `box/src/left.rs` `box/src/right.rs` | |\n";
    assert_eq!(
        found(bad),
        [
            "box/src/map.md:3: the code map has `base` after `top`, which is above it",
            "box/src/map.md:4: the code map has `left` after `upper_left`, which is above it",
        ]
    );
    let short = "## Code map\n| `box/src/{base,left,right}.rs` | |\n";
    let expected = "box/src/map.md:2: the code map has no row for `box/src/upper_left/`";
    assert_eq!(found(short), [expected]);
    let expected = "box/src/map.md:1: the code map has no row for `box`";
    assert_eq!(
        plant(&[("map.md", "## Code map\n")]).findings(&Rules { code_maps: MAPS, ..NOTHING }),
        [expected]
    );
}

#[test]
fn the_code_map_is_short() {
    let rows = |count| format!("## Code map\n{}", "| `box` | |\n".repeat(count));
    let rules = Rules { orders: &[], code_maps: MAPS, ..NOTHING };
    assert_eq!(plant(&[("map.md", &rows(30))]).findings(&rules), Vec::<String>::new());
    let expected = "box/src/map.md:2: the code map has 31 rows, of 30 at most";
    assert_eq!(plant(&[("map.md", &rows(31))]).findings(&rules), [expected]);
}

#[test]
fn an_exception_covers_what_it_names_until_that_grows_or_goes() {
    let twice = ("a.rs", "struct Twice;");
    let planted = plant(&[("lib.rs", "mod a; struct Twice;"), twice]);
    let more = plant(&[("lib.rs", "mod a; struct Twice;\nmod b { struct Twice; }"), twice]);
    let clean = plant(&[("lib.rs", "struct Twice;")]);
    let known = [Known::to_mend(Rule::TypeTwice, "box", &[("Twice", 2)], "tests")];
    let rules = Rules { known: &known, ..NOTHING };
    assert_eq!(planted.findings(&rules), Vec::<String>::new());
    assert_eq!((planted.report(&rules).to_mend, planted.report(&rules).kept), (1, 0));
    let grown = more.findings(&rules);
    assert!(grown.len() == 1 && grown[0].ends_with(", which was 2 at most"), "{grown:?}");
    let needless = clean.findings(&rules);
    let expected = ": types called `Twice` of box is no longer there";
    assert!(needless.len() == 1 && needless[0].ends_with(expected), "{needless:?}");
}

#[test]
fn an_exception_for_an_edge_covers_all_its_places_but_no_more() {
    let base = "use crate::top::run;\nuse crate::top::Run;";
    let known = [Known::to_mend(Rule::Upward, "box", &[("base → top", 2)], "tests")];
    let rules = Rules { known: &known, ..ORDERED };
    assert_eq!(plant_with(&[("base.rs", base)]).findings(&rules), Vec::<String>::new());
    let base = "use crate::top::{a, b, c};";
    assert_eq!(plant_with(&[("base.rs", base)]).findings(&rules).len(), 3);
}

#[test]
fn one_crate_alone_is_held_against_its_own_exceptions() {
    let planted = plant(&[("lib.rs", "")]);
    let known = [
        Known::to_mend(Rule::LongPage, "", &[("README.md", 1)], "tests"),
        Known::kept(Rule::TypeTwice, "box", &[("Twice", 2)], "tests"),
    ];
    let rules = Rules { known: &known, ..NOTHING };
    let sources = read_sources(planted.folder.path()).unwrap();
    let only = Some(&planted.crates[0]);
    let report = rules.inspect(planted.folder.path(), &planted.crates, &sources, only).unwrap();
    assert_eq!(report.findings.len(), 1);
    assert_eq!(planted.findings(&rules).len(), 2);
}

#[test]
fn the_workspace_is_understood() {
    let crates = crates().unwrap();
    let launcher = find_crate(&crates, "launcher").unwrap();
    assert_eq!(find_crate(&crates, "rlaunch").unwrap().folder, launcher.folder);
    assert_eq!(owner(&crates, Path::new("worker/comm/src/lib.rs")).unwrap().name, "rlaunch-comm");
    assert!(find_crate(&crates, "nothing").is_err());
    let roots = &find_crate(&crates, "tests/lab").unwrap().roots;
    assert_eq!(roots.len(), 2, "{roots:?}");
}
