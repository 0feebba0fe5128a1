//! Defines the command line, and reads the launcher's sections of the configuration file.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Parser;
use executor_core::bridge::{BridgeNetwork, NetworksSettings};
use executor_core::identity::IdentitySettings;
use executor_core::image::{ImagePolicy, ImageRules};
use executor_core::plan::{HostDevice, HostVolume};
use executor_core::settings::{
    AppArmor, LauncherSettings, SectionDigests, Unusable, WarmPoolSettings, section_digests,
};
use executor_core::validate::{
    Policy, check_apparmor_profiles, check_cdi_devices, check_cdi_spec_dirs, check_cgroup_keys, check_cgroup_parents,
    check_device_paths, check_host_devices, check_host_paths, check_host_volumes, check_log_dirs,
    check_network_namespaces, check_ulimit_max,
};
use serde::Deserialize;

/// Default path of the configuration.
const CONFIG_DEFAULT: &str = "/etc/executor/executor.toml";
/// Default directory of sockets and records.
pub(crate) const RUN_DIR_DEFAULT: &str = "/run/executor";

/// The executor's privileged process: forks a shim for each container and cleans up after shims.
///
/// Started by systemd, or by executord if no launcher is running. The launcher listens on RUN_DIR/launcher.sock for
/// executord only. If a shim dies, the launcher kills the processes of its container and records the container's exit.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "executor-launcher",
    version = executor_secrets::VERSION,
    about,
    after_help = "Exit status: 0 success, 1 failure, 2 usage error."
)]
pub(crate) struct Args {
    /// Directory of sockets and records of running containers
    #[arg(long, value_name = "DIR", default_value = RUN_DIR_DEFAULT)]
    pub run_dir: PathBuf,
    /// Directory of logs, exit records and upper layers
    #[arg(long, value_name = "DIR", default_value = "/var/lib/executor")]
    pub state_dir: PathBuf,
    /// Configuration file [default: /etc/executor/executor.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// User that executord runs as, by name or number; only this user and root are served
    #[arg(long, value_name = "USER", default_value = "executor")]
    pub daemon_user: String,
    /// Allow containers to use the host's network, regardless of the configuration
    #[arg(long)]
    pub allow_host_network: bool,
    /// Allow any image, regardless of the configuration
    #[arg(long)]
    pub allow_any_image: bool,
    /// Exit when no daemon is connected and no container is left
    #[arg(long)]
    pub exit_when_idle: bool,
    /// Remove RUN_DIR and STATE_DIR with all contents at exit
    #[arg(long)]
    pub ephemeral: bool,
    /// Write the manual page into DIR and exit
    #[cfg(feature = "manual")]
    #[arg(long, value_name = "DIR", hide = true)]
    pub generate_man: Option<PathBuf>,
}

/// Sections of the configuration file that the launcher reads. executord reads the whole file and reports unknown keys.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct Config {
    /// Limits on the options of requests.
    pub policy: Policy,
    /// Images that may run.
    pub images: ImageRules,
    /// Host directories that containers may mount.
    pub volumes: Vec<HostVolume>,
    /// Host devices that containers may use.
    pub devices: Vec<HostDevice>,
    /// AppArmor profiles that containers may use.
    pub apparmor: AppArmor,
    /// Settings of the section `[launcher]`.
    pub launcher: LauncherSettings,
    #[serde(alias = "shells")]
    pub warm_pool: WarmPoolSettings,
    /// Unchecked sections of the built-in bridge networks.
    pub networks: NetworksSettings,
    /// Built-in bridge networks, after the check of their sections.
    #[serde(skip)]
    pub bridges: BTreeMap<String, BridgeNetwork>,
    /// Settings for container certificates.
    pub identity: IdentitySettings,
    /// Digests of the sections of this file.
    #[serde(skip)]
    pub digests: SectionDigests,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the configuration {0}")]
    Read(PathBuf, #[source] io::Error),
    /// The file is not TOML, or a value has the wrong type.
    #[error("cannot parse the configuration {0}")]
    Parse(PathBuf, #[source] Box<toml::de::Error>),
    /// A value in the file is invalid.
    #[error("configuration {0}: {1}")]
    Value(PathBuf, String),
    /// The file is not a regular file, or a user other than root can change the file.
    #[error("configuration {0}: must be a regular file that is owned by root and writable only by root")]
    Foreign(PathBuf),
}

pub(crate) fn config(args: &Args) -> Result<Config, ConfigError> {
    read(args, |_| true)
}

/// Reads the configuration again in a running launcher. The file must belong to root, because the unprivileged daemon
/// chooses when the file is read.
pub(crate) fn config_again(args: &Args) -> Result<Config, ConfigError> {
    let is_roots = |file: &Metadata| file.is_file() && file.uid() == 0 && file.mode() & 0o022 == 0;
    read(args, is_roots)
}

fn read(args: &Args, is_trusted: impl FnOnce(&Metadata) -> bool) -> Result<Config, ConfigError> {
    let path = args.config.as_deref().unwrap_or(Path::new(CONFIG_DEFAULT));
    let failed = |error| ConfigError::Read(path.to_owned(), error);
    let text = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && args.config.is_none() => String::new(),
        Err(error) => return Err(failed(error)),
        Ok(file) if is_trusted(&file.metadata().map_err(failed)?) => io::read_to_string(file).map_err(failed)?,
        Ok(_) => return Err(ConfigError::Foreign(path.to_owned())),
    };
    let malformed = |error| ConfigError::Parse(path.to_owned(), Box::new(error));
    let mut config: Config = toml::from_str(&text).map_err(malformed)?;
    config.digests = section_digests(&toml::from_str(&text).map_err(malformed)?);
    config.policy.allow_host_network |= args.allow_host_network;
    config.policy.images = ImagePolicy::new(&config.images, args.allow_any_image)
        .map_err(|bad| ConfigError::Value(path.to_owned(), format!("images.allow: {bad}")))?;
    check_host_volumes(&config.volumes, &[&args.run_dir, &args.state_dir])
        .map_err(|why| ConfigError::Value(path.to_owned(), format!("volumes: {why}")))?;
    check_host_paths(&config.policy.host_paths, &[&args.run_dir, &args.state_dir])
        .map_err(|why| ConfigError::Value(path.to_owned(), format!("policy.host_paths: {why}")))?;
    check_device_paths(&config.policy.device_paths)
        .map_err(|why| ConfigError::Value(path.to_owned(), format!("policy.device_paths: {why}")))?;
    check_network_namespaces(&config.policy.network_namespaces)
        .map_err(|why| ConfigError::Value(path.to_owned(), format!("policy.network_namespaces: {why}")))?;
    config.policy.volumes = std::mem::take(&mut config.volumes);
    let fault = |key: &'static str| move |why: String| ConfigError::Value(path.to_owned(), format!("{key}: {why}"));
    check_host_devices(&config.devices).map_err(fault("devices"))?;
    config.policy.devices = std::mem::take(&mut config.devices);
    check_apparmor_profiles(&config.apparmor.profiles).map_err(fault("apparmor.profiles"))?;
    config.policy.apparmor_profiles = std::mem::take(&mut config.apparmor.profiles);
    let ulimits = &config.policy.ulimits_max;
    ulimits.iter().try_for_each(|(name, most)| check_ulimit_max(name, *most)).map_err(fault("policy.ulimits_max"))?;
    check_cdi_devices(&config.policy.cdi_devices).map_err(fault("policy.cdi_devices"))?;
    check_cdi_spec_dirs(&config.policy.cdi_spec_dirs).map_err(fault("policy.cdi_spec_dirs"))?;
    check_cgroup_parents(&config.policy.cgroup_parents, &config.launcher.cgroup_parent)
        .map_err(fault("policy.cgroup_parents"))?;
    check_log_dirs(&config.policy.log_dirs, &[&args.run_dir, &args.state_dir]).map_err(fault("policy.log_dirs"))?;
    check_cgroup_keys(&config.policy.cgroup_keys).map_err(fault("policy.cgroup_keys"))?;
    let checked =
        config.launcher.check().and_then(|()| config.warm_pool.check()).and_then(|()| config.identity.check());
    let unusable =
        |Unusable { key, value, why }| ConfigError::Value(path.to_owned(), format!("{key} = {value}: {why}"));
    checked.map_err(unusable)?;
    config.bridges = config.networks.check().map_err(|mut faults| unusable(faults.swap_remove(0)))?;
    config.warm_pool.check_network(config.bridges.keys()).map_err(unusable)?;
    Ok(config)
}
