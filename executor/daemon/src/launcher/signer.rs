//! The process that signs certificates, as executord reaches it: forked by the launcher, connected to executord alone.
//!
//! The connection is made at the first use, and again when the process is gone. It answers one request after the other; a
//! request that is given up ends the connection, so that no answer is taken for that of another.

use std::os::fd::AsFd as _;
use std::time::Duration;

use executor_core::protocol::{
    LauncherAnswer, LauncherCall, OpenSigner, SignRequest, Signed, SignerAnswer, SignerReady, SignerReply,
};
use executor_sys::seqpacket::Seqpacket;
use prost::Message as _;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Launcher;
use crate::api_error::{ApiError, Kind};
use crate::ipc::packets::Packets;

/// Time limit for the process to read the CA, and for each answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The process that signs.
#[derive(Debug, Default)]
pub struct Signer(Mutex<Option<Open>>);

/// A process that can sign.
#[derive(Debug)]
struct Open {
    packets: Packets,
    ready: SignerReady,
}

/// A certificate, and the certificates of its CA.
#[derive(Debug)]
pub(crate) struct Certified {
    pub(crate) signed: Signed,
    /// Certificates of the CA, PEM.
    pub(crate) chain: String,
}

impl Signer {
    /// Has a certificate signed.
    ///
    /// # Errors
    /// The names are not allowed; the CA cannot sign; no launcher is connected.
    pub(crate) async fn sign(&self, launcher: &Launcher, request: &SignRequest) -> Result<Certified, ApiError> {
        let mut slot = self.0.lock().await;
        // Taken out: who is given up in between leaves none behind.
        if let Some(open) = slot.take()
            && let Ok(answer) = open.ask(request).await
        {
            let chain = open.ready.chain.clone();
            *slot = Some(open);
            return Ok(Certified { signed: answer?, chain });
        }
        let open = open(launcher).await?;
        let answer = open.ask(request).await.map_err(|why| gone(&why))?;
        let chain = open.ready.chain.clone();
        *slot = Some(open);
        Ok(Certified { signed: answer?, chain })
    }

    /// Has a new process read the CA's files. The one in force stays where that one cannot sign.
    ///
    /// # Errors
    /// The CA cannot sign; no launcher is connected.
    pub(crate) async fn reopen(&self, launcher: &Launcher) -> Result<SignerReady, ApiError> {
        let open = open(launcher).await?;
        let ready = open.ready.clone();
        *self.0.lock().await = Some(open);
        Ok(ready)
    }
}

impl Open {
    /// Asks once: a certificate or its refusal, or that the process is gone.
    async fn ask(&self, request: &SignRequest) -> Result<Result<Signed, ApiError>, String> {
        let exchange = async {
            self.packets.send(&request.encode_to_vec(), &[]).await.map_err(|error| crate::plain(&error))?;
            answer(&self.packets).await
        };
        match timeout(ANSWER, exchange).await.map_err(|_| late())?? {
            SignerAnswer::Signed(signed) => Ok(Ok(signed)),
            SignerAnswer::Refused(refused) => Ok(Err(refused_by(refused.into()))),
            SignerAnswer::Ready(_) => Err("it gave an unexpected answer".into()),
        }
    }
}

async fn open(launcher: &Launcher) -> Result<Open, ApiError> {
    let session = launcher.session()?;
    let system = |error: std::io::Error| ApiError::from_system("signer", &error);
    let (ours, theirs) = Seqpacket::pair().map_err(system)?;
    match session.call(LauncherCall::OpenSigner(OpenSigner {}), &[theirs.as_fd()]).await {
        Ok(LauncherAnswer::Done(_)) => {}
        Ok(LauncherAnswer::Refused(refused)) => return Err(refused_by(refused.into())),
        Ok(_) => return Err(ApiError::new(Kind::Internal, "the launcher gave an unexpected answer")),
        Err(lost) => return Err(ApiError::new(Kind::Unavailable, format!("the launcher: {lost}"))),
    }
    drop(theirs);
    let packets = Packets::new(ours).map_err(system)?;
    let reported = timeout(ANSWER, answer(&packets)).await.map_err(|_| gone(&late()))?;
    match reported.map_err(|why| gone(&why))? {
        SignerAnswer::Ready(ready) => Ok(Open { packets, ready }),
        SignerAnswer::Refused(refused) => Err(refused_by(refused.into())),
        SignerAnswer::Signed(_) => Err(gone("it gave an unexpected answer")),
    }
}

async fn answer(packets: &Packets) -> Result<SignerAnswer, String> {
    let reply = packets.recv::<SignerReply>().await.map_err(|error| crate::plain(&error))?;
    reply.and_then(|reply| reply.answer).ok_or_else(|| "it has ended".to_owned())
}

/// A CA that cannot sign is this node's trouble, and not the request's.
fn refused_by(problem: ApiError) -> ApiError {
    let kind = if problem.kind == Kind::Precondition { Kind::Unavailable } else { problem.kind };
    ApiError { kind, message: format!("identity: {}", problem.message), ..problem }
}

fn late() -> String {
    format!("it did not answer within {} s", ANSWER.as_secs())
}

fn gone(why: &str) -> ApiError {
    ApiError::new(Kind::Unavailable, format!("identity: the process that signs: {why}"))
}
