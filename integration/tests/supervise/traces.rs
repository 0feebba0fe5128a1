//! strace records the files that the executor's processes open while they create a container. No process writes to a
//! procfs mount that a container could have prepared, and none opens the configuration or a module of a name service,
//! which could be from an image.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use executor_core::lifecycle::State;
use executor_core::validate::{Draft, Policy, validate};
use integration::host;
use integration::launcher::{Launcher, Payload};
use integration::rootfs::Rootfs;

/// A trace of every system call that opens a file, by a process, its warm containers, and the future children of these
/// processes.
struct Trace {
    strace: Child,
    output: tempfile::NamedTempFile,
}

impl Trace {
    fn attach(pid: u32) -> Self {
        let output = tempfile::NamedTempFile::new().unwrap();
        let traced = std::iter::once(pid as i32).chain(host::descendants(pid as i32));
        let count = traced.clone().count();
        let mut strace = Command::new("strace")
            .args(["-f", "-y", "-s", "4096", "-e", "trace=open,openat,openat2,creat,execve", "-o"])
            .arg(output.path())
            .args(traced.flat_map(|pid| ["-p".to_owned(), pid.to_string()]))
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace is installed");
        let mut reported = BufReader::new(strace.stderr.take().unwrap());
        for _ in 0..count {
            let mut line = String::new();
            reported.read_line(&mut line).unwrap();
            assert!(line.contains("attached"), "{line}");
        }
        std::thread::spawn(move || std::io::copy(&mut reported, &mut std::io::sink()));
        Self { strace, output }
    }

    /// Stops the trace. Returns one line per call.
    fn lines(mut self) -> Vec<String> {
        let strace = nix::unistd::Pid::from_raw(self.strace.id() as i32);
        nix::sys::signal::kill(strace, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.strace.wait().unwrap();
        joined(&fs::read_to_string(self.output.path()).unwrap())
    }
}

/// Joins the two halves of a call if a line of another process interrupts it.
fn joined(output: &str) -> Vec<String> {
    let mut halves = HashMap::new();
    let mut lines = Vec::new();
    for line in output.lines() {
        let Some((pid, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start(); // short pids are padded
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            halves.insert(pid, begun);
        } else if let Some((_, ended)) = call.split_once(" resumed>") {
            lines.push(format!("{}{ended}", halves.remove(pid).unwrap_or_default()));
        } else {
            lines.push(call.to_owned());
        }
    }
    lines
}

/// Returns the calls that opened a file in procfs for writing.
fn written_in_proc(lines: &[String]) -> Vec<&String> {
    let writing = |line: &&String| line.contains("O_WRONLY") || line.contains("O_RDWR") || line.contains("creat(");
    // A call counts if its path or the opened file is in procfs.
    let in_proc = |line: &&String| line.contains("\"/proc") || line.contains("</proc") || line.contains("proc/self/");
    lines.iter().filter(|line| !line.contains("= -1 ")).filter(writing).filter(in_proc).collect()
}

/// Returns the calls that searched for the configuration, a module or the socket of a name service.
fn name_services(lines: &[String]) -> Vec<&String> {
    let asked = |line: &&String| ["nsswitch", "libnss", "nscd"].iter().any(|name| line.contains(name));
    // With the root file system `host`, the file is created for each container. These calls are excluded.
    lines.iter().filter(asked).filter(|line| !line.contains("O_CREAT")).collect()
}

/// No process writes to a prepared procfs mount, and none uses a name service of an image, although libcontainer looks
/// up a home directory (CVE-2019-16884, CVE-2025-52881).
#[test]
fn start_avoids_proc_writes_and_name_services() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    fs::write(rootfs.path().join("etc/nsswitch.conf"), "passwd: evil\n").unwrap();
    let trace = Trace::attach(launcher.child.id());
    let reference = rootfs.reference();
    for (id, rootfs, user) in
        [("image", reference.as_str(), "app"), ("number", &reference, "4711"), ("host", "host", "vcap")]
    {
        let files = vec![("f".to_owned(), "a", 1).into()];
        let draft = Draft { id, path: "/bin/true", memory_bytes: 64 << 20, rootfs, user, files, ..Draft::default() };
        let plan = validate(&draft, &Policy::default()).unwrap();
        let payload = Payload { files: vec![b"S"], ..Payload::default() };
        launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
    }
    let lines = trace.lines();
    let enters = |line: &&String| line.contains("/cgroup.procs\"") || line.contains("/tasks\"");
    let cgroups = lines.iter().filter(enters).filter(|line| line.contains("O_WRONLY")).count();
    let programs = lines.iter().filter(|line| line.contains("execve(\"/bin/true\"") && line.ends_with("= 0")).count();
    assert!(
        cgroups >= 3 && programs == 3,
        "control failed: the trace has only {cgroups} writes and {programs} programs"
    );
    // The only writes are id maps of a user namespace, by a process that was cloned for this purpose, and OOM scores.
    let (maps, others): (Vec<&String>, Vec<&String>) = written_in_proc(&lines)
        .into_iter()
        .partition(|line| ["/uid_map\"", "/gid_map\"", "/oom_score_adj\""].iter().any(|file| line.contains(file)));
    assert!(maps.iter().all(|line| !line.contains("/proc/self/") && !line.contains("/proc/1/")), "{maps:#?}");
    assert_eq!(others, [""; 0]);
    // Kernel settings are written through the launcher's own procfs, which is mounted nowhere. Their paths contain no
    // links.
    let settings: Vec<_> = lines.iter().filter(|line| line.contains("\"sys/net/")).collect();
    assert!(!settings.is_empty(), "control: a setting is traced");
    assert!(
        settings.iter().all(|line| line.starts_with("openat2(") && line.contains("RESOLVE_NO_SYMLINKS")),
        "{settings:#?}"
    );
    assert_eq!(name_services(&lines), [""; 0]);

    // As a control, the same search finds both kinds if such calls occur.
    let shell = "read go; echo 0 >/proc/self/oom_score_adj; cat /etc/nsswitch.conf";
    let mut control =
        Command::new("sh").args(["-c", shell]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let trace = Trace::attach(control.id());
    drop(control.stdin.take());
    control.wait().unwrap();
    let lines = trace.lines();
    assert_eq!(written_in_proc(&lines).len(), 1, "{lines:#?}");
    assert!(!Path::new("/etc/nsswitch.conf").exists() || !name_services(&lines).is_empty(), "{lines:#?}");
}
