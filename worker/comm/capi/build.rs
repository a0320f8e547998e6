//! Programs remember the library by its name, not by where it was when they were linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librlaunch.so");
}
