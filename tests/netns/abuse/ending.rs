//! Jobs that try to outlive rlaunch, and ends that come by silence.
