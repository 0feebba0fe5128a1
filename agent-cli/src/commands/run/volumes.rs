//! Options of `run` for volumes, with docker's syntax.
//!
//! A request names host volumes as in executord's configuration. If a flag has a host path instead, agent-cli
//! looks up the name of the volume before it sends the request.

use std::path::Path;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::images::{Pull, fetch_first, fetch_or_send};
use executor_cli_kit::request::Request;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::units;
use executor_client::v1::host_path::Propagation;
use executor_client::v1::volume_mount::Source;
use executor_client::v1::{
    EmptyVolume, HostPath, HostVolume, ImageVolume, InfoResponse, NamedVolume, PodVolumeName, RunRequest, Tmpfs,
    VolumeMount, empty_volume,
};

use crate::registry::{from_here, is_image, long};

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct VolumeArgs {
    /// Volume to mount: cache:/var/cache, /srv/certs:/certs:ro; can be repeated
    ///
    /// NAME is the name or the directory of a volume in executord's configuration, or a path below its
    /// policy.host_paths. PATH alone creates an empty volume, which is removed with the container. Options are ro, rro
    /// (including mounts below it) and, for paths below policy.host_paths, rbind (with the mounts below it), rslave,
    /// rshared, suid and dev.
    #[arg(long, short, value_name = "[NAME:]PATH[:OPTIONS]", value_parser = volume, help_heading = "Container")]
    volume: Vec<VolumeMount>,
    /// Volume in docker's long form: type=volume,source=cache,target=/cache,readonly; can be repeated
    ///
    /// type is volume (the default; source is a name), bind (source is a directory or file of the host), image (source
    /// is a reference; always readonly), pod (source is a name of --pod), tmpfs (tmpfs-size, tmpfs-mode) or empty
    /// (medium=disk or memory, size, mode); a volume without a source is empty. subpath mounts a subdirectory.
    /// More options for a bind of a path below policy.host_paths: bind-propagation (rprivate, rslave or rshared),
    /// bind-recursive (disabled, enabled, writable or readonly), suid, dev and follow-links.
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = mount, help_heading = "Container")]
    mount: Vec<Mounted>,
}

/// A mount described by `--mount`.
#[derive(Clone, Debug, PartialEq)]
enum Mounted {
    Volume(VolumeMount),
    Tmpfs(Tmpfs),
}

impl VolumeArgs {
    /// Adds the volumes and tmpfs to a run request.
    pub(crate) fn apply(self, request: &mut RunRequest) {
        request.volumes = self.volume;
        for one in self.mount {
            match one {
                Mounted::Volume(volume) => request.volumes.push(volume),
                Mounted::Tmpfs(tmpfs) => request.tmpfs.push(tmpfs),
            }
        }
    }
}

/// Replaces host paths of volumes with the names or paths that executord's configuration offers.
pub(super) async fn prepare(session: &Session, request: &mut Request) -> Result<(), Failure> {
    let named = request.volumes().iter().any(|volume| host_path(volume).is_some());
    if named {
        let info = session.client.info().await.doing("info")?;
        for volume in request.volumes_mut() {
            look_up(volume, &info).map_err(Failure::Usage)?;
        }
    }
    Ok(())
}

/// Pulls the images of volumes from their registries.
pub(super) async fn fetch(session: &Session, request: &Request) -> Result<(), Failure> {
    for (image, always) in request.volumes_to_pull() {
        if request.on_disk().is_none() {
            fetch_first(session, image, always).await?;
        } else if always || session.client.images().inspect(&image.reference).await.is_err() {
            // The root file system is uploaded, so the run may have the pull policy `Never` (`Request::mark_imported`).
            fetch_or_send(session, &Pull::new(image), !session.json).await?;
        }
    }
    Ok(())
}

/// Returns the host path that is specified instead of a volume name, if any.
fn host_path(volume: &VolumeMount) -> Option<&str> {
    match &volume.source {
        Some(Source::Host(NamedVolume { name })) if name.starts_with('/') => Some(name),
        _ => None,
    }
}

/// Replaces a host path with the operator's volume that contains it. If no volume contains the path, uses the path
/// itself if it is below one of `policy.host_paths`.
fn look_up(volume: &mut VolumeMount, info: &InfoResponse) -> Result<(), String> {
    let Some(path) = host_path(volume) else { return Ok(()) };
    let inner = |known: &HostVolume| Some(Path::new(path).strip_prefix(&known.path).ok()?.display().to_string());
    let known = info.volumes.iter().filter_map(|known| Some((known, inner(known)?)));
    let Some((HostVolume { name, .. }, below)) = known.max_by_key(|(known, _)| known.path.len()) else {
        if !info.host_paths.iter().any(|offered| Path::new(path).starts_with(offered)) {
            return Err(not_offered(path, info));
        }
        volume.source = Some(Source::HostPath(HostPath { path: path.to_owned(), ..HostPath::default() }));
        return Ok(());
    };
    let parts = [below, std::mem::take(&mut volume.sub_path)];
    volume.sub_path = parts.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join("/");
    volume.source = Some(Source::Host(NamedVolume { name: name.clone() }));
    Ok(())
}

/// Returns the error for a host path that executord does not offer, with the necessary configuration.
fn not_offered(path: &str, info: &InfoResponse) -> String {
    let volumes = info.volumes.iter().map(|known| format!("{} ({})", known.name, known.path));
    let offered: Vec<String> =
        volumes.chain(info.host_paths.iter().map(|offered| format!("paths below {offered}"))).collect();
    let offered = if offered.is_empty() { "nothing".to_owned() } else { offered.join(", ") };
    plain(&format!(
        "--volume or --mount {path}: executord does not offer this path; it offers {offered}. To offer it, the operator \
         (1) adds a table [[volumes]] with name and path = \"{path}\", or a directory above it to host_paths of [policy], in \
         executord's configuration file; (2) restarts executord; (3) for a volume that is not :ro, makes a \
         directory above it accessible only to root (chmod 0700), or mounts its file system nosuid"
    ))
}

/// Parses the value of `--volume`: `PATH`, `NAME:PATH` or `NAME:PATH:OPTIONS`.
fn volume(text: &str) -> Result<VolumeMount, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let (name, path, options) = match parts[..] {
        [path] => (None, path, ""),
        [name, path] => (Some(name), path, ""),
        [name, path, options] => (Some(name), path, options),
        _ => return Err("a volume is NAME:PATH, NAME:PATH:ro or PATH".into()),
    };
    let source = match name {
        None => empty(empty_volume::Medium::Disk),
        Some(name) => host(name)?,
    };
    let mut volume = VolumeMount { path: target(path)?, source: Some(source), ..VolumeMount::default() };
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option {
            "ro" => volume.read_only = true,
            "rw" => volume.read_only = false,
            _ => bind_option(&mut volume, option)?,
        }
    }
    Ok(volume)
}

/// Applies an option of `--volume` that is valid only for a host path.
fn bind_option(volume: &mut VolumeMount, option: &str) -> Result<(), String> {
    let read_only = option == "rro";
    let path = by_path(volume).ok_or_else(|| {
        let known = "use ro or rw; a host path also accepts rro, rbind, rprivate, rslave, rshared, suid and dev";
        format!("unknown option {option:?}; {known}")
    })?;
    match option {
        "rro" => (path.recursive, path.recursive_read_only) = (true, true),
        "rbind" => path.recursive = true,
        "suid" => path.suid = true,
        "dev" => path.dev = true,
        "rprivate" | "rslave" | "rshared" => propagate(path, option)?,
        _ => {
            return Err(format!(
                "unknown option {option:?}; use ro, rw, rro, rbind, rprivate, rslave, rshared, suid or dev"
            ));
        }
    }
    volume.read_only |= read_only;
    Ok(())
}

/// Returns the host path of a volume, so that its options can be set; `None` if the volume has another source.
fn by_path(volume: &mut VolumeMount) -> Option<&mut HostPath> {
    if let Some(path) = host_path(volume) {
        volume.source = Some(Source::HostPath(HostPath { path: path.to_owned(), ..HostPath::default() }));
    }
    match &mut volume.source {
        Some(Source::HostPath(path)) => Some(path),
        _ => None,
    }
}

/// Sets the mount propagation of a host path, given by docker's name. Any propagation other than private includes the
/// mounts below the path.
fn propagate(path: &mut HostPath, name: &str) -> Result<(), String> {
    let propagation = match name {
        "rprivate" => Propagation::Private,
        "rslave" => Propagation::HostToContainer,
        "rshared" => Propagation::Bidirectional,
        _ => return Err(format!("bind-propagation={name} is not supported; use rprivate, rslave or rshared")),
    };
    path.recursive |= propagation != Propagation::Private;
    path.set_propagation(propagation);
    Ok(())
}

/// Parses the value of `--mount`: `KEY=VALUE,...`.
fn mount(text: &str) -> Result<Mounted, String> {
    let mut kind = "volume";
    let (mut from, mut path, mut sub_path, mut read_only) = (None, None, "", false);
    let (mut medium, mut size_bytes, mut mode, mut gid) = (None, None, None, None);
    let mut bind = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
        match (key, value) {
            ("type", Some(value)) => kind = value,
            ("source" | "src", Some(value)) => from = Some(value),
            ("target" | "dst" | "destination", Some(value)) => path = Some(value),
            ("readonly" | "ro", None | Some("true" | "1")) => read_only = true,
            ("readonly" | "ro", Some("false" | "0")) => read_only = false,
            ("subpath" | "volume-subpath" | "image-subpath", Some(value)) => sub_path = value,
            ("size" | "tmpfs-size", Some(value)) => size_bytes = Some(units::size(value)?),
            ("mode" | "tmpfs-mode", Some(value)) => {
                let octal = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o7777);
                mode = Some(octal.ok_or_else(|| format!("{part} is not an octal mode such as 1777"))?);
            }
            ("gid", Some(value)) => {
                gid = Some(value.parse().map_err(|_| format!("{part} is not a numeric group id such as 1000"))?);
            }
            ("bind-propagation" | "bind-recursive", Some(value)) => bind.push((key, value)),
            ("suid" | "dev" | "follow-links", None | Some("true" | "1")) => bind.push((key, "true")),
            ("medium", Some("disk")) => medium = Some(empty_volume::Medium::Disk),
            ("medium", Some("memory")) => medium = Some(empty_volume::Medium::Memory),
            _ => {
                let known = "type, source, target, readonly, subpath, size, mode, gid, medium=disk or memory, or for \
                             type=bind bind-propagation, bind-recursive, suid, dev or follow-links";
                return Err(format!("unknown option {part:?}; use {known}"));
            }
        }
    }
    let path = target(path.ok_or("target is missing; use target=/path")?)?;
    let is_empty = kind == "empty" || (kind == "volume" && from.is_none());
    if !is_empty && (medium.is_some() || gid.is_some())
        || !is_empty && kind != "tmpfs" && (size_bytes.is_some() || mode.is_some())
    {
        let why = "size, mode, gid and medium need an empty volume (type=empty, or type=volume without a source); size and \
                   mode can also be used with type=tmpfs";
        return Err(format!("type={kind}: {why}"));
    }
    let source = match (kind, from) {
        ("tmpfs", None) if !read_only && sub_path.is_empty() => {
            let size_bytes = size_bytes.unwrap_or(0);
            return Ok(Mounted::Tmpfs(Tmpfs { path, size_bytes, mode, ..Tmpfs::default() }));
        }
        ("tmpfs", _) => return Err("type=tmpfs cannot be used with source, subpath or readonly".into()),
        ("empty" | "volume", None) => Source::Empty(EmptyVolume {
            medium: medium.unwrap_or(empty_volume::Medium::Disk).into(),
            size_bytes: size_bytes.unwrap_or(0),
            mode,
            gid,
        }),
        ("volume", Some(name)) => host(name)?,
        ("bind", Some(path)) if path.starts_with('/') => host(path)?,
        ("bind", _) => return Err("source must be an absolute path on the host".into()),
        ("image", Some(reference)) => {
            read_only = true;
            let reference = from_here(long(reference.to_owned()));
            if !is_image(&reference) {
                return Err(format!("{reference:?} is not an image reference"));
            }
            Source::Image(ImageVolume { reference })
        }
        ("pod", Some(name)) => Source::Pod(PodVolumeName { name: name.to_owned() }),
        ("pod", None) => return Err("source is missing; use source=NAME with a volume of the pod".into()),
        ("image", None) => return Err("source is missing; use source=IMAGE".into()),
        ("empty", Some(_)) => return Err("type=empty cannot be used with source".into()),
        _ => return Err(format!("unknown type={kind}; use volume, bind, image, pod, tmpfs or empty")),
    };
    let mut volume = VolumeMount { path, source: Some(source), sub_path: sub_path.to_owned(), read_only };
    for (key, value) in bind {
        let of_bind = Some(&mut volume).filter(|_| kind == "bind").and_then(by_path);
        bind_key(
            of_bind.ok_or_else(|| format!("{key} is for type=bind, not for type={kind}"))?,
            (key, value),
            read_only,
        )?;
    }
    Ok(Mounted::Volume(volume))
}

/// Applies a key of `--mount type=bind`. As in docker, if the bind is read-only, `bind-recursive=enabled` also makes
/// all mounts below it read-only, and `bind-recursive=writable` does not.
fn bind_key(path: &mut HostPath, (key, value): (&str, &str), read_only: bool) -> Result<(), String> {
    match (key, value) {
        ("bind-propagation", name) => propagate(path, name)?,
        ("bind-recursive", "disabled") => path.recursive = false,
        ("bind-recursive", "writable") => path.recursive = true,
        ("bind-recursive", "enabled") => (path.recursive, path.recursive_read_only) = (true, read_only),
        ("bind-recursive", "readonly") => (path.recursive, path.recursive_read_only) = (true, true),
        ("suid", _) => path.suid = true,
        ("dev", _) => path.dev = true,
        ("follow-links", _) => path.follow_links = true,
        _ => return Err(format!("{key}={value} is not valid; use enabled, disabled, writable or readonly")),
    }
    Ok(())
}

fn empty(medium: empty_volume::Medium) -> Source {
    Source::Empty(EmptyVolume { medium: medium.into(), ..EmptyVolume::default() })
}

/// Returns a host volume, given by its name, or by its directory until the name is looked up.
fn host(name: &str) -> Result<Source, String> {
    if name.is_empty() || (name.contains('/') && !name.starts_with('/')) {
        return Err(format!("{name:?} is neither the name of a volume nor an absolute path"));
    }
    Ok(Source::Host(NamedVolume { name: name.to_owned() }))
}

/// Normalizes a path in the container as executord requires.
fn target(path: &str) -> Result<String, String> {
    if !path.starts_with('/') {
        return Err(format!("{path:?} is not an absolute path in the container"));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    Ok(format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn for_host(name: &str, path: &str, sub_path: &str, read_only: bool) -> VolumeMount {
        let source = Some(Source::Host(NamedVolume { name: name.into() }));
        VolumeMount { path: path.into(), source, sub_path: sub_path.into(), read_only }
    }

    #[test]
    fn short_volume_forms_are_parsed() {
        assert_eq!(volume("cache:/var//cache/"), Ok(for_host("cache", "/var/cache", "", false)));
        assert_eq!(volume("/srv/a:/b:ro"), Ok(for_host("/srv/a", "/b", "", true)));
        let new = VolumeMount {
            path: "/x".into(),
            source: Some(empty(empty_volume::Medium::Disk)),
            ..VolumeMount::default()
        };
        assert_eq!(volume("/x"), Ok(new));
        let bind = |options: &str| match volume(&format!("/srv/a:/b:{options}")) {
            Ok(VolumeMount { source: Some(Source::HostPath(path)), read_only, .. }) => Ok((path, read_only)),
            other => Err(other),
        };
        let path = HostPath { path: "/srv/a".into(), recursive: true, ..HostPath::default() };
        assert_eq!(bind("rbind"), Ok((path.clone(), false)));
        assert_eq!(bind("rro"), Ok((HostPath { recursive_read_only: true, ..path.clone() }, true)));
        assert_eq!(bind("ro,rslave"), Ok((HostPath { propagation: 1, ..path.clone() }, true)));
        assert_eq!(bind("rshared,suid,dev"), Ok((HostPath { propagation: 2, suid: true, dev: true, ..path }, false)));
        for text in
            ["", "x", "a:b", ":/a", "./a:/b", "a/b:/c", "a:/b:z", "a:/b:ro:x", "a:/b:rro", "/a:/b:z", "/a:/b:shared"]
        {
            assert!(volume(text).is_err(), "{text}");
        }
    }

    #[test]
    fn long_volume_forms_are_parsed() {
        let of = |text| mount(text).unwrap();
        let cache = for_host("cache", "/c", "a/b", true);
        assert_eq!(of("type=volume,src=cache,dst=/c,ro,volume-subpath=a/b"), Mounted::Volume(cache.clone()));
        assert_eq!(of("source=cache,target=/c/,readonly=true,subpath=a/b"), Mounted::Volume(cache));
        assert_eq!(of("type=bind,source=/srv,target=/c"), Mounted::Volume(for_host("/srv", "/c", "", false)));
        let Mounted::Tmpfs(tmpfs) = of("type=tmpfs,target=/t,tmpfs-size=1m,tmpfs-mode=700") else { panic!("a tmpfs") };
        assert_eq!((&*tmpfs.path, tmpfs.size_bytes, tmpfs.mode), ("/t", 1 << 20, Some(0o700)));
        let Mounted::Volume(new) = of("type=empty,target=/e,medium=memory,size=1m,mode=750,gid=70") else {
            panic!("a volume")
        };
        let memory = EmptyVolume { medium: 1, size_bytes: 1 << 20, mode: Some(0o750), gid: Some(70) };
        assert_eq!(new.source, Some(Source::Empty(memory)));
        let shared = VolumeMount {
            path: "/s".into(),
            source: Some(Source::Pod(PodVolumeName { name: "data".into() })),
            ..VolumeMount::default()
        };
        assert_eq!(of("type=pod,source=data,target=/s"), Mounted::Volume(shared));
        let bind = |options: &str| match mount(&format!("type=bind,source=/s,target=/b,{options}")).unwrap() {
            Mounted::Volume(VolumeMount { source: Some(Source::HostPath(path)), .. }) => path,
            other => panic!("{other:?}"),
        };
        let path = HostPath { path: "/s".into(), recursive: true, ..HostPath::default() };
        assert_eq!(bind("bind-propagation=rslave"), HostPath { propagation: 1, ..path.clone() });
        assert_eq!(bind("readonly,bind-recursive=writable"), path);
        for options in ["readonly,bind-recursive=enabled", "bind-recursive=readonly,readonly"] {
            assert_eq!(bind(options), HostPath { recursive_read_only: true, ..path.clone() }, "{options}");
        }
        assert_eq!(bind("bind-recursive=enabled"), path);
        let followed = HostPath { follow_links: true, dev: true, suid: true, recursive: false, ..path };
        assert_eq!(bind("follow-links,dev,suid=true"), followed);
        let Mounted::Volume(image) = of("type=image,source=debian:12,target=/i") else { panic!("a volume") };
        let reference = "docker://debian:12".into();
        assert_eq!((image.source, image.read_only), (Some(Source::Image(ImageVolume { reference })), true));
        for text in [
            "",
            "type=volume",
            "target=x",
            "type=bind,target=/a",
            "type=bind,source=a,target=/a",
            "type=image,target=/a",
            "type=image,source=host,target=/a",
            "type=npipe,target=/a",
            "type=pod,target=/a",
            "type=tmpfs,source=a,target=/a",
            "type=tmpfs,target=/a,ro",
            "type=empty,source=a,target=/a",
            "source=a,target=/a,size=1m",
            "type=tmpfs,target=/a,medium=disk",
            "target=/a,mode=9",
            "target=/a,medium=tape",
            "target=/a,bind-propagation=rshared",
            "type=bind,source=/a,target=/a,bind-propagation=shared",
            "type=bind,source=/a,target=/a,bind-recursive=always",
            "type=volume,source=a,target=/a,dev",
            "target=/a,readonly=perhaps",
        ] {
            assert!(mount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn paths_of_the_host_are_looked_up() {
        let known = |name: &str, path: &str| HostVolume { name: name.into(), path: path.into(), read_only: false };
        let volumes = vec![known("all", "/srv"), known("cache", "/srv/cache"), known("certs", "/etc/certs")];
        let info = InfoResponse { volumes, host_paths: vec!["/data".into()], ..InfoResponse::default() };
        for (path, sub_path, name, below) in [
            ("/srv/cache", "", "cache", ""),
            ("/srv/cache/a", "b", "cache", "a/b"),
            ("/srv/cached", "", "all", "cached"),
            ("cache", "x", "cache", "x"),
        ] {
            let mut volume = for_host(path, "/c", sub_path, false);
            look_up(&mut volume, &info).unwrap();
            assert_eq!(volume, for_host(name, "/c", below, false), "{path}");
        }
        let mut file = for_host("/data/app.conf", "/c", "", true);
        look_up(&mut file, &info).unwrap();
        assert_eq!(
            file.source,
            Some(Source::HostPath(HostPath { path: "/data/app.conf".into(), ..HostPath::default() }))
        );
        let refusal = look_up(&mut for_host("/database", "/c", "", false), &info).unwrap_err();
        for words in [
            "--volume or --mount /database: ",
            "cache (/srv/cache)",
            "below /data",
            "[[volumes]]",
            "restarts",
            "nosuid",
        ] {
            assert!(refusal.contains(words), "{words}: {refusal}");
        }
        let refusal = look_up(&mut for_host("/etc", "/c", "", false), &InfoResponse::default()).unwrap_err();
        assert!(refusal.contains("it offers nothing"), "{refusal}");
    }
}
