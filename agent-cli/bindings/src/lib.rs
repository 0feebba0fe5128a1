//! Service bindings: from Cloud Foundry's VCAP_SERVICES or a Kubernetes directory to the files that a process reads.
//!
//! A front end: input is text and bytes, output is files with paths below one root and the variable that names the
//! root. The caller lowers both to a run request; the daemon does not know bindings. This crate opens no file, does not
//! wait and prints nothing.
//!
//! ```text
//! VCAP_SERVICES --translate by Profile--> BINDING/ENTRY ...   SERVICE_BINDING_ROOT
//!               --one_file------------->  vcap_services       VCAP_SERVICES_FILE_PATH
//! directories   --Builder::binding----->  BINDING/ENTRY ...   SERVICE_BINDING_ROOT
//! ```
//! Contents are secrets: they are in buffers that are wiped on drop, and no `Debug` shows them. The temporary buffers
//! in which serde_json unescapes strings are not wiped: a process that uses this crate should exit soon or wipe freed
//! memory.
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

/// Maximum total number of bytes of paths and contents of all files (cloud_controller_ng,
/// `ServiceBindingFilesBuilder`).
pub const BYTES_MAX: u64 = 1_000_000;
/// Maximum number of bytes of a VCAP_SERVICES, including white space.
pub const INPUT_MAX: usize = 8 << 20;
/// Maximum nesting of values in a VCAP_SERVICES.
pub const DEPTH_MAX: usize = 128;

/// Directory in which Cloud Foundry puts bindings; the default root of relative paths.
pub const DEFAULT_ROOT: &str = "/etc/cf-service-bindings";
/// Entry by which SAP's readers recognize a binding: it lists which other entries are metadata and which are
/// credentials.
pub const METADATA: &str = ".metadata";
/// The file of [`Layout::OneFile`].
pub const ONE_FILE: &str = "vcap_services";

/// Variable with the directory of bindings (Service Binding specification 1.1, "Workload Projection").
pub const SERVICE_BINDING_ROOT: &str = "SERVICE_BINDING_ROOT";
/// Variable with the path of the one file.
pub const VCAP_SERVICES_FILE_PATH: &str = "VCAP_SERVICES_FILE_PATH";
/// Variable that the files replace.
pub const VCAP_SERVICES: &str = "VCAP_SERVICES";
