//! What ranks say to each other, and what strangers say to them.

pub(crate) use rlaunch_comm::fuzz::{packets, packets_seeds, wire_up, wire_up_seeds};
