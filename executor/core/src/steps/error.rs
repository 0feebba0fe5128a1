//! Defines the errors of steps, in Cloud Foundry's wording.

use crate::record::Exit;

/// Error of a step, and the exit of the process that caused the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepError {
    pub(super) why: Why,
    pub(super) cause: Option<Cause>,
}

/// End of a process that caused an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Exit(Exit),
    /// The program could not be executed; holds the error number, which is not 0.
    NotExecuted(i32),
}

/// Reason why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A message for users of the container.
    Message(String),
    /// A message that the errors of parent actions do not repeat.
    Plain(String),
    Cancelled,
    /// The process was cancelled, and killed after the grace period.
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
    /// Creates an error that was not caused by a process.
    pub(super) fn from_why(why: Why) -> Self {
        Self { why, cause: None }
    }

    /// Returns the exit status of the process that caused the error.
    pub(super) fn exit(&self) -> Option<Exit> {
        if let Some(Cause::Exit(exit)) = self.cause { Some(exit) } else { None }
    }

    /// Returns the error number of the program that could not be executed, or 0.
    pub(super) fn errno(&self) -> i32 {
        if let Some(Cause::NotExecuted(errno)) = self.cause { errno } else { 0 }
    }

    /// Returns true if the step was cancelled and did not fail.
    pub(super) fn is_cancellation(&self) -> bool {
        match &self.why {
            Why::Cancelled | Why::GraceExceeded => true,
            Why::Several(errors) => errors.iter().all(Self::is_cancellation),
            Why::Message(_) | Why::Plain(_) => false,
        }
    }

    /// Returns the message that parent actions repeat.
    pub(super) fn reported(&self) -> Option<&str> {
        if let Why::Message(text) = &self.why { Some(text) } else { None }
    }
}

/// Joins several errors. The cause comes from the first error that has a cause and is not a cancellation; if there is
/// none, from the first error that has a cause.
pub(super) fn join_errors(errors: Vec<StepError>) -> Option<StepError> {
    let by_itself = errors.iter().filter(|error| !error.is_cancellation()).find_map(|error| error.cause);
    let cause = by_itself.or_else(|| errors.iter().find_map(|error| error.cause));
    (!errors.is_empty()).then_some(StepError { why: Why::Several(errors), cause })
}
