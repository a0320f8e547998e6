//! Files, lists and patterns that users write, and tables of programs.

pub(crate) use rlaunch_engine::fuzz::{live_messages, live_messages_seeds};
pub(crate) use rlaunch_launcher::fuzz::{cluster, cluster_seeds, test_program, test_program_seeds};
pub(crate) use rlaunch_plan::fuzz::{
    host_list, host_list_seeds, hostfile, hostfile_seeds, tag_pattern, tag_pattern_seeds,
    variables, variables_seeds,
};
