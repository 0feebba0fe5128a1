//! How far a container is kept from the host.

use executor_proto::v1::{ContainerSpec, UserNamespace};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Isolation {
    user_namespace: &'static str,
    privileged: bool,
    capabilities_added: Vec<String>,
    capabilities_dropped: Vec<String>,
    read_only_rootfs: bool,
    custom_seccomp_profile: bool,
    stop_signal: u32,
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
            capabilities_added: capabilities.add,
            capabilities_dropped: capabilities.drop,
            read_only_rootfs: spec.read_only_rootfs,
            custom_seccomp_profile: spec.custom_seccomp_profile,
            stop_signal: spec.stop_signal,
        }
    }
}
