//! `top`: shows resource usage on a full screen, which is redrawn after each reading, key press and resize.
//!
//! [`screen`] computes the contents and does not depend on the terminal. With --batch, or if standard output is not a
//! terminal, plain tables are printed. While executord is unavailable, the last reading stays on the screen, with a
//! note.

mod screen;

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use executor_cli_kit::connect::Client;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::request::to_proto;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::terminal::{self, Keyboard, Raw, Typed};
use executor_cli_kit::units;
use executor_cli_kit::view::json::to_line;
use executor_client::v1::{ContainerStats, InfoResponse, WatchStatsRequest};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::screen::{KeyAction, Screen, Sort};
use crate::view::{json, stats};

#[derive(Clone, Debug, Args)]
pub(crate) struct TopArgs {
    /// Print tables one after the other, as if standard output were not a terminal
    #[arg(long, short)]
    pub(crate) batch: bool,
    /// Exit after this many readings
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    /// Time between readings, 1s to 1h
    #[arg(long, short = 'd', value_name = "DURATION", value_parser = units::grace, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Column to sort by, largest first (ids: in ascending order)
    #[arg(long, value_enum, default_value_t = Sort::Cpu)]
    pub(crate) sort: Sort,
    /// Reverse the order
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Show only containers with this text in their id
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// Show only containers with this label; if repeated, with all of the labels
    #[arg(long = "label", short, value_name = "NAME=VALUE", value_parser = units::label)]
    pub(crate) labels: Vec<(String, String)>,
}

const DOING: &str = "top";
/// Escape sequence: enters the terminal's alternate screen and hides the cursor.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
/// Escape sequence: undoes [`ENTER`].
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";
/// Delay after which a missing reading is reported.
const MISSING_READING_DELAY: Duration = Duration::from_secs(2);
/// Interval of redraws without a reading, and of attempts to connect to an unavailable executord.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Assumed size of a terminal that reports no size, in rows and columns.
const SIZE: (usize, usize) = (24, 80);

/// Message from the task that reads statistics to the task that draws the screen.
enum Update {
    Reading(Vec<ContainerStats>, Box<Option<InfoResponse>>),
    Failed(Failure),
}

pub(super) async fn top(session: &Session, args: TopArgs) -> Result<u8, Failure> {
    let on_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let labels = args.labels.iter().cloned().collect();
    let request =
        WatchStatsRequest { labels, interval: Some(to_proto(args.interval)?), ..WatchStatsRequest::default() };
    if args.batch || session.json || !on_terminal {
        return batch(session, &args, request).await;
    }
    interactive(session, &args, request).await
}

async fn batch(session: &Session, args: &TopArgs, request: WatchStatsRequest) -> Result<u8, Failure> {
    let mut screen = Screen::new(args.sort, args.reverse, args.filter.clone());
    let mut watch = session.client.watch_stats(request);
    let mut left = args.iterations;
    while left != Some(0) {
        let Some(readings) = watch.next().await.doing(DOING)? else { break };
        screen.set_readings(readings);
        let (shown, before) = screen.shown();
        if session.json {
            for one in &shown {
                session.output.text(to_line(&json::ContainerStats::from(one))).await;
            }
        } else {
            session.output.text(format!("{}\n", stats::table(&shown, before, session.style))).await;
        }
        left = left.map(|left| left - 1);
    }
    Ok(0)
}

/// Guard that keeps the alternate screen until it is dropped.
struct AlternateScreen;

impl AlternateScreen {
    fn enter() -> Self {
        put(ENTER);
        Self
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        put(LEAVE);
    }
}

fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush()); // the terminal may be closed
}

async fn interactive(session: &Session, args: &TopArgs, request: WatchStatsRequest) -> Result<u8, Failure> {
    let mut resized = signal(SignalKind::window_change()).map_err(Failure::System)?;
    let mut keyboard = Keyboard::start(None)?;
    let (sender, mut updates) = mpsc::channel(4);
    tokio::spawn(follow(session.client.clone(), request, sender));
    let mut screen = Screen::new(args.sort, args.reverse, args.filter.clone());
    let (mut last_reading, mut left) = (Instant::now(), args.iterations);
    let mut clock = tokio::time::interval(REFRESH_INTERVAL);
    let _raw = Raw::enter()?;
    let _alternate = AlternateScreen::enter();
    while left != Some(0) {
        let (rows, columns) = terminal::window().map_or(SIZE, |size| (size.rows as usize, size.columns as usize));
        session.output.text(screen.draw(rows, columns, session.style)).await;
        tokio::select! {
            reported = updates.recv() => match reported {
                Some(Update::Reading(readings, info)) => {
                    last_reading = Instant::now();
                    screen.set_message(String::new());
                    screen.set_readings(readings);
                    screen.set_node(*info);
                    left = left.map(|left| left - 1);
                }
                Some(Update::Failed(failure)) => screen.set_message(failure.describe()),
                None => break,
            },
            typed = keyboard.next() => match typed {
                Typed::Bytes(bytes) => if screen.press(&bytes) == KeyAction::Quit { break },
                Typed::End | Typed::Detach => break,
            },
            _ = resized.recv() => {}
            _ = clock.tick() => {
                let silent = last_reading.elapsed();
                if silent > args.interval + MISSING_READING_DELAY {
                    let silent = silent.as_secs();
                    screen.set_message(format!("no reading for {silent} s: executord is unavailable or busy"));
                }
            }
        }
    }
    // Finish drawing before leaving the alternate screen.
    session.output.finish().await?;
    Ok(0)
}

/// Reads statistics, even across restarts of executord, until the receiver is dropped.
async fn follow(client: Client, request: WatchStatsRequest, updates: mpsc::Sender<Update>) {
    loop {
        let mut watch = client.watch_stats(request.clone());
        loop {
            let reported = match watch.next().await.doing(DOING) {
                Ok(Some(readings)) => Update::Reading(readings, Box::new(client.info().await.ok())),
                Ok(None) => break,
                Err(failure) => {
                    let reported = updates.send(Update::Failed(failure)).await;
                    tokio::time::sleep(REFRESH_INTERVAL).await;
                    if reported.is_err() {
                        return;
                    }
                    break;
                }
            };
            if updates.send(reported).await.is_err() {
                return;
            }
        }
    }
}
