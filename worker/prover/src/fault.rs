//! Why something does not work, for whoever reads the launcher's report.

use rlaunch_bootstrap::protocol::mesh::{PathFault, ProofStep};
use rlaunch_verbs::{Context, VerbsError};
use std::error::Error;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Drivers of cards that have as many queue pairs as their module was told.
const LIMITED_DRIVERS: [&str; 3] = ["irdma", "ice", "i40e"];

/// What went wrong at a step, in the words of verbs and of the system.
pub(crate) fn of(step: ProofStep, error: &VerbsError) -> PathFault {
    let mut cause = error.to_string();
    // Why a peer refuses is a number of InfiniBand's own, which the system has other words for.
    let refused = matches!(error, VerbsError::UnexpectedEvent { event_name, .. } if event_name.ends_with("REJECTED"));
    if let Some(source) = error.source().map(ToString::to_string)
        && !refused
        && !cause.contains(&source)
    {
        cause = format!("{cause}: {source}");
    }
    PathFault { step, cause, hint: error.hint().map(str::to_owned), awaited_peer: false }
}

/// What this end could not do, because its peer did not do what it was to do.
pub(crate) fn waited(step: ProofStep, cause: String) -> PathFault {
    PathFault { step, cause, hint: None, awaited_peer: true }
}

/// The same of a device that could not be opened. rdma-core tries several ways, and says why the
/// last one failed.
pub(crate) fn of_opening(device: &str, error: &VerbsError) -> PathFault {
    let mut fault = of(ProofStep::Prepare, error);
    if let Some(file) = file_of(device)
        && let Err(error) = File::options().read(true).write(true).open(&file)
    {
        fault.cause = format!("{device}: {}: {error}", file.display());
        fault.hint = match error.kind() {
            ErrorKind::PermissionDenied => Some("give this user read and write access to it"),
            ErrorKind::NotFound => Some("--device=/dev/infiniband for a container"),
            _ => None,
        }
        .map(str::to_owned);
    }
    fault
}

/// `/dev/infiniband/uverbs0`, of a device that the kernel has.
fn file_of(device: &str) -> Option<PathBuf> {
    let class = fs::read_dir("/sys/class/infiniband_verbs").ok()?;
    let is_of = |directory: &Path| {
        fs::read_to_string(directory.join("ibdev")).is_ok_and(|name| name.trim() == device)
    };
    let directory = class.flatten().map(|entry| entry.path()).find(|path| is_of(path))?;
    Some(Path::new("/dev/infiniband").join(directory.file_name()?))
}

/// The same of memory that had to be locked: how much, and how much may be.
pub(crate) fn of_memory(error: &VerbsError, needed: usize) -> PathFault {
    let mut fault = of(ProofStep::Prepare, error);
    if let Some(limit) = locked_memory_limit() {
        let (limit, needed) = (limit >> 10, needed.div_ceil(1024));
        fault.cause += &format!(" ({needed} KiB are needed, the limit is {limit} KiB)");
    }
    fault
}

/// Whether a device has that many queue pairs.
pub(crate) fn unless_enough(context: &Context, needed: usize) -> Result<(), PathFault> {
    let has = context.limits().map_err(|error| of(ProofStep::Prepare, &error))?.queue_pairs;
    if needed <= has as usize {
        return Ok(());
    }
    let name = context.name();
    let driver = fs::read_link(format!("/sys/class/infiniband/{name}/device/driver"));
    Err(too_few(name, needed, has, driver.ok().as_deref()))
}

fn too_few(name: &str, needed: usize, has: u32, driver: Option<&Path>) -> PathFault {
    let is_limited = |path: &Path| LIMITED_DRIVERS.iter().any(|driver| path.ends_with(driver));
    PathFault {
        step: ProofStep::Prepare,
        cause: format!("{name}: {needed} queue pairs are needed, the device has {has}"),
        hint: driver
            .is_some_and(is_limited)
            .then(|| "load irdma with a larger limits_sel".to_owned()),
        awaited_peer: false,
    }
}

/// In bytes; `None` without one.
fn locked_memory_limit() -> Option<u64> {
    limit_of(&fs::read_to_string("/proc/self/limits").ok()?)
}

fn limit_of(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_verbs::Verb;

    #[test]
    fn the_limit_on_locked_memory_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max locked memory         65536                8388608              bytes\n";
        assert_eq!(limit_of(limits), Some(65536));
        assert_eq!(limit_of("Max locked memory         unlimited   unlimited   bytes\n"), None);
    }

    #[test]
    fn a_device_with_too_few_queue_pairs_says_what_it_has() {
        let driver = Path::new("../../../bus/pci/drivers/ice");
        let fault = too_few("rocep1s0", 300, 124, Some(driver));
        assert_eq!(fault.cause, "rocep1s0: 300 queue pairs are needed, the device has 124");
        assert!(fault.hint.is_some_and(|hint| hint.contains("limits_sel")));
        assert_eq!(too_few("rxe0", 300, 124, None).hint, None);
    }

    #[test]
    fn the_systems_reason_is_part_of_the_cause() {
        let error = VerbsError::NoDevice { device: "mlx5_9".to_owned() };
        assert_eq!(of(ProofStep::Prepare, &error).cause, "no device mlx5_9");
        let source = || std::io::Error::from_raw_os_error(28);
        let (device, verb) = ("siw0".to_owned(), Verb::CreateQp);
        let full = of(ProofStep::Prepare, &VerbsError::Failed { verb, device, source: source() });
        assert!(full.cause.contains("No space left"), "{}", full.cause);
        let (addresses, event_name) = ("a to b".to_owned(), "RDMA_CM_EVENT_REJECTED".to_owned());
        let verb = Verb::Connect;
        let refused = VerbsError::UnexpectedEvent { verb, addresses, event_name, source: source() };
        let cause = of(ProofStep::Connect, &refused).cause;
        assert_eq!(cause, "a to b: rdma_connect: RDMA_CM_EVENT_REJECTED");
    }
}
