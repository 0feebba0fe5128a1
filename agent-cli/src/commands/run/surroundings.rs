//! Options of `run` for the environment of a container: tmpfs, kernel parameters, host names.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clap::Args;
use executor_cli_kit::units;
use executor_client::v1::{ExtraHost, RunRequest, Tmpfs};

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SurroundingsArgs {
    /// Empty file system in memory: /run, /scratch:size=64m,mode=700,uid=1000,exec; can be repeated
    ///
    /// The file system counts towards the container's memory. The default size is the value of --memory, the default
    /// mode is 1777. Without `exec`, programs on it cannot be executed.
    #[arg(long, value_name = "PATH[:OPTIONS]", value_parser = tmpfs, help_heading = "Container")]
    tmpfs: Vec<Tmpfs>,
    /// Size of /dev/shm [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = units::size, help_heading = "Limits")]
    shm_size: Option<u64>,
    /// Kernel parameter of the container's own namespaces: net.*, kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.*;
    /// can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = sysctl, help_heading = "Isolation")]
    sysctl: Vec<(String, String)>,
    /// Run an init as the first process, which forwards signals and reaps orphans
    #[arg(long, help_heading = "Container")]
    init: bool,
    /// Entry for /etc/hosts: db:10.0.0.1, db=::1; can be repeated
    #[arg(long, value_name = "NAME:ADDRESS", value_parser = host, help_heading = "Network")]
    add_host: Vec<ExtraHost>,
}

impl SurroundingsArgs {
    /// Adds tmpfs, kernel parameters and host names to a run request. The last occurrence of a path or a name wins, as
    /// in docker.
    pub(crate) fn apply(self, request: &mut RunRequest) {
        let by_path: BTreeMap<String, Tmpfs> = self.tmpfs.into_iter().map(|one| (one.path.clone(), one)).collect();
        request.tmpfs = by_path.into_values().collect();
        request.shm_bytes = self.shm_size.unwrap_or(0);
        request.sysctls = self.sysctl.into_iter().collect();
        request.extra_hosts = self.add_host;
        request.init = self.init;
    }
}

/// Parses the value of `--tmpfs`: `PATH`, or `PATH:OPTION,OPTION=VALUE`.
fn tmpfs(text: &str) -> Result<Tmpfs, String> {
    let (path, options) = text.split_once(':').unwrap_or((text, ""));
    if !path.starts_with('/') {
        return Err("the path must be absolute: /run, or /run:size=64m".into());
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let mut tmpfs = Tmpfs { path: format!("/{}", parts.join("/")), ..Tmpfs::default() };
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let number = |value: &str| {
            value.parse::<u32>().map_err(|_| format!("{name}={value} is not a numeric id from 0 to {}", u32::MAX))
        };
        match (name, value) {
            ("size", Some(value)) => tmpfs.size_bytes = units::size(value)?,
            ("mode", Some(value)) => {
                let mode = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o7777);
                tmpfs.mode = Some(mode.ok_or_else(|| format!("mode={value} is not an octal mode such as 1777"))?);
            }
            ("uid", Some(value)) => tmpfs.uid = number(value)?,
            ("gid", Some(value)) => tmpfs.gid = number(value)?,
            ("exec", None) => tmpfs.exec = true,
            ("noexec", None) => tmpfs.exec = false,
            // These options are always in effect.
            ("rw" | "nosuid" | "nodev", None) => {}
            _ => return Err(format!("unknown option {option:?}; use size, mode, uid, gid, exec or noexec")),
        }
    }
    Ok(tmpfs)
}

pub(in crate::commands) fn sysctl(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        // sysctl(8) accepts `.` and `/` as separators.
        Some((name, value)) if !name.is_empty() => Ok((name.replace('/', "."), value.to_owned())),
        _ => Err("a setting is NAME=VALUE: net.core.somaxconn=1024".into()),
    }
}

/// Parses an entry for /etc/hosts: `NAME:ADDRESS` or `NAME=ADDRESS`; brackets around an IPv6 address are optional.
pub(in crate::commands) fn host(text: &str) -> Result<ExtraHost, String> {
    let how = "a host is NAME:ADDRESS, such as db:10.0.0.1 or db:[fd00::1]";
    let (name, address) = text.split_once('=').or_else(|| text.split_once(':')).ok_or(how)?;
    let bare = address.strip_prefix('[').and_then(|address| address.strip_suffix(']')).unwrap_or(address);
    if bare == "host-gateway" {
        return Err("host-gateway is not supported: give the host's address in the container's network".into());
    }
    let parsed: IpAddr = bare.parse().map_err(|_| format!("{address:?} is not a valid IP address; {how}"))?;
    if name.is_empty() {
        return Err(how.into());
    }
    Ok(ExtraHost { name: name.to_owned(), address: parsed.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_options_are_parsed() {
        let one = tmpfs("/run//x/:rw,noexec,nosuid,size=64k,mode=0700,uid=5,gid=6,exec").unwrap();
        assert_eq!(
            (&*one.path, one.size_bytes, one.mode, one.uid, one.gid, one.exec),
            ("/run/x", 65536, Some(0o700), 5, 6, true)
        );
        assert_eq!(tmpfs("/a").unwrap(), Tmpfs { path: "/a".into(), ..Tmpfs::default() });
        for text in
            ["", "a", "a:/b", "/a:size=x", "/a:size=0", "/a:mode=9", "/a:mode=17777", "/a:suid", "/a:uid=x", "/a:dev"]
        {
            assert!(tmpfs(text).is_err(), "{text}");
        }
    }

    #[test]
    fn added_hosts_and_sysctls_are_parsed() {
        let line = |text: &str| host(text).map(|host| format!("{} {}", host.name, host.address));
        assert_eq!(line("db:10.0.0.1").as_deref(), Ok("db 10.0.0.1"));
        assert_eq!([line("db:::1"), line("db=[::1]"), line("db:[::1]")], [(); 3].map(|()| Ok("db ::1".to_owned())));
        for text in ["db", "db:", ":1.2.3.4", "db:x", "db:host-gateway", "db:1.2.3"] {
            assert!(host(text).is_err(), "{text}");
        }
        assert_eq!(sysctl("net/core/somaxconn=1 2"), Ok(("net.core.somaxconn".into(), "1 2".into())));
        assert!(sysctl("x").is_err() && sysctl("=1").is_err());
    }
}
