//! `rlaunch bench`: what it measures between hosts, prints and rejects.

use crate::mpi::PATIENCE;
use crate::mpi::stand_in::StandIn;
use crate::running::Outcome;
use crate::support::{BOUND, Field, Run};
use rlaunch_lab::command::wait_until;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;

const SCHEMA: &str = include_str!("../../launcher/schemas/bench.schema.json");
const MESH_SCHEMA: &str = include_str!("../../launcher/schemas/bench-mesh.schema.json");

fn bench<'a>(field: &'a Field, words: &str) -> Run<'a> {
    field.rlaunch(&format!("bench {words}")).within(Duration::from_secs(120))
}

/// Asserts that a value follows a schema.
fn follows(schema: &str, value: &Value) {
    let validator = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let errors: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}: {value}");
}

/// Returns the numbers in each line of the output except the header.
fn rows(ran: &Outcome) -> Vec<Vec<f64>> {
    let out = ran.succeeded().out().into_owned();
    let lines = out.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect()).collect()
}

/// Asserts that sizes are in order, times are possible, and bandwidths follow from them.
fn are_sane(ran: &Outcome, sizes: &[f64], factor: f64) {
    let rows = rows(ran);
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), sizes, "{ran}");
    for row in rows {
        let [bytes, median, least, most, algbw, busbw] = match row[..] {
            // Messages have neither elements nor a bus bandwidth of their own.
            [bytes, median, least, most, algbw] => [bytes, median, least, most, algbw, algbw],
            [bytes, _, median, least, most, algbw, busbw] => {
                [bytes, median, least, most, algbw, busbw]
            }
            _ => panic!("{ran}"),
        };
        assert!(0.0 < least && least <= median && median <= most && most < 10e6, "{ran}");
        // Printed values are rounded to three digits, so they differ from the exact ones by up to
        // that.
        let rounded = 0.000_5 + 1e-9;
        let within = |one: f64, least: f64, most: f64| (least..=most).contains(&one);
        let (fastest, slowest) = (bytes / (median - rounded), bytes / (median + rounded));
        assert!(within(algbw, slowest / 1e3 - rounded, fastest / 1e3 + rounded), "{ran}");
        let (low, high) = ((algbw - rounded) * factor, (algbw + rounded) * factor);
        assert!(within(busbw, low - rounded, high + rounded), "{ran}");
    }
}

#[test]
fn messages_are_measured_between_hosts_and_within_one() {
    let field = Field::new();
    for (hosts, over) in [("a,b", "a:1,b:1 over TCP"), ("a:2", "a:2 over shared memory")] {
        let ran = bench(&field, &format!("lat -H {hosts} --sizes 8,64K --iterations 20")).run();
        are_sane(&ran, &[8.0, 65536.0], 1.0);
        assert!(ran.out().contains(over), "{ran}");
        let ran = bench(&field, &format!("bw -H {hosts} --sizes 1K..4K --iterations 20")).run();
        are_sane(&ran, &[1024.0, 2048.0, 4096.0], 1.0);
        let compared = "% of one TCP connection between the same hosts (";
        assert_eq!(ran.out().contains(compared), hosts == "a,b", "{ran}");
    }
}

/// Returns the JSON of a measurement between all hosts.
fn mesh(field: &Field, words: &str) -> (Outcome, Value) {
    let ran = bench(field, &format!("mesh --duration 0.02 --size 64K --json {words}")).run();
    let said = serde_json::from_str(&ran.succeeded().out()).unwrap();
    follows(MESH_SCHEMA, &said);
    (ran, said)
}

#[test]
fn all_pairs_of_hosts_are_measured() {
    let field = Field::new();
    let (ran, said) = mesh(&field, "-H a:2,b,c,d");
    assert_eq!((&said["hosts"][3], &said["over"]), (&"d".into(), &json!(["TCP"])), "{ran}");
    for table in ["megabits", "latency_us"] {
        for (a, b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
            let number = said[table][a][b].as_f64().unwrap();
            assert_eq!(number > 0.0, a != b, "{table} {a} {b}: {ran}");
        }
    }
    assert_eq!(said["at_once"].as_array().unwrap().len(), 4, "{ran}");
    let shown = bench(&field, "-H a,b").run();
    for sentence in ["# mesh: 2 hosts over TCP", "# slowest pair: ", "# what the hardware can give"]
    {
        assert!(shown.succeeded().out().contains(sentence), "{sentence}: {shown}");
    }
    let shown = bench(&field, "mesh -H a,b,c --duration 0.02").run();
    for sentence in ["# mesh: 3 hosts over TCP", "latency in us", "# slowest pair: ", "all at once"]
    {
        assert!(shown.succeeded().out().contains(sentence), "{sentence}: {shown}");
    }
}

#[test]
fn measurements_are_drawn() {
    let field = Field::new();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (svg, page, curves, earlier) =
        (path("a.svg"), path("b.html"), path("c.svg"), path("e.json"));
    let ran = bench(&field, "lat -H a,b --sizes 8,64 --iterations 10 --json").run();
    std::fs::write(&earlier, &*ran.succeeded().out()).unwrap();
    let line = format!("lat -H a,b --sizes 8,64 --iterations 10 --plot {svg} --with {earlier}");
    let ran = bench(&field, &line).run();
    ran.succeeded();
    assert!(ran.err().contains(&format!("rlaunch: wrote {svg}\n")), "{ran}");
    let drawn = std::fs::read_to_string(&svg).unwrap();
    for text in ["lat on a, b over TCP", "this run", &earlier, "size of messages"] {
        assert!(drawn.contains(text), "{text}: {drawn}");
    }
    bench(&field, &format!("mesh -H a,b,c --duration 0.02 --plot {page}")).run().succeeded();
    let drawn = std::fs::read_to_string(&page).unwrap();
    assert!(drawn.contains("3 hosts over TCP: bandwidth in Gb/s"), "{drawn}");
    let line = format!("coll all_reduce -H a,b --sizes 8,64 --iterations 10 --plot {curves}");
    bench(&field, &line).run().succeeded();
    let drawn = std::fs::read_to_string(&curves).unwrap();
    assert!(drawn.contains("all_reduce") && drawn.contains("size of messages"), "{drawn}");
    let line = "lat -H a,b --plot /nonexistent/a.svg";
    bench(&field, line).run().ended_with(203).says(&["cannot write /nonexistent/a.svg: "]);
}

#[test]
fn a_pair_that_was_faster_is_named() {
    let field = Field::new();
    let (_, mut said) = mesh(&field, "-H a,b");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("good.json");
    said["megabits"][0][1] = json!(1e9);
    std::fs::write(&file, said.to_string()).unwrap();
    let line = format!("mesh -H a,b --duration 0.02 --size 64K --against {}", file.display());
    let ran = bench(&field, &line).run();
    let sentence = format!("slower than in {}: a → b: ", file.display());
    assert!(ran.succeeded().out().contains(&sentence), "{ran}");
    std::fs::write(&file, "{}").unwrap();
    bench(&field, &line).run().ended_with(203).says(&["is not the output of `rlaunch bench mesh"]);
}

#[test]
fn collectives_are_measured_with_both_bandwidths() {
    let field = Field::new();
    for (what, factor) in [("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0)] {
        let line = format!("coll {what} -H a:2,b:2 --sizes 1K,1M --type f64 --iterations 10");
        let ran = bench(&field, &line).run();
        are_sane(&ran, &[1024.0, 1_048_576.0], factor);
        assert!(ran.out().contains("4 ranks on a:2,b:2 over TCP and shared memory"), "{ran}");
    }
    bench(&field, "coll barrier -H a:2,b --iterations 10").run().succeeded();
}

#[test]
fn it_can_be_read_by_programs() {
    let field = Field::new();
    let line =
        "coll reduce_scatter -H a,b --sizes 64,1K --op max --type i32 --iterations 12 --json";
    let ran = bench(&field, line).run();
    let said: Value = serde_json::from_str(&ran.succeeded().out()).unwrap();
    assert_eq!((&said["bench"], &said["op"]), (&"reduce_scatter".into(), &"max".into()));
    assert_eq!((&said["ranks"], &said["hosts"][1]["host"]), (&2.into(), &"b".into()));
    assert_eq!(
        (&said["rows"][1]["bytes"], &said["rows"][1]["batches"]),
        (&1024.into(), &12.into())
    );
    follows(SCHEMA, &said);
    assert_eq!(said["limit"]["unknown"], "TCP", "{ran}");
    assert!(said["rows"][0]["median_us"].as_f64().is_some_and(|us| us > 0.0), "{ran}");
}

#[test]
fn a_reader_that_leaves_ends_the_measurement() {
    let field = Field::new();
    let warm = bench(&field, "lat -H a,b --sizes 8 --iterations 10").run();
    assert!(warm.code == 0, "hosts have what they need: {warm}");
    let mut command = bench(&field, "lat -H a,b").command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("# lat: "), "{line}");
    drop(stdout);
    wait_until(BOUND, "rlaunch to end", || Ok(child.try_wait().unwrap().is_some())).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    // A slow machine is told what is waited for, and a rank may say why it ends before it is ended.
    let said = stderr.lines().filter(|line| {
        !line.starts_with("rlaunch: waiting ")
            && !line.contains("its output cannot be written any more")
    });
    assert_eq!((child.wait().unwrap().code(), said.collect::<Vec<_>>()), (Some(141), vec![]));
}

#[test]
fn what_cannot_be_measured_is_refused_in_a_sentence() {
    let field = Field::new();
    let refused = [
        ("lat -H a", "rlaunch bench lat is between 2 ranks, but there is 1"),
        ("bw -H a,b,c", "rlaunch bench bw is between 2 ranks, but there are 3"),
        ("coll -H a,b", "rlaunch bench coll needs a collective: all_reduce"),
        ("lat all_reduce -H a,b", "rlaunch bench lat takes no collective"),
        ("coll allreduce -H a,b", "invalid value 'allreduce'"),
        ("lat -H a,b --sizes 9..8", "a range starts at 1 or more"),
        ("coll all_reduce -H a,b -np 3", "3 ranks need 3 slots; there are 2"),
        ("mesh -H a", "links are measured between hosts, but there is 1"),
        ("mesh -H a,b --size 1K,2K", "is not a size"),
        ("coll barrier -H a,b --plot x.svg", "a barrier has no sizes"),
        ("lat -H a,b --report KB", "invalid value 'KB'"),
    ];
    for (line, sentence) in refused {
        bench(&field, line).run().ended_with(200).says(&[sentence]);
    }
}

/// Hosts of test programs, and their directory there.
const HOSTS: [&str; 2] = ["a", "b"];
const PROGRAMS: &str = "/tmp/programs";

/// Compiles a program of MPI under the names of test programs, below [`PROGRAMS`].
fn compile(field: &Field, source: &str, names: &[&str]) {
    for name in names {
        let program = format!("{PROGRAMS}/{name}");
        let stand_in = StandIn { source, library: "open-mpi-5", options: "" };
        stand_in.compile(field, &HOSTS, &program);
    }
}

/// Returns an option that makes ranks look for programs in [`PROGRAMS`] first.
fn with_path() -> String {
    format!("-x PATH={PROGRAMS}:/usr/local/bin:/usr/bin:/bin")
}

#[test]
fn programs_of_mpi_are_measured() {
    let field = Field::new();
    let _programs = field.scratch(&HOSTS, PROGRAMS);
    compile(
        &field,
        include_str!("mpi/osu.c"),
        &["osu_latency", "osu_bw", "mpitests-osu_allreduce"],
    );
    let measure =
        |words: &str| bench(&field, &format!("mpi {words} {}", with_path())).within(PATIENCE).run();
    let ran = measure("lat -H a,b --sizes 8..64 --iterations 10");
    let out = ran.succeeded().out();
    assert!(
        out.contains("# lat; osu_latency of OSU Micro-Benchmarks 7.4; 2 ranks on a:1,b:1"),
        "{ran}"
    );
    let measured = rows(&ran);
    assert_eq!(measured.iter().map(|row| row[0]).collect::<Vec<_>>(), [8.0, 16.0, 32.0, 64.0]);
    assert!(measured.iter().all(|row| row.len() == 4 && row[1] > 0.0), "{ran}");
    let ran = measure("bw -H a,b --sizes 1K..4K --report MiB");
    assert!(ran.succeeded().out().contains("busbw MiB/s"), "{ran}");
    assert!(ran.out().contains("# limit not known (TCP)"), "{ran}");
    // The program has another name, which Red Hat's packages give it.
    let ran = measure("-H a:2,b:2 --sizes 4..16 --iterations 5 --json");
    let said: Value = serde_json::from_str(&ran.succeeded().out()).unwrap();
    follows(SCHEMA, &said);
    assert_eq!((&said["bench"], &said["op"]), (&"all_reduce".into(), &"sum".into()), "{ran}");
    assert_eq!((&said["ranks"], &said["busbw_factor"]), (&4.into(), &json!(1.5)), "{ran}");
    let last = &said["rows"][2];
    assert_eq!((&last["bytes"], &last["iterations"]), (&16.into(), &5.into()), "{ran}");
    let time = |name: &str| last[name].as_f64().unwrap();
    assert!(time("min_us") <= time("average_us") && time("average_us") <= time("max_us"), "{ran}");
}

#[test]
fn nccl_tests_are_found_by_their_name_in_containers() {
    let field = Field::new();
    let _programs = field.scratch(&HOSTS, PROGRAMS);
    // In containers of NVIDIA this is the name of a build with MPI.
    compile(&field, include_str!("mpi/nccl_tests.c"), &["all_reduce_perf_mpi"]);
    let measure = |words: &str| {
        let line = format!("nccl -H a:2,b:2 --sizes 8..32 {} {words}", with_path());
        bench(&field, &line).within(PATIENCE).run()
    };
    let ran = measure("--json");
    let said: Value = serde_json::from_str(&ran.succeeded().out()).unwrap();
    follows(SCHEMA, &said);
    assert_eq!((&said["type"], &said["ranks"]), (&"float".into(), &4.into()), "{ran}");
    assert_eq!(said["program"]["version"], "2.18.3", "{ran}");
    assert_eq!(said["rows"].as_array().unwrap().len(), 3, "{ran}");
    assert!(said["rows"][0]["in_place"]["average_us"].as_f64().is_some_and(|us| us > 0.0), "{ran}");
    let ran = measure("-x WRONG=3");
    ran.ended_with(1).says(&["all_reduce_perf: ", " values were wrong, first at 8 bytes"]);
    let _script = field.files(&HOSTS, "/tmp/programs/alone", ALONE, 0o755);
    let ran = measure("--program /tmp/programs/alone");
    ran.ended_with(207).says(&["each rank of alone has printed a table"]).hints("make MPI=1");
    ran.took_less_than(20);
}

/// Script whose ranks each print a table, as all_reduce_perf does that is built without MPI, and then run on.
const ALONE: &str = "#!/bin/sh
echo '#       size         count      type   redop    root     time   algbw   busbw #wrong'
echo '        1024           256     float     sum      -1    31.20    0.03    0.06      0'
exec sleep 1000
";

/// Script that prints a table as osu_latency does, among other lines.
const TABLE: &str = r#"#!/bin/sh
echo "log of rank $RANK"
[ "$RANK" = 0 ] || exit 0
echo '# OSU MPI Latency Test v5.9'
echo '# Size          Latency (us)'
echo '0                       1.50'
echo '1024                    2.00'
"#;

#[test]
fn lines_that_are_not_of_the_table_go_to_stderr() {
    let field = Field::new();
    let _script = field.files(&HOSTS, "/tmp/programs/osu_latency", TABLE, 0o755);
    let ran = bench(&field, &format!("mpi lat -H a,b {}", with_path())).run();
    assert_eq!(rows(&ran), [[0.0, 1.5, 0.0, 0.0], [1024.0, 2.0, 0.512, 0.512]], "{ran}");
    ran.says(&["log of rank 0\n", "log of rank 1\n"]);
    let silent = bench(&field, "mpi lat -H a,b --program true").run();
    silent.ended_with(203).says(&["true has printed no table of OSU Micro-Benchmarks"]);
}

#[test]
fn hosts_without_a_test_program_are_named() {
    let field = Field::new();
    let ran = bench(&field, "mpi lat -H a,b").run();
    let said =
        ["osu_latency is not on a, b\n", "nor is mpitests-osu_latency: not in PATH there, and"];
    ran.refused(127, &said).hints("--program PATH");
    let _script = field.files(&["a"], "/tmp/programs/osu_latency", TABLE, 0o755);
    let ran = bench(&field, &format!("mpi lat -H a,b {}", with_path())).run();
    ran.refused(127, &["osu_latency is not on b\n"]);
    let ran = bench(&field, "nccl -H a,b").run();
    ran.refused(127, &["all_reduce_perf is not on a, b\n"]).hints("make -C /opt/nccl-tests MPI=1");
    let refused = [
        ("mpi lat -H a", "osu_latency is between 2 ranks, but there is 1"),
        ("mpi latenz -H a,b", "is not a test of OSU Micro-Benchmarks: lat, bw"),
        ("nccl all_gather -H a,b --program x/all_reduce_perf", "is the program of all_reduce"),
    ];
    for (line, sentence) in refused {
        bench(&field, line).run().ended_with(200).says(&[sentence]);
    }
}
