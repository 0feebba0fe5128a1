//! The demo's container: runs `agent-cli run` with the secret on its standard input and a script as the program.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::daemon::Daemon;
use super::host::Process;
use super::secret::Secret;

/// The container's id.
pub(super) const ID: &str = "executor-demo";
/// Path of the secret in the container.
const FILE: &str = "/etc/cf-service-bindings/db/password";
/// User and group of the process and of the secret file.
pub(super) const OWNER: &str = "1000:1000";

/// A container whose script has printed its facts and waits for SIGTERM.
pub(super) struct Container<'a> {
    daemon: &'a Daemon,
    client: Child,
    /// Output of `agent-cli run`, kept open because `agent-cli run` stops the container if its output is closed.
    output: Lines<BufReader<ChildStdout>>,
    facts: Vec<(String, String)>,
}

/// Results of a completed container.
pub(super) struct ContainerResult {
    /// Exit status of the process, as returned by `agent-cli run`.
    pub(super) exit_status: Option<i32>,
    pub(super) wipe: Wipe,
    facts: Vec<(String, String)>,
}

/// The executor's report on the wipe of the secrets.
pub(super) struct Wipe {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) verified: bool,
}

impl<'a> Container<'a> {
    /// Starts the container, and reads its output until the script is ready.
    pub(super) fn run(daemon: &'a Daemon, secret: &Secret) -> anyhow::Result<Self> {
        let mut client = daemon
            .agent_command()
            .args([
                "run",
                "--id",
                ID,
                "--keep",
                "--user",
                OWNER,
                "--env",
                "PATH=/usr/bin:/bin",
                "--file",
                &format!("{FILE}=@-"),
                "--",
            ])
            .args(["/bin/sh", "-c", include_str!("script.sh")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start agent-cli run")?;
        client.stdin.take().context("the child has no standard input")?.write_all(secret.reveal())?;
        let mut facts = Vec::new();
        let mut output = BufReader::new(client.stdout.take().context("the child has no standard output")?).lines();
        while let Some(line) = output.next().transpose()? {
            if line == "ready" {
                return Ok(Self { daemon, client, output, facts });
            }
            let (name, value) = line
                .split_once('\t')
                .with_context(|| format!("the container printed {line:?}, expected a name, a tab and a value"))?;
            facts.push((name.to_owned(), value.to_owned()));
        }
        let mut complaint = String::new();
        client.stderr.take().context("the child has no standard error")?.read_to_string(&mut complaint)?;
        bail!("the container exited early ({}): {}", client.wait()?, complaint.trim_end());
    }

    pub(super) fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    /// Returns a fact's value; empty if the script did not print it.
    pub(super) fn fact(&self, name: &str) -> &str {
        self.facts.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Returns the pid of the container's init, which is one of the daemon's processes.
    pub(super) fn pid(&self, processes: &[Process]) -> anyhow::Result<u32> {
        let init = processes.iter().find(|process| process.is_init);
        Ok(init.context("the daemon has no child that is the init of the container")?.pid)
    }

    /// Sends SIGTERM, waits for the exit, and reads the result from `inspect`.
    pub(super) fn stop(mut self) -> anyhow::Result<ContainerResult> {
        self.daemon.agent(&["stop", ID])?;
        let rest = self.output.collect::<std::io::Result<Vec<_>>>()?;
        ensure!(rest.is_empty(), "the container printed {rest:?} after it was ready");
        let exit_status = self.client.wait()?.code();
        let reported: Value = serde_json::from_str(&self.daemon.agent(&["inspect", ID, "--json"])?)?;
        let (timings, wipe) = (&reported["result"]["timings"], &reported["result"]["wipe"]);
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let took = |phase: &str| {
            let seconds = timings[format!("{phase}_seconds")].as_f64().unwrap_or(f64::NAN);
            format!("{phase} {:.1} ms", seconds * 1e3)
        };
        let facts = vec![
            ("state".to_owned(), text(&reported["state"])),
            ("exit code".to_owned(), text(&reported["result"]["exit"]["code"])),
            ("time".to_owned(), ["prepare", "start", "run", "finish"].map(took).join(", ")),
            (
                "wiped".to_owned(),
                format!("{} file, {} bytes, by the {}", wipe["files"], wipe["bytes"], text(&wipe["wiped_by"])),
            ),
            ("how".to_owned(), text(&wipe["method"])),
            ("when".to_owned(), text(&wipe["finished_at"])),
        ];
        let wipe = Wipe {
            files: wipe["files"].as_u64().context("the result has no wipe receipt")?,
            bytes: wipe["bytes"].as_u64().context("the receipt has no size")?,
            verified: wipe["verified"].as_bool().unwrap_or(false),
        };
        Ok(ContainerResult { exit_status, wipe, facts })
    }
}

impl ContainerResult {
    pub(super) fn facts(&self) -> &[(String, String)] {
        &self.facts
    }
}
