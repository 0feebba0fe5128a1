//! `logs [-f] ID`: prints the log of a container.

use std::time::SystemTime;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::logs::{Form, Printer, follow};
use executor_cli_kit::session::Session;
use executor_cli_kit::units;
use executor_client::v1::StreamLogsRequest;
use prost_types::Timestamp;

#[derive(Clone, Debug, Args)]
pub(crate) struct LogsArgs {
    /// Follow the log until the container is completed
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print entries from this time on: 2026-01-31T12:00:00Z, or 10m for the last ten minutes
    #[arg(long, value_name = "TIME", value_parser = |text: &str| units::instant(text, SystemTime::now()))]
    pub(crate) since: Option<SystemTime>,
    /// Print entries up to this time; with --follow, exit at this time
    #[arg(long, value_name = "TIME", value_parser = |text: &str| units::instant(text, SystemTime::now()))]
    pub(crate) until: Option<SystemTime>,
    /// Number of lines to print from the end of the current log; `all` for all lines
    #[arg(long, short = 'n', value_name = "LINES", value_parser = units::lines, default_value = "all", allow_hyphen_values = true)]
    pub(crate) tail: units::Lines,
    /// Print entries from this number on, as shown by --json: 1 is the first entry
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "tail")]
    pub(crate) from: Option<u64>,
    /// Prefix each line with its timestamp
    #[arg(long, short)]
    pub(crate) timestamps: bool,
    /// Id of the container, or a unique prefix
    pub(crate) id: String,
}

pub(super) async fn logs(session: &Session, args: LogsArgs) -> Result<u8, Failure> {
    let form = if session.json { Form::Json } else { Form::AsItWas };
    let mut printer = Printer::new(session.output.clone(), form);
    if args.timestamps {
        printer = printer.with_times();
    }
    let (since, until) = (args.since.map(timestamp), args.until.map(timestamp));
    let request = StreamLogsRequest {
        id: args.id,
        follow: args.follow,
        since,
        until,
        tail: args.tail.0,
        from_sequence: args.from,
        ..StreamLogsRequest::default()
    };
    follow(&session.client, request, &mut printer).await?;
    Ok(0)
}

/// Converts a time. A time before 1970 becomes 1970, which is before all entries.
fn timestamp(time: SystemTime) -> Timestamp {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or_else(
        |_| Timestamp::default(),
        |since| Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
        },
    )
}
