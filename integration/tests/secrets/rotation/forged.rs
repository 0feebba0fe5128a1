//! A compromised daemon could send forged updates to a shim. They are refused and change nothing.

use std::os::fd::{AsFd, OwnedFd};

use crate::rotation::GENERATIONS;
use executor_core::lifecycle::State;
use executor_core::plan::Plan;
use executor_core::protocol::{Reason, Refused, ShimCall, UpdateFiles};
use executor_core::update::FileUpdate;
use executor_core::validate::{Draft, Policy, validate};
use executor_sys::memfile::MemFile;
use integration::launcher::{Launcher, Payload, Shim, encoded};

fn plan() -> Plan {
    let files = vec![("f[0]".to_owned(), "a", 3).into(), ("f[1]".to_owned(), "b", 3).into()];
    let draft = Draft { id: "c", path: "/bin/sleep", memory_bytes: 64 << 20, files, ..Draft::default() };
    validate(&draft, &Policy::default()).unwrap()
}

fn json(update: &FileUpdate) -> MemFile {
    let json = serde_json::to_vec(update).unwrap();
    let mut file = MemFile::create("update", json.len()).unwrap();
    file.fill(|bytes| bytes.copy_from_slice(&json)).unwrap();
    file
}

struct Site {
    launcher: Launcher,
    shim: Shim,
}

impl Site {
    fn start() -> Self {
        let launcher = Launcher::start(&[]);
        let payload = Payload { args: vec![b"1000"], files: vec![b"one", b"two"], ..Payload::default() };
        let shim = launcher.launch(&plan(), &payload).unwrap();
        shim.reach(State::Running).unwrap();
        Self { launcher, shim }
    }

    fn ask(&self, update: &FileUpdate, contents: &[&[u8]], signal: i32) -> Result<(), Refused> {
        let (list, contents) = (json(update), encoded(contents));
        let result = self.ask_with(&[list.into(), contents.as_fd().try_clone_to_owned().unwrap()], signal);
        assert!(contents.read(|bytes| bytes.iter().all(|byte| *byte == 0)).unwrap(), "contents are wiped either way");
        result
    }

    fn ask_with(&self, fds: &[OwnedFd], signal: i32) -> Result<(), Refused> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.shim.ask_with(ShimCall::UpdateFiles(UpdateFiles { signal }), &fds);
        self.shim.answer()
    }

    /// Lists the files, and the generations.
    fn files_and_generations(&self) -> (Vec<String>, Vec<String>) {
        let init = self.launcher.record("c").unwrap().prepared.unwrap().init.pid;
        let root = format!("/proc/{init}/root/etc/cf-service-bindings");
        let contents = ["a", "b"].map(|name| std::fs::read_to_string(format!("{root}/{name}")).unwrap());
        let generations = std::fs::read_dir(format!("/proc/{init}/root{GENERATIONS}")).unwrap();
        let names = generations.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        (contents.into(), names)
    }
}

#[test]
fn forged_update_changes_nothing() {
    let site = Site::start();
    let before = (site.files_and_generations(), site.launcher.record("c").unwrap());
    let mut files = plan().files;
    files[1].size = 5;
    let good = FileUpdate { base_generation: 1, files, changed: vec![1] };
    let forge = |change: fn(&mut FileUpdate)| {
        let mut update = good.clone();
        change(&mut update);
        update
    };
    let table: [(FileUpdate, Reason); 9] = [
        (forge(|update| update.base_generation = 7), Reason::Stale),
        (forge(|update| update.changed = vec![9]), Reason::Invalid),
        (forge(|update| update.changed.clear()), Reason::Invalid),
        (forge(|update| update.files[0].size = 4), Reason::Invalid),
        (forge(|update| update.files[1].path = "/etc/../../proc/x".into()), Reason::Invalid),
        (forge(|update| update.files[1].path = update.files[0].path.clone()), Reason::Invalid),
        (forge(|update| update.files[1].path = "/root/.ssh/authorized_keys".into()), Reason::Precondition),
        (forge(|update| update.files[1].size = 2_000_000), Reason::Invalid),
        (forge(|update| update.files[1].token = true), Reason::Invalid),
    ];
    for (update, reason) in table {
        let refused = site.ask(&update, &[b"FORGE"], 0).unwrap_err();
        assert_eq!(refused.reason(), reason, "{update:?}: {refused:?}");
        assert_eq!((site.files_and_generations(), site.launcher.record("c").unwrap()), before, "{update:?}");
    }
    let bad: [&[&[u8]]; 3] = [&[], &[b"FOUR"], &[b"FORGE", b"FORGE"]];
    for contents in bad {
        assert!(site.ask(&good, contents, 0).is_err(), "{} contents", contents.len());
    }
    for signal in [-1, 65, i32::MAX] {
        assert_eq!(site.ask(&good, &[b"FORGE"], signal).unwrap_err().reason(), Reason::Invalid);
    }
    // These descriptors have the wrong type.
    let plain = || OwnedFd::from(tempfile::tempfile().unwrap());
    let list = || OwnedFd::from(json(&good));
    for fds in [vec![], vec![list()], vec![list(), plain()], vec![plain(), list()], vec![list(), list(), list()]] {
        assert_eq!(site.ask_with(&fds, 0).unwrap_err().reason(), Reason::Invalid, "{} descriptors", fds.len());
    }
    assert!(site.ask_with(&[list(), list()], 0).is_err(), "a JSON file is not accepted as a payload");
    assert_eq!((site.files_and_generations(), site.launcher.record("c").unwrap()), before);

    site.ask(&good, &[b"three"], 0).unwrap();
    assert_eq!(site.files_and_generations().0, ["one", "three"], "control failed");
    let record = site.launcher.record("c").unwrap();
    assert_eq!((record.files_generation, record.plan.files[1].size), (2, 5));
}

/// A daemon cannot flood a shim: the amount of unwiped data is limited, and an update beyond the limit is refused with
/// that reason.
#[test]
fn updates_beyond_shim_limit_are_refused() {
    let site = Site::start();
    let update = |base_generation| FileUpdate { base_generation, files: plan().files, changed: vec![1] };
    let mut generation = 1;
    let refused = loop {
        match site.ask(&update(generation), &[b"new"], 0) {
            Ok(()) => generation += 1,
            Err(refused) => break refused,
        }
        assert!(generation < 2000, "the shim is never busy");
    };
    assert_eq!(refused.reason(), Reason::Busy, "{refused:?}");
    let generations =
        |site: &Site| site.files_and_generations().1.iter().filter(|name| name.starts_with("..gen")).count();
    assert!(generations(&site) <= 33, "{:?}", site.files_and_generations());
    integration::wait::until("old generations are gone", || (generations(&site) == 1).then_some(()));
    site.ask(&update(generation), &[b"end"], 0).unwrap();
    assert_eq!(site.files_and_generations().0, ["one", "end"]);
}
