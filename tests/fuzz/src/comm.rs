//! Messages between ranks, and unauthenticated input to them.

pub(crate) use rlaunch_comm::fuzz::{packets, packets_seeds, wire_up, wire_up_seeds};
