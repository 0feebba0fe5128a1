use serde_json::{Value, json};

use super::*;
use crate::plan::{CniArgument, CniBandwidth, CniOptions, Connectivity, Protocol, PublishedPort};

const LIST: &str = r#"{
  "cniVersion": "1.0.0", "name": "blue", "disableCheck": true,
  "plugins": [
    {"type": "bridge", "bridge": "cni-blue", "ipam": {"type": "host-local"}},
    {"type": "portmap", "capabilities": {"portMappings": true}, "prevResult": {"stale": 1}},
    {"type": "tuning", "capabilities": {"dns": true, "mac": false}}
  ]}"#;

fn asked() -> Capabilities {
    let port = |host_ip: Option<&str>, host_port, protocol| PublishedPort {
        host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        host_port,
        container_port: 80,
        protocol,
    };
    let ports = vec![port(None, 8080, Protocol::Tcp), port(Some("127.0.0.1"), 53, Protocol::Udp)];
    Capabilities::from_asked(&Connectivity {
        ports,
        dns_servers: vec!["10.0.0.1".parse().unwrap()],
        ..Connectivity::default()
    })
}

#[test]
fn network_lists_and_single_plugins_are_parsed() {
    let list = CniNetwork::parse(LIST.as_bytes()).unwrap();
    assert_eq!((&*list.name, &*list.versions), ("blue", &[Version::V1_0_0][..]));
    let kinds: Vec<&str> = list.plugins.iter().map(|plugin| &*plugin.kind).collect();
    assert_eq!(kinds, ["bridge", "portmap", "tuning"]);
    let single = br#"{"cniVersion": "0.3.1", "name": "one", "type": "ptp", "ipMasq": true}"#;
    let single = CniNetwork::parse(single).unwrap();
    assert_eq!((single.plugins.len(), &*single.plugins[0].kind), (1, "ptp"));
    assert!(list.disable_check && !list.disable_gc && !single.disable_check);
    assert_eq!(single.plugins[0].config["ipMasq"], true);
}

#[test]
fn unsupported_network_versions_are_dropped() {
    let of = |versions: Value| {
        let mut root = json!({"name": "x", "type": "ptp"});
        root.as_object_mut().unwrap().extend(versions.as_object().unwrap().clone());
        CniNetwork::parse(root.to_string().as_bytes()).map(|network| network.versions)
    };
    assert_eq!(of(json!({"cniVersion": "0.4.0"})).unwrap(), [Version::V0_4_0]);
    let several = json!({"cniVersion": "1.0.0", "cniVersions": ["9.9.9", "1.1.0", "0.2.0", "1.0.0"]});
    assert_eq!(of(several).unwrap(), [Version::V1_0_0, Version::V1_1_0]);
    for wrong in [json!({}), json!({"cniVersion": "0.2.0"}), json!({"cniVersion": 1}), json!({"cniVersions": "1.0.0"})]
    {
        let error = of(wrong.clone()).unwrap_err().to_string();
        assert!(error.contains("cniVersion"), "{wrong}: {error}");
    }
}

#[test]
fn invalid_network_configuration_fails() {
    let many = format!(r#"{{"cniVersion":"1.0.0","name":"x","plugins":[{}]}}"#, vec![r#"{"type":"a"}"#; 17].join(","));
    let table = [
        ("", "is not a JSON object"),
        ("[1]", "the top level is not an object"),
        (r#"{"cniVersion":"1.0.0","type":"a"}"#, "`name` is not a string"),
        (r#"{"cniVersion":"1.0.0","name":"../x","type":"a"}"#, "`name` is not a valid network name"),
        (r#"{"cniVersion":"1.0.0","name":"","type":"a"}"#, "`name` is not a valid network name"),
        (r#"{"cniVersion":"1.0.0","name":"x"}"#, "`plugins[0].type` is not a string"),
        (r#"{"cniVersion":"1.0.0","name":"x","plugins":[]}"#, "`plugins` has 0 entries"),
        (r#"{"cniVersion":"1.0.0","name":"x","plugins":{}}"#, "`plugins` is not a list"),
        (r#"{"cniVersion":"1.0.0","name":"x","plugins":[1]}"#, "`plugins[0]` is not an object"),
        (
            r#"{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"../../bin/sh"}]}"#,
            "`plugins[0].type` is not a valid name",
        ),
        (many.as_str(), "`plugins` has 17 entries"),
    ];
    for (text, words) in table {
        let error = CniNetwork::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(CniNetwork::parse(deep.as_bytes()).is_err());
}

#[test]
fn config_files_are_selected_by_extension() {
    let taken = ["10-a.conflist", "x.conf", "y.json"].map(is_config_name);
    assert_eq!(taken, [true; 3]);
    let left = ["10-a.conflist.bak", ".hidden.conf", "README", "x.conf~"].map(is_config_name);
    assert_eq!(left, [false; 4]);
}

/// Each plugin gets the network's name and version, only its declared capabilities, and the previous result.
#[test]
fn plugin_input_has_own_capabilities_and_result() {
    let network = CniNetwork::parse(LIST.as_bytes()).unwrap();
    let given = |index: usize, previous: Option<&Value>| {
        stdin(&network, &network.plugins[index], Version::V1_0_0, &asked(), previous)
    };
    let first = given(0, None);
    let expected = json!({
        "type": "bridge", "bridge": "cni-blue", "ipam": {"type": "host-local"}, "name": "blue", "cniVersion": "1.0.0",
    });
    assert_eq!(first, expected);
    let result = json!({"ips": []});
    let second = given(1, Some(&result));
    assert_eq!(second["prevResult"], result);
    let ports = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 53, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"},
    ]);
    assert_eq!(second["runtimeConfig"], json!({"portMappings": ports}));
    assert_eq!(given(1, None).get("prevResult"), None, "prevResult of the configuration is dropped");
    assert_eq!(given(2, None)["runtimeConfig"]["dns"]["servers"], json!(["10.0.0.1"]));
    assert!(!asked().lacks_port_plugin(&network));
    let single = CniNetwork::parse(br#"{"cniVersion": "1.0.0", "name": "one", "type": "ptp"}"#).unwrap();
    assert!(asked().lacks_port_plugin(&single));
    assert!(!Capabilities::default().lacks_port_plugin(&single));
}

#[test]
fn options_go_to_declaring_plugins() {
    let list = r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "a"}, {"type": "b", "capabilities":
        {"bandwidth": true, "cgroupPath": true, "io.kubernetes.cri.pod-annotations": true}}]}"#;
    let network = CniNetwork::parse(list.as_bytes()).unwrap();
    let bandwidth = CniBandwidth { ingress_rate: 5, ingress_burst: 6, ..CniBandwidth::default() };
    let options = CniOptions {
        bandwidth: Some(bandwidth),
        cgroup_path: "/kubepods/a".into(),
        pod_annotations: [("a/b".to_owned(), "c".to_owned())].into(),
        ..CniOptions::default()
    };
    let asked = |cni| Capabilities::from_asked(&Connectivity { cni, ..Connectivity::default() });
    let given = |index: usize, cni: Option<CniOptions>| {
        stdin(&network, &network.plugins[index], Version::V1_0_0, &asked(cni), None).get("runtimeConfig").cloned()
    };
    let expected = json!({
        "bandwidth": {"ingressRate": 5, "ingressBurst": 6}, "cgroupPath": "/kubepods/a",
        "io.kubernetes.cri.pod-annotations": {"a/b": "c"},
    });
    assert_eq!(given(1, Some(options.clone())), Some(expected));
    assert_eq!(given(0, Some(options)), None, "control failed");
    assert_eq!(given(1, Some(CniOptions::default())), None);
    let argument = |name: &str, value: &str| CniArgument { name: name.into(), value: value.into() };
    assert_eq!(cni_args(&[]), "IgnoreUnknown=1");
    assert_eq!(cni_args(&[argument("B", "1"), argument("A", "")]), "IgnoreUnknown=1;B=1;A=");
}

#[test]
fn results_of_every_version_are_read() {
    let new = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
        "ips": [
            {"interface": 2, "address": "10.1.0.5/16", "gateway": "10.1.0.1"},
            {"interface": 0, "address": "10.1.0.1/16"},
            {"interface": 2, "address": "fd00::5/64"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.2"}],
        "dns": {"nameservers": ["10.1.0.1"], "domain": "a.b", "search": ["c"], "options": ["ndots:2"]},
    });
    let parsed = Addresses::parse(&new).unwrap();
    let shown = |all: &[Address]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(shown(&parsed.own), ["10.1.0.5/16", "fd00::5/64"]);
    assert_eq!(parsed.gateways, ["10.1.0.1", "10.1.0.2"].map(|ip| ip.parse::<std::net::IpAddr>().unwrap()));
    assert_eq!(parsed.dns.searches, ["a.b", "c"]);
    let old = json!({"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.1.0.6/24"}], "dns": {}});
    assert_eq!(shown(&Addresses::parse(&old).unwrap().own), ["10.1.0.6/24"]);
    assert_eq!(Addresses::parse(&json!({})).unwrap(), Addresses::default());
    let wrong = [
        json!([]),
        json!({"cniVersion": "7"}),
        json!({"ips": {}}),
        json!({"ips": [{"address": "10.0.0.1"}]}),
        json!({"ips": [{"address": "10.0.0.1/33"}]}),
        json!({"ips": [{"address": "10.0.0.1/8", "gateway": "x"}]}),
        json!({"ips": vec![json!({"address": "10.0.0.1/8"}); 65]}),
        json!({"dns": {"nameservers": ["8.8.8.8\nnameserver 9.9.9.9"]}}),
        json!({"dns": {"search": ["a b"]}}),
    ];
    for wrong in wrong {
        assert!(Addresses::parse(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_address_knows_its_network() {
    let of = |text: &str| Addresses::parse(&json!({"ips": [{"address": text}]})).unwrap().own[0];
    let has = |network: &str, ip: &str| of(network).network_has(ip.parse().unwrap());
    assert!(has("10.1.0.5/16", "10.1.255.1") && !has("10.1.0.5/16", "10.2.0.1"));
    assert!(has("10.1.0.5/32", "10.1.0.5") && !has("10.1.0.5/32", "10.1.0.4"));
    assert!(has("10.1.0.5/0", "8.8.8.8") && !has("10.1.0.5/0", "::1"));
    assert!(has("fd00::5/64", "fd00::ffff") && !has("fd00::5/64", "fd00:1::5"));
}

#[test]
fn plugin_errors_are_reported_in_one_line() {
    let reported = br#"{"cniVersion": "1.0.0", "code": 11, "msg": "no address", "details": "range\nis full"}"#;
    let failure = plugin_failure(reported, b"ignored");
    assert_eq!((failure.code, &*failure.message), (11, "no address: range is full"));
    assert_eq!(plugin_failure(b"garbage", b"panic: x\n\tat y\x1b[1m").message, "panic: x at y?[1m");
    assert_eq!(plugin_failure(b"", b"").message, "the plugin printed no error message");
    assert!(plugin_failure("é".repeat(5000).as_bytes(), "é".repeat(5000).as_bytes()).message.len() <= 1024);
}

#[test]
fn supported_plugin_versions_are_parsed() {
    let answer = json!({"cniVersion": "1.0.0", "supportedVersions": ["0.1.0", "0.4.0", "1.0.0"]});
    assert_eq!(supported_versions(&answer).unwrap(), [Version::V0_4_0, Version::V1_0_0]);
    assert!(supported_versions(&json!({"supportedVersions": 1})).is_err());
}

#[test]
fn long_container_id_is_truncated_uniquely() {
    let id: crate::ident::ContainerId = "a".repeat(128).parse().unwrap();
    let name = container_id(&id, "0123456789ab");
    assert_eq!((name.len(), name.ends_with("-0123456789ab")), (53, true));
}

#[test]
fn a_port_is_published_once() {
    let of = |host_ip: Option<&str>, host_port, protocol| {
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        let ports = vec![PublishedPort { host_ip, host_port, container_port: 1, protocol }];
        Capabilities::from_asked(&Connectivity { ports, ..Connectivity::default() })
    };
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    let both = |one: &Capabilities, another: &Capabilities| {
        assert_eq!(one.published_by_both(another), another.published_by_both(one));
        one.published_by_both(another)
    };
    assert_eq!(both(&of(None, 80, tcp), &of(None, 80, tcp)).as_deref(), Some("80/tcp"));
    assert!(both(&of(None, 80, tcp), &of(Some("10.0.0.1"), 80, tcp)).is_some());
    assert!(both(&of(Some("0.0.0.0"), 80, tcp), &of(Some("10.0.0.1"), 80, tcp)).is_some());
    assert!(both(&of(Some("10.0.0.2"), 80, tcp), &of(Some("10.0.0.1"), 80, tcp)).is_none());
    assert!(both(&of(None, 80, tcp), &of(None, 80, udp)).is_none());
    assert!(both(&of(None, 80, tcp), &of(None, 81, tcp)).is_none());
    assert!(both(&Capabilities::default(), &of(None, 81, tcp)).is_none());
}

#[test]
fn switches_are_booleans() {
    let switch = |value: Value| {
        let root = json!({"name": "x", "type": "ptp", "cniVersion": "1.1.0", "disableGC": value});
        CniNetwork::parse(root.to_string().as_bytes()).map(|network| network.disable_gc)
    };
    for (value, expected) in
        [(json!(true), true), (json!(false), false), (json!("true"), true), (json!("false"), false)]
    {
        assert_eq!(switch(value.clone()).unwrap(), expected, "{value}");
    }
    for wrong in [json!(1), json!("yes"), json!(null), json!([true])] {
        let error = switch(wrong.clone()).unwrap_err().to_string();
        assert_eq!(error, "`disableGC` is neither true nor false", "{wrong}");
    }
}

#[test]
fn gc_input_has_only_valid_attachments() {
    let network = CniNetwork::parse(LIST.as_bytes()).unwrap();
    let attachments = [("a-1", "eth0"), ("b-2", "eth0")];
    let input = gc_stdin(&network, &network.plugins[1], Version::V1_1_0, attachments.into_iter());
    let valid = json!([{"containerID": "a-1", "ifname": "eth0"}, {"containerID": "b-2", "ifname": "eth0"}]);
    let expected = json!({
        "type": "portmap", "name": "blue", "cniVersion": "1.1.0", "capabilities": {"portMappings": true},
        "cni.dev/valid-attachments": valid, "cni.dev/attachments": valid,
    });
    assert_eq!(input, expected);
    let none = gc_stdin(&network, &network.plugins[0], Version::V1_1_0, std::iter::empty());
    assert_eq!(none["cni.dev/valid-attachments"], json!([]));
}
