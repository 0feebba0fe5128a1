//! Implements a reference interpreter of trees of actions. The model evaluates each subtree recursively, from its start
//! time and the time of its cancellation, without events. Tests execute random trees with both implementations.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pace::{BURST, PERIOD};
use super::*;
use crate::plan::{MAIN_PROCESS, RestartMode, RestartPolicy};

/// A generator of pseudo-random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit
    }
}

/// Behaviour of a process: run time, exit code, time to exit after a stop signal, and ability to start.
#[derive(Clone, Copy, Debug)]
struct Behaviour {
    lasts: u64,
    code: i32,
    lingers: u64,
    starts: bool,
}

/// Generates a random tree within a budget of actions.
fn random_action(random: &mut Random, budget: &mut u64, depth: u32, runs: &mut usize) -> Action {
    *budget = budget.saturating_sub(1);
    let leaf = *budget == 0 || depth == 8;
    let kind = if leaf { 0 } else { random.below(9) };
    let mut many = |random: &mut Random, budget: &mut u64| {
        (0..=random.below(4)).map(|_| random_action(random, budget, depth + 1, runs)).collect::<Vec<_>>()
    };
    match kind {
        3 => Action::Serial(many(random, budget)),
        4 => Action::Parallel(many(random, budget)),
        5 => Action::Codependent(many(random, budget)),
        6 => Action::Try(Box::new(random_action(random, budget, depth + 1, runs))),
        7 => {
            // Timeouts are odd and times of processes are even numbers of milliseconds, so a timeout never coincides
            // with the end of a process.
            let after = Duration::from_millis(2 * random.below(3000) + 1);
            Action::Timeout { action: Box::new(random_action(random, budget, depth + 1, runs)), after }
        }
        8 => {
            let messages = Messages {
                start: "begins".into(),
                success: "done".into(),
                failure_prefix: "failed".into(),
                log_source: String::new(),
            };
            Action::EmitProgress { action: Box::new(random_action(random, budget, depth + 1, runs)), messages }
        }
        _ => {
            *runs += 1;
            let index = *runs - 1;
            match random.below(8) {
                0 => Action::Download(index),
                1 => Action::Upload(index),
                _ => Action::Run(index),
            }
        }
    }
}

/// End of a subtree, as computed by the reference interpreter.
#[derive(Clone, Debug)]
struct SubtreeEnd {
    at: u64,
    error: Option<StepError>,
    /// Start and end of each started process, in each of its runs.
    ran: Runs,
}

/// Start and end of processes, by their indices and the numbers of their runs.
type Runs = BTreeMap<(usize, usize), (u64, u64)>;

/// Behaviour of each process by run: run `n` uses entry `n % 4`.
type Behaviours = [[Behaviour; 4]];

struct Reference<'a> {
    behaviours: &'a Behaviours,
    /// Number of the current run under the restart policy.
    run: std::cell::Cell<usize>,
}

impl Reference<'_> {
    fn eval(&self, action: &Action, start: u64, cancel: Option<u64>) -> SubtreeEnd {
        let cancelled_by = |at: u64| cancel.is_some_and(|cancel| cancel < at);
        match action {
            Action::Run(index) | Action::Download(index) | Action::Upload(index) => {
                let is_run = matches!(action, Action::Run(_));
                let run = self.run.get();
                let Behaviour { lasts, code, lingers, starts } = self.behaviours[*index][run % 4];
                let by_itself = start + if starts { lasts } else { 2 };
                let at = cancel.map_or(by_itself, |cancel| by_itself.min(cancel.max(start) + lingers));
                let error = match () {
                    () if cancelled_by(at) => Some(Why::Cancelled),
                    () if !is_run && (!starts || code != 0) => {
                        Some(Why::Message(format!("Failed to {}: lost", action.kind())))
                    }
                    () if !starts => Some(Why::Plain("exec".into())),
                    () if code != 0 => Some(Why::Message(format!("Exited with status {code}"))),
                    () => None,
                };
                let cause = match () {
                    () if !is_run => None,
                    () if starts => Some(Cause::Exit(Exit::Code(code))),
                    () => (!cancelled_by(at)).then_some(Cause::NotExecuted(2)),
                };
                SubtreeEnd {
                    at,
                    error: error.map(|why| StepError { why, cause }),
                    ran: BTreeMap::from([((*index, run), (start, at))]),
                }
            }
            Action::Serial(actions) => {
                let mut end = SubtreeEnd { at: start, error: None, ran: BTreeMap::new() };
                for action in actions {
                    let next = self.eval(action, end.at, cancel);
                    end.ran.extend(next.ran);
                    (end.at, end.error) = (next.at, next.error);
                    if end.error.is_some() || cancelled_by(end.at) {
                        break;
                    }
                }
                end
            }
            Action::Parallel(actions) => {
                let ends: Vec<SubtreeEnd> = actions.iter().map(|action| self.eval(action, start, cancel)).collect();
                Self::together(&ends, ends.iter().filter_map(|end| end.error.clone()).collect())
            }
            Action::Codependent(actions) => self.codependent(actions, start, cancel, true),
            Action::Try(action) => SubtreeEnd { error: None, ..self.eval(action, start, cancel) },
            Action::Timeout { action, after } => {
                let due = start + u64::try_from(after.as_millis()).unwrap();
                let without = self.eval(action, start, cancel);
                if without.at < due {
                    return without;
                }
                let end = self.eval(action, start, Some(cancel.map_or(due, |cancel| cancel.min(due))));
                let also = end.error.as_ref().and_then(StepError::reported).map(|reported| format!("; {reported}"));
                let text = format!("exceeded {} timeout{}", go_duration(*after), also.unwrap_or_default());
                let cause = end.error.as_ref().and_then(|error| error.cause);
                SubtreeEnd { error: Some(StepError { why: Why::Message(text), cause }), ..end }
            }
            Action::EmitProgress { action, .. } => self.eval(action, start, cancel),
        }
    }

    fn codependent(&self, actions: &[Action], start: u64, cancel: Option<u64>, fails_on_exit: bool) -> SubtreeEnd {
        let alone = actions.iter().map(|action| self.eval(action, start, cancel).at);
        // The first completed step cancels the others.
        let first = alone.min().unwrap_or(start);
        let cancel = Some(cancel.map_or(first, |cancel| cancel.min(first)));
        let ends: Vec<SubtreeEnd> = actions.iter().map(|action| self.eval(action, start, cancel)).collect();
        let mut order: Vec<&SubtreeEnd> = ends.iter().collect();
        order.sort_by_key(|end| end.at);
        let exited = || StepError::from_why(Why::Plain("Codependent step exited".into()));
        let errors = order.into_iter().filter_map(|end| end.error.clone().or_else(|| fails_on_exit.then(exited)));
        Self::together(&ends, errors.collect())
    }

    fn together(ends: &[SubtreeEnd], errors: Vec<StepError>) -> SubtreeEnd {
        let at = ends.iter().map(|end| end.at).max().unwrap_or_default();
        SubtreeEnd { at, error: join_errors(errors), ran: ends.iter().flat_map(|end| end.ran.clone()).collect() }
    }

    fn all(&self, actions: &Actions, cancel: Option<u64>) -> SubtreeEnd {
        let mut end = SubtreeEnd { at: 0, error: None, ran: BTreeMap::new() };
        if let Some(setup) = &actions.setup {
            end = self.eval(setup, 0, cancel);
            if end.error.is_some() || cancel.is_some_and(|cancel| cancel < end.at) {
                return end;
            }
        }
        let mut earlier = Pauses::default();
        loop {
            let main = if actions.sidecars.is_empty() {
                self.eval(&actions.action, end.at, cancel)
            } else {
                let all: Vec<Action> = std::iter::once(&actions.action).chain(&actions.sidecars).cloned().collect();
                self.codependent(&all, end.at, cancel, false)
            };
            end.ran.extend(main.ran.clone());
            let started = std::mem::replace(&mut end.at, main.at);
            end.error = main.error;
            let failed = end.error.as_ref().is_some_and(|error| !error.is_cancellation());
            let again = match actions.restart.as_ref().map(|policy| policy.mode) {
                None => false,
                Some(RestartMode::Always) => true,
                Some(RestartMode::OnFailure(most)) => failed && self.run.get() < most.unwrap() as usize,
            };
            let cancelled = |at: u64| cancel.is_some_and(|cancel| cancel < at);
            let (Some(policy), true, false) = (&actions.restart, again, cancelled(end.at)) else { return end };
            let pause = earlier.after(policy, end.at - started, end.at);
            if cancelled(end.at + pause) {
                let exit = if failed { end.error.and_then(|error| error.exit()) } else { Some(Exit::Code(0)) };
                let error = StepError { why: Why::Cancelled, cause: exit.map(Cause::Exit) };
                return SubtreeEnd { at: cancel.unwrap(), error: Some(error), ran: end.ran };
            }
            end.at += pause;
            self.run.set(self.run.get() + 1);
        }
    }
}

/// Computes the delays before restarts, from the number of consecutive restarts and the times of all restarts.
#[derive(Default)]
struct Pauses {
    row: u32,
    restarts: Vec<u64>,
}

impl Pauses {
    fn after(&mut self, policy: &RestartPolicy, ran: u64, now: u64) -> u64 {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap();
        if ran >= 2 * millis(policy.delay_max) {
            self.row = 0;
        }
        self.row += 1;
        let pause =
            if self.row == 1 { 0 } else { (millis(policy.delay_min) << (self.row - 2)).min(millis(policy.delay_max)) };
        // From any earlier restart to this restart, the pacer permits at most the burst plus one restart per period.
        let bound = |(since, begun): (usize, &u64)| {
            let beyond = (self.restarts.len() - since + 1).saturating_sub(BURST as usize);
            begun + beyond as u64 * millis(PERIOD)
        };
        let paced = self.restarts.iter().enumerate().map(bound).max().unwrap_or(0);
        let at = (now + pause).max(paced);
        self.restarts.push(at);
        at - now
    }
}

/// Converts milliseconds to a timestamp of the simulated clock.
fn at(millis: u64) -> Timestamp {
    Timestamp(millis * 1_000_000)
}

/// A scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DueEvent {
    Cancel,
    Expired(Timer),
    Ended(usize),
}

/// Executes the steps on a simulated clock. Returns the start and the end of each process.
fn execute(steps: &mut Steps, behaviours: &Behaviours, cancel: Option<u64>) -> Runs {
    let mut ran = Runs::new();
    let mut agenda: BTreeMap<(u64, DueEvent), ()> = cancel.map(|at| ((at, DueEvent::Cancel), ())).into_iter().collect();
    let mut now = 0;
    let mut orders = steps.start(at(0));
    loop {
        let run_of = |steps: &Steps, process: usize| {
            let restarts = steps.restarts().filter(|_| !is_setup(steps, process));
            restarts.map_or(0, |restarts| restarts.count as usize)
        };
        for order in orders.drain(..) {
            match order {
                StepOrder::Start(process) | StepOrder::Transfer(process) => {
                    let run = run_of(steps, process);
                    let Behaviour { lasts, starts, .. } = behaviours[process][run % 4];
                    let at = now + if starts { lasts } else { 2 };
                    let twice = ran.insert((process, run), (now, at)).is_some();
                    let is_done = steps
                        .step_of(process)
                        .map_or_else(|| steps.is_transfer_done(process), |_| steps.is_done(process));
                    assert!(!twice && !is_done, "process {process} was started twice");
                    agenda.insert((at, DueEvent::Ended(process)), ());
                }
                StepOrder::Cancel(process) | StepOrder::CancelTransfer(process) => {
                    let run = run_of(steps, process);
                    let (_, end) = ran.get_mut(&(process, run)).unwrap();
                    let sooner = now + behaviours[process][run % 4].lingers;
                    if sooner < *end {
                        agenda.remove(&(*end, DueEvent::Ended(process)));
                        *end = sooner;
                        agenda.insert((sooner, DueEvent::Ended(process)), ());
                    }
                }
                StepOrder::Expire(timer, after) => {
                    agenda.insert((now + u64::try_from(after.as_millis()).unwrap(), DueEvent::Expired(timer)), ());
                }
                StepOrder::Say { .. } | StepOrder::Clear(_) => {}
            }
        }
        if steps.conclusion().is_some() {
            return ran;
        }
        let ((at, due), ()) = agenda.pop_first().expect("an event is due until the tree has ended");
        now = at;
        steps.set_uptime(Duration::from_millis(now));
        orders = match due {
            DueEvent::Cancel => steps.cancel(self::at(now)),
            DueEvent::Expired(timer) => steps.expired(timer, self::at(now)),
            DueEvent::Ended(process) => {
                let Behaviour { code, starts, .. } = behaviours[process][run_of(steps, process) % 4];
                let exited = RunEnd::Exited { exit: Exit::Code(code), out_of_memory: false, killed: false };
                let end = if starts { exited } else { RunEnd::NotStarted { why: "exec".into(), errno: 2 } };
                let lost = if starts && code == 0 { TransferEnd::Done(1) } else { TransferEnd::Failed("lost".into()) };
                match steps.transfer_began(process).is_some() {
                    true => steps.transferred(process, lost, self::at(now)),
                    false => steps.ended(process, end, self::at(now)),
                }
            }
        };
    }
}

/// Returns true for a process of the setup action, which runs once.
fn is_setup(steps: &Steps, process: usize) -> bool {
    let step = steps.step_of(process).or_else(|| steps.step_of_transfer(process));
    step.is_some_and(|step| steps.steps[step].record.path.starts_with("setup"))
}

fn process() -> PlannedProcess {
    serde_json::from_value(serde_json::json!({
        "id": MAIN_PROCESS, "path": "/bin/true", "argument_count": 0, "dir": "/", "environment_names": [],
        "log_source": "", "suppress_log_output": false,
    }))
    .unwrap()
}

#[test]
fn random_trees_end_as_the_reference_says() {
    let mut kinds = BTreeMap::new();
    for seed in 1..=5_000u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut runs = 0;
        let mut tree = |random: &mut Random, most: u64| {
            let mut budget = 1 + random.below(most);
            random_action(random, &mut budget, 0, &mut runs)
        };
        let setup = (random.below(4) == 0).then(|| tree(&mut random, 10));
        let action = tree(&mut random, 60);
        let sidecars =
            if random.below(4) == 0 { vec![tree(&mut random, 10), tree(&mut random, 10)] } else { Vec::new() };
        let modes = [RestartMode::Always, RestartMode::OnFailure(Some(1 + random.below(6) as u32))];
        let restart = (random.below(3) == 0).then(|| RestartPolicy {
            mode: modes[random.below(2) as usize],
            // The delay is odd, like the timeouts of steps.
            delay_min: Duration::from_millis(2 * random.below(800) + 1),
            delay_max: Duration::from_millis(2 * random.below(3000) + 1601),
        });
        let for_ever = restart.as_ref().is_some_and(|policy| policy.mode == RestartMode::Always);
        let actions = Actions { setup, action, sidecars, restart, sidecar_limits: BTreeMap::new() };
        // The times are even numbers with a distinct remainder for each process, so that few processes end at the same
        // time.
        let mut behaviour = |index: usize| Behaviour {
            lasts: 4 + 2 * (random.below(1 << 20) * 512 + index as u64) % (1 << 13),
            code: if random.below(3) == 0 { 1 + i32::try_from(random.below(200)).unwrap() } else { 0 },
            lingers: 2 * (random.below(1 << 10) * 256 + index as u64 + 1),
            starts: random.below(12) != 0,
        };
        let behaviours: Vec<[Behaviour; 4]> = (0..runs).map(|index| [(); 4].map(|()| behaviour(index))).collect();
        let cancel =
            (for_ever || random.below(3) == 0).then(|| 2 * random.below(2000 + 30_000 * u64::from(for_ever)) + 1);
        let mut steps = Steps::new(&actions, &vec![process(); runs], &[]);
        let ran = execute(&mut steps, &behaviours, cancel);
        let expected = Reference { behaviours: &behaviours, run: Default::default() }.all(&actions, cancel);
        // The order of simultaneous events is undefined, and so are their consequences.
        let mut ends: Vec<u64> = ran.values().map(|(_, end)| *end).collect();
        ends.sort_unstable();
        if ends.windows(2).any(|pair| pair[0] == pair[1]) {
            *kinds.entry("tie").or_insert(0) += 1;
            continue;
        }
        assert_eq!(ran, expected.ran, "seed {seed}: {actions:?} {behaviours:?} {cancel:?}");
        let error = steps.steps[ROOT].error.clone();
        assert_eq!(error, expected.error, "seed {seed}: {actions:?} {behaviours:?} {cancel:?}");
        let running = steps.records().into_iter().filter(|step| step.state == StepState::Running).count();
        assert_eq!(running, 0, "seed {seed}");
        let conclusion = steps.conclusion().unwrap();
        assert_eq!(conclusion.failure.is_some(), error.as_ref().is_some_and(|error| !error.is_cancellation()));
        if steps.restarts().is_some_and(|restarts| restarts.count > 1) {
            *kinds.entry("restarted").or_insert(0) += 1;
        }
        let is_done = |leaf: usize| steps.is_done(leaf) && steps.is_transfer_done(leaf);
        assert!((0..runs).all(|process| ran.keys().all(|(index, _)| *index != process) || is_done(process)));
        *kinds.entry(if conclusion.failure.is_some() { "failed" } else { "other" }).or_insert(0) += 1;
    }
    // Each kind of result occurs often enough, and few trees are skipped.
    assert!(kinds["failed"] > 500 && kinds["other"] > 500 && kinds["restarted"] > 100, "{kinds:?}");
    assert!(kinds.get("tie").copied().unwrap_or(0) < 2_500, "{kinds:?}");
}
