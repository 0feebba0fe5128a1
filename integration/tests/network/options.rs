//! Settings of a pod for CNI plugins (CRI rules G13 and C22 of docs/guides/cri-rules.md).

use executor_client::Error;
use executor_proto::v1::{CniArgument, CniBandwidth, CniOptions, CreatePodRequest, Network as NetworkKind, Pod};
use integration::daemon::Daemon;
use integration::network::Network;
use serde_json::{Value, json};
use tonic::Code;

fn options() -> CniOptions {
    let argument = |name: &str, value: &str| CniArgument { name: name.into(), value: value.into() };
    CniOptions {
        arguments: vec![argument("K8S_POD_NAMESPACE", "default"), argument("K8S_POD_NAME", "web-1")],
        bandwidth: Some(CniBandwidth {
            ingress_rate: 1_000_000,
            ingress_burst: 2_000_000,
            egress_rate: 3_000_000,
            egress_burst: 4_000_000,
        }),
        cgroup_path: "/kubepods/pod1".into(),
        pod_annotations: [("example.com/a".to_owned(), "b; c=d".to_owned())].into(),
    }
}

fn pod(id: &str, cni: Option<CniOptions>) -> CreatePodRequest {
    CreatePodRequest { id: id.into(), network: NetworkKind::Cni.into(), cni, ..Default::default() }
}

/// Configures two plugins that record their input; only `declares` declares capabilities.
fn configure(network: &Network) {
    for name in ["declares", "plain"] {
        let file = network.dir().join(name).display().to_string();
        let script = format!(
            "cat >{file}.$CNI_COMMAND; echo \"$CNI_ARGS\" >{file}.$CNI_COMMAND.args; \
             [ $CNI_COMMAND = ADD ] && echo '{{\"cniVersion\":\"1.0.0\"}}'; exit 0"
        );
        network.plugin(name, &script);
    }
    let capabilities = json!({"bandwidth": true, "cgroupPath": true, "io.kubernetes.cri.pod-annotations": true});
    let plugins = [json!({"type": "declares", "capabilities": capabilities}), json!({"type": "plain"})];
    let list = json!({"cniVersion": "1.0.0", "name": "test", "plugins": plugins});
    std::fs::write(network.dir().join("net.d/10-test.conflist"), list.to_string()).unwrap();
}

fn input(network: &Network, name: &str, command: &str) -> (Option<Value>, String) {
    let path = network.dir().join(format!("{name}.{command}"));
    let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let args = std::fs::read_to_string(format!("{}.args", path.display())).unwrap();
    (config.get("runtimeConfig").cloned(), args.trim().to_owned())
}

fn create(daemon: &Daemon, request: &CreatePodRequest) -> Result<Pod, Error> {
    daemon.api.block_on(daemon.api.client().pods().create(request)).map(|(pod, _)| pod)
}

fn refused(daemon: &Daemon, request: &CreatePodRequest) -> (Option<Code>, String) {
    let error = create(daemon, request).unwrap_err();
    (error.code(), error.to_string())
}

#[test]
fn plugins_get_arguments_and_declared_capabilities() {
    let network = Network::new();
    configure(&network);
    let mut daemon = network.daemon("cni_args = true");
    let created = create(&daemon, &pod("p", Some(options()))).unwrap();
    assert_eq!(created.spec.unwrap().cni, Some(options()));
    let other = CniOptions { cgroup_path: "/other".into(), ..options() };
    assert!(create(&daemon, &pod("p", Some(other))).is_err(), "another request");
    daemon.kill();
    daemon.start_again();
    daemon.api.block_on(daemon.api.client().check_network("test")).unwrap();
    daemon.api.block_on(daemon.api.client().pods().delete("p", true)).unwrap();
    let expected = json!({
        "bandwidth": {
            "ingressRate": 1_000_000, "ingressBurst": 2_000_000, "egressRate": 3_000_000, "egressBurst": 4_000_000,
        },
        "cgroupPath": "/kubepods/pod1",
        "io.kubernetes.cri.pod-annotations": {"example.com/a": "b; c=d"},
    });
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-1";
    for command in ["ADD", "CHECK", "DEL"] {
        assert_eq!(input(&network, "declares", command), (Some(expected.clone()), args.into()), "{command}");
        assert_eq!(input(&network, "plain", command), (None, args.into()), "the control, {command}");
    }
    create(&daemon, &pod("without", None)).unwrap();
    assert_eq!(input(&network, "declares", "ADD"), (None, "IgnoreUnknown=1".into()), "control failed");
}

#[test]
fn options_need_key_and_plugins() {
    let network = Network::forwarding();
    configure(&network);
    let closed = network.daemon("");
    let (code, why) = refused(&closed, &pod("p", Some(options())));
    assert!(code == Some(Code::InvalidArgument) && why.contains("policy.cni_args"), "{why}");
    let daemon = network.daemon("cni_args = true");
    let none = CreatePodRequest { network: NetworkKind::None.into(), ..pod("p", Some(options())) };
    let injected = CniArgument { name: "A".into(), value: "1;K8S_POD_NAME=other".into() };
    let injected = CniOptions { arguments: vec![injected], ..CniOptions::default() };
    for (request, words) in [
        (none, "cni: requires the network `cni` (NETWORK_CNI)"),
        (pod("p", Some(injected)), "cni.arguments[0].value: "),
    ] {
        let (code, why) = refused(&daemon, &request);
        assert!(code == Some(Code::InvalidArgument) && why.contains(words), "{why}");
    }
    let built_in = CreatePodRequest { network_name: "bridge".into(), ..pod("p", Some(options())) };
    let (code, why) = refused(&daemon, &built_in);
    assert!(code == Some(Code::FailedPrecondition) && why.contains("is built in"), "{why}");
    create(&daemon, &CreatePodRequest { cni: None, ..built_in }).unwrap();
}
