//! What of a container's isolation is not as it is by default.

use executor_proto::v1::{ContainerSpec, UserNamespace};

use crate::view::table::Table;

pub(super) fn table(spec: &ContainerSpec) -> Table {
    let mut table = Table::bare(2);
    if spec.user_namespace() == UserNamespace::Host {
        table.pair("users", "the host's");
    }
    if spec.privileged {
        table.pair("privileged", "yes");
    }
    if spec.docker_socket {
        table.pair("Docker's socket", "the host's");
    }
    let capabilities = spec.capabilities.clone().unwrap_or_default();
    for (name, list) in [("capabilities dropped", capabilities.drop), ("capabilities added", capabilities.add)] {
        if !list.is_empty() {
            table.pair(name, list.join(", "));
        }
    }
    if spec.read_only_rootfs {
        table.pair("root file system", "read-only");
    }
    if spec.custom_seccomp_profile {
        table.pair("system calls", "by the request's own profile");
    }
    table
}
