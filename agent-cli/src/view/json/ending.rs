//! The result of a container.

use executor_cli_kit::exit::Outcome;
use executor_cli_kit::signals;
use executor_cli_kit::view::json::time;
use executor_client::v1::{self, exit_status};
use serde::Serialize;

use super::usage::Usage;
use super::{outputs, seconds};
use crate::view::human::word;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Ending {
    pub(crate) exit_status: u8,
    exit: Option<Exit>,
    oom_killed: bool,
    stopped: bool,
    failure: Option<Failure>,
    timings: Option<Timings>,
    wipe: Option<Wipe>,
    outputs: Option<outputs::Summary>,
    output_incomplete: bool,
    /// Counters of the whole run.
    usage: Option<Usage>,
    /// Termination message of the process.
    termination_message: Option<String>,
}

/// Exit of the process: an exit code or a signal.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Exit {
    code: Option<i32>,
    signal: Option<i32>,
    signal_name: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Failure {
    kind: String,
    message: String,
    errno: Option<i32>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Timings {
    prepare_seconds: Option<f64>,
    start_seconds: Option<f64>,
    run_seconds: Option<f64>,
    finish_seconds: Option<f64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Wipe {
    files: u32,
    bytes: u64,
    method: String,
    finished_at: Option<String>,
    verified: bool,
    wiped_by: String,
}

impl Exit {
    pub(super) fn from_exit(exit: v1::ExitStatus) -> Option<Self> {
        Some(match exit.status? {
            exit_status::Status::Code(code) => Self { code: Some(code), signal: None, signal_name: None },
            exit_status::Status::Signal(signal) => {
                Self { code: None, signal: Some(signal), signal_name: Some(signals::name(signal)) }
            }
        })
    }
}

impl From<&v1::WipeReceipt> for Wipe {
    fn from(wipe: &v1::WipeReceipt) -> Self {
        Self {
            files: wipe.files,
            bytes: wipe.bytes,
            method: wipe.method.clone(),
            finished_at: time(wipe.finished_at.as_ref()),
            verified: wipe.verified,
            wiped_by: wipe.wiped_by.clone(),
        }
    }
}

impl From<&v1::Result> for Ending {
    fn from(result: &v1::Result) -> Self {
        Self {
            exit_status: Outcome::new(Some(result)).status(),
            exit: result.exit.and_then(Exit::from_exit),
            oom_killed: result.oom_killed,
            stopped: result.stopped,
            failure: result.failure.as_ref().map(Failure::from),
            timings: result.timings.map(|timings| Timings {
                prepare_seconds: seconds(timings.prepare),
                start_seconds: seconds(timings.start),
                run_seconds: seconds(timings.run),
                finish_seconds: seconds(timings.finish),
            }),
            wipe: result.wipe.as_ref().map(Wipe::from),
            outputs: result.outputs.as_ref().map(outputs::Summary::from),
            output_incomplete: result.output_incomplete,
            usage: result.usage.as_ref().map(Usage::from),
            termination_message: Some(result.termination_message.clone()).filter(|message| !message.is_empty()),
        }
    }
}

impl From<&v1::Failure> for Failure {
    fn from(failure: &v1::Failure) -> Self {
        Self {
            kind: word(failure.kind().as_str_name(), "KIND_"),
            message: failure.message.clone(),
            errno: Some(failure.errno).filter(|errno| *errno != 0),
        }
    }
}
