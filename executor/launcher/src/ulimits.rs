//! Sets resource limits of a container's processes, except the limits on open files and core files.
//!
//! Limits are set in two steps. First, a privileged process raises hard limits that are too low. The soft limits stay,
//! so that the process has all resources for starting a program. Immediately before execve, each limit is set to the
//! requested value.

use std::io;

use executor_core::plan::Ulimit;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the hard limits of the calling process that are lower than requested.
///
/// # Errors
/// Returns the index and the error if a limit cannot be set (`PermissionDenied` without CAP_SYS_RESOURCE).
pub(crate) fn raise(ulimits: &[Ulimit]) -> Result<(), (usize, io::Error)> {
    for (index, ulimit, resource) in known(ulimits) {
        let own = getrlimit(resource);
        let wanted = value(ulimit.hard);
        if is_above(wanted, own.maximum) {
            setrlimit(resource, Rlimit { current: own.current, maximum: wanted })
                .map_err(|error| (index, error.into()))?;
        }
    }
    Ok(())
}

/// Returns the index of each limit above the calling process's own hard limit, with this hard limit (-1 means no
/// limit).
pub(crate) fn above_own(ulimits: &[Ulimit]) -> impl Iterator<Item = (usize, i64)> {
    known(ulimits).filter_map(|(index, ulimit, resource)| {
        let own = getrlimit(resource).maximum;
        let shown = own.map_or(-1, |own| i64::try_from(own).unwrap_or(i64::MAX));
        is_above(value(ulimit.hard), own).then_some((index, shown))
    })
}

/// Sets the limits of the calling process.
///
/// # Errors
/// Returns the name and the error if a limit cannot be set.
pub(crate) fn set(ulimits: &[Ulimit]) -> Result<(), (&str, io::Error)> {
    for (_, ulimit, resource) in known(ulimits) {
        setrlimit(resource, Rlimit { current: value(ulimit.soft), maximum: value(ulimit.hard) })
            .map_err(|error| (&*ulimit.name, error.into()))?;
    }
    Ok(())
}

/// Returns the limits that this module sets. The limit on core files is not among them, because core files are never
/// written.
fn known(ulimits: &[Ulimit]) -> impl Iterator<Item = (usize, &Ulimit, Resource)> {
    ulimits.iter().enumerate().filter_map(|(index, ulimit)| Some((index, ulimit, resource(&ulimit.name)?)))
}

fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "as" => Resource::As,
        "cpu" => Resource::Cpu,
        "data" => Resource::Data,
        "fsize" => Resource::Fsize,
        "locks" => Resource::Locks,
        "memlock" => Resource::Memlock,
        "msgqueue" => Resource::Msgqueue,
        "nice" => Resource::Nice,
        "nproc" => Resource::Nproc,
        "rss" => Resource::Rss,
        "rtprio" => Resource::Rtprio,
        "rttime" => Resource::Rttime,
        "sigpending" => Resource::Sigpending,
        "stack" => Resource::Stack,
        _ => return None,
    })
}

/// Converts a limit of the plan to the type of setrlimit(2): `None` for -1, which means no limit.
fn value(limit: i64) -> Option<u64> {
    u64::try_from(limit).ok()
}

fn is_above(limit: Option<u64>, other: Option<u64>) -> bool {
    other.is_some_and(|other| limit.is_none_or(|limit| limit > other))
}

#[cfg(test)]
mod tests {
    use executor_core::validate::ULIMITS;

    use super::*;

    #[test]
    fn every_limit_of_the_interface_is_known() {
        let unknown: Vec<&str> = ULIMITS.into_iter().filter(|name| resource(name).is_none()).collect();
        assert_eq!(unknown, ["core"]);
    }

    #[test]
    fn no_limit_is_above_every_limit() {
        for (limit, other, above) in
            [(-1, 5, true), (5, -1, false), (-1, -1, false), (5, 5, false), (6, 5, true), (0, 5, false)]
        {
            assert_eq!(is_above(value(limit), value(other)), above, "{limit} {other}");
        }
    }
}
