//! Faults of paths, with causes and hints for the launcher's report.

use rlaunch_bootstrap::protocol::mesh::{PathFault, ProofStep};
use rlaunch_verbs::{Context, VerbsError};
use std::borrow::Cow;
use std::error::Error;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Drivers whose module parameter `limits_sel` limits the number of queue pairs.
const LIMITED_DRIVERS: [&str; 3] = ["irdma", "ice", "i40e"];

/// Makes the fault of an RDMA verb that failed, with the system's reason.
pub(crate) fn from_verbs(step: ProofStep, error: &VerbsError) -> PathFault {
    let mut cause = error.to_string();
    // The source of a rejection is an InfiniBand reason code, whose text as an errno would mislead.
    let refused = matches!(error, VerbsError::UnexpectedEvent { event_name, .. } if event_name.ends_with("REJECTED"));
    if let Some(source) = error.source().map(ToString::to_string)
        && !refused
        && !cause.contains(&source)
    {
        cause = format!("{cause}: {source}");
    }
    PathFault { step, cause, hint: error.hint().map(Cow::into_owned), awaited_peer: false }
}

/// Makes the fault of a step that failed because the peer did not do its part. The peer's own fault
/// has the cause, if it reports one.
pub(crate) fn awaiting_peer(step: ProofStep, cause: String) -> PathFault {
    PathFault { step, cause, hint: None, awaited_peer: true }
}

/// Makes the fault of a device that cannot be opened. rdma-core tries several methods and reports
/// only the error of the last, so this function opens the device file itself to find the reason.
pub(crate) fn opening(device: &str, error: &VerbsError) -> PathFault {
    let mut fault = from_verbs(ProofStep::Prepare, error);
    if let Some(file) = device_file(device)
        && let Err(error) = File::options().read(true).write(true).open(&file)
    {
        fault.cause = format!("{device}: {}: {error}", file.display());
        fault.hint = match error.kind() {
            ErrorKind::PermissionDenied => Some("give this user read and write access to it"),
            ErrorKind::NotFound => Some("start the container with --device=/dev/infiniband"),
            _ => None,
        }
        .map(str::to_owned);
    }
    fault
}

/// Returns the path of a device's file, like `/dev/infiniband/uverbs0`.
fn device_file(device: &str) -> Option<PathBuf> {
    let class = fs::read_dir("/sys/class/infiniband_verbs").ok()?;
    let is_of = |directory: &Path| {
        fs::read_to_string(directory.join("ibdev")).is_ok_and(|name| name.trim() == device)
    };
    let directory = class.flatten().map(|entry| entry.path()).find(|path| is_of(path))?;
    Some(Path::new("/dev/infiniband").join(directory.file_name()?))
}

/// Makes the fault of memory that could not be locked, with the size needed (bytes) and the limit.
pub(crate) fn memory(error: &VerbsError, needed: usize) -> PathFault {
    let mut fault = from_verbs(ProofStep::Prepare, error);
    if let Some(limit) = locked_memory_limit() {
        let (limit, needed) = (limit >> 10, needed.div_ceil(1024));
        fault.cause += &format!(" ({needed} KiB are needed, the limit is {limit} KiB)");
    }
    fault
}

/// Returns a fault if a device supports fewer queue pairs than `needed`.
pub(crate) fn check_queue_pairs(context: &Context, needed: usize) -> Result<(), PathFault> {
    let has = context.limits().map_err(|error| from_verbs(ProofStep::Prepare, &error))?.queue_pairs;
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

/// Returns the soft limit on locked memory in bytes; `None` if it is unlimited or unknown.
fn locked_memory_limit() -> Option<u64> {
    parse_limit(&fs::read_to_string("/proc/self/limits").ok()?)
}

fn parse_limit(limits: &str) -> Option<u64> {
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
        assert_eq!(parse_limit(limits), Some(65536));
        assert_eq!(parse_limit("Max locked memory         unlimited   unlimited   bytes\n"), None);
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
        assert_eq!(from_verbs(ProofStep::Prepare, &error).cause, "no device mlx5_9");
        let source = || std::io::Error::from_raw_os_error(28);
        let (device, verb) = ("siw0".to_owned(), Verb::CreateQp);
        let full =
            from_verbs(ProofStep::Prepare, &VerbsError::Failed { verb, device, source: source() });
        assert!(full.cause.contains("No space left"), "{}", full.cause);
        let (addresses, event_name) = ("a to b".to_owned(), "RDMA_CM_EVENT_REJECTED".to_owned());
        let verb = Verb::Connect;
        let refused = VerbsError::UnexpectedEvent { verb, addresses, event_name, source: source() };
        let cause = from_verbs(ProofStep::Connect, &refused).cause;
        assert_eq!(cause, "a to b: rdma_connect: RDMA_CM_EVENT_REJECTED");
    }
}
