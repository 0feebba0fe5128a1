//! `run`: a container from its creation to its deletion, as if its process were ours.
//!
//! ```text
//! create -> follow: process -> our streams  -> fetch outputs -> delete -> exit as the process did
//!                   wait for the end
//!                   Ctrl-C: stop, kill, leave
//!                   our reader gone: stop
//! ```
//! All of the middle goes on at once, and over restarts of executord. Whatever goes wrong after the creation,
//! the container is deleted, unless it is to stay.

mod attached;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{Container, RunResponse};

use self::attached::{Attached, Pressed};
use super::logs::Printer;
use super::{Session, bindings, expected, image};
use crate::bindings::Delivery;
use crate::cli::StreamArgs;
use crate::exit::Outcome;
use crate::failure::Failure;
use crate::interrupt::Interrupts;
use crate::request::Request;
use crate::status::is_lost;
use crate::view::{human, json};

/// What a process gets at most between SIGTERM and SIGKILL when nobody reads its output any more. On its own it
/// would have died of SIGPIPE at once.
const GRACE_WITHOUT_READER: Duration = Duration::from_secs(1);

/// What becomes of the container.
#[derive(Clone, Debug)]
pub(super) struct AtTheEnd {
    pub(super) detach: bool,
    pub(super) keep: bool,
    /// Where its outputs go before it is deleted.
    pub(super) fetch_to: Option<PathBuf>,
    /// It can be kept: its executord stays.
    pub(super) can_stay: bool,
    pub(super) streams: StreamArgs,
}

pub(super) async fn run(
    session: &Session,
    mut request: Request,
    delivery: Option<Delivery>,
    ending: AtTheEnd,
    interrupts: &mut Interrupts,
) -> Result<u8, Failure> {
    bindings::deliver(session, &mut request, delivery, interrupts).await?;
    if let Some((image, always)) = request.to_pull() {
        tokio::select! {
            fetched = image::fetch_first(session, image, always) => fetched?,
            signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
        }
    }
    if let Some(reference) = request.on_disk() {
        tokio::select! {
            sent = image::send_first(session, &reference) => if sent? {
                request.is_taken_in();
            },
            signal = interrupts.next() => return Err(Failure::Interrupted(signal)),
        }
    }
    let id = request.id().to_owned();
    let mut pressed = Pressed::never(&id);
    request.await_reader(!ending.detach);
    let response = create(session, request, interrupts, &mut pressed).await?;
    let created = response.created;
    let container = expected(response.container, &format!("run {id}"))?;
    if created && !session.json {
        // Of its image: everything else that `inspect` has is about what the caller asked for.
        let of_image = |warning: &&String| warning.starts_with("rootfs: ");
        for warning in container.spec.iter().flat_map(|spec| &spec.warnings).filter(of_image) {
            session.output.note(format!("warning: {}", crate::text::plain(warning)));
        }
    }
    if ending.detach && pressed.times == 0 {
        return detached(session, &container).await;
    }
    let own_grace = container.spec.as_ref().and_then(|spec| Duration::try_from(spec.grace_period?).ok());
    let grace_without_reader = own_grace.map_or(GRACE_WITHOUT_READER, |own| own.min(GRACE_WITHOUT_READER));
    let streams = ending.streams.clone();
    let suppressed = container.spec.as_ref().is_some_and(|spec| spec.suppress_log_output);
    // Ctrl-C came while it was made to run by itself: then nobody is awaited.
    let created_for_us = created && !ending.detach;
    let attached =
        Attached { session, id: &id, pressed, grace_without_reader, streams, created: created_for_us, suppressed };
    attached.end(interrupts, AtTheEnd { keep: ending.keep || !created, ..ending }).await
}

/// Creates a container and stays with it to its end, as `run` does, and leaves it there. `started` is called once it is
/// there.
pub(super) async fn attend(
    session: &Session,
    mut request: Request,
    interrupts: &mut Interrupts,
    printer: &mut Printer,
    started: impl FnOnce() -> Result<(), Failure>,
) -> Result<Container, Failure> {
    let id = request.id().to_owned();
    let mut pressed = Pressed::never(&id);
    request.await_reader(true);
    let created = create(session, request, interrupts, &mut pressed).await?.created;
    started()?;
    let mut attached = Attached {
        session,
        id: &id,
        pressed,
        grace_without_reader: GRACE_WITHOUT_READER,
        streams: StreamArgs::default(),
        created,
        suppressed: false,
    };
    attached.follow(interrupts, printer).await
}

/// The same with a container that somebody else created.
pub(super) async fn stay_with(
    session: &Session,
    id: &str,
    interrupts: &mut Interrupts,
    printer: &mut Printer,
) -> Result<Container, Failure> {
    let pressed = Pressed::never(id);
    let mut attached = Attached {
        session,
        id,
        pressed,
        grace_without_reader: GRACE_WITHOUT_READER,
        streams: StreamArgs::default(),
        created: false,
        suppressed: false,
    };
    attached.follow(interrupts, printer).await
}

/// Sends the request. It is the same one when it has to be sent again: executord answers with the container
/// that it made the first time.
async fn create(
    session: &Session,
    request: Request,
    interrupts: &mut Interrupts,
    pressed: &mut Pressed,
) -> Result<RunResponse, Failure> {
    let doing = format!("run {}", request.id());
    let begun = SystemTime::now();
    let attempts = Cell::new(0u32);
    let mut call = std::pin::pin!(session.client.patiently(&doing, is_lost, |mut rpc: ExecutorClient<_>| {
        attempts.set(attempts.get() + 1);
        let message = request.message();
        async move { rpc.run(message).await }
    }));
    let response = loop {
        tokio::select! {
            response = &mut call => break response,
            signal = interrupts.next() => pressed.again(session, signal)?,
        }
    };
    let mut response = match response {
        Err(failure @ Failure::GaveUp { .. }) => {
            session.output.note(left_behind(request.id()));
            return Err(failure);
        }
        other => other?,
    };
    // Sent again, it answers "already there" to what was made for us. What is older is somebody else's.
    let made_at = response.container.as_ref().and_then(|made| human::system_time(made.created_at.as_ref()?));
    response.created |= attempts.get() > 1 && made_at.is_some_and(|made_at| made_at >= begun);
    Ok(response)
}

/// Prints the id, or the document; a program that could not be executed is told as `run` would.
async fn detached(session: &Session, container: &Container) -> Result<u8, Failure> {
    session.print(&json::Container::from(container), || format!("{}\n", container.id)).await;
    session.explain_end(container, &[]);
    match Outcome::of(container.result.as_ref()) {
        outcome @ (Outcome::NotExecuted(_) | Outcome::Failed(_)) => Ok(outcome.status()),
        _ => Ok(0),
    }
}

fn left_behind(id: &str) -> String {
    format!("the container {id} may still be there; `agent-cli rm -f {id}` removes it")
}
