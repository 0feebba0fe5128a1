//! `drain`, `undrain` and `health`: stops executord from accepting containers, makes it accept containers again, and
//! shows or sets its health.

use std::io::IsTerminal as _;
use std::pin::pin;
use std::time::{Duration, SystemTime};

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json::to_line;
use executor_cli_kit::view::quantity;
use executor_cli_kit::{exit, units};
use executor_client::Drain;
use executor_client::v1::DrainResponse;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::view::{human, json};

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Time after which running containers are killed, at most 24h [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = units::grace)]
    deadline: Option<Duration>,
    /// Number of containers to stop concurrently, at most 1000 [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    parallel: Option<u32>,
    /// Reason given to clients whose containers are rejected
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Mark this executord as unhealthy, for this reason
    #[arg(long, value_name = "REASON", conflicts_with = "healthy")]
    unhealthy: Option<String>,
    /// Clear the mark set with --unhealthy
    #[arg(long)]
    healthy: bool,
}

/// Exit status of `health` if executord is unhealthy.
const UNHEALTHY: u8 = 1;

const DOING: &str = "drain";

pub(super) async fn drain(session: &Session, args: DrainArgs, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    let DrainArgs { deadline, parallel, reason } = args;
    let mut drain = session.client.cell().drain(deadline, parallel.unwrap_or(0), &reason).doing(DOING)?;
    let mut shown = Shown::new(session);
    let result = tokio::select! {
        result = follow(session, &mut drain, &mut shown) => result.map(Some),
        () = session.output.failed() => session.output.result().map(|()| None),
        signal = interrupts.next() => {
            shown.end();
            session.output.note("the drain continues: `agent-cli drain` follows it, `agent-cli undrain` cancels it");
            return Ok(exit::after_signal(signal));
        }
    };
    shown.end();
    let Some(last) = result? else { return Ok(0) };
    if !session.json {
        session.output.text(summary(&last)).await;
    }
    // The containers in `left` may still be running.
    Ok(if last.left.is_empty() { 0 } else { exit::OURS })
}

/// Shows the progress until the drain ends. Returns the last message.
async fn follow(session: &Session, drain: &mut Drain, shown: &mut Shown) -> Result<DrainResponse, Failure> {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let mut last = DrainResponse::default();
    loop {
        let mut next = pin!(drain.next());
        let progress = loop {
            tokio::select! {
                progress = &mut next => break progress.doing(DOING)?,
                // Messages arrive only on changes, so redraw the remaining time every second.
                _ = second.tick() => shown.draw(&last),
            }
        };
        let Some(progress) = progress else { return Ok(last) };
        shown.show(session, &progress).await;
        last = progress;
    }
}

/// Formats the result of a drain.
fn summary(last: &DrainResponse) -> String {
    let mut text = format!("drained: {} completed, {} killed\n", last.ended, last.killed.len());
    for id in &last.killed {
        text.push_str(&format!("killed: {}\n", plain(id)));
    }
    for id in &last.left {
        text.push_str(&format!("NOT completed: {}\n", plain(id)));
    }
    text
}

/// Display of the progress: a bar on a terminal, otherwise lines, or documents with --json.
struct Shown {
    bar: Option<ProgressBar>,
}

impl Shown {
    fn new(session: &Session) -> Self {
        let is_bar = !session.json && std::io::stderr().is_terminal();
        // Use the full width of the terminal, and truncate the message.
        let style = ProgressStyle::with_template("draining {bar:12} {pos}/{len} completed{wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸ ");
        let target = ProgressDrawTarget::stderr_with_hz(10);
        Self { bar: is_bar.then(|| ProgressBar::with_draw_target(Some(0), target).with_style(style)) }
    }

    /// Draws the bar, if there is one.
    fn draw(&self, progress: &DrainResponse) {
        let Some(bar) = self.bar.as_ref().filter(|_| progress.deadline_at.is_some()) else { return };
        let left = quantity::left(progress.deadline_at.as_ref(), SystemTime::now());
        bar.set_length(progress.total.into());
        bar.set_position(progress.ended.into());
        let killed = progress.killed.len();
        let killed = if killed == 0 { String::new() } else { format!(", {killed} killed") };
        bar.set_message(format!("{killed}, {} stopping; deadline {left}", progress.stopping));
    }

    async fn show(&mut self, session: &Session, progress: &DrainResponse) {
        if self.bar.is_some() {
            self.draw(progress);
        } else if session.json {
            session.output.text(to_line(&json::Drain::from(progress))).await;
        } else if !progress.done {
            let DrainResponse { ended, total, stopping, .. } = progress;
            let (killed, left) =
                (progress.killed.len(), quantity::left(progress.deadline_at.as_ref(), SystemTime::now()));
            let line = format!("{ended} of {total} completed, {stopping} stopping, {killed} killed; deadline {left}\n");
            session.output.text(line).await;
        }
    }

    fn end(&mut self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

pub(super) async fn undrain(session: &Session) -> Result<u8, Failure> {
    session.client.cell().undrain().await.doing("undrain")?;
    Ok(0)
}

pub(super) async fn health(session: &Session, args: HealthArgs) -> Result<u8, Failure> {
    let doing = "health";
    let is_query = args.unhealthy.is_none() && !args.healthy;
    let health = match (args.unhealthy, args.healthy) {
        (Some(reason), _) => session.client.cell().set_unhealthy(Some(&reason)).await.doing(doing)?,
        (None, true) => session.client.cell().set_unhealthy(None).await.doing(doing)?,
        (None, false) => session.client.info().await.doing(doing)?.health.unwrap_or_default(),
    };
    session.print(&json::Health::from(&health), || human::health_line(&health) + "\n").await;
    Ok(if is_query && !health.healthy { UNHEALTHY } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_summary_lists_killed_and_remaining() {
        let last = DrainResponse {
            total: 4,
            ended: 3,
            killed: vec!["a".into(), "b\u{1b}".into()],
            left: vec!["c".into()],
            ..DrainResponse::default()
        };
        let text = summary(&last);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[1], lines[3]), ("drained: 3 completed, 2 killed", "killed: a", "NOT completed: c"));
        assert!(!text.contains('\u{1b}'));
    }
}
