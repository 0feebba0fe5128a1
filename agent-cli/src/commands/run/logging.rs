//! Options of `run` for the container's log.

#![allow(rustdoc::broken_intra_doc_links)] // brackets in help texts are not links

use std::collections::HashMap;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::units;
use executor_client::v1::{LogLimits, RunRequest};

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Container")]
pub(crate) struct LoggingArgs {
    /// Maximum logged output in bytes per second (16K), `none` for no limit, 0 for nothing [default: executord's]
    ///
    /// Output above the limit is dropped from the log, with a notice there. Attached clients, such as this command
    /// without --detach, get all output.
    #[arg(long, value_name = "SIZE", value_parser = units::rate, allow_hyphen_values = true)]
    log_rate: Option<i64>,
    /// Maximum logged output in lines per second, `none` for no limit, 0 for nothing [default: executord's]
    ///
    /// Works like --log-rate.
    #[arg(long, value_name = "N", value_parser = units::line_rate, allow_hyphen_values = true)]
    log_lines: Option<i64>,
    /// Tag of the container's log, for log sinks; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = units::label)]
    log_tag: Vec<(String, String)>,
    /// File of the host to which the output is appended in addition to the log: /var/log/pods/web/0.log
    ///
    /// The file has the format of the Kubernetes container runtime interface. It is not rotated and not removed; see
    /// reopen-log. executord's configuration lists the permitted directories (log_dirs).
    #[arg(long, value_name = "PATH")]
    log_file: Option<String>,
}

impl LoggingArgs {
    /// Adds the log limits, the tags and the log file to a run request.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        if self.log_rate.is_some() || self.log_lines.is_some() {
            request.log_limits = Some(LogLimits { bytes_per_second: self.log_rate, lines_per_second: self.log_lines });
        }
        request.log_tags = pairs("--log-tag", self.log_tag)?;
        request.log_file = self.log_file.unwrap_or_default();
        Ok(())
    }
}

/// Collects the names and values of a flag; duplicate names are an error.
pub(in crate::commands) fn pairs(
    flag: &str,
    labels: Vec<(String, String)>,
) -> Result<HashMap<String, String>, Failure> {
    let mut map = HashMap::with_capacity(labels.len());
    for (name, value) in labels {
        if map.contains_key(&name) {
            return Err(Failure::Usage(format!("{flag} {name} is given twice")));
        }
        map.insert(name, value);
    }
    Ok(map)
}
