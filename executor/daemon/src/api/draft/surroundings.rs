//! File systems in memory, settings of the kernel and names of hosts of a request.

use std::net::{IpAddr, Ipv4Addr};

use executor_core::plan::{ExtraHost, Surroundings, TMPFS_MODE_DEFAULT, Tmpfs};
use executor_core::validate::Violation;
use executor_proto::v1::RunRequest;

/// What of it can be taken over, and what cannot as violations.
pub(super) fn of(request: &RunRequest, violations: &mut Vec<Violation>) -> Surroundings {
    // One without an address stays where it is: the others are told by their places.
    let host = |(index, host): (usize, &executor_proto::v1::ExtraHost)| {
        let address = host.address.parse().unwrap_or_else(|_| {
            let shown: String = host.address.chars().take(80).collect();
            let why = format!("{shown:?} is not a valid IP address");
            violations.push(Violation::new(format!("extra_hosts[{index}].address"), why));
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        });
        ExtraHost { name: host.name.clone(), address }
    };
    Surroundings {
        extra_hosts: request.extra_hosts.iter().enumerate().map(host).collect(),
        tmpfs: request.tmpfs.iter().map(tmpfs).collect(),
        shm_bytes: request.shm_bytes,
        init: request.init,
        sysctls: request.sysctls.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
    }
}

fn tmpfs(asked: &executor_proto::v1::Tmpfs) -> Tmpfs {
    Tmpfs {
        path: asked.path.clone().into(),
        bytes: asked.size_bytes,
        mode: asked.mode.unwrap_or(TMPFS_MODE_DEFAULT),
        uid: asked.uid,
        gid: asked.gid,
        exec: asked.exec,
    }
}
