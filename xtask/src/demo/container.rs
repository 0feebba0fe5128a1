//! The demo's container: `agent-cli run` with the secret on its standard input and a script as program.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::daemon::Daemon;
use super::host::Process;
use super::secret::Secret;

/// The container's id.
pub(super) const ID: &str = "executor-demo";
/// Where the secret is, in the container.
pub(super) const FILE: &str = "/etc/cf-service-bindings/db/password";
/// Whose it is, and who runs.
pub(super) const OWNER: &str = "1000:1000";

/// A container whose script has told its facts and waits for SIGTERM.
pub(super) struct Container<'a> {
    daemon: &'a Daemon,
    client: Child,
    facts: Vec<(String, String)>,
}

/// What there is to say of it afterwards.
pub(super) struct Ended {
    /// As the process's, passed on by `agent-cli run`.
    pub(super) exit_status: Option<i32>,
    pub(super) wipe: Wipe,
    facts: Vec<(String, String)>,
}

/// The receipt of the code that wiped.
pub(super) struct Wipe {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) verified: bool,
}

impl<'a> Container<'a> {
    /// Starts it, and reads until the script is ready.
    pub(super) fn run(daemon: &'a Daemon, secret: &Secret) -> anyhow::Result<Self> {
        let mut client = daemon
            .agent_command()
            .args(["run", "--id", ID, "--keep", "--user", OWNER, "--file", &format!("{FILE}=@-"), "--"])
            .args(["/bin/sh", "-c", include_str!("script.sh")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting agent-cli run")?;
        client.stdin.take().context("no pipe")?.write_all(secret.reveal())?;
        let mut facts = Vec::new();
        for line in BufReader::new(client.stdout.take().context("no pipe")?).lines() {
            let line = line?;
            if line == "ready" {
                return Ok(Self { daemon, client, facts });
            }
            let (name, value) = line.split_once('\t').with_context(|| format!("the container printed {line:?}"))?;
            facts.push((name.to_owned(), value.to_owned()));
        }
        let mut complaint = String::new();
        client.stderr.take().context("no pipe")?.read_to_string(&mut complaint)?;
        bail!("the container ended early ({}): {}", client.wait()?, complaint.trim_end());
    }

    pub(super) fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    /// A fact's value; empty if the script did not tell it.
    pub(super) fn fact(&self, name: &str) -> &str {
        self.facts.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Its init, among the daemon's processes.
    pub(super) fn pid(&self, processes: &[Process]) -> anyhow::Result<u32> {
        let init = processes.iter().find(|process| process.is_init);
        Ok(init.context("the container has no process among the daemon's")?.pid)
    }

    /// SIGTERM, then the end, then what `inspect` tells of it.
    pub(super) fn stop(mut self) -> anyhow::Result<Ended> {
        self.daemon.agent(&["stop", ID])?;
        let exit_status = self.client.wait()?.code();
        let told: Value = serde_json::from_str(&self.daemon.agent(&["inspect", ID, "--json"])?)?;
        let result = &told["result"];
        let wipe = &result["wipe"];
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut facts = vec![("exit status".to_owned(), format!("{}", result["exit"]["code"]))];
        for phase in ["prepare", "start", "run", "finish"] {
            facts.push((phase.to_owned(), text(&result["timings"][phase])));
        }
        let receipt = ["files", "bytes", "method", "verified", "wiped_by", "finished_at"];
        facts.extend(receipt.map(|key| (format!("wipe: {}", key.replace('_', " ")), text(&wipe[key]))));
        // 64-bit numbers are strings in JSON as protobuf maps them.
        let number = |key: &str| text(&wipe[key]).parse().with_context(|| format!("no {key} in the receipt: {wipe}"));
        let wipe = Wipe {
            files: number("files")?,
            bytes: number("bytes")?,
            verified: wipe["verified"].as_bool().unwrap_or(false),
        };
        Ok(Ended { exit_status, wipe, facts })
    }
}

impl Ended {
    pub(super) fn facts(&self) -> &[(String, String)] {
        &self.facts
    }
}
