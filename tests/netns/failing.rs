//! The first rank to fail determines the result: its code is rlaunch's exit code, it is named, and
//! the other ranks are ended.

use crate::support::Field;

#[test]
fn the_code_of_a_rank_is_passed_through() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b -np 2 false").run();
    ran.refused(1, &["exited with code 1"]);
    let named = ["rank 0 on a ", "rank 1 on b "].iter().any(|who| ran.err().contains(who));
    assert!(named, "{ran}");
}

#[test]
fn a_signal_that_kills_a_rank_is_named() {
    let field = Field::new();
    let ran = field.rlaunch("-H a,b -np 2").sh("[ $RANK = 0 ] && exec sleep 1000; kill -SEGV $$");
    ran.run().refused(139, &["rank 1 on b ", "SIGSEGV"]).took_less_than(10);
}

#[test]
fn one_of_eight_ends_the_others_and_is_quoted() {
    let field = Field::new();
    // Exit codes of the other ranks, which are told to end, must not count.
    for (last_words, is_far_above) in [(":", false), ("seq 30 >&2", true)] {
        let script = format!(
            "if [ $RANK = 5 ]; then echo disk on fire >&2; exit 3; fi
            trap '{last_words}; exit 9' TERM; while :; do sleep 0.1; done"
        );
        let ran = field.rlaunch("-H a:2,b:2,c:2,d:2 -np 8").sh(&script).run();
        ran.refused(3, &["rank 5 on c ", "exited with code 3"]).took_less_than(10);
        let (before, report) =
            ran.err().split_once("error: ").map(|(b, r)| (b.to_owned(), r.to_owned())).unwrap();
        assert!(before.contains("disk on fire\n"), "not shown as it came: {ran}");
        assert_eq!(report.contains("  disk on fire\n"), is_far_above, "{ran}");
    }
}

#[test]
fn the_last_lines_of_a_long_story_are_quoted() {
    let field = Field::new();
    let script = "seq -f 'step %.0f' 1 50000 >&2; sleep 0.3; seq 30; exit 7";
    let ran = field.rlaunch("-H a").sh(script).run();
    let report = ran.ended_with(7).err().split_once("error: ").unwrap().1.to_owned();
    assert!(report.contains("  step 50000\n") && report.contains("  step 49991\n"), "{ran}");
    assert!(!report.contains("step 49900\n"), "{report}");
    let lines = ran.err().lines().filter(|line| line.starts_with("step ")).count();
    assert_eq!(lines, 50_000, "{ran}");
}

#[test]
fn ranks_that_ignore_term_are_killed() {
    let field = Field::new();
    let script = "trap '' TERM INT HUP; echo up
        if [ $RANK = 0 ]; then exit 4; fi; while :; do sleep 1; done";
    let ran = field.rlaunch("-H a,b,c --kill-after 1").sh(script).run();
    ran.ended_with(4).took_less_than(10).says(&["rank 0 on a "]);
}
