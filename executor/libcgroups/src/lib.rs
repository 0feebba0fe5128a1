//! Replaces youki's crate of the same name for libcontainer (`[patch.crates-io]` in the workspace's `Cargo.toml`).
//!
//! The launcher creates, limits and removes cgroups itself. libcontainer would look for version 1 hierarchies in 19
//! reads of the mount table for each container, which took a twelfth of a container's processor time. In this crate, a
//! process joins the cgroup that the launcher created, on version 2. All other methods do nothing or return an error
//! (docs/adr/0065-libcontainer-manages-no-cgroups.md).

pub mod common;
pub mod v2;
