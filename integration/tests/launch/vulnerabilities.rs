//! Known vulnerabilities of other runtimes, tried on this runtime as closely as a caller or a hostile root file system
//! can. The control of each test shows that the effect would be detected. docs/security-claims.md describes each
//! vulnerability. Three vulnerabilities are also tested elsewhere: CVE-2019-5736 and CVE-2024-21626 in isolation.rs and
//! privilege.rs, CVE-2022-29162 in container.rs.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::Command;

use executor_core::lifecycle::State;
use executor_core::plan::MASKED;
use executor_core::plan::Plan;
use executor_core::validate::{Draft, Policy, validate};
use integration::footprint;
use integration::launcher::{Launcher, Payload};
use integration::race::Exchange;
use integration::rootfs::Rootfs;

fn plan(id: &str, draft: Draft<'_>) -> Plan {
    let path = if draft.path.is_empty() { "/bin/sh" } else { draft.path };
    validate(&Draft { id, path, memory_bytes: 64 << 20, ..draft }, &Policy::default()).unwrap()
}

/// Runs a script to its exit and returns its output.
fn printed(launcher: &Launcher, plan: &Plan, script: &str) -> String {
    let payload = Payload { args: vec![b"-c", script.as_bytes()], ..Payload::default() };
    launcher.launch(plan, &payload).unwrap().reach(State::Completed).unwrap();
    launcher.log(plan.id.as_str())
}

/// A host directory that is the target of links in a root file system. No container may modify it.
struct Victim {
    dir: tempfile::TempDir,
}

impl Victim {
    const MARK: &str = "mark-of-the-host";

    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["null", "console", "ptmx", "kcore", "key", Self::MARK] {
            fs::write(dir.path().join(name), "precious").unwrap();
        }
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns true if nothing in the directory has changed.
    fn is_untouched(&self) -> bool {
        let mut count = 0;
        let same = fs::read_dir(self.path()).unwrap().flatten().all(|entry| {
            count += 1;
            fs::read_to_string(entry.path()).is_ok_and(|content| content == "precious")
        });
        same && count == 6
            && !fs::read_to_string("/proc/self/mountinfo").unwrap().contains(self.path().to_str().unwrap())
    }
}

/// Masked paths are covered by the real null device (CVE-2025-31133). The vulnerable runtime bind mounts the image's
/// `/dev/null` over masked paths; if that is a link, the link's target is mounted there instead, writable. The executor
/// never uses `/dev` of the image, and checks the null device first.
#[test]
fn masked_paths_use_real_null_device() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let target = "/proc/sys/kernel/core_pattern";
    symlink(target, rootfs.path().join("dev/null")).unwrap();
    let before = fs::read(target).unwrap();
    assert_eq!(fs::read(rootfs.path().join("dev/null")).unwrap(), before, "control: the link leads there");
    let is_file = |path: &&str| fs::metadata(path).is_ok_and(|meta| !meta.is_dir());
    let files: Vec<&str> = MASKED.into_iter().filter(is_file).collect();
    assert!(!files.is_empty(), "control: there is something to mask");
    let script = format!(
        "for path in /dev/null {}; do stat -c '%F %t:%T' $path; echo '|/srv/evil' >$path; cat $path; done; cat {target}",
        files.join(" ")
    );
    let reference = rootfs.reference();
    let log = printed(&launcher, &plan("null", Draft { rootfs: &reference, ..Draft::default() }), &script);
    assert_eq!(log.matches("character special file 1:3").count(), files.len() + 1, "{files:?}: {log}");
    assert!(!log.contains("evil"), "nothing that was written is read back: {log}");
    assert!(log.contains(String::from_utf8_lossy(&before).trim()), "control failed: {target} is not readable: {log}");
    assert_eq!(fs::read(target).unwrap(), before);
}

/// No terminal is bound to `/dev/console` (CVE-2025-52565). If `/dev/pts/N` or `/dev/console` of an image is a link,
/// the vulnerable runtime binds the link's target there, before paths are masked. The executor binds nothing there, and
/// the container has its own terminals.
#[test]
fn no_console_is_bound() {
    let (launcher, rootfs, victim) = (Launcher::start(&[]), Rootfs::busybox(), Victim::new());
    for name in ["dev/console", "dev/tty", "dev/ptmx"] {
        symlink(victim.path().join("console"), rootfs.path().join(name)).unwrap();
    }
    fs::create_dir(rootfs.path().join("dev/pts")).unwrap();
    for number in 0..8 {
        symlink("/proc/sysrq-trigger", rootfs.path().join(format!("dev/pts/{number}"))).unwrap();
    }
    let reference = rootfs.reference();
    let script = "ls -l /dev/console /dev/pts; grep ' /dev/' /proc/self/mountinfo; echo evil >/dev/console; echo evil >/dev/ptmx; ls /dev";
    let log = printed(&launcher, &plan("console", Draft { rootfs: &reference, ..Draft::default() }), script);
    assert!(log.contains("/dev/console: No such file"), "{log}");
    assert!(log.contains(" /dev/pts ") && log.contains("- devpts "), "control: mounts below /dev are listed: {log}");
    assert!(!log.contains(" /dev/console ") && !log.contains("sysrq"), "{log}");
    assert!(!log.contains("ptmx -> ") && victim.is_untouched(), "{log}");
}

/// Nothing is written to a `/proc` of the image (CVE-2019-16884, CVE-2019-19921, CVE-2025-52881). In the vulnerable
/// runtime a write to `/proc/self/attr/exec` or `/proc/sys` goes to a `/proc` of the image or of a volume. The write
/// then has no effect, or is redirected to `/proc/sysrq-trigger`. The executor mounts a new proc over the `/proc` of
/// the image, refuses volumes there, and writes nothing through it (see `traces.rs`).
#[test]
fn proc_of_image_is_never_written() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let faked =
        ["self/attr/exec", "self/attr/apparmor/exec", "self/oom_score_adj", "sys/kernel/core_pattern", "mounts"];
    for name in faked {
        let path = rootfs.path().join("proc").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "faked").unwrap();
    }
    symlink("/proc/sysrq-trigger", rootfs.path().join("proc/self/setgroups")).unwrap();
    let before = rootfs.listing();
    let reference = rootfs.reference();
    let files = vec![("f".to_owned(), "a", 1).into()];
    let script = "stat -f -c 'type %T' /proc; cat /proc/self/oom_score_adj /proc/mounts; grep -c . /proc/1/status";
    let plan = plan("proc", Draft { rootfs: &reference, files, ..Draft::default() });
    let payload = Payload { args: vec![b"-c", script.as_bytes()], files: vec![b"S"], ..Payload::default() };
    launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
    let log = launcher.log("proc");
    assert!(log.contains("type proc") && log.contains("proc /proc proc ") && !log.contains("faked"), "{log}");
    assert_eq!(rootfs.listing(), before);
    for name in faked {
        assert_eq!(fs::read_to_string(rootfs.path().join("proc").join(name)).unwrap(), "faked", "{name}");
    }
    fs::write(rootfs.path().join("proc/self/attr/exec"), "profile").unwrap();
    assert_ne!(rootfs.listing(), before, "control: a write there would be seen");
    // A volume on such a path is refused in every spelling, even if a compromised daemon requests it.
    for path in ["/proc/self/attr/exec", "/proc", "/proc/sys/kernel/core_pattern", "/sys/fs/x", "/dev/null"] {
        let file = vec![("f".to_owned(), path, 1).into()];
        let asked = Draft { id: "x", path: "/x", files: file, ..Draft::default() };
        assert!(validate(&asked, &Policy::default()).is_err(), "{path}");
        for written in [path, path.trim_start_matches('/')] {
            let mut forged = plan.clone();
            forged.id = "forged".parse().unwrap();
            forged.files[0].path = written.into();
            let refused = launcher.launch(&forged, &payload).unwrap().reach(State::Running).unwrap_err();
            assert!(refused.message.contains("is under") || refused.message.contains("not in the form"), "{refused:?}");
        }
    }
}

/// If `/proc`, `/sys` or `/dev` of an image is a link, the image is refused, regardless of the link's target
/// (CVE-2025-54867, CVE-2026-41579). The vulnerable runtimes follow the link while the host's tree is still visible:
/// they mount file systems and create devices at the link's target.
#[test]
fn linked_kernel_directories_are_refused() {
    let (launcher, victim) = (Launcher::start(&[]), Victim::new());
    let before = footprint::inventory_of(&launcher.run_dir()).mounts;
    let outside = victim.path().to_str().unwrap();
    let upwards = format!("{}{outside}", "../".repeat(20));
    for name in ["dev", "proc", "sys"] {
        for target in [outside, &upwards, "/", "/proc/self/root", "/proc/self/cwd", "srv", "/nowhere", name] {
            let rootfs = Rootfs::busybox();
            rootfs.replace_by_link(name, target);
            let reference = rootfs.reference();
            let plan = plan("link", Draft { rootfs: &reference, ..Draft::default() });
            let refused = launcher.launch(&plan, &Payload::default()).unwrap().reach(State::Running).unwrap_err();
            assert!(refused.message.contains(&format!("/{name} is a symbolic link")), "{target}: {refused:?}");
            assert_eq!(rootfs.listing().len(), Rootfs::busybox().listing().len(), "{name} -> {target}");
        }
        let rootfs = Rootfs::busybox();
        fs::remove_dir(rootfs.path().join(name)).unwrap();
        let reference = rootfs.reference();
        let log = printed(
            &launcher,
            &plan(&format!("without-{name}"), Draft { rootfs: &reference, ..Draft::default() }),
            &format!("ls /{name} | grep -c ."),
        );
        assert!(!log.contains("F 0\n"), "control: without the link the same image runs: {log}");
    }
    assert!(victim.is_untouched());
    assert_eq!(footprint::inventory_of(&launcher.run_dir()).mounts, before);
}

/// A root file system that changes during the start leads to no host path (CVE-2021-30465: a link replaces a mount's
/// target between check and mount). In this test a writer continuously swaps `/dev`, `/proc`, `/sys` and the parent of
/// the secret files with links to the host, while containers are started. Each start is refused, or mounts everything
/// at the right path.
#[test]
fn changing_rootfs_does_not_lead_to_host() {
    const CONTAINERS: usize = 200;
    let (launcher, rootfs, victim) = (Launcher::start(&[]), Rootfs::busybox(), Victim::new());
    let before = footprint::inventory_of(&launcher.run_dir()).mounts;
    let names = ["dev", "proc", "sys", "srv"];
    for name in names {
        symlink(victim.path(), rootfs.path().join(format!("{name}-link"))).unwrap();
    }
    let pairs = names.map(|name| (rootfs.path().join(name), rootfs.path().join(format!("{name}-link"))));
    let race = Exchange::start(pairs.to_vec());
    let reference = rootfs.reference();
    let script = "[ -c /dev/null ] && [ -e /proc/1/status ] && [ -d /sys/kernel ] && cat /srv/app/key && echo in-place; ls -R /dev /srv";
    let (mut completed, mut refused) = (0, 0);
    for number in 0..CONTAINERS {
        let id = format!("race{number}");
        let files = vec![("f".to_owned(), "/srv/app/key", 6).into()];
        let plan = plan(&id, Draft { rootfs: &reference, files, ..Draft::default() });
        let payload = Payload { args: vec![b"-c", script.as_bytes()], files: vec![b"s3cr3t"], ..Payload::default() };
        match launcher.launch(&plan, &payload).unwrap().reach(State::Completed) {
            Err(_) => refused += 1,
            Ok(()) => {
                let log = launcher.log(&id);
                assert!(log.contains("in-place") && !log.contains(Victim::MARK), "{log}");
                completed += 1;
            }
        }
        assert!(victim.is_untouched(), "after {id}");
    }
    assert!(completed > 0 && refused > 0, "too few outcomes of the race: {completed} completed, {refused} refused");
    // As a control, a write through the path without a check reaches a file outside of the root.
    let probe = rootfs.path().join("dev/probe");
    integration::wait::until("control: a plain write follows the link once", || {
        let _ = fs::write(&probe, "x");
        victim.path().join("probe").exists().then_some(())
    });
    assert!(!victim.is_untouched(), "control failed: the change is not detected");
    let exchanged = race.stop();
    assert!(exchanged > CONTAINERS as u64, "{exchanged} exchanges");
    assert_eq!(footprint::inventory_of(&launcher.run_dir()).mounts, before);
}

/// If a link to a directory outside of `rootfs_dirs` replaces a `dir:` root between check and mount, the start is
/// refused, or the container has the right root.
#[test]
fn exchanged_rootfs_directory_is_refused_or_correct() {
    const CONTAINERS: usize = 100;
    let (allowed, image, outside) = (tempfile::tempdir().unwrap(), Rootfs::busybox(), Rootfs::busybox());
    fs::write(outside.path().join("which"), Victim::MARK).unwrap();
    fs::write(image.path().join("which"), "the-image").unwrap();
    let dir = allowed.path().join("image");
    fs::rename(image.path(), &dir).unwrap();
    symlink(outside.path(), allowed.path().join("link")).unwrap();
    let config = allowed.path().join("executor.toml");
    fs::write(&config, format!("[policy]\nrootfs_dirs = [{:?}]\n", allowed.path())).unwrap();
    let launcher = Launcher::start(&["--config", config.to_str().unwrap()]);
    let race = Exchange::start(vec![(dir.clone(), allowed.path().join("link"))]);
    let reference = format!("dir:{}", dir.display());
    let (mut completed, mut refused) = (0, 0);
    for number in 0..CONTAINERS {
        let plan = plan(&format!("allowed{number}"), Draft { rootfs: &reference, ..Draft::default() });
        let payload = Payload { args: vec![b"-c", b"cat /which"], ..Payload::default() };
        match launcher.launch(&plan, &payload).unwrap().reach(State::Completed) {
            Err(_) => refused += 1,
            Ok(()) => {
                let log = launcher.log(plan.id.as_str());
                assert!(log.contains("the-image") && !log.contains(Victim::MARK), "{log}");
                completed += 1;
            }
        }
    }
    assert!(completed > 0 && refused > 0, "too few outcomes of the race: {completed} completed, {refused} refused");
    integration::wait::until("control: a lookup by path once leads outside", || {
        (fs::read_to_string(dir.join("which")).ok()? == Victim::MARK).then_some(())
    });
    race.stop();
    // The image was moved out of its temporary directory, so the test removes it.
    let real = [dir, allowed.path().join("link")].into_iter().find(|path| !path.is_symlink()).unwrap();
    fs::rename(real, image.path()).unwrap();
}

/// A program file with permitted, inheritable and effective capabilities gains no capabilities (CVE-2022-29162: a
/// container's processes had inheritable capabilities). Containers of the executor have no inheritable capabilities,
/// see container.rs.
#[test]
fn capabilities_on_a_file_give_nothing() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let program = rootfs.path().join("srv/grep"); // busybox selects its applet by the program's name
    fs::copy(rootfs.path().join("bin/busybox"), &program).unwrap();
    let set = Command::new("setcap").arg("cap_chown,cap_sys_chroot,cap_net_raw=eip").arg(&program).status().unwrap();
    assert!(set.success(), "libcap2-bin is installed");
    let look = ["Cap", "/proc/self/status"];
    let all = |status: &str, set: &str| {
        let line = status.lines().find(|line| line.contains(set)).unwrap_or_else(|| panic!("{status}"));
        u64::from_str_radix(line.rsplit('\t').next().unwrap(), 16).unwrap()
    };
    let mut on_host = Command::new("setpriv");
    on_host.args(["--reuid", "1234", "--regid", "1234", "--clear-groups"]).arg(&program).args(look);
    let on_host = String::from_utf8(on_host.output().unwrap().stdout).unwrap();
    assert_ne!(all(&on_host, "CapEff"), 0, "control: on the host the same user gains them: {on_host}");
    let reference = rootfs.reference();
    for (id, user, most) in [("caps-app", "app", 0), ("caps-root", "root", 0x4fb)] {
        let plan = plan(id, Draft { rootfs: &reference, path: "/srv/grep", user, ..Draft::default() });
        let payload = Payload { args: look.map(str::as_bytes).to_vec(), ..Payload::default() };
        launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
        let log = launcher.log(id);
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(all(&log, set), 0, "{user}: {log}");
        }
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(all(&log, set) & !most, 0, "{user}: {log}");
        }
    }
}

/// An image whose program is the runtime itself, through `/proc/self/exe`, cannot change the runtime (CVE-2019-5736).
/// The program is the sealed copy in memory, which is unchanged afterwards. isolation.rs tests that this copy cannot be
/// written.
#[test]
fn image_running_runtime_program_cannot_change_it() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let exe = format!("/proc/{}/exe", launcher.child.id());
    let before = fs::read(&exe).unwrap();
    symlink("/proc/self/exe", rootfs.path().join("bin/itself")).unwrap();
    let reference = rootfs.reference();
    // A dynamically linked build needs the host's libraries. The root `host` provides them.
    for (id, path, rootfs) in [("image", "/bin/itself", reference.as_str()), ("path", "/proc/self/exe", "host")] {
        let plan = plan(id, Draft { rootfs, path, ..Draft::default() });
        let payload = Payload { args: vec![b"--help"], ..Payload::default() };
        launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
        let log = launcher.log(id);
        let ours = log.contains("executor's privilege") || log.contains("exec /bin/itself: No such file");
        assert!(ours, "control: the executed program is that of init, if it can run: {log}");
    }
    assert!(fs::read(&exe).unwrap() == before, "the program of the launcher has changed");
    let device = fs::metadata("/dev/null").unwrap().file_type();
    assert!(device.is_char_device(), "/dev/null of the host is still a device");
}
