//! Creates the machine's root file system: a minimal Debian 12 with systemd and the cloud kernel. It is recreated only
//! when its inputs change.
//!
//! mmdebstrap verifies packages with Debian's keys. The same apt downloads the package of the kernel. Only the files of
//! this package are used, because its scripts would need an initramfs. The cloud kernel needs no initramfs for an NVMe
//! disk with ext4. The result is a disk image and a kernel. The image is never modified: changes of a run are stored in
//! a separate file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::workspace::{Workspace, output, run, step};

/// Packages that the checks need in addition to Debian's essential packages. If a check needs a program, add its
/// package here.
const PACKAGES: &[&str] = &[
    "apache2-utils",  // htpasswd, for the registry
    "apparmor",       // loads the profile of a test
    "busybox-static", // root file systems of containers
    "containernetworking-plugins",
    "dbus", // systemctl needs it to reach systemd
    "docker-registry",
    "e2fsprogs",   // file systems for disk limits
    "iproute2",    // network namespaces that simulate hosts
    "iptables",    // plugins publish ports with it
    "kmod",        // overlayfs is a module
    "libcap2-bin", // tests set file capabilities
    "openssl",     // keys and signatures of images
    "procps",      // tests read command lines with ps
    "python3",     // tests make system calls from it
    "quota",       // reports usage of projects
    "skopeo",      // copies images
    "systemd",
    "systemd-sysv",
    "uidmap",   // the kubelet asks getsubids for ids
    "umoci",    // makes images
    "xfsprogs", // a file system with project quotas, in addition to ext4
    "zstd",
];
const SUITE: &str = "bookworm";
/// Options that exclude documentation, which no check reads, and disable disk syncs.
const OPTIONS: [&str; 7] = [
    "--aptopt=Acquire::Languages \"none\"",
    "--aptopt=APT::Install-Recommends \"false\"",
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--variant=minbase",
];
/// Script that mmdebstrap runs with the directory of the root file system as `$1`. It downloads the kernel's files with
/// apt of the new system.
const KERNEL: &str = r#"set -e; cd "$1"
kernel=$(chroot . apt-cache depends --important linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
chroot . sh -c "cd /tmp && apt-get download $kernel"
# Unpack outside of the root, because the package's directory /lib would replace the link /lib.
dpkg-deb -x tmp/"$kernel"_*.deb tmp/kernel
mv tmp/kernel/boot/vmlinuz-* vmlinuz
mv tmp/kernel/lib/modules usr/lib/modules
rm -r tmp/kernel tmp/"$kernel"_*.deb
chroot . /sbin/depmod "${kernel#linux-image-}""#;
/// Size of the machine's disk, a sparse file.
const DISK: &str = "4G";
const UNIT: &str = "integration/vm/vm-test.service";

/// Files that the machine boots from.
pub(super) struct Root {
    pub(super) disk: PathBuf,
    pub(super) kernel: PathBuf,
}

/// Returns the image. Creates it if it is missing or outdated.
pub(super) fn image(workspace: &Workspace, mirror: &str, fresh: bool) -> anyhow::Result<Root> {
    let directory = workspace.target.join("vm");
    fs::create_dir_all(&directory)?;
    let root = Root { disk: directory.join("root.ext4"), kernel: directory.join("vmlinuz") };
    let unit = fs::read_to_string(workspace.root.join(UNIT)).context(UNIT)?;
    let inputs = [&PACKAGES.join(" "), SUITE, &OPTIONS.join(" "), KERNEL, DISK, mirror, &unit].join("\n");
    let stamp = directory.join("root.inputs");
    if !fresh && fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == inputs) {
        return Ok(root);
    }
    step("Making the virtual machine's root file system");
    let _ = fs::remove_file(&stamp);
    let scratch = tempfile::tempdir_in(&directory)?;
    let tree = scratch.path().join("root");
    debootstrap(&tree, mirror)?;
    fs::rename(tree.join("vmlinuz"), &root.kernel).context("cannot move the kernel")?;
    configure(&tree, &unit)?;
    let new = scratch.path().join("root.ext4");
    make_ext4(&tree, &new, DISK)?;
    fs::rename(&new, &root.disk)?;
    fs::write(stamp, inputs)?;
    Ok(root)
}

fn debootstrap(tree: &Path, mirror: &str) -> anyhow::Result<()> {
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--mode=root", "--format=directory"]).args(OPTIONS);
    command.arg(format!("--include={}", PACKAGES.join(",")));
    command.arg(format!("--customize-hook={KERNEL}")).arg(SUITE).arg(tree);
    command.arg(format!("deb {mirror}/debian {SUITE} main"));
    command.arg(format!("deb {mirror}/debian-security {SUITE}-security main"));
    run(&mut command)
}

/// Configures a tree of files as a machine.
fn configure(tree: &Path, unit: &str) -> anyhow::Result<()> {
    let etc = tree.join("etc");
    fs::write(etc.join("fstab"), "/dev/nvme0n1 / ext4 defaults 0 1\n")?;
    fs::write(etc.join("hostname"), "vm\n")?;
    fs::write(etc.join("hosts"), "127.0.0.1 localhost\n127.0.1.1 vm\n")?;
    // Set a fixed machine id: without an id, systemd treats each boot as the first boot.
    fs::write(etc.join("machine-id"), "76d1d2c0b45e4b2f9a3c0e5d8f6a7b10\n")?;
    let system = etc.join("systemd/system");
    fs::write(system.join("vm-test.service"), unit)?;
    let wanted = system.join("multi-user.target.wants");
    fs::create_dir_all(&wanted)?;
    symlink("../vm-test.service", wanted.join("vm-test.service"))?;
    // Disable logins, timers and registries: checks start their own registries.
    for masked in [
        "getty.target",
        "apt-daily.timer",
        "apt-daily-upgrade.timer",
        "dpkg-db-backup.timer",
        "e2scrub_all.timer",
        "xfs_scrub_all.timer",
        "docker-registry.service",
    ] {
        let _ = fs::remove_file(system.join(masked));
        symlink("/dev/null", system.join(masked))?;
    }
    Ok(())
}

/// Creates a disk image with the files of a directory, without mounting it.
pub(super) fn make_ext4(tree: &Path, image: &Path, size: &str) -> anyhow::Result<()> {
    let _ = fs::remove_file(image);
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-m", "0", "-E", "root_owner=0:0", "-d"]);
    // Despite -q, mke2fs prints messages to standard output, which may be reserved for figures.
    output(command.arg(tree).arg(image).arg(size)).map(drop)
}
