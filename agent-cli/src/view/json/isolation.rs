//! A container's isolation from the host.

use executor_client::v1::{ContainerSpec, UserNamespace};
use serde::Serialize;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Isolation {
    user_namespace: &'static str,
    privileged: bool,
    docker_socket: bool,
    capabilities: Capabilities,
    read_only_rootfs: bool,
    custom_seccomp_profile: bool,
    allow_new_privileges: bool,
    seccomp_unconfined: bool,
    /// Masked paths of the request; null for executord's own list.
    masked_paths: Option<Vec<String>>,
    /// Read-only paths of the request; null for executord's own list.
    readonly_paths: Option<Vec<String>>,
    stop_signal: u32,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Capabilities {
    add: Vec<String>,
    drop: Vec<String>,
}

impl From<&ContainerSpec> for Isolation {
    fn from(spec: &ContainerSpec) -> Self {
        let capabilities = spec.capabilities.clone().unwrap_or_default();
        Self {
            user_namespace: match spec.user_namespace() {
                UserNamespace::Own => "own",
                UserNamespace::Host => "host",
            },
            privileged: spec.privileged,
            docker_socket: spec.docker_socket,
            capabilities: Capabilities { add: capabilities.add, drop: capabilities.drop },
            read_only_rootfs: spec.read_only_rootfs,
            custom_seccomp_profile: spec.custom_seccomp_profile,
            allow_new_privileges: spec.allow_new_privileges,
            seccomp_unconfined: spec.seccomp_unconfined,
            masked_paths: spec.masked_paths.clone().map(|list| list.paths),
            readonly_paths: spec.readonly_paths.clone().map(|list| list.paths),
            stop_signal: spec.stop_signal,
        }
    }
}
