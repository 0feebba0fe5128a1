//! Manages the connection to the launcher. One task keeps the launcher connected, and any task can launch or remove
//! containers over the connection.
//!
//! While the launcher is disconnected, calls fail immediately with the reason. During daemon startup, `Run` and
//! `CreatePod` instead wait for the launcher's first greeting. Running containers are not affected, because each shim
//! has its own connection to the daemon.

mod layers;
mod networks;
mod session;
mod signer;
mod sizes;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::protocol::{ConfigurationDigests, Hello, LauncherAnswer, LauncherCall, Remove, Shutdown, VERSION};
use executor_core::settings::SectionDigests;
use executor_secrets::TagKey;
use executor_sys::mutex::locked;
use tokio::sync::watch;

use crate::api_error::{ApiError, Kind};
pub use layers::LauncherLayers;
pub(crate) use session::{CallError, Session};
pub use signer::Signer;

/// Maximum time that a request waits for the launcher's first greeting.
const FIRST_GREETING_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub enum Connection {
    /// The daemon has started, and its first attempt to connect is not finished.
    First,
    /// The launcher is connected.
    Up(Arc<Session>),
    /// The launcher is not connected; holds the reason.
    Down(String),
}

/// The daemon's client of the launcher.
#[derive(Debug)]
pub struct Launcher {
    socket: PathBuf,
    /// Digests of the sections of executord's configuration that the launcher also reads.
    configuration: SectionDigests,
    connection: watch::Sender<Connection>,
    /// Key of request digests, from the newest launcher. The key outlives the connection, so that a repeated request
    /// finds its container even while no launcher is connected.
    key: Mutex<Option<TagKey>>,
    /// Number of completed greetings (handshakes) with a launcher. After a greeting, every container without a live
    /// shim has an exit record.
    greeted: watch::Sender<u64>,
}

impl Launcher {
    /// Creates a disconnected launcher client for `socket`. `configuration` holds the digests of the sections of
    /// executord's configuration that the launcher also reads.
    pub fn new(socket: PathBuf, configuration: SectionDigests) -> Self {
        Self {
            socket,
            configuration,
            connection: watch::Sender::new(Connection::First),
            key: Mutex::new(None),
            greeted: watch::Sender::new(0),
        }
    }

    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    pub fn watch(&self) -> watch::Receiver<Connection> {
        self.connection.subscribe()
    }

    pub fn watch_greetings(&self) -> watch::Receiver<u64> {
        self.greeted.subscribe()
    }

    /// Returns the key of request digests, if known.
    pub fn tag_key(&self) -> Option<TagKey> {
        locked(&self.key).clone()
    }

    /// Returns the session with the launcher.
    ///
    /// # Errors
    /// Returns an error if no launcher is connected.
    pub fn session(&self) -> Result<Arc<Session>, ApiError> {
        match &*self.connection.borrow() {
            Connection::Up(session) => Ok(Arc::clone(session)),
            Connection::First => Err(self.absent("not connected yet")),
            Connection::Down(why) => Err(self.absent(why)),
        }
    }

    /// Waits, for a limited time, for the result of the first attempt to connect to the launcher after the daemon's
    /// start. The launcher may have started at the same time, or may be cleaning up containers.
    pub(crate) async fn wait_for_first_attempt(&self) {
        let mut connection = self.watch();
        let heard = connection.wait_for(|connection| !matches!(connection, Connection::First));
        let _ = tokio::time::timeout(FIRST_GREETING_TIMEOUT, heard).await; // session() returns the error
    }

    fn absent(&self, why: &str) -> ApiError {
        ApiError::new(Kind::Unavailable, format!("no launcher serves {}: {why}", self.socket.display()))
    }

    /// Returns the error for a call without a response.
    pub(crate) fn unanswered(&self, lost: &CallError) -> ApiError {
        ApiError::new(
            Kind::Unavailable,
            format!("the call to the launcher at {} failed: {lost}", self.socket.display()),
        )
    }

    /// Removes the files of a completed container. Missing files are not an error.
    ///
    /// # Errors
    /// Returns an error if no launcher is connected or the launcher refuses.
    pub async fn remove(&self, id: &executor_core::ident::ContainerId) -> Result<(), ApiError> {
        let call = LauncherCall::Remove(Remove { container_id: id.to_string() });
        match self.session()?.call(call, &[]).await {
            Ok(LauncherAnswer::Refused(refused)) => match ApiError::from(refused) {
                problem if problem.kind == Kind::NotFound => Ok(()),
                problem => Err(problem),
            },
            Ok(_) => Ok(()),
            Err(lost) => Err(self.unanswered(&lost)),
        }
    }

    /// Adds a note to a refusal if the launcher's configuration differs, because the difference may be the cause.
    pub(crate) fn explain(&self, problem: ApiError) -> ApiError {
        let is_refusal = matches!(problem.kind, Kind::Invalid | Kind::Precondition | Kind::Denied);
        let session = self.session().ok().filter(|_| is_refusal);
        match session.as_ref().and_then(|session| session.difference()) {
            Some(difference) => problem.with_note(difference),
            None => problem,
        }
    }

    /// Sends the launcher a request to exit, and waits until the launcher has responded or exited.
    pub async fn shutdown(&self) {
        if let Ok(session) = self.session() {
            let _ = session.call(LauncherCall::Shutdown(Shutdown {}), &[]).await;
        }
    }

    /// Returns the greeting to a launcher.
    fn hello(&self) -> Hello {
        let tag_key = self.tag_key().map(|key| key.as_bytes().to_vec()).unwrap_or_default();
        let configuration = Some(ConfigurationDigests { sections: self.configuration.clone() });
        Hello { version: VERSION, tag_key, configuration }
    }
}
