use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

/// Makes a program that stands in for an engine.
fn stand_in(script: &str) -> (TempDir, Engine) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("engine");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let engine = Engine::named(path.to_str().unwrap());
    (directory, engine)
}

#[test]
fn an_image_is_the_same_in_the_words_of_two_engines() {
    let docker = r#"[{"Id":"sha256:ab","RepoTags":["x:1"],"RepoDigests":["r/x@sha256:d","r/y@sha256:d"],
        "Created":"2024-01-01T00:00:00Z","Size":7,"Architecture":"amd64",
        "Config":{"Hostname":"","AttachStdin":false,"Env":["A=b"],"Cmd":null,"Volumes":null,
        "Entrypoint":["/x"],"Labels":{"a":"1","b":"2"}},"RootFS":{"Type":"layers","Layers":["sha256:l"]},"Metadata":{"LastTagTime":"z"}}]"#;
    let podman = r#"[{"Id":"ab","RepoTags":["localhost/x:1"],"RepoDigests":["r/x@sha256:d"],
        "Created":"2024-01-01T00:00:00Z","Size":7,"Architecture":"amd64",
        "Config":{"Entrypoint":["/x"],"Env":["A=b"],"Labels":{"b":"2","a":"1"}},
        "RootFS":{"Type":"layers","Layers":["sha256:l"]},"VirtualSize":7}]"#;
    let read = |text: &str| {
        let (_place, engine) = stand_in(&format!(
            "case $2 in ls) echo ab; echo ab;; inspect) test $# = 3 && cat <<'END'\n{text}\nEND\nesac"
        ));
        let EngineImages { takes_parts, images, .. } = engine.images().unwrap();
        assert!(!takes_parts);
        <[ImageInfo; 1]>::try_from(images).unwrap()
    };
    let ([docker], [podman]) = (read(docker), read(podman));
    assert_eq!(docker.digests, ["sha256:d"]);
    assert_eq!((&docker.names[0], &podman.names[0]), (&"x:1".to_owned(), &"localhost/x:1".into()));
    assert_eq!(
        ImageInfo { names: Vec::new(), ..docker },
        ImageInfo { names: Vec::new(), ..podman }
    );
}

#[test]
fn images_that_differ_in_what_they_run_differ() {
    let of = |config: &str| {
        let text = format!(r#"[{{"Id":"ab","Config":{config}}}]"#);
        serde_json::from_str::<[Inspected; 1]>(&text).map(|[one]| ImageInfo::from(one).config)
    };
    let one = of(r#"{"Cmd":["a"],"Env":["X=1"]}"#).unwrap();
    assert_eq!(one, of(r#"{"Env":["X=1"],"Cmd":["a"],"User":"","Domainname":"z"}"#).unwrap());
    for other in [r#"{"Cmd":["a"],"Env":["X=2"]}"#, r#"{"Cmd":["a","X=1"]}"#, "null", "{}"] {
        assert_ne!(one, of(other).unwrap(), "{other}");
    }
}

#[test]
fn what_an_engine_refuses_is_passed_on() {
    let (_place, engine) = stand_in("echo 'permission denied while trying' >&2; exit 1");
    let error = engine.images().unwrap_err().to_string();
    assert!(error.ends_with("engine image ls: permission denied while trying"), "{error}");
    let (_place, engine) = stand_in("exit 3");
    let error = engine.images().unwrap_err().to_string();
    assert!(error.ends_with("engine image ls: exit status: 3"), "{error}");
    let missing = Engine::named("/nonexistent/engine").images().unwrap_err();
    assert!(matches!(missing, EngineError::Missing { .. }), "{missing}");
    let (_place, engine) = stand_in("echo x");
    let error = engine.images().unwrap_err();
    assert!(matches!(error, EngineError::Answer { .. }), "{error}");
}

#[test]
fn a_host_without_images_has_an_engine() {
    let (_place, engine) = stand_in("true");
    assert_eq!(engine.images().unwrap().images, []);
    assert_eq!(Engine::find(Some(engine.name())).unwrap(), engine);
}
