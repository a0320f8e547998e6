//! Errors of libibverbs and librdmacm calls. An error tells which call failed on which device or
//! address, what the error number means for that call, and how to remedy it, if there is a usual
//! remedy.

use std::borrow::Cow;
use std::{fmt, io};

/// Defines [`Verb`] from the names of the C functions, which users can search for.
macro_rules! verbs {
    ($($(#[$doc:meta])* $verb:ident => $name:literal,)*) => {
        /// Function of libibverbs (`ibv_…`) or librdmacm (`rdma_…`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Verb {
            $(#[doc = concat!("`", $name, "`")] $(#[$doc])* $verb,)*
        }

        impl fmt::Display for Verb {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Verb::$verb => $name,)*
                })
            }
        }
    };
}

verbs! {
    GetDeviceList => "ibv_get_device_list",
    OpenDevice => "ibv_open_device",
    QueryDevice => "ibv_query_device",
    QueryPort => "ibv_query_port",
    QueryGid => "ibv_query_gid_ex",
    AllocPd => "ibv_alloc_pd",
    RegMr => "ibv_reg_mr",
    CreateCq => "ibv_create_cq",
    PollCq => "ibv_poll_cq",
    ReqNotifyCq => "ibv_req_notify_cq",
    CreateCompChannel => "ibv_create_comp_channel",
    GetCqEvent => "ibv_get_cq_event",
    GetAsyncEvent => "ibv_get_async_event",
    CreateQp => "ibv_create_qp",
    ModifyToInit => "ibv_modify_qp to INIT",
    /// (ready to receive)
    ModifyToRtr => "ibv_modify_qp to RTR",
    /// (ready to send)
    ModifyToRts => "ibv_modify_qp to RTS",
    PostSend => "ibv_post_send",
    PostRecv => "ibv_post_recv",
    GetDevices => "rdma_get_devices",
    CreateId => "rdma_create_id",
    SetOption => "rdma_set_option",
    BindAddr => "rdma_bind_addr",
    Listen => "rdma_listen",
    ResolveAddr => "rdma_resolve_addr",
    ResolveRoute => "rdma_resolve_route",
    Connect => "rdma_connect",
    Accept => "rdma_accept",
}

/// Failure of an RDMA operation.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// libibverbs.so.1 is missing or cannot be loaded.
    #[error("no rdma-core: libibverbs.so.1 cannot be loaded")]
    NoLibrary,
    /// The kernel module ib_uverbs is not loaded.
    #[error("no kernel support: ib_uverbs is not loaded")]
    NoKernelSupport,
    /// The kernel has the device, but rdma-core has no user-space driver (provider) for it.
    #[error("no provider for {device}")]
    NoProvider {
        /// Name of the device, like `mlx5_0`.
        device: String,
    },
    /// Neither the kernel nor rdma-core has a device of this name.
    #[error("no device {device}")]
    NoDevice {
        /// Name that was looked up.
        device: String,
    },
    /// A call returned an error.
    #[error("{device}: {verb}: {}", explanation(*verb, source).unwrap_or("failed"))]
    Failed {
        /// Call that failed.
        verb: Verb,
        /// Name of the device, like `mlx5_0`, or the addresses of a connection.
        device: String,
        /// Error number of the call.
        source: io::Error,
    },
    /// The connection manager reported an event that was not the expected one.
    #[error("{addresses}: {verb}: {event_name}{}", explanation_suffix(*verb, source))]
    UnexpectedEvent {
        /// Call whose event was awaited.
        verb: Verb,
        /// Addresses of the connection: `10.0.0.1 to 10.0.0.2:7`.
        addresses: String,
        /// Name of the event, like `RDMA_CM_EVENT_REJECTED`.
        event_name: String,
        /// Status of the event, as an error number.
        source: io::Error,
    },
    /// No event of the connection manager arrived before the deadline.
    #[error("{addresses}: {verb}: no answer in time")]
    TimedOut {
        /// Call whose event was awaited.
        verb: Verb,
        addresses: String,
    },
    /// The private data of a connection is longer than the connection manager carries.
    #[error("{addresses}: {verb}: {length} bytes of private data, and {max} is the most")]
    PrivateDataTooLong {
        /// Call that would have sent the private data.
        verb: Verb,
        addresses: String,
        /// Length of the private data, in bytes.
        length: usize,
        /// Largest length that the connection manager carries, in bytes.
        max: usize,
    },
    /// The handle was opened by a parent process, before it forked this process. Only the parent
    /// can use the handle.
    #[error("{device}: opened by the parent process before fork(), and not usable in the child")]
    Inherited {
        /// Name of the device, like `mlx5_0`.
        device: String,
    },
    /// The connection manager chose another device that has the same IP address.
    #[error(
        "{addresses}: the connection manager chose {found} instead of {wanted}: both have that address"
    )]
    WrongDevice {
        /// Addresses of the connection, or the one to listen at.
        addresses: String,
        /// Name of the device that the caller asked for.
        wanted: String,
        /// Name of the device that the kernel chose.
        found: String,
    },
    /// A range exceeds the buffer or region.
    #[error("{length} bytes at offset {offset} exceed a region of {size} bytes")]
    OutOfBounds {
        /// Offset from the beginning of the region, in bytes.
        offset: usize,
        /// Length of the range, in bytes.
        length: usize,
        /// Length of the region, in bytes.
        size: usize,
    },
}

impl VerbsError {
    /// Makes the error of a call that has set `errno`.
    pub(crate) fn last_os_error(verb: Verb, device: &str) -> VerbsError {
        VerbsError::from_io(verb, device, io::Error::last_os_error())
    }

    /// Makes the error of a call that has returned an error number.
    pub(crate) fn from_errno(verb: Verb, device: &str, code: i32) -> VerbsError {
        VerbsError::from_io(verb, device, io::Error::from_raw_os_error(code))
    }

    pub(crate) fn from_io(verb: Verb, device: &str, source: io::Error) -> VerbsError {
        VerbsError::Failed { verb, device: device.to_owned(), source }
    }

    /// Returns advice to the user about the error, if there is a usual remedy.
    pub fn hint(&self) -> Option<Cow<'static, str>> {
        if let VerbsError::WrongDevice { wanted, found, .. } = self {
            return Some(Cow::Owned(format!(
                "the kernel chooses the device that was added first: choose {found} (--hca), give {wanted} \
                 an interface with another address, or remove the other: rdma link delete {found}"
            )));
        }
        self.usual_remedy().map(Cow::Borrowed)
    }

    fn usual_remedy(&self) -> Option<&'static str> {
        match self {
            VerbsError::NoLibrary => Some("install rdma-core (libibverbs1)"),
            VerbsError::NoKernelSupport => Some("modprobe ib_uverbs"),
            VerbsError::NoProvider { .. } => Some(
                "install ibverbs-providers of the same version as libibverbs; in a container, do not use \
                 the host's",
            ),
            VerbsError::Failed { verb, source, .. } => hint_for(*verb, source.raw_os_error()?),
            VerbsError::UnexpectedEvent { verb, source, .. } => {
                hint_for(*verb, source.raw_os_error()?)
            }
            VerbsError::Inherited { .. } => {
                Some("open the device in the child, or start the child by exec")
            }
            VerbsError::NoDevice { .. }
            | VerbsError::WrongDevice { .. }
            | VerbsError::TimedOut { .. }
            | VerbsError::PrivateDataTooLong { .. }
            | VerbsError::OutOfBounds { .. } => None,
        }
    }
}

/// Explains an error number of this call, if the usual text of the number is misleading.
fn explanation(verb: Verb, source: &io::Error) -> Option<&'static str> {
    use Verb::{
        BindAddr, Connect, CreateCq, CreateQp, ModifyToRtr, ModifyToRts, OpenDevice, RegMr,
        ResolveAddr,
    };
    Some(match (verb, source.raw_os_error()?) {
        (OpenDevice, libc::EACCES | libc::EPERM) => {
            "its file in /dev/infiniband: permission denied"
        }
        (OpenDevice, libc::ENOENT | libc::ENXIO) => "its file in /dev/infiniband is missing",
        (RegMr | CreateCq, libc::ENOMEM) => "memory may not be locked",
        (CreateQp, libc::ENOMEM) => "memory may not be locked, or no queue pair is left",
        (ModifyToRtr, libc::EINVAL) => {
            "an address of this host or the peer is invalid (GID index?)"
        }
        (ModifyToRtr, libc::ETIMEDOUT) => "the peer's address was not resolved: another subnet?",
        (ModifyToRtr, libc::ENETUNREACH) => "no route to the peer's address from this port",
        (ModifyToRtr, libc::ENODEV) => "the GID's interface is not in this network namespace",
        (ModifyToRts, libc::EINVAL) => "the device supports connections by RDMA_CM only",
        (BindAddr | ResolveAddr, libc::ENODEV) => "no RDMA device has this address here",
        (Connect, libc::ECONNREFUSED) => "nothing listens there",
        _ => return None,
    })
}

/// Formats the explanation of an event's status as a suffix of the event's name; empty if there is
/// no explanation.
fn explanation_suffix(verb: Verb, source: &io::Error) -> String {
    explanation(verb, source).map(|explanation| format!(" ({explanation})")).unwrap_or_default()
}

fn hint_for(verb: Verb, code: i32) -> Option<&'static str> {
    use Verb::{Connect, CreateCq, CreateQp, ModifyToRts, OpenDevice, RegMr};
    Some(match (verb, code) {
        (OpenDevice, libc::EACCES | libc::EPERM) => {
            "give this user read and write access to /dev/infiniband/uverbs*"
        }
        (OpenDevice, libc::ENOENT | libc::ENXIO) => {
            "start the container with --device=/dev/infiniband"
        }
        (RegMr | CreateCq, libc::ENOMEM) => {
            "raise the limit on locked memory (ulimit -l) of sshd or the container"
        }
        (CreateQp, libc::ENOMEM) => {
            "raise the limit on locked memory (ulimit -l) of sshd or the container, or run fewer ranks \
             per host"
        }
        (ModifyToRts, libc::EINVAL) => {
            "use --connect rdma_cm; for eRDMA, load it with compat_mode=Y"
        }
        (Connect, libc::ECONNREFUSED) => {
            "if two RDMA devices have that address (rdma link), the kernel chooses the one that was \
             added first: it must be of the same kind on both hosts"
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
        let text = "10.0.0.1 to 10.0.0.2:7: the connection manager chose rxe0 instead of siw0: both \
                    have that address";
        assert_eq!(error.to_string(), text);
        let source = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let (addresses, event_name) = ("a to b".to_owned(), "RDMA_CM_EVENT_REJECTED".to_owned());
        let refused =
            VerbsError::UnexpectedEvent { verb: Verb::Connect, addresses, event_name, source };
        let hints = [error.hint(), refused.hint()].map(Option::unwrap_or_default);
        assert!(hints.iter().all(|hint| hint.contains("added first")), "{hints:?}");
        assert!(hints[0].ends_with(": rdma link delete rxe0"), "{hints:?}");
    }

    #[test]
    fn errors_name_the_verb_the_device_and_what_it_means() {
        let error = VerbsError::from_errno(Verb::ModifyToRts, "siw0", libc::EINVAL);
        let text = "siw0: ibv_modify_qp to RTS: the device supports connections by RDMA_CM only";
        assert_eq!(error.to_string(), text);
        assert!(error.hint().is_some_and(|hint| hint.contains("rdma_cm")));
        let error = VerbsError::from_errno(Verb::OpenDevice, "mlx5_0", libc::EACCES);
        assert!(error.to_string().ends_with("permission denied"), "{error}");
        let error = VerbsError::from_errno(Verb::CreateQp, "mlx5_0", libc::ENOMEM);
        assert!(error.to_string().ends_with("or no queue pair is left"), "{error}");
        let error = VerbsError::from_errno(Verb::CreateCq, "mlx5_0", libc::EBUSY);
        assert_eq!(error.to_string(), "mlx5_0: ibv_create_cq: failed");
        assert_eq!(error.hint(), None);
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(source.is_some_and(|cause| cause.contains("busy")), "the cause is kept");
    }
}
