//! Errors of steps, in the words that users of Cloud Foundry know.

use crate::record::Exit;

/// Error of a step, with the exit status of the process that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepError {
    pub(super) why: Why,
    pub(super) exit: Option<Exit>,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Has words for the users of the container.
    Message(String),
    /// Has words that are not repeated in those of the actions above.
    Plain(String),
    Cancelled,
    /// Cancelled, and killed after its grace period.
    GraceExceeded,
    Several(Vec<StepError>),
}

impl std::fmt::Display for StepError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.why {
            Why::Message(text) | Why::Plain(text) => f.write_str(text),
            Why::Cancelled => f.write_str("cancelled"),
            Why::GraceExceeded => f.write_str("exceeded graceful shutdown interval"),
            Why::Several(errors) => {
                let shown = errors.iter().filter(|error| !error.is_cancellation());
                let texts: Vec<String> = shown.map(ToString::to_string).filter(|text| !text.is_empty()).collect();
                f.write_str(&texts.join("; "))
            }
        }
    }
}

impl StepError {
    /// An error that comes from no process.
    pub(super) fn from_why(why: Why) -> Self {
        Self { why, exit: None }
    }

    /// True where nothing failed but what was cancelled.
    pub(super) fn is_cancellation(&self) -> bool {
        match &self.why {
            Why::Cancelled | Why::GraceExceeded => true,
            Why::Several(errors) => errors.iter().all(Self::is_cancellation),
            Why::Message(_) | Why::Plain(_) => false,
        }
    }

    /// Words that the actions above repeat.
    pub(super) fn reported(&self) -> Option<&str> {
        if let Why::Message(text) = &self.why { Some(text) } else { None }
    }
}

/// The error of several: its exit status is that of the first one that failed by itself, else of the first one at all.
pub(super) fn several(errors: Vec<StepError>) -> Option<StepError> {
    let by_itself = errors.iter().filter(|error| !error.is_cancellation()).find_map(|error| error.exit);
    let exit = by_itself.or_else(|| errors.iter().find_map(|error| error.exit));
    (!errors.is_empty()).then_some(StepError { why: Why::Several(errors), exit })
}
