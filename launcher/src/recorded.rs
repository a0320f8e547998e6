//! Inventories of recorded machines, for tests.

use rlaunch_bootstrap::inventory::Inventory;
use std::path::Path;

/// Returns the inventory of the machine recorded in `worker/fixtures/NAME.tree`. The agent's tests keep the
/// inventory in `NAME.json` beside it.
pub(crate) fn inventory(name: &str) -> Inventory {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/fixtures");
    let text = std::fs::read(fixtures.join(name).with_extension("json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}
