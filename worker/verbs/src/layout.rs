//! Test that the structures which this crate passes to rdma-core have the layout of rdma-core's
//! headers. It compiles and runs a C program that prints sizes and offsets, and compares the output
//! with the Rust bindings.

use rdma_sys::*;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lists pairs of a C expression for a size or an offset, and its value in the Rust bindings.
macro_rules! layouts {
    ($($name:ident { $($field:ident => $c:literal),* $(,)? })*) => {
        vec![$(
            (format!("sizeof(struct {})", stringify!($name)), size_of::<$name>()),
            $(
                (
                    format!("offsetof(struct {}, {})", stringify!($name), $c),
                    offset_of!($name, $field),
                ),
            )*
        )*]
    };
}

fn rust() -> Vec<(String, usize)> {
    layouts! {
        ibv_wc {
            wr_id => "wr_id", status => "status", opcode => "opcode", vendor_err => "vendor_err",
            byte_len => "byte_len", qp_num => "qp_num", wc_flags => "wc_flags",
        }
        ibv_sge { addr => "addr", length => "length", lkey => "lkey" }
        ibv_send_wr {
            wr_id => "wr_id", next => "next", sg_list => "sg_list", num_sge => "num_sge",
            opcode => "opcode", send_flags => "send_flags", wr => "wr", qp_type => "qp_type",
        }
        ibv_recv_wr {
            wr_id => "wr_id", next => "next", sg_list => "sg_list", num_sge => "num_sge",
        }
        ibv_global_route {
            dgid => "dgid", flow_label => "flow_label", sgid_index => "sgid_index",
            hop_limit => "hop_limit", traffic_class => "traffic_class",
        }
        ibv_ah_attr {
            grh => "grh", dlid => "dlid", sl => "sl", is_global => "is_global",
            port_num => "port_num",
        }
        ibv_qp_attr {
            qp_state => "qp_state", path_mtu => "path_mtu", rq_psn => "rq_psn", sq_psn => "sq_psn",
            dest_qp_num => "dest_qp_num", qp_access_flags => "qp_access_flags",
            ah_attr => "ah_attr", pkey_index => "pkey_index", max_rd_atomic => "max_rd_atomic",
            max_dest_rd_atomic => "max_dest_rd_atomic", min_rnr_timer => "min_rnr_timer",
            port_num => "port_num", timeout => "timeout", retry_cnt => "retry_cnt",
            rnr_retry => "rnr_retry",
        }
        ibv_qp_init_attr {
            send_cq => "send_cq", recv_cq => "recv_cq", cap => "cap", qp_type => "qp_type",
        }
        ibv_qp_cap {
            max_send_wr => "max_send_wr", max_recv_wr => "max_recv_wr",
            max_send_sge => "max_send_sge", max_recv_sge => "max_recv_sge",
            max_inline_data => "max_inline_data",
        }
        ibv_async_event { element => "element", event_type => "event_type" }
        ibv_comp_channel { fd => "fd" }
        ibv_context { device => "device", async_fd => "async_fd" }
        rdma_event_channel { fd => "fd" }
        rdma_cm_id { verbs => "verbs", qp => "qp", route => "route" }
        rdma_cm_event { id => "id", event => "event", status => "status", param => "param" }
        rdma_conn_param {
            private_data => "private_data", private_data_len => "private_data_len",
            responder_resources => "responder_resources", initiator_depth => "initiator_depth",
            retry_count => "retry_count", rnr_retry_count => "rnr_retry_count",
        }
        ibv_qp { qp_num => "qp_num" }
        ibv_mr { lkey => "lkey", rkey => "rkey" }
        ibv_device { node_type => "node_type", transport_type => "transport_type" }
        ibv_device_attr {
            max_qp => "max_qp", max_qp_wr => "max_qp_wr", max_cqe => "max_cqe",
            max_qp_rd_atom => "max_qp_rd_atom", max_qp_init_rd_atom => "max_qp_init_rd_atom",
        }
        ibv_port_attr {
            state => "state", active_mtu => "active_mtu", gid_tbl_len => "gid_tbl_len",
            lid => "lid", link_layer => "link_layer", flags => "flags",
        }
        ibv_gid_entry {
            gid => "gid", gid_index => "gid_index", gid_type => "gid_type",
            ndev_ifindex => "ndev_ifindex",
        }
    }
}

/// Tells whether the Rust structure may be larger than the C structure of this `sizeof` expression.
/// Such structures grow with versions of rdma-core. This crate reserves the newer size and passes
/// it to libibverbs.
fn may_be_larger(expression: &str) -> bool {
    expression == "sizeof(struct ibv_port_attr)" || expression == "sizeof(struct ibv_device_attr)"
}

/// Returns the folder of the headers from which the bindings were generated. The folder is in the
/// package of the bindings.
fn headers() -> PathBuf {
    let words = ["metadata", "--format-version", "1", "--offline"];
    let printed = Command::new(env!("CARGO")).args(words).output().unwrap().stdout;
    let metadata: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "rdma-mummy-sys").unwrap();
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    manifest.with_file_name("rdma-core-mummy").join("include")
}

#[test]
fn structures_are_those_of_the_headers() {
    let scratch = std::env::temp_dir().join(format!("rlaunch-layout-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let mut source =
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n"
            .to_owned();
    let rust = rust();
    for (expression, _) in &rust {
        writeln!(source, "printf(\"%zu\\n\", (size_t) {expression});").unwrap();
    }
    source += "return 0; }\n";
    let (file, program) = (scratch.join("layout.c"), scratch.join("layout"));
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-I").arg(headers()).arg(&file).arg("-o").arg(&program);
    let compiled = compiler.output().unwrap();
    let errors = String::from_utf8_lossy(&compiled.stderr).into_owned();
    assert!(compiled.status.success(), "{errors}");
    let printed = Command::new(&program).output().unwrap().stdout;
    std::fs::remove_dir_all(&scratch).unwrap();
    let printed = String::from_utf8(printed).unwrap();
    let c: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(c.len(), rust.len());
    for ((expression, rust), c) in rust.iter().zip(c) {
        let fits = *rust == c || (may_be_larger(expression) && *rust >= c);
        assert!(fits, "{expression} is {c} in C and {rust} in Rust");
    }
}
