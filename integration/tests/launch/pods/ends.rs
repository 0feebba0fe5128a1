//! While a pod has members, each of the executor's processes is killed with SIGKILL. The tests check the effect on the
//! members.

use executor_proto::v1::{Container, CreatePodRequest, State, failure, pod};
use integration::daemon::{Daemon, has_ended, kill};
use integration::request::{RequestBuilder, sleeper};
use integration::{api, host, wait};

use super::{asked, create, delete, get, in_pod, namespace, stop};

/// Returns the pids of a pod's shim and first process.
fn processes(daemon: &Daemon, pod: &str) -> (i32, i32) {
    let record = daemon.record(pod);
    (record.shim.pid, record.prepared.unwrap().init.pid)
}

fn member(daemon: &Daemon, pod: &str, id: &str) -> Container {
    daemon.api.started(in_pod(pod, sleeper(id).file("a", b"secret")))
}

#[test]
fn pod_outlives_executord_and_the_launcher() {
    let mut daemon = Daemon::start();
    let before = daemon.footprint();
    create(&daemon, &asked("p"));
    let one = member(&daemon, "p", "one");
    daemon.kill();
    daemon.start_again();
    assert_eq!(get(&daemon, "p").state(), pod::State::Ready);
    let two = member(&daemon, "p", "two");
    assert_eq!(namespace(&one, "net"), namespace(&two, "net"));

    let launcher = daemon.launcher().unwrap();
    daemon.kill();
    kill(launcher, 9);
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    daemon.start_again();
    let three = daemon.api.started(in_pod("p", sleeper("three")));
    assert_eq!(namespace(&one, "net"), namespace(&three, "net"));
    assert_eq!((one.id_range_start, two.id_range_start), (three.id_range_start, three.id_range_start));
    // The pod's ids are not assigned to another container.
    let alone = daemon.api.started(sleeper("alone"));
    assert_ne!(alone.id_range_start, one.id_range_start);
    daemon.api.delete("alone", true).unwrap();
    assert_eq!(stop(&daemon, "p").state(), pod::State::Ended);
    delete(&daemon, "p", false).unwrap();
    daemon.wait_until_back_at(&before);
}

/// If the shim or the first process of a pod is killed, the pod exits and its members are stopped.
#[test]
fn pod_exit_is_reported_and_stops_members() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    for (round, share_processes) in [(0, false), (0, true), (1, false)] {
        create(&daemon, &CreatePodRequest { share_processes, ..asked("p") });
        create(&daemon, &asked("other"));
        member(&daemon, "p", "one");
        member(&daemon, "other", "apart");
        let (shim, init) = processes(&daemon, "p");
        kill(if round == 0 { shim } else { init }, 9);
        let ended = daemon.api.wait("one").unwrap();
        assert_eq!(ended.state(), State::Completed);
        assert!(ended.result.unwrap().wipe.is_some_and(|wipe| wipe.verified), "the secrets of the member are wiped");
        let pod = wait::until("the pod has completed", || {
            let pod = get(&daemon, "p");
            (pod.state() == pod::State::Ended).then_some(pod)
        });
        let kind = pod.failure.as_ref().map(|failure| failure.kind());
        assert_eq!(kind, (round == 0).then_some(failure::Kind::SupervisorLost), "{pod:?}");
        assert!(has_ended(init), "nothing holds the namespaces");
        assert_eq!(daemon.api.get("apart").unwrap().state(), State::Running, "control failed");
        assert!(daemon.api.run(in_pod("p", sleeper("late"))).is_err());
        delete(&daemon, "p", false).unwrap();
        delete(&daemon, "other", true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// If a pod exits while no executord is running, the next executord stops its members.
#[test]
fn members_of_ended_pod_stop_after_restart() {
    let mut daemon = Daemon::start();
    let before = daemon.footprint();
    create(&daemon, &asked("p"));
    let one = member(&daemon, "p", "one");
    let (shim, init) = processes(&daemon, "p");
    daemon.kill();
    kill(shim, 9);
    wait::until("the launcher has killed the pod", || has_ended(init).then_some(()));
    assert!(host::status(api::pid(&one), "Name").is_some(), "control: the member runs on");
    daemon.start_again();
    assert_eq!(daemon.api.wait("one").unwrap().state(), State::Completed);
    delete(&daemon, "p", false).unwrap();
    daemon.wait_until_back_at(&before);
}

/// A pod continues to run without any of the executor's processes. The next launcher stops the pod, and the next
/// executord stops its members.
#[test]
fn nothing_is_left_when_everything_is_killed() {
    let mut daemon = Daemon::start();
    let before = daemon.footprint();
    create(&daemon, &CreatePodRequest { share_processes: true, ..asked("p") });
    member(&daemon, "p", "one");
    let shims = [daemon.record("p").shim.pid, daemon.record("one").shim.pid];
    let launcher = daemon.launcher().unwrap();
    daemon.kill();
    for pid in [launcher, shims[0], shims[1]] {
        kill(pid, 9);
    }
    wait::until("all processes have exited", || has_ended(launcher).then_some(()));
    daemon.start_again();
    assert_eq!(daemon.api.wait("one").unwrap().state(), State::Completed);
    let pod = wait::until("the pod has completed", || {
        let pod = get(&daemon, "p");
        (pod.state() == pod::State::Ended).then_some(pod)
    });
    assert!(pod.failure.is_some(), "{pod:?}");
    delete(&daemon, "p", false).unwrap();
    daemon.wait_until_back_at(&before);
}
