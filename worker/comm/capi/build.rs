//! Sets the library's soname, so that programs find the library by its name and not by the path
//! where they were linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librlaunch.so");
}
