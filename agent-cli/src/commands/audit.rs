//! `audit`: runs a container with canaries, searches for the canaries while the container runs and one second after its
//! exit, and prints a table.
//!
//! ```text
//! run -> secrets printed -> rotate -> new file printed -> one second -> search
//!     -> stop -> completed -> one second -> search -> delete -> table
//! ```
//! The container is deleted even if a step fails.

mod findings;
mod inputs;
mod scene;
pub(crate) mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use executor_cli_kit::container::{ask_to_stop, completed};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::{self, ErrorContext as _};
use executor_cli_kit::text::plain;
use executor_cli_kit::units;
use executor_client::{Code, Logs, Run, Wiped, rest_of_log};
use executor_residue::{Needles, Report};

use self::findings::Findings;
use self::inputs::{AGAIN, Inputs, Kind, READY, SIZES, accepted_kinds, add_token, mounts};
use self::scene::{SearchHits, SearchScope, contains_canary};
use self::view::{About, Json, human};

/// Exit status if a secret was found or the search was incomplete.
const RESIDUE: u8 = 1;

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Size of each canary: 64 to 450000; in variables and arguments at most 100000
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = canary_size)]
    pub(crate) size: u64,
    /// Root file system of the container: `host` or `dir:/absolute/path`; must contain /bin/sh, cat and sleep
    #[arg(long, value_name = "REF", default_value = "host")]
    pub(crate) rootfs: String,
    /// Run the container as `user`, `uid`, `user:group` or `uid:gid` [default: root]
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Also search the journal
    #[arg(long)]
    pub(crate) journal: bool,
    /// Also search all of the machine's memory, through /proc/kcore (one or two seconds per gigabyte)
    #[arg(long)]
    pub(crate) kernel_memory: bool,
}

fn canary_size(text: &str) -> Result<u64, String> {
    let (least, most) = (SIZES.start(), SIZES.end());
    let size = units::size(text)?;
    if SIZES.contains(&size) { Ok(size) } else { Err(format!("is {size}; {least} to {most} is allowed")) }
}

/// Delay after which no secret of a completed container or of a replaced file may remain. A replaced file remains for
/// half a second, for readers that have just opened its path.
const SEARCH_DELAY: Duration = Duration::from_secs(1);

/// Returns an error if this process is not root, because only root can read the memory of the executor's processes.
pub(super) fn require_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::Usage(
        "audit reads the memory of executord, its launcher and its shims, which needs root: run `sudo agent-cli audit`"
            .into(),
    ))
}

pub(super) async fn audit(session: &Session, args: AuditArgs, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    let Some(socket) = session.client.address().socket() else {
        return Err(Failure::Usage(
            "audit searches only this machine: run audit on executord's machine, with --socket".into(),
        ));
    };
    let info = session.client.info().await.doing("info")?;
    let scene = SearchScope::new(socket, &info, args.journal);
    let inputs = Inputs::random(args.size)?;
    let about = About {
        id: inputs.id().to_owned(),
        version: info.version,
        socket: socket.display().to_string(),
        size: args.size,
    };
    let id = about.id.clone();
    let result = tokio::select! {
        findings = examine(session, &args, scene, inputs) => findings,
        signal = interrupts.next() => Err(Failure::Interrupted(signal)),
    };
    delete(session, &id).await;
    let findings = result?;
    let status = if findings.is_clean() { 0 } else { RESIDUE };
    let text = human(&findings, &about, session.style);
    session.print(&Json::new(&findings, about), || text).await;
    Ok(status)
}

async fn examine(session: &Session, args: &AuditArgs, scene: SearchScope, inputs: Inputs) -> Result<Findings, Failure> {
    let id = inputs.id().to_owned();
    let run = Run::from(inputs.request(args));
    let container = session.client.run(&run).await.doing(&format!("run {id}"))?.container;
    drop(run);
    let mut needles = inputs.needles()?;
    let mut kinds = accepted_kinds(&container);
    let mut log = Log { session, id: &id, entries: session.client.logs(rest_of_log(&id, 0)), tail: String::new() };
    log.until(READY).await?;

    let files = mounts(&container);
    let old_file = contains_canary(&needles, &files, Kind::OldFile);
    match session.client.update_files(Wiped::new(inputs.update())).await {
        Ok(_) => {
            log.until(AGAIN).await?;
            tokio::time::sleep(SEARCH_DELAY).await;
            kinds.push(Kind::NewFile);
        }
        Err(error) if error.code() == Some(Code::Unimplemented) => kinds.retain(|kind| *kind != Kind::OldFile),
        Err(error) => return Err(status::failure(&format!("rotate {id}"), error)),
    }
    // Later log entries are not needed.
    drop(log);
    if add_token(&mut needles, &container) {
        kinds.push(Kind::Token);
    }
    drop(inputs);

    let needles = Arc::new(needles);
    let during = search(&scene, &needles, files).await?;
    ask_to_stop(&session.client, &id, None).await?;
    completed(&session.client, &id).await?;
    tokio::time::sleep(SEARCH_DELAY).await;
    let after = search(&scene, &needles, Vec::new()).await?;
    let kernel = if args.kernel_memory { Some(search_kernel_memory(&needles).await?) } else { None };
    Ok(Findings::new(&scene, kinds, old_file, &during, after, kernel))
}

async fn search(scene: &SearchScope, needles: &Arc<Needles>, files: Vec<PathBuf>) -> Result<SearchHits, Failure> {
    let (scene, needles) = (scene.clone(), Arc::clone(needles));
    let search = tokio::task::spawn_blocking(move || scene.search(&needles, &files));
    search.await.map_err(|error| Failure::System(error.into()))
}

async fn search_kernel_memory(needles: &Arc<Needles>) -> Result<Report, Failure> {
    let needles = Arc::clone(needles);
    let search = tokio::task::spawn_blocking(move || SearchScope::search_kernel(&needles));
    search.await.map_err(|error| Failure::System(error.into()))
}

/// The container's log, in which the audit waits for the markers that its script prints.
struct Log<'a> {
    session: &'a Session,
    id: &'a str,
    entries: Logs,
    tail: String,
}

impl Log<'_> {
    async fn until(&mut self, words: &str) -> Result<(), Failure> {
        loop {
            match self.entries.next().await.doing(&format!("logs of {}", self.id))? {
                Some(entry) => {
                    self.tail += &String::from_utf8_lossy(&entry.data);
                    if self.tail.contains(words) {
                        self.tail.clear();
                        return Ok(());
                    }
                    // The marker may be split over two pieces. Text before the marker may be long, so it is dropped.
                    let keep = self.tail.floor_char_boundary(self.tail.len().saturating_sub(words.len()));
                    self.tail.drain(..keep);
                }
                None => return Err(self.ended_early().await),
            }
        }
    }

    /// Returns the error that explains why the container exited early.
    async fn ended_early(&self) -> Failure {
        let result = self.session.client.get(self.id).await.ok().and_then(|container| container.result);
        let why = match result.and_then(|result| result.failure) {
            Some(failure) => plain(&failure.message),
            None => "the script did not complete".to_owned(),
        };
        Failure::AuditEnded(why)
    }
}

async fn delete(session: &Session, id: &str) {
    match session.client.delete(id, true).await.doing(&format!("rm {id}")) {
        Ok(()) => {}
        Err(failure) if failure.code() == Some(Code::NotFound) => {}
        Err(failure) => session.output.note(format!("the container {id} may still exist: {}", failure.describe())),
    }
}
