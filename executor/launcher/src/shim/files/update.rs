//! Updates the secret files of a running container: validates new files, writes them next to the old files, swaps them
//! in and records them.
//!
//! ```text
//!   take      receive the list and the contents as descriptors; validate the whole plan with the new list
//!   write     a helper in the container's memory cgroup writes the new generation, which is not visible yet
//!   swap      one rename for each directory; a single mounted file is replaced by a mount beneath it,
//!             by a helper in the container's mount namespace
//!   record    write the new list and generation to the disk, and inform the daemon
//!   linger    keep the old generation for a moment, for programs that have just opened it, then wipe it
//! ```
//! If a step fails, the old generation stays in use and the new generation is removed.

mod swap;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use executor_core::lifecycle::State;
use executor_core::payload::{self, BYTES_MAX};
use executor_core::placement::{VolumeSize, content_size};
use executor_core::plan::{Plan, PlannedFile};
use executor_core::protocol::{PLAN_MAX, Reason, Refused, UPDATE_FDS};
use executor_core::record::{ContainerRecord, PreparedContainer, RECORD_MAX};
use executor_core::update::{FileUpdate, NextContent, PlacedUpdate, forbidden};
use executor_core::validate::{Policy, Violation, recheck};
use executor_secrets::volume::{Pass, Replaced, Rotation, Volume};
use executor_sys::heap;
use executor_sys::memfile::MemFile;
use executor_sys::mount::{self, open_dir};
use executor_sys::process;

use super::helper::{self, HelperError, HelperFailure};
use super::inject::{copy_contents, decode_contents, ownership};
use crate::errors::failed;
use crate::finish::now;
use crate::host::Host;
use crate::log::{self, Level};
use crate::rootfs::file_groups;
use crate::shim::Ready;
use crate::shim::output::container_log::Log;
use crate::shim::output::redaction::MaskedValues;
use swap::Swap;

/// Time for which an old generation is kept. A program that opens two files through the same directory opens them
/// within microseconds of each other. Half a second is enough even if the program is not scheduled in between, and is
/// too short for old credentials to matter.
const OLD_GENERATION_LIFETIME: Duration = Duration::from_millis(500);
/// Retry interval for wiping a generation while a process has a lease on one of its files.
const WIPE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of old generations. With [`OLD_GENERATION_LIFETIME`], this allows 64 updates per second.
const LINGERING_MAX: usize = 32;
/// The old generations of a container may use at most its memory limit divided by this number.
const LINGERING_SHARE: u64 = 8;
/// Kernel memory for a file in addition to its pages, in bytes, rounded up: inode, directory entry, links.
const FILE_OVERHEAD: u64 = 2048;

/// Maximum number of warnings in a container's record after updates.
const WARNINGS_MAX: usize = 20;

/// An update of the secret files, as received from the daemon.
pub(crate) struct Update {
    /// Signal for the main process after the update. 0 means none.
    pub(crate) signal: i32,
    /// Descriptors as listed by `UPDATE_FDS`.
    pub(crate) fds: Vec<OwnedFd>,
}

/// Old generations that have not been wiped yet.
#[derive(Default)]
pub(crate) struct Generations(Vec<Lingering>);

struct Lingering {
    replaced: Replaced,
    /// Bytes of files that only this generation has.
    bytes: u64,
    due: Instant,
}

impl Generations {
    /// Returns the time at which the next old generation must be wiped.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.iter().map(|old| old.due).min()
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|old| old.bytes).sum()
    }
}

/// Wipes the old generations that are due.
pub(crate) fn wipe_due(ready: &mut Ready) {
    let now = Instant::now();
    let Some(volume) = ready.remains.volumes.first() else { return };
    let before = ready.generations.0.len();
    let rotated = &mut ready.remains.rotated;
    ready.generations.0.retain_mut(|old| {
        if old.due > now {
            return true;
        }
        match volume.wipe_replaced(&old.replaced) {
            Ok(receipt) => rotated.wiped = std::mem::take(&mut rotated.wiped).and(receipt),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                old.due = now + WIPE_RETRY_INTERVAL;
                return true;
            }
            Err(error) => log::line(
                Level::Error,
                ready.record.plan.id.as_str(),
                format_args!(
                    "old secret files could not be wiped now; they are wiped when the container exits: {error}"
                ),
            ),
        }
        false
    });
    if before > 0 && ready.generations.0.is_empty() {
        heap::trim();
    }
}

/// Executes an update, without sending the signal.
pub(crate) fn execute(host: &Host, ready: &mut Ready, update: Update) -> Result<(), Refused> {
    let Update { signal, fds } = update;
    let (list, contents) = take(fds)?;
    let result = if (0..=64).contains(&signal) {
        evaluate(host, ready, &list).and_then(|validated| replace(host, ready, &validated, &contents))
    } else {
        Err(Refused::new(Reason::Invalid, format!("signal {signal} is invalid; use 1 to 64, or 0 for no signal")))
    };
    if let Err(error) = contents.wipe() {
        let id = ready.record.plan.id.as_str();
        log::line(Level::Error, id, format_args!("the contents of an update were not wiped: {error}"));
    }
    result
}

/// Returns the memory files of the list, which is JSON, and of the contents.
fn take(fds: Vec<OwnedFd>) -> Result<(MemFile, MemFile), Refused> {
    let Ok([list, contents]) = <[OwnedFd; UPDATE_FDS.len()]>::try_from(fds) else {
        return Err(Refused::new(Reason::Invalid, "an update needs two descriptors: list and contents"));
    };
    let invalid = |error: io::Error| Refused::new(Reason::Invalid, error.to_string());
    let contents = MemFile::from_fd_to_wipe(contents, BYTES_MAX as u64).map_err(invalid)?;
    Ok((MemFile::from_fd(list, PLAN_MAX).map_err(invalid)?, contents))
}

struct ValidatedUpdate {
    update: FileUpdate,
    placed: PlacedUpdate,
    record: ContainerRecord,
}

/// Validates an update against the current state and the launcher's own policy, which may differ from the daemon's.
fn evaluate(host: &Host, ready: &Ready, list: &MemFile) -> Result<ValidatedUpdate, Refused> {
    let record = &ready.record;
    may_be_updated(record)?;
    let parsed = list.read(|bytes| serde_json::from_slice::<FileUpdate>(bytes)).map_err(|error| invalid(&error))?;
    let update = parsed.map_err(|error| invalid(&error))?;
    let (plan, placed) = place(record, &update, &host.policy, mount::attaches_beneath)?;
    let with_files = |prepared: PreparedContainer| -> Result<PreparedContainer, Refused> {
        let root = open_dir(&ready.remains.dirs.stage).map_err(|error| failed("cannot open the rootfs", &error))?;
        let file_groups = file_groups(root.as_fd(), &plan.files, prepared.file_groups, record.id_map())?;
        Ok(PreparedContainer { mounts: placed.mounts.clone(), file_groups, ..prepared })
    };
    let prepared = record.prepared.clone().map(with_files).transpose()?;
    let record = ContainerRecord {
        plan,
        prepared,
        files_generation: record.files_generation + 1,
        files_updated_at: Some(now()),
        ..record.clone()
    };
    Ok(ValidatedUpdate { update, placed, record })
}

fn invalid(error: &dyn std::fmt::Display) -> Refused {
    Refused::new(Reason::Invalid, format!("update: {error}"))
}

/// Rejects updates of a container that is not running, or whose files must not be updated.
fn may_be_updated(record: &ContainerRecord) -> Result<(), Refused> {
    if record.state != State::Running {
        let why = format!(
            "container {} is {}: files can be replaced only while it runs",
            record.plan.id,
            record.state.name()
        );
        return Err(Refused::new(Reason::Precondition, why));
    }
    forbidden(&record.plan).map_or(Ok(()), |why| Err(Refused::new(Reason::Precondition, why)))
}

/// Returns the plan with the new list of files, and the mount points of the files.
fn place(
    record: &ContainerRecord,
    update: &FileUpdate,
    policy: &Policy,
    replaces_mounts: impl FnOnce() -> bool,
) -> Result<(Plan, PlacedUpdate), Refused> {
    if update.base_generation != record.files_generation {
        let why = format!(
            "the files have generation {}; the update is based on generation {}",
            record.files_generation, update.base_generation
        );
        return Err(Refused::new(Reason::Stale, why));
    }
    update.check(&record.plan).map_err(|error| invalid(&error))?;
    let plan = Plan { files: update.files.clone(), ..record.plan.clone() };
    recheck(&plan, policy).map_err(|violations| Refused::from_fields(Reason::Invalid, &violations))?;
    let unfit = |violations: Vec<Violation>| Refused::from_fields(Reason::Precondition, &violations);
    let mounts = record.prepared.as_ref().map_or(&[][..], |prepared| &prepared.mounts);
    let placed = update.place(&record.plan, mounts).map_err(unfit)?;
    if placed.changes.is_empty() {
        return Err(invalid(&"no file changes"));
    }
    let alone = singles(update, &placed);
    if !alone.is_empty() && !replaces_mounts() {
        return Err(unfit(alone));
    }
    Ok((plan, placed))
}

/// Returns a violation for each file that is mounted as a single file. Used if the kernel cannot replace such mounts.
fn singles(update: &FileUpdate, placed: &PlacedUpdate) -> Vec<Violation> {
    let single = |next: &NextContent| {
        if let NextContent::File(payload) = next { update.changed.get(*payload).copied() } else { None }
    };
    let files = placed.changes.iter().filter_map(|change| update.files.get(single(&change.next)?));
    let violation = |file: &PlannedFile| {
        let why = format!(
            "`{}` is mounted as a single file, and this kernel cannot replace such a mount (Linux 6.5 or later can)",
            file.path.display()
        );
        Violation::new(format!("{}.path", file.field), why)
    };
    files.map(violation).collect()
}

/// Writes a new generation, swaps it in, and records it.
fn replace(host: &Host, ready: &mut Ready, validated: &ValidatedUpdate, contents: &MemFile) -> Result<(), Refused> {
    let ValidatedUpdate { update, placed, record } = validated;
    let old = update.replaced_bytes(&ready.record.plan, host.page);
    let new: u64 = update.changed.iter().map(|index| update.files[*index].size.div_ceil(host.page) * host.page).sum();
    let overhead = FILE_OVERHEAD * update.files.len() as u64;
    make_room(host, ready, old, new + overhead)?;
    reserve_record_space(ready, record)?;
    let volume = ready
        .remains
        .volumes
        .first()
        .ok_or_else(|| Refused::new(Reason::Internal, "the container has no secret files"))?;
    grow(host, volume, &record.plan)?;

    let id = record.plan.id.as_str();
    let rotation = Rotation::start(volume, record.files_generation, &placed.mounts, &placed.changes)
        .map_err(|error| failed("cannot prepare the new secret files", &error))?;
    let kills = host.hierarchies.oom_kills(&record.cgroup);
    let written = helper::run_passing(
        |pass| write(host, record, update, &rotation, contents, pass).map(|()| Vec::new()),
        |file| volume.hold(file),
    );
    if let Err(error) = written {
        let killed = host.hierarchies.oom_kills(&record.cgroup) > kills && matches!(error, HelperError::Killed);
        ready.remains.rotated.helpers_killed += u64::from(killed);
        discard(id, rotation);
        return Err(if error.is_out_of_memory() { no_memory(record, new) } else { error.into() });
    }
    // Mask the new values before the process can print them. Stop if masking fails.
    let masked = announce(&mut ready.watch, &mut ready.log, validated, contents);
    let masked = match masked.and_then(|masked| reserve_record_space(ready, &masked).map(|()| masked)) {
        Ok(masked) => masked,
        Err(refused) => {
            withdraw(&mut ready.watch, &mut ready.log);
            discard(id, rotation);
            return Err(refused);
        }
    };
    let record = &masked;
    let swap = Swap { volume, rotation: &rotation, placed, prepared: record.prepared.as_ref() };
    let recorded = swap.apply().and_then(|()| {
        ready.remains.dirs.write_record(record).map_err(|error| failed("cannot write the container's record", &error))
    });
    if let Err(refused) = recorded {
        match swap.revert() {
            Ok(()) => {
                withdraw(&mut ready.watch, &mut ready.log);
                discard(id, rotation);
            }
            Err(error) => {
                log::line(
                    Level::Error,
                    id,
                    format_args!("the old secret files could not be restored: {}", error.message),
                );
            }
        }
        return Err(refused);
    }
    match rotation.finish() {
        Ok(replaced) => {
            let due = Instant::now() + OLD_GENERATION_LIFETIME;
            ready.generations.0.push(Lingering { replaced, bytes: old, due });
        }
        Err(error) => {
            log::line(Level::Error, id, format_args!("old secret files remain until the container exits: {error}"));
        }
    }
    ready.watch.confirm(&update.files);
    ready.record = masked;
    Ok(())
}

/// Masks the new values in addition to the current values, because the process may print a new value as soon as it is
/// visible. Returns the record with the resulting warnings.
fn announce(
    watch: &mut MaskedValues,
    log: &mut Log,
    validated: &ValidatedUpdate,
    contents: &MemFile,
) -> Result<ContainerRecord, Refused> {
    let ValidatedUpdate { update, record, .. } = validated;
    let changed: Vec<&PlannedFile> = update.changed.iter().map(|index| &update.files[*index]).collect();
    let masked = watch.announce(&changed, contents);
    masked.map_err(|error| failed("cannot mask the new secrets", &error))?;
    let masking = watch.masking();
    let mut record = record.clone();
    warn(&mut record, masking.warnings());
    log.mask(masking);
    Ok(record)
}

/// Adds new warnings to a record, up to the limit. Returns true if any was added.
pub(crate) fn warn(record: &mut ContainerRecord, warnings: &[String]) -> bool {
    let Some(PreparedContainer { warnings: reported, .. }) = &mut record.prepared else { return false };
    let news: Vec<String> = warnings.iter().filter(|warning| !reported.contains(warning)).cloned().collect();
    let before = reported.len();
    reported.extend(news.into_iter().take(WARNINGS_MAX.saturating_sub(before)));
    reported.len() > before
}

/// Stops masking the values of a failed update.
fn withdraw(watch: &mut MaskedValues, log: &mut Log) {
    watch.withdraw();
    log.mask(watch.masking());
}

/// Refuses an update if there are too many old generations or too little free memory in the container.
fn make_room(host: &Host, ready: &Ready, old: u64, new: u64) -> Result<(), Refused> {
    let record = &ready.record;
    let lingering = (ready.generations.0.len(), ready.generations.bytes());
    match room(lingering, old, new, record.plan.limits.memory_max(), || host.hierarchies.memory_room(&record.cgroup)) {
        GenerationRoom::Enough => Ok(()),
        GenerationRoom::None => Err(no_memory(record, new)),
        GenerationRoom::Later => {
            let why = format!(
                "container {} still has {} old generations of its files; try again in {} ms",
                record.plan.id,
                lingering.0,
                OLD_GENERATION_LIFETIME.as_millis()
            );
            Err(Refused::new(Reason::Busy, why))
        }
    }
}

/// Result of checking whether memory is available for another generation.
#[derive(Debug, PartialEq, Eq)]
enum GenerationRoom {
    Enough,
    /// Enough memory will be available after old generations are wiped.
    Later,
    /// The container has too little memory.
    None,
}

/// Checks whether `new` bytes of memory are available. `lingering` contains the number and the bytes of replaced
/// generations. The current generation, of `old` bytes, becomes one of them. `memory` is the container's memory limit,
/// in bytes. `free` returns the unused bytes of this limit, if known.
fn room(
    lingering: (usize, u64),
    old: u64,
    new: u64,
    memory: u64,
    free: impl FnOnce() -> Option<u64>,
) -> GenerationRoom {
    let (count, bytes) = lingering;
    if count >= LINGERING_MAX || (count > 0 && bytes + old > memory / LINGERING_SHARE) {
        return GenerationRoom::Later;
    }
    match free() {
        Some(free) if free < new && count > 0 => GenerationRoom::Later,
        Some(free) if free < new => GenerationRoom::None,
        _ => GenerationRoom::Enough,
    }
}

fn no_memory(record: &ContainerRecord, new: u64) -> Refused {
    let why = format!(
        "is {}; too little memory is free for {new} more bytes of secret files",
        record.plan.limits.memory_bytes
    );
    Refused::from_fields(Reason::Exhausted, &[Violation::new("limits.memory_bytes", why)])
}

/// Checks that the record is not too large to be read, and reserves enough space for the exit record.
pub(crate) fn reserve_record_space(ready: &Ready, record: &ContainerRecord) -> Result<(), Refused> {
    let size = serde_json::to_vec(record).map_or(u64::MAX, |json| json.len() as u64);
    if size > RECORD_MAX {
        let why = format!("the container's record would be {size} bytes; the maximum is {RECORD_MAX}");
        return Err(Refused::from_fields(Reason::Exhausted, &[Violation::new("files", why)]));
    }
    ready.remains.dirs.grow_exit_space(record).map_err(|error| failed("cannot reserve space for the record", &error))
}

/// Grows the volume so that it can hold another generation in addition to its contents.
fn grow(host: &Host, volume: &Volume, plan: &Plan) -> Result<(), Refused> {
    let error = |error| failed("cannot resize the secret file system", &error);
    let Some((now, used)) = volume.size().map_err(error)? else { return Ok(()) };
    let (new, entries) = (content_size(&plan.files, host.page), plan.files.len() as u64);
    // A directory entry with a long name also needs a page. Each file has a link for programs that watch its directory.
    let wanted = VolumeSize {
        bytes: (used.bytes + new.bytes + (2 * entries + 16) * host.page).max(now.bytes),
        inodes: (used.inodes + new.inodes + 2 * entries + 64).max(now.inodes),
    };
    if wanted == now { Ok(()) } else { volume.resize(wanted).map_err(error) }
}

/// Writes the new generation in the helper. The generation is charged to the container's memory.
fn write(
    host: &Host,
    record: &ContainerRecord,
    update: &FileUpdate,
    rotation: &Rotation<'_>,
    contents: &MemFile,
    pass: &mut Pass<'_>,
) -> Result<(), HelperFailure> {
    let failed = |what: &str| {
        let what = what.to_owned();
        |error| HelperFailure(what, error)
    };
    // If memory is short, let the OOM killer choose this process and not a process of the container.
    process::be_expendable().map_err(failed("cannot set oom_score_adj"))?;
    let ids = record.id_map();
    let prepared = record
        .prepared
        .as_ref()
        .ok_or_else(|| HelperFailure("cannot determine the user".into(), io::ErrorKind::NotFound.into()))?;
    let (owner, access) = ownership(&update.files, &prepared.user, &prepared.file_groups, ids);
    let sizes = update.changed.iter().map(|index| update.files[*index].size);
    let copy = copy_contents(contents)?;
    let decoded = decode_contents(&copy, sizes)?;
    host.hierarchies.join_memory(&record.cgroup).map_err(failed("cannot join the memory cgroup"))?;
    rotation.write(&decoded, &access, owner, pass).map_err(failed("cannot write the secret files"))?;
    // If the daemon has given up, it has overwritten the contents from the start, and the copy may be incomplete.
    let mut head = [0; payload::HEAD];
    contents.read_start(&mut head).map_err(failed("cannot read the contents"))?;
    if head == payload::head(update.changed.len()) {
        Ok(())
    } else {
        Err(HelperFailure(
            "cannot read the contents".into(),
            io::Error::other("the daemon overwrote the contents during the update"),
        ))
    }
}

fn discard(id: &str, rotation: Rotation<'_>) {
    if let Err(error) = rotation.discard() {
        log::line(Level::Error, id, format_args!("files of a failed update remain until the container exits: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use executor_core::ident::ProcessIdentity;
    use executor_core::placement::{Content, MountPoint};
    use executor_core::time::Timestamp;
    use executor_core::users::ResolvedUser;
    use executor_core::validate::{Draft, UpdateDraft, validate, validate_update};

    use super::*;

    fn record() -> ContainerRecord {
        let files = ["db/user", "db/password", "/etc/key"].map(|path| ("f".to_owned(), path, 10).into());
        let draft = Draft { id: "c1", path: "/bin/true", files: files.into(), ..Draft::default() };
        let directory = vec![(0, "db/user".into()), (1, "db/password".into())];
        let point = |target: &str, content| MountPoint { target: target.into(), content, in_fresh_mount: false };
        let shim = ProcessIdentity { pid: 1, start_time: 1, boot_id: String::new() };
        let user = ResolvedUser { uid: 0, gid: 0, groups: Vec::new(), home: "/".into() };
        let prepared = PreparedContainer {
            init: shim.clone(),
            user,
            extra_groups: Vec::new(),
            device_environment: Vec::new(),
            mounts: vec![
                point("/etc/cf-service-bindings", Content::Directory(directory)),
                point("/etc/key", Content::File(2)),
            ],
            file_groups: Default::default(),
            volume: None,
            nofile: 0,
            warnings: Vec::new(),
            network: None,
            steps: Vec::new(),
            at: Timestamp(2),
        };
        ContainerRecord {
            state: State::Running,
            prepared: Some(prepared),
            started_at: Some(Timestamp(2)),
            files_generation: 3,
            ..ContainerRecord::first(
                validate(&draft, &Policy::default()).expect("a plan"),
                (Timestamp(1), Timestamp(1)),
                shim,
                "c1".into(),
            )
        }
    }

    fn update(files: &[&str], removed: &[&str]) -> FileUpdate {
        let files = files.iter().enumerate().map(|(index, path)| (format!("files[{index}]"), *path, 1).into());
        let draft = UpdateDraft { files: files.collect(), removed: removed.to_vec(), signal: 0 };
        let planned = validate_update(&draft, &record().plan, &Policy::default()).expect("an update");
        FileUpdate { base_generation: 3, files: planned.files, changed: planned.changed }
    }

    #[test]
    fn invalid_updates_are_refused_against_record() {
        let one = || update(&["db/password"], &[]);
        let stale = FileUpdate { base_generation: 2, ..one() };
        let nothing = FileUpdate { base_generation: 3, files: record().plan.files, changed: Vec::new() };
        let forged = {
            let mut forged = one();
            forged.files[0].size += 1;
            forged
        };
        let refused = |reason, words: &'static str| Err((reason, words));
        let cases = [
            ("one file", one(), true, Ok(1)),
            ("a file by itself", update(&["/etc/key"], &[]), true, Ok(1)),
            ("both", update(&["/etc/key", "db/user"], &[]), true, Ok(2)),
            ("a removal", update(&[], &["db/user"]), false, Ok(1)),
            ("stale", stale, true, refused(Reason::Stale, "generation 3; the update is based on generation 2")),
            ("nothing", nothing, true, refused(Reason::Invalid, "no file changes")),
            ("an unchanged file differs", forged, true, refused(Reason::Invalid, "update: ")),
            ("an old kernel", update(&["/etc/key"], &[]), false, refused(Reason::Precondition, "Linux 6.5")),
            ("no mount point", update(&["/srv/x"], &[]), true, refused(Reason::Precondition, "files[0].path")),
        ];
        for (name, update, replaces_mounts, expected) in cases {
            match (place(&record(), &update, &Policy::default(), || replaces_mounts), expected) {
                (Ok((plan, placed)), Ok(changes)) => {
                    assert_eq!((plan.files, placed.changes.len()), (update.files, changes), "{name}");
                }
                (Err(refused), Err((reason, words))) => {
                    assert_eq!(refused.reason(), reason, "{name}: {refused:?}");
                    assert!(format!("{refused:?}").contains(words), "{name}: {refused:?}");
                }
                (validated, _) => panic!("{name}: {validated:?}"),
            }
        }
    }

    #[test]
    fn only_a_container_that_runs_is_updated() {
        for state in [State::Created, State::Stopping, State::Wiping] {
            let refused =
                may_be_updated(&ContainerRecord { state, ..record() }).expect_err("the container does not run");
            assert!(refused.message.contains("files can be replaced only while it runs"), "{}", refused.message);
        }
        assert!(may_be_updated(&record()).is_ok());
    }

    #[test]
    fn generations_that_linger_have_bounds() {
        let memory = 8000; // 1000 bytes of it for old generations
        let cases = [
            ("the first one", (0, 0), 5000, 100, Some(100), GenerationRoom::Enough),
            ("no limit", (0, 0), 100, u64::MAX, None, GenerationRoom::Enough),
            ("too large for the container", (0, 0), 100, 101, Some(100), GenerationRoom::None),
            ("too large until old generations are wiped", (1, 10), 100, 101, Some(100), GenerationRoom::Later),
            ("within the share", (3, 900), 100, 1, Some(1), GenerationRoom::Enough),
            ("beyond the share", (3, 901), 100, 1, Some(1), GenerationRoom::Later),
            ("too many", (LINGERING_MAX, 0), 0, 0, Some(1), GenerationRoom::Later),
        ];
        for (name, lingering, old, new, free, expected) in cases {
            assert_eq!(room(lingering, old, new, memory, || free), expected, "{name}");
        }
    }
}
