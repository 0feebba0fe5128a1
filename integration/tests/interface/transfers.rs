//! Steps in real containers download from and upload to a loopback server that the configuration allows.

use std::io::{Cursor, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use executor_core::protocol::{LimitWorker, Reason, ShimCall};
use executor_proto::v1::{
    Action, Container, DownloadAction, Limits, RunAction, RunRequest, SerialAction, Step, TimeoutAction, UploadAction,
    step,
};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Report, Search};
use executor_sys::process;
use executor_sys::seqpacket::Seqpacket;
use integration::api::{ending, exit};
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::launcher::Shim;
use integration::request::RequestBuilder as _;
use integration::residue::wait_until_settled;
use integration::web::{WebAnswer, WebServer};
use integration::{cli, footprint, wait};
use tonic::Code;

/// The configuration allows the first loopback address and denies every other address of this machine.
const CONFIG: &str = r#"
[transfers]
allowed = ["127.0.0.1"]
idle_seconds = 600
attempts = 2
"#;

fn daemon() -> Daemon {
    Setup::default().config(CONFIG).start()
}

fn sh(script: &str) -> Action {
    let args = vec!["-c".into(), script.into()];
    let run = RunAction { path: "/bin/sh".into(), args, log_source: "APP".into(), ..RunAction::default() };
    Action { run: Some(run), ..Action::default() }
}

fn serial(actions: Vec<Action>) -> Action {
    Action { serial: Some(SerialAction { actions, ..SerialAction::default() }), ..Action::default() }
}

fn tree(id: &str, actions: Vec<Action>) -> RunRequest {
    RunRequest { action: Some(serial(actions)), ..RunRequest::default() }.id(id).memory(128 << 20)
}

fn action_of(download: DownloadAction) -> Action {
    Action { download: Some(download), ..Action::default() }
}

fn download(from: String, to: &str) -> DownloadAction {
    let (artifact, log_source) = ("droplet".to_owned(), "CELL".to_owned());
    DownloadAction { artifact, from, to: to.into(), log_source, ..DownloadAction::default() }
}

fn upload(from: &str, to: String) -> Action {
    let upload = UploadAction { artifact: "result".into(), from: from.into(), to, ..UploadAction::default() };
    Action { upload: Some(upload), ..Action::default() }
}

fn first(container: &Container) -> &Step {
    container.steps.iter().find(|step| step.path == "action.serial.actions[0]").unwrap()
}

/// Builds a tar archive with one file.
fn tar(path: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_mode(0o755);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut archive = tar::Builder::new(Vec::new());
    archive.append(&header, content).unwrap();
    archive.into_inner().unwrap()
}

const CHECKSUM: &str = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"; // of `content`

#[test]
fn archives_and_files_are_placed_as_user() {
    let daemon = daemon();
    let server = WebServer::start(|_, request| match request.target.as_str() {
        "/a.tar" => WebAnswer::ok(&tar("bin/run", b"#!/bin/sh\necho from the archive\n")),
        "/redirect" => WebAnswer::Full("302 Found", vec![("location", "/file".into())], Vec::new()),
        _ => WebAnswer::ok(b"content"),
    });
    let archive = DownloadAction { user: "65534:65534".into(), ..download(server.url("/a.tar"), "/tmp/x/app") };
    let file = DownloadAction {
        checksum_algorithm: "sha256".into(),
        checksum_value: CHECKSUM.to_uppercase(),
        ..download(server.url("/redirect?sig=0123456789"), "/tmp/x2/name")
    };
    let script = "/tmp/x/app/bin/run; cat /tmp/x2/name; echo; stat -c '%u %g %a' /tmp/x/app/bin/run /tmp/x2/name";
    let container = daemon.api.run_to_end(tree("well", vec![action_of(archive), action_of(file), sh(script)]));
    assert_eq!(exit(&container), Ok(0), "{container:#?}");
    let text = daemon.api.output("well").text();
    for words in [
        "Downloading droplet...\n",
        "Downloaded droplet (2K)\n",
        "Downloaded droplet (7B)\n",
        "from the archive\ncontent\n65534 65534 755\n0 0 644\n",
    ] {
        assert!(text.contains(words), "{words:?}: {text}");
    }
    assert_eq!((first(&container).kind.as_str(), first(&container).state()), ("download", step::State::Succeeded));
    assert_eq!(first(&container).log_source, "CELL");
    // The table printed by agent-cli also shows the steps.
    let shown = cli::run(&daemon.socket(), &["inspect", "well"]);
    assert!(shown.stdout.contains("download"), "{shown:?}");
}

/// Each failure names the step, the reason, and only the server of the URL.
#[test]
fn failures_are_reported_without_the_url() {
    let config = CONFIG.replace("idle_seconds = 600", "idle_seconds = 1");
    let daemon = Setup::default().config(&config).start();
    let server = WebServer::start(|_, request| match request.target.split('?').next().unwrap() {
        "/out" => WebAnswer::ok(&tar("../../etc/escaped", b"x")),
        "/absolute" => WebAnswer::ok(&tar("/etc/escaped", b"x")),
        "/never" => WebAnswer::Never,
        "/missing" => WebAnswer::Full("404 Not Found", Vec::new(), b"secret-body".to_vec()),
        "/loop" => WebAnswer::Full("307 Temporary Redirect", vec![("location", "/loop?sig=canary".into())], Vec::new()),
        "/near" => {
            let near = format!(
                "http://127.0.0.2:{}/x?sig=canary",
                request.header("host").unwrap().rsplit(':').next().unwrap()
            );
            WebAnswer::Full("302 Found", vec![("location", near)], Vec::new())
        }
        _ => WebAnswer::ok(b"content"),
    });
    let mapped = format!("http://[::ffff:127.0.0.2]:{}/x?sig=canary", server.port());
    let sum = |value: &str| ("md5".to_owned(), value.to_owned());
    let none = (String::new(), String::new());
    let table = [
        (
            "checksum",
            server.url("/x?sig=canary"),
            "/tmp/a",
            sum(&"0".repeat(32)),
            "the md5 checksum is 9a0364b9e99bb480dd25e1f0284c8555; expected 000",
        ),
        ("out", server.url("/out?sig=canary"), "/tmp/a", none.clone(), "`../../etc/escaped` escapes the directory"),
        ("absolute", server.url("/absolute?sig=canary"), "/tmp/a", none.clone(), "escapes the directory"),
        ("never", server.url("/never?sig=canary"), "/tmp/a", none.clone(), "sent nothing for 1 s"),
        ("missing", server.url("/missing?sig=canary"), "/tmp/a", none.clone(), "responded with status 404 Not Found"),
        ("loop", server.url("/loop?sig=canary"), "/tmp/a", none.clone(), "redirects more than 10 times"),
        ("near", server.url("/near?sig=canary"), "/tmp/a", none.clone(), "transfers.denied"),
        ("mapped", mapped, "/tmp/a", none.clone(), "transfers.denied"),
        ("metadata", "http://169.254.169.254/x?sig=canary".into(), "/tmp/a", none.clone(), "transfers.denied"),
        ("closed", "http://127.0.0.1:1/x?sig=canary".into(), "/tmp/a", none.clone(), "Connection refused"),
        ("read-only", server.url("/x?sig=canary"), "/no-such/../etc", none, "contains `..`"),
    ];
    for (id, from, to, (algorithm, value), words) in table {
        let asked = DownloadAction { checksum_algorithm: algorithm, checksum_value: value, ..download(from, to) };
        let request = tree(id, vec![action_of(asked), sh("echo never")]);
        let reported = match daemon.api.run(request) {
            Ok(_) => {
                let container = daemon.api.wait(id).unwrap();
                let failure = ending(&container).failure.clone().unwrap();
                assert_eq!(first(&container).state(), step::State::Failed, "{id}");
                assert!(first(&container).error.starts_with("Failed to download droplet: "), "{container:#?}");
                let output = daemon.api.output(id);
                let log = format!("{}{}", output.text(), String::from_utf8_lossy(&output.stderr));
                assert!(log.contains("Downloading droplet failed: ") && !log.contains("echo"), "{id}: {log}");
                assert!(!format!("{container:?} {log}").contains("canary"), "{id}: {container:#?} {log}");
                failure.message
            }
            Err(status) => {
                assert_eq!(status.code(), Code::InvalidArgument, "{id}: {status:?}");
                status.message().to_owned()
            }
        };
        assert!(reported.contains(words), "{id}: {reported}");
        assert!(!reported.contains("canary") && !reported.contains("secret-body"), "{id}: {reported}");
    }
    assert!(!daemon.setup().logged().contains("canary"));
    let kept = daemon.setup().state_dir().join("transfers");
    assert_eq!(std::fs::read_dir(kept).unwrap().count(), 0, "no file of a download is left");
}

#[test]
fn files_and_directories_are_uploaded() {
    let daemon = daemon();
    let server = WebServer::start(|number, _| match number {
        0 => WebAnswer::Full("503 Service Unavailable", Vec::new(), Vec::new()),
        _ => WebAnswer::Full("201 Created", Vec::new(), Vec::new()),
    });
    let make = sh("mkdir -p /tmp/out/d && printf 12345 >/tmp/out/file && printf 67 >/tmp/out/d/other");
    let file = upload("/tmp/out/file", server.url("/file").replace("http://", "http://user:pa%20ss@"));
    let request = tree("up", vec![make, file, upload("/tmp/out", server.url("/dir"))]);
    let container = daemon.api.run_to_end(request);
    assert_eq!(exit(&container), Ok(0), "{container:#?}");
    let requests = server.requests();
    assert_eq!(requests.len(), 3, "the second request is a retry: {requests:?}");
    for request in &requests[..2] {
        assert_eq!(
            (request.method.as_str(), request.target.as_str(), &request.body[..]),
            ("POST", "/file", &b"12345"[..])
        );
        assert_eq!(request.header("content-length"), Some("5"));
        assert_eq!(request.header("authorization"), Some("Basic dXNlcjpwYSBzcw=="));
    }
    assert_eq!(requests[2].header("content-type"), Some("application/x-tar"));
    let mut archive = tar::Archive::new(Cursor::new(&requests[2].body));
    let mut names: Vec<String> =
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
    names.sort();
    assert_eq!(names, ["out/", "out/d/", "out/d/other", "out/file"]);
    let text = daemon.api.output("up").text();
    assert!(text.contains("Uploading result...\n") && text.contains("Uploaded result (5B)\n"), "{text}");
    let missing = daemon.api.run_to_end(tree("none", vec![upload("/tmp/none", server.url("/")), sh("true")]));
    let message = &ending(&missing).failure.as_ref().unwrap().message;
    assert!(message.starts_with("Failed to upload result: ") && message.contains("No such file"), "{message}");
}

#[test]
fn cached_artifact_is_revalidated_for_same_url() {
    let daemon = daemon();
    let server = WebServer::start(|_, request| match request.header("if-none-match") {
        Some("\"one\"") => WebAnswer::Full("304 Not Modified", Vec::new(), Vec::new()),
        _ => WebAnswer::Full("200 OK", vec![("etag", "\"one\"".into())], b"cached content".to_vec()),
    });
    let run = |id: &str, path: &str| {
        let asked = DownloadAction { cache_key: "a key".into(), ..download(server.url(path), "/tmp/file") };
        let container = daemon.api.run_to_end(tree(id, vec![action_of(asked), sh("cat /tmp/file")]));
        assert_eq!(exit(&container), Ok(0), "{container:#?}");
        assert!(daemon.api.output(id).text().contains("cached content"));
    };
    run("fresh", "/x?sig=canary-1");
    run("again", "/x?sig=canary-2");
    // A different URL does not revalidate the cached copy.
    run("elsewhere", "/y");
    let asked: Vec<bool> = server.requests().iter().map(|one| one.header("if-none-match").is_some()).collect();
    assert_eq!(asked, [false, true, false]);
    let kept = daemon.setup().state_dir().join("transfers");
    for entry in std::fs::read_dir(kept).unwrap() {
        let mut bytes = Vec::new();
        std::fs::File::open(entry.unwrap().path()).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(
            !String::from_utf8_lossy(&bytes).contains("canary") && !String::from_utf8_lossy(&bytes).contains("http")
        );
    }
}

/// A download that never ends blocks other downloads only if they have the same URL and cache key. A blocked download
/// waits within its own time limit.
#[test]
fn cache_key_elsewhere_does_not_wait() {
    let daemon = Setup::default().config(&format!("{CONFIG}time_max_seconds = 20\n")).start();
    let slow = WebServer::start(|_, _| WebAnswer::Never);
    let fast =
        WebServer::start(|_, _| WebAnswer::Full("200 OK", vec![("etag", "\"one\"".into())], b"content".to_vec()));
    let asked = |from: String| action_of(DownloadAction { cache_key: "known".into(), ..download(from, "/tmp/file") });
    daemon.api.started(tree("slow", vec![asked(slow.url("/x?sig=1")), sh("true")]));
    wait::until("the server receives the request", || (!slow.requests().is_empty()).then_some(()));
    daemon.api.started(tree("same", vec![asked(slow.url("/x?sig=2")), sh("true")]));
    let container = daemon.api.run_to_end(tree("elsewhere", vec![asked(fast.url("/x")), sh("cat /tmp/file")]));
    assert_eq!(exit(&container), Ok(0), "{container:#?}");
    assert_eq!(slow.requests().len(), 1, "control: a download of the same artifact waits");
    let container = daemon.api.wait("same").unwrap();
    let message = &ending(&container).failure.as_ref().unwrap().message;
    assert!(message.contains("exceeded its time limit of 20 s"), "{message}");
}

/// A worker has a CPU time limit, yields to other processes, and is the first process to be killed if memory is short.
#[test]
fn workers_run_with_limits() {
    let daemon = daemon();
    let server = WebServer::start(|_, _| WebAnswer::Never);
    daemon.api.started(tree("limits", vec![action_of(download(server.url("/x"), "/tmp/file")), sh("true")]));
    wait::until("the server receives the request", || (!server.requests().is_empty()).then_some(()));
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", workers(&daemon)[0])).unwrap();
    let limits = file("limits");
    let seconds = limits.lines().find_map(|line| line.strip_prefix("Max cpu time")).unwrap().split_whitespace().next();
    assert_eq!(seconds, Some("288"), "60 s, 100 s for entries, and 128 s for 4 GB");
    assert_eq!(file("oom_score_adj").trim(), "1000");
    let stat = file("stat");
    let nice = stat.rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap().parse::<i32>().unwrap();
    assert!(nice >= 10, "{stat}");
}

/// Returns the cgroups of the containers' workers.
fn worker_cgroups(daemon: &Daemon) -> Vec<PathBuf> {
    let mut all = footprint::all_cgroups(&daemon.setup().run_dir());
    all.retain(|dir| dir.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".workers-")));
    all.into_iter().collect()
}

/// Starts a container with 50 millicores that downloads from a server that never finishes the response. Returns the
/// worker's pid.
fn start_limited(daemon: &Daemon, server: &WebServer, id: &str) -> i32 {
    let request = tree(id, vec![action_of(download(server.url("/never"), "/tmp/file")), sh("true")]);
    let limits = Limits { cpu_millis: 50, cpu_weight: 200, ..request.limits.unwrap_or_default() };
    let asked = server.requests().len();
    daemon.api.started(RunRequest { limits: Some(limits), ..request });
    wait::until("the server receives the request", || (server.requests().len() > asked).then_some(()));
    workers(daemon)[0]
}

fn never_or_content() -> WebServer {
    WebServer::start(|_, request| match &*request.target {
        "/never" => WebAnswer::Never,
        _ => WebAnswer::ok(b"content"),
    })
}

/// A worker is in a cgroup with the CPU limits of its container and no other limit. The container does not see this
/// cgroup.
#[test]
fn worker_has_processor_limits_of_container() {
    let (daemon, server) = (daemon(), never_or_content());
    let worker = start_limited(&daemon, &server, "limited");
    let groups = worker_cgroups(&daemon);
    let [group] = &*groups else { panic!("one group: {groups:?}") };
    let read = |dir: &Path, name: &str| std::fs::read_to_string(dir.join(name)).ok();
    assert_eq!(read(group, "cgroup.procs"), Some(format!("{worker}\n")));
    let limits = |dir: &Path| ["cpu.cfs_quota_us", "cpu.max", "cpu.shares", "cpu.weight"].map(|name| read(dir, name));
    let own = group.with_file_name(daemon.record("limited").cgroup.file_name().unwrap());
    assert_eq!(limits(group), limits(&own));
    assert!(limits(group).iter().flatten().any(|value| value.starts_with("5000")), "{:?}", limits(group));
    for unlimited in ["memory.max", "memory.limit_in_bytes"].iter().filter_map(|name| read(group, name)) {
        assert_eq!(unlimited, "max\n", "RLIMIT_AS bounds its memory");
    }
    let seen = cli::run(&daemon.socket(), &["exec", "limited", "--", "ls", "-AR", "/sys/fs/cgroup"]);
    assert!(seen.stdout.contains("cgroup.procs") && !seen.stdout.contains(".workers"), "{seen:?}");
}

/// A compromised executord cannot make the shim move another user's process, and cannot pass a descriptor that is not a
/// pidfd.
#[test]
fn shim_moves_only_processes_of_daemon() {
    let (daemon, server) = (daemon(), never_or_content());
    let worker = start_limited(&daemon, &server, "guarded");
    let socket = daemon.setup().run_dir().join("containers/guarded/shim.sock");
    let shim = Shim(Seqpacket::connect(&socket).unwrap());
    let own = process::pidfd(std::process::id() as i32).unwrap();
    let (pipe, _end) = std::io::pipe().unwrap();
    let other = process::pidfd(worker).unwrap();
    let ask = |transfer, fds: &[BorrowedFd<'_>]| {
        shim.ask_with(ShimCall::LimitWorker(LimitWorker { transfer }), fds);
        shim.answer().map_err(|refused| refused.reason())
    };
    assert_eq!(ask(0, &[own.as_fd()]), Err(Reason::Denied));
    assert_eq!(ask(0, &[]), Err(Reason::Invalid));
    assert_eq!(ask(0, &[own.as_fd(), other.as_fd()]), Err(Reason::Invalid));
    assert_eq!(ask(7, &[other.as_fd()]), Err(Reason::NotFound));
    assert!(ask(0, &[pipe.as_fd()]).is_err());
    assert_eq!(ask(0, &[other.as_fd()]), Ok(()), "control failed");
    let members = std::fs::read_to_string(worker_cgroups(&daemon)[0].join("cgroup.procs")).unwrap();
    assert_eq!(members, format!("{worker}\n"));
}

/// The cgroup of a worker is removed when the transfer ends or the container exits, in every case.
#[test]
fn worker_cgroup_is_removed() {
    let (daemon, server) = (daemon(), never_or_content());
    let gone = |how: &str| wait::until(how, || worker_cgroups(&daemon).is_empty().then_some(()));
    let before = daemon.footprint();
    start_limited(&daemon, &server, "lost");
    assert_eq!(worker_cgroups(&daemon).len(), 1, "control failed");
    kill(daemon.record("lost").shim.pid, 9);
    daemon.api.wait("lost").unwrap();
    gone("its shim was killed");
    start_limited(&daemon, &server, "stopped");
    assert_eq!(worker_cgroups(&daemon).len(), 1, "control failed");
    daemon.api.stop("stopped", Some(0)).unwrap();
    daemon.api.wait("stopped").unwrap();
    gone("the container was stopped");
    let actions = vec![action_of(download(server.url("/content"), "/tmp/file")), sh("echo up; exec sleep 1000")];
    daemon.api.up(tree("goes-on", actions));
    gone("the transfer is complete");
    daemon.api.delete("goes-on", true).unwrap();
    for id in ["lost", "stopped"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// If executord is killed while it waits for the server, the next executord restarts the download.
#[test]
fn download_outlives_executord() {
    let mut daemon = daemon();
    let server = WebServer::start(|number, _| if number == 0 { WebAnswer::Never } else { WebAnswer::ok(b"content") });
    let asked = download(server.url("/x?sig=canary"), "/tmp/file");
    daemon.api.started(tree("outlives", vec![action_of(asked), sh("cat /tmp/file")]));
    wait::until("the server receives the request", || (!server.requests().is_empty()).then_some(()));
    let working = workers(&daemon);
    assert_eq!(working.len(), 1, "control failed");
    daemon.kill();
    wait::until("the worker has exited with executord", || has_ended(working[0]).then_some(()));
    daemon.start_again();
    let container = daemon.api.wait("outlives").unwrap();
    assert_eq!(exit(&container), Ok(0), "{container:#?}");
    assert!(server.requests().len() >= 2);
}

fn is_worker(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"transfer-worker\0"))
}

fn workers(daemon: &Daemon) -> Vec<i32> {
    integration::host::descendants(daemon.pid()).into_iter().filter(|pid| is_worker(*pid)).collect()
}

#[test]
fn timeouts_and_stops_end_the_transfer() {
    let daemon = daemon();
    let server = WebServer::start(|_, _| WebAnswer::Never);
    let never = || action_of(download(server.url("/x"), "/tmp/file"));
    let limited = TimeoutAction { action: Some(Box::new(never())), timeout_ms: 500, ..TimeoutAction::default() };
    let limited = Action { timeout: Some(Box::new(limited)), ..Action::default() };
    let container = daemon.api.run_to_end(tree("timeout", vec![limited, sh("echo never")]));
    assert_eq!(ending(&container).failure.as_ref().unwrap().message, "exceeded 500ms timeout");
    wait::until("the worker has exited", || workers(&daemon).is_empty().then_some(()));
    daemon.api.started(tree("stop", vec![never(), sh("echo never")]));
    wait::until("a worker runs", || (workers(&daemon).len() == 1).then_some(()));
    daemon.api.stop("stop", Some(5000)).unwrap();
    let container = daemon.api.wait("stop").unwrap();
    assert_eq!(first(&container).state(), step::State::Cancelled, "{container:#?}");
    wait::until("the worker has exited", || workers(&daemon).is_empty().then_some(()));
    // If a worker is killed during its work, the step fails with a reason.
    let asked = server.requests().len();
    daemon.api.started(tree("killed", vec![never(), sh("echo never")]));
    wait::until("the server receives the request", || (server.requests().len() > asked).then_some(()));
    kill(workers(&daemon)[0], 9);
    let container = daemon.api.wait("killed").unwrap();
    let message = &ending(&container).failure.as_ref().unwrap().message;
    assert!(message.contains("the worker exited without a report (signal: 9"), "{message}");
}

#[test]
fn operator_can_forbid_transfers() {
    let daemon = Setup::default().config("[policy]\nallow_transfers = false\n").start();
    let asked = download("http://192.0.2.1/x?sig=canary".into(), "/tmp/file");
    let status = daemon.api.run(tree("closed", vec![action_of(asked), sh("true")])).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("action.serial.actions[0].download"), "{status:?}");
    assert!(!status.message().contains("canary"), "{status:?}");
}

fn search(daemon: &Daemon, needles: &Needles) -> Report {
    let mut search = Search::new(needles);
    let processes = footprint::processes(&daemon.setup().run_dir(), daemon.launcher());
    for pid in processes.into_iter().chain([daemon.pid()]) {
        Process::from_pid(pid.cast_unsigned()).iter().for_each(|process| search.process(process));
    }
    search.files(daemon.setup().home());
    search.report()
}

/// One second after the exit, a canary from the query of a URL is found nowhere. As a control, the canary is found in
/// the shim and in the worker while the download waits for its server.
#[test]
fn nothing_is_left_of_a_url() {
    let daemon = daemon();
    let server = WebServer::start(|number, _| if number == 0 { WebAnswer::Never } else { WebAnswer::ok(b"content") });
    let canary = Canary::random(64).unwrap();
    let mut needles = Needles::new().unwrap();
    needles.add("query", canary.as_bytes());
    let text = String::from_utf8(canary.as_bytes().to_vec()).unwrap();
    let request = |id: &str| {
        let url = server.url(&format!("/x?sig={text}"));
        let print = sh(&format!("echo 'printed: sig={text}'"));
        tree(id, vec![action_of(download(url, "/tmp/file")), print])
    };
    daemon.api.started(request("held"));
    let worker = wait::until("a worker runs", || workers(&daemon).first().copied());
    wait::until("the server receives the request", || (!server.requests().is_empty()).then_some(()));
    for pid in [daemon.record("held").shim.pid, worker] {
        let mut control = Search::new(&needles);
        Process::from_pid(pid.cast_unsigned()).iter().for_each(|process| control.process(process));
        assert!(control.report().found(), "control: the URL is in process {pid} while the download waits");
    }
    daemon.api.stop("held", Some(0)).unwrap();
    wait_until_settled(&daemon, "held");
    let report = search(&daemon, &needles);
    assert!(!report.found(), "after a stop:\n{report}");
    daemon.api.started(request("done"));
    wait_until_settled(&daemon, "done");
    let log = daemon.api.output("done").text();
    assert!(log.contains("printed: [REDACTED:"), "{log}");
    let report = search(&daemon, &needles);
    assert!(!report.found(), "after success:\n{report}");
}
