//! Calls a CNI plugin: a program of the operator that runs as root in the host's namespaces, within limits.
//!
//! The input is a command and its configuration. The output is the plugin's JSON response, or a [`Fault`]. The plugin
//! runs with a clean environment, only the three standard descriptors, and the host's mounts. Its own cgroup makes it
//! possible to kill the plugin with all of its children. The plugin is killed if the process that waits for it exits.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use executor_core::cni::{
    Attachment, INTERFACE, Plugin, PluginFailure, Verb, Version, cni_args, plugin_failure, stdin,
};
use executor_sys::events::Events;
use executor_sys::process::{self, ChildExit, Fork, StringArray};
use executor_sys::ready::readable_by;
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::{Value, json};

use crate::errors::plain;
use crate::host::Host;
use crate::network::KILL_TIMEOUT;

/// Maximum size of a response, in bytes.
const ANSWER_MAX: usize = 1 << 20;
/// Maximum number of bytes that are kept of a plugin's standard error.
const STDERR_KEPT: usize = 16 << 10;
/// PATH of a plugin. Plugins call programs such as iptables.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Failure of a plugin call.
#[derive(Debug, thiserror::Error)]
pub(in crate::network) enum Fault {
    /// No plugin directory contains the plugin.
    #[error("no program of this name in {0}")]
    Missing(String),
    /// Users other than root can write to the plugin's file.
    #[error("{0} is writable by users other than root")]
    NotTrusted(PathBuf),
    /// The plugin was killed after the time limit.
    #[error("no response within {:.1} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The plugin was killed because it wrote too much output.
    #[error("the output has more than {ANSWER_MAX} bytes")]
    TooLarge,
    #[error("{}{}", .0.message, if .0.code == 0 { String::new() } else { format!(" (code {})", .0.code) })]
    Failed(PluginFailure),
    /// The plugin succeeded, but its response is not a JSON object.
    #[error("the output is not a JSON object: {0}")]
    InvalidOutput(String),
    /// The plugin could not be run.
    #[error("{what}: {why}", what = .0, why = plain(.1))]
    System(&'static str, io::Error),
}

/// Error code of a plugin that does not support the CNI version.
const OTHER_VERSION: u64 = 1;

impl Fault {
    /// Returns true if the plugin does not support the CNI version of the call.
    pub(super) fn is_other_version(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.code == OTHER_VERSION)
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> Fault {
    move |error| Fault::System(what, error)
}

/// A plugin call for a container.
pub(super) struct Call<'a> {
    pub(super) host: &'a Host,
    /// Cgroup for the plugins of this container.
    pub(super) cgroup: &'a Path,
    pub(super) verb: Verb,
    pub(super) attachment: &'a Attachment,
    /// `None` if the network namespace no longer exists.
    pub(super) netns: Option<&'a Path>,
    pub(super) until: Instant,
}

impl Call<'_> {
    /// Calls the plugin. Returns the result of ADD, and null for CHECK and DEL.
    pub(super) fn execute(&self, plugin: &Plugin, previous: Option<&Value>) -> Result<Value, Fault> {
        let Attachment { network, version, asked, arguments, cni_id, .. } = self.attachment;
        let config = stdin(network, plugin, *version, asked, previous);
        let environment = [
            ("CNI_CONTAINERID", cni_id.clone()),
            ("CNI_IFNAME", INTERFACE.to_owned()),
            ("CNI_NETNS", self.netns.map(|path| path.display().to_string()).unwrap_or_default()),
            ("CNI_ARGS", cni_args(arguments)),
        ];
        let answer = run(self.host, self.cgroup, plugin, self.verb, &environment, &config, self.until)?;
        match self.verb {
            Verb::Add => object(&answer),
            Verb::Del | Verb::Check | Verb::Gc | Verb::Version => Ok(Value::Null),
        }
    }
}

/// Requests the supported versions from a plugin.
pub(super) fn versions(host: &Host, cgroup: &Path, plugin: &Plugin, until: Instant) -> Result<Value, Fault> {
    let config = json!({ "cniVersion": Version::ALL[Version::ALL.len() - 1].name() });
    object(&run(host, cgroup, plugin, Verb::Version, &[], &config, until)?)
}

/// Calls GC of a plugin. The plugin removes resources that belong to none of the attachments in `config`.
pub(super) fn remove_stale(
    host: &Host,
    cgroup: &Path,
    plugin: &Plugin,
    config: &Value,
    until: Instant,
) -> Result<(), Fault> {
    run(host, cgroup, plugin, Verb::Gc, &[], config, until).map(drop)
}

fn object(answer: &[u8]) -> Result<Value, Fault> {
    match serde_json::from_slice(answer) {
        Ok(answer @ Value::Object(_)) => Ok(answer),
        Ok(_) => Err(Fault::InvalidOutput("it is another JSON type".into())),
        Err(error) => Err(Fault::InvalidOutput(error.to_string())),
    }
}

/// Finds the program of a plugin.
pub(super) fn find(dirs: &[PathBuf], kind: &str) -> Result<PathBuf, Fault> {
    for path in dirs.iter().map(|dir| dir.join(kind)) {
        let Ok(meta) = fs::metadata(&path) else { continue };
        if meta.is_file() && meta.mode() & 0o111 != 0 {
            let trusted = meta.uid() == 0 && meta.mode() & 0o022 == 0;
            return if trusted { Ok(path) } else { Err(Fault::NotTrusted(path)) };
        }
    }
    Err(Fault::Missing(joined(dirs)))
}

fn joined(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":")
}

fn run(
    host: &Host,
    cgroup: &Path,
    plugin: &Plugin,
    verb: Verb,
    environment: &[(&str, String)],
    config: &Value,
    until: Instant,
) -> Result<Vec<u8>, Fault> {
    let began = Instant::now();
    let dirs = &host.policy.cni_bin_dirs;
    let program = find(dirs, &plugin.kind)?;
    let mut all =
        vec![format!("CNI_COMMAND={}", verb.name()), format!("CNI_PATH={}", joined(dirs)), format!("PATH={PATH}")];
    all.extend(environment.iter().map(|(name, value)| format!("{name}={value}")));
    let string = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| system("cannot pass the arguments")(io::ErrorKind::InvalidInput.into()))
    };
    let path = string(program.as_os_str().as_bytes())?;
    let args = StringArray::new(vec![path.clone()]);
    let env = StringArray::new(all.iter().map(|one| string(one.as_bytes())).collect::<Result<_, _>>()?);
    let input = input(config).map_err(system("cannot create the standard input"))?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| system("cannot create a pipe")(error.into()));
    let ((stdout, out), (stderr, err)) = (pipe()?, pipe()?);
    let parent = std::process::id();
    let child = match process::fork().map_err(system("cannot fork"))? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            let prepared = || -> io::Result<()> {
                process::die_with(parent)?;
                process::forgo_oom_protection()?;
                host.hierarchies.join_memory(cgroup)?;
                process::enter_namespaces(host.mounts.as_fd(), true, false)?;
                nix::unistd::setsid()?;
                nix::unistd::dup2_stdin(&input)?;
                nix::unistd::dup2_stdout(&out)?;
                nix::unistd::dup2_stderr(&err)?;
                process::reset_signals()?;
                process::close_on_exec_from(3)
            };
            let error = prepared().map_or_else(|error| error, |()| process::execve(&path, &args, &env));
            eprintln!("{}: {}", program.display(), plain(&error));
            process::exit_now(127)
        }
    };
    drop((out, err, input));
    let collected = collect(child, stdout, stderr, until);
    if !matches!(collected, Ok((_, _, true))) {
        if let Ok(pidfd) = process::pidfd(child) {
            let _ = process::pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
        }
        let _ = host.hierarchies.kill_all(cgroup, KILL_TIMEOUT);
    }
    if !has_ended(child, Instant::now() + KILL_TIMEOUT) {
        // The plugin cannot be killed now. The plugin is reaped after its exit, at the latest when this process exits.
        return Err(Fault::TimedOut(began.elapsed()));
    }
    let ended = process::wait_for(child).map_err(system("cannot wait for the plugin"))?;
    let (answer, complaint, in_time) = collected.map_err(system("cannot read the plugin's output"))?;
    let late = (!in_time).then(|| began.elapsed());
    evaluate(ended, answer, &complaint, late)
}

/// Waits for the exit of a child. Returns false if it is still running at `until`.
fn has_ended(child: i32, until: Instant) -> bool {
    process::pidfd(child).is_ok_and(|pidfd| readable_by(&pidfd, until).unwrap_or(true))
}

/// Returns the response of a plugin that has exited. Fails if the plugin failed, wrote too much, or was killed at the
/// time limit.
fn evaluate(ended: ChildExit, answer: Vec<u8>, complaint: &[u8], late: Option<Duration>) -> Result<Vec<u8>, Fault> {
    match (ended, late) {
        _ if answer.len() > ANSWER_MAX => Err(Fault::TooLarge),
        (_, Some(after)) => Err(Fault::TimedOut(after)),
        (ChildExit::Code(0), None) => Ok(answer),
        (ChildExit::Code(_), None) => Err(Fault::Failed(plugin_failure(&answer, complaint))),
        (ChildExit::Signal(signal), None) => {
            Err(Fault::Failed(PluginFailure { code: 0, message: format!("the plugin was killed by signal {signal}") }))
        }
    }
}

/// Returns a memory file with the configuration, positioned at its start. Unlike with a pipe, a plugin that does not
/// read its input cannot block this process.
fn input(config: &Value) -> io::Result<File> {
    let mut file = File::from(memfd_create("cni", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(config)?)?;
    file.rewind()?;
    Ok(file)
}

/// Events while a plugin runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The plugin has exited.
    Ended,
    /// The plugin has written output, or closed a pipe.
    Output,
}

/// Reads output until the process exits, writes too much, or exceeds the time limit. The returned flag is false in the
/// last two cases.
fn collect(child: i32, stdout: OwnedFd, stderr: OwnedFd, until: Instant) -> io::Result<(Vec<u8>, Vec<u8>, bool)> {
    let pidfd = process::pidfd(child)?;
    let (mut answer, mut complaint) = (Vec::new(), Vec::new());
    for end in [&stdout, &stderr] {
        fcntl_setfl(end, OFlags::NONBLOCK)?;
    }
    let (mut stdout, mut stderr) = (Some(File::from(stdout)), Some(File::from(stderr)));
    loop {
        if Instant::now() >= until {
            return Ok((answer, complaint, false)); // even if the plugin is still writing
        }
        let mut events = Events::default();
        events.read(pidfd.as_fd(), Event::Ended);
        [&stdout, &stderr].into_iter().flatten().for_each(|end| events.read(end.as_fd(), Event::Output));
        events.due([until]);
        // Check for the exit before the last read, so that no output is missed. Do not wait until the pipes are closed:
        // children of the plugin may keep them open.
        let ended = events.wait()?.contains(&Event::Ended);
        drain(&mut stdout, &mut answer, ANSWER_MAX + 1)?;
        drain(&mut stderr, &mut complaint, STDERR_KEPT)?;
        if answer.len() > ANSWER_MAX {
            return Ok((answer, complaint, false));
        }
        if ended {
            return Ok((answer, complaint, true));
        }
    }
}

/// Reads available output and keeps up to `most` bytes of it. Drops a closed pipe.
fn drain(end: &mut Option<File>, kept: &mut Vec<u8>, most: usize) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    // The loop is bounded, because a process can write faster than this loop reads.
    for _ in 0..256 {
        let Some(file) = end else { return Ok(()) };
        match file.read(&mut buffer) {
            Ok(0) => *end = None,
            Ok(length) => {
                let room = most.saturating_sub(kept.len());
                kept.extend_from_slice(&buffer[..length.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn plugin_result_depends_on_exit_status() {
        let json = r#"{"code": 7, "msg": "no", "details": "range is full"}"#;
        let flood = "x".repeat(ANSWER_MAX + 1);
        let late = Some(Duration::from_secs(5));
        let cases = [
            (ChildExit::Code(0), "{}", "a warning", None, Ok("{}")),
            (ChildExit::Code(0), "", "", None, Ok("")),
            (ChildExit::Code(1), json, "ignored", None, Err("no: range is full (code 7)")),
            (ChildExit::Code(1), "no JSON", "its last words\n", None, Err("its last words")),
            (ChildExit::Code(127), "", "", None, Err("the plugin printed no error message")),
            (ChildExit::Signal(11), "{}", "", None, Err("the plugin was killed by signal 11")),
            (ChildExit::Signal(9), "{}", "", late, Err("no response within 5.0 s")),
            (ChildExit::Code(0), "{}", "", late, Err("no response within 5.0 s")),
            (ChildExit::Signal(9), &flood, "", late, Err("the output has more than 1048576 bytes")),
        ];
        for (ended, answer, complaint, late, expected) in cases {
            let result = evaluate(ended, answer.into(), complaint.as_bytes(), late).map_err(|fault| fault.to_string());
            assert_eq!(result, expected.map(|bytes| bytes.as_bytes().to_vec()).map_err(str::to_owned), "{ended:?}");
        }
    }

    #[test]
    fn plugin_answer_must_be_json_object() {
        assert_eq!(object(b"{\"a\": 1}").unwrap(), json!({"a": 1}));
        for answer in ["", "[]", "null", "{", "{} {}"] {
            let fault = object(answer.as_bytes()).unwrap_err().to_string();
            assert!(fault.starts_with("the output is not a JSON object"), "{answer}: {fault}");
        }
    }

    #[test]
    fn plugins_writable_by_others_are_refused() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dirs = [first.path().to_owned(), second.path().to_owned()];
        let find = |kind: &str| find(&dirs, kind).map_err(|fault| fault.to_string());
        let write = |dir: &Path, name: &str, mode: u32| {
            fs::write(dir.join(name), "").unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        assert!(find("bridge").unwrap_err().starts_with("no program of this name in "));
        write(first.path(), "bridge", 0o644);
        write(second.path(), "bridge", 0o777);
        assert!(
            find("bridge").unwrap_err().ends_with("is writable by users other than root"),
            "the first executable program is used"
        );
        write(first.path(), "bridge", 0o755);
        let is_root = fs::metadata(first.path()).unwrap().uid() == 0;
        assert_eq!(find("bridge").is_ok(), is_root, "its owner is root");
    }

    #[test]
    fn plugin_output_is_bounded() {
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let (mut end, mut kept) = (Some(File::from(reading)), Vec::new());
        drain(&mut end, &mut kept, 10).unwrap();
        assert!(end.is_some() && kept.is_empty(), "nothing yet");
        rustix::io::write(&writing, b"more than ten bytes").unwrap();
        drain(&mut end, &mut kept, 10).unwrap();
        assert_eq!(kept, b"more than ");
        drop(writing);
        drain(&mut end, &mut kept, 10).unwrap();
        assert!(end.is_none());
    }
}
