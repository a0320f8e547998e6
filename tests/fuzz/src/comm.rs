//! Messages between ranks, and unauthenticated input to them.

pub(crate) use rlaunch_comm::fuzz::{
    contact_and_hello, contact_and_hello_seeds, packets, packets_seeds,
};
