//! Options of other launchers whose value decides what they mean in rlaunch. Each function returns the
//! effects of a value, or the reason why the value is refused.

use super::Effect;

/// Translates values of mpirun's `--bind-to`, such as `core:overload-allowed`.
pub(super) fn bind_to(text: &str) -> Result<Vec<Effect>, String> {
    let (policy, qualifiers) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
    let policy = policy.to_ascii_lowercase();
    let mut effects = match policy.as_str() {
        "none" | "core" | "numa" | "gpu" => vec![Effect::value("bind", policy.clone())],
        "hwthread" => vec![Effect::value("cpus-per-rank", "1")],
        "l1cache" | "l2cache" => vec![Effect::value("bind", "core")],
        "socket" | "package" | "l3cache" => {
            let note =
                format!("--bind-to {policy}: ranks are bound to NUMA nodes, as by --bind numa");
            vec![Effect::value("bind", "numa"), Effect::Note(note)]
        }
        "machine" | "board" | "node" => vec![Effect::value("bind", "none")],
        _ => {
            let known = "none, core, hwthread, numa, socket and package are understood; see --bind";
            return Err(known.to_owned());
        }
    };
    if !qualifiers.is_empty() {
        effects.push(Effect::Ignored(format!("--bind-to :{qualifiers}")));
    }
    Ok(effects)
}

/// Translates values of mpirun's `--map-by`, such as `slot`, `ppr:2:node` or `node:PE=4,OVERSUBSCRIBE`. A
/// policy that mpirun does not have is left for rlaunch's own `--map-by` to check.
pub(super) fn map_by(text: &str) -> Result<Vec<Effect>, String> {
    let mut parts = text.trim().split(':');
    let mut policy = parts.next().unwrap_or_default().to_ascii_lowercase();
    if policy == "ppr" {
        for part in parts.by_ref().take(2) {
            policy = format!("{policy}:{}", part.to_ascii_lowercase());
        }
    }
    let mut effects = match policy.as_str() {
        "" => Vec::new(),
        // These policies fill one host after the other, too.
        "core" | "hwthread" | "l1cache" | "l2cache" => vec![Effect::value("map-by", "slot")],
        "socket" | "package" | "l3cache" => {
            let note =
                format!("--map-by {policy}: ranks are dealt to NUMA nodes, as by --map-by numa");
            vec![Effect::value("map-by", "numa"), Effect::Note(note)]
        }
        _ => vec![Effect::value("map-by", policy.clone())],
    };
    for qualifier in parts.flat_map(|part| part.split(',')) {
        let upper = qualifier.to_ascii_uppercase();
        match (upper.as_str(), upper.strip_prefix("PE=")) {
            ("" | "NOOVERSUBSCRIBE", _) => {}
            ("OVERSUBSCRIBE", _) => effects.push(Effect::flag("oversubscribe")),
            (_, Some(cpus)) => effects.push(Effect::value("cpus-per-rank", cpus)),
            _ => effects.push(Effect::Ignored(format!("--map-by :{qualifier}"))),
        }
    }
    Ok(effects)
}

/// Translates values of mpirun's `--preload-files`, such as `a,b`.
pub(super) fn preload_files(text: &str) -> Result<Vec<Effect>, String> {
    Ok(text.split(',').map(|file| Effect::value("preload", file)).collect())
}

/// Translates values of mpirun's `--display`, such as `map,bind`.
pub(super) fn display(text: &str) -> Result<Vec<Effect>, String> {
    let effect = |item: &str| match item.split(':').next().unwrap_or_default() {
        "map" | "map-devel" | "allocation" | "alloc" | "bind" | "bindings" => {
            Effect::value("show", "placement")
        }
        _ => Effect::Ignored(format!("--display {item}")),
    };
    Ok(text.split(',').map(effect).collect())
}

/// Translates values of mpirun's `--output`, such as `tag,merge,dir=D`.
pub(super) fn output(text: &str) -> Result<Vec<Effect>, String> {
    let effect = |kind: &str| match kind.split_once('=') {
        Some(("dir", directory)) => Effect::value("output-dir", directory),
        None if matches!(kind, "tag" | "tag-detailed" | "tag-fullname" | "rank") => {
            Effect::flag("tag-output")
        }
        None if kind.starts_with("merge") => Effect::flag("merge-stderr"),
        _ => Effect::Ignored(format!("--output {kind}")),
    };
    Ok(text.split([',', ':']).map(effect).collect())
}

/// Translates values of mpiexec's `-launcher`, such as `ssh`.
pub(super) fn launcher(text: &str) -> Result<Vec<Effect>, String> {
    Ok(match text {
        "ssh" => Vec::new(),
        "rsh" => vec![Effect::value("rsh", "rsh")],
        _ => vec![Effect::Ignored(format!("-launcher {text}"))],
    })
}

/// Translates values of torchrun's `--nproc-per-node`: a number, or a word that is refused.
pub(super) fn nproc_per_node(text: &str) -> Result<Vec<Effect>, String> {
    match text.trim() {
        "gpu" | "auto" | "cpu" | "xpu" => Err(
            "rlaunch takes a number here; a line of a hostfile without slots= gives a host as many \
             ranks as it has GPUs"
                .to_owned(),
        ),
        number => Ok(vec![Effect::value("npernode", number)]),
    }
}

/// Translates values of torchrun's `--master-addr`, which have no effect in rlaunch.
pub(super) fn master_addr(text: &str) -> Result<Vec<Effect>, String> {
    Ok(vec![Effect::Note(format!(
        "--master-addr {text} is left out: MASTER_ADDR is an address of rank 0's host that the other \
         hosts have reached; --oob-if and --oob-net choose the network"
    ))])
}
