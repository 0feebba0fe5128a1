use std::time::{Duration, Instant};

use executor_core::lifecycle::State;
use executor_core::time::Timestamp;
use executor_core::validate::{Draft, Policy, validate};

use super::*;
use crate::model::events::EventKind;

fn facts(id: &str) -> ContainerStatus {
    let plan = validate(&Draft { id, path: "/bin/true", ..Draft::default() }, &Policy::default()).unwrap();
    ContainerStatus::admitted(plan, "tag".into(), Timestamp(1), "boot".into())
}

fn event(cursor: u64) -> Arc<Event> {
    let container = "a".parse().unwrap();
    Arc::new(Event {
        cursor,
        time: Timestamp(2),
        container,
        kind: EventKind::Reached(State::Running),
        end: None,
        step: None,
        restarts: None,
    })
}

#[test]
fn ledger_entries_persist_across_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, loaded) = Ledger::open(dir.path()).unwrap();
    assert!(loaded.containers.is_empty() && loaded.starts == 1);
    ledger.put(Arc::new(facts("a")));
    ledger.put(Arc::new(facts("b")));
    let a = ContainerStatus { state: State::Running, ..facts("a") };
    ledger.put(Arc::new(a.clone()));
    ledger.remove(&"b".parse().unwrap());
    for cursor in 1..=5 {
        ledger.put_event(event(cursor), 3);
    }
    ledger.close(6);
    let (ledger, loaded) = Ledger::open(dir.path()).unwrap();
    assert_eq!(loaded.containers, [a]);
    assert_eq!(loaded.events.events.iter().map(|event| event.cursor).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!((loaded.events.next, loaded.starts), (6, 2));
    ledger.put_event(event(6), 6);
    ledger.close(7);
    let (_, loaded) = Ledger::open(dir.path()).unwrap();
    assert_eq!(loaded.events.events.len(), 1, "discarded entries are removed from the store");
}

/// If the ledger of an older executord lacks later fields, it is still readable after an upgrade.
#[test]
fn older_facts_are_read() {
    const FIRST: [&str; 9] =
        ["plan", "request_tag", "created_at", "boot_id", "state", "prepared", "started_at", "stopped", "end"];
    let facts = facts("a");
    let mut json = serde_json::to_value(&facts).unwrap();
    let fields = json.as_object_mut().unwrap();
    let before = fields.len();
    fields.retain(|name, _| FIRST.contains(&&**name));
    assert!(fields.len() >= FIRST.len() && fields.len() < before, "{fields:?}");
    assert_eq!(serde_json::from_value::<ContainerStatus>(json).unwrap(), facts);
}

#[test]
fn the_last_boot_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    for (boot_id, before) in [("one", None), ("two", Some("one"))] {
        let (ledger, loaded) = Ledger::open(dir.path()).unwrap();
        assert_eq!(loaded.boot_id.as_deref(), before);
        ledger.keep_boot(boot_id);
        ledger.close(1);
    }
}

#[test]
fn a_second_daemon_cannot_open_it() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Ledger::open(dir.path()).unwrap();
    assert!(executor_core::errors::chain(&Ledger::open(dir.path()).unwrap_err()).contains("already open"));
}

#[test]
fn corrupt_ledger_is_moved_and_cursors_advance() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("executord.redb"), "this is no store at all".repeat(1000)).unwrap();
    let (_ledger, loaded) = Ledger::open(dir.path()).unwrap();
    assert!(
        loaded.events.next > 1_000_000_000_000,
        "the cursor is not beyond every cursor that was sent: {}",
        loaded.events.next
    );
    let aside = std::fs::read_dir(dir.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("executord.redb.broken-"));
    assert_eq!(aside.count(), 1);
}

/// Waits for a condition that the writer thread fulfills.
fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

/// A file system of 4 MiB, unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        use rustix::mount::{MountFlags, mount};
        let dir = tempfile::tempdir().unwrap();
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), Some(c"size=4m")).unwrap();
        Self(dir)
    }

    fn fill(&self) -> PathBuf {
        use std::io::Write as _;
        let path = self.0.path().join("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
        while file.write_all(&[7]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// If the disk is full, running containers continue, and no reported event is lost when there is space again.
#[test]
#[ignore = "needs root, to mount"]
fn a_full_disk_is_reported_and_survived() {
    let disk = SmallDisk::mount();
    let (ledger, _) = Ledger::open(disk.0.path()).unwrap();
    ledger.put(Arc::new(facts("before")));
    let filler = disk.fill();
    let mut written = 0;
    until("the writer notices", || {
        // Fill up the space that the store has reserved.
        ledger.put(Arc::new(facts(&format!("c{written}-{}", "x".repeat(100)))));
        std::thread::sleep(Duration::from_millis(1));
        ledger.trouble().is_some()
    });
    written += 1;
    let trouble = ledger.trouble().unwrap();
    let state_dir = disk.0.path().parent().unwrap();
    assert_eq!(trouble, format!("state directory {}: No space left on device", state_dir.display()));
    ledger.put(Arc::new(facts(&format!("during{written}"))));
    std::fs::remove_file(filler).unwrap();
    until("the writer recovers", || ledger.trouble().is_none());
    ledger.close(77);
    let (_, loaded) = Ledger::open(disk.0.path()).unwrap();
    let ids: Vec<&str> = loaded.containers.iter().map(|facts| facts.plan.id.as_str()).collect();
    assert!(ids.contains(&"before") && ids.contains(&"during1"), "{ids:?}");
    assert_eq!(loaded.events.next, 77);
}

/// If a daemon starts on a full disk, it reads its ledger, removes containers that are deleted in the meantime, and
/// writes everything when there is space again. Cursors continue after those that an earlier daemon may have assigned.
#[test]
#[ignore = "needs root, to mount"]
fn ledger_survives_full_disk_at_start() {
    let disk = SmallDisk::mount();
    let (ledger, loaded) = Ledger::open(disk.0.path()).unwrap();
    ledger.put(Arc::new(facts("deleted")));
    ledger.put(Arc::new(facts("kept")));
    let given = loaded.events.reserved;
    ledger.close(given);
    // Fill up the space that the store has reserved, so that it must grow.
    for start in 1..=50 {
        let filler = disk.fill();
        let (ledger, loaded) = Ledger::open(disk.0.path()).unwrap();
        if ledger.trouble().is_none() {
            let bulk = "x".repeat(200);
            (0..200).for_each(|number| ledger.put(Arc::new(facts(&format!("c{start}-{number}-{bulk}")))));
            ledger.close(loaded.events.reserved);
            std::fs::remove_file(filler).unwrap();
            continue;
        }
        assert!(ledger.trouble().unwrap().ends_with("No space left on device"), "{:?}", ledger.trouble());
        assert!(loaded.containers.iter().any(|facts| facts.plan.id.as_str() == "kept"));
        assert!(loaded.events.next >= given && loaded.events.reserved > loaded.events.next);
        ledger.remove(&"deleted".parse().unwrap());
        std::fs::remove_file(filler).unwrap();
        until("the writer recovers", || ledger.trouble().is_none());
        ledger.close(loaded.events.next + 5);
        let (_, again) = Ledger::open(disk.0.path()).unwrap();
        let ids: Vec<&str> = again.containers.iter().map(|facts| facts.plan.id.as_str()).collect();
        assert!(ids.contains(&"kept") && !ids.contains(&"deleted"), "{ids:?}");
        assert_eq!((again.events.next, again.starts), (loaded.events.next + 5, loaded.starts + 1));
        return;
    }
    panic!("the disk was never full");
}

/// If a daemon cannot create the file, it starts without the file, and creates it when there is space again.
#[test]
#[ignore = "needs root, to mount"]
fn ledger_survives_full_disk_at_creation() {
    use rustix::mount::{MountFlags, mount};
    for (what, options) in [("bytes", c"size=4m"), ("files", c"size=4m,nr_inodes=3")] {
        let disk = SmallDisk(tempfile::tempdir().unwrap());
        mount("tmpfs", disk.0.path(), "tmpfs", MountFlags::empty(), Some(options)).unwrap();
        let filler = disk.fill();
        let second = disk.0.path().join("second");
        let _ = std::fs::write(&second, "");
        let (ledger, loaded) = Ledger::open(disk.0.path()).unwrap();
        assert!(ledger.trouble().is_some() && loaded.containers.is_empty(), "{what}");
        ledger.put(Arc::new(facts("a")));
        std::fs::remove_file(filler).unwrap();
        let _ = std::fs::remove_file(second);
        until("the writer recovers", || ledger.trouble().is_none());
        ledger.close(loaded.events.reserved);
        let (_, again) = Ledger::open(disk.0.path()).unwrap();
        assert_eq!((again.containers.len(), again.starts), (1, 2), "{what}");
    }
}
