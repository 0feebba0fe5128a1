//! `stats [ID...]`: shows resource usage of containers in a table, which is redrawn for each reading.

use std::io::IsTerminal as _;
use std::time::{Duration, SystemTime};

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::request::to_proto;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::units;
use executor_cli_kit::view::json::to_line;
use executor_client::v1::{StatsRequest, WatchStatsRequest};

use crate::ids;
use crate::view::format::Template;
use crate::view::stats::Reading;
use crate::view::{json, stats};

#[derive(Clone, Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print a single reading
    #[arg(long)]
    pub(crate) no_stream: bool,
    /// Time between readings, 1s to 1h
    #[arg(long, value_name = "DURATION", value_parser = units::grace, default_value = "1s", conflicts_with = "no_stream")]
    pub(crate) interval: Duration,
    /// Show only containers with this label; if repeated, with all of the labels
    #[arg(long = "label", short, value_name = "NAME=VALUE", value_parser = units::label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Print one line per container with this template: '{{.ID}} {{.CPUPerc}}'; `table ...` with a heading, `json`
    ///
    /// Fields: .ID, .Container and .Name (the same), .State, .CPUPerc, .CPUTime, .MemUsage, .MemPerc, .NetIO, .BlockIO,
    /// .PIDs, and each key of --json, such as .usage.memory.working_set_bytes.
    #[arg(long, value_name = "TEMPLATE", value_parser = Template::parse::<Reading<'_>>, conflicts_with = "json")]
    pub(crate) format: Option<Template>,
    /// Ids of the containers, or unique prefixes [default: all running containers]
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

const DOING: &str = "stats";
/// Escape sequence: moves the cursor to the top left and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

pub(super) async fn stats(session: &Session, args: StatsArgs) -> Result<u8, Failure> {
    let mut ids = Vec::with_capacity(args.ids.len());
    for id in args.ids {
        // An unknown prefix is not changed: executord reports the error.
        ids.push(ids::whole(&session.client, &id).await?.unwrap_or(id));
    }
    let labels = args.labels.into_iter().collect();
    if args.no_stream {
        let request = StatsRequest { ids, labels, ..StatsRequest::default() };
        let readings = session.client.stats(request).await.doing(DOING)?;
        if let Some(template) = &args.format {
            let lines = template.render(&stats::readings(&readings, &[]), SystemTime::now(), session.style)?;
            session.output.text(lines).await;
            return Ok(0);
        }
        let document: Vec<_> = readings.iter().map(json::ContainerStats::from).collect();
        session.print(&document, || stats::table(&readings, &[], session.style)).await;
        return Ok(0);
    }
    let request = WatchStatsRequest { ids, labels, interval: Some(to_proto(args.interval)?) };
    let mut watch = session.client.watch_stats(request);
    let mut before = Vec::new();
    while let Some(readings) = watch.next().await.doing(DOING)? {
        if session.json {
            for one in &readings {
                session.output.text(to_line(&json::ContainerStats::from(one))).await;
            }
        } else {
            let screen = if std::io::stdout().is_terminal() { CLEAR } else { "" };
            let text = match &args.format {
                Some(template) => {
                    template.render(&stats::readings(&readings, &before), SystemTime::now(), session.style)?
                }
                None => stats::table(&readings, &before, session.style),
            };
            session.output.text(format!("{screen}{text}")).await;
        }
        before = readings;
    }
    Ok(0)
}
