//! Rows about running jobs, as other rlaunch processes see them.

use super::Coverage;

pub(super) const ROWS: &[Coverage] = &[
    Coverage {
        sources: &[
            "launcher/src/run/live/",
            "launcher/src/run/supervisor/queries.rs",
            "launcher/src/commands/jobs.rs",
            "launcher/src/commands/stack.rs",
            "launcher/src/run/hang/",
            "launcher/src/run/stragglers/",
            "launcher/src/run/supervisor/watches.rs",
            "bootstrap/src/job/waited_time.rs",
            "worker/comm/src/progress/waited.rs",
            "launcher/src/run/helper_upload.rs",
            "worker/src/ranks/helpers.rs",
            "worker/src/agent/stacks.rs",
            "worker/src/agent/messages.rs",
            "launcher/console/src/panics.rs",
            "worker/src/node/helper_file.rs",
            "worker/stack/",
            "bootstrap/src/protocol/helper.rs",
            "worker/src/cleanup/job_list.rs",
            "worker/src/cleanup/usage.rs",
            "bootstrap/src/job/list.rs",
            "bootstrap/src/protocol/inspection.rs",
            "launcher/src/plan/env/torch.rs",
        ],
        netns: &["live", "hang", "sessions", "stragglers"],
        vm: &["stacks"],
    },
    Coverage {
        sources: &[
            "launcher/src/commands/exec/",
            "worker/src/ranks/session/",
            "bootstrap/src/protocol/session.rs",
            "worker/comm/python/python/rlaunch/_debugger.py",
        ],
        netns: &["sessions", "library"],
        vm: &[],
    },
    Coverage {
        sources: &[
            "launcher/src/commands/monitor/",
            "worker/src/diagnosis/monitor.rs",
            "worker/src/node/diagnostics/traffic.rs",
            "worker/src/node/gpu_usage.rs",
            "worker/src/node/units.rs",
            "bootstrap/src/inventory/traffic.rs",
        ],
        netns: &["monitor"],
        vm: &[],
    },
];
