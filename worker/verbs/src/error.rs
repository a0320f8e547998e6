//! What can go wrong, by verb, and what the system's number means there.

use std::fmt;
use std::io;

/// A call into rdma-core or the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `ibv_get_device_list`
    GetDeviceList,
    /// `ibv_open_device`
    OpenDevice,
    /// `ibv_query_device`
    QueryDevice,
    /// `ibv_query_port`
    QueryPort,
    /// `ibv_query_gid_ex`
    QueryGid,
    /// `ibv_alloc_pd`
    AllocPd,
    /// `ibv_reg_mr`
    RegMr,
    /// `ibv_create_cq`
    CreateCq,
    /// `ibv_poll_cq`
    PollCq,
    /// `ibv_req_notify_cq`
    ReqNotifyCq,
    /// `ibv_create_comp_channel`
    CreateCompChannel,
    /// `ibv_get_cq_event`
    GetCqEvent,
    /// `ibv_get_async_event`
    GetAsyncEvent,
    /// `ibv_create_qp`
    CreateQp,
    /// `ibv_modify_qp` to INIT
    ModifyToInit,
    /// `ibv_modify_qp` to RTR, ready to receive
    ModifyToRtr,
    /// `ibv_modify_qp` to RTS, ready to send
    ModifyToRts,
    /// `ibv_post_send`
    PostSend,
    /// `ibv_post_recv`
    PostRecv,
    /// `rdma_get_devices`
    GetDevices,
    /// `rdma_create_id`
    CreateId,
    /// `rdma_set_option`
    SetOption,
    /// `rdma_bind_addr`
    BindAddr,
    /// `rdma_listen`
    Listen,
    /// `rdma_resolve_addr`
    ResolveAddr,
    /// `rdma_resolve_route`
    ResolveRoute,
    /// `rdma_connect`
    Connect,
    /// `rdma_accept`
    Accept,
}

/// As people look for it.
impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::GetDeviceList => "ibv_get_device_list",
            Verb::OpenDevice => "ibv_open_device",
            Verb::QueryDevice => "ibv_query_device",
            Verb::QueryPort => "ibv_query_port",
            Verb::QueryGid => "ibv_query_gid_ex",
            Verb::AllocPd => "ibv_alloc_pd",
            Verb::RegMr => "ibv_reg_mr",
            Verb::CreateCq => "ibv_create_cq",
            Verb::PollCq => "ibv_poll_cq",
            Verb::ReqNotifyCq => "ibv_req_notify_cq",
            Verb::CreateCompChannel => "ibv_create_comp_channel",
            Verb::GetCqEvent => "ibv_get_cq_event",
            Verb::GetAsyncEvent => "ibv_get_async_event",
            Verb::CreateQp => "ibv_create_qp",
            Verb::ModifyToInit => "ibv_modify_qp to INIT",
            Verb::ModifyToRtr => "ibv_modify_qp to RTR",
            Verb::ModifyToRts => "ibv_modify_qp to RTS",
            Verb::PostSend => "ibv_post_send",
            Verb::PostRecv => "ibv_post_recv",
            Verb::GetDevices => "rdma_get_devices",
            Verb::CreateId => "rdma_create_id",
            Verb::SetOption => "rdma_set_option",
            Verb::BindAddr => "rdma_bind_addr",
            Verb::Listen => "rdma_listen",
            Verb::ResolveAddr => "rdma_resolve_addr",
            Verb::ResolveRoute => "rdma_resolve_route",
            Verb::Connect => "rdma_connect",
            Verb::Accept => "rdma_accept",
        })
    }
}

/// Why RDMA did not work.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// libibverbs.so.1 is not there.
    #[error("no rdma-core: libibverbs.so.1 cannot be loaded")]
    NoLibrary,
    /// The kernel has no verbs.
    #[error("no kernel support: ib_uverbs is not loaded")]
    NoKernelSupport,
    /// The kernel has the device, and rdma-core nobody who drives it.
    #[error("no provider for {device}")]
    NoProvider {
        /// `mlx5_0`.
        device: String,
    },
    /// Nobody knows a device of this name.
    #[error("no device {device}")]
    NoDevice {
        /// As asked for.
        device: String,
    },
    /// A verb failed.
    #[error("{device}: {verb}: {}", meaning(*verb, source).unwrap_or("failed"))]
    Failed {
        /// Which.
        verb: Verb,
        /// `mlx5_0`.
        device: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The connection manager said something else than what was waited for.
    #[error("{addresses}: {verb}: {event_name}{}", because(*verb, source))]
    UnexpectedEvent {
        /// What was under way.
        verb: Verb,
        /// Between which addresses.
        addresses: String,
        /// `RDMA_CM_EVENT_REJECTED`.
        event_name: String,
        /// Its status.
        source: io::Error,
    },
    /// The connection manager said nothing in time.
    #[error("{addresses}: {verb}: no answer in time")]
    TimedOut {
        /// What was under way.
        verb: Verb,
        /// Between which addresses.
        addresses: String,
    },
    /// More was to be said to a peer with the connection than there is room for.
    #[error("{addresses}: {verb}: {length} bytes of private data, and {max} is the most")]
    PrivateDataTooLong {
        /// By which it would have been said.
        verb: Verb,
        /// Between which addresses.
        addresses: String,
        /// Length of the private data, in bytes.
        length: usize,
        /// Largest length that the connection manager carries, in bytes.
        max: usize,
    },
    /// It was opened by the process that forked this one.
    #[error("{device}: it belongs to the process that forked this one")]
    Inherited {
        /// `mlx5_0`.
        device: String,
    },
    /// The connection manager leads by another device that has the same address.
    #[error(
        "{addresses}: the connection manager leads by {found}, not by {wanted}: both have that address"
    )]
    WrongDevice {
        /// Between which addresses.
        addresses: String,
        /// The device that was to be used.
        wanted: String,
        /// The one that the kernel has taken.
        found: String,
    },
    /// A part of a region that is not in it.
    #[error("{length} bytes at {offset} are not in a region of {size}")]
    OutOfBounds {
        /// From the region's beginning, in bytes.
        offset: usize,
        /// In bytes.
        length: usize,
        /// The region's, in bytes.
        size: usize,
    },
}

impl VerbsError {
    /// The verb failed with the number in `errno`.
    pub(crate) fn last(verb: Verb, device: &str) -> VerbsError {
        VerbsError::of(verb, device, io::Error::last_os_error())
    }

    /// The verb returned this number.
    pub(crate) fn code(verb: Verb, device: &str, code: i32) -> VerbsError {
        VerbsError::of(verb, device, io::Error::from_raw_os_error(code))
    }

    pub(crate) fn of(verb: Verb, device: &str, source: io::Error) -> VerbsError {
        VerbsError::Failed { verb, device: device.to_owned(), source }
    }

    /// What could be done about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            VerbsError::NoLibrary => Some("install rdma-core (libibverbs1)"),
            VerbsError::NoKernelSupport => Some("modprobe ib_uverbs"),
            VerbsError::NoProvider { .. } => Some(
                "install ibverbs-providers, of the same build as libibverbs: never the host's in a \
                 container",
            ),
            VerbsError::Failed { verb, source, .. } => hint_of(*verb, source.raw_os_error()?),
            VerbsError::UnexpectedEvent { verb, source, .. } => {
                hint_of(*verb, source.raw_os_error()?)
            }
            VerbsError::Inherited { .. } => {
                Some("open it in the child, or start the child by exec")
            }
            VerbsError::WrongDevice { .. } => Some(
                "the kernel takes the device that was added first: give one of them an address of its \
                 own, or remove it (rdma link delete)",
            ),
            VerbsError::NoDevice { .. }
            | VerbsError::TimedOut { .. }
            | VerbsError::PrivateDataTooLong { .. }
            | VerbsError::OutOfBounds { .. } => None,
        }
    }
}

/// What a number means where it comes from, where that is not what it says.
fn meaning(verb: Verb, source: &io::Error) -> Option<&'static str> {
    use Verb::{
        BindAddr, Connect, CreateCq, CreateQp, ModifyToRtr, ModifyToRts, OpenDevice, RegMr,
        ResolveAddr,
    };
    Some(match (verb, source.raw_os_error()?) {
        (OpenDevice, libc::EACCES | libc::EPERM) => {
            "its file in /dev/infiniband: permission denied"
        }
        (OpenDevice, libc::ENOENT | libc::ENXIO) => "its file in /dev/infiniband is missing",
        (RegMr | CreateQp | CreateCq, libc::ENOMEM) => "memory may not be locked",
        (ModifyToRtr, libc::EINVAL) => "the peer's or the own address does not fit (GID index?)",
        (ModifyToRtr, libc::ETIMEDOUT) => "the peer's address was not resolved: another subnet?",
        (ModifyToRtr, libc::ENETUNREACH) => "no route to the peer's address from this port",
        (ModifyToRtr, libc::ENODEV) => "the GID's interface is not in this network namespace",
        (ModifyToRts, libc::EINVAL) => "the device takes RDMA_CM only",
        (BindAddr | ResolveAddr, libc::ENODEV) => "no RDMA device has this address here",
        (Connect, libc::ECONNREFUSED) => "nobody listens there",
        _ => return None,
    })
}

/// What an event's status means, behind its name.
fn because(verb: Verb, source: &io::Error) -> String {
    meaning(verb, source).map(|meaning| format!(" ({meaning})")).unwrap_or_default()
}

fn hint_of(verb: Verb, code: i32) -> Option<&'static str> {
    use Verb::{Connect, CreateCq, CreateQp, ModifyToRts, OpenDevice, RegMr};
    Some(match (verb, code) {
        (OpenDevice, libc::EACCES | libc::EPERM) => {
            "give this user read and write access to /dev/infiniband/uverbs*"
        }
        (OpenDevice, libc::ENOENT | libc::ENXIO) => "--device=/dev/infiniband for a container",
        (RegMr | CreateQp | CreateCq, libc::ENOMEM) => {
            "raise the limit on locked memory (ulimit -l) of sshd or the container"
        }
        (ModifyToRts, libc::EINVAL) => "--connect rdma_cm; for eRDMA compat_mode=Y",
        (Connect, libc::ECONNREFUSED) => {
            "if two RDMA devices have that address (rdma link), the kernel takes the one that was \
             added first: on both hosts it has to be of the same kind"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_devices_with_one_address_are_named() {
        let (addresses, wanted, found) = ("10.0.0.1 to 10.0.0.2:7", "siw0", "rxe0");
        let (addresses, wanted, found) =
            (addresses.to_owned(), wanted.to_owned(), found.to_owned());
        let error = VerbsError::WrongDevice { addresses, wanted, found };
        let said = "10.0.0.1 to 10.0.0.2:7: the connection manager leads by rxe0, not by siw0: both \
                    have that address";
        assert_eq!(error.to_string(), said);
        let source = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let (addresses, event_name) = ("a to b".to_owned(), "RDMA_CM_EVENT_REJECTED".to_owned());
        let refused =
            VerbsError::UnexpectedEvent { verb: Verb::Connect, addresses, event_name, source };
        let hints = [error.hint(), refused.hint()].map(Option::unwrap_or_default);
        assert!(hints.iter().all(|hint| hint.contains("added first")), "{hints:?}");
    }

    #[test]
    fn errors_name_the_verb_the_device_and_what_it_means() {
        let error = VerbsError::code(Verb::ModifyToRts, "siw0", libc::EINVAL);
        assert_eq!(error.to_string(), "siw0: ibv_modify_qp to RTS: the device takes RDMA_CM only");
        assert!(error.hint().is_some_and(|hint| hint.contains("rdma_cm")));
        let error = VerbsError::code(Verb::OpenDevice, "mlx5_0", libc::EACCES);
        assert!(error.to_string().ends_with("permission denied"), "{error}");
        let error = VerbsError::code(Verb::CreateCq, "mlx5_0", libc::EBUSY);
        assert_eq!(error.to_string(), "mlx5_0: ibv_create_cq: failed");
        assert_eq!(error.hint(), None);
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(source.is_some_and(|cause| cause.contains("busy")), "the cause is kept");
    }
}
