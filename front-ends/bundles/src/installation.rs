//! Keeps the record of an installed bundle: its numbered revisions, its conditions and its events.
//!
//! Only one revision is current. A new revision becomes current when its pods are ready:
//!
//! ```text
//!  Installing N --pods ready--> Pivoting (N is current, the previous one is removed) --removed--> Settled
//!       | failed or killed: N is removed, the previous one stays
//!       v
//!    Settled                     Uninstalling --all removed--> no record
//! ```
//! A command records each phase before it starts the work of the phase. If the command is killed, the next command
//! finishes or undoes the work ([`Installation::left_over`]). A record holds no content of the bundle, only its source
//! and digest. Values of Secrets are therefore never stored; they are read from the source again.

mod store;

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

pub use store::{Locked, Store, StoreError};

use crate::source::Source;

/// Maximum number of revisions in a record; older revisions are dropped.
const REVISIONS_MAX: usize = 100;
/// Maximum number of events in a record; older events are dropped.
const EVENTS_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Installation {
    pub name: String,
    /// Unfinished work of a command on the installation.
    pub phase: Phase,
    /// The catalog that the installation follows; `None` if a bundle was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Follows>,
    /// Options of `agent-cli kube play` for the installation.
    #[serde(default)]
    pub options: Options,
    /// Revisions, oldest first.
    pub revisions: Vec<Revision>,
    pub conditions: Vec<Condition>,
    /// Events, oldest first.
    #[serde(default)]
    pub events: Vec<Event>,
}

/// Unfinished work of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase")]
pub enum Phase {
    /// No work in progress.
    Settled,
    /// The pods of a revision are being created; the revision is not current yet.
    Installing { revision: u32 },
    /// A revision is current; the previous revision is being removed.
    Pivoting {
        /// Number of the previous revision.
        from: u32,
    },
    /// Everything is being removed.
    Uninstalling,
}

/// Catalog, package and channel that provide upgrades.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Follows {
    /// The catalog argument of the command line.
    pub catalog: String,
    pub package: String,
    pub channel: String,
}

/// Options of `agent-cli kube play`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    /// True if objects that need an API server are skipped.
    pub partial: bool,
    /// Network of the pods; `None` for the default network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// True if pods may connect to addresses outside their network.
    pub egress: bool,
    /// Root file systems that replace images, as `IMAGE=ROOTFS`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_overrides: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Number of the revision, from 1.
    pub number: u32,
    pub state: State,
    /// Source of the revision's bundle.
    pub source: Source,
    /// Digest or commit that pins the source.
    pub pin: String,
    pub format: String,
    /// Name of the bundle; `None` if the format has no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,
    /// Version of the bundle; `None` if the format has no versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Time at which the revision was started, in seconds since 1970.
    pub begun: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// The revision's pods are being created.
    Pending,
    /// The revision that runs.
    Current,
    /// Another revision replaced this revision.
    Superseded,
    /// The installation of the revision failed or was interrupted.
    Failed,
}

/// A property of an installation that is true or false.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: ConditionKind,
    /// Status: `True` or `False`.
    pub status: String,
    /// Reason in one word, for programs.
    pub reason: String,
    /// Message in one sentence, for people.
    pub message: String,
    /// Number of the revision that the condition is about.
    pub revision: u32,
    /// Time of the last change of status, in seconds since 1970.
    pub since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionKind {
    /// The bundle was read and breaks no rule, and its source is pinned.
    Unpacked,
    /// The pods of the last requested bundle became ready, and its revision is current.
    Installed,
    /// The pods of the current revision are ready.
    Healthy,
}

/// A change of an installation. The event and the change are written in one record, so that neither exists without the
/// other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Number of the event in its installation, from 1.
    pub sequence: u64,
    /// Time in seconds since 1970.
    pub at: u64,
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// Status: `True` or `False`.
    pub status: String,
    /// Reason in one word, for programs.
    pub reason: String,
    /// Message in one sentence, for people.
    pub message: String,
    /// Number of the revision that the event is about.
    pub revision: u32,
}

/// Kind of an event: a condition, or the progress of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// A command started or finished its work on the installation.
    Progressing,
    /// The condition [`ConditionKind::Unpacked`] changed.
    Unpacked,
    /// The condition [`ConditionKind::Installed`] changed.
    Installed,
    /// The condition [`ConditionKind::Healthy`] changed.
    Healthy,
}

impl std::fmt::Display for EventKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{self:?}")
    }
}

impl From<ConditionKind> for EventKind {
    fn from(kind: ConditionKind) -> Self {
        match kind {
            ConditionKind::Unpacked => Self::Unpacked,
            ConditionKind::Installed => Self::Installed,
            ConditionKind::Healthy => Self::Healthy,
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Installation {
    /// Returns an installation without revisions.
    pub fn new(name: &str, options: Options) -> Self {
        Self {
            name: name.to_owned(),
            phase: Phase::Settled,
            follows: None,
            options,
            revisions: Vec::new(),
            conditions: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Returns the name of a revision's play. The name is also the namespace of the revision's pods, so that two
    /// revisions can run at the same time.
    pub fn play(&self, revision: u32) -> String {
        format!("{}-r{revision}", self.name)
    }

    pub fn current(&self) -> Option<&Revision> {
        self.revisions.iter().find(|revision| revision.state == State::Current)
    }

    pub fn revision(&self, number: u32) -> Option<&Revision> {
        self.revisions.iter().find(|revision| revision.number == number)
    }

    fn set(&mut self, number: u32, state: State) {
        for revision in &mut self.revisions {
            if revision.number == number {
                revision.state = state;
            }
        }
    }

    /// Sets a condition. The condition's time changes only if the status changes.
    pub fn condition(&mut self, kind: ConditionKind, status: bool, reason: &str, message: &str, revision: u32) {
        let status = if status { "True" } else { "False" };
        let before = self.conditions.iter().find(|it| it.kind == kind && it.status == status);
        let since = before.map_or_else(now, |it| it.since);
        let last = self.conditions.iter().find(|it| it.kind == kind);
        if last.is_none_or(|last| (&*last.status, &*last.reason, last.revision) != (status, reason, revision)) {
            self.record_event(kind.into(), (status, reason, message), revision);
        }
        let condition = Condition {
            kind,
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            revision,
            since,
        };
        match self.conditions.iter_mut().find(|it| it.kind == kind) {
            Some(found) => *found = condition,
            None => self.conditions.push(condition),
        }
    }

    fn record_event(&mut self, kind: EventKind, (status, reason, message): (&str, &str, &str), revision: u32) {
        if self.events.len() >= EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(Event {
            sequence: self.events.last().map_or(1, |last| last.sequence + 1),
            at: now(),
            kind,
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            revision,
        });
    }

    fn enter(&mut self, phase: Phase) {
        if self.phase == phase {
            return;
        }
        self.phase = phase;
        let last = self.revisions.last().map_or(0, |last| last.number);
        let (reported, revision) = match phase {
            Phase::Settled => (("False", "Settled", "no work in progress".to_owned()), last),
            Phase::Installing { revision } => {
                (("True", "Installing", format!("pods of revision {revision} are being created")), revision)
            }
            Phase::Pivoting { from } => (("True", "Pivoting", format!("revision {from} is being removed")), from),
            Phase::Uninstalling => (("True", "Uninstalling", "everything is being removed".to_owned()), last),
        };
        self.record_event(EventKind::Progressing, (reported.0, reported.1, &reported.2), revision);
    }

    /// Records that all plays of the installation will be removed.
    pub fn uninstall(&mut self) {
        self.enter(Phase::Uninstalling);
    }

    /// Adds a pending revision and returns its number.
    pub fn start(
        &mut self,
        source: Source,
        pin: String,
        format: String,
        bundle: Option<String>,
        version: Option<String>,
    ) -> u32 {
        let number = self.revisions.last().map_or(1, |last| last.number + 1);
        let message = format!("{} was read and pinned", pin);
        self.revisions.push(Revision {
            number,
            state: State::Pending,
            source,
            pin,
            format,
            bundle,
            version,
            begun: now(),
        });
        if self.revisions.len() > REVISIONS_MAX {
            let oldest = self.revisions.iter().position(|revision| revision.state != State::Current);
            oldest.map(|at| self.revisions.remove(at));
        }
        self.enter(Phase::Installing { revision: number });
        self.condition(ConditionKind::Unpacked, true, "UnpackSuccessful", &message, number);
        number
    }

    /// Records that the pods of a revision are ready. The revision becomes current, and the previous revision will be
    /// removed.
    pub fn pivot(&mut self, number: u32) {
        let before = self.current().map(|revision| revision.number);
        if let Some(before) = before {
            self.set(before, State::Superseded);
        }
        self.set(number, State::Current);
        let message = format!("revision {number} is the current revision");
        self.condition(ConditionKind::Installed, true, "InstallationSucceeded", &message, number);
        self.condition(ConditionKind::Healthy, true, "Healthy", "all pods are ready", number);
        self.enter(before.map_or(Phase::Settled, |from| Phase::Pivoting { from }));
    }

    /// Records that no work on the installation is in progress.
    pub fn settle(&mut self) {
        self.enter(Phase::Settled);
    }

    /// Records that a revision failed. The revision's pods will be removed, and the previous revision stays current.
    /// The phase changes when the pods have been removed ([`Self::settle`]).
    pub fn fail(&mut self, number: u32, reason: &str, message: &str) {
        self.set(number, State::Failed);
        let stays = match self.current() {
            Some(current) => format!("{message}; revision {} remains installed", current.number),
            None => message.to_owned(),
        };
        // `Installed` describes the last requested bundle, and `Healthy` the running bundle.
        self.condition(ConditionKind::Installed, false, reason, &stays, number);
        if self.current().is_none() {
            self.condition(ConditionKind::Healthy, false, "NotInstalled", "no revision is running", number);
        }
    }

    /// Records that the requested bundle cannot be read or breaks rules. The current revision stays.
    pub fn unpack_failed(&mut self, why: &str) {
        let number = self.current().map_or(0, |revision| revision.number);
        self.condition(ConditionKind::Unpacked, false, "UnpackFailed", why, number);
    }

    /// Records that the requested bundle was read but needs an API server. The current revision stays.
    pub fn load_failed(&mut self, why: &str) {
        let number = self.current().map_or(0, |revision| revision.number);
        let stays = format!("{why}; revision {number} remains installed");
        self.condition(ConditionKind::Installed, false, "BundleLoadFailed", &stays, number);
    }

    /// Returns the names of the plays that remain after a command was killed. These plays must be removed before other
    /// work.
    pub fn left_over(&self) -> Vec<String> {
        match self.phase {
            Phase::Settled => Vec::new(),
            Phase::Installing { revision } => vec![self.play(revision)],
            Phase::Pivoting { from } => vec![self.play(from)],
            Phase::Uninstalling => self.revisions.iter().map(|revision| self.play(revision.number)).collect(),
        }
    }

    /// Records that the plays that [`Self::left_over`] returns were removed.
    pub fn repaired(&mut self) {
        if let Phase::Installing { revision } = self.phase
            && self.revision(revision).is_some_and(|it| it.state == State::Pending)
        {
            self.fail(revision, "Interrupted", &format!("the installation of revision {revision} was interrupted"));
        }
        self.settle();
    }
}

/// Checks the name of an installation. The name becomes part of pod names. The name must have 1 to 40 characters of
/// a-z, 0-9 and `-`, with a letter or digit at both ends.
///
/// # Errors
/// Returns a message if the name is invalid.
pub fn check_name(name: &str) -> Result<(), String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits =
        (1..=40).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-');
    if fits {
        Ok(())
    } else {
        Err(format!(
            "{name:?} must be 1 to 40 characters of a-z, 0-9 and `-`, beginning and ending with a letter or digit"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Installation {
        let mut it = Installation::new("demo", Options::default());
        let source = Source::Directory { path: "/b".into() };
        it.start(source, "sha256:00".into(), "plain+v0".into(), None, None);
        it
    }

    fn again(it: &mut Installation) -> u32 {
        it.start(Source::Directory { path: "/b".into() }, "sha256:01".into(), "plain+v0".into(), None, None)
    }

    fn status(it: &Installation, kind: ConditionKind) -> (&str, &str) {
        it.conditions.iter().find(|it| it.kind == kind).map_or(("", ""), |it| (&*it.status, &*it.reason))
    }

    #[test]
    fn i4_previous_revision_is_removed_after_install() {
        let mut it = begun();
        assert_eq!(it.left_over(), ["demo-r1"]);
        it.pivot(1);
        assert_eq!((it.phase, it.left_over()), (Phase::Settled, vec![]));
        let second = again(&mut it);
        assert_eq!((it.current().map(|it| it.number), it.left_over()), (Some(1), vec!["demo-r2".to_owned()]));
        it.pivot(second);
        assert_eq!((it.current().map(|it| it.number), it.left_over()), (Some(2), vec!["demo-r1".to_owned()]));
        it.repaired();
        assert_eq!((it.phase, it.current().map(|it| it.number)), (Phase::Settled, Some(2)));
    }

    #[test]
    fn i5_failures_become_conditions_previous_revision_stays() {
        let mut it = begun();
        it.fail(1, "InstallFailed", "pod x is not ready");
        assert_eq!(status(&it, ConditionKind::Installed), ("False", "InstallFailed"));
        assert_eq!(status(&it, ConditionKind::Healthy), ("False", "NotInstalled"));
        it.settle();
        let second = again(&mut it);
        it.pivot(second);
        let third = again(&mut it);
        it.fail(third, "InstallFailed", "pod x is not ready");
        assert_eq!(it.left_over(), ["demo-r3"]);
        it.repaired();
        assert_eq!(it.current().map(|it| it.number), Some(2));
        assert_eq!(status(&it, ConditionKind::Installed), ("False", "InstallFailed"));
        assert_eq!(status(&it, ConditionKind::Healthy), ("True", "Healthy"));
        assert_eq!(status(&it, ConditionKind::Unpacked), ("True", "UnpackSuccessful"));
    }

    #[test]
    fn interrupted_install_is_undone() {
        let mut it = begun();
        it.repaired();
        assert_eq!((it.phase, it.current()), (Phase::Settled, None));
        assert_eq!(status(&it, ConditionKind::Installed), ("False", "Interrupted"));
        it.uninstall();
        assert_eq!(it.left_over(), ["demo-r1"]);
    }

    #[test]
    fn i5_changes_are_events_with_limited_history() {
        let mut it = begun();
        it.pivot(1);
        let reported = |it: &Installation| -> Vec<String> {
            it.events.iter().map(|it| format!("{} {} {} {}", it.sequence, it.kind, it.status, it.reason)).collect()
        };
        let first = [
            "1 Progressing True Installing",
            "2 Unpacked True UnpackSuccessful",
            "3 Installed True InstallationSucceeded",
            "4 Healthy True Healthy",
            "5 Progressing False Settled",
        ];
        assert_eq!(reported(&it), first);
        it.settle();
        it.condition(ConditionKind::Healthy, true, "Healthy", "all pods are ready", 1);
        assert_eq!(reported(&it), first, "an unchanged condition records no event");
        for _ in 0..200 {
            let number = again(&mut it);
            it.fail(number, "InstallFailed", "x");
            it.settle();
        }
        assert_eq!((it.events.len(), it.events.last().unwrap().sequence), (EVENTS_MAX, 5 + 200 * 4));
    }

    #[test]
    fn invalid_installation_names_are_refused() {
        assert!(["a", "demo-1", "0"].iter().all(|name| check_name(name).is_ok()));
        assert!(["", "-a", "a-", "A", "a.b", "a/b", &"a".repeat(41)].iter().all(|name| check_name(name).is_err()));
    }
}
