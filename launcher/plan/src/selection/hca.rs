//! `--hca`: RDMA ports that may be used, in the syntax of NCCL_IB_HCA (NCCL, src/misc/utils.cc):
//! `[^][=]DEVICE[:PORT],…`.
//!
//! `^` excludes the listed ports. `=` compares whole device names; without it, a listed name is a prefix, so
//! that `mlx5_1` matches `mlx5_10`. The third and fourth field of NCCL's syntax, rail and plane, are accepted
//! but ignored.

use rlaunch_bootstrap::inventory::rdma::{Port, RdmaDevice};
use std::str::FromStr;

/// Filter of RDMA ports, parsed from `--hca`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaFilter {
    excludes: bool,
    exact: bool,
    /// Names of devices, or prefixes of names unless `exact`, each with a port number or `None` for all
    /// ports.
    entries: Vec<(String, Option<u8>)>,
}

/// Maximum number of entries, the same as in NCCL.
const MAX_ENTRIES: usize = 32;

impl FromStr for HcaFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<HcaFilter, String> {
        let (excludes, rest) = match text.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (exact, rest) = match rest.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let entries: Vec<_> = rest.split(',').map(entry).collect::<Result<_, _>>()?;
        if entries.len() > MAX_ENTRIES {
            return Err(format!("at most {MAX_ENTRIES} devices, as NCCL has it"));
        }
        Ok(HcaFilter { excludes, exact, entries })
    }
}

fn entry(text: &str) -> Result<(String, Option<u8>), String> {
    let mut parts = text.split(':');
    let device = parts.next().unwrap_or_default();
    if device.is_empty() {
        return Err("devices like mlx5_0 or mlx5_0:1, with commas between".to_owned());
    }
    let port = parts.next().map(str::parse).transpose();
    let port = port.ok().filter(|port| *port != Some(0));
    Ok((device.to_owned(), port.ok_or_else(|| format!("`{text}`: ports are numbers from 1"))?))
}

impl HcaFilter {
    /// Tells whether a port may be used.
    pub fn allows(&self, device: &RdmaDevice, port: &Port) -> bool {
        let names = |(name, number): &(String, Option<u8>)| {
            let is_device = match self.exact {
                true => device.name == *name,
                false => device.name.starts_with(name.as_str()),
            };
            is_device && number.is_none_or(|number| number == port.number)
        };
        self.entries.iter().any(names) != self.excludes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::inventory;

    /// Lists the ports, as `device:port`, that pass a filter. Each device has ports 1 and 2.
    fn allowed_ports(filter: &str, devices: &[&str]) -> Vec<String> {
        let filter: HcaFilter = filter.parse().unwrap();
        let template = inventory("connectx3").rdma.remove(0);
        let mut passed = Vec::new();
        for name in devices {
            let device = RdmaDevice { name: (*name).into(), ..template.clone() };
            let ports = device.ports.iter().filter(|port| filter.allows(&device, port));
            passed.extend(ports.map(|port| format!("{name}:{}", port.number)));
        }
        passed
    }

    #[test]
    fn nccls_grammar_is_understood() {
        let devices = ["mlx5_1", "mlx5_10", "irdma0"];
        assert_eq!(
            allowed_ports("mlx5_1", &devices),
            ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1", "mlx5_10:2"]
        );
        assert_eq!(allowed_ports("=mlx5_1", &devices), ["mlx5_1:1", "mlx5_1:2"]);
        assert_eq!(allowed_ports("=mlx5_1:2,irdma0:1", &devices), ["mlx5_1:2", "irdma0:1"]);
        assert_eq!(allowed_ports("^mlx5", &devices), ["irdma0:1", "irdma0:2"]);
        assert_eq!(
            allowed_ports("^=mlx5_1,irdma0:2", &devices),
            ["mlx5_10:1", "mlx5_10:2", "irdma0:1"]
        );
        assert_eq!(allowed_ports("mlx5_10:1:3:0", &devices), ["mlx5_10:1"]);
    }

    #[test]
    fn what_names_no_device_is_refused() {
        for text in ["", "^", "=", "mlx5_0,", "mlx5_0:x", "mlx5_0:0", ":1"] {
            assert!(text.parse::<HcaFilter>().is_err(), "{text:?}");
        }
        assert!(vec!["a"; 33].join(",").parse::<HcaFilter>().is_err());
    }
}
