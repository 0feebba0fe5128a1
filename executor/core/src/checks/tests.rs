//! Tests the monitor with tables of results, and compares it with a model that evaluates the whole history each time.

use proptest::prelude::*;

use super::*;
use crate::plan::{MonitorForm, Probe, START_TIMEOUT_DEFAULT};

const SECOND: Duration = Duration::from_secs(1);
const AT: Timestamp = Timestamp(7);

fn check(healthy: u32, unhealthy: u32) -> Check {
    Check {
        probe: Probe::Tcp(1),
        interval: Duration::ZERO,
        timeout: SECOND,
        initial_delay: Duration::ZERO,
        healthy_threshold: healthy,
        unhealthy_threshold: unhealthy,
        log_source: String::new(),
    }
}

fn checks(startup: &[Check], liveness: &[Check], readiness: &[Check]) -> Checks {
    let list = <[Check]>::to_vec;
    Checks {
        startup: list(startup),
        liveness: list(liveness),
        readiness: list(readiness),
        start_timeout: START_TIMEOUT_DEFAULT,
        monitor: MonitorForm::None,
    }
}

fn failed() -> CheckOutcome {
    CheckOutcome::Failed("refused".into())
}

/// Executes the next check at its due time.
fn step(monitor: &mut Monitor<'_>, outcome: &CheckOutcome) -> (CheckId, Duration, Option<HealthChange>) {
    let (id, at) = monitor.next().unwrap();
    let change = monitor.tick(at).or_else(|| monitor.report(id, outcome, at, AT, 0).0);
    (id, at, change)
}

/// Diego's parallel monitor waits for all its programs and joins their failures.
#[test]
fn parallel_failures_are_joined() {
    let failed = |reason: &str| CheckOutcome::Failed(reason.into());
    let all = || checks(&[], &[check(1, 1), check(1, 1), check(1, 1)], &[]);
    let joined = Checks { monitor: MonitorForm::Parallel, ..all() };
    let mut monitor = Monitor::new(&joined, None, Duration::ZERO, || 0);
    for _ in 0..3 {
        step(&mut monitor, &CheckOutcome::Passed);
    }
    let (first, at, change) = step(&mut monitor, &failed("one"));
    assert_eq!((first.index, at, change), (0, SECOND * 30, None));
    assert_eq!(step(&mut monitor, &CheckOutcome::Passed), (CheckId { index: 1, ..first }, at, None));
    let change = Some(HealthChange::End("Instance became unhealthy: one; three".into()));
    assert_eq!(step(&mut monitor, &failed("three")), (CheckId { index: 2, ..first }, at, change));
    assert_eq!(monitor.next(), None);
    // Control: checks without a monitor.
    let single = all();
    let mut monitor = Monitor::new(&single, None, Duration::ZERO, || 0);
    for _ in 0..3 {
        step(&mut monitor, &CheckOutcome::Passed);
    }
    assert_eq!(step(&mut monitor, &failed("one")).2, Some(HealthChange::End("Instance became unhealthy: one".into())));
}

#[test]
fn started_container_is_ended_when_unhealthy() {
    let checks = checks(&[], &[check(1, 2)], &[]);
    let mut monitor = Monitor::new(&checks, None, Duration::ZERO, || 0);
    assert_eq!(monitor.deadline(), None);
    assert_eq!(step(&mut monitor, &failed()).2, None);
    assert_eq!(monitor.deadline(), Some(SECOND * 60));
    let (_, at, change) = step(&mut monitor, &CheckOutcome::Passed);
    assert_eq!((at, change), (SECOND * 2, Some(HealthChange::Ready)));
    assert_eq!(monitor.deadline(), None);
    let (_, at, change) = step(&mut monitor, &failed());
    assert_eq!((at, change), (SECOND * 32, None));
    let (_, at, change) = step(&mut monitor, &failed());
    assert_eq!((at, change), (SECOND * 34, Some(HealthChange::End("Instance became unhealthy: refused".into()))));
    assert_eq!((monitor.next(), monitor.health().ready), (None, false));
}

#[test]
fn unhealthy_start_fails_at_startup_timeout() {
    let checks = checks(&[check(1, 0)], &[check(1, 1)], &[check(1, 1)]);
    let mut monitor = Monitor::new(&checks, None, Duration::ZERO, || 0);
    let mut made = 0;
    let (at, change) = loop {
        let (id, at, change) = step(&mut monitor, &failed());
        assert_eq!(id.purpose, Purpose::Startup);
        made += 1;
        if change.is_some() {
            break (at, change);
        }
    };
    assert_eq!((at, made), (SECOND * 60, 31));
    assert_eq!(change, Some(HealthChange::End("Instance never healthy after 1m0s: refused".into())));
}

/// A check that could not be executed counts neither as success nor as failure. A late daemon executes a check before
/// terminating the container.
#[test]
fn p37_only_a_failure_ends_a_container() {
    let checks = checks(&[check(1, 0)], &[], &[]);
    let late = SECOND * 500;
    let mut monitor = Monitor::new(&checks, None, late, || 0);
    for _ in 0..50 {
        assert_eq!(step(&mut monitor, &CheckOutcome::NotRun).2, None);
    }
    assert_eq!(monitor.tick(late * 2), None);
    assert_eq!(monitor.health().startup[0], CheckState::default());
    let mut other = Monitor::new(&checks, None, late, || 0);
    assert!(matches!(step(&mut other, &failed()).2, Some(HealthChange::End(_))));
    assert_eq!(step(&mut monitor, &CheckOutcome::Passed).2, Some(HealthChange::Ready));
}

/// After a restart of the daemon, earlier failures still count, and the startup checks are not repeated.
#[test]
fn p35_p37_a_later_daemon_goes_on() {
    let checks = checks(&[check(2, 0)], &[check(1, 3)], &[check(1, 1)]);
    let mut monitor = Monitor::new(&checks, None, Duration::ZERO, || 0);
    for _ in 0..4 {
        step(&mut monitor, &CheckOutcome::Passed);
    }
    assert!(monitor.health().ready);
    let liveness = CheckId { purpose: Purpose::Liveness, index: 0 };
    for _ in 0..2 {
        assert_eq!(monitor.report(liveness, &failed(), SECOND * 40, AT, 0), (None, true));
    }
    let text = serde_json::to_string(monitor.health()).unwrap();
    let kept: Health = serde_json::from_str(&text).unwrap();
    let mut later = Monitor::new(&checks, Some(&kept), SECOND * 90, || 500);
    assert!(later.health().ready);
    assert_eq!(later.next().unwrap().1, SECOND * 105);
    assert!(matches!(later.report(liveness, &failed(), SECOND * 91, AT, 0).0, Some(HealthChange::End(_))));
}

#[test]
fn checks_of_many_containers_are_spread() {
    let checks = checks(&[], &[check(1, 1)], &[]);
    let mut monitor = Monitor::new(&checks, None, Duration::ZERO, || 0);
    let (id, _) = monitor.next().unwrap();
    let mut next = |spread| {
        monitor.report(id, &CheckOutcome::Passed, Duration::ZERO, AT, spread);
        monitor.next().unwrap().1.as_millis()
    };
    assert_eq!([next(0), next(500), next(999), next(5000)], [30_000, 28_500, 27_003, 27_003]);
}

#[test]
fn reasons_are_one_line_of_bounded_length() {
    assert_eq!(shorten("a\nb\x1b[0m"), "a b [0m");
    assert_eq!(shorten(&"é".repeat(1000)).len(), REASON_MAX);
    let words = [(60_000, "1m0s"), (5000, "5s"), (1500, "1.5s"), (500, "500ms"), (0, "0s"), (3_660_250, "1h1m0.25s")];
    for (millis, expected) in words {
        assert_eq!(words_of(Duration::from_millis(millis)), expected);
    }
}

/// Computes the state of a check from its whole history: the last run of equal results that reaches its threshold
/// decides.
fn passes(history: &[bool], healthy: usize, unhealthy: usize) -> bool {
    let runs: Vec<(bool, usize)> = history.chunk_by(|one, other| one == other).map(|run| (run[0], run.len())).collect();
    let decided = runs.iter().rev().find(|(good, length)| *length >= if *good { healthy } else { unhealthy });
    decided.is_some_and(|(good, _)| *good)
}

proptest! {
    #[test]
    fn random_check_results_match_model(
        results in proptest::collection::vec((0usize..4, 0u32..1000, any::<bool>()), 0..200),
        healthy in 1u32..4,
        unhealthy in 1u32..4,
        own_startup in any::<bool>(),
    ) {
        let one = check(healthy, unhealthy);
        let startup = check(healthy, 0);
        let startup = if own_startup { std::slice::from_ref(&startup) } else { &[] };
        let checks = checks(startup, std::slice::from_ref(&one), std::slice::from_ref(&one));
        let starting = if own_startup { Purpose::Startup } else { Purpose::Liveness };
        let mut monitor = Monitor::new(&checks, None, Duration::ZERO, || 0);
        let (mut before, mut since, mut readiness) = (Vec::new(), Vec::new(), Vec::new());
        let (mut started, mut ready, mut last) = (false, false, Duration::ZERO);
        for (kind, spread, restart) in results {
            if restart {
                let kept = monitor.health().clone();
                monitor = Monitor::new(&checks, Some(&kept), last, || spread);
                prop_assert_eq!(monitor.health(), &kept);
            }
            let Some((id, at)) = monitor.next() else { break };
            let at = at.max(last);
            last = at;
            let outcome = [CheckOutcome::Passed, CheckOutcome::Passed, failed(), CheckOutcome::NotRun][kind].clone();
            let (change, _) = monitor.report(id, &outcome, at, AT, spread);
            let good = match outcome {
                CheckOutcome::Passed => Some(true),
                CheckOutcome::Failed(_) => Some(false),
                CheckOutcome::NotRun => None,
            };
            match (started, id.purpose) {
                (false, purpose) => {
                    prop_assert_eq!(purpose, starting);
                    before.extend(good);
                    let run = before.iter().rev().take_while(|good| **good).count();
                    started = run >= healthy as usize;
                }
                (true, Purpose::Liveness) => since.extend(good),
                (true, Purpose::Readiness) => readiness.extend(good),
                (true, Purpose::Startup) => prop_assert!(false, "a startup check after the start"),
            }
            let dead = since.ends_with_failures(unhealthy as usize);
            let late = !started && good == Some(false) && at >= checks.start_timeout;
            prop_assert_eq!(matches!(change, Some(HealthChange::End(_))), dead || late);
            if dead || late {
                prop_assert!(monitor.next().is_none() && !monitor.health().ready);
                break;
            }
            let now_ready = started && passes(&readiness, healthy as usize, unhealthy as usize);
            prop_assert_eq!(monitor.health().started, started);
            prop_assert_eq!(monitor.health().ready, now_ready);
            let expected = match (ready, now_ready) {
                (false, true) => Some(HealthChange::Ready),
                (true, false) => Some(HealthChange::NotReady),
                _ => None,
            };
            prop_assert_eq!(change, expected);
            ready = now_ready;
        }
    }
}

/// Inspects the end of a history of results.
trait History {
    /// Returns true if at least the last `failures` results are failures.
    fn ends_with_failures(&self, failures: usize) -> bool;
}

impl History for Vec<bool> {
    fn ends_with_failures(&self, failures: usize) -> bool {
        self.iter().rev().take_while(|good| !**good).count() >= failures
    }
}
