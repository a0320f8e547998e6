//! List of the crates that the launcher and the files for hosts are made of, as CycloneDX 1.5, and checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{cargo_metadata, write};
use crate::LabError;
use crate::command::{printed, run};

/// Packages that ship.
const SHIPPED: [&str; 8] = [
    "rlaunch", "rlaunch-worker", "rlaunch-prover", "rlaunch-stack", "rlaunch-copier",
    "rlaunch-bench", "rlaunch-capi", "rlaunch-python",
];

/// Writes `rlaunch-VERSION.cdx.json`.
pub(super) fn write_list(output: &Path, version: &str, time: u64) -> Result<(), LabError> {
    let listed = run("ask cargo for dependencies", &mut cargo_metadata()?)?.stdout;
    let metadata: Value = serde_json::from_slice(&listed)
        .map_err(|source| LabError::Format { what: "cargo's metadata".into(), source })?;
    let text = describe(&metadata, version, time).to_string();
    write(&output.join(format!("rlaunch-{version}.cdx.json")), text.as_bytes())
}

fn describe(metadata: &Value, version: &str, time: u64) -> Value {
    let packages: BTreeMap<&str, &Value> = by_id(&metadata["packages"]).collect();
    let nodes: BTreeMap<&str, &Value> = by_id(&metadata["resolve"]["nodes"]).collect();
    let shipped = packages.iter().filter(|(_, package)| is_shipped(package));
    let mut open: Vec<&str> = shipped.map(|(id, _)| *id).collect();
    // By id, so that the list is the same for the same crates.
    let mut found: BTreeMap<&str, (Value, Value)> = BTreeMap::new();
    while let Some(id) = open.pop() {
        let Some(package) = packages.get(id).filter(|_| !found.contains_key(id)) else { continue };
        let below: Vec<&str> = nodes.get(id).copied().into_iter().flat_map(linked).collect();
        let purls = below.iter().filter_map(|id| packages.get(id)).map(|below| purl(below));
        let purls: BTreeSet<String> = purls.collect();
        found.insert(id, (component(package), json!({ "ref": purl(package), "dependsOn": purls })));
        open.extend(below);
    }
    let (components, dependencies): (Vec<_>, Vec<_>) = found.into_values().unzip();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(time),
            "component": { "type": "application", "name": "rlaunch", "version": version },
        },
        "components": components,
        "dependencies": dependencies,
    })
}

fn component(package: &Value) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
    });
    if let Some(license) = package["license"].as_str() {
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    if package["source"].is_null() {
        component["scope"] = "required".into();
    }
    component
}

fn purl(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]))
}

/// Tells whether a package of `cargo metadata` is one of the workspace that ships.
fn is_shipped(package: &Value) -> bool {
    package["source"].is_null() && SHIPPED.contains(&text(&package["name"]))
}

/// Lists the entries of an array in `cargo metadata` with their ids.
fn by_id(array: &Value) -> impl Iterator<Item = (&str, &Value)> {
    array.as_array().into_iter().flatten().map(|entry| (text(&entry["id"]), entry))
}

/// Lists the ids of crates that one is linked with, rather than only built or tested with.
fn linked(node: &Value) -> impl Iterator<Item = &str> {
    let is_linked = |dep: &&Value| {
        dep["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|of| of["kind"].is_null()))
    };
    node["deps"].as_array().into_iter().flatten().filter(is_linked).map(|dep| text(&dep["pkg"]))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Formats seconds since 1970 as ISO 8601, by date(1).
fn timestamp(time: u64) -> String {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d", &format!("@{time}")]);
    printed("format a time", &mut date).unwrap_or_default().trim().to_owned()
}

/// Writes `SHA256SUMS` of all packages and executables, as sha256sum checks it.
pub(super) fn write_checksums(output: &Path) -> Result<(), LabError> {
    let mut find = Command::new("find");
    find.current_dir(output).args([".", "-type", "f", "!", "-name", "SHA256SUMS", "-printf"]);
    let found = printed("list packages", find.arg("%P\\n"))?;
    let mut names: Vec<&str> = found.lines().collect();
    names.sort_unstable();
    let mut sum = Command::new("sha256sum");
    let sums = run("compute checksums", sum.current_dir(output).args(names))?.stdout;
    write(&output.join("SHA256SUMS"), &sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tests_and_builds_use_is_not_listed() {
        let package = |name: &str, source: Option<&str>| {
            let license = "MIT/Apache-2.0";
            json!({ "id": name, "name": name, "version": "1.0.0", "license": license, "source": source })
        };
        let dep = |name: &str, kind: Option<&str>| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let others = ["linked", "builds", "tests"].map(|name| package(name, Some("registry")));
        let packages = [&[package("rlaunch", None)], &others[..]].concat();
        let deps = [dep("linked", None), dep("builds", Some("build")), dep("tests", Some("dev"))];
        let nodes = [json!({ "id": "rlaunch", "deps": deps })];
        let metadata = json!({ "packages": packages, "resolve": { "nodes": nodes } });
        let bom = describe(&metadata, "0.1.0", 0);
        let names: Vec<_> =
            bom["components"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
        assert_eq!(names, ["linked", "rlaunch"]);
        assert_eq!(bom["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bom["dependencies"][1]["dependsOn"][0], "pkg:cargo/linked@1.0.0");
        assert_eq!(bom["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
    }
}
