//! Flags about service bindings: where they come from, and where in a container they go.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use executor_bindings::Profile;

use crate::source::mode;

/// Sources of bindings, and their translation to files.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Service bindings", group = ArgGroup::new("bindings").multiple(true))]
pub(crate) struct BindingArgs {
    /// VCAP_SERVICES (JSON) whose bindings become secret files: @FILE, @- (standard input) or @env:VARIABLE
    ///
    /// BINDING/ENTRY below executord's root for such files, as the Service Binding specification for Kubernetes has it.
    /// `agent-cli bindings show` tells which files that makes.
    #[arg(long, value_name = "SOURCE", group = "bindings")]
    pub(crate) vcap_services: Option<String>,
    /// Profile of the translation of VCAP_SERVICES [default: cc]
    #[arg(long, value_name = "PROFILE", value_enum, requires = "vcap_services", conflicts_with = "vcap_file")]
    pub(crate) binding_profile: Option<ProfileArg>,
    /// Deliver VCAP_SERVICES as one file instead, which VCAP_SERVICES_FILE_PATH names
    #[arg(long, requires = "vcap_services", conflicts_with = "bind")]
    pub(crate) vcap_file: bool,
    /// Directory of bindings in the Kubernetes layout (DIR/BINDING/ENTRY), or one binding (DIR/type); may be repeated
    ///
    /// Taken as it is, whatever bytes the entries hold. Names that begin with a dot (but for `.metadata`) and directories in
    /// a binding are left out, links are followed. Entries that describe the binding are not masked: those that `.metadata`
    /// lists, or label, name, plan and the like beside a label. Where there is a `..data`, as Kubernetes writes it, all is read through that.
    #[arg(long, value_name = "DIR", group = "bindings")]
    pub(crate) bind: Vec<PathBuf>,
}

/// [`BindingArgs`], and where in the container the files go.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Service bindings")]
pub(crate) struct DeliveryArgs {
    #[command(flatten)]
    pub(crate) from: BindingArgs,
    /// Directory of the container that the bindings lie in [default: executord's root, /etc/cf-service-bindings]
    ///
    /// `rotate` can add bindings to it where the root file system lacks it, and must be given the same as `run`.
    #[arg(long, value_name = "PATH", requires = "bindings")]
    pub(crate) binding_root: Option<String>,
    /// Permission bits of the bindings' files [default: 0600]
    ///
    /// For an image that starts as root and then becomes another user. `rotate` gives files that it adds 0600 without it.
    #[arg(long, value_name = "MODE", value_parser = mode, requires = "bindings")]
    pub(crate) binding_mode: Option<u32>,
    /// Group of the bindings' files, as for --file [default: the process's]
    #[arg(long, value_name = "GROUP", requires = "bindings")]
    pub(crate) binding_group: Option<String>,
}

/// Profile of the translation of VCAP_SERVICES, as `--binding-profile` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileArg {
    /// Cloud Controller as it is today: the provider is the label, attributes are files, empty ones are left out
    Cc,
    /// CF RFC 0030: the provider is the top-level key, an attribute's `_` becomes `-`
    Rfc,
    /// The buildpacks' library: type, provider and credentials only
    Libcnb,
}

impl From<ProfileArg> for Profile {
    fn from(profile: ProfileArg) -> Self {
        match profile {
            ProfileArg::Cc => Self::Cc,
            ProfileArg::Rfc => Self::Rfc,
            ProfileArg::Libcnb => Self::Libcnb,
        }
    }
}
