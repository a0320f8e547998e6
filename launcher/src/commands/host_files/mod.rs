//! Verbs about the files that rlaunch sends to hosts: `rlaunch version`, `pack` and `cache`.

pub(super) mod cache;
pub(super) mod pack;
pub(super) mod version;
