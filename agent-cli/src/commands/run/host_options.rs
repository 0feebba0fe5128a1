//! Options of `run` for CPUs, devices, confinement, swap and process attributes, with docker's syntax.
//!
//! A request names devices as in executord's configuration. If a flag has a host path instead, agent-cli looks up
//! the name of the device before it sends the request.

use std::path::Path;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::request::Request;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::units;
use executor_client::v1::{self, DeviceMount, Limits, RunRequest};

/// CDI kind of NVIDIA's devices.
const GPU_KIND: &str = "nvidia.com/gpu";
/// Maximum number of GPUs: the limit of a container's devices.
const GPUS_MAX: usize = 24;

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CpusetArgs {
    /// Processors that the container may use: 0-3,7
    #[arg(long, value_name = "LIST", help_heading = "Limits")]
    cpuset_cpus: Option<String>,
    /// Memory nodes (NUMA) that the container may use: 0,1
    #[arg(long, value_name = "LIST", help_heading = "Limits")]
    cpuset_mems: Option<String>,
}

impl CpusetArgs {
    pub(crate) fn apply(&self, limits: &mut Limits) {
        limits.cpuset_cpus = self.cpuset_cpus.clone().unwrap_or_default();
        limits.cpuset_mems = self.cpuset_mems.clone().unwrap_or_default();
    }
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct HostArgs {
    #[command(flatten)]
    cpusets: CpusetArgs,
    /// Cgroup below which the container's cgroup is created: /kubepods/pod1
    ///
    /// executord's configuration lists the permitted cgroups (cgroup_parents).
    #[arg(long, value_name = "PATH", help_heading = "Limits")]
    cgroup_parent: Option<String>,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Adjustment of the kernel's OOM score: 0 to 1000, or negative if executord's configuration allows it
    /// (oom_score_adj_min)
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(i32).range(-1000..=1000),
        allow_negative_numbers = true,
        help_heading = "Limits"
    )]
    oom_score_adj: Option<i32>,
    /// Device to add: fuse, /dev/fuse:/dev/fuse:rw, vendor.com/class=name; can be repeated
    ///
    /// NAME is the name or the host path of a device in executord's configuration, the host path of a node or a
    /// directory of nodes in its policy.device_paths, or the qualified name of a CDI device. A device of the table
    /// `devices` takes precedence over policy.device_paths.
    #[arg(long, value_name = "NAME[:PATH][:rwm]", value_parser = device, help_heading = "Isolation")]
    device: Vec<DeviceMount>,
    /// NVIDIA GPUs by CDI: all, a number, or device=NAME,...; same as --device nvidia.com/gpu=NAME for each
    #[arg(long, value_name = "GPUS", value_parser = gpus, help_heading = "Isolation")]
    gpus: Option<Gpus>,
    /// AppArmor profile that executord's configuration lists
    #[arg(long, value_name = "NAME", help_heading = "Isolation")]
    apparmor_profile: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Gpus(Vec<String>);

/// Limit on the sum of memory and swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemorySwap {
    /// Maximum sum of memory and swap, in bytes.
    Total(u64),
    /// No limit on swap.
    Unlimited,
}

impl MemorySwap {
    /// Returns the swap limit for a request, in bytes: the limit minus `memory`. -1 means no limit.
    ///
    /// # Errors
    /// Returns an error if the limit is less than `memory`.
    pub(crate) fn beyond(self, memory: u64) -> Result<i64, Failure> {
        let Self::Total(total) = self else { return Ok(-1) };
        let beyond = total.checked_sub(memory).ok_or_else(|| {
            let why = "--memory-swap is the sum of memory and swap; use the value of --memory to disable swap";
            Failure::Usage(format!("--memory-swap {total} is less than --memory {memory}: {why}"))
        })?;
        Ok(i64::try_from(beyond).unwrap_or(i64::MAX))
    }
}

/// Additional memory limits, shared by `run` and `update`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MemoryArgs {
    /// Limit of memory and swap together, at least --memory; -1 for unlimited swap
    ///
    /// The same value as --memory permits no swap. Needs --memory, and permission in executord's configuration
    /// (swap_bytes_max).
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = memory_swap,
        allow_negative_numbers = true,
        requires = "memory",
        help_heading = "Limits"
    )]
    memory_swap: Option<MemorySwap>,
    /// Memory that the kernel does not reclaim from the container when the host runs short: at most --memory
    #[arg(long, value_name = "SIZE", value_parser = units::size, help_heading = "Limits")]
    memory_reservation: Option<u64>,
}

impl MemoryArgs {
    /// Adds the memory options to `limits`, which must already have the memory limit.
    ///
    /// # Errors
    /// Returns an error if the limit on memory and swap is less than the memory limit.
    pub(crate) fn apply(&self, limits: &mut Limits) -> Result<(), Failure> {
        limits.memory_reservation_bytes = self.memory_reservation.unwrap_or(0);
        limits.swap_bytes = self.memory_swap.map(|swap| swap.beyond(limits.memory_bytes)).transpose()?;
        Ok(())
    }
}

impl HostArgs {
    /// Adds CPUs, devices, confinement and process attributes to a run request, which must already have its memory
    /// limit.
    ///
    /// # Errors
    /// Returns an error if the limit on memory and swap is less than the memory limit.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        let limits = request.limits.get_or_insert_with(Limits::default);
        self.cpusets.apply(limits);
        self.memory.apply(limits)?;
        request.oom_score_adj = self.oom_score_adj;
        let gpus = self.gpus.into_iter().flat_map(|Gpus(names)| names);
        let gpus = gpus.map(|name| DeviceMount { name: format!("{GPU_KIND}={name}"), ..DeviceMount::default() });
        request.devices = self.device.into_iter().chain(gpus).collect();
        if let Some(profile) = self.apparmor_profile {
            request.apparmor_profile = profile;
        }
        request.cgroup_parent = self.cgroup_parent.unwrap_or_default();
        Ok(())
    }
}

/// Replaces host paths of devices with the names in executord's configuration.
pub(super) async fn prepare(session: &Session, request: &mut Request) -> Result<(), Failure> {
    if request.devices_mut().iter().all(|device| !device.name.starts_with('/')) {
        return Ok(());
    }
    let info = session.client.info().await.doing("info")?;
    request.devices_mut().iter_mut().try_for_each(|device| look_up(device, &info)).map_err(Failure::Usage)
}

/// Replaces a host path with the name of the operator's device at this path. If no device has the path, but
/// `policy.device_paths` contains it, the path is used unchanged.
fn look_up(device: &mut DeviceMount, info: &v1::InfoResponse) -> Result<(), String> {
    let known = &info.devices;
    if !device.name.starts_with('/') {
        return Ok(());
    }
    let Some(found) = known.iter().find(|known| known.path == device.name) else {
        if info.device_paths.iter().any(|listed| Path::new(&device.name).starts_with(listed)) {
            device.host_path = std::mem::take(&mut device.name);
            return Ok(());
        }
        let list: Vec<String> = known.iter().map(|known| format!("{} ({})", known.name, known.path)).collect();
        let list = if list.is_empty() { "no devices".to_owned() } else { list.join(", ") };
        return Err(plain(&format!(
            "--device {}: not a device in executord's configuration, which has {list}. The operator adds devices with \
             [[devices]], or paths to device_paths of [policy]",
            device.name
        )));
    };
    device.name.clone_from(&found.name);
    Ok(())
}

/// Parses a device: `NAME`, `NAME:PATH`, `NAME:rwm` or `NAME:PATH:rwm`; `NAME` may be a host path. Also accepts the
/// qualified name of a CDI device; colons in that name do not separate parts.
fn device(text: &str) -> Result<DeviceMount, String> {
    let how =
        "a device is NAME, NAME:PATH or NAME:PATH:rwm, such as fuse:/dev/fuse:rw; or a CDI name, vendor.com/class=name";
    if text.contains('=') && !text.starts_with('/') {
        return Ok(DeviceMount { name: text.to_owned(), ..DeviceMount::default() });
    }
    let parts: Vec<&str> = text.split(':').collect();
    let (name, path, permissions) = match parts[..] {
        [name] => (name, "", ""),
        [name, path] if path.starts_with('/') => (name, path, ""),
        [name, permissions] => (name, "", permissions),
        [name, path, permissions] => (name, path, permissions),
        _ => return Err(how.into()),
    };
    let is_path = path.is_empty() || path.starts_with('/');
    if name.is_empty() || !is_path || !permissions.bytes().all(|letter| b"rwm".contains(&letter)) {
        return Err(how.into());
    }
    let (name, path, permissions) = (name.to_owned(), path.to_owned(), permissions.to_owned());
    Ok(DeviceMount { name, path, permissions, ..DeviceMount::default() })
}

/// Parses the value of `--gpus`: `all`, a number, or `device=NAME,...`. Removes quotes, which docker users write around
/// this value.
fn gpus(text: &str) -> Result<Gpus, String> {
    let how = || format!("use `all`, a number from 1 to {GPUS_MAX}, or device=NAME,..., such as device=0,1");
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    if bare == "all" {
        return Ok(Gpus(vec!["all".to_owned()]));
    }
    if let Some(names) = bare.strip_prefix("device=") {
        let names: Vec<String> = names.split(',').map(str::to_owned).collect();
        let plain = names.iter().all(|name| !name.is_empty() && !name.contains(['=', '"']));
        return if plain { Ok(Gpus(names)) } else { Err(how()) };
    }
    let count = bare.parse::<usize>().ok().filter(|count| (1..=GPUS_MAX).contains(count)).ok_or_else(how)?;
    Ok(Gpus((0..count).map(|index| index.to_string()).collect()))
}

fn memory_swap(text: &str) -> Result<MemorySwap, String> {
    if text == "-1" { Ok(MemorySwap::Unlimited) } else { units::size(text).map(MemorySwap::Total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_as_docker_writes_them() {
        let parts = |text: &str| device(text).map(|one| format!("{} {} {}", one.name, one.path, one.permissions));
        assert_eq!(parts("fuse").as_deref(), Ok("fuse  "));
        assert_eq!(parts("/dev/fuse:/dev/x").as_deref(), Ok("/dev/fuse /dev/x "));
        assert_eq!(parts("fuse:r").as_deref(), Ok("fuse  r"));
        assert_eq!(parts("fuse:/dev/x:rwm").as_deref(), Ok("fuse /dev/x rwm"));
        assert_eq!(parts("vendor.com/class=a:1").as_deref(), Ok("vendor.com/class=a:1  "));
        for text in ["", ":/dev/x", "fuse:x", "fuse:x:rw", "fuse:/a:rw:x", "fuse:/a:rx"] {
            assert!(device(text).is_err(), "{text}");
        }
    }

    #[test]
    fn gpus_become_qualified_names() {
        let names = |text: &str| gpus(text).map(|Gpus(names)| names.join(" "));
        for (text, expected) in [
            ("all", "all"),
            ("2", "0 1"),
            ("device=0,GPU-1", "0 GPU-1"),
            ("\"device=3,4\"", "3 4"),
            ("device=1:0", "1:0"),
        ] {
            assert_eq!(names(text).as_deref(), Ok(expected), "{text}");
        }
        for text in
            ["", "0", "25", "-1", "none", "device=", "device=0,", "device=0,capabilities=x", "all,capabilities=x"]
        {
            assert!(names(text).is_err(), "{text}");
        }
        let args = HostArgs { gpus: gpus("all").ok(), ..HostArgs::default() };
        let mut request = RunRequest::default();
        args.apply(&mut request).unwrap();
        assert_eq!(request.devices[0].name, "nvidia.com/gpu=all");
    }

    #[test]
    fn host_device_path_becomes_name() {
        let devices = vec![v1::HostDevice { name: "fuse".into(), path: "/dev/fuse".into(), permissions: "rw".into() }];
        let device_paths = vec!["/dev/fuse".into(), "/dev/dri".into()];
        let info = v1::InfoResponse { devices, device_paths, ..v1::InfoResponse::default() };
        let looked_up = |text: &str, info: &v1::InfoResponse| {
            let mut asked = device(text).unwrap();
            look_up(&mut asked, info).map(|()| [asked.name, asked.host_path, asked.path].join(" "))
        };
        assert_eq!(looked_up("/dev/fuse:/dev/x:r", &info).as_deref(), Ok("fuse  /dev/x"));
        assert_eq!(looked_up("/dev/dri/card0", &info).as_deref(), Ok(" /dev/dri/card0 "));
        assert_eq!(looked_up("/dev/dri:/dev/x", &info).as_deref(), Ok(" /dev/dri /dev/x"));
        assert_eq!(looked_up("other", &info).as_deref(), Ok("other  "));
        for path in ["/dev/mem", "/dev/drivers"] {
            let reported = looked_up(path, &info).unwrap_err();
            for words in [&format!("--device {path}"), "fuse (/dev/fuse)", "device_paths"] {
                assert!(reported.contains(words), "{reported}");
            }
        }
        assert!(looked_up("/dev/mem", &v1::InfoResponse::default()).unwrap_err().contains("which has no devices"));
    }

    #[test]
    fn memory_swap_includes_memory() {
        assert_eq!((memory_swap("-1"), memory_swap("2m")), (Ok(MemorySwap::Unlimited), Ok(MemorySwap::Total(2 << 20))));
        assert!(memory_swap("-2").is_err() && memory_swap("x").is_err());
        assert_eq!((MemorySwap::Total(5).beyond(3).unwrap(), MemorySwap::Total(3).beyond(3).unwrap()), (2, 0));
        assert!(MemorySwap::Total(2).beyond(3).unwrap_err().to_string().contains("less than --memory 3"));
    }
}
