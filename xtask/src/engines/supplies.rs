//! Builds the programs and images of the runs in `target/engines/`: critest, crictl, Kubernetes and etcd from their Go
//! modules, and the contents of the images that are pulled. Existing files are reused.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, ensure};

use super::room::Room;
use crate::needs;
use crate::workspace::{Workspace, output, run, step};

/// Source of busybox. The busybox packages of Debian are not sufficient: their shell runs its applets without looking
/// up the path of the command, but a test of critest masks such a path.
const BUSYBOX: &str = "http://deb.debian.org/debian/pool/main/b/busybox/busybox_1.35.0.orig.tar.bz2";
const BUSYBOX_SHA256: &str = "faeeb244c35a348a334f4a59e44626ee870fb07b6884d68c10ae8bc19f83a694";
/// Script that configures and builds a static busybox, as in upstream's image. `tc` does not compile with newer kernel
/// headers.
const BUILD_BUSYBOX: &str = "set -e
make defconfig >/dev/null 2>&1
sed -i 's/^# CONFIG_STATIC is not set/CONFIG_STATIC=y/; s/^CONFIG_TC=y/# CONFIG_TC is not set/' .config
make -j\"$(nproc)\" >build.log 2>&1 || { tail -20 build.log; exit 1; }";
/// Arguments of mmdebstrap for a root file system. The packages are unpacked, not configured.
const ROOT: [&str; 5] = [
    "--quiet",
    "--variant=extract",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
];
/// Packages of the web servers' root file system.
const WEB: &str = "nginx-light,apache2-bin";
/// Packages of kube-proxy's root file system.
const PROXY: &str = "nftables";
/// Packages of agnhost's root file system: the packages of upstream's image, and getent, which is part of musl there.
const AGNHOST: &str = "bash,bind9-dnsutils,curl,iperf,iproute2,libc-bin,netcat-openbsd,socat,util-linux";

/// Version of Kubernetes, equal to the version of the module k8s.io/kubernetes in go.mod.
const KUBERNETES: &str = "v1.37.0";

pub(super) struct Supplies {
    directory: PathBuf,
}

/// Builds critest, and returns its path.
pub(super) fn critest(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let critest = directory(workspace)?.join("critest");
    step("Building critest (6 minutes without a cache)");
    let mut command = go(workspace, &["test", "-c", "-o"])?;
    run(command.arg(&critest).arg("sigs.k8s.io/cri-tools/cmd/critest"))?;
    Ok(critest)
}

/// Programs of the module `integration/engines`, and their packages.
const PROGRAMS: [(&str, &str); 7] = [
    ("crictl", "sigs.k8s.io/cri-tools/cmd/crictl"),
    ("density", "./density"),
    ("health", "./health"),
    ("images", "./images"),
    ("nonewprivs", "./nonewprivs"),
    ("pause", "./pause"),
    ("streams", "./streams"),
];

/// Builds a program from the module, from Kubernetes or from a separate module, and returns its path.
pub(crate) fn program(workspace: &Workspace, name: &str) -> anyhow::Result<PathBuf> {
    needs::require(&needs::ENGINES)?;
    if name.starts_with("kube") {
        return kubernetes(workspace, name);
    }
    if let Some((_, directory, package)) = MODULES.iter().find(|(known, ..)| *known == name) {
        return module(workspace, name, directory, package);
    }
    let known = PROGRAMS.iter().find(|(known, _)| *known == name);
    let (_, package) = known.with_context(|| format!("integration/engines has no program {name}"))?;
    let path = directory(workspace)?.join(name);
    run(go(workspace, &["build", "-o"])?.arg(&path).arg(package))?;
    Ok(path)
}

/// Builds a program of Kubernetes, and returns its path.
pub(super) fn kubernetes(workspace: &Workspace, name: &str) -> anyhow::Result<PathBuf> {
    let program = directory(workspace)?.join(name);
    step(&format!("Building {name} (the kubelet takes 8 minutes without a cache, the others 1 to 3)"));
    // Without a version, checks of the version fail.
    let version = format!("-X k8s.io/component-base/version.gitVersion={KUBERNETES}");
    let mut command = go(workspace, &["build", "-ldflags", &version, "-o"])?;
    run(command.arg(&program).arg(format!("k8s.io/kubernetes/cmd/{name}")))?;
    Ok(program)
}

/// Programs in separate modules, because they and Kubernetes require different versions of the same dependencies. Each
/// has a name, the directory of its module, and its package.
const MODULES: [(&str, &str, &str); 5] = [
    ("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    ("coredns", "dns", "."),
    ("csi-sanity", "sanity", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"),
    ("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
    ("metrics-server", "metrics", "sigs.k8s.io/metrics-server/cmd/metrics-server"),
];

/// Builds etcd, CoreDNS, metrics-server, Helm and the sanity suite of CSI.
pub(super) fn modules(workspace: &Workspace) -> anyhow::Result<()> {
    for (name, directory, package) in MODULES {
        module(workspace, name, directory, package)?;
    }
    Ok(())
}

/// Builds a program of a separate module, and returns its path.
fn module(workspace: &Workspace, name: &str, module: &str, package: &str) -> anyhow::Result<PathBuf> {
    let program = directory(workspace)?.join(name);
    step(&format!("Building {name} (1 to 4 minutes without a cache)"));
    let mut command = go(workspace, &["build", "-o"])?;
    command.arg(&program).arg(package);
    run(command.current_dir(workspace.root.join("integration/engines").join(module)))?;
    Ok(program)
}

/// Programs that the conformance cases need, with their packages.
const CONFORMANCE: [(&str, &str); 3] = [
    ("agnhost", "k8s.io/kubernetes/test/images/agnhost"),
    ("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
    ("sample-apiserver", "k8s.io/sample-apiserver"),
];

/// Builds the conformance cases in a package of `k8s.io/kubernetes/test/`, the program that runs cases in parallel
/// (`ginkgo`), and programs of the images.
pub(super) fn conformance(workspace: &Workspace, package: &str) -> anyhow::Result<()> {
    let directory = directory(workspace)?;
    let program = format!("{package}.test");
    step(&format!("Building {program}, ginkgo and agnhost (6 minutes without a cache)"));
    let (major, minor) =
        KUBERNETES.trim_start_matches('v').split_once('.').context("the version of Kubernetes contains no dot")?;
    let minor = minor.split('.').next().unwrap_or(minor);
    let flags = [("gitVersion", KUBERNETES), ("gitMajor", major), ("gitMinor", minor)]
        .map(|(name, value)| format!("-X k8s.io/component-base/version.{name}={value}"));
    let mut command = go(workspace, &["test", "-c", "-ldflags", &flags.join(" "), "-o"])?;
    run(command.arg(directory.join(program)).arg(format!("k8s.io/kubernetes/test/{package}")))?;
    for (name, package) in CONFORMANCE {
        run(go(workspace, &["build", "-o"])?.arg(directory.join(name)).arg(package))?;
    }
    Ok(())
}

impl Supplies {
    pub(super) fn prepare(workspace: &Workspace) -> anyhow::Result<Self> {
        let directory = directory(workspace)?;
        step("Building crictl, and the programs of the images");
        for (name, _) in PROGRAMS {
            program(workspace, name)?;
        }
        let supplies = Self { directory };
        supplies.busybox()?;
        supplies.web()?;
        Ok(supplies)
    }

    /// Returns the path of the test client of the streaming endpoints, which uses client-go.
    pub(super) fn streams(&self) -> PathBuf {
        self.directory.join("streams")
    }

    /// Returns the directory with crictl.
    pub(super) fn programs(&self) -> &Path {
        &self.directory
    }

    fn busybox(&self) -> anyhow::Result<()> {
        let built = self.directory.join("busybox");
        if built.exists() {
            return Ok(());
        }
        step("Building busybox from source");
        let work = tempfile::tempdir_in(&self.directory)?;
        let archive = work.path().join("busybox.tar.bz2");
        run(Command::new("curl").args(["-sSfL", "-o"]).arg(&archive).arg(BUSYBOX))?;
        let sum = output(Command::new("sha256sum").arg(&archive))?;
        ensure!(sum.starts_with(BUSYBOX_SHA256), "{BUSYBOX}: SHA-256 {sum}, expected {BUSYBOX_SHA256}");
        run(Command::new("tar").arg("-xf").arg(&archive).arg("--strip-components=1").current_dir(work.path()))?;
        run(Command::new("sh").args(["-c", BUILD_BUSYBOX]).current_dir(work.path()))?;
        fs::rename(work.path().join("busybox"), &built).context("cannot move busybox")
    }

    fn web(&self) -> anyhow::Result<()> {
        self.root_file_system("web.tar", "nginx and apache2", WEB)
    }

    fn root_file_system(&self, name: &str, with: &str, packages: &str) -> anyhow::Result<()> {
        let archive = self.directory.join(name);
        if archive.exists() {
            return Ok(());
        }
        step(&format!("Making a root file system with {with}"));
        let new = self.directory.join(format!("new.{name}"));
        let include = format!("--include={packages}");
        let mut command = Command::new("mmdebstrap");
        command.args(ROOT).arg(include).arg("bookworm").arg(&new).arg("http://deb.debian.org/debian");
        run(&mut command)?;
        fs::rename(new, archive).context("cannot move the root file system into the cache")
    }

    /// Makes the root file system of kube-proxy's image.
    pub(super) fn proxy(&self) -> anyhow::Result<()> {
        self.root_file_system("proxy.tar", "nftables", PROXY)
    }

    /// Makes the root file system of agnhost's image.
    pub(super) fn agnhost(&self) -> anyhow::Result<()> {
        self.root_file_system("agnhost.tar", "the tools of agnhost", AGNHOST)
    }

    /// Serves images in the namespaces of `room`: the images of critest, and the images in `more`, each with a flag and
    /// the name of a file.
    pub(super) fn serve(&self, room: &Room, logs: &Path, more: &[(&str, &str)]) -> anyhow::Result<Registry> {
        let mut command = room.command(self.directory.join("images"));
        let always = [
            ("-busybox", "busybox"),
            ("-web", "web.tar"),
            ("-nonewprivs", "nonewprivs"),
            ("-pause", "pause"),
            ("-health", "health"),
        ];
        for (flag, name) in always.iter().chain(more) {
            command.arg(flag).arg(self.directory.join(name));
        }
        let log = logs.join("images.log");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut server = command.spawn().context("cannot start the registry")?;
        let input = server.stdin.take();
        let mut address = String::new();
        BufReader::new(server.stdout.take().context("the child has no standard output")?).read_line(&mut address)?;
        let address = address.trim().to_owned();
        ensure!(!address.is_empty(), "cannot serve the images: {}", fs::read_to_string(&log).unwrap_or_default());
        Ok(Registry { address, _server: server, _input: input })
    }
}

/// Local registry. It serves until its standard input ends.
pub(super) struct Registry {
    pub(super) address: String,
    _server: Child,
    _input: Option<ChildStdin>,
}

fn directory(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let directory = workspace.target.join("engines");
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

/// Returns a `go` command in the module `integration/engines`, with caches in the target directory. Go skips outputs
/// that are up to date.
fn go(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<Command> {
    let directory = directory(workspace)?;
    let mut go = Command::new("go");
    go.args(arguments).current_dir(workspace.root.join("integration/engines"));
    go.env("CGO_ENABLED", "0").env("GOFLAGS", "-modcacherw -trimpath -buildvcs=false");
    go.env("GOMODCACHE", directory.join("modules")).env("GOCACHE", directory.join("cache"));
    Ok(go)
}
