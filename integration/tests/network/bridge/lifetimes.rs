//! Addresses, interfaces, ports and leases are released after every kind of exit. Many concurrent containers have
//! distinct addresses.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use executor_proto::v1::RunRequest;
use integration::daemon::{has_ended, kill};
use integration::host;
use integration::lanes::LANES;
use integration::network::{HOST, Network};
use integration::request::{RequestBuilder, program};
use integration::rootfs::Rootfs;
use integration::wait;

use super::Place::{Beyond, Host};
use super::{POLICY, World, addresses, on, server, sleeping, tcp};

const PORT: u16 = 18_080;

impl World {
    /// Kills the launcher and waits for its exit.
    fn kill_launcher(&self) {
        let launcher = self.daemon.launcher().unwrap();
        kill(launcher, 9);
        wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    }

    /// Restarts executord, which starts a launcher.
    fn restart(&mut self) {
        assert!(self.daemon.terminate().success());
        self.daemon.start_again();
    }

    /// Checks that the port responds over IPv4 and IPv6.
    fn assert_answers(&self, id: &str) {
        let answer = format!("{id} ");
        self.assert_reached(Host, &["127.0.0.1", "::1", HOST].map(|ip| ("tcp", ip, PORT, Some(answer.as_str()))));
        self.assert_reached(Beyond, &[("tcp", HOST, PORT, Some(answer.as_str()))]);
    }
}

#[test]
fn killed_shim_gives_everything_back() {
    let world = World::start();
    world.serve(server("web", &[tcp("", PORT)]));
    world.assert_answers("web");
    kill(world.daemon.record("web").shim.pid, 9);
    world.api().wait("web").unwrap();
    // The port must be free as soon as the exit is reported.
    world.serve(server("next", &[tcp("", PORT)]));
    world.assert_answers("next");
    world.delete_all();
}

/// Containers continue to run without a launcher. The next launcher knows their addresses and ports.
#[test]
fn killed_launcher_keeps_running_containers() {
    let mut world = World::start();
    let first = addresses(&world.serve(server("web", &[tcp("", PORT)])));
    world.kill_launcher();
    world.assert_answers("web");
    world.restart();
    world.assert_answers("web");
    let refused = world.api().run(server("second", &[tcp("", PORT)])).unwrap_err();
    super::assert_refused(&refused, "is already published by container `web`");
    let second = addresses(&world.serve(server("second", &[tcp("", PORT + 1)])));
    assert_ne!(first, second);
    world.delete_all();
}

/// If a container exits while there is no launcher, its shim detaches the container from the network. If the shim was
/// killed as well, the next launcher detaches the container.
#[test]
fn next_launcher_detaches_lost_containers() {
    let mut world = World::start();
    world.serve(server("web", &[tcp("", PORT)]));
    world.serve(server("stopped", &[tcp("", PORT + 1)]));
    world.kill_launcher();
    kill(world.daemon.record("web").shim.pid, 9);
    world.api().stop("stopped", Some(0)).unwrap();
    let left = world.network.bridge_leftovers(world.daemon.setup());
    assert!(left.iter().any(|one| one.contains("web")), "control: a record is left: {left:#?}");
    world.restart();
    world.assert_nothing_left();
    world.serve(server("next", &[tcp("", PORT), tcp("", PORT + 1)]));
    world.assert_answers("next");
    world.delete_all();
}

/// A launcher repairs the network of running containers at its start.
#[test]
fn starting_launcher_mends_networks() {
    let mut world = World::start();
    world.serve(server("web", &[tcp("", PORT)]));
    world.kill_launcher();
    world.network.on_host(&["sh", "-c", "ip link del ex-bridge; nft flush ruleset"]);
    world.assert_reached(Beyond, &[("tcp", HOST, PORT, None)]);
    world.restart();
    world.assert_answers("web");
    world.delete_all();
}

#[test]
fn forty_starts_at_once_are_distinct() {
    const COUNT: usize = 40;
    let (world, rootfs) = (World::start(), Rootfs::busybox());
    world.api().started(sleeping("first", false)); // creates the directory of leases, which is kept
    world.delete_all();
    let before = world.daemon.footprint();
    let request = |at: usize| {
        let request = program("/bin/sleep", &["100000"]).id(&format!("c{at}")).rootfs(&rootfs.reference()).grace_ms(0);
        let port = tcp("", PORT + u16::try_from(at).unwrap());
        on("bridge", RunRequest { ports: vec![port], ..request })
    };
    let started: Vec<_> = std::thread::scope(|scope| {
        let api = world.api();
        let threads: Vec<_> = (0..COUNT).map(|at| scope.spawn(move || addresses(&api.started(request(at))))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (v4, v6): (BTreeSet<String>, BTreeSet<String>) = started.into_iter().unzip();
    assert_eq!((v4.len(), v6.len()), (COUNT, COUNT));
    let ports = world.network.on_host(&["ip", "-o", "link", "show", "master", "ex-bridge"]);
    assert_eq!(ports.lines().count(), COUNT);
    // Every container has its addresses in the sets of permitted senders, and has its published port.
    for (set, per_container) in
        [("bridge ex-bridge hardware", 1), ("bridge ex-bridge own4", 1), ("bridge ex-bridge own6", 2)]
    {
        let words = ["nft", "list", "set"].into_iter().chain(set.split(' ')).collect::<Vec<_>>();
        let listed = world.network.on_host(&words);
        assert_eq!(listed.matches("\" . ").count(), COUNT * per_container, "{listed}");
    }
    for map in ["ports4", "ports6"] {
        let listed = world.network.on_host(&["nft", "list", "map", "inet", "ex-bridge", map]);
        assert_eq!(listed.matches("tcp . ").count(), COUNT, "{listed}");
    }
    std::thread::scope(|scope| {
        for at in 0..COUNT {
            let api = world.api();
            scope.spawn(move || api.delete(&format!("c{at}"), true).unwrap());
        }
    });
    world.assert_nothing_left();
    world.daemon.wait_until_back_at(&before);
}

/// After a launcher has exited, the bridge and the tables are gone, unless a container is running.
#[test]
fn orderly_exit_removes_bridge_and_tables() {
    let mut world = World::start();
    world.serve(server("web", &[tcp("", PORT)]));
    let exists = |world: &World| {
        let links = world.network.on_host(&["ip", "link"]).contains("ex-bridge");
        (links, world.network.on_host(&["nft", "list", "tables"]).contains("ex-bridge"))
    };
    let exit = |world: &mut World| {
        let launcher = world.daemon.launcher().unwrap();
        assert!(world.daemon.terminate().success());
        kill(launcher, 15);
        wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    };
    exit(&mut world);
    assert_eq!(exists(&world), (true, true), "control: the bridge and the tables exist while a container runs");
    world.assert_answers("web");
    world.daemon.start_again();
    world.delete_all();
    assert_eq!(exists(&world), (true, true), "control: the bridge and the tables are kept for the next container");
    exit(&mut world);
    assert_eq!(exists(&world), (false, false));
    world.daemon.start_again();
    world.api().started(sleeping("again", false));
    assert_eq!(exists(&world), (true, true));
    world.delete_all();
}

/// Shims and warm containers are killed at random while containers start. Afterwards every address, interface, port and
/// rule is free. EXECUTOR_KILLED_STARTS sets the number of containers.
#[test]
fn starts_killed_at_random_leave_nothing() {
    let count: u16 = std::env::var("EXECUTOR_KILLED_STARTS").map_or(32, |text| text.parse().expect("a number"));
    let network = Network::forwarding();
    let config = "[warm_pool]\nsize = 2\nnetwork = \"bridge\"\n";
    let daemon = network.without_cni(POLICY, config).start();
    let (mut world, rootfs) = (World { daemon, network }, Rootfs::busybox());
    let launcher = world.daemon.launcher().unwrap();
    let request = |at: u16| {
        let request = program("/bin/sleep", &["100000"]).id(&format!("c{at}")).rootfs(&rootfs.reference()).grace_ms(0);
        on("bridge", RunRequest { ports: vec![tcp("", PORT + at)], ..request })
    };
    let (next, starting) = (AtomicU16::new(0), AtomicUsize::new(LANES));
    let (mut kills, mut seed) = (0_u16, std::process::id());
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::SeqCst);
                    if at >= count {
                        break;
                    }
                    let _ = world.api().run(request(at)); // fails if the shim was killed during the start
                }
                starting.fetch_sub(1, Ordering::SeqCst);
            });
        }
        while starting.load(Ordering::SeqCst) > 0 {
            let shims: Vec<i32> = host::descendants(launcher).into_iter().filter(is_shim).collect();
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if let Some(pid) = shims.get((seed >> 8) as usize % shims.len().max(1)) {
                kill(*pid, 9);
                kills += 1;
            }
            // This pause is part of the test: each kill must come at a random moment of a start.
            std::thread::sleep(Duration::from_micros(u64::from(seed >> 16) % 40_000));
        }
    });
    assert!(kills >= count / 8, "{kills} shims were killed, of {count}");
    println!("{kills} shims were killed while {count} containers started");
    for id in world.api().ids() {
        world.api().delete(&id, true).unwrap();
    }
    assert!(world.daemon.terminate().success(), "executord exits without an error");
    world.assert_nothing_left();
    world.daemon.start_again();
    for at in [0, count - 1] {
        world.api().started(request(at));
    }
}

fn is_shim(pid: &i32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    ["executor-shim\n", "executor-warm\n"].contains(&&*name)
}
