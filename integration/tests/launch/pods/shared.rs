//! Resources shared by the members of a pod.

use executor_client::PodFilter;
use executor_proto::v1::event::Kind;
use executor_proto::v1::volume_mount::Source;
use executor_proto::v1::{
    CreatePodRequest, EmptyVolume, ExtraHost, ListRequest, PodVolume, PodVolumeName, RunRequest, State, VolumeMount,
    empty_volume, pod,
};
use integration::api::exit;
use integration::daemon::Daemon;
use integration::network::Network;
use integration::request::{RequestBuilder, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::wait;

use super::{asked, create, delete, get, in_pod, namespace, pods, script_output, stop};

#[test]
fn member_sees_its_own_cgroup() {
    let daemon = Daemon::start();
    create(&daemon, &asked("p"));
    let script = "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes 2>/dev/null || cat memory.max; cut -d: -f3 /proc/self/cgroup | sort -u";
    for memory in [48 << 20, 80 << 20] {
        assert_eq!(script_output(&daemon, in_pod("p", sh(script).memory(memory))), format!("{memory}\n/\n"));
    }
}

#[test]
fn members_share_only_network_ipc_and_hostname() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let hosts = vec![ExtraHost { name: "db.example".into(), address: "10.1.2.3".into() }];
    let request = CreatePodRequest { hostname: "web".into(), extra_hosts: hosts, ..asked("p1") };
    let pod = create(&daemon, &request);
    create(&daemon, &asked("p2"));
    assert_eq!((pod.state(), pod.members.len()), (pod::State::Ready, 0));
    let one = daemon.api.started(in_pod("p1", sleeper("one")));
    let two = daemon.api.started(in_pod("p1", sleeper("two")));
    let other = daemon.api.started(in_pod("p2", sleeper("other")));
    for kind in ["net", "ipc", "uts", "user"] {
        assert_eq!(namespace(&one, kind), namespace(&two, kind), "{kind}");
        assert_ne!(namespace(&one, kind), namespace(&other, kind), "control failed: two pods share {kind}");
    }
    for kind in ["pid", "mnt", "cgroup"] {
        assert_ne!(namespace(&one, kind), namespace(&two, kind), "{kind}");
    }
    assert_eq!((one.id_range_start, pod.id_range_start), (two.id_range_start, one.id_range_start));
    assert_ne!(one.id_range_start, other.id_range_start);
    let spec = one.spec.unwrap();
    assert_eq!((&*spec.pod, &*spec.hostname), ("p1", "web"));

    let reported =
        script_output(&daemon, in_pod("p1", sh("hostname; grep db /etc/hosts; echo $$; ls -d /proc/[0-9]*")));
    let words: Vec<&str> = reported.split_whitespace().collect();
    assert_eq!(words[..5], ["web", "10.1.2.3", "db.example", "1", "/proc/1"], "{reported}");
    assert_eq!(words.len(), 5, "one process: {reported}");

    // The members of a pod share the shared memory (/dev/shm).
    daemon.api.run_to_end(in_pod("p1", sh("echo seen > /dev/shm/word").id("writes")));
    let read = |pod: &str| script_output(&daemon, in_pod(pod, sh("cat /dev/shm/word")));
    assert_eq!(read("p1"), "seen\n");
    assert!(read("p2").contains("No such file"), "control failed");

    let list = |pod: &str| daemon.api.list(ListRequest { pod: pod.into(), ..ListRequest::default() }).unwrap();
    let ids = |pod: &str| list(pod).containers.into_iter().map(|container| container.id).collect::<Vec<_>>();
    assert_eq!((ids("p1"), ids("p2")), (vec!["one".into(), "two".into(), "writes".into()], vec!["other".to_owned()]));
    assert_eq!(daemon.api.ids(), ["one", "other", "two", "writes"], "a pod is no container");
    let all = daemon.api.block_on(pods(&daemon).list(&PodFilter::default())).unwrap();
    assert_eq!(all.iter().map(|pod| (&*pod.id, pod.members.len())).collect::<Vec<_>>(), [("p1", 3), ("p2", 1)]);

    let stopped = stop(&daemon, "p1");
    assert_eq!((stopped.state(), &stopped.failure), (pod::State::Ended, &None));
    let states: Vec<State> = stopped.members.iter().map(|member| member.state()).collect();
    assert_eq!(states, [State::Completed; 3]);
    assert_eq!(daemon.api.get("other").unwrap().state(), State::Running, "control failed");
    delete(&daemon, "p1", false).unwrap();
    delete(&daemon, "p2", true).unwrap();
    assert_eq!(daemon.api.ids(), Vec::<String>::new());
    let mut events = daemon.api.events_after(0);
    let of_pod = |kind: Kind| {
        move |event: &executor_proto::v1::WatchEventsResponse| {
            let event = event.event.as_ref().unwrap();
            event.kind() == kind && event.container_id == "p1"
        }
    };
    for kind in [Kind::PodReady, Kind::PodEnded, Kind::PodDeleted] {
        events.until(of_pod(kind));
    }
    daemon.wait_until_back_at(&before);
}

/// The network of a pod remains when a member exits, even when the first member exits.
#[test]
fn network_outlives_every_member() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_egress = true");
    let before = daemon.footprint();
    let on_cni = |id: &str| CreatePodRequest { network: executor_proto::v1::Network::Cni.into(), ..asked(id) };
    let pod = create(&daemon, &on_cni("web"));
    create(&daemon, &on_cni("other"));
    let address = pod.network_status.unwrap().addresses[0].split_once('/').unwrap().0.to_owned();
    let run = |pod: &str, request: RunRequest| in_pod(pod, request.rootfs(&rootfs.reference()));
    let first = daemon.api.started(run("web", sleeper("first")));
    assert_eq!(first.network_status.unwrap().addresses[0].split_once('/').unwrap().0, address);
    let serve = "exec busybox nc -ll -p 8080 -e /bin/echo from-server";
    daemon.api.started(run("web", sh(serve).id("server")));
    let asks = |pod: &str, address: &str| {
        script_output(&daemon, run(pod, sh(&format!("busybox nc -w 30 {address} 8080 </dev/null"))))
    };
    wait::until("a member is reached by loopback", || asks("web", "127.0.0.1").contains("from-server").then_some(()));
    assert!(!asks("other", "127.0.0.1").contains("from-server"), "another pod has another loopback");
    daemon.api.delete("first", true).unwrap();
    assert!(asks("web", "127.0.0.1").contains("from-server"));
    assert!(asks("other", &address).contains("from-server"), "the server is reached through the network");
    let reported = script_output(&daemon, run("web", sh("cat /etc/hosts /etc/resolv.conf")));
    assert!(reported.contains(&format!("{address} web")) && reported.contains("nameserver"), "{reported}");

    delete(&daemon, "web", true).unwrap();
    delete(&daemon, "other", true).unwrap();
    assert_eq!(network.leftovers(daemon.setup()), Vec::<String>::new());
    daemon.wait_until_back_at(&before);
}

#[test]
fn volumes_live_as_long_as_the_pod() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let medium = empty_volume::Medium::Memory.into();
    let memory = EmptyVolume { medium, size_bytes: 1 << 20, ..EmptyVolume::default() };
    let volumes =
        vec![PodVolume { name: "disk".into(), empty: None }, PodVolume { name: "memory".into(), empty: Some(memory) }];
    create(&daemon, &CreatePodRequest { volumes: volumes.clone(), ..asked("p1") });
    create(&daemon, &CreatePodRequest { volumes, ..asked("p2") });
    let mount = |name: &str, path: &str, sub_path: &str, read_only| VolumeMount {
        path: path.into(),
        source: Some(Source::Pod(PodVolumeName { name: name.into() })),
        sub_path: sub_path.into(),
        read_only,
    };
    let with = |pod: &str, volumes: Vec<VolumeMount>, script: &str| RunRequest { volumes, ..in_pod(pod, sh(script)) };
    let both = || vec![mount("disk", "/tmp/d", "", false), mount("memory", "/tmp/m", "", false)];
    let write = "umask 0; for one in d m; do mkdir /tmp/$one/sub; echo $one > /tmp/$one/sub/file; done";
    let written = daemon.api.run_to_end(with("p1", both(), write).user("1000:1000"));
    assert_eq!(exit(&written), Ok(0), "{}", daemon.api.output(&written.id).text());
    daemon.api.delete(&written.id, true).unwrap();
    let read = "cat /tmp/d/sub/file /tmp/m/sub/file; stat -c %u /tmp/d/sub/file";
    assert_eq!(script_output(&daemon, with("p1", both(), read)), "d\nm\n1000\n");
    assert!(script_output(&daemon, with("p2", both(), read)).contains("No such file"), "control: another pod");
    let part = vec![mount("disk", "/tmp/d", "sub", true)];
    let reported = script_output(&daemon, with("p1", part, "cat /tmp/d/file; echo x > /tmp/d/file"));
    assert!(reported.starts_with("d\n") && reported.contains("Read-only file system"), "{reported}");
    // A link in a volume does not lead out of the volume.
    let link = with("p1", both(), "ln -s /etc /tmp/d/link");
    assert_eq!(exit(&daemon.api.run_to_end(link.id("links"))), Ok(0));
    for (sub_path, why) in [("link", "symbolic link"), ("link/none", "symbolic link"), ("sub/file", "Not a directory")]
    {
        let refused = daemon.api.run(with("p1", vec![mount("disk", "/tmp/d", sub_path, false)], "true"));
        let reported = refused.unwrap_err().message().to_owned();
        assert!(reported.contains("volumes[0].sub_path") && reported.contains(why), "{reported}");
    }
    let full = with("p1", both(), "head -c 2000000 /dev/zero > /tmp/m/big");
    assert!(script_output(&daemon, full).contains("No space left"), "a size limit is enforced");
    for pod in ["p1", "p2"] {
        delete(&daemon, pod, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// As in Kubernetes, a missing subPath of an emptyDir is created. With an fsGroup, all created files belong to that
/// group.
#[test]
fn missing_directory_of_a_volume_is_made() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let volume = |medium: empty_volume::Medium| EmptyVolume {
        medium: medium.into(),
        size_bytes: 1 << 20,
        mode: Some(0o2775),
        gid: Some(2000),
    };
    let volumes = [("disk", empty_volume::Medium::Disk), ("memory", empty_volume::Medium::Memory)];
    let volumes = volumes.map(|(name, medium)| {
        let size_bytes = if name == "disk" { 0 } else { 1 << 20 };
        PodVolume { name: name.into(), empty: Some(EmptyVolume { size_bytes, ..volume(medium) }) }
    });
    create(&daemon, &CreatePodRequest { volumes: volumes.to_vec(), ..asked("p") });
    let mount = |name: &str| VolumeMount {
        path: format!("/srv/{name}"),
        source: Some(Source::Pod(PodVolumeName { name: name.into() })),
        sub_path: "a/b".into(),
        read_only: false,
    };
    let script = "for one in disk memory; do stat -c '%u:%g %a' /srv/$one; touch /srv/$one/file; stat -c %u:%g /srv/$one/file; done";
    let member = |volumes| RunRequest { volumes, extra_groups: vec!["2000".into()], ..in_pod("p", sh(script)) };
    for _ in 0..2 {
        let reported = script_output(&daemon, member(vec![mount("disk"), mount("memory")]).user("1000:1000"));
        assert_eq!(reported, "0:2000 2775\n1000:2000\n".repeat(2));
    }
    delete(&daemon, "p", true).unwrap();
    let medium = empty_volume::Medium::Disk;
    let none = EmptyVolume { gid: Some(70_000), size_bytes: 0, ..volume(medium) };
    let none = vec![PodVolume { name: "disk".into(), empty: Some(none) }];
    let asked = CreatePodRequest { volumes: none, ..asked("q") };
    let refused = daemon.api.block_on(pods(&daemon).create(&asked)).unwrap_err().to_string();
    assert!(refused.contains("empty.gid"), "{refused}");
    daemon.wait_until_back_at(&before);
}

#[test]
fn processes_are_shared_if_requested() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    create(&daemon, &CreatePodRequest { share_processes: true, ..asked("shared") });
    create(&daemon, &asked("apart"));
    for pod in ["shared", "apart"] {
        daemon.api.started(in_pod(pod, sleeper(&format!("sleeps-{pod}"))));
    }
    let sees = |pod: &str| {
        let script = "for one in /proc/[0-9]*; do cat $one/cmdline; done | tr '\\0' ' '; echo $$";
        script_output(&daemon, in_pod(pod, sh(script)))
    };
    let reported = sees("shared");
    assert!(reported.contains("/bin/sleep 100000") && !reported.trim_end().ends_with(" 1"), "{reported}");
    assert!(!sees("apart").contains("/bin/sleep 100000"), "control failed");

    // The process is not PID 1 of the shared pid namespace, so SIGTERM terminates it although it has no handler.
    daemon.api.stop("sleeps-shared", None).unwrap();
    assert_eq!(exit(&daemon.api.wait("sleeps-shared").unwrap()), Err(15));
    // When a member exits, its remaining processes are killed and its secrets are wiped.
    let leaves = "(trap '' TERM HUP; exec sleep 4242) & echo $!";
    daemon.api.run_to_end(in_pod("shared", sh(leaves).id("leaves").file("a", b"secret")));
    let reported = sees("shared");
    assert!(!reported.contains("4242"), "{reported}");
    let wipe = daemon.api.get("leaves").unwrap().result.unwrap().wipe.unwrap();
    assert_eq!((wipe.files, wipe.verified), (1, true));
    assert_eq!(get(&daemon, "shared").state(), pod::State::Ready);
    for pod in ["shared", "apart"] {
        delete(&daemon, pod, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}
