//! Defines the actions of a container as a tree, as in BBS (models.Action).
//!
//! The leaves are processes and transfers of the plan, by index. The inner nodes determine the order in which the
//! leaves run, and the effect of a failure on other leaves. A container with a single run action and no restart policy
//! has no tree.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Direction, RestartPolicy};

/// Path of the action that runs before the main action.
pub const SETUP: &str = "setup";

/// Actions of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actions {
    /// Action that runs before `action`. If this action fails, the container exits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<Action>,
    /// Main action of the container.
    pub action: Action,
    /// Actions that run at the same time as the main action. When one of these actions or the main action completes,
    /// the others are cancelled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sidecars: Vec<Action>,
    /// Policy for restarting `action` and the sidecars after they finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPolicy>,
    /// Limits of sidecars, by their indices. Sidecars without own limits have no entry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sidecar_limits: BTreeMap<usize, SidecarLimits>,
}

/// Limits of a sidecar, in addition to the limits of its container; 0 = no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SidecarLimits {
    /// Limit on bytes of memory, swap included.
    pub memory_bytes: u64,
    /// Limit on the number of processes and threads.
    pub pids: u64,
}

/// An action of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Runs the process of the plan with this index.
    Run(usize),
    /// Executes the download with this index in the plan's transfers.
    Download(usize),
    /// Executes the upload with this index in the plan's transfers.
    Upload(usize),
    /// Executes actions one after the other, until one fails.
    Serial(Vec<Action>),
    /// Executes actions concurrently and waits for all; fails if any of them fails.
    Parallel(Vec<Action>),
    /// Executes actions concurrently. When one finishes for any reason, the others are cancelled and this action fails.
    Codependent(Vec<Action>),
    /// Runs an action, and succeeds even if the action fails.
    Try(Box<Action>),
    /// Runs an action. If the action exceeds its time limit, cancels the action and fails.
    Timeout {
        /// Action with the time limit.
        action: Box<Action>,
        /// Time after which the action is cancelled.
        after: Duration,
    },
    /// Runs an action, and writes messages about it to the log.
    EmitProgress {
        /// Action that the messages are about.
        action: Box<Action>,
        /// Messages that are written to the log.
        messages: Messages,
    },
}

/// Messages of an [`Action::EmitProgress`]. Empty messages are not written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    /// Message at the start of the action.
    pub start: String,
    /// Message after the success of the action.
    pub success: String,
    /// Message after a failure of the action, followed by the reason.
    pub failure_prefix: String,
    /// Log source of the messages.
    pub log_source: String,
}

impl Action {
    /// Returns the name of the action's kind in the API.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Run(_) => "run",
            Self::Download(_) => Direction::Download.kind(),
            Self::Upload(_) => Direction::Upload.kind(),
            Self::Serial(_) => "serial",
            Self::Parallel(_) => "parallel",
            Self::Codependent(_) => "codependent",
            Self::Try(_) => "try",
            Self::Timeout { .. } => "timeout",
            Self::EmitProgress { .. } => "emit_progress",
        }
    }

    /// Returns the direct child actions, each with its path relative to this action.
    pub fn children(&self) -> Vec<(String, &Self)> {
        match self {
            Self::Run(_) | Self::Download(_) | Self::Upload(_) => Vec::new(),
            Self::Serial(actions) | Self::Parallel(actions) | Self::Codependent(actions) => {
                let path = |index| format!(".{}.actions[{index}]", self.kind());
                actions.iter().enumerate().map(|(index, action)| (path(index), action)).collect()
            }
            Self::Try(action) | Self::Timeout { action, .. } | Self::EmitProgress { action, .. } => {
                vec![(format!(".{}.action", self.kind()), action)]
            }
        }
    }

    /// Visits this action and all actions below it, parents before children, with their paths.
    pub fn visit<'a>(&'a self, path: &str, see: &mut impl FnMut(&str, &'a Self)) {
        see(path, self);
        for (below, child) in self.children() {
            child.visit(&format!("{path}{below}"), see);
        }
    }
}

impl Actions {
    /// Returns the setup action, the main action and the sidecars, each with its path, in the order in which they
    /// start.
    pub fn roots(&self) -> impl Iterator<Item = (String, &Action)> {
        let setup = self.setup.iter().map(|setup| (SETUP.to_owned(), setup));
        let sidecars = self.sidecars.iter().enumerate();
        let sidecars = sidecars.map(|(index, sidecar)| (format!("sidecars[{index}].action"), sidecar));
        setup.chain([("action".to_owned(), &self.action)]).chain(sidecars)
    }

    /// Visits every action, parents before children, with its path in the request.
    pub fn visit<'a>(&'a self, mut see: impl FnMut(&str, &'a Action)) {
        for (path, action) in self.roots() {
            action.visit(&path, &mut see);
        }
    }

    /// Returns true if the only action is a run action. Such a tree exists only because of the restart policy.
    pub fn is_lone_run(&self) -> bool {
        self.setup.is_none() && self.sidecars.is_empty() && matches!(self.action, Action::Run(_))
    }

    /// Returns the index of the sidecar that contains this process, if the sidecar has its own limits.
    pub fn limited_sidecar_of(&self, process: usize) -> Option<usize> {
        let has = |sidecar: &&usize| {
            let mut found = false;
            let action = self.sidecars.get(**sidecar);
            action.inspect(|action| action.visit("", &mut |_, action| found |= *action == Action::Run(process)));
            found
        };
        self.sidecar_limits.keys().find(has).copied()
    }

    /// Returns the index of the first process of the main action. The user of this process owns the container's files.
    pub fn first_process(&self) -> Option<usize> {
        let mut first = None;
        self.action.visit("", &mut |_, action| {
            if let (None, Action::Run(process)) = (first, action) {
                first = Some(*process);
            }
        });
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_request() {
        let timeout = Action::Timeout { action: Box::new(Action::Run(2)), after: Duration::from_secs(1) };
        let actions = Actions {
            setup: Some(Action::Try(Box::new(Action::Run(0)))),
            action: Action::Serial(vec![Action::Run(1), timeout]),
            sidecars: vec![Action::Run(3)],
            restart: None,
            sidecar_limits: BTreeMap::from([(0, SidecarLimits { memory_bytes: 1 << 20, pids: 0 })]),
        };
        let mut seen = Vec::new();
        actions.visit(|path, action| seen.push(format!("{path} {}", action.kind())));
        let expected = [
            "setup try",
            "setup.try.action run",
            "action serial",
            "action.serial.actions[0] run",
            "action.serial.actions[1] timeout",
            "action.serial.actions[1].timeout.action run",
            "sidecars[0].action run",
        ];
        assert_eq!(seen, expected);
        assert_eq!(actions.first_process(), Some(1));
        assert_eq!([2, 3].map(|process| actions.limited_sidecar_of(process)), [None, Some(0)]);
        let json = serde_json::to_string(&actions).unwrap();
        assert_eq!(serde_json::from_str::<Actions>(&json).unwrap(), actions);
    }
}
