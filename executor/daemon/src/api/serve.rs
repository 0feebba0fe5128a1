//! The accept loop: connections, whom they belong to, and their end.
//!
//! tonic's own server is not used, because what a connection leaves in memory must be in our hands: nothing that it
//! carries goes through the HTTP/2 library (see the module `wire`). A connection ends when its client ends it, gracefully
//! when the daemon stops, and where its place or the memory of its answers is wanted by others.
//!
//! There are two doors: the control plane's, and the one that containers see. What comes in at the second one is bounded
//! apart from the first, in number, in number for each container, and in time.

use std::convert::Infallible;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use executor_core::idmap::Pool;
use executor_sys::peer::{self, Peer};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tonic::codegen::{Service as _, http};
use tonic::service::Routes;

use super::auth::{Access, Door, GET_SECRETS};
use super::places::{Limits, Owner, Place, Places};
use super::rates::{Rate, Rates};
use super::remainder::Remainder;
use crate::problem::Problem;
use crate::wire::body::{Answered, Call};
use crate::wire::budget::{Budget, Room};
use crate::wire::{Calls, FIELDS_MAX, Wire};

/// Bytes of answers that are buffered for a stream whose client does not read.
const SEND_BUFFER: usize = 32 << 10;
/// Between looks whether a silent client is still there, and for its answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));
/// When no connection can be accepted (out of descriptors), before the next attempt.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For a client that is told so.
const SHORTAGE_LIFETIME: Duration = Duration::from_secs(1);
/// Descriptors that are kept for that: of the connection, and of the second hold on it.
const SPARES: usize = 2;
/// For a client's first words, and for it to know the settings.
const GREETING: Duration = Duration::from_secs(10);
/// For an answer with secrets to be taken, and for answers on a connection that is too old.
const ANSWER: Duration = Duration::from_secs(10);
/// Nothing is asked for so long on a connection that is to end: for a call that is on its way.
const QUIET: Duration = Duration::from_millis(200);
/// Service whose messages have a bound of the configuration, and the bound of all others' messages.
const EXECUTOR: &str = "/executor.v1.Executor/";
pub(super) const OTHER_MESSAGE_MAX: usize = 4 << 20;
/// Between two words in the log about connections that were refused.
const REFUSAL_PACE: Duration = Duration::from_secs(10);

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Calls at once on a connection.
    pub streams: u32,
    /// Largest message of a request to the executor itself.
    pub message_bytes: usize,
}

/// Bounds of what containers see: each asks once, for something short.
const RUNTIME_BOUNDS: Bounds = Bounds { connections: 128, streams: 4, message_bytes: super::RUNTIME_MESSAGE_MAX };
/// Connections of one container at once on what containers see.
const RUNTIME_EACH: usize = 32;
/// Between two connections that are taken there, or so many that are sent away: clients that come as fast as they can take
/// no more than a part of one processor from the control plane.
const RUNTIME_PACE: Pace = Pace { pause: Duration::from_millis(1), refused: 32 };
/// For one container there: it asks once, or again after a rotation.
const RUNTIME_RATE: Rate = Rate { burst: 64, interval: Duration::from_millis(20) };
/// For a call to be made and answered there.
const RUNTIME_LIFETIME: Duration = Duration::from_secs(10);

/// How fast connections are taken from the queue.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// After one that is served.
    pause: Duration,
    /// After so many that are sent away: they cost little, and hold up whoever waits behind them.
    refused: u32,
}

/// A socket and what is served on it.
#[derive(Debug)]
pub(crate) struct Entrance {
    listener: UnixListener,
    routes: Routes,
    door: Door,
    bounds: Bounds,
    limits: Limits,
    /// The host's ids that are containers'.
    pool: Option<Pool>,
    lifetime: Option<Duration>,
    pace: Option<Pace>,
}

impl Entrance {
    /// The control plane's.
    pub(crate) fn main(listener: UnixListener, routes: Routes, access: Access, bounds: Bounds) -> Self {
        let all = bounds.connections;
        let limits = Limits { all, each: all, users: usize::MAX, spare: 48, few: 4, few_of_root: 16 };
        Self { listener, routes, door: Door::Main(access), bounds, limits, pool: None, lifetime: None, pace: None }
    }

    /// The containers', whose ids are of this pool.
    pub(crate) fn runtime(listener: UnixListener, routes: Routes, pool: Option<Pool>) -> Self {
        let all = RUNTIME_BOUNDS.connections;
        Self {
            listener,
            routes,
            door: Door::Runtime,
            bounds: RUNTIME_BOUNDS,
            limits: Limits { all, each: RUNTIME_EACH, users: all / 2, spare: 64, few: 2, few_of_root: 2 },
            pool,
            lifetime: Some(RUNTIME_LIFETIME),
            pace: Some(RUNTIME_PACE),
        }
    }

    fn owner(&self, peer: &Peer) -> Owner {
        Owner::of(peer.uid, self.pool.as_ref())
    }
}

/// Serves until told to stop, then until every connection has ended. The caller bounds that in time.
pub(crate) async fn serve(entrance: Entrance, mut stopping: watch::Receiver<bool>) {
    let routes = entrance.routes.clone().prepare();
    let (places, budget) = (Places::new(entrance.limits), Budget::new());
    let (alive, mut ended) = mpsc::channel::<Infallible>(1);
    let mut refusals = Refusals::default();
    // Only containers come in crowds that nobody answers for.
    let mut rates = entrance.pace.map(|_| Rates::new(RUNTIME_RATE));
    let mut unpaced = 0;
    let mut spares = Vec::new();
    while !*stopping.borrow() {
        if spares.is_empty() {
            spares = spare(&entrance.listener);
        }
        if let Some(Pace { pause, refused }) = entrance.pace
            && unpaced == 0
        {
            sleep(pause).await;
            unpaced = refused;
        }
        let accepted = tokio::select! {
            accepted = entrance.listener.accept() => accepted,
            _ = stopping.changed() => continue,
        };
        // Where there is no descriptor for a connection, it is taken with the spare ones, and told so.
        let mut shortage = None;
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                spares.clear();
                shortage = Some(Problem::of_system("no connection can be taken", &error));
                match timeout(ACCEPT_PAUSE, entrance.listener.accept()).await {
                    Ok(Ok((stream, _))) => stream,
                    _ => {
                        sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                }
            }
        };
        let peer = match peer::of(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "cannot read a client's credentials");
                continue;
            }
        };
        let calls = Calls::new(entrance.bounds.streams);
        let owner = entrance.owner(&peer);
        let admitted = rates.as_mut().is_none_or(|rates| rates.admit(owner, Instant::now().into_std()));
        let Some(place) = admitted.then(|| places.enter(owner, &calls)).flatten() else {
            unpaced = unpaced.saturating_sub(1);
            refusals.tell(owner, entrance.limits);
            continue;
        };
        unpaced = 0;
        let connection = Connection {
            routes: routes.clone(),
            door: entrance.door,
            bounds: entrance.bounds,
            peer,
            calls,
            room: budget.room(matches!(entrance.door, Door::Runtime).then(|| owner.number())),
            place,
            lifetime: if shortage.is_some() { Some(SHORTAGE_LIFETIME) } else { entrance.lifetime },
            shortage: shortage.clone(),
            stopping: stopping.clone(),
            _alive: alive.clone(),
        };
        if shortage.is_none() {
            tokio::spawn(connection.attend(stream));
            continue;
        }
        connection.attend(stream).await;
        sleep(ACCEPT_PAUSE).await;
    }
    drop((entrance, alive));
    let _ = ended.recv().await; // none is ever sent: it comes back when every connection has ended
}

/// Descriptors to give up where there are none left for a connection.
fn spare(listener: &UnixListener) -> Vec<OwnedFd> {
    (0..SPARES).map_while(|_| listener.as_fd().try_clone_to_owned().ok()).collect()
}

/// Connections that were refused, told not too often.
#[derive(Default)]
struct Refusals {
    told: Option<Instant>,
    since: usize,
}

impl Refusals {
    fn tell(&mut self, owner: Owner, limits: Limits) {
        self.since += 1;
        if self.told.is_none_or(|told| told.elapsed() >= REFUSAL_PACE) {
            let Limits { all, each, .. } = limits;
            tracing::warn!(?owner, refused = self.since, all, each, "no place is left for a connection");
            *self = Self { told: Some(Instant::now()), since: 0 };
        }
    }
}

struct Connection {
    routes: Routes,
    door: Door,
    bounds: Bounds,
    peer: Peer,
    calls: Calls,
    room: Room,
    /// Given back when the connection has ended.
    place: Place,
    lifetime: Option<Duration>,
    /// What every call is answered, where none can be carried out.
    shortage: Option<Problem>,
    stopping: watch::Receiver<bool>,
    _alive: mpsc::Sender<Infallible>,
}

impl Connection {
    async fn attend(self, stream: UnixStream) {
        let Self { routes, door, bounds, peer, calls, room, place, lifetime, shortage, mut stopping, _alive } = self;
        let remainder = match Remainder::of(&stream) {
            Ok(remainder) => remainder,
            Err(error) => return tracing::error!(%error, "a connection cannot be served"),
        };
        let uid = peer.uid;
        let service = {
            let (calls, room) = (calls.clone(), room.clone());
            let judge = move |path: &str| {
                door.judge(path, &peer)?;
                shortage.clone().map_or(Ok(()), Err)
            };
            service_fn(move |request| call(routes.clone(), door, bounds, &judge, &calls, &room, request))
        };
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(bounds.streams)
            .max_header_list_size(FIELDS_MAX as u32)
            .header_table_size(0)
            .auto_date_header(false)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1);
        let mut connection = Box::pin(http.serve_connection(TokioIo::new(Wire::new(stream, &calls)), service));
        let too_old = async {
            match lifetime {
                Some(lifetime) => sleep(lifetime).await,
                None => std::future::pending().await,
            }
        };
        let ungreeted = async {
            sleep(GREETING).await;
            if calls.is_settled() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            over = connection.as_mut() => return told(over),
            () = told_to_stop(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                return told(connection.await);
            }
            () = too_old => {}
            () = place.lost() => {
                tracing::debug!(uid, "an idle connection is ended: its place is wanted");
                if !calls.is_settled() {
                    return; // nobody speaks there
                }
            }
            () = ungreeted => {
                return tracing::debug!(uid, "a connection is ended: its client did not begin to speak HTTP/2 in time");
            }
            () = calls.secrets_not_taken(ANSWER) => {
                return tracing::warn!(uid, "a connection is ended: its client did not take an answer with secrets");
            }
            bytes = room.in_the_way(&calls) => {
                return tracing::warn!(uid, bytes, "a connection is ended: its client does not read its answers");
            }
        }
        connection.as_mut().graceful_shutdown();
        let deadline = Instant::now() + ANSWER;
        tokio::select! {
            biased; // what can be written is written first
            over = connection.as_mut() => told(over),
            // A client that does not go: what the connection holds is freed without it.
            () = quiet(&calls, deadline) => {}
        }
        drop(connection);
        if calls.has_called() {
            remainder.taken(deadline).await;
        }
    }
}

async fn told_to_stop(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Resolves when nothing was asked or answered for a moment, and at the deadline at the latest.
async fn quiet(calls: &Calls, deadline: Instant) {
    let is_quiet = || calls.is_idle() && calls.unwritten().0 == 0;
    let moment = async {
        loop {
            let was = is_quiet();
            sleep(QUIET).await;
            if was && is_quiet() {
                return;
            }
        }
    };
    let _ = timeout(deadline - Instant::now(), moment).await;
}

fn told(over: hyper::Result<()>) {
    if let Err(error) = over {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// Judges a call and passes it on.
fn call(
    mut routes: Routes,
    door: Door,
    bounds: Bounds,
    judge: &dyn Fn(&str) -> Result<(), Problem>,
    calls: &Calls,
    room: &Room,
    shadow: http::Request<Incoming>,
) -> impl Future<Output = Result<http::Response<Answered>, Status>> + use<> {
    let call = Call::of(calls, shadow);
    let judged = call.as_ref().map(|call| judge(&call.request.path));
    let room = room.clone();
    async move {
        // Without one the library refuses the stream, or has ended it.
        let (Some(call), Some(judged)) = (call, judged) else { return Err(Status::resource_exhausted("gone")) };
        let size = call.request.size;
        if size > FIELDS_MAX {
            let why = format!("the metadata has {size} bytes, counted as in RFC 9113; at most {FIELDS_MAX}");
            return Ok(call.refuse().answer(Status::resource_exhausted(why).into_http(), None, false));
        }
        if let Err(problem) = judged {
            match door {
                Door::Main(_) => tracing::warn!("{problem}"),
                // Anybody may ask there, as often as they like: the log is not theirs to fill.
                Door::Runtime => tracing::debug!("{problem}"),
            }
            return Ok(call.refuse().answer(Status::from(problem).into_http(), None, false));
        }
        let share = match room.share(&call.request.path).await {
            Ok(share) => share,
            Err(why) => return Ok(call.refuse().answer(Status::resource_exhausted(why).into_http(), None, false)),
        };
        let secrets = call.request.path == GET_SECRETS;
        let of_executor = call.request.path.starts_with(EXECUTOR);
        let (request, answering) = call.open(if of_executor { bounds.message_bytes } else { OTHER_MESSAGE_MAX });
        let Ok(response) = routes.call(request).await;
        Ok(answering.answer(response, share, secrets))
    }
}
