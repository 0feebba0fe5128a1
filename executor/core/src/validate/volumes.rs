//! Validates volumes: paths, sources and conflicts with other mounts; and the operator's list of volumes.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::ViolationReason::{
    Conflict, Duplicate, InvalidFormat, NotAllowed, NotUtf8, OutOfRange, Required, Reserved, TooMany, UnknownValue,
};
use super::{FieldFault, Policy, Report, check_path, image, is_nested, pods, shorten, surroundings};
use crate::image::BadReference;
use crate::limits::{DISK_MIN, TMPFS_MAX, TMPFS_MIN};
use crate::plan::{
    DOCKER_SOCKET, EmptyVolume, FRESH_OF_HOST, HostVolume, Isolation, Limits, Medium, Plan, PlannedFile,
    PlannedProcess, PodRole, Rootfs, Tmpfs, Volume, VolumeImage, VolumeSource,
};

/// Maximum number of volumes of a container.
pub const VOLUMES_MAX: usize = 64;
/// Maximum number of the operator's volumes.
const HOST_VOLUMES_MAX: usize = 1000;
/// Longest name of an operator's volume, in bytes.
const NAME_MAX: usize = 128;
/// Maximum number of names in a message.
const NAMES_SHOWN: usize = 20;
/// Files that the executor writes into each container, and their directory.
const WRITTEN: [&str; 4] = ["/etc", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"];
/// Parent directories of the Docker socket in a container, by its path and by the usual symbolic link.
const ABOVE_DOCKER_SOCKET: [&str; 3] = ["/var", "/var/run", "/run"];

/// Parts of a request that its volumes must fit.
pub(super) struct Beside<'a> {
    pub(super) rootfs: Option<&'a Rootfs>,
    pub(super) isolation: &'a Isolation,
    pub(super) limits: &'a Limits,
    pub(super) tmpfs: &'a [Tmpfs],
    pub(super) files: &'a [PlannedFile],
    pub(super) file_directories: &'a [PathBuf],
    pub(super) with_token: bool,
    pub(super) pod: Option<&'a PodRole>,
    /// True if the process may change its secret files.
    pub(super) is_writable: bool,
}

impl<'a> Beside<'a> {
    fn from_plan(plan: &'a Plan) -> Self {
        Self {
            rootfs: Some(&plan.rootfs),
            isolation: &plan.isolation,
            limits: &plan.limits,
            tmpfs: &plan.surroundings.tmpfs,
            files: &plan.files,
            file_directories: &plan.file_directories,
            with_token: plan.token_file().is_some(),
            pod: plan.pod.as_ref(),
            is_writable: plan.writable_files.is_some(),
        }
    }
}

/// Checks the mount of a CDI device, and conflicts of its target with the container's other mounts, with the rules for
/// volumes of the host.
///
/// # Errors
/// Returns the fault of a path, or the mount that conflicts with the target.
pub fn check_device_mount(host_path: &Path, target: &Path, plan: &Plan) -> Result<(), FieldFault> {
    surroundings::plain_path(host_path).map_err(|fault| fault.within("hostPath"))?;
    let beside = Beside::from_plan(plan);
    path(target, &beside)?;
    let shown = shorten(&target.display().to_string());
    if plan.volumes.iter().any(|volume| volume.path == target) {
        return Err(Conflict.because(format!("`{shown}` is also the path of a volume")));
    }
    let source = VolumeSource::HostPath(target.to_owned());
    let mount = Volume { path: target.to_owned(), source, sub_path: PathBuf::new(), read_only: true };
    if let Some(why) = in_the_way(&mount, &plan.volumes, &beside) {
        return Err(Conflict.because(why));
    }
    let message = plan.termination_message.as_ref().map(|message| message.path.as_path());
    let mut files = plan.processes.iter().flat_map(|process| &process.files).map(|file| file.path.as_path());
    match message
        .into_iter()
        .find(|path| is_nested(path, target))
        .or_else(|| files.find(|path| is_nested(path, target)))
    {
        Some(file) => Err(Conflict.because(format!("`{}` would be inside `{shown}` or hide it", file.display()))),
        None => Ok(()),
    }
}

/// Checks the volumes, and fills in defaults.
pub(super) fn check(asked: &[Volume], beside: &Beside<'_>, policy: &Policy, report: &mut Report) -> Vec<Volume> {
    if asked.len() > VOLUMES_MAX {
        report.add("volumes", TooMany.because(format!("has {} entries; at most {VOLUMES_MAX}", asked.len())));
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    for (index, volume) in asked.iter().enumerate() {
        let field = |name: &str| format!("volumes[{index}].{name}");
        match path(&volume.path, beside) {
            Err(why) => report.add(field("path"), why),
            Ok(()) if !seen.insert(&volume.path) => report.add(field("path"), Duplicate.because("is given twice")),
            Ok(()) => {
                if let Some(why) = in_the_way(volume, asked, beside) {
                    report.add(field("path"), Conflict.because(why));
                }
            }
        }
        if let Err(why) = sub_path(&volume.sub_path) {
            report.add(field("sub_path"), why);
        }
        source(volume, (policy, beside.pod), &field, report);
    }
    let filled = |volume: &Volume| {
        let mut volume = volume.clone();
        if let VolumeSource::Empty(EmptyVolume { medium: Medium::Memory, bytes: bytes @ 0, .. }) = &mut volume.source {
            *bytes = beside.limits.memory_bytes;
        }
        volume
    };
    asked.iter().map(filled).collect()
}

fn path(path: &Path, beside: &Beside<'_>) -> Result<(), FieldFault> {
    surroundings::mount_point(path, beside.with_token)?;
    let shown = || shorten(&path.display().to_string());
    if WRITTEN.iter().any(|written| path == Path::new(written)) {
        let why = format!("`{}` belongs to the executor, which writes {} there", shown(), WRITTEN[1..].join(", "));
        return Err(Reserved.because(why));
    }
    let above_socket = ABOVE_DOCKER_SOCKET.iter().any(|above| path == Path::new(above));
    if beside.isolation.docker_socket && (above_socket || path == Path::new(DOCKER_SOCKET)) {
        return Err(Conflict.because(format!("`{}` would hide {} of docker_socket", shown(), DOCKER_SOCKET)));
    }
    Ok(())
}

/// Returns a conflict of a volume with other mounts of its container, if there is one.
fn in_the_way(volume: &Volume, all: &[Volume], beside: &Beside<'_>) -> Option<String> {
    let (path, shown) = (&volume.path, shorten(&volume.path.display().to_string()));
    if beside.tmpfs.iter().any(|tmpfs| tmpfs.path == *path) {
        return Some(format!("`{shown}` is also the path of a tmpfs"));
    }
    let of_others = volume.empty().is_none();
    if of_others && let Some(tmpfs) = beside.tmpfs.iter().find(|tmpfs| tmpfs.path.starts_with(path)) {
        let tmpfs = tmpfs.path.display();
        return Some(format!("the tmpfs at `{tmpfs}` would be inside the volume at `{shown}`; use a volume instead"));
    }
    let Beside { files, file_directories, .. } = beside;
    if let Some(file) = files.iter().find(|file| path.starts_with(&file.path)) {
        return Some(format!("`{shown}` needs a directory at the path of {}, which is a file", file.field));
    }
    if file_directories.contains(path) {
        return Some(format!("`{shown}` is one of file_directories, which hold only secret files"));
    }
    if of_others {
        let file = files.iter().find(|file| file.path.starts_with(path)).map(PlannedFile::path_field);
        let directory = || {
            let index = file_directories.iter().position(|directory| directory.starts_with(path))?;
            Some(format!("file_directories[{index}]"))
        };
        if let (Some(field), Some(why)) = (file.or_else(directory), takes_no_files(volume, beside)) {
            return Some(format!("{field} is in `{shown}`: {why}"));
        }
    }
    // In an empty file system, the directory of secret files is created and mounted as a whole, after the volumes.
    let own = all.iter().filter(|other| other.empty().is_some() || other.is_of_pod()).map(|other| &other.path);
    let fresh: Vec<&Path> =
        beside.tmpfs.iter().map(|tmpfs| &tmpfs.path).chain(own).map(|path| path.as_path()).collect();
    let of_host = if beside.rootfs == Some(&Rootfs::Host) { &FRESH_OF_HOST[..] } else { &[] };
    for fresh in fresh.into_iter().chain(of_host.iter().map(Path::new)) {
        let first =
            |path: &Path| path.strip_prefix(fresh).ok().and_then(|below| below.iter().next().map(ToOwned::to_owned));
        let Some(name) = first(path) else { continue };
        let parents = files.iter().filter_map(|file| file.path.parent());
        let mut directories = parents.chain(file_directories.iter().map(|directory| directory.as_path()));
        if directories.any(|directory| first(directory).as_ref() == Some(&name)) {
            let both = fresh.join(&name);
            return Some(format!("`{shown}` conflicts with a directory of secret files in `{}`", both.display()));
        }
    }
    None
}

/// Returns the reason why no secret file can be mounted in a volume that others can change, if there is one. In a
/// volume of the pod only an empty mount point is created, and only if nothing is written through it (ADR 48).
fn takes_no_files(volume: &Volume, beside: &Beside<'_>) -> Option<&'static str> {
    if !volume.is_of_pod() {
        return Some("secret files cannot be mounted in a volume of the host or of an image");
    }
    if volume.read_only {
        return Some("no mount point can be created in a read-only volume of the pod");
    }
    beside.is_writable.then_some("writable files cannot be mounted in a volume of the pod")
}

/// Checks that no secret file of a step is in a volume that others can change.
pub(super) fn for_steps(volumes: &[Volume], processes: &[PlannedProcess], report: &mut Report) {
    for file in processes.iter().flat_map(|process| &process.files) {
        let mut of_others = volumes.iter().filter(|volume| volume.empty().is_none());
        if let Some(volume) = of_others.find(|volume| file.path.starts_with(&volume.path)) {
            let shown = shorten(&volume.path.display().to_string());
            let why =
                format!("is in the volume at `{shown}`: a step's secret files can be mounted only in an empty volume");
            report.add(file.path_field(), Conflict.because(why));
        }
    }
}

fn sub_path(path: &Path) -> Result<(), FieldFault> {
    let text = path.to_str().ok_or_else(|| NotUtf8.because("is not UTF-8"))?;
    check_path(text)?;
    let normal: PathBuf = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    if normal.as_os_str() != path.as_os_str() {
        let why = format!(
            "`{}` is not valid: it must be a relative path without `.`, `//` or a `/` at its end",
            shorten(text)
        );
        return Err(InvalidFormat.because(why));
    }
    Ok(())
}

fn source(
    volume: &Volume,
    (policy, pod): (&Policy, Option<&PodRole>),
    field: &dyn Fn(&str) -> String,
    report: &mut Report,
) {
    match &volume.source {
        VolumeSource::Empty(empty) => {
            if !volume.sub_path.as_os_str().is_empty() {
                report.add(field("sub_path"), Conflict.because("an empty volume has no directories to mount"));
            }
            if volume.read_only {
                report.add(field("read_only"), Conflict.because("a read-only empty volume could never have content"));
            }
            let least = if empty.medium == Medium::Disk { DISK_MIN } else { TMPFS_MIN };
            if empty.bytes != 0 && !(least..=TMPFS_MAX).contains(&empty.bytes) {
                let why = format!("is {}; {least} to {TMPFS_MAX} is allowed", empty.bytes);
                report.add(field("empty.size_bytes"), OutOfRange.because(why));
            }
            if empty.mode > 0o7777 {
                let why = format!("is {:o}; permission bits are at most 7777", empty.mode);
                report.add(field("empty.mode"), OutOfRange.because(why));
            }
            if empty.gid == Some(u32::MAX) {
                report.add(field("empty.gid"), OutOfRange.because(format!("is {}, which is not a group id", u32::MAX)));
            }
        }
        VolumeSource::Host(name) => match policy.volumes.iter().find(|known| known.name == *name) {
            None => {
                let names: Vec<&str> = policy.volumes.iter().map(|known| &*known.name).collect();
                report.add(field("host.name"), unknown_name(name, &names, "volumes (tables `[[volumes]]`)"));
            }
            Some(known) if known.read_only && !volume.read_only => {
                let why = format!("`{name}` is read-only in this daemon's configuration: set read_only");
                report.add(field("read_only"), NotAllowed.because(why));
            }
            Some(_) => {}
        },
        VolumeSource::HostPath(path) => {
            if let Err(why) = host_path(path, policy) {
                report.add(field("host_path.path"), why);
            }
        }
        VolumeSource::Image(asked) => {
            if !volume.read_only {
                report.add(field("read_only"), Required.because("the files of an image are read-only: set read_only"));
            }
            if let Err(why) = check_image(asked, policy) {
                report.add(field("image.reference"), why);
            }
        }
        VolumeSource::Pod(name) => {
            if !matches!(pod, Some(PodRole::Member { .. })) {
                report.add(field("pod"), Conflict.because("requires a container that is a member of a pod"));
            }
            if let Err(why) = pods::check_pod_volume_name(name) {
                report.add(field("pod.name"), why);
            }
        }
    }
}

fn host_path(path: &Path, policy: &Policy) -> Result<(), FieldFault> {
    surroundings::plain_path(path)?;
    if policy.host_path_around(path).is_some() {
        return Ok(());
    }
    let shown = shorten(&path.display().to_string());
    let listed: Vec<String> =
        policy.host_paths.iter().take(NAMES_SHOWN).map(|listed| listed.display().to_string()).collect();
    let listed = if listed.is_empty() { "is empty".to_owned() } else { format!("has {}", listed.join(", ")) };
    let why = format!(
        "`{shown}` is not below a directory of policy.host_paths, which {listed} in this daemon's configuration"
    );
    Err(NotAllowed.because(why))
}

fn check_image(asked: &VolumeImage, policy: &Policy) -> Result<(), FieldFault> {
    image::check_parts(&asked.reference, &asked.digest, &asked.layers)?;
    let reference = asked.reference.parse().map_err(|bad: BadReference| InvalidFormat.because(bad.to_string()))?;
    if policy.images.is_set() {
        policy.images.permits(&reference).map_err(|no| NotAllowed.because(no.to_string()))?;
    }
    Ok(())
}

/// Returns the fault of a name that is not in one of the operator's lists, with the names in the list. `list` describes
/// the list and its place in the configuration.
pub(super) fn unknown_name(name: &str, known: &[&str], list: &str) -> FieldFault {
    let shown = shorten(name);
    if known.is_empty() {
        return UnknownValue.because(format!("{shown:?} does not exist: this daemon's configuration has no {list}"));
    }
    let names = &known[..known.len().min(NAMES_SHOWN)];
    let more = known.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    UnknownValue
        .because(format!("{shown:?} does not exist; this daemon's configuration has {}{more}", names.join(", ")))
}

/// Checks a name that the operator gives to a host resource.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if plain && name.len() <= NAME_MAX && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let why = format!("1 to {NAME_MAX} of [A-Za-z0-9._-], beginning with a letter or a digit, are allowed");
    Err(format!("the name \"{}\" is not valid: {why}", shorten(name)))
}

/// Checks the operator's list of volumes. `reserved` are directories of the executor.
///
/// # Errors
/// Returns the invalid entry and the reason.
pub fn check_host_volumes(volumes: &[HostVolume], reserved: &[&Path]) -> Result<(), String> {
    if volumes.len() > HOST_VOLUMES_MAX {
        return Err(format!("{} entries; at most {HOST_VOLUMES_MAX} are allowed", volumes.len()));
    }
    let mut seen = BTreeSet::new();
    for HostVolume { name, path, .. } in volumes {
        check_name(name)?;
        if !seen.insert(name) {
            return Err(format!("the name {name:?} is given twice"));
        }
        of_host(path, reserved).map_err(|why| format!("the path of {name:?}, {}, {why}", path.display()))?;
    }
    Ok(())
}

/// Checks the operator's list of directories below which requests may mount any path. `reserved` are directories of the
/// executor.
///
/// # Errors
/// Returns the invalid entry and the reason.
pub fn check_host_paths(paths: &[PathBuf], reserved: &[&Path]) -> Result<(), String> {
    if paths.len() > HOST_VOLUMES_MAX {
        return Err(format!("{} entries; at most {HOST_VOLUMES_MAX} are allowed", paths.len()));
    }
    paths.iter().try_for_each(|path| of_host(path, reserved).map_err(|why| format!("{}: {why}", path.display())))
}

/// Checks a directory of the host that the operator offers.
fn of_host(path: &Path, reserved: &[&Path]) -> Result<(), String> {
    surroundings::mount_point(path, false).map_err(|why| why.to_string())?;
    match reserved.iter().find(|own| own.starts_with(path) || path.starts_with(own)) {
        Some(own) => Err(format!("overlaps a directory of the executor: {}", own.display())),
        None => Ok(()),
    }
}

impl Policy {
    /// Returns the innermost entry of `host_paths` that contains the path.
    pub fn host_path_around(&self, path: &Path) -> Option<&Path> {
        let around = self.host_paths.iter().filter(|listed| path.starts_with(listed));
        around.max_by_key(|listed| listed.components().count()).map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImagePolicy, ImageRules};
    use crate::plan::{Action, Actions, Plan, Surroundings};
    use crate::validate::{Draft, DraftFile, DraftStep, Violation, recheck, validate};

    fn policy() -> Policy {
        let volume = |name: &str, read_only| HostVolume { name: name.into(), path: "/srv/x".into(), read_only };
        Policy { volumes: vec![volume("shared", false), volume("deps", true)], ..Policy::default() }
    }

    fn host(name: &str, path: &str) -> Volume {
        let source = VolumeSource::Host(name.into());
        Volume { path: path.into(), source, sub_path: "".into(), read_only: false }
    }

    fn empty(medium: Medium, path: &str, bytes: u64) -> Volume {
        let source = VolumeSource::Empty(EmptyVolume { medium, bytes, mode: 0o1777, gid: None });
        Volume { path: path.into(), source, sub_path: "".into(), read_only: false }
    }

    fn image(reference: &str) -> Volume {
        let digest = format!("sha256:{}", "1".repeat(64));
        let image = VolumeImage { reference: reference.into(), layers: vec![digest.clone()], digest };
        Volume { path: "/i".into(), source: VolumeSource::Image(image), sub_path: "a/b".into(), read_only: true }
    }

    fn draft(volumes: &[Volume]) -> Draft<'static> {
        let volumes = volumes.to_vec();
        Draft { id: "a", path: "/a", rootfs: "dir:/r", memory_bytes: 64 << 20, volumes, ..Draft::default() }
    }

    fn plan(volumes: &[Volume]) -> Result<Plan, Vec<Violation>> {
        validate(&draft(volumes), &policy())
    }

    fn fields(planned: Result<Plan, Vec<Violation>>) -> Vec<String> {
        planned.err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn sizes_are_filled_in_and_the_order_stays() {
        let asked = [
            empty(Medium::Memory, "/m", 0),
            empty(Medium::Disk, "/d", 0),
            empty(Medium::Disk, "/a", DISK_MIN),
            Volume { sub_path: "a/b".into(), read_only: true, ..host("deps", "/deps") },
            image("docker://docker.io/library/debian:12"),
        ];
        let plan = plan(&asked).unwrap();
        let sizes: Vec<_> = plan.volumes.iter().filter_map(Volume::empty).map(|empty| empty.bytes).collect();
        assert_eq!(sizes, [64 << 20, 0, DISK_MIN]);
        assert_eq!(plan.volumes[3..], asked[3..]);
        recheck(&plan, &policy()).unwrap();
        let amount = crate::capacity::Amount::new(&plan.limits, &plan.volumes);
        assert_eq!(amount.disk_bytes, DISK_MIN);
        // The launcher has read another list.
        let reported = recheck(&plan, &Policy::default()).unwrap_err();
        assert_eq!(reported[0].field, "volumes[3].host.name");
        let mut wider = plan;
        wider.volumes[3].read_only = false;
        assert_eq!(recheck(&wider, &policy()).unwrap_err()[0].field, "volumes[3].read_only");
    }

    #[test]
    fn every_fault_is_reported_by_its_field() {
        for path in ["", "a", "/", "/a/", "/a//b", "/a/../b", "/a/.", "/proc", "/sys/x", "/dev", "/etc", "/etc/hosts"] {
            assert_eq!(fields(plan(&[host("shared", path)])), ["volumes[0].path"], "{path}");
        }
        for sub_path in ["/a", "..", "a/..", "a/", "a//b", "./a", "a\0"] {
            let volume = Volume { sub_path: sub_path.into(), ..host("shared", "/v") };
            assert_eq!(fields(plan(&[volume])), ["volumes[0].sub_path"], "{sub_path}");
        }
        let mode =
            VolumeSource::Empty(EmptyVolume { medium: Medium::Disk, bytes: 0, mode: 0o10000, gid: Some(u32::MAX) });
        let asked = [
            host("none", "/a"),
            host("deps", "/b"),
            host("shared", "/b"),
            empty(Medium::Disk, "/c", DISK_MIN - 1),
            empty(Medium::Memory, "/d", TMPFS_MAX + 1),
            Volume { source: mode, sub_path: "x".into(), read_only: true, ..host("", "/e") },
            Volume { read_only: false, ..image("docker://x/y:1") },
            Volume { path: "/j".into(), ..image("host") },
        ];
        let expected = [
            "volumes[0].host.name",
            "volumes[1].read_only",
            "volumes[2].path",
            "volumes[3].empty.size_bytes",
            "volumes[4].empty.size_bytes",
            "volumes[5].sub_path",
            "volumes[5].read_only",
            "volumes[5].empty.mode",
            "volumes[5].empty.gid",
            "volumes[6].read_only",
            "volumes[7].image.reference",
        ];
        assert_eq!(fields(plan(&asked)), expected);
        let many: Vec<Volume> = (0..=VOLUMES_MAX).map(|index| host("shared", &format!("/v{index}"))).collect();
        assert_eq!(fields(plan(&many)), ["volumes"]);
        assert_eq!(fields(plan(&many[1..])), [""; 0]);
        let rules = ImageRules { allow: Some(vec!["docker.io/library/*".into()]), ..ImageRules::default() };
        let images = ImagePolicy::new(&rules, false).unwrap();
        let reported = validate(&draft(&[image("docker://example.org/a:1")]), &Policy { images, ..policy() });
        assert_eq!(fields(reported), ["volumes[0].image.reference"]);
    }

    #[test]
    fn nothing_is_hidden_or_led_into_a_volume_of_others() {
        let file = |path: &'static str| vec![DraftFile::from(("volume_mounted_files[0]".into(), path, 1))];
        let tmpfs = |path: &str| Surroundings {
            tmpfs: vec![Tmpfs { path: path.into(), bytes: 4096, mode: 0, uid: 0, gid: 0, exec: false }],
            ..Surroundings::default()
        };
        let (shared, own) = (|path: &str| host("shared", path), |path: &str| empty(Medium::Disk, path, 0));
        for (volume, path, refused) in [
            (shared("/a"), "/a/b/key", true),
            (own("/a"), "/a/b/key", false),
            (own("/a/b/key"), "/a/b/key", true),
            (own("/a/b/key/c"), "/a/b/key", true),
            (shared("/a/b/other"), "/a/b/key", false),
        ] {
            let reported =
                fields(validate(&Draft { files: file(path), ..draft(std::slice::from_ref(&volume)) }, &policy()));
            assert_eq!(reported, vec!["volumes[0].path"; usize::from(refused)], "{volume:?}");
        }
        // In an empty file system the directory of the files is mounted after the volumes.
        for (path, refused) in [("/t/b/key", true), ("/t/key", false), ("/t/d/key", false)] {
            let asked = Draft { surroundings: tmpfs("/t"), files: file(path), ..draft(&[shared("/t/b/c")]) };
            assert_eq!(fields(validate(&asked, &policy())), vec!["volumes[0].path"; usize::from(refused)], "{path}");
        }
        let of_host = Draft { rootfs: "host", files: file("/run/b/key"), ..draft(&[shared("/run/b/c")]) };
        assert_eq!(fields(validate(&of_host, &policy())), ["volumes[0].path"]);
        let of_volumes = Draft { files: file("/e/b/key"), ..draft(&[own("/e"), shared("/e/b/c")]) };
        assert_eq!(fields(validate(&of_volumes, &policy())), ["volumes[1].path"]);
        for (path, volume, refused) in
            [("/v", own("/v"), true), ("/v/t", shared("/v"), true), ("/v/t", own("/v"), false)]
        {
            let asked = Draft { surroundings: tmpfs(path), ..draft(&[volume]) };
            assert_eq!(fields(validate(&asked, &policy())).len(), usize::from(refused), "{path}");
        }
        let declared = Draft { file_directories: vec!["/s/d"], ..draft(&[shared("/s"), own("/s/d")]) };
        assert_eq!(fields(validate(&declared, &policy())), ["volumes[0].path", "volumes[1].path"]);
        for path in ["/run", "/run/executor", "/run/executor/x"] {
            let asked = Draft { token_path: "/t", ..draft(&[shared(path)]) };
            assert_eq!(fields(validate(&asked, &policy())), ["volumes[0].path"], "{path}");
        }
        let policy = Policy { docker_socket: "/d.sock".into(), allow_host_userns: true, ..policy() };
        let mut asked = draft(&[shared("/var/run"), own("/var/other")]);
        (asked.isolation.docker_socket, asked.isolation.user_namespace) = (true, crate::plan::UserNamespace::Host);
        assert_eq!(fields(validate(&asked, &policy)), ["volumes[0].path"]);
    }

    #[test]
    fn volume_of_pod_takes_secret_files() {
        let member = |volumes: &[Volume]| {
            let role = PodRole::Member { pod: "p".parse().unwrap(), share_processes: false };
            Draft { pod: Some(role), file_directories: vec!["/data/conf"], ..draft(volumes) }
        };
        let of_pod = |path: &str| Volume { source: VolumeSource::Pod("v".into()), ..host("", path) };
        let planned = validate(&member(&[of_pod("/data")]), &policy()).unwrap();
        recheck(&planned, &policy()).unwrap();
        let file = vec![DraftFile::from(("volume_mounted_files[0]".into(), "/data/x/key", 1))];
        let with_file = Draft { files: file, ..member(&[of_pod("/data")]) };
        assert_eq!(fields(validate(&with_file, &policy())), [""; 0]);
        let read_only = Volume { read_only: true, ..of_pod("/data") };
        assert_eq!(fields(validate(&member(&[read_only]), &policy())), ["volumes[0].path"]);
        let writable = Draft { writable_files: Some(0), ..member(&[of_pod("/data")]) };
        assert_eq!(fields(validate(&writable, &policy())), ["volumes[0].path"]);
        let step = |path: &'static str| DraftStep {
            field: "action.serial.actions[0].run".into(),
            path: "/bin/true",
            files: vec![DraftFile::from(("action.serial.actions[0].run.volume_mounted_files[0]".into(), path, 1))],
            ..DraftStep::default()
        };
        let action = Action::Serial(vec![Action::Run(0)]);
        let actions =
            Actions { setup: None, action, sidecars: Vec::new(), restart: None, sidecar_limits: Default::default() };
        let with_step = |volume: &Volume, path| Draft {
            path: "",
            actions: Some(actions.clone()),
            steps: vec![step(path)],
            ..member(std::slice::from_ref(volume))
        };
        let own = empty(Medium::Disk, "/data", 0);
        for (volume, refused) in [(of_pod("/data"), true), (host("shared", "/data/x"), true), (own, false)] {
            let violations = fields(validate(&with_step(&volume, "/data/x/key"), &policy()));
            let field = "action.serial.actions[0].run.volume_mounted_files[0].path";
            assert_eq!(violations, vec![field; usize::from(refused)], "{volume:?}");
        }
        // Mounts around a volume of the pod, and below its files.
        let around = [host("shared", "/data"), of_pod("/data/conf")];
        assert_eq!(fields(validate(&member(&around), &policy())), ["volumes[0].path", "volumes[1].path"]);
        let below = [of_pod("/data"), host("shared", "/data/conf/x")];
        assert_eq!(fields(validate(&member(&below), &policy())), ["volumes[1].path"]);
    }

    #[test]
    fn the_list_of_the_operator() {
        for (path, allowed) in
            [("/srv/a", true), ("/", false), ("/srv", false), ("/srv/own/x", false), ("/proc/x", false)]
        {
            let listed = check_host_paths(&[path.into()], &[Path::new("/srv/own")]);
            assert_eq!(listed.is_ok(), allowed, "{path}: {listed:?}");
        }
        let volume = |name: &str, path: &str| HostVolume { name: name.into(), path: path.into(), read_only: false };
        let own = [Path::new("/run/executor"), Path::new("/var/lib/executor")];
        check_host_volumes(&[volume("a", "/srv/a"), volume("B-1.x_y", "/srv/a")], &own).unwrap();
        for (name, path, why) in [
            ("", "/srv", "the name"),
            ("-a", "/srv", "the name"),
            ("a/b", "/srv", "the name"),
            ("a", "srv", "absolute"),
            ("a", "/", "root directory"),
            ("a", "/srv/../etc", "`..`"),
            ("a", "/srv/", "at its end"),
            ("a", "/proc/1", "under /proc"),
            ("a", "/run/executor/x", "directory of the executor"),
            ("a", "/var", "directory of the executor"),
        ] {
            let reported = check_host_volumes(&[volume(name, path)], &own).unwrap_err();
            assert!(reported.contains(why), "{name} {path}: {reported}");
        }
        assert!(check_host_volumes(&[volume("a", "/a"), volume("a", "/b")], &own).unwrap_err().contains("twice"));
        let long = volume(&"a".repeat(NAME_MAX + 1), "/a");
        assert!(check_host_volumes(&[long], &own).is_err());
        let many = vec![volume("a", "/a"); HOST_VOLUMES_MAX + 1];
        assert!(check_host_volumes(&many, &own).unwrap_err().contains("at most"));
    }
}
