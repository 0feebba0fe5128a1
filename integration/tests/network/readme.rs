//! Runs the commands of README.md and of the first steps on a machine with only executord in its default configuration.
//! The test's own registry replaces docker.io: the machine's name resolution and certificates are changed accordingly.
//!
//! The machine consists of a mount namespace and a network namespace of a thread. It disappears with the thread,
//! together with the files that the examples write below /etc.

use std::fs;
use std::path::Path;
use std::process::Command;

use integration::daemon::Daemon;
use integration::guide::{Guide, GuideShell};
use integration::images::{Image, Registry};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Host name from which images of docker.io are fetched.
const DOCKER_HUB: &str = "registry-1.docker.io";

/// Moves this thread to new namespaces, which simulate the machine. Child processes inherit them.
fn machine(dir: &Path) {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).unwrap();
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("readme"), dir, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    for (name, changed) in [("etc", "/etc"), ("lib", "/var/lib")] {
        let layers = ["upper", "work"].map(|layer| dir.join(name).join(layer));
        layers.iter().for_each(|layer| fs::create_dir_all(layer).unwrap());
        let [upper, work] = layers.map(|layer| layer.display().to_string());
        let options = format!("lowerdir={changed},upperdir={upper},workdir={work}");
        mount(Some("readme"), changed, Some("overlay"), MsFlags::empty(), Some(&*options)).unwrap();
    }
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
}

/// Returns the image of busybox as on docker.io: with all applets and some users, and without mount points for the
/// kernel's file systems.
fn busybox() -> Image {
    let image = Image::new();
    let root = image.root();
    for dir in ["bin", "dev", "etc", "home", "root", "tmp", "usr/sbin", "var/www"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    let found = Command::new("sh").args(["-c", "command -v busybox"]).output().unwrap();
    fs::copy(String::from_utf8(found.stdout).unwrap().trim(), root.join("bin/busybox")).unwrap();
    let list = Command::new("busybox").arg("--list").output().unwrap();
    for applet in String::from_utf8(list.stdout).unwrap().lines().filter(|applet| *applet != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    let users = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\n";
    fs::write(root.join("etc/passwd"), users).unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\nwww-data:x:33:\n").unwrap();
    image.commit();
    image.config(&[
        "--config.cmd",
        "sh",
        "--config.env",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ]);
    image
}

#[test]
fn readme_works_as_it_says() {
    let guides = [("readme", Guide::read("README.md")), ("steps", Guide::read("docs/guides/first-steps.md"))];
    let commands: usize = guides.iter().map(|(_, guide)| guide.commands()).sum();
    assert!(commands > 20, "the guide has too few commands");
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let run = || {
        machine(dir);
        let (registry, certificate) = Registry::encrypted(DOCKER_HUB, 443);
        fs::write("/etc/hosts", format!("127.0.0.1 localhost {DOCKER_HUB}\n")).unwrap();
        fs::create_dir_all("/etc/ssl/certs").unwrap();
        fs::write("/etc/ssl/certs/ca-certificates.crt", certificate).unwrap();
        busybox().push(&registry, "library/busybox:1.36");
        let daemon = Daemon::start();
        for (name, guide) in &guides {
            let home = dir.join(name);
            fs::create_dir(&home).unwrap();
            let env = vec![("EXECUTOR_SOCKET", daemon.socket().into()), ("HOME", home.clone().into())];
            guide.run(&GuideShell { dir: home, env });
        }
    };
    // A separate thread is used, because the next test must not run on that machine.
    let ran = std::thread::scope(|scope| scope.spawn(run).join());
    ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
