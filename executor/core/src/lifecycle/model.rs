//! Tests the lifecycle with a model of the daemon, the launcher and one shim. Each process can crash at any step, and
//! daemon and launcher can be restarted. The state in the kernel, on disk and in the ledger survives. State transitions
//! use the real [`advance`].
//!
//! The input is random sequences of steps, crashes and restarts. Each sequence must reach the same final state, and no
//! step may report completion before the wipe.

use super::{State, advance};

/// An event of a random sequence: progress of a process, a client's request, a crash or a restart.
#[derive(Clone, Copy, Debug)]
enum ModelStep {
    /// The shim takes its next step.
    Shim,
    /// The process exits by itself.
    ProcessEnds,
    /// A client stops the container.
    Stop,
    /// The launcher takes its next step for a container without a shim.
    Launcher,
    /// The daemon reads the state on disk.
    Daemon,
    KillShim,
    KillLauncher,
    KillDaemon,
    StartLauncher,
    StartDaemon,
}

const STEPS: [ModelStep; 10] = [
    ModelStep::Shim,
    ModelStep::ProcessEnds,
    ModelStep::Stop,
    ModelStep::Launcher,
    ModelStep::Daemon,
    ModelStep::KillShim,
    ModelStep::KillLauncher,
    ModelStep::KillDaemon,
    ModelStep::StartLauncher,
    ModelStep::StartDaemon,
];

/// A container with daemon, launcher and shim.
#[derive(Debug)]
struct World {
    shim: bool,
    launcher: bool,
    daemon: bool,
    /// State in the container's record on disk.
    record: State,
    /// True if the exit record is on disk.
    exit_record: bool,
    /// True while the run directory exists. The run directory is removed last.
    run_dir: bool,
    process: bool,
    /// True if the record states that the process was started.
    ran: bool,
    secrets: bool,
    stop: bool,
    /// Content of the ledger: the states that the daemon has reported for the container.
    reported: Vec<State>,
}

impl World {
    /// Creates a world with an accepted container and a forked shim.
    fn new() -> Self {
        Self {
            shim: true,
            launcher: true,
            daemon: true,
            record: State::Initializing,
            exit_record: false,
            run_dir: true,
            process: false,
            ran: false,
            secrets: false,
            stop: false,
            reported: vec![State::Reserved],
        }
    }

    fn step(&mut self, step: ModelStep) {
        match step {
            ModelStep::Shim if self.shim => self.step_shim(),
            ModelStep::ProcessEnds if self.record >= State::Created => self.process = false,
            ModelStep::Stop if self.shim => self.stop = true,
            ModelStep::Launcher if self.launcher && !self.shim && self.run_dir => self.finish(),
            ModelStep::Daemon if self.daemon => self.poll_state(),
            ModelStep::KillShim => self.shim = false,
            ModelStep::KillLauncher => self.launcher = false,
            ModelStep::KillDaemon => self.daemon = false,
            ModelStep::StartLauncher => self.launcher = true,
            ModelStep::StartDaemon => self.daemon = true,
            _ => {}
        }
    }

    fn step_shim(&mut self) {
        match self.record {
            State::Initializing if !self.secrets => (self.secrets, self.process) = (true, true),
            State::Initializing => self.record = State::Created,
            State::Created if !self.process => (self.ran, self.record) = (true, State::Wiping),
            State::Created => (self.ran, self.record) = (true, State::Running),
            State::Running | State::Stopping if !self.process => self.record = State::Wiping,
            State::Running if self.stop => self.record = State::Stopping,
            State::Stopping => self.process = false,
            State::Wiping => {
                self.finish();
                self.shim = self.run_dir;
            }
            _ => {}
        }
    }

    /// Executes the next cleanup step. Each cleanup step may be repeated.
    fn finish(&mut self) {
        if self.process {
            self.process = false;
        } else if self.secrets {
            self.secrets = false;
        } else if !self.exit_record {
            self.exit_record = true;
        } else {
            self.run_dir = false;
        }
    }

    fn poll_state(&mut self) {
        let now = self.reported[self.reported.len() - 1];
        let seen = if self.exit_record { State::Completed } else { self.record.min(State::Wiping) };
        self.reported.extend(advance(now, seen, self.ran));
    }

    /// Checks that nothing is reported as completed before the wipe, and that the records agree.
    fn check(&self) -> Result<(), String> {
        let reported = |state| self.reported.iter().filter(|one| **one == state).count();
        let rules = [
            (self.exit_record && self.secrets, "an exit record before the wipe"),
            (reported(State::Completed) > 0 && (self.secrets || self.process), "completed before the wipe"),
            (reported(State::Completed) > reported(State::Wiping), "completed without wiping"),
            (reported(State::Completed) > 1, "completed twice"),
            (!self.run_dir && !self.exit_record, "forgotten"),
            (self.ran && reported(State::Wiping) > reported(State::Running), "running was never reported"),
            (self.reported.windows(2).any(|pair| pair[0] >= pair[1]), "a state reported twice or out of order"),
        ];
        rules.iter().find(|(broken, _)| *broken).map_or(Ok(()), |(_, what)| Err(format!("{what}: {self:?}")))
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

    /// Every sequence ends in `completed` exactly once, after the wipe, regardless of which process crashes at which
    /// step, if daemon and launcher are restarted eventually.
    #[test]
    fn every_path_ends_wiped_and_then_completed(steps in proptest::collection::vec(0usize..STEPS.len(), 0..60)) {
        let mut world = World::new();
        for step in steps {
            world.step(STEPS[step]);
            proptest::prop_assert_eq!(world.check(), Ok(()));
        }
        // Finally the launcher and the daemon are restarted, and the process is stopped. A shim is not restarted.
        let at_last = [ModelStep::StartLauncher, ModelStep::StartDaemon, ModelStep::Stop, ModelStep::Shim, ModelStep::Launcher, ModelStep::Daemon];
        for step in at_last.into_iter().cycle().take(20 * at_last.len()) {
            world.step(step);
            proptest::prop_assert_eq!(world.check(), Ok(()));
        }
        proptest::prop_assert_eq!(world.reported.last(), Some(&State::Completed));
        proptest::prop_assert!(!world.secrets && !world.process && !world.run_dir && !world.shim, "{:?}", world);
    }
}

/// Control: the test detects a launcher that writes the record before the wipe.
#[test]
fn a_record_before_the_wipe_is_caught() {
    let mut world = World::new();
    (world.secrets, world.exit_record) = (true, true);
    assert!(world.check().unwrap_err().starts_with("an exit record before the wipe"));
}
