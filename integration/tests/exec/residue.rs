//! What a process is executed with, and what is typed into it, stays in none of our processes.

use executor_proto::v1::exec_request::Part;
use executor_proto::v1::{EnvironmentVariable, ExecStart};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Report, Search};
use integration::daemon::{Daemon, Setup};
use integration::request::sleeper;
use integration::streams::{Executed, start};
use integration::wait;

const SIZE: usize = 4096;

/// A process that was given a canary in every way, while it runs.
struct Given {
    daemon: Daemon,
    process: Executed,
    needles: Needles,
}

impl Given {
    fn by(setup: Setup) -> Self {
        let daemon = setup.start();
        daemon.api.started(sleeper("c"));
        let canary = || Canary::random(SIZE).expect("randomness");
        let (variable, argument, typed) = (canary(), canary(), canary());
        let mut needles = Needles::new().expect("randomness");
        for (label, canary) in [("variable", &variable), ("argument", &argument), ("typed", &typed)] {
            needles.add(label, canary.as_bytes());
        }
        let env = vec![EnvironmentVariable { name: "PASSWORD".into(), value: variable.as_str().into() }];
        let args = vec!["-c".into(), "read typed; echo read; sleep 100000".into(), argument.as_str().into()];
        let start = ExecStart { env, args, stdin: true, ..start("c", "/bin/sh", &[]) };
        let mut process = Executed::begin(&daemon.api, start).expect("it runs");
        process.types(&[typed.as_bytes(), b"\n"].concat());
        process.until("read");
        Self { daemon, process, needles }
    }

    /// Searches all of ours: executord, the launcher, and what is below them. Executord not while the call goes on: what
    /// came last stands in the call's own buffer until its end.
    fn ours(&self, with_executord: bool) -> Report {
        let all = Process::all();
        let executord = self.daemon.pid().cast_unsigned();
        let roots = [Some(executord), self.daemon.launcher().map(i32::cast_unsigned)];
        let mut search = Search::new(&self.needles);
        for root in roots.into_iter().flatten() {
            let below = Process::descendants(&all, root).into_iter().filter(|process| !process.contained);
            let ours = Process::of(root).into_iter().chain(below);
            ours.filter(|process| with_executord || process.pid != executord)
                .for_each(|process| search.process(&process));
        }
        search.report()
    }

    fn in_process(&self) -> Vec<String> {
        let mut search = Search::new(&self.needles);
        Process::of(self.process.pid.cast_unsigned()).iter().for_each(|process| search.process(process));
        let mut labels: Vec<String> = search.report().hits.into_iter().map(|hit| hit.label).collect();
        labels.sort_unstable();
        labels.dedup();
        labels
    }
}

/// While the process runs, none of our processes but the call's own has its values; afterwards none has.
#[test]
fn values_are_in_the_process_alone() {
    let given = Given::by(Setup::default());
    let report = given.ours(false);
    assert!(report.processes >= 3, "launcher, shim and supervisor: {report:?}");
    assert!(!report.found(), "{report}");
    assert_eq!(given.in_process(), ["argument", "typed", "variable"], "the search finds them where they are");
    given.process.send(Part::Signal(9));
    let Given { daemon, process, needles } = given;
    let process = process.end().unwrap();
    assert_eq!(process.exit, Some(Err(9)));
    let given = Given { daemon, process, needles };
    wait::until_ok("nobody has them", || {
        let report = given.ours(true);
        if report.found() { Err(report.to_string()) } else { Ok(()) }
    });
}

/// The control: where nothing is overwritten, all of them are found.
#[test]
fn where_nothing_is_overwritten_they_are_found() {
    let report = Given::by(Setup::default().control()).ours(true);
    for label in ["argument", "typed", "variable"] {
        assert!(report.hits.iter().any(|hit| hit.label == label), "{label}: {report}");
    }
}
