//! Files, lists and patterns that users write.

pub(crate) use rlaunch_launcher::fuzz::{
    cluster, cluster_seeds, host_list, host_list_seeds, hostfile, hostfile_seeds, tag_pattern,
    tag_pattern_seeds, variables, variables_seeds,
};
