//! Values of other launchers' options: a function returns the effects of a value, or the reason why it is refused.

use super::Effect;
use std::ffi::OsString;

/// Options of rlaunch that bind ranks.
pub(super) const BINDS: &[&str] = &["bind", "cpus-per-rank"];

/// Translates values of `--bind-to`: of mpirun, such as `core:overload-allowed`, and of mpiexec, such as `user:1,0`.
pub(super) fn bind_to(text: &str) -> Result<Vec<Effect>, String> {
    let (policy, qualifiers) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
    let policy = policy.to_ascii_lowercase();
    let mut effects = match policy.as_str() {
        "none" | "core" | "numa" | "gpu" => vec![Effect::value("bind", policy.clone())],
        "hwthread" | "rr" => vec![Effect::value("cpus-per-rank", "1")],
        "l1cache" | "l2cache" => vec![Effect::value("bind", "core")],
        "socket" | "package" | "l3cache" => {
            let note =
                format!("--bind-to {policy}: ranks are bound to NUMA nodes, as by --bind numa");
            vec![Effect::value("bind", "numa"), Effect::Note(note)]
        }
        "machine" | "board" | "node" => vec![Effect::value("bind", "none")],
        "user" => return each_cpu(qualifiers),
        "cpu-list" if qualifiers.eq_ignore_ascii_case("ordered") => {
            return Err(
                "--bind each:c0/c1 binds the ranks of a host to these cores in turn".to_owned()
            );
        }
        // --cpu-list, without which the word is wrong in mpirun too.
        "cpu-list" => Vec::new(),
        _ => {
            let known = "none, core, hwthread, numa, socket and package are understood; see --bind";
            return Err(known.to_owned());
        }
    };
    for qualifier in qualifiers.split([':', ',']).filter(|qualifier| !qualifier.is_empty()) {
        match qualifier.to_ascii_lowercase().as_str() {
            // Ranks for which no CPU is left share all of them.
            "overload-allowed" | "if-supported" | "no-overload" => {}
            "report" => effects.push(Effect::value("show", "placement=stderr")),
            number if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                if policy != "hwthread" {
                    return Err("--cpus-per-rank N gives each rank N CPUs of its own".to_owned());
                }
                effects = vec![Effect::value("cpus-per-rank", number)];
            }
            _ => return Err(format!("`:{qualifier}` is not understood; see --bind")),
        }
    }
    Ok(effects)
}

/// Translates mpiexec's list of CPUs for the ranks of a host in turn, such as `user:1,0+2`.
pub(super) fn each_cpu(text: &str) -> Result<Vec<Effect>, String> {
    let list = text.trim().strip_prefix("user:").unwrap_or(text.trim());
    let is_list = |c: char| c.is_ascii_digit() || c == ',' || c == '+';
    if list == "rr" {
        return bind_to("rr");
    }
    if list.is_empty() || !list.chars().all(is_list) {
        return Err(
            "--bind says how: none, core, numa, or each:0/1 for these CPUs in turn".to_owned()
        );
    }
    Ok(vec![Effect::value("bind", format!("each:{}", list.replace(',', "/").replace('+', ",")))])
}

/// Translates the cores that all ranks of a host may use, such as `0-3,8`.
pub(super) fn cpu_set(text: &str) -> Result<Vec<Effect>, String> {
    Ok(vec![Effect::value("bind", format!("each:c{}", text.trim()))])
}

/// Translates `--ppr`, such as `2:node`.
pub(super) fn ppr(text: &str) -> Result<Vec<Effect>, String> {
    map_by(&format!("ppr:{}", text.trim()))
}

/// Translates values of mpirun's `--map-by`, such as `slot`, `ppr:2:node` or `node:PE=4,OVERSUBSCRIBE`. A
/// policy that mpirun does not have is left for rlaunch's own `--map-by` to check.
pub(super) fn map_by(text: &str) -> Result<Vec<Effect>, String> {
    let text = text.trim();
    let (policy, qualifiers) = text.split_once(':').unwrap_or((text, ""));
    let mut policy = policy.to_ascii_lowercase();
    let mut qualifiers: Vec<&str> = qualifiers.split(':').collect();
    if policy == "ppr" {
        let object = qualifiers.get(1).copied().unwrap_or_default().to_ascii_lowercase();
        if !matches!(object.as_str(), "node" | "board" | "") {
            let each = qualifiers[0];
            return Err(format!(
                "a host's objects of this kind are not counted before ranks are mapped: --npernode N starts N \
                 ranks on each host, {each} for each {object}; `rlaunch topo` shows how many there are"
            ));
        }
        policy = format!("ppr:{}:node", qualifiers[0]);
        qualifiers = qualifiers.split_off(qualifiers.len().min(2));
    }
    let mut effects = match policy.as_str() {
        "" => Vec::new(),
        // These policies fill one host after the other, and bind each rank to one of their objects.
        "core" | "l1cache" | "l2cache" => {
            vec![Effect::value("map-by", "slot"), Effect::SetUnless(BINDS, "bind", "core")]
        }
        "hwthread" => {
            vec![Effect::value("map-by", "slot"), Effect::SetUnless(BINDS, "cpus-per-rank", "1")]
        }
        "socket" | "package" | "l3cache" => {
            let note = format!(
                "--map-by {policy}: ranks go to the NUMA nodes in turn, as by --map-by numa"
            );
            vec![Effect::value("map-by", "numa"), Effect::Note(note)]
        }
        "seq" | "rankfile" => return listed(&policy, &qualifiers),
        "dist" | "board" | "mindist" => {
            return Err(
                "--map-by slot, node and numa are understood; a rank is bound near its NIC by \
                        --bind numa"
                    .to_owned(),
            );
        }
        list if list.starts_with("pe-list=") => return cpu_list(text, &qualifiers),
        _ => vec![Effect::value("map-by", policy.clone())],
    };
    for qualifier in qualifiers.iter().flat_map(|part| part.split(',')) {
        effects.extend(mapping_qualifier(&policy, qualifier)?);
    }
    Ok(effects)
}

/// Translates what stands behind a policy of `--map-by`.
fn mapping_qualifier(policy: &str, qualifier: &str) -> Result<Option<Effect>, String> {
    let upper = qualifier.to_ascii_uppercase();
    if let Some(cpus) = upper.strip_prefix("PE=") {
        return Ok(Some(Effect::value("cpus-per-rank", cpus)));
    }
    match upper.as_str() {
        "" | "NOOVERSUBSCRIBE" | "HWTCPUS" | "CORECPUS" | "INHERIT" | "NOINHERIT" => Ok(None),
        "OVERSUBSCRIBE" => Ok(Some(Effect::flag("oversubscribe"))),
        "NOLOCAL" => Ok(Some(Effect::flag("no-local"))),
        "DISPLAY" | "DISPLAYDEVEL" | "DISPLAYALLOC" => Ok(Some(Effect::value("show", "placement"))),
        // One of each host in turn is all that there is of it.
        "SPAN" if policy == "node" => Ok(None),
        "SPAN" => Err("--map-by node puts one rank on each host in turn".to_owned()),
        _ => Err(format!(
            "`:{qualifier}` is not understood; see --map-by, --bind and --cpus-per-rank"
        )),
    }
}

/// Translates `seq` and `rankfile`, each of which may name its file.
fn listed(policy: &str, qualifiers: &[&str]) -> Result<Vec<Effect>, String> {
    let file = qualifiers.iter().find_map(|part| {
        let (key, file) = part.split_once('=')?;
        key.eq_ignore_ascii_case("file").then_some(file)
    });
    match (policy, file) {
        (_, Some(file)) => Ok(vec![Effect::value("rankfile", file)]),
        ("seq", None) => Ok(vec![Effect::HostfileIsRankfile]),
        // The file is that of --rankfile.
        _ => Ok(Vec::new()),
    }
}

/// Translates `pe-list=0,1`, behind which `:ordered` gives each rank one.
fn cpu_list(text: &str, qualifiers: &[&str]) -> Result<Vec<Effect>, String> {
    let list = text
        .split(':')
        .next()
        .and_then(|policy| policy.split_once('='))
        .map_or("", |(_, list)| list);
    let is_ordered = qualifiers.iter().any(|part| part.eq_ignore_ascii_case("ordered"));
    if !is_ordered {
        return cpu_set(list);
    }
    if list.contains('-') {
        return Err("--bind each:c0/c1 binds the ranks of a host to these cores in turn".to_owned());
    }
    let cores: Vec<String> = list.split(',').map(|core| format!("c{}", core.trim())).collect();
    Ok(vec![Effect::value("bind", format!("each:{}", cores.join("/")))])
}

/// Translates values of `--rank-by`.
pub(super) fn rank_by(text: &str) -> Result<Vec<Effect>, String> {
    let policy = text.trim().to_ascii_lowercase();
    match policy.as_str() {
        // Ranks of a host are numbered in the order of their CPUs.
        "core" | "hwthread" | "l1cache" | "l2cache" | "fill" => {
            Ok(vec![Effect::value("rank-by", "slot")])
        }
        "socket" | "package" | "numa" | "l3cache" => Err(format!(
            "--map-by numa numbers the ranks of a host by its NUMA nodes in turn, which is meant by --rank-by {policy}"
        )),
        "span" => Err("--rank-by node numbers one rank of each host in turn".to_owned()),
        _ => Ok(vec![Effect::value("rank-by", policy)]),
    }
}

/// Translates values of mpirun's `--preload-files`, such as `a,b`.
pub(super) fn preload_files(text: &str) -> Result<Vec<Effect>, String> {
    Ok(text.split(',').map(|file| Effect::value("copy", file)).collect())
}

/// Copies the program, as `--preload-binary` does.
pub(super) fn copy_program(_: &str) -> Result<Vec<Effect>, String> {
    Ok(vec![Effect::CopyProgram])
}

/// Begins lines with the time if a parameter is true.
pub(super) fn timestamps(text: &str) -> Result<Vec<Effect>, String> {
    Ok(if is_true(text) { vec![Effect::Timestamps] } else { Vec::new() })
}

/// Tells whether the value of a parameter of Open MPI is true.
pub(super) fn is_true(value: &str) -> bool {
    match value.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "enabled" => true,
        number => number.parse().is_ok_and(|number: i64| number != 0),
    }
}

/// Translates `--prefix DIR`: where the hosts have MPI.
pub(super) fn prefix(text: &str) -> Result<Vec<Effect>, String> {
    let directory = text.trim_end_matches('/');
    let before = |name: &str, below: &str| {
        let mut variable = OsString::from(format!("{name}={directory}/{below}"));
        if let Some(rest) = std::env::var_os(name).filter(|value| !value.is_empty()) {
            variable.push(":");
            variable.push(rest);
        }
        Effect::value("env", variable)
    };
    Ok(vec![before("PATH", "bin"), before("LD_LIBRARY_PATH", "lib")])
}

/// Translates values of mpirun's `--display`, such as `map,bind`.
pub(super) fn display(text: &str) -> Result<Vec<Effect>, String> {
    let effect = |item: &str| match item.split([':', '=']).next().unwrap_or_default() {
        "map" | "map-devel" | "allocation" | "alloc" | "bind" | "bindings" | "proctable" => {
            Ok(Effect::value("show", "placement"))
        }
        "topo" | "cpus" => Err("`rlaunch topo -H HOST` shows what a host has".to_owned()),
        _ => Err(format!("`{item}` is not understood; see --show")),
    };
    text.split(',').map(effect).collect()
}

const NOT_SHOWN: &str = "--output-dir DIR writes DIR/rank.N/stdout and DIR/rank.N/stderr, and `> /dev/null 2>&1` behind the \
                         command line shows nothing";

/// Translates values of mpirun's `--output-filename`, such as `DIR:nocopy`.
pub(super) fn output_filename(text: &str) -> Result<Vec<Effect>, String> {
    let (directory, qualifiers) = text.split_once(':').unwrap_or((text, ""));
    match qualifiers {
        "" | "nojobid" => Ok(vec![Effect::value("output-dir", directory)]),
        _ if qualifiers.contains("nocopy") => Err(NOT_SHOWN.to_owned()),
        _ => Err(format!("`:{qualifiers}` is not understood; see --output-dir")),
    }
}

/// Translates values of mpirun's `--output`, such as `tag,merge,dir=D`.
pub(super) fn output(text: &str) -> Result<Vec<Effect>, String> {
    let mut effects = Vec::new();
    let (mut tag, mut has_time) = (None, false);
    for kind in text.split([',', ':']) {
        match kind.split_once('=') {
            Some(("dir", directory)) => effects.push(Effect::value("output-dir", directory)),
            None if matches!(kind, "tag" | "rank") => tag = Some("[%r,%h] "),
            None if matches!(kind, "tag-detailed" | "tag-fullname") => tag = Some("[%r,%h:%p] "),
            None if kind == "timestamp" => has_time = true,
            None if kind.starts_with("merge") => effects.push(Effect::flag("merge-stderr")),
            None if matches!(kind, "copy" | "raw" | "parseable" | "parsable" | "") => {}
            None if kind == "nocopy" => return Err(NOT_SHOWN.to_owned()),
            None if kind == "xml" => {
                return Err("--events FILE writes what happens as JSON".to_owned());
            }
            Some(("file", _)) => {
                return Err(
                    "--output-dir DIR writes DIR/rank.N/stdout and DIR/rank.N/stderr".to_owned()
                );
            }
            _ => {
                return Err(format!(
                    "`{kind}` is not understood; see --tag-output and --output-dir"
                ));
            }
        }
    }
    match (tag, has_time) {
        (None, false) => {}
        (Some("[%r,%h] "), false) => effects.push(Effect::flag("tag-output")),
        (tag, false) => effects.push(Effect::value("tag-output", tag.unwrap_or_default())),
        (tag, true) => {
            effects.push(Effect::value("tag-output", format!("%t {}", tag.unwrap_or_default())));
        }
    }
    Ok(effects)
}

/// Translates mpiexec's pattern of tags: `%r` rank, `%h` host, `%g` group, of which a job has one.
pub(super) fn prepend_pattern(text: &str) -> Result<Vec<Effect>, String> {
    if text.contains("%p") {
        return Err(
            "--tag-output='[%r,%h] ' has the rank and the host; there is no number of a proxy"
                .to_owned(),
        );
    }
    Ok(vec![Effect::value("tag-output", text.replace("%g", "0"))])
}

/// Translates the signals that mpirun passes on to ranks.
pub(super) fn fork_signals(text: &str) -> Result<Vec<Effect>, String> {
    let is_passed = |name: &str| {
        let name = name.trim().to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        matches!(name, "USR1" | "USR2" | "INT" | "TERM" | "HUP" | "QUIT")
    };
    match text.split(',').find(|name| !is_passed(name)) {
        None => Ok(Vec::new()),
        Some(other) => Err(format!(
            "USR1 and USR2 are passed on to ranks; {other} reaches a rank by `rlaunch exec JOB RANK kill`"
        )),
    }
}

/// Translates mpirun's `--runtime-options`, such as `error-nonzero-status=false,donotlaunch`.
pub(super) fn runtime_options(text: &str) -> Result<Vec<Effect>, String> {
    let mut effects = Vec::new();
    for item in text.split([',', ':']) {
        let (name, value) = item.split_once('=').unwrap_or((item, "true"));
        let is_true = !matches!(value.to_ascii_lowercase().as_str(), "false" | "0" | "no");
        match name.to_ascii_lowercase().as_str() {
            "error-nonzero-status" | "abort-nonzero-status" if is_true => {}
            "error-nonzero-status" | "abort-nonzero-status" => {
                effects.push(Effect::flag("continue-on-error"));
            }
            "continuous" | "recoverable" if is_true => {
                effects.push(Effect::flag("continue-on-error"));
            }
            "donotlaunch" if is_true => effects.push(Effect::flag("dry-run")),
            "continuous"
            | "recoverable"
            | "donotlaunch"
            | "show-progress"
            | "notifyerrors"
            | "report-child-jobs-separately"
            | "spawn-timeout" => {}
            "max-restarts" => effects.push(Effect::value("max-restarts", value)),
            "timeout" => effects.push(Effect::value("timeout", value)),
            "report-state-on-timeout" if is_true => {
                effects.push(Effect::flag("report-state-on-timeout"));
            }
            "get-stack-traces" if is_true => effects.push(Effect::flag("get-stack-traces")),
            _ => {
                return Err(format!(
                    "`{item}` is not understood; see --continue-on-error, --dry-run, --timeout and --max-restarts"
                ));
            }
        }
    }
    Ok(effects)
}

/// Translates values of mpiexec's `-launcher`, such as `ssh`.
pub(super) fn launcher(text: &str) -> Result<Vec<Effect>, String> {
    Ok(match text {
        "slurm" => vec![Effect::value("launcher", "srun")],
        "rsh" => vec![Effect::value("rsh", "rsh")],
        // Without -H, ranks start here in any case.
        "fork" => vec![Effect::Note(
            "-launcher fork: without -H ranks start on this machine, without SSH".into(),
        )],
        "cobalt" | "ll" | "lsf" | "manual" | "pbs" | "pdsh" | "persist" | "sge" => {
            return Err(
                "--rsh COMMAND names another way to the hosts than SSH, as in --rsh blaunch"
                    .to_owned(),
            );
        }
        // Others than our own are refused with the values that there are.
        _ => vec![Effect::value("launcher", text)],
    })
}

/// Translates values of mpiexec's `-rmk`, whose manager also starts processes if it is Slurm. The hosts of the others are
/// read from their variables anyway.
pub(super) fn resource_manager(text: &str) -> Result<Vec<Effect>, String> {
    match text {
        "slurm" => Ok(vec![Effect::value("launcher", "srun")]),
        "user" | "lsf" | "pbs" | "sge" | "cobalt" => Ok(Vec::new()),
        _ => Err("hosts are read of Slurm, PBS, LSF, Grid Engine, OAR and Cobalt; -H names others"
            .to_owned()),
    }
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
