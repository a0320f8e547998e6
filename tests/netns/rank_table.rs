//! The rank table as programs read it: printed by `--show`, and in the file that every rank has.

use crate::support::Field;
use serde_json::Value;

/// Schema that the table's documentation promises.
const SCHEMA: &str = include_str!("../../bootstrap/rank-table.schema.json");

fn check(table: &Value) {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let options = jsonschema::options().should_validate_formats(true);
    let validator = options.build(&schema).unwrap();
    let wrong: Vec<String> = validator.iter_errors(table).map(|e| e.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{table:#}");
}

#[test]
fn what_is_printed_follows_the_schema_and_is_complete() {
    let field = Field::new();
    let ran = field.rlaunch("--show rank-table=json -H a:2,b,c true").run();
    let table: Value = serde_json::from_str(&ran.succeeded().out()).unwrap();
    check(&table);
    assert_eq!(table["world_size"], 4);
    let column = |rows: &str, name: &str| -> Vec<String> {
        let rows = table[rows].as_array().unwrap();
        rows.iter().map(|row| row[name].to_string()).collect()
    };
    assert_eq!(column("ranks", "node"), ["0", "0", "1", "2"]);
    assert_eq!(column("ranks", "local_rank"), ["0", "1", "0", "0"]);
    assert_eq!(column("nodes", "host"), [r#""a""#, r#""b""#, r#""c""#]);
    assert_eq!(column("nodes", "hostname"), column("nodes", "host"));
    for (row, host) in table["nodes"].as_array().unwrap().iter().zip(["a", "b", "c"]) {
        let addresses = field.on(host, "ip -4 -o addr show dev eth0");
        assert!(addresses.contains(row["address"].as_str().unwrap()), "{row}");
        assert_eq!(row["addresses"][0]["interface"], "eth0");
    }
}

#[test]
fn every_rank_reads_the_same_table() {
    let field = Field::new();
    let script = "stat -c %a $RLAUNCH_RANK_TABLE; tr -d '\\n' < $RLAUNCH_RANK_TABLE; echo";
    let ran = field.rlaunch("-H a:2,b,c").sh(script).run();
    let lines = ran.succeeded().sorted();
    let (modes, tables) = lines.split_at(4);
    assert_eq!(modes, ["600"; 4], "{ran}");
    assert!(tables.windows(2).all(|pair| pair[0] == pair[1]), "{ran}");
    check(&serde_json::from_str(&tables[0]).unwrap());
}

#[test]
fn people_get_columns() {
    let field = Field::new();
    let ran = field.rlaunch("--show rank-table -H a,b echo hello").run();
    ran.succeeded();
    let out = ran.out();
    let first: Vec<&str> = out.lines().next().unwrap_or("").split_whitespace().collect();
    let wanted = ["rank", "host", "hostname", "local", "address", "cpus", "numa"];
    assert_eq!(first, wanted, "{ran}");
    assert!(out.ends_with("hello\nhello\n"), "{ran}");
    field.rlaunch("--show nothing -H a true").run().refused(200, &["rank-table=json"]);
}
