//! Tests requests for host resources: images, privileges, limits, networks.

use std::collections::BTreeMap;

use super::*;
use crate::image::{ImagePolicy, ImageRules};
use crate::limits::DISK_MIN;
use crate::plan::{Connectivity, Isolation, PlannedImage, Protocol, PublishedPort, UserNamespace};

fn image() -> PlannedImage {
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
    PlannedImage {
        reference: "docker://registry/app:1".into(),
        digest: digest("a"),
        layers: vec![digest("1"), digest("2")],
        volumes: vec!["/data".into()],
        labels: BTreeMap::new(),
    }
}

fn with(change: impl Fn(&mut PlannedImage)) -> Draft<'static> {
    let mut image = image();
    change(&mut image);
    Draft { rootfs: "docker://registry/app:1", image: Some(image), ..draft() }
}

/// The launcher also enforces the policy for images: a compromised daemon cannot run a forbidden image.
#[test]
fn launcher_enforces_image_policy() {
    let allowing = |patterns: &[&str]| {
        let allow = Some(patterns.iter().map(|text| (*text).to_owned()).collect());
        let images = ImagePolicy::new(&ImageRules { allow, ..ImageRules::default() }, false).unwrap();
        Policy { images, ..Policy::default() }
    };
    let asked = with(|_| ());
    let plan = validate(&asked, &Policy::default()).unwrap();
    recheck(&plan, &allowing(&["docker.io/registry/*"])).unwrap();
    for closed in [allowing(&[]), allowing(&["docker.io/other/*"])] {
        for found in [validate(&asked, &closed).unwrap_err(), recheck(&plan, &closed).unwrap_err()] {
            assert!(found[0].field == "rootfs" && found[0].description.contains("(images.allow)"), "{found:?}");
        }
    }
    let mut forged = plan;
    let Rootfs::Image(image) = &mut forged.rootfs else { panic!() };
    image.reference = "docker.io/registry/app:1".into();
    assert!(
        recheck(&forged, &allowing(&["docker.io/registry/*"])).is_err(),
        "the text does not have the form of a reference"
    );
}

#[test]
fn image_cannot_name_other_host_directories() {
    let policy = Policy::default();
    let plan = validate(&with(|_| ()), &policy).unwrap();
    recheck(&plan, &policy).unwrap();
    let changes: [fn(&mut PlannedImage); 9] = [
        |image| image.layers.clear(),
        |image| image.layers = vec![image.layers[0].clone(); 128],
        |image| image.layers[0] = format!("sha256:{}", "../".repeat(22)),
        |image| image.layers[1] = image.layers[1].to_uppercase(),
        |image| image.digest = "sha512:aa".into(),
        |image| image.volumes[0] = "data".into(),
        |image| image.volumes[0] = "/a/../..".into(),
        |image| image.volumes[0] = "/proc/self".into(),
        |image| drop(image.labels.insert("a".into(), "x".repeat(300 << 10))),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        assert_eq!(fields(&with(change)), ["rootfs"], "change {index}");
        let mut forged = plan.clone();
        let Rootfs::Image(image) = &mut forged.rootfs else { unreachable!() };
        change(image);
        assert!(recheck(&forged, &policy).is_err(), "change {index} in a plan");
    }
    assert_eq!(fields(&Draft { rootfs: "docker://other/app:1", ..with(|_| ()) }), ["rootfs"]);
}

#[test]
fn ports_are_the_operators_to_give() {
    let port = |host_port| PublishedPort { host_ip: None, host_port, container_port: 80, protocol: Protocol::Tcp };
    let connectivity = Connectivity { ports: vec![port(80), port(8080)], ..Connectivity::default() };
    let asked = Draft { network: Some(Network::Cni), connectivity, ..draft() };
    assert_eq!(fields(&asked), ["ports[0].host_port"], "by default the ports from 1024 are allowed");
    let rules = |rules: &[&str]| Policy {
        ports_allowed: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
        ..Policy::default()
    };
    let plan = validate(&asked, &rules(&["80", "8080/tcp"])).unwrap();
    recheck(&plan, &rules(&["1-9000"])).unwrap();
    assert!(recheck(&plan, &rules(&[])).is_err(), "the launcher has its own policy");
}

#[test]
fn privileges_are_the_operators_to_give() {
    let isolation = Isolation {
        user_namespace: UserNamespace::Host,
        privileged: true,
        capabilities_added: vec!["net_raw".into(), "CAP_SYS_ADMIN".into()],
        seccomp_profile: "{}".into(),
        ..Isolation::default()
    };
    let asked = Draft { isolation, ..draft() };
    let expected = ["privileged", "user_namespace", "seccomp_profile", "seccomp_profile", "capabilities.add"];
    assert_eq!(fields(&asked), expected);
    let policy = Policy {
        allow_privileged: true,
        allow_host_userns: true,
        capabilities_allowed: vec!["ALL".into()],
        ..Policy::default()
    };
    let isolation = Isolation { seccomp_profile: String::new(), ..asked.isolation };
    let plan = validate(&Draft { isolation, ..draft() }, &policy).unwrap();
    assert_eq!(plan.isolation.capabilities_added, ["CAP_NET_RAW", "CAP_SYS_ADMIN"]);
    recheck(&plan, &policy).unwrap();
    assert!(recheck(&plan, &Policy::default()).is_err(), "the launcher has its own policy");
}

#[test]
fn names_of_capabilities_are_known_ones() {
    let isolation = |add: &[&str], drop: &[&str]| Isolation {
        capabilities_added: add.iter().map(|name| (*name).to_owned()).collect(),
        capabilities_dropped: drop.iter().map(|name| (*name).to_owned()).collect(),
        ..Isolation::default()
    };
    let plan = |isolation| validate(&Draft { isolation, ..draft() }, &Policy::default());
    let made = plan(isolation(&["kill", "CAP_KILL", "chown"], &["all"])).unwrap().isolation;
    assert_eq!(made, isolation(&["CAP_CHOWN", "CAP_KILL"], &["ALL"]));
    let asked = isolation(&["root"], &["", "CAP_", "CAP_CHOWN "]);
    let wrong = ["capabilities.add[0]", "capabilities.drop[0]", "capabilities.drop[1]", "capabilities.drop[2]"];
    assert_eq!(fields(&Draft { isolation: asked, ..draft() }), wrong);
    let many = vec!["KILL"; 42];
    assert_eq!(fields(&Draft { isolation: isolation(&many, &[]), ..draft() }), ["capabilities.add"]);
}

#[test]
fn network_options_are_validated_by_network() {
    let port =
        |host_port, container_port| PublishedPort { host_ip: None, host_port, container_port, protocol: Protocol::Tcp };
    let connectivity = Connectivity {
        network_name: "net".into(),
        ports: vec![port(1024, 8080)],
        egress: true,
        network_aliases: vec!["db".into()],
        ..Default::default()
    };
    let asked = |network| Draft { network: Some(network), connectivity: connectivity.clone(), ..draft() };
    assert_eq!(fields(&asked(Network::None)), ["network_name", "network_aliases", "ports", "egress"]);
    assert_eq!(fields(&asked(Network::Cni)), ["egress"]);
    let policy = Policy { allow_egress: true, ..Policy::default() };
    recheck(&validate(&asked(Network::Cni), &policy).unwrap(), &policy).unwrap();
    let connectivity = Connectivity {
        network_name: "../net".into(),
        ports: vec![port(8080, 8080), port(8080, 8081), port(0, 1)],
        hostname: "-a".into(),
        dns_servers: vec!["10.0.0.1".parse().unwrap(); 4],
        dns_searches: vec!["a b".into()],
        ..Default::default()
    };
    let wrong = Draft { network: Some(Network::Cni), connectivity, ..draft() };
    let expected =
        ["network_name", "ports[1].host_port", "ports[2].host_port", "hostname", "dns.servers", "dns.searches[0]"];
    assert_eq!(fields(&wrong), expected);
}

/// The host name is the container's own, even with the host's network.
#[test]
fn host_network_allows_a_hostname() {
    let connectivity = Connectivity { hostname: "node-1".into(), ..Default::default() };
    let asked = Draft { network: Some(Network::Host), connectivity, ..draft() };
    assert_eq!(fields(&asked), ["network"]);
}

#[test]
fn network_aliases_are_distinct_labels() {
    let asked = |aliases: &[&str]| {
        let network_aliases = aliases.iter().map(|&alias| alias.to_owned()).collect();
        let connectivity = Connectivity { network_aliases, ..Default::default() };
        fields(&Draft { network: Some(Network::Cni), connectivity, ..draft() })
    };
    let longest = "a".repeat(63);
    assert_eq!(asked(&["db", "DB-1", &longest]), Vec::<String>::new());
    let wrong = ["", "a.b", "-a", "a-", "a_b", "db", "Db", &"a".repeat(64)];
    let at = |index| format!("network_aliases[{index}]");
    assert_eq!(asked(&wrong), [0, 1, 2, 3, 4, 6, 7].map(at));
    let many: Vec<String> = (0..17).map(|number| format!("a{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(asked(&many[..16]), Vec::<String>::new());
    assert_eq!(asked(&many), ["network_aliases"]);
}

#[test]
fn limits_of_disk_and_weights_are_bounded() {
    let asked = Draft { disk_bytes: 1, cpu_weight: 10_001, io_weight: u32::MAX, stop_signal: 65, ..draft() };
    assert_eq!(fields(&asked), ["limits.disk_bytes", "limits.cpu_weight", "limits.io_weight", "stop_signal"]);
    let fine = Draft { disk_bytes: DISK_MIN, cpu_weight: 1, io_weight: 10_000, stop_signal: 64, ..draft() };
    let policy = Policy { default_disk_bytes: 7 << 20, ..Policy::default() };
    let plan = validate(&fine, &policy).unwrap();
    assert_eq!((plan.limits.disk_bytes, plan.stop_signal), (DISK_MIN, 64));
    let plan = validate(&draft(), &policy).unwrap();
    assert_eq!((plan.limits.disk_bytes, plan.stop_signal), (7 << 20, SIGTERM));
}

/// Without egress, no capability may bypass the filter. With egress, or without a network, such capabilities are
/// allowed.
#[test]
fn capabilities_cannot_bypass_closed_egress() {
    let policy = Policy {
        allow_egress: true,
        allow_privileged: true,
        capabilities_allowed: vec!["ALL".into()],
        ..Policy::default()
    };
    let asked = |network, egress, added: &str, privileged| {
        let isolation = Isolation { capabilities_added: vec![added.into()], privileged, ..Isolation::default() };
        let connectivity = Connectivity { egress, ..Connectivity::default() };
        let draft = Draft { network: Some(network), isolation, connectivity, ..draft() };
        let violations = validate(&draft, &policy).err().unwrap_or_default();
        violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
    };
    for added in ["net_raw", "NET_ADMIN", "CAP_SYS_ADMIN", "ALL"] {
        assert_eq!(asked(Network::Cni, false, added, false), ["capabilities.add"], "{added}");
        assert!(asked(Network::Cni, true, added, false).is_empty(), "{added}");
        assert!(asked(Network::None, false, added, false).is_empty(), "{added}");
    }
    assert!(asked(Network::Cni, false, "CAP_CHOWN", false).is_empty());
    assert_eq!(asked(Network::Cni, false, "CAP_CHOWN", true), ["privileged"]);
}

/// The socket requires the host's user namespace, and access to the socket is equivalent to root on the host.
#[test]
fn dockers_socket_is_the_operators_to_allow() {
    let isolation = |user_namespace| Isolation { docker_socket: true, user_namespace, ..Isolation::default() };
    let with = |user_namespace, policy: &Policy| {
        let asked = Draft { isolation: isolation(user_namespace), ..draft() };
        validate(&asked, policy).map(|plan| plan.isolation.docker_socket)
    };
    let closed = Policy { allow_host_userns: true, ..Policy::default() };
    let open = Policy { docker_socket: "/var/run/docker.sock".into(), ..closed.clone() };
    assert!(with(UserNamespace::Host, &open).unwrap());
    for (user_namespace, policy, words) in
        [(UserNamespace::Host, &closed, "(docker_socket)"), (UserNamespace::Own, &open, "needs `user_namespace: host`")]
    {
        let violations = with(user_namespace, policy).unwrap_err();
        assert_eq!(violations[0].field, "docker_socket");
        assert!(violations[0].description.contains(words), "{}", violations[0].description);
    }
}
