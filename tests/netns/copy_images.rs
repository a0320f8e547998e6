//! `rlaunch push image:NAME` and `rlaunch images`, with the real Docker and podman.

use crate::engines::{Engine, INSIDE};
use crate::support::Field;
use serde_json::Value;

const SCHEMA: &str = include_str!("../../launcher/schemas/images.schema.json");
/// Bytes that are surely more than what describes an image.
const MORE: u64 = 100_000;

/// Returns what `--json` says of a host: the bytes that it has received.
fn received(out: &str, host: &str) -> u64 {
    let said: Value = serde_json::from_str(out).unwrap();
    let hosts = said["copies"][0]["hosts"].as_array().unwrap();
    let of_host = hosts.iter().find(|copy| copy["host"] == host).unwrap_or_else(|| panic!("{out}"));
    of_host["received"].as_u64().unwrap()
}

#[test]
fn a_host_that_lacks_an_image_gets_it() {
    let field = Field::new();
    let hosts = ["a", "b", "c"];
    for engine in Engine::ALL {
        let _engine = engine.on(&field, &hosts);
        let name = engine.name();
        let rlaunch = |words: &str| field.rlaunch(words).args(["--engine", name]);
        field.on("b", &format!("{name} rmi {INSIDE}"));
        // Each host has made its own.
        let listed = rlaunch("images -H a,b,c").args([INSIDE]).spawn().finish_first();
        let out = listed.succeeded().out().into_owned();
        let rows: Vec<&str> = out.lines().skip(1).collect();
        assert_eq!(rows.len(), 3, "{listed}");
        assert!(rows[2].contains("missing") && rows[2].ends_with(" b"), "{listed}");
        let push = || rlaunch("push -H a,b,c --from a --json").args([format!("image:{INSIDE}")]);
        let pushed = push().spawn().finish_first();
        let out = pushed.succeeded().out().into_owned();
        assert!(["b", "c"].iter().all(|host| received(&out, host) > MORE), "{pushed}");
        let limits = if engine == Engine::Podman { " --ulimit host" } else { "" };
        let run =
            format!("{name} run --rm --network host{limits} --entrypoint /bin/sh {INSIDE} -c :");
        field.on("b", &run);
        let listed = rlaunch("images -H a,b,c").args([INSIDE]).spawn().finish_first();
        let out = listed.succeeded().out().into_owned();
        assert!(out.lines().count() == 2 && out.ends_with(" a, b, c\n"), "{listed}");
        let json = rlaunch("images -H a,b --json").spawn().finish_first();
        let said: Value = serde_json::from_str(&json.succeeded().out()).unwrap();
        let validator = jsonschema::validator_for(&serde_json::from_str(SCHEMA).unwrap()).unwrap();
        let errors: Vec<String> =
            validator.iter_errors(&said).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}: {json}");
        let again = rlaunch("push -H a,b,c --from a")
            .args([format!("image:{INSIDE}")])
            .spawn()
            .finish_first();
        assert_eq!(again.succeeded().out(), format!("image:{INSIDE} was on b, c\n"), "{again}");
        // Of what was made ready on hosts nothing is left.
        for host in hosts {
            let left =
                field.on(host, "find /tmp /var/tmp /dev/shm -name 'sha256*.tar' 2>/dev/null; true");
            assert_eq!(left, "", "{host}");
        }
    }
}

#[test]
fn of_a_changed_image_the_new_layer_travels() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _docker = Engine::Docker.on(&field, &hosts);
    let push = |words: &str| {
        let ran =
            field.rlaunch(&format!("push -H a,b --from a --json {words}")).spawn().finish_first();
        received(&ran.succeeded().out(), "b")
    };
    let whole = push(&format!("image:{INSIDE}"));
    field.on(
        "a",
        &format!(
            "id=$(docker create --entrypoint /bin/sh {INSIDE}) && echo new >/tmp/added &&
             docker cp /tmp/added $id:/added && docker commit $id lab/next:1 && docker rm $id; rm /tmp/added"
        ),
    );
    let layer = push("image:lab/next:1");
    assert!(whole > MORE && layer < MORE, "{whole} and then {layer} bytes");
    let added = "docker run --rm --network host --entrypoint /bin/cat lab/next:1 /added";
    assert_eq!(field.on("b", added), "new\n");
}

#[test]
fn what_an_engine_refuses_is_shown() {
    let field = Field::new();
    let hosts = ["a", "b"];
    let _podman = Engine::Podman.on(&field, &hosts);
    let none = field
        .rlaunch("push -H a,b --from a --engine podman image:lab/none:1")
        .spawn()
        .finish_first();
    none.refused(203, &["a has no image lab/none:1"]);
    let absent = field.rlaunch("images -H a,b --engine nerdctl").spawn().finish_first();
    absent.ended_with(203).says(&["a: nerdctl is not installed", "b: nerdctl is not installed"]);
}
