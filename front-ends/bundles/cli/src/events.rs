//! `agent-cli bundle events`: prints past and new events of installations.
//!
//! Events are stored in the records of installations. With `--follow`, the records are read again whenever inotify
//! reports a change of their directory.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use executor_bundles::installation::{Event, Store, StoreError, check_name};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::global::Global;
use executor_cli_kit::output::print;
use executor_cli_kit::text::plain;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::install::{InstallError, StoreArgs};

/// Last time that RFC 3339 can represent, in seconds since the Unix epoch.
const END: u64 = 253_402_300_799;

#[derive(Clone, Debug, Args)]
pub(crate) struct EventsArgs {
    /// Show only these installations
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Continue with new events until interrupted; a named installation need not exist yet
    #[arg(long, short)]
    follow: bool,
}

/// Prints events; with `--json` one document per line.
pub(crate) fn events(global: &Global, store: &StoreArgs, args: &EventsArgs) -> Result<u8, Failure> {
    args.names.iter().try_for_each(|name| check_name(name).map_err(Failure::Usage))?;
    let store = store.store()?;
    let mut seen = Seen::default();
    let changes =
        if args.follow { Some(Changes::from_directory(store.directory()).map_err(Failure::System)?) } else { None };
    loop {
        // Watch before reading, so that no change is missed.
        if let Some(changes) = &changes {
            changes.watch().map_err(Failure::System)?;
        }
        let mut text = String::new();
        for reported in seen.poll(&store, args).map_err(InstallError::from)? {
            if global.json {
                text += &format!("{reported}\n");
            } else {
                text += &line(&reported);
            }
        }
        if !text.is_empty() {
            print(text)?;
        }
        let Some(changes) = &changes else { return Ok(0) };
        changes.wait().map_err(Failure::System)?;
    }
}

/// Watches a directory, which may not exist yet.
struct Changes {
    directory: PathBuf,
    watches: OwnedFd,
}

impl Changes {
    fn from_directory(directory: PathBuf) -> io::Result<Self> {
        let directory = std::path::absolute(directory)?;
        Ok(Self { directory, watches: inotify::init(CreateFlags::CLOEXEC)? })
    }

    /// Watches the directory or, if it does not exist, its nearest existing ancestor.
    fn watch(&self) -> io::Result<()> {
        let records = WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let above = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        loop {
            let Some(found) = self.directory.ancestors().find(|path| path.is_dir()) else {
                return Err(io::ErrorKind::NotFound.into());
            };
            let is_whole = found == self.directory;
            match inotify::add_watch(&self.watches, found, if is_whole { records } else { above }) {
                Err(Errno::NOENT | Errno::NOTDIR) => continue, // removed concurrently
                added => added?,
            };
            // If the directory was created before its parent was watched, try again to watch the directory itself.
            if is_whole || !self.directory.ancestors().take_while(|path| *path != found).any(Path::is_dir) {
                return Ok(());
            }
        }
    }

    /// Waits for a change of the watched directory.
    fn wait(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        loop {
            match inotify::Reader::new(&self.watches, &mut buffer).next() {
                Err(Errno::INTR) => {}
                changed => return Ok(changed.map(drop)?),
            }
        }
    }
}

/// Number of the last printed event, by installation.
#[derive(Default)]
struct Seen(BTreeMap<String, u64>);

impl Seen {
    /// Returns the events that have not been printed yet, sorted by time.
    fn poll(&mut self, store: &Store, args: &EventsArgs) -> Result<Vec<Value>, StoreError> {
        let names = if args.names.is_empty() { store.names()? } else { args.names.clone() };
        let mut reported: Vec<(u64, Value)> = Vec::new();
        for name in &names {
            match store.read(name)? {
                Some(it) => {
                    let newest = it.events.last().map_or(0, |event| event.sequence);
                    let seen = self.0.insert(name.clone(), newest).unwrap_or_default();
                    // If an installation was removed and created again, its event numbers restart at 1.
                    let seen = if newest < seen { 0 } else { seen };
                    reported
                        .extend(it.events.iter().filter(|it| it.sequence > seen).map(|it| (it.at, document(name, it))));
                }
                None if args.follow => {}
                None => return Err(StoreError::Missing(name.clone())),
            }
        }
        let gone = |name: &String| !matches!(store.read(name), Ok(Some(_)));
        let gone: Vec<String> = self.0.keys().filter(|name| gone(name)).cloned().collect();
        for name in gone {
            self.0.remove(&name);
            let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
            reported.push((at, json!({"installation": name, "at": at, "type": "Uninstalled", "status": "True", "reason": "Uninstalled", "message": "everything was removed"})));
        }
        reported.sort_by_key(|(at, _)| *at);
        Ok(reported.into_iter().map(|(_, document)| document).collect())
    }
}

fn document(name: &str, event: &Event) -> Value {
    let mut document = json!(event);
    document["installation"] = name.into();
    document
}

/// Formats an event as text.
fn line(reported: &Value) -> String {
    let text = |field: &str| plain(reported[field].as_str().unwrap_or_default());
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(reported["at"].as_u64().unwrap_or_default().min(END));
    let at = humantime::format_rfc3339_seconds(at);
    let revision = reported["revision"].as_u64().map_or_else(String::new, |revision| format!(" revision {revision}"));
    let (name, kind, status, reason) = (text("installation"), text("type"), text("status"), text("reason"));
    format!("{at} {name}{revision}: {kind} {status} {reason}: {}\n", text("message"))
}
