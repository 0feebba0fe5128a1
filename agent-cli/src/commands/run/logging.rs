//! Options of `run` about the container's log.

#![allow(rustdoc::broken_intra_doc_links)] // help texts: brackets in them are no links

use std::collections::HashMap;

use clap::Args;
use executor_client::v1::{LogLimits, RunRequest};

use crate::failure::Failure;
use crate::units;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Container")]
pub(crate) struct LoggingArgs {
    /// Bytes of output that are kept in its log in a second (16K), `none` for no limit, 0 for nothing [default: executord's]
    ///
    /// Output above it is dropped from the log, with one notice there. Attached clients, such as this command without --detach,
    /// get all output.
    #[arg(long, value_name = "SIZE", value_parser = units::rate, allow_hyphen_values = true)]
    log_rate: Option<i64>,
    /// Lines of output that are kept in its log in a second, likewise
    #[arg(long, value_name = "N", value_parser = units::line_rate, allow_hyphen_values = true)]
    log_lines: Option<i64>,
    /// Tag of its log, for whoever passes the log on; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = units::label)]
    log_tag: Vec<(String, String)>,
}

impl LoggingArgs {
    /// Puts the options into a request.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        if self.log_rate.is_some() || self.log_lines.is_some() {
            request.log_limits = Some(LogLimits { bytes_per_second: self.log_rate, lines_per_second: self.log_lines });
        }
        request.log_tags = pairs("--log-tag", self.log_tag)?;
        Ok(())
    }
}

/// Collects the names and values of a flag, each name once.
pub(in crate::commands) fn pairs(
    flag: &str,
    labels: Vec<(String, String)>,
) -> Result<HashMap<String, String>, Failure> {
    let mut map = HashMap::with_capacity(labels.len());
    for (name, value) in labels {
        if map.contains_key(&name) {
            return Err(Failure::Usage(format!("{flag} {name} is there twice")));
        }
        map.insert(name, value);
    }
    Ok(map)
}
