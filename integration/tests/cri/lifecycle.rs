//! Tests sandboxes and containers from their creation to their removal.

use executor_cri_api::v1::{
    CgroupDriver, ContainerEventType, ContainerFilter, ContainerState, GetEventsRequest, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, ListContainerStatsRequest, ListContainersRequest,
    PodSandboxState, PodSandboxStatusRequest, RemoveImageRequest, RuntimeConfigRequest, StatusRequest,
    UpdateContainerResourcesRequest, VersionRequest,
};
use integration::cri::{KubernetesNode, POLICY};
use integration::daemon::Setup;
use integration::wait;
use tokio_stream::StreamExt as _;
use tonic::Code;

/// Key of a host without a CNI configuration.
const NO_CNI: &str = "cni_conf_dir = '/nonexistent'\n";

/// Rules C1 to C4: version, status, handlers and cgroup driver are reported.
#[test]
fn runtime_describes_itself() {
    let node = KubernetesNode::with(Setup::default().config(&format!("[policy]\n{NO_CNI}{POLICY}")));
    let mut runtime = node.runtime();
    let version = node.block_on(runtime.version(VersionRequest::default())).unwrap().into_inner();
    assert_eq!((&*version.version, &*version.runtime_name, &*version.runtime_api_version), ("0.1.0", "executor", "v1"));
    let status = node.block_on(runtime.status(StatusRequest { verbose: true })).unwrap().into_inner();
    let conditions = status.status.unwrap().conditions;
    let found: Vec<_> = conditions.iter().map(|one| (&*one.r#type, one.status)).collect();
    assert_eq!(found, [("RuntimeReady", true), ("NetworkReady", false)], "there is no CNI configuration");
    assert_eq!(status.runtime_handlers.len(), 3);
    let config = node.block_on(runtime.runtime_config(RuntimeConfigRequest {})).unwrap().into_inner();
    assert_eq!(config.linux.unwrap().cgroup_driver(), CgroupDriver::Cgroupfs);
}

/// Rule C8, CRI complaint X1: a retry returns the result of the first call, and a different request with the same name
/// is refused.
#[test]
fn retries_join_their_first_call() {
    let node = KubernetesNode::start();
    let before = node.daemon.footprint();
    let config = node.sandbox("a");
    let ids: Vec<String> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(|| node.run_sandbox(&config).unwrap())).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]) && ids[0].len() == 64, "{ids:?}");
    let mut other = config;
    other.annotations.insert("a".into(), "b".into());
    assert_eq!(node.run_sandbox(&other).unwrap_err().code(), Code::AlreadyExists);

    let container = node.script("c", "exec sleep 100000");
    let ids: Vec<String> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(|| node.create(&ids[0], &container).unwrap())).collect();
        calls.into_iter().map(|call| call.join().unwrap()).chain([ids[0].clone()]).collect()
    });
    assert!(ids[..4].iter().all(|id| *id == ids[0]), "{ids:?}");
    let other = node.script("c", "exec sleep 1");
    assert_eq!(node.create(&ids[4], &other).unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(node.status(&ids[0]).unwrap().state(), ContainerState::ContainerCreated);
    node.remove_sandbox(&ids[4]).unwrap();
    node.daemon.wait_until_back_at(&before);
}

/// Rule C8: a failed creation leaves nothing, and the name can be used again.
#[test]
fn names_are_free_after_errors() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let before = node.daemon.footprint();
    let mut config = node.script("c", "true");
    config.working_dir = "/bin/busybox".into(); // not a directory
    let refused = node.create(&sandbox, &config);
    let error = match refused {
        Err(error) => error,
        Ok(id) => node.start_container(&id).map(|()| id.clone()).and_then(|_| node.remove_container(&id)).unwrap_err(),
    };
    assert_ne!(error.code(), Code::Unavailable, "{error:?}");
    let mut missing = node.script("d", "true");
    missing.image.as_mut().unwrap().image = "registry.invalid/none:1".into();
    let error = node.create(&sandbox, &missing).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "the kubelet would skip the pod for NOT_FOUND");
    assert!(error.message().contains("config.image"), "{error:?}");
    missing.image = node.script("d", "true").image;
    let id = node.create(&sandbox, &missing).expect("the name is free");
    node.remove_container(&id).unwrap();
    drop(before);
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C5: stopping and removing missing objects succeeds, and their status is NOT_FOUND.
#[test]
fn stop_of_missing_object_succeeds() {
    let node = KubernetesNode::start();
    for id in ["", "0123456789abcdef"] {
        node.stop_sandbox(id).unwrap();
        node.remove_sandbox(id).unwrap();
        node.stop_container(id, 1).unwrap();
        node.remove_container(id).unwrap();
        assert_eq!(node.status(id).unwrap_err().code(), Code::NotFound);
        assert_eq!(node.start_container(id).unwrap_err().code(), Code::NotFound);
        assert_eq!(node.exec(id, &["true"], 0).unwrap_err().code(), Code::NotFound);
    }
    let mut images = node.images();
    let image = executor_cri_api::v1::ImageSpec { image: "registry.invalid/none".into(), ..Default::default() };
    node.block_on(images.remove_image(RemoveImageRequest { image: Some(image) })).unwrap();
}

/// Rules C10, C12, C13: states, exit codes and reasons are reported.
#[test]
fn ends_have_their_reasons() {
    let node = KubernetesNode::start();
    let before = node.daemon.footprint();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    for (name, script, code, reason) in [("zero", "true", 0, "Completed"), ("three", "exit 3", 3, "Error")] {
        let id = node.started(&sandbox, &node.script(name, script));
        let status = node.until_ended(&id);
        assert_eq!((status.exit_code, &*status.reason), (code, reason), "{name}");
        assert!(status.created_at > 0 && status.started_at >= status.created_at);
        assert!(status.finished_at >= status.started_at && !status.image_ref.is_empty());
        assert_eq!(status.image_id, node.image);
        assert_eq!(node.start_container(&id).unwrap_err().code(), Code::FailedPrecondition);
    }
    let mut config = node.script("none", "");
    config.command = vec!["/nope".into()];
    let id = node.create(&sandbox, &config).unwrap();
    let error = node.start_container(&id).unwrap_err();
    assert!(error.code() == Code::Unknown && error.message().contains("No such file"), "{error:?}");
    let status = node.status(&id).unwrap();
    assert_eq!(
        (status.state(), status.exit_code, &*status.reason),
        (ContainerState::ContainerExited, 128, "StartError")
    );
    assert!(status.message.contains("/nope"), "{status:?}");
    node.remove_sandbox(&sandbox).unwrap();
    node.daemon.wait_until_back_at(&before);
}

/// Rule C13, CRI complaint X5: a container that exceeds its memory limit immediately after its start is reported as
/// OOMKilled.
#[test]
fn exceeded_memory_is_the_reason() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "x=x; while :; do x=$x$x; done");
    let resources = LinuxContainerResources { memory_limit_in_bytes: 16 << 20, ..Default::default() };
    config.linux = Some(LinuxContainerConfig { resources: Some(resources), ..Default::default() });
    let status = node.until_ended(&node.started(&sandbox, &config));
    assert_eq!((status.exit_code, &*status.reason), (137, "OOMKilled"), "{status:?}");
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C11: a stop sends the stop signal once, and SIGKILL after the timeout.
#[test]
fn stops_return_at_the_end() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let polite = node.started(&sandbox, &node.script("polite", "trap 'exit 7' TERM; while :; do sleep 0.1; done"));
    wait::until("the trap is set", || (node.exec(&polite, &["true"], 0).ok()?.exit_code == 0).then_some(()));
    node.stop_container(&polite, 30).unwrap();
    assert_eq!(node.status(&polite).unwrap().exit_code, 7);
    let deaf = node.started(&sandbox, &node.script("deaf", "trap '' TERM; while :; do sleep 0.1; done"));
    node.stop_container(&deaf, 0).unwrap();
    let status = node.status(&deaf).unwrap();
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 137));
    node.stop_container(&deaf, 0).unwrap();
    let created = node.create(&sandbox, &node.script("created", "true")).unwrap();
    node.stop_container(&created, 5).unwrap();
    assert_eq!(node.status(&created).unwrap().state(), ContainerState::ContainerExited);
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C9: stopping a sandbox kills its containers, and a stopped sandbox accepts no new containers.
#[test]
fn stopped_sandboxes_accept_no_members() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let member = node.started(&sandbox, &node.script("c", "trap '' TERM; while :; do sleep 0.1; done"));
    let created = node.create(&sandbox, &node.script("d", "true")).unwrap();
    node.stop_sandbox(&sandbox).unwrap();
    assert_eq!(node.status(&member).unwrap().state(), ContainerState::ContainerExited);
    let mut runtime = node.runtime();
    let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox[..12].into(), verbose: true };
    let status = node.block_on(runtime.pod_sandbox_status(request)).unwrap().into_inner();
    assert_eq!(status.status.unwrap().state(), PodSandboxState::SandboxNotready, "by a prefix of its id");
    let refused = node.create(&sandbox, &node.script("e", "true")).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(node.start_container(&created).unwrap_err().code(), Code::FailedPrecondition);
    node.remove_sandbox(&sandbox).unwrap();
    assert_eq!(node.status(&member).unwrap_err().code(), Code::NotFound);
}

/// Rule C14: filters are combined, and the next list shows the effect of a call.
#[test]
fn lists_have_the_last_effect() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "exec sleep 100000");
    config.labels.insert("app".into(), "web".into());
    let id = node.started(&sandbox, &config);
    let listed = |state: ContainerState, app: &str| {
        let filter = ContainerFilter {
            state: Some(executor_cri_api::v1::ContainerStateValue { state: state.into() }),
            pod_sandbox_id: sandbox.clone(),
            label_selector: [("app".to_owned(), app.to_owned())].into(),
            ..ContainerFilter::default()
        };
        let mut runtime = node.runtime();
        let answer = node.block_on(runtime.list_containers(ListContainersRequest { filter: Some(filter) }));
        answer.unwrap().into_inner().containers.len()
    };
    assert_eq!(listed(ContainerState::ContainerRunning, "web"), 1);
    assert_eq!(listed(ContainerState::ContainerRunning, "other"), 0);
    node.stop_container(&id, 0).unwrap();
    assert_eq!(listed(ContainerState::ContainerRunning, "web"), 0);
    assert_eq!(listed(ContainerState::ContainerExited, "web"), 1);
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C15: either all resources change or none, and the status has the resources in force.
#[test]
fn resources_change_while_running() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let id = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
    let mut runtime = node.runtime();
    let mut update = |resources: LinuxContainerResources| {
        let linux = Some(resources);
        let request = UpdateContainerResourcesRequest { container_id: id.clone(), linux, ..Default::default() };
        node.block_on(runtime.update_container_resources(request)).map(drop)
    };
    update(LinuxContainerResources { memory_limit_in_bytes: 64 << 20, cpu_shares: 512, ..Default::default() }).unwrap();
    let in_force = || node.status(&id).unwrap().resources.unwrap().linux.unwrap();
    assert_eq!((in_force().memory_limit_in_bytes, in_force().cpu_shares), (64 << 20, 512));
    let refused = update(LinuxContainerResources { memory_limit_in_bytes: 1, cpu_shares: 2, ..Default::default() });
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!((in_force().memory_limit_in_bytes, in_force().cpu_shares), (64 << 20, 512));
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rules C15 and G7: the CPU manager of a kubelet sends the processors of every container, even if they are unchanged,
/// and sends no other resources.
#[test]
fn processors_change_while_running() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let on = |cpus: &str| LinuxContainerResources { cpuset_cpus: cpus.to_owned(), ..Default::default() };
    let mut config = node.script("c", "exec sleep 100000");
    config.linux.get_or_insert_default().resources = Some(on("0"));
    let id = node.started(&sandbox, &config);
    let allowed = || {
        let status = node.exec(&id, &["sh", "-c", "cat /proc/self/status"], 0).unwrap();
        let text = String::from_utf8(status.stdout).unwrap();
        text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t").map(str::to_owned)).unwrap()
    };
    let mut runtime = node.runtime();
    let mut update = |resources: LinuxContainerResources| {
        let linux = Some(resources);
        let request = UpdateContainerResourcesRequest { container_id: id.clone(), linux, ..Default::default() };
        node.block_on(runtime.update_container_resources(request)).map(drop)
    };
    let all = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap().trim().to_owned();
    for cpus in ["0", &all, &all, "0"] {
        update(on(cpus)).unwrap();
        assert_eq!(allowed(), cpus);
    }
    update(LinuxContainerResources::default()).unwrap();
    assert_eq!(update(on("0,8000")).unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(allowed(), "0");
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C41: counters have times, and without a filter only running containers are listed.
#[test]
fn stats_have_times() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let id = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
    node.create(&sandbox, &node.script("d", "true")).unwrap();
    let mut runtime = node.runtime();
    let mut list = || {
        let answer = node.block_on(runtime.list_container_stats(ListContainerStatsRequest::default()));
        answer.unwrap().into_inner().stats
    };
    let stats = wait::until("there are counters", || {
        Some(list())
            .filter(|stats| stats[0].memory.as_ref().is_some_and(|memory| memory.usage_bytes.unwrap().value > 0))
    });
    assert_eq!(stats.iter().map(|one| one.attributes.as_ref().unwrap().id.clone()).collect::<Vec<_>>(), [id]);
    assert!(stats[0].cpu.as_ref().unwrap().timestamp > 0 && stats[0].writable_layer.as_ref().unwrap().timestamp > 0);
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C42: the events of a container are sent in order.
#[test]
fn events_follow_a_life() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut runtime = node.runtime();
    let mut events = node.block_on(runtime.get_container_events(GetEventsRequest::default())).unwrap().into_inner();
    let id = node.started(&sandbox, &node.script("c", "true"));
    node.until_ended(&id);
    node.remove_container(&id).unwrap();
    let (mut kinds, mut last) = (Vec::new(), 0);
    while kinds.last() != Some(&ContainerEventType::ContainerDeletedEvent) {
        let event = node.block_on(events.next()).unwrap().unwrap();
        assert!(event.created_at >= last && event.container_id == id, "{event:?}");
        assert!(event.pod_sandbox_status.is_some());
        last = event.created_at;
        kinds.push(event.container_event_type());
    }
    let expected =
        ["CONTAINER_CREATED_EVENT", "CONTAINER_STARTED_EVENT", "CONTAINER_STOPPED_EVENT", "CONTAINER_DELETED_EVENT"];
    assert_eq!(kinds.iter().map(|kind| kind.as_str_name()).collect::<Vec<_>>(), expected);
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C6: a refusal names its cause: a key of executord's policy, or a sysctl of the request.
#[test]
fn refusals_name_the_key() {
    let node = KubernetesNode::with(
        Setup::default().config("[policy]\nallow_host_userns = true\nkeep_until_deleted_max = 10\n"),
    );
    let refused = node.run_sandbox(&node.sandbox("a")).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("allow_host_network"), "{refused:?}");
    let mut config = node.sandbox("b");
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options = None;
    config.linux.as_mut().unwrap().sysctls.insert("kernel.bad".into(), "1".into());
    let refused = node.run_sandbox(&config).unwrap_err();
    assert!(refused.message().contains("kernel.bad"), "{refused:?}");
}

/// Rules C27, C28: exec has the user, the groups and the environment of its container.
#[test]
fn exec_has_the_containers_identity() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "exec sleep 100000");
    let id = |value| Some(executor_cri_api::v1::Int64Value { value });
    let security = LinuxContainerSecurityContext {
        run_as_user: id(1000),
        run_as_group: id(2000),
        supplemental_groups: vec![3000],
        ..LinuxContainerSecurityContext::default()
    };
    config.linux = Some(LinuxContainerConfig { security_context: Some(security), ..Default::default() });
    config.envs.push(executor_cri_api::v1::KeyValue { key: "COLOUR".into(), value: "blue".into() });
    config.working_dir = "/tmp".into();
    let container = node.started(&sandbox, &config);
    let done = node.exec(&container, &["sh", "-c", "id; echo $COLOUR; pwd; exit 5"], 10).unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("uid=1000") && text.contains("gid=2000") && text.contains("3000"), "{text}");
    assert!(text.ends_with("blue\n/tmp\n") && done.exit_code == 5, "{text}");
    let user = node.status(&container).unwrap().user.unwrap().linux.unwrap();
    assert_eq!((user.uid, user.gid, user.supplemental_groups), (1000, 2000, vec![2000, 3000]));
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C19: a pod on the host's network has the host's name, even if the kubelet sends no name.
#[test]
fn host_network_has_the_hosts_name() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("host")).unwrap();
    let id = node.started(&sandbox, &node.script("a", "sleep 1000"));
    let printed = node.exec(&id, &["cat", "/proc/sys/kernel/hostname"], 0).unwrap().stdout;
    let expected = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(String::from_utf8(printed).unwrap(), expected);
}

/// `executor-cri --check` names each missing key of a node. With the policy of the example, no key is missing.
#[test]
fn check_names_missing_keys() {
    let check_with = |node: &KubernetesNode, kubelet: &std::path::Path| {
        let home = node.daemon.setup().home();
        let mut command = std::process::Command::new(integration::dist::binary("executor-cri"));
        command.args(["--check", "--json", "--kubelet-config"]).arg(kubelet);
        command.arg("--executor").arg(node.daemon.socket());
        let done = command.env("HOME", home).output().unwrap();
        (done.status.success(), String::from_utf8(done.stdout).unwrap())
    };
    let check = |node: &KubernetesNode| check_with(node, "/nonexistent".as_ref());
    let network = integration::network::Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let config = include_str!("../../../docs/kubernetes-node.toml");
    let (_, policy) = config.split_once("[policy]\n").expect("a policy"); // `setup` writes the heading
    let node = KubernetesNode::with(network.setup(policy));
    assert_eq!(check(&node), (true, "[]\n".to_owned()));
    // A kubelet with other directories.
    let kubelet = node.daemon.setup().home().join("kubelet.yaml");
    std::fs::write(&kubelet, "cgroupRoot: /other\npodLogsDir: /srv/logs\n").unwrap();
    let printed = check_with(&node, &kubelet).1;
    for line in [r#"cgroup_parents = [\"/other/kubepods\"]"#, r#"log_dirs = [\"/srv/logs\"]"#] {
        assert!(printed.contains(line), "{printed}");
    }
    drop(node);
    let closed = format!(
        "[policy]\n{NO_CNI}allow_host_userns = true\nkeep_until_deleted_max = 10\n\
         [images]\nallow = []\nallow_archives = true\n"
    );
    let (is_complete, printed) = check(&KubernetesNode::with(Setup::default().config(&closed)));
    assert!(!is_complete && !printed.contains("allow_host_userns"), "{printed}");
    for key in [
        "allow_no_limits",
        "allow_no_seccomp",
        "allow_egress",
        "cni_args",
        "log_dirs",
        "host_paths",
        "oom_score_adj_min",
        "cgroup_parents",
        "allow_privileged",
        "allow_host_network",
        "CNI configuration",
        "allow = [\\\"*\\\"]",
    ] {
        assert!(printed.contains(key), "{key}: {printed}");
    }
}
