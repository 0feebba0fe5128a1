//! New secret files for a container that runs: judged, written beside the old ones, swapped in, recorded.
//!
//! ```text
//!   take      the list and the contents, by descriptor; the whole plan is judged again with the new list
//!   write     a helper in the container's memory accounting writes the new generation, which nobody sees
//!   swap      one rename for each directory; a file that is mounted by itself is replaced by a mount beneath it,
//!             by a helper in the container's mount namespace
//!   record    the new list and generation are on disk, and the daemon is told
//!   linger    the old generation stays for a moment, for whoever has just looked it up, and is wiped
//! ```
//! A step that fails leaves the old generation in force, and nothing of the new one.

mod swap;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use executor_core::lifecycle::State;
use executor_core::payload::{self, BYTES_MAX};
use executor_core::placement::{VolumeSize, content_size};
use executor_core::plan::{Plan, PlannedFile};
use executor_core::protocol::{PLAN_MAX, Reason, Refused, UPDATE_FDS};
use executor_core::record::{ContainerRecord, Prepared, RECORD_MAX};
use executor_core::update::{FileUpdate, Next, Placed, forbidden};
use executor_core::validate::{Violation, recheck};
use executor_secrets::volume::{Pass, Replaced, Rotation, Volume};
use executor_sys::memfile::MemFile;
use executor_sys::mount::{self, open_dir};
use executor_sys::process;

use super::Ready;
use super::helper::{self, Failed, NotDone};
use super::inject::{access, owner, with_contents};
use super::stdio::Log;
use super::watch::Watch;
use crate::errors::failed;
use crate::finish::now;
use crate::host::Host;
use crate::log::{self, Level};
use crate::rootfs::file_groups;
use swap::Swap;

/// How long an old generation stays. A program that opens two files through one directory of it does so within
/// microseconds; half a second lets one through that is not scheduled meanwhile, and is short enough for an old
/// credential to be gone before anybody counts on it.
const LINGER: Duration = Duration::from_millis(500);
/// When a generation is tried again on a file of which somebody has a lease.
const LEASED: Duration = Duration::from_secs(1);
/// Most old generations at a time: with [`LINGER`], 64 updates a second can go on for ever.
const LINGERING_MAX: usize = 32;
/// What part of its memory old generations of a container may hold.
const LINGERING_SHARE: u64 = 8;
/// Bytes that the kernel takes for a file beside its pages, rounded up: inode, entry, links.
const FILE_OVERHEAD: u64 = 2048;

/// Most warnings that a container's record collects over its updates.
const WARNINGS_MAX: usize = 20;

/// An update as it came.
pub(super) struct Update {
    /// Sent to init afterwards; 0 for none.
    pub(super) signal: i32,
    /// As `UPDATE_FDS` say.
    pub(super) fds: Vec<OwnedFd>,
}

/// Old generations that are still there.
#[derive(Default)]
pub(super) struct Generations(Vec<Lingering>);

struct Lingering {
    replaced: Replaced,
    /// Of what only it has.
    bytes: u64,
    due: Instant,
}

impl Generations {
    /// When the next old generation is to be wiped.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.iter().map(|old| old.due).min()
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|old| old.bytes).sum()
    }
}

/// Wipes the old generations whose time has come.
pub(super) fn wipe_due(ready: &mut Ready) {
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
                old.due = now + LEASED;
                return true;
            }
            Err(error) => log::line(
                Level::Error,
                ready.record.plan.id.as_str(),
                format_args!("old secret files were not wiped, and will be at the end: {error}"),
            ),
        }
        false
    });
    if before > 0 && ready.generations.0.is_empty() {
        process::trim_heap();
    }
}

/// Carries an update out, but for the signal.
pub(super) fn carry_out(host: &Host, ready: &mut Ready, update: Update) -> Result<(), Refused> {
    let Update { signal, fds } = update;
    let (list, contents) = take(fds)?;
    let result = if (0..=64).contains(&signal) {
        judge(host, ready, &list).and_then(|judged| replace(host, ready, &judged, &contents))
    } else {
        Err(Refused::new(Reason::Invalid, format!("{signal} is no signal")))
    };
    if let Err(error) = contents.wipe() {
        let id = ready.record.plan.id.as_str();
        log::line(Level::Error, id, format_args!("the contents of an update were not wiped: {error}"));
    }
    result
}

/// The list as JSON, and the contents.
fn take(fds: Vec<OwnedFd>) -> Result<(MemFile, MemFile), Refused> {
    let Ok([list, contents]) = <[OwnedFd; UPDATE_FDS.len()]>::try_from(fds) else {
        return Err(Refused::new(Reason::Invalid, "an update comes with two descriptors"));
    };
    let invalid = |error: io::Error| Refused::new(Reason::Invalid, error.to_string());
    let contents = MemFile::from_fd_to_wipe(contents, BYTES_MAX as u64).map_err(invalid)?;
    Ok((MemFile::from_fd(list, PLAN_MAX).map_err(invalid)?, contents))
}

/// An update that may be carried out.
struct Judged {
    update: FileUpdate,
    placed: Placed,
    /// The record as it is to be.
    record: ContainerRecord,
}

/// Judges an update by what there is, and by the policy that the launcher read: whatever the daemon said of it.
fn judge(host: &Host, ready: &Ready, list: &MemFile) -> Result<Judged, Refused> {
    let invalid = |error: &dyn std::fmt::Display| Refused::new(Reason::Invalid, format!("update: {error}"));
    let record = &ready.record;
    if record.state != State::Running {
        let why = format!("container {} is {}: files are replaced while it runs", record.plan.id, record.state.name());
        return Err(Refused::new(Reason::Precondition, why));
    }
    if let Some(why) = forbidden(&record.plan) {
        return Err(Refused::new(Reason::Precondition, why));
    }
    let parsed = list.read(|bytes| serde_json::from_slice::<FileUpdate>(bytes)).map_err(|error| invalid(&error))?;
    let update = parsed.map_err(|error| invalid(&error))?;
    if update.base_generation != record.files_generation {
        let why = format!("the files are of generation {}, not {}", record.files_generation, update.base_generation);
        return Err(Refused::new(Reason::Stale, why));
    }
    update.check(&record.plan).map_err(|error| invalid(&error))?;
    let plan = Plan { files: update.files.clone(), ..record.plan.clone() };
    recheck(&plan, &host.policy).map_err(|violations| Refused::of_fields(Reason::Invalid, &violations))?;
    let unfit = |violations: Vec<Violation>| Refused::of_fields(Reason::Precondition, &violations);
    let mounts = record.prepared.as_ref().map_or(&[][..], |prepared| &prepared.mounts);
    let placed = update.place(&record.plan, mounts).map_err(unfit)?;
    if placed.changes.is_empty() {
        return Err(invalid(&"nothing changes"));
    }
    if !mount::attaches_beneath() {
        let alone = singles(&update, &placed);
        if !alone.is_empty() {
            return Err(unfit(alone));
        }
    }
    let with_files = |prepared: Prepared| -> Result<Prepared, Refused> {
        let root = open_dir(&ready.remains.dirs.stage).map_err(|error| failed("rootfs", &error))?;
        let file_groups = file_groups(root.as_fd(), &plan.files, prepared.file_groups, record.id_map())?;
        Ok(Prepared { mounts: placed.mounts.clone(), file_groups, ..prepared })
    };
    let prepared = record.prepared.clone().map(with_files).transpose()?;
    let record = ContainerRecord {
        plan,
        prepared,
        files_generation: record.files_generation + 1,
        files_updated_at: Some(now()),
        ..record.clone()
    };
    Ok(Judged { update, placed, record })
}

/// A violation for each file that is mounted by itself, on a kernel that cannot replace one.
fn singles(update: &FileUpdate, placed: &Placed) -> Vec<Violation> {
    let single =
        |next: &Next| if let Next::File(payload) = next { update.changed.get(*payload).copied() } else { None };
    let files = placed.changes.iter().filter_map(|change| update.files.get(single(&change.next)?));
    let violation = |file: &PlannedFile| {
        let why = format!(
            "`{}` is mounted by itself, and this kernel cannot replace such a mount (Linux 6.5 or later can)",
            file.path.display()
        );
        Violation::new(format!("{}.path", file.field), why)
    };
    files.map(violation).collect()
}

/// Writes, swaps and records a new generation.
fn replace(host: &Host, ready: &mut Ready, judged: &Judged, contents: &MemFile) -> Result<(), Refused> {
    let Judged { update, placed, record } = judged;
    let old = update.replaced_bytes(&ready.record.plan, host.page);
    let new: u64 = update.changed.iter().map(|index| update.files[*index].size.div_ceil(host.page) * host.page).sum();
    let overhead = FILE_OVERHEAD * update.files.len() as u64;
    make_room(host, ready, old, new + overhead)?;
    keep_records(ready, record)?;
    let volume = ready.remains.volumes.first().ok_or_else(|| Refused::new(Reason::Internal, "there is no volume"))?;
    grow(host, volume, &record.plan)?;

    let id = record.plan.id.as_str();
    let rotation = Rotation::begin(volume, record.files_generation, &placed.mounts, &placed.changes)
        .map_err(|error| failed("secret files", &error))?;
    let kills = host.hierarchies.oom_kills(&record.cgroup);
    let written = helper::run_passing(
        |pass| write(host, record, update, &rotation, contents, pass).map(|()| Vec::new()),
        |file| volume.hold(file),
    );
    if let Err(not_done) = written {
        let killed = host.hierarchies.oom_kills(&record.cgroup) > kills && matches!(not_done, NotDone::Killed);
        ready.remains.rotated.helpers_killed += u64::from(killed);
        discard(id, rotation);
        return Err(if not_done.is_for_want_of_memory() { no_memory(record, new) } else { not_done.into() });
    }
    // Masked before it is there to be printed; and no longer where it does not come into force.
    let masked = announce(&mut ready.watch, &mut ready.log, judged, contents);
    let masked = match masked.and_then(|masked| keep_records(ready, &masked).map(|()| masked)) {
        Ok(masked) => masked,
        Err(refused) => {
            withdraw(&mut ready.watch, &mut ready.log);
            discard(id, rotation);
            return Err(refused);
        }
    };
    let record = &masked;
    let swap = Swap { volume, rotation: &rotation, placed, prepared: record.prepared.as_ref() };
    let recorded = swap
        .forth()
        .and_then(|()| ready.remains.dirs.write_record(record).map_err(|error| failed("run directory", &error)));
    if let Err(refused) = recorded {
        match swap.back() {
            Ok(()) => {
                withdraw(&mut ready.watch, &mut ready.log);
                discard(id, rotation);
            }
            Err(error) => {
                log::line(Level::Error, id, format_args!("a swap could not be taken back: {}", error.message));
            }
        }
        return Err(refused);
    }
    match rotation.settle() {
        Ok(replaced) => {
            let due = Instant::now() + LINGER;
            ready.generations.0.push(Lingering { replaced, bytes: old, due });
        }
        Err(error) => {
            log::line(Level::Error, id, format_args!("old secret files stay until the container's end: {error}"));
        }
    }
    ready.watch.confirm(&update.files);
    ready.record = masked;
    Ok(())
}

/// Masks the new values from now on, beside those in force: the process may print one the moment that it is there. Gives
/// the record with what is to be said of that.
fn announce(watch: &mut Watch, log: &mut Log, judged: &Judged, contents: &MemFile) -> Result<ContainerRecord, Refused> {
    let Judged { update, record, .. } = judged;
    let changed: Vec<&PlannedFile> = update.changed.iter().map(|index| &update.files[*index]).collect();
    let masked = watch.announce(&changed, contents);
    masked.map_err(|error| failed("secrets to be masked", &error))?;
    let redactor = watch.redactor();
    let mut record = record.clone();
    if let Some(prepared) = &mut record.prepared {
        let news: Vec<String> =
            redactor.warnings().iter().filter(|warning| !prepared.warnings.contains(warning)).cloned().collect();
        prepared.warnings.extend(news.into_iter().take(WARNINGS_MAX.saturating_sub(prepared.warnings.len())));
    }
    log.mask(redactor);
    Ok(record)
}

/// Forgets values that did not come into force.
fn withdraw(watch: &mut Watch, log: &mut Log) {
    watch.withdraw();
    log.mask(watch.redactor());
}

/// Whether there is room for another generation: among those that linger, and in the container's memory.
fn make_room(host: &Host, ready: &Ready, old: u64, new: u64) -> Result<(), Refused> {
    let record = &ready.record;
    let lingering = ready.generations.0.len();
    let busy = || {
        let why = format!(
            "{lingering} earlier generations of the files of container {} are still there for programs that have just \
             looked them up; they go within {} ms",
            record.plan.id,
            LINGER.as_millis()
        );
        Err(Refused::new(Reason::Busy, why))
    };
    let share = record.plan.limits.memory_bytes / LINGERING_SHARE;
    if lingering >= LINGERING_MAX || (lingering > 0 && ready.generations.bytes() + old > share) {
        return busy();
    }
    match host.hierarchies.memory_room(&record.cgroup) {
        Some(room) if room < new && lingering > 0 => busy(),
        Some(room) if room < new => Err(no_memory(record, new)),
        _ => Ok(()),
    }
}

fn no_memory(record: &ContainerRecord, new: u64) -> Refused {
    let why = format!(
        "is {}, and what the container's processes leave of it does not hold another {new} bytes of secret files",
        record.plan.limits.memory_bytes
    );
    Refused::of_fields(Reason::Exhausted, &[Violation::new("limits.memory_bytes", why)])
}

/// The record must be readable, and the exit record must find room that is kept for it, whatever happens next.
fn keep_records(ready: &Ready, record: &ContainerRecord) -> Result<(), Refused> {
    let size = serde_json::to_vec(record).map_or(u64::MAX, |json| json.len() as u64);
    if size > RECORD_MAX {
        let why = format!("make a record of {size} bytes of this container; at most {RECORD_MAX}");
        return Err(Refused::of_fields(Reason::Exhausted, &[Violation::new("files", why)]));
    }
    ready.remains.dirs.keep_more_room(record).map_err(|error| failed("state directory", &error))
}

/// Room in the volume for another generation, beside all that is in it.
fn grow(host: &Host, volume: &Volume, plan: &Plan) -> Result<(), Refused> {
    let error = |error| failed("secret file system", &error);
    let Some((now, used)) = volume.size().map_err(error)? else { return Ok(()) };
    let (new, entries) = (content_size(&plan.files, host.page), plan.files.len() as u64);
    // An entry with a long name takes a page, too.
    let wanted = VolumeSize {
        bytes: (used.bytes + new.bytes + (entries + 16) * host.page).max(now.bytes),
        inodes: (used.inodes + new.inodes + entries + 64).max(now.inodes),
    };
    if wanted == now { Ok(()) } else { volume.resize(wanted).map_err(error) }
}

/// In the helper: as a part of the container, as far as memory goes.
fn write(
    host: &Host,
    record: &ContainerRecord,
    update: &FileUpdate,
    rotation: &Rotation<'_>,
    contents: &MemFile,
    pass: &mut Pass<'_>,
) -> Result<(), Failed> {
    let failed = |what: &str| {
        let what = what.to_owned();
        |error| Failed(what, error)
    };
    // Rather this process than one of the container's, if the kernel has to choose.
    process::be_expendable().map_err(failed("oom_score_adj"))?;
    let ids = record.id_map();
    let prepared = record.prepared.as_ref().ok_or_else(|| Failed("user".into(), io::ErrorKind::NotFound.into()))?;
    let (owner, access) = (owner(prepared, ids), access(&update.files, prepared, ids));
    let sizes = update.changed.iter().map(|index| update.files[*index].size);
    with_contents(contents, sizes, |contents| {
        host.hierarchies.join_memory(&record.cgroup).map_err(failed("memory cgroup"))?;
        rotation.write(contents, &access, owner, pass).map_err(failed("secret files"))
    })?;
    // A daemon that gave up meanwhile has overwritten them, from the beginning on: then what was copied may not be whole.
    let mut head = [0; payload::HEAD];
    contents.read_start(&mut head).map_err(failed("contents"))?;
    if head == payload::head(update.changed.len()) {
        Ok(())
    } else {
        Err(Failed("contents".into(), io::Error::other("they were taken back")))
    }
}

fn discard(id: &str, rotation: Rotation<'_>) {
    if let Err(error) = rotation.discard() {
        log::line(Level::Error, id, format_args!("files of a failed update stay until the container's end: {error}"));
    }
}
