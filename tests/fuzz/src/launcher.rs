//! Files, lists and patterns that users write, and tables of programs.

pub(crate) use rlaunch_launcher::fuzz::{
    cluster, cluster_seeds, host_list, host_list_seeds, hostfile, hostfile_seeds, live_messages,
    live_messages_seeds, tag_pattern, tag_pattern_seeds, test_program, test_program_seeds,
    variables, variables_seeds,
};
