//! Information about RDMA devices from the guests' own tools.

use crate::support::Field;
use serde_json::Value;
use std::collections::BTreeMap;

/// Device as `ibv_devinfo -v` describes it. All devices of the guests have one port.
#[derive(Debug, Default)]
pub(crate) struct Described {
    fields: BTreeMap<String, String>,
    /// Indices, values and kinds of the port's GIDs.
    pub(crate) gids: Vec<(u64, String, String)>,
}

impl Described {
    /// Returns the value of a field, without the number in parentheses that may follow it.
    pub(crate) fn field(&self, name: &str) -> &str {
        let value = self.fields.get(name).unwrap_or_else(|| panic!("no {name}: {self:?}"));
        value.split(" (").next().unwrap_or(value)
    }
}

/// Returns all devices of a guest by name.
pub(crate) fn devices(field: &Field, guest: &str) -> BTreeMap<String, Described> {
    parse(&field.on(guest, "ibv_devinfo -v"))
}

fn parse(text: &str) -> BTreeMap<String, Described> {
    let mut devices: BTreeMap<String, Described> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("GID[") {
            let (index, rest) = rest.split_once("]:").unwrap();
            let (value, kind) = rest.trim().split_once(", ").unwrap();
            let gid = (index.trim().parse().unwrap(), value.to_owned(), kind.to_owned());
            devices.entry(name.clone()).or_default().gids.push(gid);
        } else if let Some((key, value)) = line.split_once(':') {
            if key == "hca_id" {
                name = value.trim().to_owned();
            }
            let device = devices.entry(name.clone()).or_default();
            device.fields.insert(key.to_owned(), value.trim().to_owned());
        }
    }
    devices
}

/// Returns the links of a guest, as `rdma link` lists them, by device.
pub(crate) fn links(field: &Field, guest: &str) -> BTreeMap<String, Value> {
    let listed: Vec<Value> = serde_json::from_str(&field.on(guest, "rdma -j link")).unwrap();
    let by_name = |link: Value| (link["ifname"].as_str().unwrap().to_owned(), link);
    listed.into_iter().map(by_name).collect()
}
