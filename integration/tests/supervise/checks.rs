//! Checks of containers by HTTP, by TCP and by a program; the effects of checks; and servers that attack the checking
//! process.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use executor_proto::v1::check::Kind;
use executor_proto::v1::{
    Action, Check, CheckPurpose, CheckStatus, Checks, Container, Event, ExecCheck, HttpCheck, HttpHeader, Network,
    RunAction, RunRequest, State, TcpCheck, Tmpfs, WatchEventsResponse, event, failure,
};
use integration::api::{Incoming, ending, exit, pid};
use integration::daemon::{Daemon, Setup, kill};
use integration::request::{RequestBuilder, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::{cli, host, wait};
use tonic::Code;

/// Serves the files of /tmp/www when /tmp/up exists.
const HTTPD: &str =
    "mkdir /tmp/www; while [ ! -e /tmp/up ]; do sleep 0.02; done; exec busybox httpd -f -p 8080 -h /tmp/www";

fn millis(millis: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: millis / 1000, nanos: (millis % 1000) as i32 * 1_000_000 })
}

/// Returns a check with an interval of half a second.
fn check(kind: Kind) -> Check {
    Check { kind: Some(kind), interval: millis(500), ..Check::default() }
}

fn http(path: &str) -> Check {
    check(Kind::Http(HttpCheck { port: 8080, path: path.into(), ..HttpCheck::default() }))
}

fn tcp(port: u32) -> Check {
    check(Kind::Tcp(TcpCheck { port }))
}

fn exec(script: &str) -> Check {
    let exec = ExecCheck { path: "/bin/sh".into(), args: vec!["-c".into(), script.into()], ..ExecCheck::default() };
    Check { interval: millis(1000), ..check(Kind::Exec(exec)) }
}

fn with(checks: Checks, request: RunRequest) -> RunRequest {
    RunRequest { checks: Some(checks), ..request }
}

/// Runs a script in the container as root of the container.
fn within(container: &Container, script: &str) {
    let pid = pid(container).to_string();
    let flags = ["-t", &pid, "-m", "-U", "--setuid", "0", "--setgid", "0", "/bin/sh", "-c", script];
    assert!(std::process::Command::new("nsenter").args(flags).status().unwrap().success(), "{script}");
}

/// Builds a request for a shell script in a root file system whose /tmp is writable for all users.
fn script(text: &str, id: &str, rootfs: &Rootfs) -> RunRequest {
    let tmpfs = vec![Tmpfs { path: "/tmp".into(), exec: true, ..Tmpfs::default() }];
    RunRequest { tmpfs, ..sh(text).id(id).rootfs(&rootfs.reference()) }
}

fn status(container: &Container, purpose: CheckPurpose) -> CheckStatus {
    container.check_statuses.iter().find(|status| status.purpose() == purpose).cloned().unwrap()
}

fn until(daemon: &Daemon, id: &str, what: &str, fits: impl Fn(&Container) -> bool) -> Container {
    wait::until_ok(what, || {
        let container = daemon.api.get(id).unwrap();
        if fits(&container) { Ok(container) } else { Err(format!("{:?}", container.check_statuses)) }
    })
}

/// Returns true if the first check has failed this number of times in a row.
fn has_failed(container: &Container, times: u32) -> bool {
    container.check_statuses.first().is_some_and(|status| status.failures >= times)
}

/// Returns the health events of a container until it exits.
fn health_events(events: &mut Incoming<WatchEventsResponse>, id: &str) -> Vec<event::Kind> {
    let of =
        |news: &WatchEventsResponse| -> Option<Event> { news.event.clone().filter(|event| event.container_id == id) };
    let all = events.until(|news| of(news).is_some_and(|event| event.kind() == event::Kind::Completed));
    let health = [event::Kind::Ready, event::Kind::NotReady, event::Kind::Unhealthy];
    let kinds = all.iter().filter_map(of).map(|event| event.kind());
    kinds.filter(|kind| health.contains(kind)).collect()
}

fn failed_as_unhealthy(container: &Container) -> String {
    let result = ending(container);
    let failure = result.failure.clone().unwrap();
    assert_eq!((failure.kind(), result.stopped), (failure::Kind::Unhealthy, false), "{result:?}");
    assert!(result.exit.is_some(), "the exit is known, too");
    failure.message
}

#[test]
fn container_becomes_ready_unready_and_ended() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    let mut events = daemon.api.events_after(daemon.api.info().cursor);
    let checks = Checks {
        startup: vec![tcp(8080)],
        liveness: vec![Check { unhealthy_threshold: 2, ..http("/live") }],
        readiness: vec![Check { unhealthy_threshold: 1, timeout: millis(10_000), ..http("/ready") }],
        start_timeout: None,
    };
    let request = with(checks, script(HTTPD, "web", &rootfs).grace_ms(0));
    let web = daemon.api.started(request.clone());
    assert!(!web.ready && !web.startup_passed);
    let starting = until(&daemon, "web", "the port is refused", |web| has_failed(web, 2));
    let refused = "Failed to make TCP connection to port 8080: connection refused";
    assert_eq!(status(&starting, CheckPurpose::Startup).last_failure, refused);
    assert_eq!(
        status(&starting, CheckPurpose::Liveness).checked_at,
        None,
        "the liveness check starts after the startup checks"
    );
    assert!(!starting.startup_passed);

    within(&web, "touch /tmp/www/live /tmp/www/ready /tmp/up");
    let ready = until(&daemon, "web", "the container is ready", |web| web.ready);
    assert!(ready.startup_passed && status(&ready, CheckPurpose::Readiness).passing);
    let spec = ready.spec.unwrap().checks.unwrap();
    assert_eq!((spec.liveness[0].timeout, spec.start_timeout), (millis(1000), millis(60_000)), "defaults are shown");
    assert!(!daemon.api.run(request.clone()).unwrap().created, "the same request is the same container");
    let other = RunRequest { checks: None, ..request };
    assert_eq!(daemon.api.run(other).unwrap_err().code(), Code::AlreadyExists);

    within(&web, "rm /tmp/www/ready");
    let busy = until(&daemon, "web", "the container is not ready", |web| !web.ready);
    assert_eq!((busy.state(), busy.startup_passed), (State::Running, true));
    let why = "Failed to make HTTP request to '/ready' on port 8080: received status code 404";
    assert_eq!(status(&busy, CheckPurpose::Readiness).last_failure, why);
    within(&web, "touch /tmp/www/ready");
    until(&daemon, "web", "the container is ready again", |web| web.ready);

    within(&web, "rm /tmp/www/live");
    let ended = daemon.api.wait("web").unwrap();
    let why =
        "Instance became unhealthy: Failed to make HTTP request to '/live' on port 8080: received status code 404";
    assert_eq!(failed_as_unhealthy(&ended), why);
    assert!(!ended.ready && exit(&ended).is_err());
    let begun = "Starting health monitoring of container\nContainer became healthy\n";
    assert_eq!(executor_words(&daemon, "web"), format!("{begun}{why}\n"));
    use event::Kind::{NotReady, Ready, Unhealthy};
    assert_eq!(health_events(&mut events, "web"), [Ready, NotReady, Ready, Unhealthy]);
    daemon.api.delete("web", false).unwrap();
    daemon.wait_until_back_at(&before);
}

#[test]
fn container_unhealthy_at_start_timeout_is_ended() {
    let daemon = Daemon::start();
    let checks = Checks { liveness: vec![tcp(8080)], start_timeout: millis(1500), ..Checks::default() };
    let begun = Instant::now();
    let ended = daemon.api.run_to_end(with(checks, sleeper("never").grace_ms(0)));
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    let why = "Instance never healthy after 1.5s: Failed to make TCP connection to port 8080: connection refused";
    assert_eq!(failed_as_unhealthy(&ended), why);
    let asked = Checks { liveness: vec![tcp(0)], start_timeout: millis(3_600_001), ..Checks::default() };
    let reported = daemon.api.run(with(asked, sleeper("bad"))).unwrap_err();
    assert_eq!(reported.code(), Code::InvalidArgument, "{reported:?}");
    for field in ["checks.start_timeout", "checks.liveness[0].tcp.port"] {
        assert!(reported.message().contains(field), "{reported:?}");
    }
    // A container without checks is ready while it runs.
    let plain = daemon.api.started(sleeper("plain"));
    assert!(plain.ready && plain.check_statuses.is_empty());
    daemon.api.stop("plain", Some(0)).unwrap();
    assert!(!daemon.api.wait("plain").unwrap().ready);
}

/// Answers 418 to a request with the expected headers.
const PICKY: &str = r#"cat > /tmp/answer <<'END'
#!/bin/sh
status=500
while read -r line; do
  case "$line" in
    [Hh]ost:*app.example*) host=yes;;
    [Xx]-[Pp]robe:*one*) [ -n "$host" ] && status=418;;
    ?) break;;
  esac
done
printf 'HTTP/1.1 %s x\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n' $status
END
chmod +x /tmp/answer; exec busybox nc -ll -p 8080 -e /tmp/answer"#;

#[test]
fn headers_are_sent_and_statuses_count() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let header = |name: &str, value: &str| HttpHeader { name: name.into(), value: value.into() };
    let asked = HttpCheck {
        port: 8080,
        path: "/a?b=c".into(),
        headers: vec![header("Host", "app.example"), header("X-Probe", "one")],
        statuses: vec![418],
    };
    let other = HttpCheck { statuses: vec![], ..asked.clone() };
    let checks = |http: HttpCheck| Checks { readiness: vec![check(Kind::Http(http))], ..Checks::default() };
    daemon.api.started(with(checks(asked), script(PICKY, "right", &rootfs)));
    daemon.api.started(with(checks(other), script(PICKY, "wrong", &rootfs)));
    until(&daemon, "right", "the status 418 passes", |container| container.ready);
    let wrong = until(&daemon, "wrong", "the status 418 fails", |container| {
        container.check_statuses.first().is_some_and(|status| status.last_failure.contains("418"))
    });
    assert!(!wrong.ready);
    for id in ["right", "wrong"] {
        daemon.api.delete(id, true).unwrap();
    }
}

/// Returns the lines of the executor in a container's log.
fn executor_words(daemon: &Daemon, id: &str) -> String {
    String::from_utf8(daemon.api.output(id).executor).unwrap()
}

#[test]
fn exec_check_runs_program_in_container() {
    const CANARY: &str = "canary-of-the-check-77aa31";
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    let probe = "id -u; [ -e /tmp/ok ] || { echo broken; cat /etc/cf-service-bindings/a; exit 3; }";
    let liveness = Check { unhealthy_threshold: 1, timeout: millis(10_000), ..exec(probe) };
    let checks = Checks { liveness: vec![liveness], ..Checks::default() };
    let request = script("touch /tmp/ok; exec sleep 1000", "db", &rootfs).user("app").file("a", CANARY.as_bytes());
    let db = daemon.api.started(with(checks, request.grace_ms(0)));
    until(&daemon, "db", "the container is ready", |db| db.ready);
    within(&db, "rm /tmp/ok");
    let ended = daemon.api.wait("db").unwrap();
    assert_eq!(failed_as_unhealthy(&ended), "Instance became unhealthy: `/bin/sh` exited with status 3");
    let log = executor_words(&daemon, "db");
    assert!(log.contains("exited with status 3\n1234\nbroken\n[REDACTED:"), "{log}");
    for text in [log, format!("{ended:?}")] {
        assert!(!text.contains(CANARY), "{text}");
    }
    daemon.api.delete("db", false).unwrap();

    let program = |path: &str| check(Kind::Exec(ExecCheck { path: path.into(), ..ExecCheck::default() }));
    let cases = [
        ("slow", exec("exec sleep 100"), "`/bin/sh` timed out after 1s"),
        ("loud", exec("exec yes"), "`/bin/sh` wrote more than 1048576 bytes"),
        ("none", Check { interval: None, ..program("/nope") }, "No such file or directory"),
    ];
    for (id, check, why) in cases {
        let checks = Checks { readiness: vec![check], ..Checks::default() };
        daemon.api.started(with(checks, sleeper(id)));
        let failed = until(&daemon, id, "the check fails", |container| has_failed(container, 1));
        let reported = &failed.check_statuses[0].last_failure;
        assert!(reported.contains(why) && failed.state() == State::Running, "{id}: {reported}");
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);

    let daemon = Setup::default().config("[policy]\nallow_exec = false\n").start();
    let checks = Checks { readiness: vec![exec("true")], ..Checks::default() };
    let reported = daemon.api.run(with(checks, sleeper("no"))).unwrap_err();
    assert!(reported.message().contains("checks.readiness[0].exec"), "{reported:?}");
}

#[test]
fn checks_go_on_when_executord_is_restarted() {
    let (mut daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let liveness = Check { unhealthy_threshold: 6, ..http("/live") };
    let checks = Checks { liveness: vec![liveness], readiness: vec![http("/ready")], ..Checks::default() };
    let request = |id: &str| script(HTTPD, id, &rootfs).grace_ms(0);
    let container = daemon.api.started(with(checks, request("web")));
    within(&container, "until [ -d /tmp/www ]; do sleep 0.01; done; touch /tmp/www/live /tmp/www/ready /tmp/up");
    let before = until(&daemon, "web", "the container is ready", |web| web.ready);
    // The start timeout expires while no executord is running.
    let never = Checks { startup: vec![tcp(1)], start_timeout: millis(3000), ..Checks::default() };
    daemon.api.started(with(never, request("never")));
    until(&daemon, "never", "a first failure", |never| has_failed(never, 1));

    within(&container, "rm /tmp/www/live");
    until(&daemon, "web", "failures", |web| has_failed(web, 3));
    daemon.kill();
    daemon.start_again();
    let after = daemon.api.get("web").unwrap();
    let failures = status(&after, CheckPurpose::Liveness).failures;
    assert!(after.ready && after.startup_passed && failures >= 2, "{after:?}");
    assert_eq!(after.created_at, before.created_at);
    assert!(failed_as_unhealthy(&daemon.api.wait("web").unwrap()).contains("became unhealthy"));
    let why = "Instance never healthy after 3s: Failed to make TCP connection to port 1: connection refused";
    assert_eq!(failed_as_unhealthy(&daemon.api.wait("never").unwrap()), why);
}

#[test]
fn start_timeout_begins_after_setup() {
    let (mut daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let run = |script: &str| RunAction {
        path: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        ..RunAction::default()
    };
    let action = |script: &str| Some(Action { run: Some(run(script)), ..Action::default() });
    let start = Duration::from_millis(1500);
    let request = |id: &str, served: u16| RunRequest {
        setup: action("until [ -e /tmp/go ]; do sleep 0.02; done"),
        action: action(&format!("exec busybox httpd -f -p {served} -h /tmp")),
        checks: Some(Checks { liveness: vec![tcp(8080)], start_timeout: millis(1500), ..Checks::default() }),
        ..script("", id, &rootfs).grace_ms(0)
    };
    let requests = [("good", 8080), ("never", 8081)];
    for (id, served) in requests {
        daemon.api.started(request(id, served));
    }
    daemon.kill();
    daemon.start_again();
    let begun = Instant::now();
    wait::until_ok("setup is longer than start_timeout", || {
        for (id, _) in requests {
            let container = daemon.api.get(id).unwrap();
            assert_eq!(container.state(), State::Running, "{container:?}");
            assert!(!container.ready && container.check_statuses.iter().all(|status| status.checked_at.is_none()));
        }
        if begun.elapsed() > start * 2 { Ok(()) } else { Err("not yet".to_owned()) }
    });
    for (id, _) in requests {
        let done = cli::run(&daemon.socket(), &["exec", id, "--", "/bin/touch", "/tmp/go"]);
        assert_eq!(done.status, 0, "{done:?}");
    }
    until(&daemon, "good", "the container is ready", |good| good.ready);
    let ended = daemon.api.wait("never").unwrap();
    assert!(failed_as_unhealthy(&ended).starts_with("Instance never healthy after 1.5s: "), "control failed");
    assert!(daemon.api.get("good").unwrap().ready);
}

/// A check reaches only ports of its own container: no host port and no port of another container.
#[test]
fn check_stays_in_its_container() {
    let daemon = Setup::default().config("[policy]\nallow_host_network = true\n").start();
    let rootfs = Rootfs::busybox();
    let on_host = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = u32::from(on_host.local_addr().unwrap().port());
    let checks = || Checks { readiness: vec![tcp(port)], ..Checks::default() };
    let other = format!("exec busybox nc -ll -p {port} -e /bin/true");
    daemon.api.started(sh(&other).id("neighbour").rootfs(&rootfs.reference()));
    let container = daemon.api.started(with(checks(), sleeper("alone")));
    let failed = until(&daemon, "alone", "failures", |container| has_failed(container, 2));
    assert!(failed.check_statuses[0].last_failure.ends_with("connection refused"), "{failed:?}");
    // As a control, a container with the host's network is checked at the host port.
    let host = RunRequest { network: Network::Host.into(), ..sleeper("host") };
    daemon.api.started(with(checks(), host));
    until(&daemon, "host", "the host's port", |container| container.ready);
    // The shim creates the sockets in the container's namespace. The shim must be back in its original namespace.
    let network = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    let shim = host::parent(pid(&container)).unwrap();
    assert_eq!(network(shim), network(daemon.launcher().unwrap()));
    assert_ne!(network(pid(&container)), network(shim), "control: the container has its own network namespace");
    for id in ["neighbour", "alone", "host"] {
        daemon.api.delete(id, true).unwrap();
    }
}

/// Hostile servers: each has an id, a script that sends its data over a connection, and the expected message.
const HOSTILE: [(&str, &str, &str); 6] = [
    ("silent", "exec sleep 1000", "timed out after 1s"),
    ("endless-line", "yes | busybox tr -d '\\n'", ""),
    ("endless-head", "printf 'HTTP/1.1 200 OK\\r\\n'; while :; do printf 'A: %08000d\\r\\n' 1 || exit; done", ""),
    ("interim", "while :; do printf 'HTTP/1.1 103 x\\r\\nA: %01000d\\r\\n\\r\\n' 1 || exit; done", "65536 bytes"),
    ("slow", "for c in H T T P / 1 . 1; do printf $c; sleep 0.3; done", "timed out after 1s"),
    ("gone", "exit", ""),
];

/// Writes a script to a file, and executes the file for each connection.
const FOR_EACH: &str =
    "printf '#!/bin/sh\\n%s\\n' \"$0\" > /tmp/a; chmod +x /tmp/a; exec busybox nc -ll -p 8080 -e /tmp/a";

#[test]
fn hostile_servers_cost_executord_little() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let memory = || {
        let text = host::status(daemon.pid(), "VmRSS").unwrap();
        text.trim_end_matches(" kB").trim().parse::<u64>().unwrap()
    };
    // As a control, a check passes if a valid header is followed by an endless body, which is not read.
    let body = ("endless-body", "printf 'HTTP/1.1 200 OK\\r\\n\\r\\n'; exec yes", "passes");
    let all: Vec<_> = HOSTILE.into_iter().chain([body]).collect();
    let (descriptors, before) = (host::descriptors(daemon.pid()), memory());
    for (id, answer, _) in &all {
        let readiness = vec![http("/"), http("/"), http("/"), http("/")];
        let server = script(FOR_EACH, id, &rootfs).action(|run| run.args.push((*answer).into()));
        daemon.api.started(with(Checks { readiness, ..Checks::default() }, server));
    }
    for (id, _, expected) in &all {
        let judged = until(&daemon, id, "the server was checked often enough", |container| {
            let asked = |status: &CheckStatus| status.failures >= 3 || status.successes >= 3;
            !container.check_statuses.is_empty() && container.check_statuses.iter().all(asked)
        });
        assert_eq!(judged.ready, *expected == "passes", "{id}: {:?}", judged.check_statuses);
        let why = &judged.check_statuses[0].last_failure;
        assert!(*expected == "passes" || why.contains(expected), "{id}: {why}");
        assert!(why.len() < 200, "{id}: {why}");
    }
    // Each container uses one connection to its shim, and at most one connection of a check.
    let most = descriptors + all.len() * 3 + 16;
    assert!(host::descriptors(daemon.pid()) <= most, "{} of {most}", host::descriptors(daemon.pid()));
    assert!(memory() < before + (32 << 10), "{} KiB, {before} KiB before", memory());
    for (id, ..) in all {
        daemon.api.delete(id, true).unwrap();
    }
}

/// If executord and the shim are killed while failed checks stop a container, the reason for the stop is preserved.
#[test]
fn end_by_checks_survives_kills() {
    let mut daemon = Daemon::start();
    let checks = Checks { liveness: vec![tcp(8080)], start_timeout: millis(1100), ..Checks::default() };
    let stubborn = sh("trap '' TERM; while :; do sleep 0.1; done").id("stubborn").grace_ms(60_000);
    let container = daemon.api.started(with(checks, stubborn));
    until(&daemon, "stubborn", "the container is stopping", |container| container.state() == State::Stopping);
    daemon.kill();
    kill(host::parent(pid(&container)).unwrap(), 9);
    daemon.start_again();
    let ended = daemon.api.wait("stubborn").unwrap();
    // The exit status is unknown, and the failure states that the supervisor was lost.
    assert_eq!(ending(&ended).failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
    assert!(executor_words(&daemon, "stubborn").contains("Instance never healthy after 1.1s"));
}

/// Returns the CPU time of a process, in seconds.
fn processor_time(pid: i32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = [fields[11], fields[12]].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// 250 containers with one check every 30 s make 8.3 checks a second. 2 % of a CPU allow 2.4 ms for each check.
#[test]
fn check_costs_executord_little() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let ids: Vec<String> = (0..10).map(|index| format!("c{index}")).collect();
    for id in &ids {
        let server = sh("exec busybox httpd -f -p 8080").id(id).rootfs(&rootfs.reference());
        daemon.api.started(with(Checks { readiness: vec![tcp(8080); 4], ..Checks::default() }, server));
        until(&daemon, id, "the container is ready", |container| container.ready);
    }
    let made = || -> u32 {
        let containers = ids.iter().map(|id| daemon.api.get(id).unwrap());
        containers.flat_map(|container| container.check_statuses).map(|status| status.successes).sum()
    };
    // During the measurement the test makes no call to executord. The exit of another container ends the measurement.
    let clock = Checks {
        liveness: vec![Check { interval: millis(3_000), ..tcp(1) }],
        start_timeout: millis(10_000),
        ..Checks::default()
    };
    daemon.api.started(with(clock, sleeper("clock").grace_ms(0)));
    let (before, spent) = (made(), processor_time(daemon.pid()));
    daemon.api.wait("clock").unwrap();
    let (spent, count) = (processor_time(daemon.pid()) - spent, made() - before);
    let each = spent / f64::from(count);
    assert!(count > 400 && each < 0.0024, "{count} checks, {:.2} ms for each", each * 1e3);
    println!("{count} checks, {:.3} ms for each", each * 1e3);
    for id in &ids {
        daemon.api.delete(id, true).unwrap();
    }
}
