//! Lists the requirements of the commands, except Rust. Each entry has a reason, a check, and the Debian package that
//! provides the requirement.
//!
//! If xtask runs as root and apt-get exists, missing packages are installed. Otherwise the error lists them.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::bail;

use crate::workspace::{in_path, is_root, step};

/// A required package.
pub(crate) struct Need {
    package: &'static str,
    reason: &'static str,
    sign: Sign,
}

/// Sign that a [`Need`] is met.
enum Sign {
    Program(&'static str),
    File(&'static str),
    /// `python3` can import these modules.
    Python(&'static str),
}

/// Needed to link Rust programs. The launcher is linked statically.
pub(crate) const BUILD: [Need; 2] = [
    Need { package: "gcc", reason: "links Rust programs", sign: Sign::Program("cc") },
    Need {
        package: "libc6-dev",
        reason: "its libc.a makes the launcher static",
        sign: Sign::File(if cfg!(target_arch = "aarch64") {
            "/usr/lib/aarch64-linux-gnu/libc.a"
        } else {
            "/usr/lib/x86_64-linux-gnu/libc.a"
        }),
    },
];

const UMOCI: Need =
    Need { package: "umoci", reason: "builds the images that tests pull and run", sign: Sign::Program("umoci") };
const SKOPEO: Need = Need { package: "skopeo", reason: "pushes and archives images", sign: Sign::Program("skopeo") };
const GO: Need = Need { package: "golang", reason: "the gRPC client in Go, 1.25 or later", sign: Sign::Program("go") };
const MMDEBSTRAP: Need =
    Need { package: "mmdebstrap", reason: "makes Debian root file systems", sign: Sign::Program("mmdebstrap") };
const KEYRING: Need = Need {
    package: "debian-archive-keyring",
    reason: "verifies Debian's packages",
    sign: Sign::File("/usr/share/keyrings/debian-archive-keyring.gpg"),
};
const CURL: Need = Need { package: "curl", reason: "fetches files and calls ports", sign: Sign::Program("curl") };
const REGISTRY: Need =
    Need { package: "docker-registry", reason: "serves images", sign: Sign::Program("docker-registry") };

const BUSYBOX: Need = Need {
    package: "busybox-static",
    reason: "the programs of the root file systems that tests make",
    sign: Sign::Program("busybox"),
};
const IPROUTE: Need =
    Need { package: "iproute2", reason: "network namespaces that simulate hosts", sign: Sign::Program("ip") };
const IPTABLES: Need =
    Need { package: "iptables", reason: "used by CNI plugins to publish ports", sign: Sign::Program("iptables") };
const NFTABLES: Need =
    Need { package: "nftables", reason: "used by tests to print and delete rules", sign: Sign::Program("nft") };
const PLUGINS: Need = Need {
    package: "containernetworking-plugins",
    reason: "the plugins of CNI that networks are tested with",
    sign: Sign::File("/usr/lib/cni/bridge"),
};

/// Needed by every `cargo xtask test`, even without root.
pub(crate) const TEST: [Need; 2] = [
    Need { package: "zstd", reason: "compresses layers of images", sign: Sign::Program("zstd") },
    Need { package: "perl-base", reason: "runs a process that forks and exits", sign: Sign::File("/usr/bin/perl") },
];

/// Needed by the tests that require root.
pub(crate) const ROOT_TEST: &[Need] = &[
    BUSYBOX,
    Need { package: "python3", reason: "the gRPC client in another language", sign: Sign::Program("python3") },
    Need {
        package: "python3-venv",
        reason: "a virtual environment for grpcio",
        sign: Sign::Python("import venv, ensurepip"),
    },
    GO,
    Need { package: "nodejs", reason: "service binding clients in JavaScript", sign: Sign::Program("node") },
    Need { package: "npm", reason: "installs the JavaScript clients", sign: Sign::Program("npm") },
    IPROUTE,
    IPTABLES,
    NFTABLES,
    PLUGINS,
    CURL,
    Need { package: "openssl", reason: "signs an image as cosign does", sign: Sign::Program("openssl") },
    Need {
        package: "strace",
        reason: "shows which files the executor's processes open",
        sign: Sign::Program("strace"),
    },
    Need { package: "libcap2-bin", reason: "sets file capabilities", sign: Sign::Program("setcap") },
    MMDEBSTRAP,
    KEYRING,
    UMOCI,
    SKOPEO,
    REGISTRY,
    Need {
        package: "apache2-utils",
        reason: "makes the password file of the registry",
        sign: Sign::Program("htpasswd"),
    },
    Need { package: "systemd", reason: "systemd-analyze checks the units", sign: Sign::Program("systemd-analyze") },
    Need { package: "e2fsprogs", reason: "makes the file systems of disk limits", sign: Sign::Program("mke2fs") },
    Need { package: "rsyslog", reason: "receives logs, and checks their format", sign: Sign::Program("rsyslogd") },
    Need {
        package: "rsyslog-gnutls",
        reason: "TLS for rsyslog",
        sign: Sign::File(if cfg!(target_arch = "aarch64") {
            "/usr/lib/aarch64-linux-gnu/rsyslog/lmnsd_gtls.so"
        } else {
            "/usr/lib/x86_64-linux-gnu/rsyslog/lmnsd_gtls.so"
        }),
    },
    Need {
        package: "redis-tools",
        reason: "provides the database in which OpenBao creates users",
        sign: Sign::Program("redis-check-rdb"),
    },
    Need { package: "prometheus", reason: "scrapes metrics, and checks them", sign: Sign::Program("promtool") },
];

/// Needed by `cargo xtask deb`.
pub(crate) const DEB: [Need; 2] = [
    Need { package: "dpkg", reason: "makes the package", sign: Sign::Program("dpkg-deb") },
    Need { package: "gzip", reason: "compresses manual pages", sign: Sign::Program("gzip") },
];

/// Needed by `cargo xtask deb --lintian`.
pub(crate) const LINTIAN: [Need; 1] =
    [Need { package: "lintian", reason: "checks the package", sign: Sign::Program("lintian") }];

/// Needed by `cargo xtask vm-test`.
pub(crate) const VM: [Need; 5] = [
    MMDEBSTRAP,
    KEYRING,
    Need { package: "e2fsprogs", reason: "makes the disks of the virtual machine", sign: Sign::Program("mke2fs") },
    Need { package: "qemu-system-x86", reason: "runs the virtual machine", sign: Sign::Program("qemu-system-x86_64") },
    Need { package: "qemu-utils", reason: "makes the disk whose power is cut", sign: Sign::Program("qemu-img") },
];

/// Needed by `cargo xtask engines-test`, `kubelet-test` and all commands that start a cluster.
pub(crate) const ENGINES: [Need; 1] =
    [Need { package: "golang", reason: "builds critest and the kubelet, 1.21 or later", sign: Sign::Program("go") }];

/// Needed by `cargo xtask kubelet-test` and all commands that start a cluster.
pub(crate) const KUBELET: [Need; 11] = [
    Need { package: "make", reason: "builds busybox", sign: Sign::Program("make") },
    Need { package: "gcc", reason: "builds busybox", sign: Sign::Program("cc") },
    Need { package: "bzip2", reason: "unpacks the source of busybox", sign: Sign::Program("bzip2") },
    Need { package: "uidmap", reason: "the kubelet asks getsubids for ids", sign: Sign::Program("getsubids") },
    Need { package: "e2fsprogs", reason: "makes the disk of the node", sign: Sign::Program("mke2fs") },
    CURL,
    MMDEBSTRAP,
    KEYRING,
    IPROUTE,
    IPTABLES,
    PLUGINS,
];

/// Needed by all commands that start a cluster, in addition to [`KUBELET`].
pub(crate) const CLUSTER: [Need; 1] =
    [Need { package: "openssl", reason: "makes the certificates of the cluster", sign: Sign::Program("openssl") }];

/// Needed by `cargo xtask engines-test` to run critest, and by clusters with containerd.
pub(crate) const ENGINES_RUN: [Need; 11] = [
    Need { package: "containerd", reason: "the runtime for comparison", sign: Sign::Program("containerd") },
    Need { package: "runc", reason: "starts containerd's containers", sign: Sign::Program("runc") },
    Need { package: "make", reason: "builds busybox", sign: Sign::Program("make") },
    Need { package: "gcc", reason: "builds busybox", sign: Sign::Program("cc") },
    Need { package: "bzip2", reason: "unpacks the source of busybox", sign: Sign::Program("bzip2") },
    CURL,
    MMDEBSTRAP,
    KEYRING,
    IPROUTE,
    IPTABLES,
    PLUGINS,
];

/// Needed by `cargo xtask sanitize`, in addition to [`BUILD`]. The sanitizer's runtime is part of gcc.
pub(crate) const SANITIZE: [Need; 1] = [Need {
    package: "g++",
    reason: "the sanitizer's runtime is linked with C++'s library",
    sign: Sign::Program("c++"),
}];

/// Needed by `cargo xtask fuzz`.
pub(crate) const FUZZ: [Need; 1] =
    [Need { package: "g++", reason: "the fuzzing engine is C++, compiled from source", sign: Sign::Program("c++") }];

/// Programs that `cargo xtask bench` compares with the executor. If they are missing, the command continues with a
/// message.
pub(crate) const BENCH: [Need; 3] = [
    Need { package: "bubblewrap", reason: "the sandbox to be compared with", sign: Sign::Program("bwrap") },
    Need { package: "crun", reason: "the runtime to be compared with", sign: Sign::Program("crun") },
    Need { package: "runc", reason: "another runtime to be compared with", sign: Sign::Program("runc") },
];

/// Needed by `cargo xtask bench` to measure starts from images.
pub(crate) const BENCH_IMAGES: [Need; 3] = [UMOCI, SKOPEO, REGISTRY];

/// Needed by `cargo xtask bench` for containers with a network. If they are missing, the command continues with a
/// message.
pub(crate) const BENCH_NETWORK: [Need; 4] = [BUSYBOX, IPROUTE, IPTABLES, PLUGINS];

/// Needed by `cargo xtask crash` for its containers' root file system.
pub(crate) const CRASH: [Need; 4] = [BUSYBOX, IPROUTE, IPTABLES, PLUGINS];

/// Needed by `cargo xtask soak` for its image.
pub(crate) const SOAK: [Need; 2] = [BUSYBOX, UMOCI];

impl Need {
    fn met(&self) -> bool {
        match self.sign {
            Sign::Program(name) => in_path(name),
            Sign::File(path) => Path::new(path).exists(),
            Sign::Python(code) => Command::new("python3")
                .args(["-c", code])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success()),
        }
    }
}

/// Installs missing packages. The error lists the packages that could not be installed, with their reasons.
pub(crate) fn require(needs: &[Need]) -> anyhow::Result<()> {
    let missing = install_missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = missing.iter().map(|need| format!("  {:<14} {}", need.package, need.reason)).collect();
    let how = if is_root() { "apt-get could not install them" } else { "install them, or run as root" };
    bail!("these Debian packages are missing ({how}):\n{}", list.join("\n"));
}

/// Installs missing packages if possible, prints the packages that are still missing, and continues.
pub(crate) fn prefer(needs: &[Need]) {
    for need in install_missing(needs) {
        eprintln!("  {} is not available ({}): continuing without it", need.package, need.reason);
    }
}

fn install_missing(needs: &[Need]) -> Vec<&Need> {
    let missing: Vec<_> = needs.iter().filter(|need| !need.met()).collect();
    if missing.is_empty() || !is_root() || !in_path("apt-get") {
        return missing;
    }
    let packages: Vec<_> = missing.iter().map(|need| need.package).collect();
    step(&format!("Installing {}", packages.join(", ")));
    // The command fails if a single package is unknown or the package list is outdated.
    if !apt_get("install", &packages) && apt_get("update", &[]) && !apt_get("install", &packages) {
        for package in packages {
            apt_get("install", &[package]);
        }
    }
    missing.into_iter().filter(|need| !need.met()).collect()
}

fn apt_get(verb: &str, packages: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.args([verb, "-y", "-qq"]).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command.stdout(Stdio::null());
    if verb == "install" {
        command.arg("--no-install-recommends").args(packages);
    }
    command.status().is_ok_and(|status| status.success())
}
