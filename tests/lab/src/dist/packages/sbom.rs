//! List of the crates that the launcher and the files for hosts are made of, as CycloneDX 1.5, and checksums.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{cargo_metadata, write};
use crate::LabError;
use crate::command::run;

/// Packages that ship.
const SHIPPED: [&str; 7] = [
    "rlaunch",
    "rlaunch-worker",
    "rlaunch-prover",
    "rlaunch-stack",
    "rlaunch-bench",
    "rlaunch-capi",
    "rlaunch-python",
];

/// Parts of `cargo metadata` that the list is made of.
#[derive(Debug, Deserialize)]
struct ResolvedWorkspace {
    packages: Vec<Listed>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Listed {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// Where it comes from; `None` for the workspace's own.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<ResolvedDependency>,
}

#[derive(Debug, Deserialize)]
struct ResolvedDependency {
    pkg: String,
    dep_kinds: Vec<ResolvedKind>,
}

#[derive(Debug, Deserialize)]
struct ResolvedKind {
    /// `dev` or `build`; `None` for what is linked.
    kind: Option<String>,
}

/// Writes `rlaunch-VERSION.cdx.json`.
pub(super) fn write_list(output: &Path, version: &str, time: u64) -> Result<(), LabError> {
    let listed = run("ask cargo for dependencies", &mut cargo_metadata()?)?.stdout;
    let metadata: ResolvedWorkspace = serde_json::from_slice(&listed)
        .map_err(|source| LabError::Format { what: "cargo's metadata".into(), source })?;
    let text = describe(&metadata, version, time).to_string();
    write(&output.join(format!("rlaunch-{version}.cdx.json")), text.as_bytes())
}

fn describe(metadata: &ResolvedWorkspace, version: &str, time: u64) -> Value {
    let shipped = reachable(metadata);
    let find = |id: &str| metadata.packages.iter().find(|package| package.id == id);
    let purl = |package: &Listed| format!("pkg:cargo/{}@{}", package.name, package.version);
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for package in shipped.iter().copied().filter_map(find) {
        let mut component = json!({
            "type": "library",
            "bom-ref": purl(package),
            "name": package.name,
            "version": package.version,
            "purl": purl(package),
        });
        if let Some(license) = &package.license {
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        if package.source.is_none() {
            component["scope"] = "required".into();
        }
        components.push(component);
        let node = metadata.resolve.nodes.iter().find(|node| node.id == package.id);
        let linked = node.into_iter().flat_map(Node::linked).filter_map(find).map(purl);
        let linked: BTreeSet<String> = linked.collect();
        dependencies.push(json!({ "ref": purl(package), "dependsOn": linked }));
    }
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

impl Node {
    /// Lists the ids of crates that are linked, rather than only used by builds or tests.
    fn linked(&self) -> impl Iterator<Item = &str> {
        let is_linked =
            |dep: &&ResolvedDependency| dep.dep_kinds.iter().any(|kind| kind.kind.is_none());
        self.deps.iter().filter(is_linked).map(|dep| dep.pkg.as_str())
    }
}

/// Returns the ids of all crates that what ships is linked with, itself included, in order.
fn reachable(metadata: &ResolvedWorkspace) -> BTreeSet<&str> {
    let is_own =
        |package: &&Listed| package.source.is_none() && SHIPPED.contains(&package.name.as_str());
    let mut open: Vec<&str> =
        metadata.packages.iter().filter(is_own).map(|package| package.id.as_str()).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        if found.insert(id) {
            let node = metadata.resolve.nodes.iter().find(|node| node.id == id);
            open.extend(node.into_iter().flat_map(Node::linked));
        }
    }
    found
}

/// Formats seconds since 1970 as ISO 8601, by date(1).
fn timestamp(time: u64) -> String {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d", &format!("@{time}")]);
    let text = run("format a time", &mut date).map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// Writes `SHA256SUMS` of all packages and executables, as sha256sum checks it.
pub(super) fn write_checksums(output: &Path) -> Result<(), LabError> {
    let mut find = Command::new("find");
    find.current_dir(output).args([".", "-type", "f", "!", "-name", "SHA256SUMS", "-printf"]);
    let found = run("list packages", find.arg("%P\\n"))?.stdout;
    let mut names: Vec<&str> = str::from_utf8(&found).unwrap_or_default().lines().collect();
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
        let package = |name: &str, source: Option<&str>| Listed {
            id: name.into(),
            name: name.into(),
            version: "1.0.0".into(),
            license: Some("MIT/Apache-2.0".into()),
            source: source.map(Into::into),
        };
        let dep = |name: &str, kind: Option<&str>| ResolvedDependency {
            pkg: name.into(),
            dep_kinds: vec![ResolvedKind { kind: kind.map(Into::into) }],
        };
        let metadata = ResolvedWorkspace {
            packages: vec![
                package("rlaunch", None),
                package("linked", Some("registry")),
                package("builds", Some("registry")),
                package("tests", Some("registry")),
            ],
            resolve: Resolve {
                nodes: vec![Node {
                    id: "rlaunch".into(),
                    deps: vec![
                        dep("linked", None),
                        dep("builds", Some("build")),
                        dep("tests", Some("dev")),
                    ],
                }],
            },
        };
        let bom = describe(&metadata, "0.1.0", 0);
        let names: Vec<&str> = bom["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["linked", "rlaunch"]);
        assert_eq!(bom["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bom["dependencies"][1]["dependsOn"][0], "pkg:cargo/linked@1.0.0");
        assert_eq!(bom["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
    }
}
