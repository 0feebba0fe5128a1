//! Random histories of calls, rotations, kills and restarts are compared with a model of each container. A failed test
//! prints its seed. EXECUTOR_HISTORY_SEED repeats the history of that seed.

use std::collections::BTreeMap;
use std::time::SystemTime;

use executor_proto::v1::event::Kind;
use executor_proto::v1::{Container, File, State, UpdateFilesRequest, failure};
use integration::api::exit;
use integration::daemon::kill;
use integration::request::{RequestBuilder, sh};
use integration::supervised::{Part, Supervised};
use integration::wait;
use tonic::Code;

const SEED: &str = "EXECUTOR_HISTORY_SEED";
/// Number of steps of a history.
const STEPS: usize = 160;
/// Maximum number of containers that run at the same time.
const LIVING_MAX: usize = 5;
/// Exit code of a container that exits on its own.
const QUICK: i32 = 5;
/// Exit code of a container that was requested to exit.
const ASKED: i32 = 7;

/// The model of a container.
#[derive(Clone, Debug)]
struct Known {
    /// True if the container exits on its own.
    quick: bool,
    /// True if the container was requested to exit.
    asked: bool,
    /// True if the container's shim was killed.
    shim_killed: bool,
    /// Number of successful updates.
    generation: u64,
}

struct History {
    node: Supervised,
    random: u64,
    containers: BTreeMap<String, Known>,
    made: usize,
    /// True if executord and the launcher were killed at the same time. Requests are then compared with a new key.
    key_lost: bool,
}

impl History {
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % bound
    }

    fn any(&mut self) -> Option<String> {
        let count = self.containers.len();
        if count == 0 {
            return None;
        }
        let index = self.below(count);
        self.containers.keys().nth(index).cloned()
    }

    fn step(&mut self) {
        let step = self.below(100);
        match step {
            0..24 => self.run(),
            24..34 => self.run_again(),
            34..46 => self.stop(),
            46..62 => self.update(),
            62..72 => self.delete(),
            72..80 => self.wait(),
            80..88 => self.observe(),
            _ => self.kill_and_restart(),
        }
    }

    fn request(id: &str, quick: bool) -> executor_proto::v1::RunRequest {
        let script = if quick {
            format!("exit {QUICK}")
        } else {
            format!("trap 'exit {ASKED}' TERM; while :; do sleep 0.02; done")
        };
        sh(&script).id(id).memory(16 << 20).file("a", format!("secret of {id}").as_bytes()).file("b", b"another one")
    }

    fn run(&mut self) {
        if self.containers.values().filter(|known| !known.quick).count() >= LIVING_MAX {
            return self.delete();
        }
        let quick = self.below(2) == 0;
        self.made += 1;
        let id = format!("c{}", self.made);
        let response = self.node.api.run(Self::request(&id, quick)).unwrap();
        assert!(response.created, "{id}");
        self.containers.insert(id, Known { quick, asked: false, shim_killed: false, generation: 1 });
    }

    /// Sends the same request again, which finds the same container in any state.
    fn run_again(&mut self) {
        let Some(id) = self.any() else { return };
        match self.node.api.run(Self::request(&id, self.containers[&id].quick)) {
            Ok(response) => {
                assert!(!response.created, "{id} was created twice");
                self.evaluate(&response.container.unwrap());
            }
            Err(status) => assert!(self.key_lost && status.code() == Code::AlreadyExists, "{id}: {status}"),
        }
    }

    fn stop(&mut self) {
        let Some(id) = self.any() else { return };
        self.containers.get_mut(&id).unwrap().asked = true;
        let container = self.node.api.stop(&id, None).unwrap();
        self.evaluate(&container);
    }

    fn update(&mut self) {
        let Some(id) = self.any() else { return };
        let known = self.containers[&id].clone();
        let file = |path: &str| File {
            path: path.into(),
            content: format!("{path} of {id} for the {}. time", known.generation).into(),
            ..File::default()
        };
        let request = UpdateFilesRequest {
            id: id.clone(),
            files: vec![file("a"), file("c")],
            expected_generation: Some(known.generation),
            ..UpdateFilesRequest::default()
        };
        match self.node.api.update(request) {
            Ok(container) => {
                assert_eq!(container.files_generation, known.generation + 1, "{id}");
                self.containers.get_mut(&id).unwrap().generation += 1;
            }
            // An update may fail only if the container has exited or is about to exit.
            Err(status) => {
                assert!(matches!(status.code(), Code::FailedPrecondition | Code::Unavailable), "{id}: {status}");
                assert!(known.quick || known.asked || known.shim_killed, "{id} runs: {status}");
            }
        }
    }

    fn delete(&mut self) {
        let Some(id) = self.any() else { return };
        let force = self.below(2) == 0;
        match self.node.api.delete(&id, force) {
            Ok(()) => {
                assert_eq!(self.node.api.get(&id).unwrap_err().code(), Code::NotFound, "{id}");
                self.containers.remove(&id);
            }
            Err(status) => assert!(!force && status.code() == Code::FailedPrecondition, "{id}: {status}"),
        }
    }

    fn wait(&mut self) {
        let Some(id) = self.any() else { return };
        let known = &self.containers[&id];
        if known.quick || known.asked || known.shim_killed {
            let container = self.node.api.wait(&id).unwrap();
            assert_eq!(container.state(), State::Completed);
            self.evaluate(&container);
        }
    }

    fn observe(&mut self) {
        let Some(id) = self.any() else { return };
        let container = self.node.api.get(&id).unwrap();
        self.evaluate(&container);
    }

    /// Kills a random selection of a shim, executord and the launcher. Then restarts executord and the launcher, as a
    /// supervisor does.
    fn kill_and_restart(&mut self) {
        let which = 1 + self.below(7);
        let shims = self.node.shims();
        if which & 4 != 0 && !shims.is_empty() {
            let shim = shims[self.below(shims.len())];
            // Find the container of this shim before the shim is killed.
            let named = |id: &&String| {
                let path = self.node.run_dir().join("containers").join(id).join("container.json");
                let record =
                    std::fs::read(path).ok().and_then(|json| serde_json::from_slice::<serde_json::Value>(&json).ok());
                record.is_some_and(|record| record["shim"]["pid"] == shim)
            };
            if let Some(id) = self.containers.keys().find(named).cloned() {
                self.containers.get_mut(&id).unwrap().shim_killed = true;
                kill(shim, 9);
            }
        }
        let first = self.below(2);
        for part in [first, 1 - first] {
            if which & (1 << part) != 0 {
                self.node.kill(if part == 0 { Part::Executord } else { Part::Launcher });
            }
        }
        self.key_lost |= which & 3 == 3;
        self.node.revive().unwrap();
    }

    /// Checks the conditions that must hold for a container in every history.
    fn evaluate(&self, container: &Container) {
        let known = &self.containers[&container.id];
        assert!(container.files_generation <= known.generation, "{known:?} {container:#?}");
        let Some(result) = &container.result else {
            assert_ne!(container.state(), State::Completed, "{container:#?}");
            return;
        };
        assert_eq!(container.state(), State::Completed, "{container:#?}");
        match result.failure.as_ref().map(|failure| failure.kind()) {
            // `Action` is the failure of an exit status other than 0.
            None | Some(failure::Kind::Action) => {
                let by_itself = known.quick && exit(container) == Ok(QUICK);
                // A container that exits on its own may be requested to exit before that.
                let asked = known.asked && matches!(exit(container), Ok(ASKED) | Err(15 | 9));
                assert!(by_itself || asked, "{known:?} {container:#?}");
            }
            Some(kind) => {
                assert_eq!(kind, failure::Kind::SupervisorLost, "{container:#?}");
                assert!(known.shim_killed, "the receipt is missing, although the shim was not killed: {container:#?}");
            }
        }
        // The receipt may be missing only if the shim was killed: then possibly no process could access the files.
        let wiped = result.wipe.as_ref().map(|wipe| wipe.verified);
        assert!(wiped == Some(true) || (wiped.is_none() && known.shim_killed), "{known:?} {container:#?}");
    }
}

fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var(SEED).map_or_else(|_| now(), |text| text.parse().expect("a number"));
    seed.max(1)
}

/// After any sequence of calls and kills, earlier responses stay valid, each container is completed at most once, and
/// its secrets are wiped. Nothing is left after all containers are deleted.
#[test]
fn random_histories_keep_earlier_responses_valid() {
    let seed = seed();
    eprintln!("to repeat this history, set {SEED}={seed}");
    let node = Supervised::start();
    let before = node.footprint();
    let mut history = History { node, random: seed, containers: BTreeMap::new(), made: 0, key_lost: false };
    for _ in 0..STEPS {
        history.step();
    }
    for id in history.containers.keys().cloned().collect::<Vec<_>>() {
        history.evaluate(&history.node.api.get(&id).unwrap());
        history.node.api.delete(&id, true).unwrap();
    }
    history.node.wait_until_back_at(&before, wait::DEFAULT_TIMEOUT).unwrap();
    assert!(history.made > 5, "control: something ran");

    // These events are the last in the event log.
    history.node.api.run_to_end(History::request("last", true));
    let is_last = |reported: &executor_proto::v1::WatchEventsResponse| {
        reported.event.as_ref().is_some_and(|event| event.container_id == "last" && event.kind() == Kind::Completed)
    };
    let events = history.node.api.events_after(0).until(is_last);
    let mut completed: BTreeMap<String, usize> = BTreeMap::new();
    for event in
        events.into_iter().filter_map(|reported| reported.event).filter(|event| event.kind() == Kind::Completed)
    {
        *completed.entry(event.container_id).or_default() += 1;
    }
    assert!(completed.values().all(|times| *times == 1), "{completed:?}");
    assert!(completed.len() > 1, "{completed:?}");
}
