//! Service bindings, from Cloud Foundry's VCAP_SERVICES or a Kubernetes directory to the files that a process reads.
//!
//! A front end: what goes in are texts and bytes, what comes out are files with paths below one root and the variable
//! that names it. Whoever runs the process lowers both to a run request; the daemon knows none of the words here. No
//! file is opened here, nothing waits, nothing is printed.
//!
//! ```text
//! VCAP_SERVICES --translate by Profile--> BINDING/ENTRY ...   SERVICE_BINDING_ROOT
//!               --one_file------------->  vcap_services       VCAP_SERVICES_FILE_PATH
//! directories   --Builder::binding----->  BINDING/ENTRY ...   SERVICE_BINDING_ROOT
//! ```
//! Contents are secrets: they lie in buffers that are wiped when they are dropped, and no `Debug` shows them. What
//! serde_json unescapes a string in on the way is not wiped: a process that uses this ends soon, or wipes what it frees.
//!
//! Limits: [`INPUT_MAX`] bytes of VCAP_SERVICES, [`BYTES_MAX`] bytes over the paths and contents of the final files.

#![forbid(unsafe_code)]

mod bindings;
mod described;
mod json;
mod names;
mod profile;
mod rotation;
mod vcap;
mod violation;

pub use bindings::{Binding, BindingFile, Bindings, Builder, Layout};
pub use profile::Profile;
pub use rotation::{Present, obsolete};
pub use violation::{Refused, Violation};

/// Maximum bytes over paths and contents, all files together (cloud_controller_ng, `ServiceBindingFilesBuilder`).
pub const BYTES_MAX: u64 = 1_000_000;
/// Maximum bytes of a VCAP_SERVICES as it comes, with its white space.
pub const INPUT_MAX: usize = 8 << 20;
/// Deepest nesting of its values.
pub const DEPTH_MAX: usize = 128;

/// Directory in which Cloud Foundry puts bindings; the default root of relative paths.
pub const DEFAULT_ROOT: &str = "/etc/cf-service-bindings";
/// The entry by which SAP's readers know a binding: it tells which others describe it and which are credentials.
pub const METADATA: &str = ".metadata";
/// The one file of [`Layout::OneFile`].
pub const ONE_FILE: &str = "vcap_services";

/// Names the directory of bindings (Service Binding specification 1.1, "Workload Projection").
pub const SERVICE_BINDING_ROOT: &str = "SERVICE_BINDING_ROOT";
/// Names the one file.
pub const VCAP_SERVICES_FILE_PATH: &str = "VCAP_SERVICES_FILE_PATH";
/// Variable that both replace.
pub const VCAP_SERVICES: &str = "VCAP_SERVICES";
