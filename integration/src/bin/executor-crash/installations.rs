//! Kills `agent-cli bundle` at each of its calls that changes something. The next command must finish or undo the work.
//!
//! A cycle is one command on an installation in the command's initial state: no installation for an install, one
//! revision for an upgrade and an uninstallation, two revisions for a rollback. After the kill the same command is run
//! again. Then one revision must be current, and only its containers may exist. After an uninstallation no revision and
//! no container may exist. No file of the client or of executord may contain the value of the bundle's Secret, neither
//! right after the kill nor later.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use executor_proto::v1::ListRequest;
use executor_residue::Canary;
use integration::daemon::Daemon;
use integration::dist;
use integration::rootfs::Rootfs;
use serde_json::Value;

use crate::evaluate::Verdict;
use crate::sweep::{Kill, Outcome};
use crate::tracer::{Counted, StopAction, Trace, TraceTarget};
use crate::{Node, calls};

/// Name of the installation.
const NAME: &str = "demo";
/// Length of the Secret's value in bytes.
const CANARY: usize = 64;
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Shell script that starts the command as soon as it reads a line. The script prints the command's pid and, after the
/// command's exit, the exit status.
const START_SCRIPT: &str =
    r#"exec 3<&0; sh -c 'read go; exec "$0" "$@"' "$@" <&3 >"$OUT" 2>&1 & echo $!; exec 3<&-; wait $!; echo $?"#;

/// The command that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// `bundle install`
    Install,
    /// `bundle upgrade`
    Upgrade,
    /// `bundle rollback`
    Rollback,
    /// `bundle uninstall`
    Uninstall,
}

/// A daemon, and a client that installs bundles on it.
pub(crate) struct Installations {
    daemon: Daemon,
    rootfs: Rootfs,
    dir: tempfile::TempDir,
    secret: Canary,
    /// True if the next command uses the second of the two bundles.
    turn: bool,
}

impl Installations {
    /// Starts a daemon, and runs each command once without a kill.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let (daemon, rootfs, dir) = (Daemon::start(), Rootfs::busybox(), tempfile::tempdir()?);
        let it = Self { daemon, rootfs, dir, secret: Canary::random(CANARY)?, turn: false };
        for (bundle, word) in [("one", "first"), ("two", "second")] {
            it.write(bundle, word)?;
        }
        for place in ["home", "runtime", "tmp"] {
            fs::create_dir(it.dir.path().join(place))?;
        }
        ensure!(
            it.finds(&it.dir.path().join("one")),
            "control failed: the search does not find the Secret in its bundle"
        );
        Ok(it)
    }

    /// Writes a bundle of one pod that reads its Secret.
    fn write(&self, bundle: &str, word: &str) -> anyhow::Result<()> {
        let manifests = self.dir.path().join(bundle).join("manifests");
        fs::create_dir_all(&manifests)?;
        let objects = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{a: {}}}\n---\n\
             apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: app\n    \
             image: example.com/box:1\n    command: [sh, -c, 'test -s /secrets/a && echo {word} && exec sleep 100000']\n    \
             volumeMounts: [{{name: s, mountPath: /secrets}}]\n  volumes: [{{name: s, secret: {{secretName: s}}}}]\n",
            self.secret.as_str()
        );
        Ok(fs::write(manifests.join("objects.yaml"), objects)?)
    }

    /// Returns the command line of an operation.
    fn arguments(&self, operation: Operation) -> Vec<String> {
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let bundle = self.dir.path().join(if self.turn { "two" } else { "one" }).display().to_string();
        let image = format!("example.com/box:1={}", self.rootfs.reference());
        match operation {
            Operation::Install => own(&["install", NAME, &bundle, "--image-override", &image]),
            Operation::Upgrade => own(&["upgrade", NAME, &bundle, "--image-override", &image]),
            Operation::Rollback => own(&["rollback", NAME]),
            Operation::Uninstall => own(&["uninstall", NAME]),
        }
    }

    fn command(&self, arguments: &[String]) -> Vec<std::ffi::OsString> {
        let socket = self.daemon.socket();
        let mut line =
            vec![dist::binary("agent-cli").into_os_string(), "--socket".into(), socket.into(), "bundle".into()];
        line.extend(arguments.iter().map(Into::into));
        line
    }

    fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let at = |name: &str| self.dir.path().join(name);
        command.env("HOME", at("home")).env("XDG_RUNTIME_DIR", at("runtime")).env("TMPDIR", at("tmp"))
    }

    /// Runs a command to its exit. Returns true if the command succeeded, and its whole output.
    fn run(&self, arguments: &[String]) -> anyhow::Result<(bool, String)> {
        let line = self.command(arguments);
        let mut command = Command::new(&line[0]);
        let output = self.environment(&mut command).args(&line[1..]).stdin(Stdio::null()).output()?;
        let printed = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&printed).into_owned()))
    }

    fn must(&self, operation: Operation) -> anyhow::Result<()> {
        let (good, printed) = self.run(&self.arguments(operation))?;
        ensure!(good, "{operation:?} fails without a kill: {printed}");
        Ok(())
    }

    /// Returns the record from `status`, or `None` if there is no installation.
    fn status(&self) -> anyhow::Result<Option<Value>> {
        match self.run(&["status".to_owned(), NAME.to_owned(), "--json".to_owned()])? {
            (true, printed) => Ok(Some(serde_json::from_str(&printed).context(printed)?)),
            (false, printed) if printed.contains("there is no installation") => Ok(None),
            (false, printed) => bail!("cannot read the status of the installation: {printed}"),
        }
    }

    /// Brings the installation into the initial state of an operation.
    fn set_up(&mut self, operation: Operation) -> anyhow::Result<()> {
        let status = self.status()?;
        match (operation, &status) {
            (Operation::Install, Some(_)) => self.must(Operation::Uninstall)?,
            (Operation::Install, None) | (_, Some(_)) => {}
            (_, None) => self.must(Operation::Install)?,
        }
        let superseded = status.is_some_and(|status| status.to_string().contains("\"superseded\""));
        if operation == Operation::Rollback && !superseded {
            self.turn = !self.turn;
            self.must(Operation::Upgrade)?;
        }
        self.turn = !self.turn;
        Ok(())
    }

    /// Returns true if the Secret's value is in a file below a directory.
    fn finds(&self, directory: &Path) -> bool {
        let Ok(entries) = fs::read_dir(directory) else { return false };
        entries.flatten().any(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => self.finds(&entry.path()),
            Ok(kind) if kind.is_file() => fs::read(entry.path()).is_ok_and(|bytes| {
                let value = self.secret.as_bytes();
                bytes.windows(value.len()).any(|window| window == value)
            }),
            _ => false,
        })
    }

    fn search(&self, when: &str, wrong: &mut Vec<String>) {
        let own = ["home", "runtime", "tmp", "out"].map(|place| self.dir.path().join(place));
        let setup = self.daemon.setup();
        for place in own.into_iter().chain([setup.home().to_owned(), setup.state_dir(), setup.run_dir()]) {
            if self.finds(&place) {
                wrong.push(format!("{when}: the Secret is in a file below {}", place.display()));
            }
        }
    }

    /// Lists the containers of the daemon.
    fn containers(&self) -> anyhow::Result<Vec<String>> {
        let listed = self.daemon.api.list(ListRequest::default()).map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(listed.containers.into_iter().map(|container| container.id).collect())
    }

    /// Runs the command again, and checks the conditions that must hold then.
    fn evaluate(&self, operation: Operation, wrong: &mut Vec<String>) -> anyhow::Result<()> {
        let (good, printed) = self.run(&self.arguments(operation))?;
        let done = match operation {
            Operation::Install => printed.contains("is installed already"),
            Operation::Uninstall => printed.contains("there is no installation"),
            // The command may have completed just before the kill. Then a rollback has no earlier revision left, and an
            // upgrade must succeed.
            Operation::Upgrade | Operation::Rollback => false,
        };
        if !good && !done {
            wrong.push(format!("the next {operation:?}: {printed}"));
        }
        let (status, containers) = (self.status()?, self.containers()?);
        self.search("after the next command", wrong);
        let Some(status) = status.filter(|_| operation != Operation::Uninstall) else {
            if !containers.is_empty() {
                wrong.push(format!("containers without an installation: {containers:?}"));
            }
            let records = fs::read_dir(self.dir.path().join("home/.executor/bundles/installations"));
            let left: Vec<_> = records.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
            match operation {
                Operation::Uninstall if left.is_empty() => {}
                Operation::Uninstall => wrong.push(format!("leftover records: {left:?}")),
                _ => wrong.push("the installation does not exist".to_owned()),
            }
            return Ok(());
        };
        let it = &status["installation"];
        let revisions = it["revisions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let current: Vec<&Value> = revisions.iter().filter(|revision| revision["state"] == "current").collect();
        let healthy = it["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|it| it["type"] == "Healthy" && it["status"] == "True");
        if it["phase"]["is"] != "settled" || !healthy {
            wrong.push(format!("the installation is not settled and healthy: {it}"));
        }
        match current[..] {
            [revision] => {
                let prefix = format!("{NAME}-r{}_", revision["number"]);
                if containers.is_empty() || !containers.iter().all(|id| id.starts_with(&prefix)) {
                    wrong.push(format!(
                        "revision {} is current, but the containers are {containers:?}",
                        revision["number"]
                    ));
                }
            }
            _ => wrong.push(format!("the installation does not have exactly one current revision: {it}")),
        }
        Ok(())
    }

    /// Starts a command that waits until it is released. Returns the parent process, its output, and the command's pid.
    fn spawn_paused(&self, operation: Operation) -> anyhow::Result<(Child, BufReader<std::process::ChildStdout>, i32)> {
        let out = self.dir.path().join("out");
        fs::create_dir_all(&out)?;
        let mut command = Command::new("sh");
        command
            .args(["-c", START_SCRIPT, "sh"])
            .args(self.command(&self.arguments(operation)))
            .env("OUT", out.join("printed"));
        let mut child = self.environment(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut reported = BufReader::new(child.stdout.take().context("the child has no pipe")?);
        let mut pid = String::new();
        reported.read_line(&mut pid)?;
        Ok((child, reported, pid.trim().parse().with_context(|| format!("{pid:?} is not a pid"))?))
    }
}

impl Node for Installations {
    type Target = Operation;

    fn name(operation: Operation) -> &'static str {
        match operation {
            Operation::Install => "install",
            Operation::Upgrade => "upgrade",
            Operation::Rollback => "rollback",
            Operation::Uninstall => "uninstall",
        }
    }

    fn replay(operation: Operation, at: u64) -> String {
        format!("--operation {} --at {at}", Self::name(operation))
    }

    fn kill_at(&mut self, operation: Operation, at: u64) -> anyhow::Result<Outcome> {
        self.set_up(operation)?;
        let (mut child, mut reported, pid) = self.spawn_paused(operation)?;
        let (send, kills) = mpsc::channel();
        let act = move |shot: &crate::tracer::StoppedCall| {
            let _ = send.send((shot.call, shot.number));
            StopAction::Kill
        };
        let trace = Trace::start(TraceTarget::Living(pid), (Counted::Changes, at), act)
            .context("cannot attach to the process")?;
        let begun = Instant::now();
        child.stdin.take().context("the child has no pipe")?.write_all(b"go\n")?;
        let mut ended = String::new();
        reported.read_to_string(&mut ended)?;
        child.wait()?;
        let seen = trace.end().context("cannot trace the process")?;
        let kill = kills.try_recv().ok().map(|(at, number)| Kill {
            at,
            call: calls::name(number),
            phase: format!("{:.1} s after the start", begun.elapsed().as_secs_f64()),
        });
        let mut wrong = Vec::new();
        if begun.elapsed() > COMMAND_TIMEOUT {
            wrong.push(format!("the operation took {:?}; the maximum is {COMMAND_TIMEOUT:?}", begun.elapsed()));
        }
        if kill.is_none() && ended.trim() != "0" {
            let mut printed = String::new();
            File::open(self.dir.path().join("out/printed"))?.read_to_string(&mut printed)?;
            wrong.push(format!("without a kill, the operation exits with {}: {printed}", ended.trim()));
        }
        self.search("after the kill", &mut wrong);
        self.evaluate(operation, &mut wrong)?;
        Ok(Outcome { kill, calls: seen.calls, verdict: Verdict { wrong, ..Verdict::default() } })
    }

    fn logged(&self) -> String {
        self.daemon.setup().logged()
    }

    fn renew(&mut self) -> anyhow::Result<()> {
        *self = Self::new()?;
        Ok(())
    }
}
