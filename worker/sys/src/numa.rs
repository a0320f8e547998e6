//! NUMA memory policy.

use std::io;

/// Makes this thread, and the programs it executes, prefer memory of a NUMA node
/// (`MPOL_PREFERRED`). Fails with `ENOSYS` or `EPERM` where that is not permitted, and with
/// `EINVAL` if the machine does not have the node.
pub fn prefer_numa_node(node: u32) -> io::Result<()> {
    const BITS: u32 = libc::c_ulong::BITS;
    /// Largest number of nodes that a kernel can be built for (MAX_NUMNODES).
    const NODES: u32 = 1024;
    if node >= NODES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask: [libc::c_ulong; (NODES / BITS) as usize] = [0; (NODES / BITS) as usize];
    mask[(node / BITS) as usize] = 1 << (node % BITS);
    // One more than the number of bits, because the kernel subtracts one.
    let length = libc::c_ulong::from(NODES) + 1;
    let policy = libc::c_long::from(libc::MPOL_PREFERRED);
    // SAFETY: set_mempolicy(2) reads `length` - 1 bits at `mask`, which is that long and lives
    // until the call returns; it changes nothing that this process could observe in memory.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, mask.as_ptr(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_no_machine_has_is_refused() {
        let error = prefer_numa_node(4096).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
