//! Tests `network ls`, `network inspect` and `network check`.

use executor_proto::v1::network_check::Outcome;
use executor_proto::v1::{CheckNetworkResponse, NetworkCheck, NetworkContainer, NodeNetwork, PortMapping};

use crate::fake::Fake;
use crate::program::run;

fn with_two() -> Fake {
    let fake = Fake::start();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let port = PortMapping { host_port: 8080, container_port: 80, ..PortMapping::default() };
    let web = NetworkContainer {
        id: "web-1".into(),
        addresses: words(&["10.61.0.9/16"]),
        ports: vec![port],
        names: words(&["web-1", "db"]),
    };
    let bridge = NodeNetwork {
        name: "bridge".into(),
        driver: "bridge".into(),
        interface: "ex-bridge".into(),
        interface_exists: true,
        subnets: words(&["10.61.0.0/16", "fd65::/64"]),
        gateways: words(&["10.61.0.1", "fd65::1"]),
        mtu: 1500,
        addresses: 65_532,
        leased_addresses: 1,
        containers: vec![web],
        container_count: 1,
        warnings: words(&["net.ipv4.ip_forward is 0"]),
        ..NodeNetwork::default()
    };
    let cni = NodeNetwork {
        name: "plugged".into(),
        driver: "cni".into(),
        plugins: words(&["macvlan", "tuning"]),
        versions: words(&["0.4.0", "1.0.0"]),
        ..NodeNetwork::default()
    };
    fake.shared.state().networks = vec![bridge, cni];
    fake
}

#[test]
fn network_ls_lists_both_drivers() {
    let fake = with_two();
    let listed = run(&fake, &["network", "ls"]);
    let rows: Vec<Vec<String>> =
        listed.out().lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    assert_eq!((listed.status, listed.err().as_str()), (Some(0), ""));
    assert_eq!(rows[0], ["NAME", "DRIVER", "INTERFACE", "SUBNETS", "CONTAINERS"]);
    assert_eq!(rows[1], ["bridge", "bridge", "ex-bridge", "10.61.0.0/16,fd65::/64", "1"]);
    assert_eq!(rows[2], ["plugged", "cni", "-", "-", "0"]);
    assert_eq!(run(&fake, &["network", "list", "-q"]).out(), "bridge\nplugged\n");
    let json = run(&fake, &["network", "ls", "--json"]).json();
    assert_eq!((&json[0]["mtu"], &json[1]["mtu"]), (&1500.into(), &serde_json::Value::Null));
    assert_eq!(json[0]["containers"][0]["ports"][0]["host_port"], 8080);
    assert_eq!(json[0]["containers"][0]["names"], serde_json::json!(["web-1", "db"]));
}

#[test]
fn network_ls_reports_unreadable_files() {
    let fake = with_two();
    fake.shared.state().network_warnings = vec!["/etc/cni/net.d/a.conf: is writable by others\u{1b}".into()];
    for arguments in [&["network", "ls"][..], &["network", "ls", "-q"], &["network", "ls", "--json"]] {
        let listed = run(&fake, arguments);
        assert_eq!(listed.status, Some(0));
        assert!(
            listed.err().contains("warning: /etc/cni/net.d/a.conf: is writable by others\\u{1b}"),
            "{}",
            listed.err()
        );
    }
}

#[test]
fn network_inspect_shows_all_details() {
    let fake = with_two();
    let bridge = run(&fake, &["network", "inspect", "bridge"]);
    for part in [
        "ex-bridge (exists)",
        "10.61.0.0/16, fd65::/64",
        "10.61.0.1, fd65::1",
        "1500",
        "1 of 65532 in use",
        "net.ipv4.ip_forward is 0",
        "web-1  10.61.0.9/16  8080->80/tcp",
    ] {
        assert!(bridge.out().contains(part), "{part}: {}", bridge.out());
    }
    let both = run(&fake, &["network", "inspect", "plugged", "bridge"]).out();
    assert!(both.contains("macvlan, tuning") && both.contains("0.4.0, 1.0.0"), "{both}");
    assert!(both.contains("\n\nname ") && !both.contains("MTU           0"), "{both}");
    assert_eq!(run(&fake, &["network", "inspect", "bridge", "--json"]).json()["leased_addresses"], 1);
}

#[test]
fn network_inspect_unknown_name_fails() {
    let fake = with_two();
    let missing = run(&fake, &["network", "inspect", "nope"]);
    assert_eq!((missing.status, missing.out().as_str()), (Some(125), ""));
    assert!(
        missing.err().contains("network inspect nope") && missing.err().contains("no network nope"),
        "{}",
        missing.err()
    );
    let some = run(&fake, &["network", "inspect", "--json", "bridge", "nope"]);
    assert_eq!(some.status, Some(125));
    let json = some.json();
    assert_eq!((&json[0]["network"]["name"], &json[0]["error"]), (&"bridge".into(), &serde_json::Value::Null));
    assert_eq!((&json[1]["name"], &json[1]["network"]), (&"nope".into(), &serde_json::Value::Null));
    assert!(json[1]["error"].as_str().unwrap().contains("no network nope"), "{json}");
    let several = run(&fake, &["network", "inspect", "nope", "bridge", "neither"]);
    assert!(several.out().contains("ex-bridge") && several.err().contains("no network neither"), "{}", several.err());
}

#[test]
fn network_check_reports_broken_containers() {
    let fake = Fake::start();
    let check = |id: &str, outcome: Outcome, message: &str| NetworkCheck {
        id: id.into(),
        outcome: outcome.into(),
        message: message.into(),
    };
    let connected = vec![check("a", Outcome::Connected, ""), check("b", Outcome::Skipped, "CNI 0.3.1 has no CHECK")];
    let broken = vec![check("c", Outcome::Broken, "plugin `bridge`, CHECK: no address\u{1b}")];
    for (name, checks, unchecked) in [("fine", connected.clone(), 0), ("bad", broken, 0), ("large", connected, 7)] {
        let answer = CheckNetworkResponse { checks, unchecked };
        fake.shared.state().network_checks.insert(name.into(), answer);
    }
    let fine = run(&fake, &["network", "check", "fine"]);
    assert_eq!(fine.status, Some(0));
    let rows: Vec<Vec<String>> =
        fine.out().lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    assert_eq!(rows[0], ["CONTAINER", "NETWORK", "MESSAGE"]);
    assert_eq!(rows[1], ["a", "connected"]);
    assert_eq!(rows[2][..3], ["b", "skipped", "CNI"]);
    let bad = run(&fake, &["network", "check", "bad"]);
    assert_eq!(bad.status, Some(1));
    assert!(bad.out().contains("broken") && bad.out().contains("no address\\u{1b}"), "{}", bad.out());
    let large = run(&fake, &["network", "check", "large", "--json"]);
    assert_eq!((large.status, &large.json()["unchecked"]), (Some(1), &7.into()));
    assert_eq!(large.json()["checks"][0]["outcome"], "connected");
    let missing = run(&fake, &["network", "check", "nope"]);
    assert_eq!(missing.status, Some(125));
    assert!(missing.err().contains("network check nope"), "{}", missing.err());
}
