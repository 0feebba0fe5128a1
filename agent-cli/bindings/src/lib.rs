//! Converts service bindings to the files that a process reads, from Cloud Foundry's VCAP_SERVICES or from a Kubernetes
//! directory.
//!
//! The input is text and bytes. The output is files with paths below one root, and the variable that holds the path of
//! the root. The caller adds both to a run request; the daemon does not support bindings. This crate opens no file,
//! does not block and prints nothing.
//!
//! ```text
//! VCAP_SERVICES --translate by Profile--> BINDING/ENTRY ...   SERVICE_BINDING_ROOT
//!               --one_file------------->  vcap_services       VCAP_SERVICES_FILE_PATH
//! directories   --Builder::binding----->  BINDING/ENTRY ...   SERVICE_BINDING_ROOT
//! ```
//! Contents are secrets: they are in buffers that are wiped on drop, and no `Debug` shows them. serde_json unescapes
//! strings into temporary buffers that are not wiped, so a process that uses this crate should exit soon or wipe freed
//! memory.
//!
//! Limits: VCAP_SERVICES has at most [`INPUT_MAX`] bytes; paths and contents of the final files have at most
//! [`BYTES_MAX`] bytes in total.

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

/// Maximum total number of bytes of paths and contents of all files (cloud_controller_ng,
/// `ServiceBindingFilesBuilder`).
pub const BYTES_MAX: u64 = 1_000_000;
/// Maximum size of VCAP_SERVICES, in bytes, including white space.
pub const INPUT_MAX: usize = 8 << 20;
/// Maximum nesting depth of values in VCAP_SERVICES.
pub const DEPTH_MAX: usize = 128;

/// Directory in which Cloud Foundry places bindings; the default root of relative paths.
pub const DEFAULT_ROOT: &str = "/etc/cf-service-bindings";
/// Entry by which SAP's readers recognize a binding. The entry lists the entries that are metadata and the entries that
/// are credentials.
pub const METADATA: &str = ".metadata";
/// The file of [`Layout::OneFile`].
pub const ONE_FILE: &str = "vcap_services";

/// Variable with the directory of bindings (Service Binding specification 1.1, "Workload Projection").
pub const SERVICE_BINDING_ROOT: &str = "SERVICE_BINDING_ROOT";
/// Variable with the path of the file of [`Layout::OneFile`].
pub const VCAP_SERVICES_FILE_PATH: &str = "VCAP_SERVICES_FILE_PATH";
/// Variable with the bindings as JSON, which the files replace.
pub const VCAP_SERVICES: &str = "VCAP_SERVICES";
