//! Tests rules C6 to C8, C24, C35 and C39 with slow clients, cancelled calls, oversized requests, stalled registries
//! and swapped paths.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use executor_cri_api::v1::{
    AttachRequest, ContainerConfig, CreateContainerRequest, ExecRequest, ExecSyncRequest, ImageSpec,
    ListContainersRequest, ListPodSandboxRequest, ListPodSandboxStatsRequest, Mount, PodSandboxConfig,
    PullImageRequest, PullImageResponse, RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest,
    RunPodSandboxResponse, StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
};
use integration::cri::{KubernetesNode, POLICY, log_dir};
use integration::daemon::Setup;
use integration::images::{Endpoint, Holding, Image, Registry};
use integration::kubernetes_streams::{Channels, UNTIL_GO, after_go};
use integration::race::Exchange;
use integration::wait;
use prost::Message;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};

async fn pull(node: &KubernetesNode, name: String, deadline: Duration) -> Result<PullImageResponse, Status> {
    let image = Some(ImageSpec { image: name, ..ImageSpec::default() });
    let mut request = Request::new(PullImageRequest { image, ..PullImageRequest::default() });
    request.set_timeout(deadline);
    node.images().pull_image(request).await.map(tonic::Response::into_inner)
}

/// Rule C39: a pull from a registry that stalls in a layer fails after `patience_seconds` or at the caller's deadline.
/// Other pulls continue, and a retry succeeds.
#[test]
fn stalled_registries_end_their_pull() {
    let setup = Setup::default();
    let config = format!("[images]\npatience_seconds = 10\n[policy]\n{POLICY}log_dirs = [{:?}]\n", log_dir(&setup));
    let node = KubernetesNode::with(setup.config(&config));
    let registry = Registry::start(false);
    for name in ["stalled:1", "other:1"] {
        let image = Image::new();
        let mut content = vec![0; 4 << 20];
        getrandom::fill(&mut content).unwrap();
        std::fs::write(image.root().join("file"), content).unwrap();
        image.commit();
        image.push(&registry, name);
    }
    let holding = Holding::start(&registry, 1 << 20);
    node.block_on(async {
        let stalled = pull(&node, holding.name("stalled:1"), Duration::from_secs(60));
        let other = pull(&node, registry.name("other:1"), Duration::from_secs(60));
        let (stalled, other) = tokio::join!(stalled, other);
        let stalled = stalled.unwrap_err();
        assert_eq!(stalled.code(), Code::Unknown, "{stalled:?}");
        assert!(stalled.message().starts_with("RegistryUnavailable"), "{stalled:?}");
        other.unwrap();
    });
    let late = node.block_on(pull(&node, holding.name("stalled:1"), Duration::from_secs(1))).unwrap_err();
    assert!(matches!(late.code(), Code::Cancelled | Code::DeadlineExceeded), "{late:?}");
    // The received part of the layer is kept, and the retry fetches only the rest.
    let ingest = node.daemon.setup().state_dir().join("images/ingest");
    let parts = |expected: usize| {
        wait::until_ok("partial downloads", || match std::fs::read_dir(&ingest).unwrap().count() {
            count if count == expected => Ok(()),
            count => Err(format!("{count}, not {expected}")),
        });
    };
    parts(1);
    holding.release();
    node.block_on(pull(&node, holding.name("stalled:1"), Duration::from_secs(60))).unwrap();
    parts(0);
}

/// Rules C6, C8, C12: 10,000 small labels and annotations are stored unchanged. Labels or annotations of 10 MiB are
/// refused with the maximum and the size, and leave no record.
#[test]
fn many_annotations_are_kept_or_refused() {
    let node = KubernetesNode::start();
    let before = node.daemon.footprint();
    let many = |length: usize| (0..10_000).map(|number| (format!("key-{number}"), "x".repeat(length))).collect();
    let is_refused = |error: Status, field: &str| {
        assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
        assert!(error.message().contains(field) && error.message().contains("the maximum is 1048576"), "{error:?}");
    };
    for field in ["config.annotations", "config.labels"] {
        let mut config = node.sandbox("a");
        match field {
            "config.labels" => config.labels = many(1024),
            _ => config.annotations = many(1024),
        }
        is_refused(node.run_sandbox(&config).unwrap_err(), field);
    }
    assert_eq!(std::fs::read_dir(node.records().join("sandboxes")).unwrap().count(), 0);
    let config = PodSandboxConfig { labels: many(8), annotations: many(8), ..node.sandbox("a") };
    let sandbox = node.run_sandbox(&config).unwrap();
    let status = node.sandbox_status(&sandbox).unwrap();
    assert!(status.labels == config.labels && status.annotations == config.annotations);
    let mut config = ContainerConfig { annotations: many(1024), ..node.script("c", "exec sleep 100000") };
    is_refused(node.create(&sandbox, &config).unwrap_err(), "config.annotations");
    assert_eq!(std::fs::read_dir(node.records().join("containers")).unwrap().count(), 0);
    config.annotations = many(8);
    let id = node.started(&sandbox, &config);
    assert!(node.status(&id).unwrap().annotations == config.annotations);
    node.remove_sandbox(&sandbox).unwrap();
    node.daemon.wait_until_back_at(&before);
}

/// A request with an encoded configuration, and with a field that executor-cri does not know.
#[derive(Clone, PartialEq, Message)]
struct RawRequest {
    #[prost(bytes = "vec", tag = "1")]
    config: Vec<u8>,
    #[prost(string, tag = "900")]
    newer: String,
}

/// Rule C7: unknown fields of a newer interface are ignored.
#[test]
fn unknown_fields_are_ignored() {
    let node = KubernetesNode::start();
    let known = node.sandbox("a");
    let mut config = known.encode_to_vec();
    // A string in field 901, and a number in field 902.
    config.extend([0xaa, 0x38, 3, b'n', b'e', b'w', 0xb0, 0x38, 7]);
    let request = RawRequest { config, newer: "newer".into() };
    let codec = tonic_prost::ProstCodec::<RawRequest, RunPodSandboxResponse>::default();
    let path = PathAndQuery::from_static("/runtime.v1.RuntimeService/RunPodSandbox");
    let mut client = node.client();
    let sandbox = node.block_on(async {
        client.ready().await.unwrap();
        client.unary(Request::new(request), path, codec).await.unwrap().into_inner().pod_sandbox_id
    });
    assert_eq!(node.run_sandbox(&known).unwrap(), sandbox, "the same request without these fields");
    node.remove_sandbox(&sandbox).unwrap();
}

/// Makes a call, cancels the call after some time, and then makes the same call again to completion.
async fn twice<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(after: Duration, call: impl Fn() -> F) -> T {
    let _ = tokio::time::timeout(after, call()).await;
    call().await.unwrap().into_inner()
}

/// Rule C8: each call for a pod, from creation to removal, is cancelled after 0 to 50 ms and made again. No object is
/// created or started twice, and nothing is left.
#[test]
fn cancelled_calls_can_be_retried() {
    let node = KubernetesNode::start();
    let before = node.daemon.footprint();
    for milliseconds in [0, 1, 2, 5, 10, 20, 30, 50] {
        let after = Duration::from_millis(milliseconds);
        let config = Some(node.sandbox(&format!("pod-{milliseconds}")));
        let request = RunPodSandboxRequest { config: config.clone(), ..RunPodSandboxRequest::default() };
        let call = || async { node.runtime().run_pod_sandbox(request.clone()).await };
        let pod_sandbox_id = node.block_on(twice(after, call)).pod_sandbox_id;
        let mut container = node.script("c", "echo started; exec sleep 100000");
        container.log_path = "0.log".into();
        let request = CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
            config: Some(container),
            sandbox_config: config,
        };
        let call = || async { node.runtime().create_container(request.clone()).await };
        let id = node.block_on(twice(after, call)).container_id;
        let mut runtime = node.runtime();
        let sandboxes = node.block_on(runtime.list_pod_sandbox(ListPodSandboxRequest::default())).unwrap();
        let containers = node.block_on(runtime.list_containers(ListContainersRequest::default())).unwrap();
        assert_eq!((sandboxes.into_inner().items.len(), containers.into_inner().containers.len()), (1, 1));
        assert_eq!(node.daemon.api.ids().len(), 1);
        let start = StartContainerRequest { container_id: id.clone() };
        // A kubelet does not start a running container again: it reads the status of the container first.
        let mut starting = node.runtime();
        let first = node.block_on(async { tokio::time::timeout(after, starting.start_container(start)).await });
        if !matches!(first, Ok(Ok(_))) {
            let again = node.start_container(&id);
            assert!(again.is_ok() || again.unwrap_err().message().contains("CONTAINER_RUNNING"));
        }
        let exec = ExecSyncRequest { container_id: id.clone(), cmd: vec!["echo".into(), "x".into()], timeout: 10 };
        let call = || async { node.runtime().exec_sync(exec.clone()).await };
        assert_eq!(node.block_on(twice(after, call)).stdout, b"x\n");
        let stop = StopContainerRequest { container_id: id.clone(), timeout: 0 };
        let call = || async { node.runtime().stop_container(stop.clone()).await };
        node.block_on(twice(after, call));
        let status = node.status(&id).unwrap();
        assert_eq!(status.exit_code, 137);
        let log = std::fs::read_to_string(status.log_path).unwrap();
        assert!(log.matches("started").count() <= 1, "{log}");
        let remove = RemoveContainerRequest { container_id: id };
        let call = || async { node.runtime().remove_container(remove.clone()).await };
        node.block_on(twice(after, call));
        let stop = StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
        let call = || async { node.runtime().stop_pod_sandbox(stop.clone()).await };
        node.block_on(twice(after, call));
        let remove = RemovePodSandboxRequest { pod_sandbox_id };
        let call = || async { node.runtime().remove_pod_sandbox(remove.clone()).await };
        node.block_on(twice(after, call));
    }
    node.daemon.wait_until_back_at(&before);
    for kind in ["sandboxes", "containers"] {
        assert_eq!(std::fs::read_dir(node.records().join(kind)).unwrap().count(), 0, "{kind}");
    }
}

/// Rule C24: while a directory is swapped with a link to another directory, a container sees the original directory or
/// is refused. As a control, containers see the other directory if the policy lists it.
#[test]
fn swapped_paths_never_give_another() {
    let lent = tempfile::tempdir_in("/run").unwrap();
    std::fs::set_permissions(lent.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let (shared, secret) = (lent.path().join("shared"), lent.path().join("secret"));
    let (dir, link) = (shared.join("dir"), shared.join("link"));
    for (dir, mark) in [(&dir, "mine"), (&secret, "secret")] {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("mark"), mark).unwrap();
    }
    symlink(&secret, &link).unwrap();
    let mut seen = Vec::new();
    for is_listed in [false, true] {
        let more = if is_listed { format!(", {secret:?}") } else { String::new() };
        let config = format!("[policy]\n{POLICY}host_paths = [{shared:?}{more}]\n");
        let node = KubernetesNode::with(Setup::default().config(&config));
        let mut config = node.sandbox("a");
        config.log_directory.clear();
        let sandbox = node.run_sandbox(&config).unwrap();
        let race = Exchange::start(vec![(dir.clone(), link.clone())]);
        let (mut mine, mut refusals, mut others) = (0, 0, 0);
        for number in 0..if is_listed { 20 } else { 60 } {
            let mut config = node.script(&format!("c-{number}"), "[ $(cat /data/mark) = mine ]");
            let host_path = dir.display().to_string();
            config.mounts.push(Mount { container_path: "/data".into(), host_path, ..Mount::default() });
            match node.create(&sandbox, &config) {
                Ok(id) => {
                    node.start_container(&id).unwrap();
                    match node.until_ended(&id).exit_code {
                        0 => mine += 1,
                        _ => others += 1,
                    }
                    node.remove_container(&id).unwrap();
                }
                Err(error) => {
                    assert_ne!(error.code(), Code::Unavailable, "{error:?}");
                    assert!(error.message().contains("host_path"), "{error:?}");
                    refusals += 1;
                }
            }
        }
        assert!(race.stop() > 100);
        seen.push((mine, refusals, others));
        node.remove_sandbox(&sandbox).unwrap();
    }
    assert!(matches!(seen[..], [(1.., 1.., 0), (_, _, 1..)]), "{seen:?}");
}

/// Rule C35: clients of exec and attach that stop reading delay neither the container nor other clients. The other
/// clients receive the whole output.
#[test]
fn slow_clients_do_not_block_others() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let print = "busybox yes 123456789012345678901234567890123456789012345678901234567890123 | busybox head -c 8388608";
    let id = node.started(&sandbox, &node.script("c", &format!("{UNTIL_GO}; {print}")));
    let exec = |script: &str| {
        let cmd = ["sh", "-c", script].map(String::from).to_vec();
        let request = ExecRequest { container_id: id.clone(), cmd, stdout: true, ..ExecRequest::default() };
        let mut runtime = node.runtime();
        Channels::open(&node.block_on(runtime.exec(request)).unwrap().into_inner().url)
    };
    let attach = || {
        let request =
            AttachRequest { container_id: id.clone(), stdout: true, stderr: true, ..AttachRequest::default() };
        let mut runtime = node.runtime();
        Channels::open(&node.block_on(runtime.attach(request)).unwrap().into_inner().url)
    };
    let (mut slow_exec, mut slow_attach, mut fast_attach) = (exec("busybox yes"), attach(), attach());
    for client in [&mut slow_exec, &mut slow_attach, &mut fast_attach] {
        client.until_output().unwrap();
    }
    // From here on the slow clients are connected and read nothing.
    let fast_attach = std::thread::spawn(move || fast_attach.end().unwrap().stdout);
    assert_eq!(exec(print).end().unwrap().stdout.len(), 8 << 20);
    node.exec(&id, &["touch", "/tmp/go"], 10).unwrap();
    assert_eq!(node.until_ended(&id).exit_code, 0);
    assert_eq!(after_go(&fast_attach.join().unwrap()).len(), 8 << 20);
    assert!(after_go(&slow_attach.stdout).is_empty(), "the slow client has read past the lines before the output");
    drop((slow_exec, slow_attach));
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C14: pods with large annotations are refused before the kubelet's lists exceed the size of a message, so one
/// pod does not stop the node. After a removal, new pods are accepted again.
#[test]
fn large_annotations_leave_lists_readable() {
    let node = KubernetesNode::start();
    let config = |index: usize| {
        let mut config = node.sandbox(&format!("large-{index}"));
        config.annotations = [("large".to_owned(), "x".repeat(900 << 10))].into();
        config
    };
    let mut pods = Vec::new();
    let refused = loop {
        match node.run_sandbox(&config(pods.len())) {
            Ok(id) => pods.push(id),
            Err(status) => break status,
        }
    };
    assert_eq!((refused.code(), pods.len()), (Code::ResourceExhausted, 18), "{refused}");
    assert!(refused.message().contains("remove pods or shorten annotations"), "{refused}");
    assert_eq!(node.run_sandbox(&config(3)).unwrap(), pods[3], "a retry");
    // The client of the kubelet has this limit.
    let mut runtime = node.runtime().max_decoding_message_size(16 << 20);
    let listed =
        node.block_on(runtime.list_pod_sandbox(ListPodSandboxRequest::default())).unwrap().into_inner().items.len();
    let stats = node
        .block_on(runtime.list_pod_sandbox_stats(ListPodSandboxStatsRequest::default()))
        .unwrap()
        .into_inner()
        .stats
        .len();
    assert_eq!((listed, stats), (18, 18));
    let small = node.run_sandbox(&node.sandbox("small")).unwrap();
    node.started(&small, &node.script("c", "exec sleep 100000"));
    node.remove_sandbox(&pods[0]).unwrap();
    node.run_sandbox(&config(18)).unwrap();
}
