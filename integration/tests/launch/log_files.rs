//! Log files of requests (`log_file`): format, rotation, links, a full disk, and killed processes (CRI rules G8, C31
//! and C32 of docs/guides/cri-rules.md).

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use executor_core::lifecycle::State;
use executor_core::plan::Plan;
use executor_core::protocol::Reason;
use executor_core::time::Timestamp;
use executor_core::validate::{Draft, DraftLogging, Policy, validate};
use executor_proto::v1::{Container, LogLimits, ReopenLogRequest, RunRequest};
use integration::api::{Api, exit};
use integration::cli;
use integration::daemon::{Daemon, Setup, kill};
use integration::launcher::{Launcher, Payload};
use integration::metrics;
use integration::mount::Tmpfs;
use integration::race::Exchange;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::wait;
use tempfile::TempDir;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Prints increasing numbers until it is killed.
const COUNT: &str = "n=0; while :; do echo $n; n=$((n+1)); done";
/// Prints increasing numbers, with pauses.
const COUNT_SLOWLY: &str = "n=0; while :; do echo $n; n=$((n+1)); sleep 0.005; done";

/// Directory for log files that the operator allows.
struct LogDir(TempDir);

impl LogDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn dir(&self) -> PathBuf {
        self.0.path().join("pods")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn setup(&self) -> Setup {
        fs::create_dir_all(self.dir()).unwrap();
        let setup = Setup::default();
        let metrics = metrics::table(&setup);
        setup.config(&format!("[policy]\nlog_dirs = ['{}']\n{metrics}", self.dir().display()))
    }
}

fn into(path: &Path, request: RunRequest) -> RunRequest {
    RunRequest { log_file: path.display().to_string(), ..request }
}

fn reopen(api: &Api, id: &str) -> Result<Container, Status> {
    let request = ReopenLogRequest { id: id.into() };
    api.block_on(api.rpc().reopen_log(request)).map(|answer| answer.into_inner().container.unwrap())
}

/// Checks the format of a line of a log file: a time with nine digits, the stream, the tag, and the text. Returns the
/// stream, the tag and the text.
fn parsed(line: &str) -> (&str, &str, &str) {
    let mut fields = line.splitn(4, ' ');
    let mut field = || fields.next().unwrap_or_else(|| panic!("{line:?}"));
    let time = field();
    assert!(Timestamp::parse_rfc3339(time).is_some() && time.len() == 30 && time.ends_with('Z'), "{line:?}");
    let (stream, tag) = (field(), field());
    assert!(matches!(stream, "stdout" | "stderr") && matches!(tag, "F" | "P"), "{line:?}");
    (stream, tag, field())
}

/// Returns the output of one stream as the kubelet reads it.
fn output_of(text: &str, stream: &str) -> String {
    let mut output = String::new();
    for (of, tag, content) in text.split_terminator('\n').map(parsed) {
        if of == stream {
            output.push_str(content);
            output.push_str(if tag == "F" { "\n" } else { "" });
        }
    }
    output
}

/// Checks that the text consists of increasing numbers from `first`. Returns the number that follows.
fn counted(output: &str, first: u64) -> u64 {
    output.lines().fold(first, |next, line| {
        assert_eq!(line, next.to_string());
        next + 1
    })
}

/// CRI rule C31: each line has a time with nine digits, a known stream and a tag; pieces have at most 16 KiB; a last
/// line without a newline has the tag `P`. The log has the same output. Directories and file have the modes that the
/// kubelet expects.
#[test]
fn file_has_the_kubelets_format() {
    let logs = LogDir::new();
    let daemon = logs.setup().start();
    let path = logs.path("ns_pod_uid/c/0.log");
    let long = "i=0; while [ $i -lt 10000 ]; do printf 12345; i=$((i+1)); done; echo";
    let script = format!("echo one; echo; {long}; echo two >&2; echo $TOKEN; printf end");
    let container = daemon.api.run_to_end(into(&path, sh(&script).id("c").secret_env("TOKEN", "swordfish-canary")));
    assert_eq!(exit(&container), Ok(0));
    assert_eq!(container.spec.unwrap().log_file, path.display().to_string());
    let text = fs::read_to_string(&path).unwrap();
    let kept = daemon.api.output("c");
    assert_eq!(output_of(&text, "stdout"), kept.text());
    assert_eq!(output_of(&text, "stderr"), "two\n");
    assert!(
        kept.text().contains(&"12345".repeat(10_000)) && !text.contains("swordfish-canary"),
        "masked as in the log"
    );
    let lines: Vec<_> = text.split_terminator('\n').map(parsed).collect();
    let sizes = lines.iter().map(|(_, _, content)| content.len()).filter(|size| *size > 100);
    assert_eq!(sizes.collect::<Vec<_>>(), [16_384, 16_384, 16_384, 848], "full pieces");
    assert!(lines.contains(&("stdout", "F", "one")) && lines.contains(&("stdout", "F", "")), "{text}");
    let last = lines.iter().rfind(|(stream, ..)| *stream == "stdout").unwrap();
    assert!(last.1 == "P" && last.2.ends_with("end"), "{last:?}");
    let meta = |path: &Path| fs::metadata(path).map(|meta| (meta.permissions().mode() & 0o7777, meta.uid())).unwrap();
    assert_eq!((meta(&path), meta(path.parent().unwrap())), ((0o640, 0), (0o755, 0)));
    daemon.api.delete("c", false).unwrap();
    assert!(path.exists(), "the log file is kept after the container is removed");
    daemon.api.run_to_end(into(&path, sh("echo again").id("c")));
    let appended = fs::read_to_string(&path).unwrap();
    assert!(appended.starts_with(&text) && appended.ends_with("stdout F again\n"), "{appended}");
}

/// CRI rule C31: messages of the executor are on `stderr`. With a terminal there is only `stdout`.
#[test]
fn messages_have_the_kubelets_streams() {
    let logs = LogDir::new();
    let daemon = logs.setup().start();
    let path = logs.path("a");
    let log_limits = Some(LogLimits { lines_per_second: Some(1), ..LogLimits::default() });
    daemon.api.run_to_end(into(&path, RunRequest { log_limits, ..sh("echo a; echo b").id("a") }));
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(output_of(&text, "stdout"), "a\n");
    assert!(output_of(&text, "stderr").contains("exceeded log rate limit"), "{text}");
    let path = logs.path("b");
    daemon.api.run_to_end(into(&path, RunRequest { terminal: true, ..sh("echo a; echo b >&2").id("b") }));
    assert_eq!(output_of(&fs::read_to_string(&path).unwrap(), "stdout"), "a\r\nb\r\n");
}

/// CRI rule C32: over 1,000 rotations under load, no line is lost, repeated or in the wrong file.
#[test]
fn thousand_rotations_keep_every_line() {
    let logs = LogDir::new();
    let daemon = logs.setup().start();
    let path = logs.path("0.log");
    daemon.api.started(into(&path, sh(COUNT).id("c")));
    let renamed = |index: usize| logs.path(&format!("0.log.{index:04}"));
    let mut sizes = Vec::new();
    for index in 0..1000 {
        fs::rename(&path, renamed(index)).unwrap();
        reopen(&daemon.api, "c").unwrap();
        sizes.push(fs::metadata(renamed(index)).unwrap().len());
    }
    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    let last = fs::read_to_string(&path).unwrap();
    assert!(!last.contains(" P "), "lines are not split");
    let mut next = 0;
    for (index, size) in sizes.iter().enumerate() {
        let text = fs::read_to_string(renamed(index)).unwrap();
        assert_eq!(text.len() as u64, *size, "nothing is written to a renamed file");
        assert!(!text.contains(" P "), "lines are not split");
        next = counted(&output_of(&text, "stdout"), next);
    }
    next = counted(&output_of(&last, "stdout"), next);
    assert!(next > 10_000, "only {next} lines were printed, expected more than 10000");
    let log = daemon.api.logs_so_far("c");
    assert_eq!(log.lines().last(), Some(&*(next - 1).to_string()), "the log has the same output");
}

/// CRI rule C32: after an error no file is created, and the existing file stays in use. A container that does not run,
/// or has no log file, is refused.
#[test]
fn refused_reopening_keeps_the_file() {
    let logs = LogDir::new();
    let daemon = logs.setup().start();
    let path = logs.path("pod/0.log");
    daemon.api.started(into(&path, sh(COUNT_SLOWLY).id("c")));
    daemon.api.started(sleeper("plain"));
    let (moved, other) = (logs.path("moved"), logs.path("other"));
    fs::rename(logs.path("pod"), &moved).unwrap();
    let failed = |id: &str, words: &str| {
        let status = reopen(&daemon.api, id).unwrap_err();
        let is_reported = status.code() == Code::FailedPrecondition && status.message().contains(words);
        assert!(is_reported, "{id}: {status:?}");
    };
    failed("c", "the old file stays in use");
    assert!(!logs.path("pod").exists());
    fs::create_dir(logs.path("pod")).unwrap();
    symlink(&other, &path).unwrap();
    failed("c", "the old file stays in use");
    assert!(!other.exists());
    let size = || fs::metadata(moved.join("0.log")).unwrap().len();
    let before = size();
    wait::until("the old file grows", || (size() > before).then_some(()));
    fs::remove_file(&path).unwrap();
    assert_eq!(reopen(&daemon.api, "c").unwrap().state(), executor_proto::v1::State::Running);
    reopen(&daemon.api, "c").unwrap();
    wait::until("the new file grows", || fs::metadata(&path).is_ok_and(|meta| meta.len() > 0).then_some(()));
    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    let read = |path: &Path| output_of(&fs::read_to_string(path).unwrap(), "stdout");
    counted(&read(&path), counted(&read(&moved.join("0.log")), 0));
    failed("c", "only while it runs");
    failed("plain", "no log file");
    assert_eq!(reopen(&daemon.api, "none").unwrap_err().code(), Code::NotFound);
}

/// CRI rule G8: no file is opened or created outside of the operator's directory, even if directories are swapped with
/// links at the same time. As a control, the file is opened without links.
#[test]
fn links_lead_to_no_other_file() {
    let logs = LogDir::new();
    let daemon = logs.setup().start();
    let outside = logs.0.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "kept").unwrap();
    symlink(&outside, logs.path("dir")).unwrap();
    symlink("../outside/victim", logs.path("link")).unwrap();
    fs::hard_link(outside.join("victim"), logs.path("hard")).unwrap();
    for (name, words) in [
        ("dir/new", "symbolic links"),
        ("dir/victim", "symbolic links"),
        ("link", "symbolic links"),
        ("hard", "hard link"),
    ] {
        let status = daemon.api.run(into(&logs.path(name), sh("echo x").id("x"))).unwrap_err();
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!((status.code(), &*violations[0].field), (Code::FailedPrecondition, "log_file"), "{name}");
        assert!(violations[0].description.contains(words), "{name}: {violations:?}");
    }
    assert!(daemon.api.ids().is_empty(), "nothing is left of a refused container");
    fs::create_dir(logs.path("a")).unwrap();
    daemon.api.started(into(&logs.path("a/0.log"), sh(COUNT_SLOWLY).id("c")));
    let race = Exchange::start(vec![(logs.path("a"), logs.path("dir"))]);
    let (mut opened, mut refused) = (0, 0);
    wait::until("reopen has succeeded and has failed", || {
        for _ in 0..100 {
            *if reopen(&daemon.api, "c").is_ok() { &mut opened } else { &mut refused } += 1;
        }
        (opened > 200 && refused > 200).then_some(())
    });
    assert!(race.stop() > 0);
    assert_eq!(fs::read_to_string(outside.join("victim")).unwrap(), "kept");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

/// CRI rule G8: the policy is closed by default, and the launcher checks a plan with its own configuration.
#[test]
fn file_outside_of_policy_is_refused() {
    let (logs, rootfs) = (LogDir::new(), Rootfs::busybox());
    let path = logs.path("x");
    let closed = Daemon::start();
    let open = logs.setup().start();
    for (daemon, path) in [(&closed, &*path), (&open, Path::new("/var/log/executor-test"))] {
        let status = daemon.api.run(into(path, sh("true").id("x"))).unwrap_err();
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!((status.code(), &*violations[0].field), (Code::InvalidArgument, "log_file"));
        assert!(violations[0].description.contains("policy.log_dirs"), "{violations:?}");
        assert!(!path.exists());
    }
    let config = logs.0.path().join("executor.toml");
    fs::write(&config, format!("[policy]\nlog_dirs = ['{}']\n", logs.path("own").display())).unwrap();
    let launcher = Launcher::start(&["--config", config.to_str().unwrap()]);
    fs::create_dir(logs.path("own")).unwrap();
    let wide = Policy { log_dirs: vec![logs.dir()], ..Policy::default() };
    let plan = |id: &str, name: &str| -> Plan {
        let logging = DraftLogging { file: logs.path(name), ..DraftLogging::default() };
        let rootfs = &rootfs.reference();
        validate(&Draft { id, path: "/bin/true", rootfs, memory_bytes: 64 << 20, logging, ..Draft::default() }, &wide)
            .unwrap()
    };
    let shim = launcher.launch(&plan("a", "x"), &Payload::default()).unwrap();
    let refused = shim.reach(State::Running).unwrap_err();
    let found = (refused.reason, refused.violations[0].field.as_str());
    assert_eq!(found, (Reason::Invalid as i32, "log_file"), "{refused:?}");
    assert!(!path.exists());
    launcher.launch(&plan("control", "own/x"), &Payload::default()).unwrap().reach(State::Completed).unwrap();
    assert!(logs.path("own/x").exists());
}

/// CRI rule C32: a full disk does not block the container. The lost output is counted, and reported in the log and in
/// the file.
#[test]
fn full_disk_loses_counted_output() {
    let logs = LogDir::new();
    let disk = Tmpfs::mount(&logs.path("disk"), 256 << 10);
    let daemon = logs.setup().start();
    let path = logs.path("disk/0.log");
    daemon.api.started(into(&path, sh(COUNT_SLOWLY).id("c")));
    wait::until("the container prints", || daemon.api.logs_so_far("c").lines().nth(10).map(drop));
    disk.fill();
    let so_far = || daemon.api.logs_so_far("c").lines().count();
    let before = so_far() + 300;
    wait::until("the container continues", || (so_far() > before).then_some(()));
    disk.free();
    let lost = "bytes of output were lost: this file could not be written";
    wait::until("the loss is reported", || fs::read_to_string(&path).ok()?.contains(lost).then_some(()));
    reopen(&daemon.api, "c").unwrap();
    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    let (text, kept) = (fs::read_to_string(&path).unwrap(), daemon.api.output("c"));
    let messages = String::from_utf8(kept.executor.clone()).unwrap();
    assert_eq!(messages.matches("output is missing in the log file").count(), 1, "{messages}");
    let reports = output_of(&text, "stderr");
    let bytes = |line: &str| line.split_once(' ').unwrap().0.parse::<usize>().unwrap();
    let lost: usize = reports.lines().filter(|line| line.ends_with(lost)).map(bytes).sum();
    let written = output_of(&text, "stdout");
    assert_eq!(written.len() + lost, kept.stdout.len(), "{reports}");
    let numbers: Vec<u64> = written.lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "no line is repeated or broken");
    assert_eq!(metrics::value(&daemon, "executor_log_file_lost_bytes_total") as usize, lost);
}

/// Killed daemon processes lose no line: the shim writes the file. If a shim is killed, its container is killed; the
/// lines that were written before the kill are whole and in order.
#[test]
fn killed_processes_leave_whole_lines() {
    let logs = LogDir::new();
    let mut daemon = logs.setup().start();
    let path = logs.path("0.log");
    daemon.api.started(into(&path, sh(COUNT_SLOWLY).id("c")));
    let lines = || fs::read_to_string(&path).map_or(0, |text| text.lines().count());
    let grows = |what: &str| {
        let before = lines();
        wait::until(what, || (lines() > before + 20).then_some(()));
    };
    grows("the container prints");
    let launcher = daemon.launcher().unwrap();
    daemon.kill();
    grows("the container prints without executord");
    kill(launcher, 9);
    grows("the container prints without the launcher");
    daemon.start_again();
    wait::until("the container is known", || daemon.api.get("c").ok());
    fs::rename(&path, logs.path("1.log")).unwrap();
    wait::until("the shim is connected", || reopen(&daemon.api, "c").ok());
    grows("the container prints to the new file");
    kill(daemon.record("c").shim.pid, 9);
    daemon.api.wait("c").unwrap();
    let read = |path: &Path| output_of(&fs::read_to_string(path).unwrap(), "stdout");
    assert!(counted(&read(&path), counted(&read(&logs.path("1.log")), 0)) > 60);
}

/// agent-cli runs a container with a log file, shows the path and reopens the file.
#[test]
fn command_line_reopens_the_file() {
    let (logs, rootfs) = (LogDir::new(), Rootfs::busybox());
    let daemon = logs.setup().start();
    let (socket, path, reference) = (daemon.socket(), logs.path("0.log"), rootfs.reference());
    let shown = path.to_str().unwrap();
    let script = ["--rootfs", &reference, "--", "/bin/sh", "-c", "echo one; sleep 100000"];
    let arguments = [&["run", "-d", "--id", "c", "--log-file", shown], &script[..]].concat();
    let ran = cli::run(&socket, &arguments);
    assert_eq!(ran.status, 0, "{ran:?}");
    wait::until("the container prints", || {
        fs::read_to_string(&path).ok().filter(|text| text.ends_with(" stdout F one\n"))
    });
    assert_eq!(cli::run(&socket, &["inspect", "--json", "c"]).json()["spec"]["log_file"], shown);
    fs::rename(&path, logs.path("1.log")).unwrap();
    let reopened = cli::run(&socket, &["reopen-log", "c"]);
    assert_eq!((reopened.status, &*reopened.stdout), (0, "c\n"), "{reopened:?}");
    assert!(path.exists());
    let refused = cli::run(&socket, &["run", "--log-file", "/var/log/x", "--rootfs", &reference, "--", "/bin/true"]);
    assert!(refused.status != 0 && refused.stderr.contains("--log-file"), "{refused:?}");
}
