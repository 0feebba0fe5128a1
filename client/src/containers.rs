//! Calls about containers: look at them, wait for them, end them, change their files.

use std::collections::HashMap;
use std::time::Duration;

use executor_proto::v1::{
    Container, DeleteRequest, GetRequest, GetSecretsRequest, GetSecretsResponse, InfoRequest, InfoResponse,
    ListRequest, PauseRequest, ResumeRequest, SignalRequest, State, StopRequest, UpdateEgressRequest,
    UpdateFilesRequest, UpdateFilesResponse, UpdateLimitsRequest, WaitRequest,
};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};
use zeroize::Zeroizing;

use crate::connect::Client;
use crate::error::Error;
use crate::retry::{is_away, is_lost};
use crate::run::duration;
use crate::secret::{Secret, Wiped};

/// Containers on a page, at most.
const PAGE: u32 = 1000;
/// Largest answer with secrets, in bytes: an operator may allow large files.
const SECRETS_MAX: usize = 64 << 20;
/// SIGKILL.
const KILL: u32 = 9;

/// Containers that [`Client::list`] gives. The default is all of them.
#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    /// States of the containers; empty for any state.
    pub states: Vec<State>,
    /// Labels that the containers have, all of them.
    pub labels: HashMap<String, String>,
    /// Beginning of the containers' ids.
    pub id_prefix: String,
    /// Id of the pod that the containers are members of; empty for any container.
    pub pod: String,
}

/// Containers whose ids begin with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// No container.
    None,
    /// The one with this id, or the one whose id is the text itself.
    One(String),
    /// Several: the first of their ids, and whether there are more.
    Several(Vec<String>, bool),
}

impl Client {
    /// Gets a container, over a restart of executord.
    ///
    /// # Errors
    /// There is no such container.
    pub async fn get(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_away, |mut rpc| {
            let request = GetRequest { id: id.to_owned() };
            async move { rpc.get(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Lists containers, all pages of them.
    ///
    /// # Errors
    /// Executord refuses the filter, or is away.
    pub async fn list(&self, filter: &ListFilter) -> Result<Vec<Container>, Error> {
        let mut containers = Vec::new();
        let mut request = ListRequest {
            page_size: PAGE,
            states: filter.states.iter().map(|state| i32::from(*state)).collect(),
            labels: filter.labels.clone(),
            id_prefix: filter.id_prefix.clone(),
            pod: filter.pod.clone(),
            ..ListRequest::default()
        };
        loop {
            let page = self.page(&request).await?;
            containers.extend(page.containers);
            if page.next_page_token.is_empty() {
                return Ok(containers);
            }
            request.page_token = page.next_page_token;
        }
    }

    async fn page(&self, request: &ListRequest) -> Result<executor_proto::v1::ListResponse, Error> {
        let call = self.retry(is_lost, |mut rpc| {
            let request = request.clone();
            async move { rpc.list(request).await }
        });
        call.await
    }

    /// Finds the containers whose ids begin with `text`, `most` of them at most. An id that is the text itself wins.
    ///
    /// # Errors
    /// Executord is away.
    pub async fn find(&self, text: &str, most: u32) -> Result<Match, Error> {
        if text.is_empty() {
            return Ok(Match::None);
        }
        let request =
            ListRequest { page_size: most.saturating_add(1), id_prefix: text.to_owned(), ..ListRequest::default() };
        let page = self.page(&request).await?;
        let mut ids: Vec<String> = page.containers.into_iter().map(|container| container.id).collect();
        // An older executord does not know the prefix, and lists others, too.
        if ids.iter().any(|id| !id.starts_with(text)) {
            return Ok(Match::None);
        }
        // In their order: one that is the text itself comes first.
        if ids.len() > 1 && ids[0] != text {
            let more = ids.len() > most as usize;
            ids.truncate(most as usize);
            return Ok(Match::Several(ids, more));
        }
        Ok(ids.into_iter().next().map_or(Match::None, Match::One))
    }

    /// Waits until a container is completed, its secrets wiped, over restarts of executord.
    ///
    /// # Errors
    /// There is no such container.
    pub async fn wait(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_away, |mut rpc| {
            let request = WaitRequest { id: id.to_owned() };
            async move { rpc.wait(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Asks a container to stop: its stop signal, the grace period (its own where none is given), SIGKILL. Returns at once;
    /// [`Client::wait`] waits for the end. Asking again does no harm.
    ///
    /// # Errors
    /// There is no such container.
    pub async fn stop(&self, id: &str, grace: Option<Duration>) -> Result<Container, Error> {
        self.stop_with(id, grace, 0).await
    }

    /// As [`Client::stop`], with a signal in place of the container's own stop signal; 0 for that.
    ///
    /// # Errors
    /// There is no such container, or no such signal.
    pub async fn stop_with(&self, id: &str, grace: Option<Duration>, signal: u32) -> Result<Container, Error> {
        let grace_period = grace.map(duration).transpose()?;
        let answer = self.retry(is_lost, |mut rpc| {
            let request = StopRequest { id: id.to_owned(), grace_period, signal };
            async move { rpc.stop(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Sends a signal to a container's process, once.
    ///
    /// # Errors
    /// The container does not run; [`Error::Lost`]: it is unknown whether the signal was sent.
    pub async fn signal(&self, id: &str, signal: u32) -> Result<(), Error> {
        let request = SignalRequest { id: id.to_owned(), signal, process_id: String::new() };
        self.answer(self.rpc().signal(request).await).map(drop)
    }

    /// Sends SIGKILL to a container's process, over restarts of executord.
    ///
    /// # Errors
    /// The container does not run.
    pub async fn kill(&self, id: &str) -> Result<(), Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = SignalRequest { id: id.to_owned(), signal: KILL, process_id: String::new() };
            async move { rpc.signal(request).await }
        });
        answer.await.map(drop)
    }

    /// Deletes a container with its log; one that runs only with `force`, which kills it first.
    ///
    /// # Errors
    /// There is no such container, or it runs and `force` is not set.
    pub async fn delete(&self, id: &str, force: bool) -> Result<(), Error> {
        let mut attempts = 0u32;
        let answer = self.retry(is_lost, |mut rpc| {
            attempts += 1;
            let request = DeleteRequest { id: id.to_owned(), force };
            async move { rpc.delete(request).await }
        });
        match answer.await {
            // The attempt whose answer was lost has deleted it.
            Err(error) if attempts > 1 && error.code() == Some(Code::NotFound) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Replaces, adds and removes secret files of a running container, all of them at once. Sent once: sent again it would be
    /// another update.
    ///
    /// # Errors
    /// [`Code::Aborted`]: the files are of another generation than expected. [`Error::Lost`]: the generation of
    /// [`Client::get`] tells whether they were replaced.
    pub async fn update_files(&self, request: Wiped<UpdateFilesRequest>) -> Result<UpdateFilesResponse, Error> {
        self.answer(self.send(request, "/executor.v1.Executor/UpdateFiles").await)
    }

    /// Replaces the egress of a running container, all rules at once, over restarts of executord. Asking again does no harm.
    ///
    /// # Errors
    /// The container does not run, or a rule is not valid.
    pub async fn update_egress(&self, request: UpdateEgressRequest) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = request.clone();
            async move { rpc.update_egress(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Replaces limits of a running container, over restarts of executord. Asking again does no harm.
    ///
    /// # Errors
    /// The container does not run, or a limit is not valid.
    pub async fn update_limits(&self, request: UpdateLimitsRequest) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = request.clone();
            async move { rpc.update_limits(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Stops all processes of a running container until [`Client::resume`], over restarts of executord. Asking again does no harm.
    ///
    /// # Errors
    /// The container does not run.
    pub async fn pause(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = PauseRequest { id: id.to_owned() };
            async move { rpc.pause(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Lets the processes of a paused container go on, likewise.
    ///
    /// # Errors
    /// The container does not run.
    pub async fn resume(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = ResumeRequest { id: id.to_owned() };
            async move { rpc.resume(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Gets executord's version, capacity, policy and the cursor of its last event.
    ///
    /// # Errors
    /// Executord is away.
    pub async fn info(&self) -> Result<InfoResponse, Error> {
        self.retry(is_lost, |mut rpc| async move { rpc.info(InfoRequest {}).await }).await
    }

    /// Gets the secret inputs of the container that this process runs in, by the container's runtime token.
    ///
    /// # Errors
    /// [`Code::Unauthenticated`] or [`Code::PermissionDenied`]: the token is not of a running container.
    pub async fn secrets(&self, token: &Secret) -> Result<Wiped<GetSecretsResponse>, Error> {
        let not_a_token = || Error::Argument("the runtime token holds other characters than a token does".into());
        let token = Zeroizing::new(format!("Bearer {}", token.expose_str().ok_or_else(not_a_token)?.trim_end()));
        let mut value: MetadataValue<Ascii> = token.as_str().try_into().map_err(|_| not_a_token())?;
        value.set_sensitive(true);
        let mut request = Request::new(GetSecretsRequest::default());
        request.metadata_mut().insert("authorization", value);
        let answer: Result<_, Status> = self.rpc().max_decoding_message_size(SECRETS_MAX).get_secrets(request).await;
        self.answer(answer).map(Wiped::new)
    }
}
