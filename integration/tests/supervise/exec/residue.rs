//! Arguments, environment and input of an executed process are left in none of the executor's processes.

use executor_proto::v1::exec_request::Part;
use executor_proto::v1::{EnvironmentVariable, ExecStart};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Report, Search};
use integration::daemon::{Daemon, Setup};
use integration::request::sleeper;
use integration::streams::{Executed, start};
use integration::wait;

const SIZE: usize = 4096;

/// A running process that received a canary in each kind of input.
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
        let (variable, argument, typed, printed) = (canary(), canary(), canary(), canary());
        let mut needles = Needles::new().expect("randomness");
        for (label, canary) in
            [("variable", &variable), ("argument", &argument), ("typed", &typed), ("printed", &printed)]
        {
            needles.add(label, canary.as_bytes());
        }
        let given = |name: &str, value: &Canary| EnvironmentVariable {
            name: name.into(),
            value: value.as_str().into(),
            ..EnvironmentVariable::default()
        };
        let env = vec![given("PASSWORD", &variable), given("PRINTED", &printed)];
        let script = r#"read typed; echo "$PRINTED"; echo read; sleep 100000"#;
        let args = vec!["-c".into(), script.into(), argument.as_str().into()];
        let start = ExecStart { env, args, stdin: true, ..start("c", "/bin/sh", &[]) };
        let mut process = Executed::start(&daemon.api, start).expect("a running process");
        process.send_input(&[typed.as_bytes(), b"\n"].concat());
        process.until("read");
        Self { daemon, process, needles }
    }

    /// Searches the executor's processes: executord, the launcher, and their descendants.
    fn ours(&self) -> Report {
        let all = Process::all();
        let executord = self.daemon.pid().cast_unsigned();
        let roots = [Some(executord), self.daemon.launcher().map(i32::cast_unsigned)];
        let mut search = Search::new(&self.needles);
        for root in roots.into_iter().flatten() {
            let below = Process::descendants(&all, root).into_iter().filter(|process| !process.contained);
            let ours = Process::from_pid(root).into_iter().chain(below);
            ours.for_each(|process| search.process(&process));
        }
        search.report()
    }

    fn in_process(&self) -> Vec<String> {
        let mut search = Search::new(&self.needles);
        Process::from_pid(self.process.pid.cast_unsigned()).iter().for_each(|process| search.process(process));
        let mut labels: Vec<String> = search.report().hits.into_iter().map(|hit| hit.label).collect();
        labels.sort_unstable();
        labels.dedup();
        labels
    }
}

/// While a process runs and its call continues, only this process's memory contains its inputs and output.
#[test]
fn values_are_in_the_process_alone() {
    let given = Given::by(Setup::default());
    wait::until_ok("only the process holds the values", || {
        let report = given.ours();
        assert!(report.processes >= 4, "executord, launcher, shim and supervisor: {report:?}");
        if report.found() { Err(report.to_string()) } else { Ok(()) }
    });
    assert_eq!(given.in_process(), ["argument", "printed", "typed", "variable"], "the search finds existing values");
    given.process.send(Part::Signal(9));
    let Given { daemon, process, needles } = given;
    let process = process.end().unwrap();
    assert_eq!(process.exit, Some(Err(9)));
    let given = Given { daemon, process, needles };
    wait::until_ok("no process holds the values", || {
        let report = given.ours();
        if report.found() { Err(report.to_string()) } else { Ok(()) }
    });
}

/// As a control, all values are found if nothing is overwritten.
#[test]
fn control_without_wipe_finds_exec_values() {
    let report = Given::by(Setup::default().control()).ours();
    for label in ["argument", "printed", "typed", "variable"] {
        assert!(report.hits.iter().any(|hit| hit.label == label), "{label}: {report}");
    }
}

/// Copies a canary into a container and out of it over one persistent connection, then searches executord.
fn copied(setup: Setup) -> (Daemon, Needles) {
    let daemon = setup.start();
    daemon.api.started(sleeper("c"));
    let canary = Canary::random(SIZE).expect("randomness");
    let mut needles = Needles::new().expect("randomness");
    needles.add("copied", canary.as_bytes());
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(SIZE as u64);
    header.set_mode(0o600);
    archive.append_data(&mut header, "file", canary.as_bytes()).expect("a copy");
    let archive = archive.into_inner().expect("a copy");
    let done = daemon.api.put_archive("c", "/tmp", &archive, 1000).expect("a copy");
    assert_eq!((done.entries, done.bytes), (1, SIZE as u64));
    let came = daemon.api.get_archive("c", "/tmp/file").expect("a copy");
    assert!(came.windows(SIZE).any(|window| window == canary.as_bytes()), "the file is returned");
    (daemon, needles)
}

fn in_executord(daemon: &Daemon, needles: &Needles) -> Report {
    let mut search = Search::new(needles);
    search.process(&Process::from_pid(daemon.pid().cast_unsigned()).expect("a running process"));
    search.report()
}

/// Files that are copied to and from a container leave no data in memory, even while the connection is open.
#[test]
fn files_that_are_copied_leave_nothing() {
    let (daemon, needles) = copied(Setup::default());
    wait::until_ok("executord holds no data of the copy", || {
        let report = in_executord(&daemon, &needles);
        if report.found() { Err(report.to_string()) } else { Ok(()) }
    });
}

/// As a control, copied files are found if nothing is overwritten.
#[test]
fn control_without_wipe_finds_copied_files() {
    let (daemon, needles) = copied(Setup::default().control());
    assert!(in_executord(&daemon, &needles).found());
}
