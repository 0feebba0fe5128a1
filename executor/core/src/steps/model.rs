//! A reference interpreter of trees of actions: evaluates a tree recursively, each subtree from its start and the time of its
//! cancellation, and knows no events. Random trees are carried out by both.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::plan::MAIN_PROCESS;

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

/// What a process does: runs for a time, then exits; ends some time after it was told to.
#[derive(Clone, Copy, Debug)]
struct Behaviour {
    lasts: u64,
    code: i32,
    lingers: u64,
    starts: bool,
}

/// A tree that grows until its budget of actions is used up.
fn grow(random: &mut Random, budget: &mut u64, depth: u32, runs: &mut usize) -> Action {
    *budget = budget.saturating_sub(1);
    let leaf = *budget == 0 || depth == 8;
    let kind = if leaf { 0 } else { random.below(9) };
    let mut many = |random: &mut Random, budget: &mut u64| {
        (0..=random.below(4)).map(|_| grow(random, budget, depth + 1, runs)).collect::<Vec<_>>()
    };
    match kind {
        3 => Action::Serial(many(random, budget)),
        4 => Action::Parallel(many(random, budget)),
        5 => Action::Codependent(many(random, budget)),
        6 => Action::Try(Box::new(grow(random, budget, depth + 1, runs))),
        7 => {
            // Odd, where the times of processes are even: nothing happens at the same time.
            let after = Duration::from_millis(2 * random.below(3000) + 1);
            Action::Timeout { action: Box::new(grow(random, budget, depth + 1, runs)), after }
        }
        8 => {
            let messages = Messages {
                start: "begins".into(),
                success: "done".into(),
                failure_prefix: "failed".into(),
                log_source: String::new(),
            };
            Action::EmitProgress { action: Box::new(grow(random, budget, depth + 1, runs)), messages }
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

/// End of a subtree by the reference.
#[derive(Clone, Debug)]
struct End {
    at: u64,
    error: Option<StepError>,
    /// Start and end of each process that was started.
    ran: BTreeMap<usize, (u64, u64)>,
}

struct Reference<'a> {
    behaviours: &'a [Behaviour],
}

impl Reference<'_> {
    fn eval(&self, action: &Action, start: u64, cancel: Option<u64>) -> End {
        let cancelled_by = |at: u64| cancel.is_some_and(|cancel| cancel < at);
        match action {
            Action::Run(index) | Action::Download(index) | Action::Upload(index) => {
                let is_run = matches!(action, Action::Run(_));
                let Behaviour { lasts, code, lingers, starts } = self.behaviours[*index];
                let by_itself = start + if starts { lasts } else { 2 };
                let at = cancel.map_or(by_itself, |cancel| by_itself.min(cancel.max(start) + lingers));
                let error = match () {
                    () if cancelled_by(at) => Some(Why::Cancelled),
                    () if !is_run && (!starts || code != 0) => {
                        Some(Why::Told(format!("Failed to {}: lost", action.kind())))
                    }
                    () if !starts => Some(Why::Plain("exec".into())),
                    () if code != 0 => Some(Why::Told(format!("Exited with status {code}"))),
                    () => None,
                };
                let exit = (is_run && starts).then_some(Exit::Code(code));
                End {
                    at,
                    error: error.map(|why| StepError { why, exit }),
                    ran: BTreeMap::from([(*index, (start, at))]),
                }
            }
            Action::Serial(actions) => {
                let mut end = End { at: start, error: None, ran: BTreeMap::new() };
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
                let ends: Vec<End> = actions.iter().map(|action| self.eval(action, start, cancel)).collect();
                Self::together(&ends, ends.iter().filter_map(|end| end.error.clone()).collect())
            }
            Action::Codependent(actions) => self.codependent(actions, start, cancel, true),
            Action::Try(action) => End { error: None, ..self.eval(action, start, cancel) },
            Action::Timeout { action, after } => {
                let due = start + u64::try_from(after.as_millis()).unwrap();
                let without = self.eval(action, start, cancel);
                if without.at < due {
                    return without;
                }
                let end = self.eval(action, start, Some(cancel.map_or(due, |cancel| cancel.min(due))));
                let also = end.error.as_ref().and_then(StepError::told).map(|told| format!("; {told}"));
                let text = format!("exceeded {} timeout{}", go_duration(*after), also.unwrap_or_default());
                let exit = end.error.as_ref().and_then(|error| error.exit);
                End { error: Some(StepError { why: Why::Told(text), exit }), ..end }
            }
            Action::EmitProgress { action, .. } => self.eval(action, start, cancel),
        }
    }

    fn codependent(&self, actions: &[Action], start: u64, cancel: Option<u64>, fails_on_exit: bool) -> End {
        let alone = actions.iter().map(|action| self.eval(action, start, cancel).at);
        // The first end cancels the others; the one that it is about is not cancelled by it.
        let first = alone.min().unwrap_or(start);
        let cancel = Some(cancel.map_or(first, |cancel| cancel.min(first)));
        let ends: Vec<End> = actions.iter().map(|action| self.eval(action, start, cancel)).collect();
        let mut order: Vec<&End> = ends.iter().collect();
        order.sort_by_key(|end| end.at);
        let exited = || StepError::of(Why::Plain("Codependent step exited".into()));
        let errors = order.into_iter().filter_map(|end| end.error.clone().or_else(|| fails_on_exit.then(exited)));
        Self::together(&ends, errors.collect())
    }

    fn together(ends: &[End], errors: Vec<StepError>) -> End {
        let at = ends.iter().map(|end| end.at).max().unwrap_or_default();
        End { at, error: several(errors), ran: ends.iter().flat_map(|end| end.ran.clone()).collect() }
    }

    fn all(&self, actions: &Actions, cancel: Option<u64>) -> End {
        let mut end = End { at: 0, error: None, ran: BTreeMap::new() };
        if let Some(setup) = &actions.setup {
            end = self.eval(setup, 0, cancel);
            if end.error.is_some() || cancel.is_some_and(|cancel| cancel < end.at) {
                return end;
            }
        }
        let main = if actions.sidecars.is_empty() {
            self.eval(&actions.action, end.at, cancel)
        } else {
            let all: Vec<Action> = std::iter::once(&actions.action).chain(&actions.sidecars).cloned().collect();
            self.codependent(&all, end.at, cancel, false)
        };
        end.ran.extend(main.ran.clone());
        End { ran: end.ran, ..main }
    }
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Cancel,
    Expired(usize),
    Ended(usize),
}

/// Carries the steps out on a clock of its own. Returns when each process ran.
fn carry_out(steps: &mut Steps, behaviours: &[Behaviour], cancel: Option<u64>) -> BTreeMap<usize, (u64, u64)> {
    let mut ran = BTreeMap::new();
    let mut agenda: BTreeMap<(u64, Due), ()> = cancel.map(|at| ((at, Due::Cancel), ())).into_iter().collect();
    let mut now = 0;
    let mut orders = steps.begin(Timestamp(0));
    loop {
        for order in orders.drain(..) {
            match order {
                Order::Start(process) | Order::Transfer(process) => {
                    let Behaviour { lasts, starts, .. } = behaviours[process];
                    let at = now + if starts { lasts } else { 2 };
                    assert!(ran.insert(process, (now, at)).is_none(), "process {process} was started twice");
                    agenda.insert((at, Due::Ended(process)), ());
                }
                Order::Cancel(process) | Order::CancelTransfer(process) => {
                    let (_, end) = ran.get_mut(&process).unwrap();
                    let sooner = now + behaviours[process].lingers;
                    if sooner < *end {
                        agenda.remove(&(*end, Due::Ended(process)));
                        *end = sooner;
                        agenda.insert((sooner, Due::Ended(process)), ());
                    }
                }
                Order::Expire(step, after) => {
                    agenda.insert((now + u64::try_from(after.as_millis()).unwrap(), Due::Expired(step)), ());
                }
                Order::Say { .. } => {}
            }
        }
        if steps.conclusion().is_some() {
            return ran;
        }
        let ((at, due), ()) = agenda.pop_first().expect("something is due while the tree has not ended");
        now = at;
        orders = match due {
            Due::Cancel => steps.cancel(Timestamp(now)),
            Due::Expired(step) => steps.expired(step),
            Due::Ended(process) => {
                let Behaviour { code, starts, .. } = behaviours[process];
                let exited = RunEnd::Exited { exit: Exit::Code(code), out_of_memory: false, killed: false };
                let end = if starts { exited } else { RunEnd::NotStarted("exec".into()) };
                let lost = if starts && code == 0 { TransferEnd::Done(1) } else { TransferEnd::Failed("lost".into()) };
                match steps.is_transferring(process) {
                    true => steps.transferred(process, lost, Timestamp(now)),
                    false => steps.ended(process, end, Timestamp(now)),
                }
            }
        };
    }
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
            grow(random, &mut budget, 0, &mut runs)
        };
        let setup = (random.below(4) == 0).then(|| tree(&mut random, 10));
        let action = tree(&mut random, 60);
        let sidecars =
            if random.below(4) == 0 { vec![tree(&mut random, 10), tree(&mut random, 10)] } else { Vec::new() };
        let actions = Actions { setup, action, sidecars };
        // Multiples of 4 with a remainder of their own each, so that no two processes end at the same time.
        let behaviours: Vec<Behaviour> = (0..runs)
            .map(|index| Behaviour {
                lasts: 4 + 2 * (random.below(1 << 20) * 512 + index as u64) % (1 << 13),
                code: if random.below(3) == 0 { 1 + i32::try_from(random.below(200)).unwrap() } else { 0 },
                lingers: 2 * (random.below(1 << 10) * 256 + index as u64 + 1),
                starts: random.below(12) != 0,
            })
            .collect();
        let cancel = (random.below(3) == 0).then(|| 2 * random.below(2000) + 1);
        let mut steps = Steps::new(&actions, &vec![process(); runs], &[]);
        let ran = carry_out(&mut steps, &behaviours, cancel);
        let expected = Reference { behaviours: &behaviours }.all(&actions, cancel);
        // Where two things happen at the same time their order is open, and so is what follows.
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
        *kinds.entry(if conclusion.failure.is_some() { "failed" } else { "other" }).or_insert(0) += 1;
    }
    // The comparison is of both kinds of ends, and few trees are passed over.
    assert!(kinds["failed"] > 500 && kinds["other"] > 500, "{kinds:?}");
    assert!(kinds.get("tie").copied().unwrap_or(0) < 2_500, "{kinds:?}");
}
