//! Values of other launchers' words: the options that they stand for here, or why they mean nothing.

use super::translate::Meant;

/// `--bind-to core:overload-allowed`
pub(super) fn bind_to(text: &str) -> Result<Vec<Meant>, String> {
    let (policy, qualifiers) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
    let policy = policy.to_ascii_lowercase();
    let mut meant = match policy.as_str() {
        "none" | "core" | "numa" | "gpu" => vec![Meant::with("bind", policy.clone())],
        "hwthread" => vec![Meant::with("cpus-per-rank", "1")],
        "l1cache" | "l2cache" => vec![Meant::with("bind", "core")],
        "socket" | "package" | "l3cache" => {
            let told =
                format!("--bind-to {policy}: ranks are bound to NUMA nodes, as by --bind numa");
            vec![Meant::with("bind", "numa"), Meant::remark(told)]
        }
        "machine" | "board" | "node" => vec![Meant::with("bind", "none")],
        _ => {
            let known = "none, core, hwthread, numa, socket and package are understood; see --bind";
            return Err(known.to_owned());
        }
    };
    if !qualifiers.is_empty() {
        meant.push(Meant::ignored(format!("--bind-to :{qualifiers}")));
    }
    Ok(meant)
}

/// `--map-by slot`, `ppr:2:node`, `node:PE=4,OVERSUBSCRIBE`; what is not mpirun's own is as
/// rlaunch's `--map-by` takes it.
pub(super) fn map_by(text: &str) -> Result<Vec<Meant>, String> {
    let mut parts = text.trim().split(':');
    let mut policy = parts.next().unwrap_or_default().to_ascii_lowercase();
    if policy == "ppr" {
        for part in parts.by_ref().take(2) {
            policy = format!("{policy}:{}", part.to_ascii_lowercase());
        }
    }
    let mut meant = match policy.as_str() {
        "" => Vec::new(),
        // These fill one host after the other as well.
        "core" | "hwthread" | "l1cache" | "l2cache" => vec![Meant::with("map-by", "slot")],
        "socket" | "package" | "l3cache" => {
            let told =
                format!("--map-by {policy}: ranks are dealt to NUMA nodes, as by --map-by numa");
            vec![Meant::with("map-by", "numa"), Meant::remark(told)]
        }
        _ => vec![Meant::with("map-by", policy.clone())],
    };
    for qualifier in parts.flat_map(|part| part.split(',')) {
        let upper = qualifier.to_ascii_uppercase();
        match (upper.as_str(), upper.strip_prefix("PE=")) {
            ("" | "NOOVERSUBSCRIBE", _) => {}
            ("OVERSUBSCRIBE", _) => meant.push(Meant::flag("oversubscribe")),
            (_, Some(cpus)) => meant.push(Meant::with("cpus-per-rank", cpus)),
            _ => meant.push(Meant::ignored(format!("--map-by :{qualifier}"))),
        }
    }
    Ok(meant)
}

/// `--preload-files a,b`
pub(super) fn preload_files(text: &str) -> Result<Vec<Meant>, String> {
    Ok(text.split(',').map(|file| Meant::with("preload", file)).collect())
}

/// `--display map,bind`
pub(super) fn display(text: &str) -> Result<Vec<Meant>, String> {
    let shown = |what: &str| match what.split(':').next().unwrap_or_default() {
        "map" | "map-devel" | "allocation" | "alloc" | "bind" | "bindings" => {
            Meant::with("show", "placement")
        }
        _ => Meant::ignored(format!("--display {what}")),
    };
    Ok(text.split(',').map(shown).collect())
}

/// `--output tag,merge,dir=D`
pub(super) fn output(text: &str) -> Result<Vec<Meant>, String> {
    let of_kind = |kind: &str| match kind.split_once('=') {
        Some(("dir", directory)) => Meant::with("output-dir", directory),
        None if matches!(kind, "tag" | "tag-detailed" | "tag-fullname" | "rank") => {
            Meant::flag("tag-output")
        }
        None if kind.starts_with("merge") => Meant::flag("merge-stderr"),
        _ => Meant::ignored(format!("--output {kind}")),
    };
    Ok(text.split([',', ':']).map(of_kind).collect())
}

/// `-launcher ssh`
pub(super) fn launcher(text: &str) -> Result<Vec<Meant>, String> {
    Ok(match text {
        "ssh" => Vec::new(),
        "rsh" => vec![Meant::with("rsh", "rsh")],
        _ => vec![Meant::ignored(format!("-launcher {text}"))],
    })
}

/// `--nproc-per-node 4`
pub(super) fn nproc_per_node(text: &str) -> Result<Vec<Meant>, String> {
    match text.trim() {
        "gpu" | "auto" | "cpu" | "xpu" => Err(
            "rlaunch takes a number here; a line of a hostfile without slots= gives a host as many \
             ranks as it has GPUs"
                .to_owned(),
        ),
        number => Ok(vec![Meant::with("npernode", number)]),
    }
}

/// `--master-addr 10.1.0.1`
pub(super) fn master_addr(text: &str) -> Result<Vec<Meant>, String> {
    Ok(vec![Meant::remark(format!(
        "--master-addr {text} is left out: MASTER_ADDR is an address of rank 0's host that the other \
         hosts have reached; --oob-if and --oob-net choose the network"
    ))])
}
