//! Client of the signer process. The launcher forks this process, and only executord is connected to it.
//!
//! The connection is opened at first use, and reopened if the process has exited. The process handles one request at a
//! time. If a request is abandoned, its connection is closed, so that the late response cannot be matched to another
//! request.

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

/// Time limit for the process to read the CA, and for each response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The signer process, opened on demand.
#[derive(Debug, Default)]
pub struct Signer(Mutex<Option<OpenedSigner>>);

/// A connected signer process.
#[derive(Debug)]
struct OpenedSigner {
    packets: Packets,
    ready: SignerReady,
}

/// A certificate with its CA chain.
#[derive(Debug)]
pub(crate) struct Certified {
    pub(crate) signed: Signed,
    /// CA certificates (PEM).
    pub(crate) chain: String,
}

impl Signer {
    /// Requests a signed certificate from the signer process.
    ///
    /// # Errors
    /// Returns an error if the names are not allowed, the CA cannot sign, or no launcher is connected.
    pub(crate) async fn sign(&self, launcher: &Launcher, request: &SignRequest) -> Result<Certified, ApiError> {
        let mut slot = self.0.lock().await;
        // Take the connection out of the slot, so that a cancelled request closes it.
        if let Some(open) = slot.take()
            && let Ok(answer) = open.request(request).await
        {
            let chain = open.ready.chain.clone();
            *slot = Some(open);
            return Ok(Certified { signed: answer?, chain });
        }
        let open = open(launcher).await?;
        let answer = open.request(request).await.map_err(|why| gone(&why))?;
        let chain = open.ready.chain.clone();
        *slot = Some(open);
        Ok(Certified { signed: answer?, chain })
    }

    /// Starts a new signer process, which reads the CA files. If the new process cannot sign, the current process
    /// stays.
    ///
    /// # Errors
    /// Returns an error if the CA cannot sign or no launcher is connected.
    pub(crate) async fn reopen(&self, launcher: &Launcher) -> Result<SignerReady, ApiError> {
        let open = open(launcher).await?;
        let ready = open.ready.clone();
        *self.0.lock().await = Some(open);
        Ok(ready)
    }
}

impl OpenedSigner {
    /// Sends one request. Returns the certificate or the refusal, or an error if the process has exited.
    async fn request(&self, request: &SignRequest) -> Result<Result<Signed, ApiError>, String> {
        let exchange = async {
            self.packets
                .send(&request.encode_to_vec(), &[])
                .await
                .map_err(|error| executor_core::errors::plain(&error))?;
            answer(&self.packets).await
        };
        match timeout(RESPONSE_TIMEOUT, exchange).await.map_err(|_| late())?? {
            SignerAnswer::Signed(signed) => Ok(Ok(signed)),
            SignerAnswer::Refused(refused) => Ok(Err(refused_by(refused.into()))),
            SignerAnswer::Ready(_) => Err("the signing process sent an unexpected response".into()),
        }
    }
}

async fn open(launcher: &Launcher) -> Result<OpenedSigner, ApiError> {
    let session = launcher.session()?;
    let system = |error: std::io::Error| ApiError::from_system("signer", &error);
    let (ours, theirs) = Seqpacket::pair().map_err(system)?;
    match session.call(LauncherCall::OpenSigner(OpenSigner {}), &[theirs.as_fd()]).await {
        Ok(LauncherAnswer::Done(_)) => {}
        Ok(LauncherAnswer::Refused(refused)) => return Err(refused_by(refused.into())),
        Ok(_) => return Err(ApiError::new(Kind::Internal, "the launcher sent an unexpected response")),
        Err(lost) => return Err(ApiError::new(Kind::Unavailable, format!("cannot start a signer: {lost}"))),
    }
    drop(theirs);
    let packets = Packets::new(ours).map_err(system)?;
    let reported = timeout(RESPONSE_TIMEOUT, answer(&packets)).await.map_err(|_| gone(&late()))?;
    match reported.map_err(|why| gone(&why))? {
        SignerAnswer::Ready(ready) => Ok(OpenedSigner { packets, ready }),
        SignerAnswer::Refused(refused) => Err(refused_by(refused.into())),
        SignerAnswer::Signed(_) => Err(gone("the signing process sent an unexpected response")),
    }
}

async fn answer(packets: &Packets) -> Result<SignerAnswer, String> {
    let reply = packets.recv::<SignerReply>().await.map_err(|error| executor_core::errors::plain(&error))?;
    reply.and_then(|reply| reply.answer).ok_or_else(|| "the signing process has exited".to_owned())
}

/// Converts a refusal of the signer. If the CA cannot sign, the cause is this node and not the request.
fn refused_by(problem: ApiError) -> ApiError {
    let kind = if problem.kind == Kind::Precondition { Kind::Unavailable } else { problem.kind };
    ApiError { kind, message: format!("identity: {}", problem.message), ..problem }
}

fn late() -> String {
    format!("the signing process sent no response within {} s", RESPONSE_TIMEOUT.as_secs())
}

fn gone(why: &str) -> ApiError {
    ApiError::new(Kind::Unavailable, format!("identity: cannot sign: {why}"))
}
