//! Loads the configuration: defaults, overridden by a TOML file, overridden by the command line.
//! Every value is checked here, once; an error names the file, the key and the value.

pub mod cli;
mod document;
mod faults;
mod identity;
mod images;
mod listen;
mod logs;
mod metrics;
mod networks;
mod quarantine;
mod retention;
mod secret_providers;
mod self_test;
mod traces;
mod transfers;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use executor_core::bridge::NetworksSettings;
use executor_core::capacity::Amount;
use executor_core::identity::IdentitySettings;
use executor_core::limits::{LOG_RATE_MAX, OOM_SCORE_MAX};
use executor_core::plan::{HostDevice, HostPathRule, HostVolume};
use executor_core::settings::{
    AppArmor, Bytes, LauncherSettings, SectionDigests, Unusable, WARM_POOL_OLD, WarmPoolSettings, section_digests,
};
use executor_core::validate::{
    CAPABILITIES, Draft, Policy, check_apparmor_profiles, check_cdi_devices, check_cdi_spec_dirs, check_cgroup_keys,
    check_cgroup_parents, check_device_paths, check_host_devices, check_host_paths, check_host_volumes, check_log_dirs,
    check_network_namespaces, check_ulimit_max, validate,
};
use serde::Deserialize;

use self::document::Document;
use self::faults::Faults;
use crate::access::rules::RuleSet;
use crate::config::cli::{Args, CONFIG_DEFAULT, LogFormat, LogLevel};
use crate::model::quarantine::PhaseLimits;
use crate::paths::Paths;
pub use self_test::SelfTestSettings;

pub use listen::TcpSettings;
pub(crate) use logs::journal_field;
pub use logs::{LogSettings, SyslogAddress, SyslogSettings};
pub(crate) use metrics::label_name;
pub use metrics::{MetricsAddress, MetricsSettings};
pub use retention::RetentionSettings;
pub use traces::{TraceProtocol, TraceSettings};

/// Maximum length of a socket path, in bytes.
const SOCKET_PATH_MAX: usize = 107;
/// Maximum value of the connection limit.
const CONNECTIONS_MAX: usize = 100_000;
/// Maximum size of a request without its files, in bytes.
const MESSAGE_ROOM: u64 = 1 << 20;
/// Lower bound of the default maximum request size, in bytes.
const MESSAGE_MIN: u64 = 2 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    /// The file is not valid TOML, or has unknown keys or values of the wrong type.
    #[error("{}: {}", .0.display(), .1)]
    Form(PathBuf, Box<toml::de::Error>),
    #[error("{origin}: {key} = {value}: {why}")]
    Value {
        /// File name, or the command line.
        origin: String,
        /// Key with its table, such as `policy.default_pids`.
        key: Cow<'static, str>,
        /// Value in the file or on the command line.
        value: String,
        why: String,
    },
    /// Several values are invalid.
    #[error("{}", lines(.0))]
    Several(Vec<ConfigError>),
    /// The host's memory size cannot be determined.
    #[error("cannot determine the host's memory: set capacity.memory_bytes")]
    Host,
}

impl ConfigError {
    /// Returns all recorded errors as one error, or `Ok` if there are no errors.
    fn all(mut faults: Vec<Self>) -> Result<(), Self> {
        match faults.len() {
            0 => Ok(()),
            1 => Err(faults.remove(0)),
            _ => Err(Self::Several(faults)),
        }
    }
}

fn lines(faults: &[ConfigError]) -> String {
    // The TOML library's errors end with a newline.
    faults.iter().map(|fault| fault.to_string().trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    run_dir: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    listen: listen::Listen,
    launcher_program: Option<PathBuf>,
    keep_root: bool,
    user: Option<String>,
    allow_group: Option<String>,
    log_format: Option<LogFormat>,
    log_level: Option<LogLevel>,
    policy: Policy,
    capacity: Capacity,
    server: Server,
    retention: retention::Retention,
    images: images::Images,
    transfers: transfers::Transfers,
    metrics: metrics::Metrics,
    traces: traces::Traces,
    logs: logs::Logs,
    secret_providers: Vec<executor_providers::ProviderConfig>,
    /// Table that executord and the launcher share. It limits the names in certificates.
    identity: IdentitySettings,
    volumes: Vec<HostVolume>,
    devices: Vec<HostDevice>,
    apparmor: AppArmor,
    callers: Vec<listen::Caller>,
    /// Launcher table, read here to report unknown keys and invalid values, and for the log size. The log size is
    /// reported to clients that missed output.
    launcher: LauncherSettings,
    /// Launcher table, which is read here to report errors.
    #[serde(alias = "shells")]
    warm_pool: WarmPoolSettings,
    networks: NetworksSettings,
    self_test: self_test::SelfTest,
    quarantine: quarantine::QuarantineAfter,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Capacity {
    memory_bytes: Option<Bytes>,
    disk_bytes: Option<Bytes>,
    containers: Option<u64>,
    pids: Option<u64>,
    reserved_percent: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Server {
    connections: usize,
    streams_per_connection: u32,
    message_bytes_max: Option<Bytes>,
}

impl Default for Server {
    fn default() -> Self {
        Self { connections: 256, streams_per_connection: 256, message_bytes_max: None }
    }
}

/// The current configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Command line, with an absolute path of the configuration file.
    pub args: Args,
    /// Configuration file, if one was read.
    pub file: Option<PathBuf>,
    /// Text of the configuration file.
    pub text: String,
    /// Directories of the daemon.
    pub paths: Paths,
    /// Path of the control plane's socket.
    pub listen: PathBuf,
    /// TCP listener, if configured.
    pub tcp: Option<TcpSettings>,
    /// Path of the launcher program; if unset, `executor-launcher` next to executord.
    pub launcher: Option<PathBuf>,
    /// True if root's privileges are kept while serving.
    pub keep_root: bool,
    /// User to run as.
    pub user: Option<String>,
    /// Group whose members may call the daemon.
    pub allow_group: Option<String>,
    pub log_format: LogFormat,
    /// Minimum log level.
    pub log_level: LogLevel,
    /// True if containers, launcher and directories are removed on exit.
    pub ephemeral: bool,
    /// Policy that requests are validated against.
    pub policy: Policy,
    /// Built-in networks by name.
    pub networks: networks::BridgeNetworks,
    /// Capacity of the node.
    pub capacity: Amount,
    /// Maximum percentage of the capacity that one caller's reservations may hold.
    pub reserved_percent: u64,
    pub images: executor_images::Settings,
    /// Download and upload settings.
    pub transfers: crate::store::artifacts::Settings,
    pub metrics: MetricsSettings,
    /// Trace settings, if traces are exported.
    pub traces: Option<TraceSettings>,
    pub logs: LogSettings,
    pub secret_providers: Vec<executor_providers::ProviderConfig>,
    /// Settings of container certificates.
    pub identity: IdentitySettings,
    /// Limits of the control plane's socket.
    pub bounds: Bounds,
    /// Retention limits of completed containers and events.
    pub retention: RetentionSettings,
    /// Maximum size of a container's log file before it is rotated, in bytes.
    pub log_bytes_max: u64,
    pub self_test: SelfTestSettings,
    /// Time limits of lifecycle phases, after which a container is quarantined.
    pub phase_limits: PhaseLimits,
}

/// Limits of a listening socket.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of concurrent connections.
    pub connections: usize,
    /// Maximum number of concurrent calls per connection.
    pub streams: u32,
    /// Maximum size of a request message, in bytes.
    pub message_bytes: usize,
}

impl Config {
    /// Loads the file and applies the command line.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if the file cannot be read or a value is invalid.
    pub fn load(args: &Args) -> Result<Self, ConfigError> {
        let path = args.config.clone().unwrap_or_else(|| CONFIG_DEFAULT.into());
        match read(&path) {
            Ok(text) => Self::from_text(args, &path, &text),
            Err(ConfigError::Read(_, error))
                if error.kind() == std::io::ErrorKind::NotFound && args.config.is_none() =>
            {
                resolve(args, File::default(), None, String::new())
            }
            Err(error) => Err(error),
        }
    }

    fn from_text(args: &Args, path: &Path, text: &str) -> Result<Self, ConfigError> {
        let (document, file, mut faults) = Document::read(path, text)?;
        match resolve(args, file, Some(path.to_owned()), text.to_owned()) {
            Ok(config) => ConfigError::all(faults).map(|()| config),
            Err(error) => {
                faults.extend(error.located(&document));
                Err(ConfigError::Several(faults))
            }
        }
    }

    /// Returns the line that `executord --check-config` prints about a valid configuration.
    pub fn verdict(&self) -> String {
        let path = self.watched_file().display();
        if self.file.is_some() { format!("{path}: OK") } else { format!("{path}: OK: file not found, defaults apply") }
    }

    /// Returns the path of the watched configuration file: the file that was read, or the default path.
    pub(crate) fn watched_file(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(CONFIG_DEFAULT))
    }

    /// Rereads the file. A missing default file is accepted if it was missing before.
    ///
    /// # Errors
    /// Returns [`ConfigError::Read`] if the file cannot be read.
    pub(crate) fn read_again(&self) -> Result<String, ConfigError> {
        match read(self.watched_file()) {
            Err(ConfigError::Read(_, error)) if self.file.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                Ok(String::new())
            }
            read => read,
        }
    }

    /// Returns the digests of the sections that the launcher also reads.
    pub(crate) fn section_digests(&self) -> SectionDigests {
        // The text has already been parsed once.
        toml::from_str(&self.text).map(|document| section_digests(&document)).unwrap_or_default()
    }

    /// Returns a warning for each deprecated key in the file. A later version will reject these keys.
    pub fn warnings(&self) -> Vec<String> {
        let path = self.watched_file().display();
        let old = self.section_digests().contains_key(WARM_POOL_OLD);
        let renamed = || format!("{path}: [{WARM_POOL_OLD}] ready is an old name; use [warm_pool] size");
        old.then(renamed).into_iter().collect()
    }

    /// Returns the configuration for another text of the file.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if a value is invalid.
    pub(crate) fn with_text(&self, text: &str) -> Result<Self, ConfigError> {
        Self::from_text(&self.args, self.watched_file(), text)
    }

    /// Returns the rules in the file: callers, and the grants of each secret provider.
    pub fn rules(&self) -> RuleSet {
        let grants = self.secret_providers.iter().map(|provider| (provider.name.clone(), provider.allow.clone()));
        let callers = self.tcp.as_ref().map(|tcp| tcp.callers.clone()).unwrap_or_default();
        RuleSet { callers, grants: grants.collect() }
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|error| ConfigError::Read(path.to_owned(), error))
}

fn resolve(args: &Args, mut file: File, path: Option<PathBuf>, text: String) -> Result<Config, ConfigError> {
    let origin = path.as_ref().map_or_else(|| "configuration".to_owned(), |path| path.display().to_string());
    let check = Check { origin };
    // An ephemeral daemon runs for its own user, who already has access to the host's network.
    file.policy.allow_host_network |= args.ephemeral;
    // An ephemeral daemon may also use any image if `--config` is not set.
    let mut faults = Faults::default();
    let images = faults.record(file.images.policy(&check, args.ephemeral && args.config.is_none()));
    file.policy.images = images.unwrap_or_default();
    check.policy(&file.policy, &mut faults);
    faults.record(check.usable(file.launcher.check()));
    faults.record(check.usable(file.warm_pool.check()));
    let networks = networks::resolve(&check, &file, &mut faults);
    let run_dir = args.run_dir.clone().or(file.run_dir).unwrap_or_else(|| "/run/executor".into());
    let state_dir = args.state_dir.clone().or(file.state_dir).unwrap_or_else(|| "/var/lib/executor".into());
    faults.record(check.absolute("run_dir", &run_dir));
    faults.record(check.absolute("state_dir", &state_dir));
    let own = [&*run_dir, &*state_dir];
    let usable = |volumes: &[HostVolume]| check_host_volumes(volumes, &own);
    check.entries("volumes", &file.volumes, |volume| volume.name.clone(), usable, &mut faults);
    let shown = |rule: &HostPathRule| rule.path.display().to_string();
    let usable = |rules: &[HostPathRule]| check_host_paths(rules, &own);
    check.entries("policy.host_paths", &file.policy.host_paths, shown, usable, &mut faults);
    let shown = |path: &PathBuf| path.display().to_string();
    let usable = |dirs: &[PathBuf]| check_log_dirs(dirs, &own);
    check.entries("policy.log_dirs", &file.policy.log_dirs, shown, usable, &mut faults);
    let overlaps = |parents: &[PathBuf]| check_cgroup_parents(parents, &file.launcher.cgroup_parent);
    check.entries("policy.cgroup_parents", &file.policy.cgroup_parents, shown, overlaps, &mut faults);
    file.policy.volumes = file.volumes;
    check.entries("devices", &file.devices, |device| device.name.clone(), check_host_devices, &mut faults);
    check.entries("apparmor.profiles", &file.apparmor.profiles, String::clone, check_apparmor_profiles, &mut faults);
    (file.policy.devices, file.policy.apparmor_profiles) = (file.devices, file.apparmor.profiles);
    let tcp = faults.record(file.listen.tcp.resolve(file.callers, &check));
    let listen = faults.record(check.socket(args.listen.as_ref().or(file.listen.unix.as_ref()), &run_dir));
    let containers = file.capacity.containers.unwrap_or(1000);
    let memory_bytes = file.capacity.memory_bytes.map_or_else(host_memory, |bytes| Ok(bytes.0))?;
    // Few containers reach their process limit. Therefore the default allows `capacity.containers` containers with the
    // default limit each, even if the sum exceeds the kernel's own limit.
    let pids = file.capacity.pids.unwrap_or_else(|| containers.saturating_mul(file.policy.default_pids));
    faults.record(check.at_least_one("capacity.containers", containers));
    faults.record(check.at_least_one("capacity.memory_bytes", memory_bytes));
    faults.record(check.at_least_one("capacity.pids", pids));
    let disk_bytes = file.capacity.disk_bytes.map_or_else(|| disk_of(&state_dir), |bytes| bytes.0);
    faults.record(check.at_least_one("capacity.disk_bytes", disk_bytes));
    let reserved_percent = file.capacity.reserved_percent.unwrap_or(50);
    if !(1..=100).contains(&reserved_percent) {
        faults.add(check.fault("capacity.reserved_percent", &reserved_percent, "must be 1 to 100"));
    }
    faults.record(check.at_least_one("server.connections", file.server.connections as u64));
    if file.server.connections > CONNECTIONS_MAX {
        let why = format!("must be at most {CONNECTIONS_MAX}");
        faults.add(check.fault("server.connections", &file.server.connections, &why));
    }
    faults.record(check.at_least_one("server.streams_per_connection", u64::from(file.server.streams_per_connection)));
    let message_least = file.policy.files_bytes_max.saturating_add(MESSAGE_ROOM).max(MESSAGE_MIN);
    let message_bytes_max = file.server.message_bytes_max.map_or(message_least, |bytes| bytes.0);
    if !(1 << 16..=1 << 30).contains(&message_bytes_max) {
        faults.add(check.fault("server.message_bytes_max", &message_bytes_max, "must be 65536 to 1073741824"));
    }
    let paths = Paths { run_dir, state_dir };
    let transfers = faults.record(file.transfers.resolve(&check));
    let self_test = faults.record(file.self_test.resolve(&check));
    let phase_limits = faults.record(file.quarantine.resolve(&check));
    let metrics = faults.record(file.metrics.resolve(&check));
    let traces = faults.record(file.traces.resolve(&check));
    let identity = faults.record(identity::resolve(&check, file.identity));
    let logs = faults.record(file.logs.resolve(&check));
    let secret_providers = faults.record(secret_providers::resolve(&check, file.secret_providers));
    let images = faults.record(file.images.resolve(&check, &paths, file.policy.images.clone()));
    let retention = faults.record(file.retention.resolve(&check, &paths.state_dir));
    ConfigError::all(faults.0)?;
    // The errors of missing parts have already been recorded.
    let missing = || ConfigError::Several(Vec::new());
    Ok(Config {
        networks,
        retention: retention.ok_or_else(missing)?,
        transfers: transfers.ok_or_else(missing)?,
        self_test: self_test.ok_or_else(missing)?,
        phase_limits: phase_limits.ok_or_else(missing)?,
        metrics: metrics.ok_or_else(missing)?,
        traces: traces.ok_or_else(missing)?,
        identity: identity.ok_or_else(missing)?,
        logs: logs.ok_or_else(missing)?,
        secret_providers: secret_providers.ok_or_else(missing)?,
        images: images.ok_or_else(missing)?,
        paths,
        listen: listen.ok_or_else(missing)?,
        tcp: tcp.ok_or_else(missing)?,
        launcher: args.launcher.clone().or(file.launcher_program),
        keep_root: args.keep_root || (file.keep_root && args.user.is_none()),
        user: args.user.clone().or(file.user),
        allow_group: args.allow_group.clone().or(file.allow_group),
        log_format: args.log_format.or(file.log_format).unwrap_or_default(),
        log_level: args.log_level.or(file.log_level).unwrap_or_default(),
        ephemeral: args.ephemeral,
        policy: file.policy,
        capacity: Amount { memory_bytes, pids, containers, disk_bytes },
        reserved_percent,
        bounds: Bounds {
            connections: file.server.connections,
            streams: file.server.streams_per_connection,
            message_bytes: usize::try_from(message_bytes_max).unwrap_or(usize::MAX),
        },
        log_bytes_max: file.launcher.log_bytes(),
        file: path.map(absolute),
        args: Args { config: args.config.clone().map(absolute), ..args.clone() },
        text,
    })
}

/// Makes a path absolute, so that later uses do not depend on the working directory. Returns the path unchanged if it
/// is empty or the working directory is unknown.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

struct Check {
    origin: String,
}

impl Check {
    fn fault(&self, key: impl Into<Cow<'static, str>>, value: &dyn std::fmt::Display, why: &str) -> ConfigError {
        ConfigError::Value {
            origin: self.origin.clone(),
            key: key.into(),
            value: value.to_string(),
            why: why.to_owned(),
        }
    }

    fn absolute(&self, key: impl Into<Cow<'static, str>>, path: &Path) -> Result<(), ConfigError> {
        if path.is_absolute() { Ok(()) } else { Err(self.fault(key, &path.display(), "must be an absolute path")) }
    }

    /// Checks each entry of a list, so that each error has the line of its entry, and then the list as a whole.
    fn entries<T>(
        &self,
        key: &'static str,
        list: &[T],
        shown: impl Fn(&T) -> String,
        check: impl Fn(&[T]) -> Result<(), String>,
        faults: &mut Faults,
    ) {
        let before = faults.0.len();
        for (index, entry) in list.iter().enumerate() {
            if let Err(why) = check(std::slice::from_ref(entry)) {
                faults.add(self.fault(format!("{key}[{index}]"), &shown(entry), &why));
            }
        }
        if faults.0.len() == before
            && let Err(why) = check(list)
        {
            let all: Vec<String> = list.iter().map(shown).collect();
            faults.add(self.fault(key, &all.join(", "), &why));
        }
    }

    /// Returns the path of the socket for local clients.
    fn socket(&self, address: Option<&String>, run_dir: &Path) -> Result<PathBuf, ConfigError> {
        let listen = match address {
            None => run_dir.join("executor.sock"),
            Some(address) => match address.strip_prefix("unix://") {
                Some(path) if path.starts_with('/') => path.into(),
                _ => return Err(self.fault("listen", address, "must be unix:///ABSOLUTE/PATH")),
            },
        };
        if listen.as_os_str().len() > SOCKET_PATH_MAX {
            let why = format!("the socket path must be at most {SOCKET_PATH_MAX} bytes");
            return Err(self.fault("listen", &listen.display(), &why));
        }
        Ok(listen)
    }

    fn at_least_one(&self, key: &'static str, value: u64) -> Result<(), ConfigError> {
        if value > 0 { Ok(()) } else { Err(self.fault(key, &value, "must be at least 1")) }
    }

    fn usable(&self, checked: Result<(), Unusable>) -> Result<(), ConfigError> {
        checked.map_err(|Unusable { key, value, why }| self.fault(key, &value, &why))
    }

    /// Checks the policy, and records every error. The policy's defaults must pass the validation of requests.
    fn policy(&self, policy: &Policy, faults: &mut Faults) {
        faults.record(self.absolute("policy.files_root", &policy.files_root));
        if !policy.docker_socket.as_os_str().is_empty() {
            faults.record(self.absolute("policy.docker_socket", &policy.docker_socket));
        }
        faults.record(self.absolute("policy.cni_conf_dir", &policy.cni_conf_dir));
        for (key, dirs) in [("policy.rootfs_dirs", &policy.rootfs_dirs), ("policy.cni_bin_dirs", &policy.cni_bin_dirs)]
        {
            for (index, dir) in dirs.iter().enumerate() {
                faults.record(self.absolute(format!("{key}[{index}]"), dir));
            }
        }
        let shown = |path: &PathBuf| path.display().to_string();
        let namespaces = &policy.network_namespaces;
        self.entries("policy.network_namespaces", namespaces, shown, check_network_namespaces, faults);
        self.entries("policy.device_paths", &policy.device_paths, shown, check_device_paths, faults);
        self.entries("policy.cdi_devices", &policy.cdi_devices, String::clone, check_cdi_devices, faults);
        self.entries("policy.cgroup_keys", &policy.cgroup_keys, String::clone, check_cgroup_keys, faults);
        self.entries("policy.cdi_spec_dirs", &policy.cdi_spec_dirs, shown, check_cdi_spec_dirs, faults);
        for (index, name) in policy.capabilities_allowed.iter().enumerate() {
            if name != "ALL" && !CAPABILITIES.contains(&name.as_str()) {
                let why = "must be a capability in the kernel's spelling, such as CAP_KILL, or ALL";
                faults.add(self.fault(format!("policy.capabilities_allowed[{index}]"), name, why));
            }
        }
        if let Err(why) = policy.userns_pool() {
            faults.add(self.fault("policy.userns_pool_start", &policy.userns_pool_start, &why));
        }
        for (name, most) in &policy.ulimits_max {
            if let Err(why) = check_ulimit_max(name, *most) {
                faults.add(self.fault(format!("policy.ulimits_max.{name}"), most, &why));
            }
        }
        let (score, most) = (policy.oom_score_adj_min, OOM_SCORE_MAX);
        if !(-most..=most).contains(&score) {
            faults.add(self.fault("policy.oom_score_adj_min", &score, &format!("must be -{most} to {most}")));
        }
        if policy.swap_bytes_max < -1 {
            let why = "must be 0 or more, or -1 for no maximum";
            faults.add(self.fault("policy.swap_bytes_max", &policy.swap_bytes_max, why));
        }
        let most = LOG_RATE_MAX;
        for (key, value) in [
            ("policy.log_bytes_per_second_max", policy.log_bytes_per_second_max),
            ("policy.log_lines_per_second_max", policy.log_lines_per_second_max),
        ] {
            if !(-1..=most).contains(&value) {
                faults.add(self.fault(key, &value, &format!("must be 0 to {most}, or -1 for no maximum")));
            }
        }
        let bare = Policy { allow_host_rootfs: true, ..policy.clone() };
        let violations = validate(&Draft { id: "a", path: "/a", ..Draft::default() }, &bare).err().unwrap_or_default();
        let (log_bytes, log_lines) = (policy.default_log_bytes_per_second, policy.default_log_lines_per_second);
        let keys: [(&str, &'static str, &dyn std::fmt::Display); 7] = [
            ("limits.memory_bytes", "policy.default_memory_bytes", &policy.default_memory_bytes),
            ("limits.pids", "policy.default_pids", &policy.default_pids),
            ("action.run.resource_limits.nofile", "policy.default_nofile", &policy.default_nofile),
            ("grace_period", "policy.default_grace_seconds", &policy.default_grace_seconds),
            ("limits.disk_bytes", "policy.default_disk_bytes", &policy.default_disk_bytes),
            ("log_limits.bytes_per_second", "policy.default_log_bytes_per_second", &log_bytes),
            ("log_limits.lines_per_second", "policy.default_log_lines_per_second", &log_lines),
        ];
        for violation in violations {
            if let Some((_, key, value)) = keys.iter().find(|(field, ..)| *field == violation.field) {
                faults.add(self.fault(*key, *value, &violation.description));
            }
        }
    }
}

/// Returns the size of the file system that holds a directory, or will hold it; the maximum if the size is unknown.
fn disk_of(dir: &Path) -> u64 {
    let size = dir.ancestors().find_map(|dir| rustix::fs::statvfs(dir).ok());
    size.map_or(u64::MAX, |size| size.f_blocks.saturating_mul(size.f_frsize)).max(1)
}

fn host_memory() -> Result<u64, ConfigError> {
    let info = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion)] // narrower on other architectures
    let total = u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit));
    if total > 0 { Ok(total) } else { Err(ConfigError::Host) }
}

#[cfg(test)]
mod tests;
