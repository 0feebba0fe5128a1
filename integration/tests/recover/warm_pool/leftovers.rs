//! Warm containers leave nothing behind, even if one of the executor's processes is killed.

use std::path::Path;
use std::process::Command;

use executor_proto::v1::RunRequest;
use integration::daemon::{Setup, has_ended, kill};
use integration::id_pool::IdPool;
use integration::request::{RequestBuilder as _, sh};
use integration::rootfs::Rootfs;
use integration::supervised::{Part, Supervised};
use integration::{footprint, host, wait, warm_pool};
use tonic::Code;

use super::daemon;

/// Returns the processes of a daemon's warm containers: their shims and their inits.
fn processes(run_dir: &Path, launcher: i32) -> (Vec<i32>, Vec<i32>) {
    let all = footprint::processes(run_dir, Some(launcher));
    let own =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "executor-warm\n");
    let of_shells = warm_pool::processes(&all);
    let (made, inits) = of_shells.iter().partition(|pid| own(pid) && host::parent(**pid) == Some(launcher));
    (made, inits)
}

/// Waits until `ready` warm containers wait, and the host has no resources of other warm containers.
fn only_those_that_wait((run_dir, state_dir): (&Path, &Path), launcher: i32, ready: usize) {
    wait::until_ok("only the waiting warm containers are left", || {
        let (waiting, kept) = (warm_pool::waiting(run_dir), warm_pool::waiting(state_dir));
        let mut cgroups = footprint::cgroups(run_dir);
        cgroups.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".shell-")));
        let (made, inits) = processes(run_dir, launcher);
        let is_all = [waiting.len(), kept.len(), made.len(), inits.len()] == [ready; 4] && cgroups.is_empty();
        if is_all { Ok(()) } else { Err(format!("{waiting:?}, {kept:?}, {made:?}, {inits:?}, {cgroups:?}")) }
    });
}

#[test]
fn killed_warm_container_is_replaced() {
    let daemon = daemon(2);
    let (run_dir, state_dir) = (daemon.setup().run_dir(), daemon.setup().state_dir());
    let launcher = daemon.launcher().unwrap();
    for which in ["its process", "its init"] {
        let (made, inits) = processes(&run_dir, launcher);
        assert_eq!((made.len(), inits.len()), (2, 2), "{made:?} {inits:?}");
        let killed = if which == "its init" { inits[0] } else { made[0] };
        kill(killed, 9);
        wait::until(&format!("the warm container whose {which} was killed is gone"), || {
            let (made, inits) = processes(&run_dir, launcher);
            (!made.contains(&killed) && !inits.contains(&killed)).then_some(())
        });
        daemon.api.wait_until_warm_pool_is_ready();
        only_those_that_wait((&run_dir, &state_dir), launcher, 2);
    }
}

/// If a warm container does not acknowledge its launch, it has changed nothing: it is killed, and the container is
/// created without the pool.
#[test]
fn launch_with_stopped_pool_goes_cold() {
    let (daemon, rootfs) = (daemon(3), Rootfs::busybox());
    let (run_dir, state_dir) = (daemon.setup().run_dir(), daemon.setup().state_dir());
    let launcher = daemon.launcher().unwrap();
    let (stopped, _) = processes(&run_dir, launcher);
    assert_eq!(stopped.len(), 3);
    for pid in &stopped {
        kill(*pid, 19);
        wait::until("the warm container is stopped", || {
            host::status(*pid, "State").filter(|state| state.starts_with('T'))
        });
    }
    for id in ["a", "b", "c"] {
        let script = "busybox cat /etc/cf-service-bindings/key; echo up; exec busybox sleep 100000";
        daemon.api.up(sh(script).id(id).rootfs(&rootfs.reference()).unmasked().file("key", b"once\n"));
        assert_eq!(daemon.api.logs_so_far(id), "once\nup\n", "the program runs once");
    }
    assert_eq!(daemon.setup().logged().matches("did not acknowledge the launch").count(), 3);
    assert!(stopped.iter().all(|pid| has_ended(*pid)));
    for id in ["a", "b", "c"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.api.wait_until_warm_pool_is_ready();
    only_those_that_wait((&run_dir, &state_dir), launcher, 3);
}

/// If the launcher is killed, unused warm containers exit on their own, and the next launcher removes their leftovers.
#[test]
fn warm_pool_ends_with_its_launcher() {
    for with_shells in [false, true] {
        let ready = 2;
        let mut node = Supervised::configured("[warm_pool]\nsize = 2\n");
        wait::until("the warm pool is full", || (node.footprint().warm_pool == ready).then_some(()));
        let (run_dir, launcher) = (node.run_dir(), node.pid(Part::Launcher));
        let (made, inits) = processes(&run_dir, launcher);
        node.kill(Part::Launcher);
        if with_shells {
            made.iter().for_each(|pid| kill(*pid, 9));
        }
        node.revive().unwrap();
        for pid in made.iter().chain(&inits) {
            wait::until("the first launcher's warm containers are gone", || has_ended(*pid).then_some(()));
        }
        only_those_that_wait((&run_dir, &node.state_dir()), node.pid(Part::Launcher), ready);
    }
}

#[test]
fn stopped_launcher_leaves_no_warm_containers() {
    let daemon = daemon(3);
    let (rootfs, run_dir, state_dir) = (Rootfs::busybox(), daemon.setup().run_dir(), daemon.setup().state_dir());
    let before = daemon.footprint();
    for number in 0..12 {
        let id = format!("c{number}");
        daemon.api.run_to_end(sh("true").rootfs(&rootfs.reference()).file("f", b"S").id(&id));
        daemon.api.delete(&id, false).unwrap();
    }
    assert!(daemon.api.info().warm_pool.unwrap().used > 0, "control failed");
    daemon.wait_until_back_at(&before);
    let launcher = daemon.launcher().unwrap();
    only_those_that_wait((&run_dir, &state_dir), launcher, 3);
    kill(launcher, 15);
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    assert_eq!((warm_pool::waiting(&run_dir).len(), warm_pool::waiting(&state_dir).len()), (0, 0));
}

/// If init cannot become the first process of the container, the container is refused and nothing is left. This holds
/// whether init gets its payload together with the activation order or after it.
#[test]
fn warm_container_with_failing_init_is_refused() {
    let (daemon, rootfs) = (daemon(1), Rootfs::busybox());
    let (run_dir, launcher) = (daemon.setup().run_dir(), daemon.launcher().unwrap());
    let before = daemon.footprint();
    let request = || sh("true").rootfs(&rootfs.reference()).file("f", b"S").id("refused");
    for (what, request) in [("at once", request()), ("before", RunRequest { terminal: true, ..request() })] {
        // Set a hard limit that the process cannot raise. Root of the process's own user namespace sets it, because
        // host root may lack CAP_SYS_RESOURCE.
        let (_, inits) = processes(&run_dir, launcher);
        let pid = inits[0].to_string();
        let words = ["--user", "--target", &pid, "-S0", "-G0", "prlimit", "--pid", &pid, "--nofile=64:64"];
        assert!(Command::new("nsenter").args(words).status().unwrap().success());
        let refused = daemon.api.run(request).unwrap_err();
        assert!(refused.message().contains("warm container: cannot limit open files"), "{what}: {refused:?}");
        assert_eq!(daemon.api.get("refused").unwrap_err().code(), Code::NotFound, "{what}");
        daemon.api.wait_until_warm_pool_is_ready();
    }
    daemon.api.run_to_end(request());
    daemon.api.delete("refused", false).unwrap();
    daemon.api.wait_until_warm_pool_is_ready();
    daemon.wait_until_back_at(&before);
}

/// Warm containers count against no capacity: a container can use the last range of ids, although warm containers have
/// ranges.
#[test]
fn warm_container_gives_up_its_ids() {
    let pool = IdPool::reserve(5);
    let config = format!("[warm_pool]\nsize = 2\n[policy]\n{}", pool.policy());
    let (daemon, rootfs) = (Setup::default().config(&config).start(), Rootfs::busybox());
    for number in 0..5 {
        let request = sh("sleep 1000").rootfs(&rootfs.reference()).id(&format!("c{number}"));
        daemon.api.started(request);
    }
}
