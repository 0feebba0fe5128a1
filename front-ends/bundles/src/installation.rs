//! Installations: numbered revisions of a bundle, one of them current, and what is true of it as conditions.
//!
//! ```text
//!  Installing N --pods ready--> Pivoting (N is current, the one before goes) --gone--> Settled
//!       | failed, or cut off: N goes, the one before stays
//!       v
//!    Settled                     Uninstalling --all gone--> no record
//! ```
//! Each step is written down before it is done, so that after a kill the next command finishes or undoes it ([`Installation::left_over`]). Nothing of a bundle but its pin is in
//! a record: values of Secrets are read from its source again.

mod store;

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

pub use store::{Locked, Store, StoreError};

use crate::source::Source;

/// Most revisions that a record keeps; older ones are forgotten.
const REVISIONS_MAX: usize = 100;
/// Most events that a record keeps; older ones are forgotten.
const EVENTS_MAX: usize = 200;

/// An installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Installation {
    /// Name.
    pub name: String,
    /// Work under way.
    pub phase: Phase,
    /// The catalog that it follows; none where a bundle was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Follows>,
    /// Options of every play of it.
    #[serde(default)]
    pub options: Options,
    /// Revisions, the oldest first.
    pub revisions: Vec<Revision>,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Events, the oldest first.
    #[serde(default)]
    pub events: Vec<Event>,
}

/// Work that is begun and not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase")]
pub enum Phase {
    /// Nothing is being done.
    Settled,
    /// Pods of a revision are made; it is not current yet.
    Installing {
        /// The revision.
        revision: u32,
    },
    /// A revision is current; what was before it is taken down.
    Pivoting {
        /// The revision before.
        from: u32,
    },
    /// All is taken down.
    Uninstalling,
}

/// Catalog, package and channel that upgrades come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Follows {
    /// The catalog, as the command line has it.
    pub catalog: String,
    /// The package.
    pub package: String,
    /// The channel.
    pub channel: String,
}

/// Options of the plays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    /// Objects that need an API server are left out.
    pub partial: bool,
    /// Network of the pods; none for the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Connections to beyond the pods' network are allowed.
    pub egress: bool,
    /// Root file systems in place of images, as `IMAGE=ROOTFS`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_overrides: Vec<String>,
}

/// A revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Number, from 1.
    pub number: u32,
    /// State of the revision.
    pub state: State,
    /// Where its bundle is from.
    pub source: Source,
    /// Digest or commit that pins it.
    pub pin: String,
    /// Format.
    pub format: String,
    /// Name of its bundle; none where the format has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,
    /// Version of its bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When it was begun, in seconds since 1970.
    pub begun: u64,
}

/// State of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Pods are being made.
    Pending,
    /// The revision that runs.
    Current,
    /// Another took its place.
    Superseded,
    /// Pods did not become ready.
    Failed,
}

/// Something that is true, false or unknown of an installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What.
    #[serde(rename = "type")]
    pub kind: ConditionKind,
    /// Status: `True`, `False` or `Unknown`.
    pub status: String,
    /// One word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// The revision that it was found out about.
    pub revision: u32,
    /// When it became so, in seconds since 1970.
    pub since: u64,
}

/// Kind of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionKind {
    /// The bundle was read, holds to the rules and is pinned.
    Unpacked,
    /// A bundle's pods became ready, and it is the current one.
    Installed,
    /// The current bundle's pods are ready.
    Healthy,
}

/// Something that became true or false of an installation. It is written with what it tells of, so that there is never one without the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Number, from 1, in this installation.
    pub sequence: u64,
    /// When, in seconds since 1970.
    pub at: u64,
    /// What.
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// Status: `True` or `False`.
    pub status: String,
    /// One word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// The revision that it is about.
    pub revision: u32,
}

/// Kind of an event: a condition, or that a command works on the installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// A command works on it, or has ended.
    Progressing,
    /// [`ConditionKind::Unpacked`].
    Unpacked,
    /// [`ConditionKind::Installed`].
    Installed,
    /// [`ConditionKind::Healthy`].
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
    /// A new one, with no revision.
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

    /// Name of the play of a revision: what its pods are taken down by. It is their namespace, too, so that two revisions can run at the same time.
    pub fn play(&self, revision: u32) -> String {
        format!("{}-r{revision}", self.name)
    }

    /// The revision that runs.
    pub fn current(&self) -> Option<&Revision> {
        self.revisions.iter().find(|revision| revision.state == State::Current)
    }

    /// A revision by its number.
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

    /// Sets a condition. Its time stays where its status does.
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

    /// Enters a phase.
    fn enter(&mut self, phase: Phase) {
        if self.phase == phase {
            return;
        }
        self.phase = phase;
        let last = self.revisions.last().map_or(0, |last| last.number);
        let (reported, revision) = match phase {
            Phase::Settled => (("False", "Settled", "nothing is being done".to_owned()), last),
            Phase::Installing { revision } => {
                (("True", "Installing", format!("pods of revision {revision} are made")), revision)
            }
            Phase::Pivoting { from } => (("True", "Pivoting", format!("revision {from} is taken down")), from),
            Phase::Uninstalling => (("True", "Uninstalling", "all is taken down".to_owned()), last),
        };
        self.record_event(EventKind::Progressing, (reported.0, reported.1, &reported.2), revision);
    }

    /// All of it is to go.
    pub fn uninstall(&mut self) {
        self.enter(Phase::Uninstalling);
    }

    /// Begins a revision. Returns its number.
    pub fn start(
        &mut self,
        source: Source,
        pin: String,
        format: String,
        bundle: Option<String>,
        version: Option<String>,
    ) -> u32 {
        let number = self.revisions.last().map_or(1, |last| last.number + 1);
        let message = format!("{} is read and pinned", pin);
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

    /// The pods of the revision are ready: it is the current one, and the one before it goes.
    pub fn pivot(&mut self, number: u32) {
        let before = self.current().map(|revision| revision.number);
        if let Some(before) = before {
            self.set(before, State::Superseded);
        }
        self.set(number, State::Current);
        let message = format!("revision {number} is the current one");
        self.condition(ConditionKind::Installed, true, "InstallationSucceeded", &message, number);
        self.condition(ConditionKind::Healthy, true, "Healthy", "its pods are ready", number);
        self.enter(before.map_or(Phase::Settled, |from| Phase::Pivoting { from }));
    }

    /// Writes down that the work is done.
    pub fn settle(&mut self) {
        self.enter(Phase::Settled);
    }

    /// The revision failed: it goes, and the one before it stays. The phase stays until its pods are gone ([`Self::settle`]).
    pub fn fail(&mut self, number: u32, reason: &str, message: &str) {
        self.set(number, State::Failed);
        let stays = match self.current() {
            Some(current) => format!("{message}; revision {} stays", current.number),
            None => message.to_owned(),
        };
        // Installed tells of the bundle that was asked for last, Healthy of the one that runs.
        self.condition(ConditionKind::Installed, false, reason, &stays, number);
        if self.current().is_none() {
            self.condition(ConditionKind::Healthy, false, "NotInstalled", "no revision runs", number);
        }
    }

    /// The bundle that was asked for cannot be read, or does not hold to the rules. What runs stays.
    pub fn unpack_failed(&mut self, why: &str) {
        let number = self.current().map_or(0, |revision| revision.number);
        self.condition(ConditionKind::Unpacked, false, "UnpackFailed", why, number);
    }

    /// The bundle that was asked for is read, and needs what there is not here. What runs stays.
    pub fn load_failed(&mut self, why: &str) {
        let number = self.current().map_or(0, |revision| revision.number);
        let stays = format!("{why}; revision {number} stays");
        self.condition(ConditionKind::Installed, false, "BundleLoadFailed", &stays, number);
    }

    /// Names of the plays that must be taken down before anything else is done, after a kill.
    pub fn left_over(&self) -> Vec<String> {
        match self.phase {
            Phase::Settled => Vec::new(),
            Phase::Installing { revision } => vec![self.play(revision)],
            Phase::Pivoting { from } => vec![self.play(from)],
            Phase::Uninstalling => self.revisions.iter().map(|revision| self.play(revision.number)).collect(),
        }
    }

    /// Writes down that what was left over is gone.
    pub fn repaired(&mut self) {
        if let Phase::Installing { revision } = self.phase
            && self.revision(revision).is_some_and(|it| it.state == State::Pending)
        {
            self.fail(revision, "Interrupted", &format!("the installation of revision {revision} was cut off"));
        }
        self.settle();
    }
}

/// A name of an installation: 1 to 40 of a-z, 0-9 and `-`, with a letter or digit at both ends. It is part of names of pods.
///
/// # Errors
/// The reason in words.
pub fn check_name(name: &str) -> Result<(), String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits =
        (1..=40).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-');
    if fits {
        Ok(())
    } else {
        Err(format!("{name:?} must be 1 to 40 of a-z, 0-9 and `-`, beginning and ending with a letter or digit"))
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
    fn i4_the_revision_before_goes_when_the_new_one_is_installed() {
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
    fn i5_failures_become_conditions_and_the_revision_before_stays() {
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
    fn what_was_cut_off_is_undone() {
        let mut it = begun();
        it.repaired();
        assert_eq!((it.phase, it.current()), (Phase::Settled, None));
        assert_eq!(status(&it, ConditionKind::Installed), ("False", "Interrupted"));
        it.uninstall();
        assert_eq!(it.left_over(), ["demo-r1"]);
    }

    #[test]
    fn i5_each_change_is_an_event_and_old_ones_are_forgotten() {
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
        it.condition(ConditionKind::Healthy, true, "Healthy", "its pods are ready", 1);
        assert_eq!(reported(&it), first, "what is so already is not told again");
        for _ in 0..200 {
            let number = again(&mut it);
            it.fail(number, "InstallFailed", "x");
            it.settle();
        }
        assert_eq!((it.events.len(), it.events.last().unwrap().sequence), (EVENTS_MAX, 5 + 200 * 4));
    }

    #[test]
    fn names() {
        assert!(["a", "demo-1", "0"].iter().all(|name| check_name(name).is_ok()));
        assert!(["", "-a", "a-", "A", "a.b", "a/b", &"a".repeat(41)].iter().all(|name| check_name(name).is_err()));
    }
}
