//! The guides whose networks the guests have, followed on them.

use crate::guide;
use crate::support::Field;

fn follow(name: &str) {
    let field = Field::new();
    guide::follow(name, &field.rlaunch, |line| field.shell("n1", line));
}

#[test]
fn a_triangle_of_cables() {
    follow("triangle");
}

#[test]
fn devices_that_take_rdma_cm_only() {
    follow("erdma");
}
