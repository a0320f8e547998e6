//! Sets the library's soname, so that programs find it by name and not by the path where it was
//! linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librlaunch.so");
}
