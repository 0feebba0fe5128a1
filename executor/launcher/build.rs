//! Lays the program out so that huge pages of its file can be mapped as such (`memfd_exec.rs`): each segment has the same
//! place within a huge page in the file and in memory.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,max-page-size=0x200000");
}
