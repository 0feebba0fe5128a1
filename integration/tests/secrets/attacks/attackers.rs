//! Attackers (users and containers), and the environments of the controls, in which a guard is missing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use executor_proto::v1::{Capabilities, Limits, ResourceLimits, RunRequest, UserNamespace};
use integration::daemon::{Daemon, Setup};
use integration::host::status;
use integration::request::{ATTACKERS, Attacker, RequestBuilder as _, program};
use serde_json::Value;

const COMMON: &str = include_str!("probes/common.py");

/// Maximum number of open files of an attacked container's process.
pub(crate) const NOFILE: u64 = 2500;

/// Environment of a control. One guard is missing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unguarded {
    /// No container: host root, in its own mount namespace, which protects the host's mounts.
    Host,
    /// A privileged container with a user namespace.
    Privileged,
    /// A container with the host's user namespace and every capability that this process has. Paths are masked.
    Capable,
    /// A container with the default profile and higher limits.
    Unlimited,
}

/// Starts a daemon whose operator allows everything. Containers still have only the privileges that they request.
pub(crate) fn daemon() -> Daemon {
    let config = "[policy]\nallow_privileged = true\nallow_host_userns = true\ncapabilities_allowed = [\"ALL\"]\n";
    Setup::default().config(config).start()
}

/// A list of attacks, and data about their environment.
pub(crate) struct Attacks {
    script: String,
    facts: Value,
    /// Limits of the attacked container.
    pub(crate) limits: Limits,
    /// Paths and contents of the container's secret files.
    pub(crate) secrets: Vec<(String, &'static [u8])>,
}

impl Attacks {
    pub(crate) fn new(script: &str, facts: Value, limits: Limits) -> Self {
        Self { script: format!("{COMMON}\n\n{script}"), facts, limits, secrets: Vec::new() }
    }

    fn request(&self, id: &str) -> RunRequest {
        let mut facts = self.facts.clone();
        facts["scratch"] = "/tmp".into();
        facts["init"] = 1.into();
        let request = program("/usr/bin/python3", &["-c", &self.script, &facts.to_string()]).id(id);
        let request = RunRequest { limits: Some(self.limits.clone()), ..request };
        let request = request
            .action(|run| run.resource_limits = Some(ResourceLimits { nofile: Some(NOFILE), ..Default::default() }));
        self.secrets.iter().fold(request, |request, (path, content)| request.file(path, content))
    }

    /// Runs the attacks in a container and returns their outcomes. The container must exit on its own, and its secret
    /// files must be wiped.
    fn tried(&self, daemon: &Daemon, request: RunRequest) -> BTreeMap<String, String> {
        let container = daemon.api.run_to_end(request.unmasked());
        let printed = daemon.api.output(&container.id).text();
        assert_eq!(integration::api::exit(&container), Ok(0), "{}: {printed}", container.id);
        if !self.secrets.is_empty() {
            let wiped = container.result.unwrap().wipe.unwrap();
            let bytes: usize = self.secrets.iter().map(|(_, content)| content.len()).sum();
            assert!(wiped.verified, "{wiped:?}");
            assert_eq!((wiped.files as usize, wiped.bytes as usize), (self.secrets.len(), bytes), "{wiped:?}");
        }
        outcomes(&printed)
    }

    /// Runs the attacks as one of [`ATTACKERS`].
    pub(crate) fn by(&self, daemon: &Daemon, attacker: Attacker) -> BTreeMap<String, String> {
        self.tried(daemon, self.request(attacker.name).by(attacker))
    }

    /// Runs the attacks as root in an environment without a guard. On the host, a shell runs `prepare` first.
    pub(crate) fn unguarded(&self, daemon: &Daemon, guard: Unguarded, prepare: &str) -> BTreeMap<String, String> {
        let request = self.request(&format!("{guard:?}"));
        match guard {
            Unguarded::Host => self.on_the_host(prepare),
            Unguarded::Privileged => self.tried(daemon, RunRequest { privileged: true, ..request }),
            Unguarded::Capable => {
                let capabilities = Some(Capabilities { add: ours(), drop: Vec::new() });
                let user_namespace = UserNamespace::Host.into();
                self.tried(daemon, RunRequest { capabilities, user_namespace, ..request })
            }
            Unguarded::Unlimited => {
                let limits = Limits { memory_bytes: 256 << 20, pids: 4096, ..self.limits.clone() };
                let request = RunRequest { limits: Some(limits), ..request };
                self.tried(daemon, request.action(|run| run.resource_limits = None))
            }
        }
    }

    fn on_the_host(&self, prepare: &str) -> BTreeMap<String, String> {
        let mut facts = self.facts.clone();
        facts["scratch"] = "/mnt".into();
        facts["init"] = std::process::id().into();
        let script = format!("mount -t tmpfs scratch /mnt; {prepare} exec /usr/bin/python3 -c \"$0\" \"$1\"");
        let mut command = Command::new("unshare");
        let output =
            command.args(["--mount", "sh", "-ec", &script, &self.script, &facts.to_string()]).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{printed}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        outcomes(&printed)
    }
}

/// Returns the capabilities of this process, which the launcher inherits.
fn ours() -> Vec<String> {
    let bounding = u64::from_str_radix(&status(std::process::id() as i32, "CapBnd").unwrap(), 16).unwrap();
    let known = executor_core::validate::CAPABILITIES.iter().enumerate();
    known.filter(|(number, _)| bounding >> number & 1 == 1).map(|(_, name)| (*name).to_owned()).collect()
}

/// Parses the outcomes: one `name => outcome` per line.
pub(crate) fn outcomes(printed: &str) -> BTreeMap<String, String> {
    assert!(!printed.contains("Traceback"), "{printed}");
    let lines = printed.lines().filter_map(|line| line.split_once(" => "));
    lines.map(|(attack, outcome)| (attack.to_owned(), outcome.to_owned())).collect()
}

/// Compares the outcomes with the table. Every attacker must have tried exactly the listed attacks. Each attack must
/// have failed for one of the listed reasons, and must have succeeded without its guard.
pub(crate) fn evaluate(
    daemon: &Daemon,
    attacks: &Attacks,
    prepare: &str,
    table: &[(Unguarded, &[&str])],
    reasons: &[&str],
) {
    let mut faults = String::new();
    let mut names: Vec<&str> = table.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    names.sort_unstable();
    for attacker in ATTACKERS {
        let seen = attacks.by(daemon, attacker);
        let tried: Vec<&str> = seen.keys().map(String::as_str).collect();
        assert_eq!(tried, names, "the table lists exactly the tried attacks");
        for (attack, outcome) in seen.iter().filter(|(_, outcome)| !reasons.contains(&outcome.as_str())) {
            writeln!(faults, "{} -> {attack}: {outcome}", attacker.name).unwrap();
        }
    }
    for (guard, names) in table {
        let seen = attacks.unguarded(daemon, *guard, prepare);
        for name in names.iter().filter(|name| seen[**name] != "went through") {
            writeln!(faults, "control: without a guard ({guard:?}), {name}: {}", seen[*name]).unwrap();
        }
    }
    assert!(faults.is_empty(), "{faults}");
}
