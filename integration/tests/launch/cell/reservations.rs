//! Reservations count as allocated, are used by containers, expire with an event, and survive a restart of executord.

use std::time::Duration;

use executor_client::{Client, Code, Error};
use executor_proto::v1::event::Kind;
use executor_proto::v1::{ListRequest, Reservation, Resources, RunRequest, State};
use integration::api::exit;
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder, sh, sleeper};
use integration::tls::TlsDaemon;

const MIB: u64 = 1 << 20;
/// A node with capacity for two small containers.
const SMALL: &str = "[capacity]\nmemory_bytes = \"128M\"\ncontainers = 4\n";

fn reserve(daemon: &Daemon, id: &str, mib: u64, ttl: Option<Duration>) -> Result<(Reservation, bool), Error> {
    let resources = Resources { memory_bytes: mib * MIB, ..Resources::default() };
    daemon.api.block_on(daemon.api.client().cell().reserve(id, resources, ttl))
}

fn into_reservation(request: RunRequest) -> RunRequest {
    RunRequest { reserved: true, ..request }
}

/// Returns the allocated, reserved and remaining memory in MiB, and the number of reservations.
fn memory(daemon: &Daemon) -> [u64; 4] {
    let info = daemon.api.info();
    let of = |capacity: Option<executor_proto::v1::Capacity>| capacity.unwrap().memory_bytes / MIB;
    assert_eq!(of(info.total), of(info.allocated) + of(info.remaining));
    [of(info.allocated), of(info.reserved), of(info.remaining), info.reservations.into()]
}

#[test]
fn reservation_holds_capacity_until_claimed() {
    let daemon = Setup::default().config(SMALL).start();
    let (made, created) = reserve(&daemon, "later", 96, None).unwrap();
    assert!(created && made.resources.unwrap().memory_bytes == 96 * MIB && made.resources.unwrap().pids > 0);
    let (from, to) = (made.created_at.unwrap().seconds, made.expires_at.unwrap().seconds);
    assert_eq!(to - from, 60, "the default");
    assert_eq!(memory(&daemon), [96, 96, 32, 1]);

    // No other request can use reserved capacity. A repeated request returns the same reservation.
    let refused = daemon.api.run(sleeper("other").memory(64 * MIB)).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("memory (bytes)"), "{refused}");
    assert!(!reserve(&daemon, "later", 96, None).unwrap().1);
    let other = reserve(&daemon, "later", 32, None).unwrap_err();
    assert_eq!(other.code(), Some(Code::AlreadyExists), "{other}");

    let shown = daemon.api.get("later").unwrap();
    assert_eq!((shown.state(), shown.reservation_expires_at.is_some()), (State::Reserved, true));
    daemon.api.started(sh("sleep 1000").id("a").memory(16 * MIB));
    daemon.api.started(sh("sleep 1000").id("z").memory(16 * MIB));
    let paged = |page_token: &str| {
        let page = ListRequest { page_size: 2, page_token: page_token.into(), ..ListRequest::default() };
        let page = daemon.api.list(page).unwrap();
        (page.containers.into_iter().map(|one| one.id).collect::<Vec<_>>(), page.next_page_token)
    };
    assert_eq!(paged(""), (vec!["a".into(), "later".into()], "later".into()));
    assert_eq!(paged("later"), (vec!["z".into()], String::new()));
    let by_hand = daemon.api.stop("later", None).unwrap_err();
    assert!(by_hand.message().contains("is a reservation"), "{by_hand}");

    // A container takes its capacity from the reservation. A container that needs more than the reservation is refused.
    let beyond = daemon.api.run(into_reservation(sleeper("later").memory(100 * MIB))).unwrap_err();
    assert_eq!(beyond.code(), Code::FailedPrecondition, "{beyond}");
    assert!(beyond.message().contains("more resources than its reservation"), "{beyond}");
    assert_eq!(memory(&daemon), [128, 96, 0, 1], "nothing has changed");
    let request = into_reservation(sleeper("later").memory(64 * MIB).file("a", b"secret"));
    let started = daemon.api.started(request.clone());
    assert_eq!((started.state(), started.reservation_expires_at), (State::Running, None));
    assert_eq!(memory(&daemon), [96, 0, 32, 0]);
    // A repeated request finds the container, with or without the flag.
    assert!(!daemon.api.run(request.clone()).unwrap().created);
    assert!(!daemon.api.run(RunRequest { reserved: false, ..request }).unwrap().created);
    for id in ["a", "later", "z"] {
        daemon.api.delete(id, true).unwrap();
    }
    assert_eq!(memory(&daemon), [0, 0, 128, 0]);
}

#[test]
fn reservation_expires_and_says_so() {
    let daemon = Setup::default().config(SMALL).start();
    let mut events = daemon.api.events_after(daemon.api.info().cursor);
    reserve(&daemon, "late", 128, Some(Duration::from_secs(1))).unwrap();
    let seen = events.until(|response| response.event.as_ref().unwrap().kind() == Kind::ReservationExpired);
    let kinds: Vec<Kind> = seen.iter().map(|response| response.event.as_ref().unwrap().kind()).collect();
    assert_eq!(kinds, [Kind::ReservationMade, Kind::ReservationExpired]);
    assert_eq!(seen[1].event.as_ref().unwrap().container_id, "late");
    assert_eq!(memory(&daemon), [0, 0, 128, 0]);
    let late = daemon.api.run(into_reservation(sh("exit 0").id("late"))).unwrap_err();
    assert_eq!(late.code(), Code::FailedPrecondition);
    assert!(late.message().contains("the reservation late expired at 2"), "{late}");
    let never = daemon.api.run(into_reservation(sh("exit 0").id("never"))).unwrap_err();
    assert!(never.message().contains("there is no reservation never"), "{never}");
    // As a control, the id itself is free.
    assert_eq!(exit(&daemon.api.run_to_end(sh("exit 3").id("late").memory(64 * MIB))), Ok(3));

    daemon.api.delete("late", true).unwrap();
    reserve(&daemon, "free", 128, None).unwrap();
    daemon.api.block_on(daemon.api.client().cell().release("free")).unwrap();
    events.until(|response| response.event.as_ref().unwrap().kind() == Kind::ReservationReleased);
    assert_eq!(memory(&daemon), [0, 0, 128, 0]);
    let gone = daemon.api.block_on(daemon.api.client().cell().release("free")).unwrap_err();
    assert_eq!(gone.code(), Some(Code::NotFound), "{gone}");
    for (id, mib, ttl, field) in
        [("a", 64, 0, "ttl"), ("a", 64, 3601, "ttl"), ("a", 1, 60, "memory"), ("?", 9, 60, "id")]
    {
        let refused = reserve(&daemon, id, mib, Some(Duration::from_secs(ttl))).unwrap_err();
        assert_eq!(refused.code(), Some(Code::InvalidArgument));
        assert!(refused.to_string().contains(field), "{refused}");
    }
}

#[test]
fn reservations_survive_a_restart() {
    let mut daemon = Setup::default().config(SMALL).start();
    let (long, _) = reserve(&daemon, "long", 64, None).unwrap();
    reserve(&daemon, "short", 64, Some(Duration::from_secs(1))).unwrap();
    daemon.terminate();
    // After this pause the short reservation has expired, even if the next daemon starts quickly.
    std::thread::sleep(Duration::from_secs(1));
    daemon.start_again();
    assert_eq!(memory(&daemon), [64, 64, 64, 1]);
    assert_eq!(daemon.api.get("long").unwrap().reservation_expires_at, long.expires_at);
    let mut events = daemon.api.events_after(0);
    let reported = events.until(|response| response.event.as_ref().unwrap().kind() == Kind::ReservationExpired);
    assert_eq!(reported.last().unwrap().event.as_ref().unwrap().container_id, "short");
    daemon.api.started(into_reservation(sleeper("long").memory(64 * MIB)));
    assert_eq!(memory(&daemon), [64, 0, 64, 0]);
    daemon.terminate();
    daemon.start_again();
    assert_eq!(memory(&daemon), [64, 0, 64, 0], "the reservation was not restored");
    daemon.api.delete("long", true).unwrap();
}

/// The reservations of one caller leave the share of another caller free, even after a restart. As controls, another
/// caller and root still get capacity when the first caller's share is full, and root has no share. A caller that may
/// reserve and run may not drain.
#[test]
fn reservations_have_a_share_by_caller() {
    let callers =
        ["a", "b"].map(|name| format!("[[callers]]\nuri = 'spiffe://test/{name}'\nmethods = ['read', 'run']\n"));
    let mut tls = TlsDaemon::start(&format!("{}{SMALL}", callers.concat()), "");
    let files = ["a", "b"].map(|name| tls.files(name, &tls.authority.caller(&format!("spiffe://test/{name}"))));
    let connect = |tls: &TlsDaemon| files.each_ref().map(|files| tls.connect(files).unwrap());
    let reserve_by = |tls: &TlsDaemon, client: &Client, id: &str, mib: u64| {
        let resources = Resources { memory_bytes: mib * MIB, ..Resources::default() };
        tls.daemon.api.block_on(client.cell().reserve(id, resources, None)).map(|(_, created)| created)
    };
    let beyond = |refused: Result<bool, Error>, short: &str| {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Some(Code::ResourceExhausted), "{refused}");
        let why = "the reservations of one caller may use at most 50 % of the capacity (capacity.reserved_percent): not enough ";
        assert!(refused.to_string().contains(&format!("{why}{short}")), "{refused}");
    };
    let [a, b] = connect(&tls);
    assert!(reserve_by(&tls, &a, "a1", 32).unwrap());
    beyond(reserve_by(&tls, &a, "a2", 64), "memory (bytes): requested 67108864, available 33554432 of 67108864");
    assert!(reserve_by(&tls, &a, "a2", 16).unwrap() && !reserve_by(&tls, &a, "a2", 16).unwrap());
    beyond(reserve_by(&tls, &a, "a3", 8), "pids: requested 1024, available 0 of 2048");
    assert!(reserve_by(&tls, &b, "b1", 64).unwrap());
    tls.restart();
    let [a, b] = connect(&tls);
    beyond(reserve_by(&tls, &a, "a3", 8), "pids");
    // A reservation counts against the share of the caller that last renewed it.
    beyond(reserve_by(&tls, &b, "a2", 16), "memory (bytes): requested 16777216, available 0 of 67108864");
    tls.daemon.api.block_on(b.cell().release("b1")).unwrap();
    assert!(!reserve_by(&tls, &b, "a2", 16).unwrap());
    assert!(reserve_by(&tls, &a, "a3", 8).unwrap());
    tls.daemon.api.block_on(a.cell().release("a3")).unwrap();
    reserve(&tls.daemon, "root", 80, None).unwrap();
    let full = reserve_by(&tls, &b, "b1", 8).unwrap_err().to_string();
    assert!(full.contains("available 0 of 134217728") && !full.contains("one caller"), "{full}");

    let mut drain = a.cell().drain(None, 1, "attack").unwrap();
    let denied = [
        tls.daemon.api.block_on(drain.next()).err(),
        tls.daemon.api.block_on(a.cell().undrain()).err(),
        tls.daemon.api.block_on(a.cell().set_unhealthy(Some("attack"))).err(),
    ];
    for denied in denied {
        assert_eq!(denied.unwrap().code(), Some(Code::PermissionDenied));
    }
    tls.daemon.api.started(into_reservation(sleeper("root").memory(64 * MIB)));
}

#[test]
fn command_line_reserves_and_releases() {
    let daemon = Daemon::start();
    let run = |arguments: &[&str]| cli::run(&daemon.socket(), arguments);
    let made = run(&["reserve", "--memory", "64M", "--ttl", "10m", "r1"]);
    assert_eq!((made.status, &*made.stdout), (0, "r1\n"), "{made:?}");
    let listed = run(&["ps"]);
    assert!(listed.stdout.contains("r1") && listed.stdout.contains("reserved (expires in 9m"), "{listed:?}");
    let info = run(&["--json", "info"]).json();
    assert_eq!(info["reserved"]["memory_bytes"], 64 * MIB);
    let ran = run(&["run", "--reservation", "r1", "--memory", "64M", "--", "/bin/echo", "hello"]);
    assert_eq!((ran.status, &*ran.stdout), (0, "hello\n"), "{ran:?}");
    let again = run(&["run", "--reservation", "r1", "--memory", "64M", "--", "/bin/echo", "hello"]);
    assert!(again.status == 125 && again.stderr.contains("there is no reservation r1"), "{again:?}");
    assert_eq!(run(&["--json", "reserve", "r2"]).json()["id"], "r2");
    assert_eq!(run(&["release", "r2"]).stdout, "r2\n");
    assert_eq!(run(&["release", "r2"]).status, 125);
}
