//! The container's files with names: /etc/hostname, /etc/hosts, /etc/resolv.conf.

use std::fs;
use std::os::unix::fs::symlink;

use executor_proto::v1::{Dns, Network as Kind, RunRequest};
use integration::network::{GATEWAY, Network};
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;

use crate::{on_cni, script_output};

const SHOW: &str = "cd /etc; for file in hostname hosts resolv.conf; do echo \"== $file\"; cat $file; done; busybox hostname; \
    stat -c '%a %u:%g' hosts";

fn expected_files(name: &str, hosts: &str, resolv: &str) -> String {
    let loopback = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";
    format!("== hostname\n{name}\n== hosts\n{loopback}{hosts}== resolv.conf\n{resolv}{name}\n644 0:0\n")
}

#[test]
fn container_has_hostname_hosts_and_resolvers() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_host_network = true");
    // The image has links that would lead to host files, if the host followed them.
    let outside = network.dir().join("outside");
    fs::write(&outside, "of the host").unwrap();
    symlink(&outside, rootfs.path().join("etc/resolv.conf")).unwrap();
    symlink("/nowhere", rootfs.path().join("etc/hosts")).unwrap();
    let before = rootfs.listing();
    let show = |id: &str| sh(SHOW).id(id).rootfs(&rootfs.reference());

    assert_eq!(script_output(&daemon, show("none")), expected_files("none", "127.0.1.1 none\n", ""));
    let of_network = format!("nameserver {GATEWAY}\nsearch test.example\n");
    assert_eq!(script_output(&daemon, on_cni(show("cni"))), expected_files("cni", "10.123.0.2 cni\n", &of_network));
    let asked = RunRequest {
        hostname: "web.example".into(),
        dns: Some(Dns { servers: vec!["10.9.9.9".into()], options: vec!["ndots:1".into()], ..Dns::default() }),
        ..on_cni(show("asked"))
    };
    let resolv = "nameserver 10.9.9.9\nsearch test.example\noptions ndots:1\n";
    assert_eq!(script_output(&daemon, asked), expected_files("web.example", "10.123.0.3 web.example web\n", resolv));
    let hosts = script_output(&daemon, RunRequest { network: Kind::Host.into(), ..show("hosts") });
    let of_host = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    assert!(hosts.contains(&of_host) && hosts.contains("127.0.1.1 hosts\n"), "{hosts}");

    // A container with the root file system `host` also has these files.
    let own = script_output(&daemon, sh("cat /etc/hosts; hostname; cat /etc/resolv.conf").id("of-host"));
    assert_eq!(own, "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 of-host\nof-host\n");
    assert_eq!(fs::read_to_string(&outside).unwrap(), "of the host");
    assert_eq!(rootfs.listing(), before, "the shared directory is unchanged");
}

/// If /etc/hosts of the image is a directory, it is kept, and the container has a warning.
#[test]
fn directory_at_hosts_path_is_kept() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    let daemon = network.daemon("");
    fs::create_dir(rootfs.path().join("etc/hosts")).unwrap();
    let container = daemon.api.run_to_end(sh("test -d /etc/hosts").id("dir").rootfs(&rootfs.reference()));
    assert_eq!(integration::api::exit(&container), Ok(0));
    let warnings = container.spec.unwrap().warnings;
    assert_eq!(warnings, ["rootfs: /etc/hosts of the image was kept: Is a directory"]);
}
