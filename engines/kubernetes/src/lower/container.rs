//! Lowers containers: rules C21, C23 and C30. Other modules lower the parts of a container.

use std::collections::BTreeMap;

use executor_client::v1::{Action, PullPolicy, RunAction, RunRequest};
use executor_cri_api::v1::{ContainerConfig, NamespaceMode, PodSandboxConfig};
use tonic::Status;

use super::{LABEL, check_texts, digest, mounts, process, resources, sandbox, security};
use crate::failure::Violations;
use crate::secrets::RequestSecrets;

/// Inputs for the creation of a container, in addition to its request.
pub(crate) struct Origin<'a> {
    pub(crate) sandbox: &'a str,
    /// Request of the sandbox.
    pub(crate) sandbox_config: &'a PodSandboxConfig,
    /// Reference of the image's manifest.
    pub(crate) rootfs: &'a str,
    /// Path of the log; empty if the container has no log.
    pub(crate) log: &'a str,
    /// References of the manifests of image volumes, by image id.
    pub(crate) volumes: &'a BTreeMap<String, String>,
    pub(crate) secrets: &'a RequestSecrets,
    /// Minimum `oom_score_adj`. Lower values are raised to this value.
    pub(crate) oom_score_adj_min: i32,
    /// True if executord's policy allows all devices of the host.
    pub(crate) allows_all_devices: bool,
}

/// Lowers a container to a request, which has no id yet.
///
/// # Errors
/// Returns INVALID_ARGUMENT with every violation if a field is invalid or not supported.
pub(crate) fn lower(origin: &Origin<'_>, mut config: ContainerConfig) -> Result<RunRequest, Status> {
    let mut violations = Violations::default();
    let linux = config.linux.clone().unwrap_or_default();
    let (security, requested) = (linux.security_context.unwrap_or_default(), linux.resources.unwrap_or_default());
    let options = security.namespace_options.clone().unwrap_or_default();
    if security.privileged && !sandbox::security(origin.sandbox_config).privileged {
        violations.add("config.linux.security_context.privileged", "the sandbox is not privileged");
    }
    check_texts(&config.labels, &config.annotations, &mut violations);
    let labels = [(LABEL.to_owned(), String::new())].into();
    let mut secrets = RunAction::default();
    origin.secrets.lower(&config, &mut secrets, &mut violations);
    // The environment is not part of the digest: executord itself compares the environment, with a key.
    let envs = std::mem::take(&mut config.envs);
    let nonce = digest(&config);
    // Rule C28: a user namespace gets no device nodes of the host, which would belong to no user.
    let has_host_ids = !sandbox::has_id_map(origin.sandbox_config);
    let has_all_devices = security.privileged && origin.allows_all_devices && has_host_ids;
    let mut run = RunRequest {
        file_directories: origin.secrets.lower_directories(&config),
        labels,
        nonce,
        rootfs: origin.rootfs.to_owned(),
        pull_policy: PullPolicy::Never.into(),
        pod: origin.sandbox.to_owned(),
        hold: true,
        keep_environment: true,
        keep_until_deleted: true,
        log_file: origin.log.to_owned(),
        terminal: config.tty,
        stdin: config.stdin,
        stop_signal: process::signal_number(config.stop_signal()),
        volumes: mounts::lower(&config, origin.volumes, origin.secrets, security.privileged, &mut violations),
        devices: mounts::devices(&config, has_all_devices, &mut violations),
        limits: Some(resources::lower(&requested, &mut violations)),
        provider_tokens: origin.secrets.lower_tokens(&mut violations),
        oom_score_adj: oom_score_adj(requested.oom_score_adj, origin.oom_score_adj_min),
        ..RunRequest::default()
    };
    security::apply(&security, &mut run, &mut violations);
    if options.pid() == NamespaceMode::Target {
        match options.target_id.is_empty() {
            true => violations.add("config.linux.security_context.namespace_options.target_id", "required"),
            false => run.pid_of.clone_from(&options.target_id),
        }
    }
    let user = security::user(&security, &mut violations);
    let mut action = process::lower(config, envs);
    action.user = user;
    action.volume_mounted_files = secrets.volume_mounted_files;
    action.secret_environment = secrets.secret_environment;
    run.action = Some(Action { run: Some(action), ..Action::default() });
    violations.check()?;
    Ok(run)
}

/// Returns the `oom_score_adj` for executord, or `None` for 0, which is the default of executord.
fn oom_score_adj(requested: i64, min: i32) -> Option<i32> {
    let score = i32::try_from(requested).ok()?;
    Some(score.max(min)).filter(|&score| score != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_cri_api::v1::{KeyValue, LinuxContainerConfig, LinuxContainerSecurityContext, NamespaceOption};

    fn lowered(config: &ContainerConfig) -> Result<RunRequest, String> {
        let origin = Origin {
            sandbox: "s",
            sandbox_config: &PodSandboxConfig::default(),
            rootfs: "docker://x",
            log: "",
            volumes: &BTreeMap::new(),
            secrets: &RequestSecrets::default(),
            oom_score_adj_min: i32::MIN,
            allows_all_devices: true,
        };
        lower(&origin, config.clone()).map_err(|status| status.message().to_owned())
    }

    fn with_security(security: LinuxContainerSecurityContext) -> ContainerConfig {
        let linux = LinuxContainerConfig { security_context: Some(security), ..LinuxContainerConfig::default() };
        ContainerConfig { linux: Some(linux), ..ContainerConfig::default() }
    }

    /// Rule C8: the digest covers all fields except the environment, which executord compares.
    #[test]
    fn digests_exclude_environments() {
        let with = |value: &str, path: &str| ContainerConfig {
            envs: vec![KeyValue { key: "A".into(), value: value.into() }],
            log_path: path.into(),
            ..ContainerConfig::default()
        };
        let nonce = |config: ContainerConfig| lowered(&config).unwrap().nonce;
        assert_eq!(nonce(with("1", "x")), nonce(with("2", "x")));
        assert_ne!(nonce(with("1", "x")), nonce(with("1", "y")));
    }

    /// Rule C29: scores below the minimum are raised to the minimum.
    #[test]
    fn oom_scores_can_be_restricted() {
        assert_eq!(oom_score_adj(-997, i32::MIN), Some(-997));
        assert_eq!(oom_score_adj(-997, -500), Some(-500));
        assert_eq!(oom_score_adj(-997, 0), None);
        assert_eq!(oom_score_adj(1000, 0), Some(1000));
    }

    /// Rule C21: a privileged container requires a privileged sandbox.
    #[test]
    fn privileged_members_need_privileged_sandboxes() {
        let config = with_security(LinuxContainerSecurityContext { privileged: true, ..Default::default() });
        assert!(lowered(&config).unwrap_err().contains("the sandbox is not privileged"));
    }

    /// Rule C30: a container joins the PID namespace of its target container.
    #[test]
    fn targets_are_joined() {
        let options = |target: &str| {
            let options = NamespaceOption { pid: 3, target_id: target.into(), ..NamespaceOption::default() };
            with_security(LinuxContainerSecurityContext { namespace_options: Some(options), ..Default::default() })
        };
        assert_eq!(lowered(&options("c2")).unwrap().pid_of, "c2");
        assert!(lowered(&options("")).unwrap_err().contains("target_id: required"));
    }
}
