//! Declared orders of top-level modules. In a crate without one, top-level modules only must not
//! form a cycle.

use super::code_map::CodeMap;
use super::order::Order;
use super::sizes::Page;

/// Orders by crate.
pub(super) const ORDERS: &[Order] = &[
    Order {
        krate: "bootstrap",
        layers: &[
            &[
                &["id"],
                &["frame"],
                &["serde_path"],
                &["shell_safe"],
                &["deadline"],
                &["env"],
                &["bench"],
            ],
            &[&["inventory"], &["security"]],
            &[&["rendezvous"]],
            &[&["job"]],
            &[&["rank_table"]],
            &[&["protocol"]],
        ],
        pending: None,
    },
    Order {
        krate: "launcher",
        layers: &[
            &[&["hosts"], &["findings"]],
            &[&["connect"], &["plan"]],
            &[&["checks"], &["job"]],
            &[&["cli"], &["run"]],
            &[&["commands"]],
            &[&["dispatch"], &["fuzz"]],
        ],
        pending: None,
    },
    Order {
        krate: "launcher/ssh",
        layers: &[
            &[&["config"], &["prompt"]],
            &[&["keys"], &["known_hosts"]],
            &[&["error"]],
            &[&["transport", "host_keys"]],
            &[&["client"]],
        ],
        pending: None,
    },
    Order {
        krate: "worker",
        layers: &[
            &[&["console"]],
            &[&["node"]],
            &[&["cleanup"]],
            &[&["network"]],
            &[&["ranks"]],
            &[&["agent"], &["diagnosis"]],
        ],
        pending: None,
    },
    Order {
        krate: "worker/comm",
        layers: &[
            &[&["types"]],
            &[&["transport"], &["collectives"]],
            &[&["progress"], &["connect"]],
            &[&["api"]],
            &[&["testing"]],
        ],
        pending: None,
    },
    Order {
        krate: "tests/lab",
        layers: &[
            &[&["error"]],
            &[&["command"]],
            &[&["setup"]],
            &[&["dist"]],
            &[&["netns", "vm"], &["tidy"]],
            &[&["demo"], &["bench", "soak"]],
            &[&["stages"]],
            &[&["cli"]],
        ],
        pending: None,
    },
    Order {
        krate: "worker/verbs",
        layers: &[
            &[&["error"]],
            &[&["fork"], &["poll"]],
            &[&["device"]],
            &[&["memory"], &["cm_id"]],
            &[&["queue"]],
            &[&["bounce_buffers"], &["connection_manager"]],
        ],
        pending: None,
    },
];

/// Pages with a maximum length.
pub(super) const PAGES: &[Page] = &[Page { file: "README.md", bytes: 10_240 }];

/// Code maps that are checked against the folders.
pub(super) const CODE_MAPS: &[CodeMap] =
    &[CodeMap { file: "README.md", crates: &["launcher", "worker"] }];
