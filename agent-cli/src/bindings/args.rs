//! Flags for the sources of service bindings and for their path in the container.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use executor_bindings::Profile;
use executor_cli_kit::source::mode;

/// Sources of bindings, and the profile of their translation.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Service bindings", group = ArgGroup::new("bindings").multiple(true))]
pub(crate) struct BindingArgs {
    /// VCAP_SERVICES (JSON) whose bindings become secret files: @FILE, @- (standard input) or @env:VARIABLE
    ///
    /// Creates BINDING/ENTRY below executord's root for such files, as the Service Binding specification for Kubernetes
    /// defines it. `agent-cli bindings show` lists the files.
    #[arg(long, value_name = "SOURCE", group = "bindings")]
    pub(crate) vcap_services: Option<String>,
    /// Profile of the VCAP_SERVICES translation [default: cc]
    #[arg(long, value_name = "PROFILE", value_enum, requires = "vcap_services", conflicts_with = "vcap_file")]
    pub(crate) binding_profile: Option<ProfileArg>,
    /// Deliver VCAP_SERVICES as a single file, whose path is in VCAP_SERVICES_FILE_PATH
    #[arg(long, requires = "vcap_services", conflicts_with = "bind")]
    pub(crate) vcap_file: bool,
    /// Directory of bindings in the Kubernetes layout (DIR/BINDING/ENTRY), or a single binding (DIR/type); can be
    /// repeated
    ///
    /// Entries are copied unchanged. Names that begin with a dot (except `.metadata`) and directories in a binding are
    /// skipped; links are followed. The entries `type`, `provider` and `.metadata` are not masked, and neither are the
    /// entries that `.metadata` lists only as metadata. If `.metadata` lists no entry, but there is an entry `label`,
    /// the entries label, plan, tags, name, binding_name, instance_name, binding_guid and instance_guid (also with `-`
    /// for `_`) are not masked. If there is a `..data` link, as Kubernetes writes it, everything is read through that
    /// link.
    #[arg(long, value_name = "DIR", group = "bindings")]
    pub(crate) bind: Vec<PathBuf>,
}

/// [`BindingArgs`], and the location of the files in the container.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Service bindings")]
pub(crate) struct DeliveryArgs {
    #[command(flatten)]
    pub(crate) from: BindingArgs,
    /// Directory of the bindings in the container [default: executord's root, /etc/cf-service-bindings]
    ///
    /// If the root file system lacks the directory, `rotate` can add bindings to the directory; `rotate` needs the same
    /// option as `run`.
    #[arg(long, value_name = "PATH", requires = "bindings")]
    pub(crate) binding_root: Option<String>,
    /// Permission bits of the bindings' files [default: 0600]
    ///
    /// 0640 with --binding-group, for example, lets an image that starts as root and then switches to another user read
    /// the files. Without this option, `rotate` adds files with mode 0600.
    #[arg(long, value_name = "MODE", value_parser = mode, requires = "bindings")]
    pub(crate) binding_mode: Option<u32>,
    /// Group of the bindings' files, as for --file [default: the process's group]
    #[arg(long, value_name = "GROUP", requires = "bindings")]
    pub(crate) binding_group: Option<String>,
}

/// Profile of the VCAP_SERVICES translation, as named by `--binding-profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileArg {
    /// Current Cloud Controller: the provider is the label, attributes are files, empty attributes are skipped
    Cc,
    /// CF RFC 0030: the provider is the top-level key, `_` in an attribute becomes `-`
    Rfc,
    /// The buildpacks' library: only type, provider and credentials
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
