//! Many simultaneous containers leave nothing behind.

use std::collections::BTreeSet;

use executor_proto::v1::{DeleteRequest, ListRequest, RunRequest, State, StopRequest, WaitRequest};
use integration::daemon::{Daemon, has_ended};
use integration::lanes::for_all;
use integration::request::{RequestBuilder, program};
use integration::rootfs::Rootfs;
use integration::{host, wait};

const CONTAINERS: usize = 200;

/// Starts a daemon and runs a first container. This container creates threads, watches and directories that remain
/// until the daemon exits.
fn warmed_up(rootfs: &Rootfs) -> Daemon {
    let daemon = Daemon::start();
    daemon.api.run_to_end(request("first", &rootfs.reference()).action(|run| run.args[0] = "0".into()));
    daemon.api.delete("first", false).unwrap();
    wait::until("the first container's shim has exited", || daemon.footprint().processes.is_empty().then_some(()));
    daemon
}

fn request(id: &str, rootfs: &str) -> RunRequest {
    program("/bin/sleep", &["100000"]).id(id).rootfs(rootfs).memory(16 << 20).user("app").file("db/password", b"secret")
}

#[test]
fn two_hundred_containers_leave_nothing() {
    let rootfs = Rootfs::busybox();
    let (daemon, untouched) = (warmed_up(&rootfs), rootfs.listing());
    let before = daemon.footprint();

    let reference: &'static str = rootfs.reference().leak();
    for_all(&daemon, CONTAINERS, move |mut rpc, id| async move { rpc.run(request(&id, reference)).await.map(drop) });
    let all = daemon.api.list(ListRequest { page_size: 1000, ..ListRequest::default() }).unwrap().containers;
    let pids: BTreeSet<i32> = all.iter().map(|container| container.processes[0].pid as i32).collect();
    assert!(all.iter().all(|container| container.state() == State::Running), "{all:#?}");
    assert_eq!((all.len(), pids.len()), (CONTAINERS, CONTAINERS));
    assert!(pids.iter().all(|pid| host::status(*pid, "Name").as_deref() == Some("sleep")));
    // As a control, the footprint includes resources that must be gone afterwards.
    let during = daemon.footprint();
    assert!(during.processes.len() >= 2 * CONTAINERS && during.cgroups.len() >= before.cgroups.len() + CONTAINERS);
    assert!(during.descriptors[0].len() >= before.descriptors[0].len() + CONTAINERS, "{:?}", during.descriptors);
    assert!(during.descriptors[1].len() >= before.descriptors[1].len() + CONTAINERS, "{:?}", during.descriptors);
    assert_eq!(daemon.api.info().containers["running"], CONTAINERS as u32);

    for_all(&daemon, CONTAINERS, |mut rpc, id| async move {
        rpc.stop(StopRequest { signal: 0, id: id.clone(), grace_period: None }).await?;
        rpc.wait(WaitRequest { id }).await.map(drop)
    });
    assert!(pids.iter().all(|pid| has_ended(*pid)));
    wait::until("the last shim has exited", || daemon.footprint().processes.is_empty().then_some(()));
    for_all(&daemon, CONTAINERS, |mut rpc, id| async move {
        rpc.delete(DeleteRequest { id, force: false }).await.map(drop)
    });
    assert_eq!(daemon.api.ids(), [""; 0]);
    daemon.wait_until_back_at(&before);
    assert_eq!(rootfs.listing(), untouched);
}

/// Launches are not blocked while removals wait for their shims.
#[test]
fn burst_of_launches_continues_during_removals() {
    const BURST: usize = 100;
    let rootfs = Rootfs::busybox();
    let daemon = warmed_up(&rootfs);
    let before = daemon.footprint();
    let reference: &'static str = rootfs.reference().leak();
    for_all(&daemon, CONTAINERS, move |mut rpc, id| async move { rpc.run(request(&id, reference)).await.map(drop) });
    let old = daemon.api.ids();
    let mut calls = Vec::new();
    for id in &old {
        let (mut rpc, id) = (daemon.api.rpc(), id.clone());
        let delete = async move { rpc.delete(DeleteRequest { id, force: true }).await.map(drop) };
        calls.push(daemon.api.spawn(delete));
    }
    for number in 0..BURST {
        let mut rpc = daemon.api.rpc();
        calls.push(
            daemon.api.spawn(async move { rpc.run(request(&format!("burst-{number}"), reference)).await.map(drop) }),
        );
    }
    for call in calls {
        daemon.api.block_on(call).unwrap().unwrap();
    }
    assert_eq!(daemon.api.ids().len(), BURST);
    for id in daemon.api.ids() {
        daemon.api.delete(&id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// Each of several containers that exit at the same time reports its own exit code and output.
#[test]
fn simultaneous_exits_keep_own_results() {
    let rootfs = Rootfs::busybox();
    let daemon = warmed_up(&rootfs);
    let before = daemon.footprint();
    let reference: &'static str = rootfs.reference().leak();
    for_all(&daemon, CONTAINERS, move |mut rpc, id| async move {
        let number: i32 = id[1..].parse().unwrap();
        let script = "read secret </etc/cf-service-bindings/own; echo $secret; exit $1";
        let request = program("/bin/sh", &["-c", script, "sh", &number.to_string()]);
        let request = request.id(&id).rootfs(reference).file("own", format!("{id}\n").as_bytes());
        rpc.run(request).await?;
        let ended = rpc.wait(WaitRequest { id: id.clone() }).await?.into_inner().container.unwrap();
        assert_eq!(integration::api::exit(&ended), Ok(number));
        Ok(())
    });
    for id in daemon.api.ids() {
        assert_eq!(daemon.api.output(&id).text(), format!("{id}\n"));
        daemon.api.delete(&id, false).unwrap();
    }
    daemon.wait_until_back_at(&before);
}
