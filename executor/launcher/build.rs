//! Links the program so that the kernel can map it with huge pages (`memfd_exec.rs`): the file offset and the address
//! of each segment are equal modulo 2 MiB.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,max-page-size=0x200000");
}
