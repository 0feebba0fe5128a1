//! Addresses, interfaces, ports and leases come back after every kind of exit, and many containers at once have distinct
//! addresses.

use std::collections::BTreeSet;

use executor_proto::v1::RunRequest;
use integration::daemon::{has_ended, kill};
use integration::network::HOST;
use integration::request::{RequestBuilder, program};
use integration::rootfs::Rootfs;
use integration::wait;

use super::Place::{Beyond, Host};
use super::{World, addresses, on, server, sleeping, tcp};

const PORT: u16 = 18_080;

impl World {
    /// Kills the launcher and waits for its exit.
    fn kill_launcher(&self) {
        let launcher = self.daemon.launcher().unwrap();
        kill(launcher, 9);
        wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    }

    /// Starts executord again, and with it a launcher.
    fn restart(&mut self) {
        assert!(self.daemon.terminate().success());
        self.daemon.start_again();
    }

    /// Checks that the port answers in both families.
    fn assert_answers(&self, id: &str) {
        let answer = format!("{id} ");
        self.assert_reached(Host, &["127.0.0.1", "::1", HOST].map(|ip| ("tcp", ip, PORT, Some(answer.as_str()))));
        self.assert_reached(Beyond, &[("tcp", HOST, PORT, Some(answer.as_str()))]);
    }
}

#[test]
fn a_killed_shim_gives_everything_back() {
    let world = World::start();
    world.serve(server("web", &[tcp("", PORT)]));
    world.assert_answers("web");
    kill(world.daemon.record("web").shim.pid, 9);
    world.api().wait("web").unwrap();
    // The port is free when the exit is reported.
    world.serve(server("next", &[tcp("", PORT)]));
    world.assert_answers("next");
    world.delete_all();
}

/// Containers run on without a launcher; the next launcher knows their addresses and ports.
#[test]
fn a_killed_launcher_keeps_running_containers() {
    let mut world = World::start();
    let first = addresses(&world.serve(server("web", &[tcp("", PORT)])));
    world.kill_launcher();
    world.assert_answers("web");
    world.restart();
    world.assert_answers("web");
    let refused = world.api().run(server("second", &[tcp("", PORT)])).unwrap_err();
    super::assert_refused(&refused, "is published by container `web`");
    let second = addresses(&world.serve(server("second", &[tcp("", PORT + 1)])));
    assert_ne!(first, second);
    world.delete_all();
}

/// A container that exits without a launcher is detached by its shim; one that loses its shim and the launcher, by the
/// next launcher.
#[test]
fn the_next_launcher_detaches_lost_containers() {
    let mut world = World::start();
    world.serve(server("web", &[tcp("", PORT)]));
    world.serve(server("stopped", &[tcp("", PORT + 1)]));
    world.kill_launcher();
    kill(world.daemon.record("web").shim.pid, 9);
    world.api().stop("stopped", Some(0)).unwrap();
    let left = world.network.bridge_leftovers(world.daemon.setup());
    assert!(left.iter().any(|one| one.contains("web")), "the control: a record is left: {left:#?}");
    world.restart();
    world.assert_nothing_left();
    world.serve(server("next", &[tcp("", PORT), tcp("", PORT + 1)]));
    world.assert_answers("next");
    world.delete_all();
}

/// A launcher that starts mends the network of running containers.
#[test]
fn a_starting_launcher_mends_networks() {
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
    world.api().started(sleeping("first", false)); // the directory of leases stays
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
    // Each one may send, and has its port.
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

/// After the exit of a launcher there is neither a bridge nor a table, unless a container runs.
#[test]
fn an_orderly_exit_removes_bridge_and_tables() {
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
    assert_eq!(exists(&world), (true, true), "the control: a container needs them");
    world.assert_answers("web");
    world.daemon.start_again();
    world.delete_all();
    assert_eq!(exists(&world), (true, true), "the control: they are kept for the next container");
    exit(&mut world);
    assert_eq!(exists(&world), (false, false));
    world.daemon.start_again();
    world.api().started(sleeping("again", false));
    assert_eq!(exists(&world), (true, true));
    world.delete_all();
}
