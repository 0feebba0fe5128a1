//! The connection to the launcher: kept up by one task, used by whoever launches or removes a container.
//!
//! While there is none, calls answer at once with the reason. Containers do not notice: their shims are connected
//! to this daemon directly.

mod session;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use executor_core::protocol::{Hello, LauncherAnswer, LauncherCall, Remove, Shutdown, VERSION};
use executor_secrets::TagKey;
use tokio::sync::watch;

use crate::locked;
use crate::problem::{Kind, Problem};
pub(crate) use session::{Lost, Session};

/// What the launcher is to this daemon at the moment.
#[derive(Clone, Debug)]
pub enum Connection {
    /// It is there.
    Up(Arc<Session>),
    /// It is not, and why.
    Down(String),
}

/// The daemon's view of the launcher.
#[derive(Debug)]
pub struct Launcher {
    socket: PathBuf,
    connection: watch::Sender<Connection>,
    /// The key of the newest launcher. It outlives the connection, so that a request that comes again finds its
    /// container also while there is no launcher.
    key: Mutex<Option<TagKey>>,
    /// How often a launcher was greeted. Each time every container without a live shim has an exit record.
    greeted: watch::Sender<u64>,
}

impl Launcher {
    /// A launcher that will be looked for at `socket`.
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            connection: watch::Sender::new(Connection::Down("not connected yet".to_owned())),
            key: Mutex::new(None),
            greeted: watch::Sender::new(0),
        }
    }

    /// Its socket.
    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// Watches the connection.
    pub fn watch(&self) -> watch::Receiver<Connection> {
        self.connection.subscribe()
    }

    /// Watches how often a launcher was greeted.
    pub fn watch_greetings(&self) -> watch::Receiver<u64> {
        self.greeted.subscribe()
    }

    /// The key of request tags, where one is known.
    pub fn tag_key(&self) -> Option<TagKey> {
        locked(&self.key).clone()
    }

    /// The connection.
    ///
    /// # Errors
    /// There is none.
    pub fn session(&self) -> Result<Arc<Session>, Problem> {
        match &*self.connection.borrow() {
            Connection::Up(session) => Ok(Arc::clone(session)),
            Connection::Down(why) => Err(self.absent(why)),
        }
    }

    fn absent(&self, why: &str) -> Problem {
        Problem::new(Kind::Unavailable, format!("no launcher serves {}: {why}", self.socket.display()))
    }

    /// Removes what is on disk of a completed container. What is not there is no error.
    ///
    /// # Errors
    /// There is no launcher, or it says why not.
    pub async fn remove(&self, id: &executor_core::ident::ContainerId) -> Result<(), Problem> {
        let call = LauncherCall::Remove(Remove { container_id: id.to_string() });
        match self.session()?.call(call, &[]).await {
            Ok(LauncherAnswer::Refused(refused)) => match Problem::from(refused) {
                problem if problem.kind == Kind::NotFound => Ok(()),
                problem => Err(problem),
            },
            Ok(_) => Ok(()),
            Err(lost) => Err(self.absent(&lost.to_string())),
        }
    }

    /// Asks the launcher to end, and waits until it has agreed or is gone.
    pub async fn shutdown(&self) {
        if let Ok(session) = self.session() {
            let _ = session.call(LauncherCall::Shutdown(Shutdown {}), &[]).await;
        }
    }

    /// The first words to a launcher.
    fn hello(&self) -> Hello {
        let tag_key = self.tag_key().map(|key| key.as_bytes().to_vec()).unwrap_or_default();
        Hello { version: VERSION, tag_key }
    }
}
