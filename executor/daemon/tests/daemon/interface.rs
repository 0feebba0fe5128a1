//! Tests of the API: violations, limits, lists.

use executor_proto::v1;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_types::StatusExt as _;

use crate::harness::launcher::LISTED;
use crate::harness::{Node, get, kinds, request, retry, secret_request, until, wait};

/// All violations are reported together, each with its field and without the value.
#[tokio::test(flavor = "multi_thread")]
async fn every_violation_is_reported_and_no_value() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let mut bad = secret_request("not an id", "canary-value");
    bad.rootfs = "nowhere".into();
    bad.network = 9;
    bad.grace_period = Some(prost_types::Duration { seconds: -5, nanos: 0 });
    bad.volume_mounted_files[0].path = "../b".into();
    let run = bad.action.as_mut().unwrap().run.as_mut().unwrap();
    run.env.push(v1::EnvironmentVariable {
        name: "A=B".into(),
        value: "canary-value".into(),
        ..v1::EnvironmentVariable::default()
    });
    run.args.push("canary-value\0".into());
    let status = client.run(bad).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let violations = status.get_details_bad_request().unwrap().field_violations;
    let fields: Vec<(&str, &str)> = violations.iter().map(|one| (&*one.field, &*one.reason)).collect();
    let expected = [
        ("grace_period", "OUT_OF_RANGE"),
        ("network", "UNKNOWN_VALUE"),
        ("id", "INVALID_FORMAT"),
        ("action.run.args[1]", "INVALID_CHARACTER"),
        ("action.run.env[1].name", "INVALID_CHARACTER"),
        ("rootfs", "INVALID_FORMAT"),
        ("volume_mounted_files[0].path", "INVALID_FORMAT"),
    ];
    assert_eq!(fields, expected);
    assert!(!format!("{status:?}{}", node.log()).contains("canary-value"));
    let upload = v1::Action { upload: Some(v1::UploadAction::default()), ..Default::default() };
    let status = client.run(v1::RunRequest { action: Some(upload), ..Default::default() }).await.unwrap_err();
    assert!(status.code() == Code::InvalidArgument && status.message().contains("action.upload.to"), "{status:?}");
    let mut large = request("large");
    large.volume_mounted_files = vec![v1::File { path: "a".into(), content: vec![0; 3 << 20], ..v1::File::default() }];
    let status = client.run(large).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let size = status.message().strip_prefix("grpc: received message larger than max (").unwrap_or_default();
    let (size, limit) = size.split_once(" vs. ").unwrap_or_default();
    assert!((3 << 20..(3 << 20) + 1024).contains(&size.parse().unwrap_or(0)), "{status:?}");
    assert_eq!(limit, format!("{})", 2 << 20), "{status:?}");
}

/// A list of networks that is larger than a packet arrives from the launcher in a memory file, and so do the results of
/// network checks.
#[tokio::test(flavor = "multi_thread")]
async fn networks_are_listed_from_the_launcher() {
    let node = Node::start().await;
    let client = node.client().await;
    let list = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let mut client = client.clone();
        async move { client.list_networks(v1::ListNetworksRequest { names }).await }
    };
    let listed = list(&["web"]).await.unwrap().into_inner();
    let network = &listed.networks[0];
    assert_eq!((&*network.name, &*network.driver, network.containers.len()), ("web", "cni", LISTED as usize));
    for (name, code) in [("nope", Code::NotFound), ("../x", Code::InvalidArgument)] {
        let refused = list(&["web", name]).await.unwrap_err();
        let violations = refused.get_details_bad_request().unwrap().field_violations;
        assert_eq!((refused.code(), &*violations[0].field), (code, "names[1]"), "{refused:?}");
    }
    let check = |name: &str| {
        let (request, mut client) = (v1::CheckNetworkRequest { name: name.into() }, client.clone());
        async move { client.check_network(request).await }
    };
    let checked = check("web").await.unwrap().into_inner();
    let result = &checked.checks[0];
    let broken = v1::network_check::Outcome::Broken;
    assert_eq!((&*result.id, result.outcome(), &*result.message), ("web", broken, "eth0 is gone"));
    assert_eq!(checked.unchecked, 3);
    let refused = check("").await.unwrap_err();
    assert_eq!(refused.get_details_bad_request().unwrap().field_violations[0].field, "name", "{refused:?}");
    node.launcher.die();
    node.until_health(ServingStatus::NotServing).await;
    assert_eq!(list(&[]).await.unwrap_err().code(), Code::Unavailable);
}

/// If a client in another language sends strings that are not UTF-8, they are reported as violations.
#[tokio::test(flavor = "multi_thread")]
async fn strings_that_are_not_utf8_are_violations() {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Wire {
        #[prost(bytes = "vec", tag = "1")]
        id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        action: Vec<u8>,
    }
    let node = Node::start().await;
    let call = async |method: &'static str, wire: Wire| -> tonic::Status {
        let mut grpc = tonic::client::Grpc::new(node.channel().await);
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<Wire, Wire>::default();
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(method);
        grpc.unary(tonic::Request::new(wire), path, codec).await.unwrap_err()
    };
    // Action.run (3), RunAction.env (4), EnvironmentVariable.value (2).
    let action = b"\x1a\x07\x22\x05\x0a\x01A\x12\x00".to_vec();
    let good = call("/executor.v1.Executor/Run", Wire { id: b"a b".to_vec(), action }).await;
    assert_eq!(good.get_details_bad_request().unwrap().field_violations[0].reason, "INVALID_FORMAT", "control failed");
    let action = b"\x1a\x0e\x0a\x02/x\x22\x08\x0a\x01A\x12\x03\xff-c".to_vec();
    let bad = call("/executor.v1.Executor/Run", Wire { id: b"a".to_vec(), action }).await;
    let violations = bad.get_details_bad_request().unwrap_or_else(|| panic!("{bad:?}")).field_violations;
    let reported: Vec<(&str, &str)> = violations.iter().map(|one| (&*one.field, &*one.reason)).collect();
    assert_eq!((bad.code(), reported), (Code::InvalidArgument, vec![("action.run.env[0].value", "NOT_UTF8")]));
    let bad = call("/executor.v1.Executor/Get", Wire { id: b"\xff".to_vec(), action: Vec::new() }).await;
    assert_eq!(bad.code(), Code::InvalidArgument);
    assert_eq!(bad.get_details_bad_request().unwrap().field_violations[0].field, "id");
}

#[tokio::test(flavor = "multi_thread")]
async fn capacity_is_counted_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("executor.toml");
    std::fs::write(&config, "[capacity]\ncontainers = 2\nmemory_bytes = 1000000000\npids = 5000\n").unwrap();
    let node = Node::start_with(&["--config", config.to_str().unwrap()]).await;
    let mut client = node.client().await;
    let mut large = request("large");
    large.limits = Some(v1::Limits { memory_bytes: 2_000_000_000, ..Default::default() });
    let status = client.run(large).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "not enough memory (bytes): requested 2000000000, available 1000000000 of 1000000000");
    let (a, _) = node.run(request("a")).await;
    let (_b, _) = node.run(request("b")).await;
    let status = client.run(request("c")).await.unwrap_err();
    assert_eq!(status.message(), "not enough containers: requested 1, available 0 of 2");
    a.exits(0);
    wait(&mut client, "a").await;
    let (_c, _) = node.run(request("c")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_paged_and_filtered() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let mut shims = Vec::new();
    for id in ["d", "a", "c", "b", "e"] {
        let mut request = request(id);
        request.labels.insert("odd".into(), (id == "a" || id == "c" || id == "e").to_string());
        shims.push(node.run(request).await.0);
    }
    shims[1].exits(0); // a
    wait(&mut client, "a").await;
    let mut ids = async |request: v1::ListRequest| {
        let page = client.list(request).await.unwrap().into_inner();
        (page.containers.into_iter().map(|container| container.id).collect::<Vec<_>>().join(""), page.next_page_token)
    };
    let page = |size, token: &str| v1::ListRequest { page_size: size, page_token: token.into(), ..Default::default() };
    assert_eq!(ids(page(0, "")).await, ("abcde".into(), String::new()));
    let (first, token) = ids(page(2, "")).await;
    assert_eq!((&*first, &*token), ("ab", "b"));
    assert_eq!(ids(page(3, &token)).await, ("cde".into(), String::new()));
    let labels = [("odd".to_owned(), "true".to_owned())].into();
    let states = vec![v1::State::Running.into()];
    let filtered = v1::ListRequest { labels, states, page_size: 1, ..Default::default() };
    assert_eq!(ids(filtered).await, ("c".into(), "c".into()));
    for bad in [v1::ListRequest { states: vec![0], ..Default::default() }, page(1, "../x")] {
        assert_eq!(client.list(bad).await.unwrap_err().code(), Code::InvalidArgument);
    }
}

/// If there are more completed containers than retention allows, the oldest are deleted.
#[tokio::test(flavor = "multi_thread")]
async fn completed_containers_are_retained_up_to_limit() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("executor.toml");
    std::fs::write(&config, "[retention]\ncompleted = 2\n").unwrap();
    let node = Node::start_with(&["--config", config.to_str().unwrap()]).await;
    let mut client = node.client().await;
    for id in ["z", "y", "x", "w"] {
        let (shim, _) = node.run(request(id)).await;
        shim.exits(0);
        wait(&mut client, id).await;
    }
    until("the oldest are deleted", || node.launcher.calls() == ["remove z", "remove y"]).await;
    let events = node.events("y", v1::event::Kind::Deleted).await;
    assert_eq!(kinds(&events).last(), Some(&"DELETED"));
    assert_eq!(get(&mut client, "x").await.state(), v1::State::Completed);
}

/// If the disk of the state directory is full, new containers are refused until there is space again. The error names
/// the directory.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root, to mount"]
async fn full_disk_refuses_only_new_containers() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &state, "tmpfs", flags, Some(c"size=24m,mode=755")).unwrap();
    let _disk = Disk(state.clone());
    let node = Node::start_in(dir, &[]).await;
    let mut client = node.client().await;
    let (lives, _) = node.run(request("lives")).await;
    let filler = state.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[7; 4096]).is_ok() {}
    let status = client.run(request("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let reported = format!("state directory {}: No space left on device", state.display());
    assert!(status.message().starts_with(&reported), "{status:?}");
    let health = client.info(v1::InfoRequest {}).await.unwrap().into_inner().health.unwrap();
    assert!(!health.healthy && health.reasons.iter().any(|reason| reason.starts_with(&reported)), "{health:?}");
    node.until_health(ServingStatus::NotServing).await;
    assert_eq!(get(&mut client, "lives").await.state(), v1::State::Running);
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    // The ledger may have to reopen its store after a pause.
    let shim = async {
        let shim = node.launcher.launched().await;
        shim.runs();
        shim
    };
    let run = retry("there is room again", || {
        let mut client = client.clone();
        async move { client.run(request("a")).await }
    });
    let (shim, _) = tokio::join!(shim, run);
    node.until_health(ServingStatus::Serving).await;
    shim.exits(0);
    lives.exits(0);
    wait(&mut client, "a").await;
    wait(&mut client, "lives").await;
}

struct Disk(std::path::PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let node = Node::start().await;
    let mut client = ServerReflectionClient::new(node.channel().await);
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut stream = client.server_reflection_info(tokio_stream::once(ask)).await.unwrap().into_inner();
    let answer = stream.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&"executor.v1.Executor".to_owned()), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health".to_owned()), "{names:?}");
}

#[test]
fn check_config_reports_without_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("executor.toml");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let done =
            std::process::Command::new(env!("CARGO_BIN_EXE_executord")).arg("--check-config").arg(&path).output();
        let done = done.unwrap();
        let printed = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
        (done.status.code(), printed.replace(path.to_str().unwrap(), "FILE"))
    };
    let run = dir.path().join("run");
    assert_eq!(check(&format!("run_dir = '{}'\n", run.display())), (Some(0), "FILE: OK\n".to_owned()));
    assert!(!run.exists());
    let (status, printed) = check("[capacity]\ncontainers = 0\npids = 0\n");
    assert_eq!(status, Some(1), "{printed}");
    let expected =
        "FILE:2: capacity.containers = 0: must be at least 1\nFILE:3: capacity.pids = 0: must be at least 1\n";
    assert_eq!(printed, expected);
    let (status, printed) = check("user = 'no-such-user'\nallow_group = 'no-such-group'\n");
    let expected = "unknown user `no-such-user`: not found in /etc/passwd\nunknown group `no-such-group`: not found in /etc/group\n";
    assert_eq!((status, &*printed), (Some(1), expected));
}
