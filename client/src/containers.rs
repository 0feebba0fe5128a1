//! Calls about containers: inspect, wait, stop, delete, and change their files and limits.

use std::collections::HashMap;
use std::time::Duration;

use executor_proto::Wiped;
use executor_proto::v1::{
    CheckNetworkRequest, CheckNetworkResponse, Container, DeleteRequest, GetRequest, GetSecretsRequest,
    GetSecretsResponse, InfoRequest, InfoResponse, ListNetworksRequest, ListNetworksResponse, ListRequest,
    PauseRequest, ReopenLogRequest, ResumeRequest, SignalRequest, StartRequest, State, StopRequest,
    UpdateEgressRequest, UpdateFilesRequest, UpdateFilesResponse, UpdateLimitsRequest, WaitRequest,
};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};
use zeroize::Zeroizing;

use crate::connect::Client;
use crate::error::Error;
use crate::retry::{is_away, is_lost};
use crate::run::duration;
use crate::secret::Secret;

/// Maximum number of containers per page of a listing.
const PAGE: u32 = 1000;
/// Maximum size of a response with secrets, in bytes. The limit is high because an operator may allow large files.
const SECRETS_MAX: usize = 64 << 20;
/// Signal number of SIGKILL.
const KILL: u32 = 9;

/// Filter for [`Client::list`]. The default matches all containers.
#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    /// States to match. Empty matches any state.
    pub states: Vec<State>,
    /// Labels and their values. A container must have all of them.
    pub labels: HashMap<String, String>,
    /// Prefix of the ids to match. Empty matches any id.
    pub id_prefix: String,
    /// Id of the pod whose members to match. Empty matches any container.
    pub pod: String,
}

/// Result of [`Client::find`]: the containers whose ids begin with a given string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// No container.
    None,
    /// Id of the only match, or of the container whose id equals the string.
    One(String),
    /// Several matches: the first ids, and true if there are more ids.
    Several(Vec<String>, bool),
}

impl Client {
    /// Gets a container. Retries during a restart of executord.
    ///
    /// # Errors
    /// Returns an error if there is no such container.
    pub async fn get(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_away, |mut rpc| {
            let request = GetRequest { id: id.to_owned() };
            async move { rpc.get(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Lists all containers that match the filter.
    ///
    /// # Errors
    /// Returns an error if executord rejects the filter or is unavailable.
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

    /// Finds the containers whose ids begin with `text`. Returns at most `most` ids. If an id equals `text`, it is the
    /// only match.
    ///
    /// # Errors
    /// Returns an error if executord is unavailable.
    pub async fn find(&self, text: &str, most: u32) -> Result<Match, Error> {
        if text.is_empty() {
            return Ok(Match::None);
        }
        let request =
            ListRequest { page_size: most.saturating_add(1), id_prefix: text.to_owned(), ..ListRequest::default() };
        let page = self.page(&request).await?;
        let mut ids: Vec<String> = page.containers.into_iter().map(|container| container.id).collect();
        // An older executord ignores the prefix filter and also lists other containers.
        if ids.iter().any(|id| !id.starts_with(text)) {
            return Ok(Match::None);
        }
        // The list is sorted, so an id that equals the text is first.
        if ids.len() > 1 && ids[0] != text {
            let more = ids.len() > most as usize;
            ids.truncate(most as usize);
            return Ok(Match::Several(ids, more));
        }
        Ok(ids.into_iter().next().map_or(Match::None, Match::One))
    }

    /// Waits until a container is completed and its secrets are wiped, across restarts of executord.
    ///
    /// # Errors
    /// Returns an error if there is no such container.
    pub async fn wait(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_away, |mut rpc| {
            let request = WaitRequest { id: id.to_owned() };
            async move { rpc.wait(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Stops a container: stop signal, grace period (the container's own if `None`), SIGKILL. Returns immediately;
    /// [`Client::wait`] waits for the exit. Repeating the call is harmless.
    ///
    /// # Errors
    /// Returns an error if there is no such container.
    pub async fn stop(&self, id: &str, grace: Option<Duration>) -> Result<Container, Error> {
        self.stop_with(id, grace, 0).await
    }

    /// Stops a container like [`Client::stop`], but with this signal. 0 means the container's stop signal.
    ///
    /// # Errors
    /// Returns an error if there is no such container or no such signal.
    pub async fn stop_with(&self, id: &str, grace: Option<Duration>, signal: u32) -> Result<Container, Error> {
        let grace_period = grace.map(duration).transpose()?;
        let answer = self.retry(is_lost, |mut rpc| {
            let request = StopRequest { id: id.to_owned(), grace_period, signal };
            async move { rpc.stop(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Sends a signal to a container's process. The RPC is not retried.
    ///
    /// # Errors
    /// Returns an error if the container is not running. Returns [`Error::Lost`] if it is unknown whether the signal
    /// was sent.
    pub async fn signal(&self, id: &str, signal: u32) -> Result<(), Error> {
        let request = SignalRequest { id: id.to_owned(), signal, process_id: String::new() };
        self.answer(self.rpc().signal(request).await).map(drop)
    }

    /// Sends SIGKILL to a container's process. If the connection breaks, the call is repeated.
    ///
    /// # Errors
    /// Returns an error if the container is not running.
    pub async fn kill(&self, id: &str) -> Result<(), Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = SignalRequest { id: id.to_owned(), signal: KILL, process_id: String::new() };
            async move { rpc.signal(request).await }
        });
        answer.await.map(drop)
    }

    /// Deletes a container with its log. A running container is deleted only with `force`, which kills it first.
    ///
    /// # Errors
    /// Returns an error if there is no such container, or it is running and `force` is not set.
    pub async fn delete(&self, id: &str, force: bool) -> Result<(), Error> {
        let mut attempts = 0u32;
        let answer = self.retry(is_lost, |mut rpc| {
            attempts += 1;
            let request = DeleteRequest { id: id.to_owned(), force };
            async move { rpc.delete(request).await }
        });
        match answer.await {
            // An earlier attempt deleted the container, but its response was lost.
            Err(error) if attempts > 1 && error.code() == Some(Code::NotFound) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Replaces, adds and removes secret files of a running container in one update. The RPC is not retried, because a
    /// second RPC would be another update.
    ///
    /// # Errors
    /// Returns [`Code::Aborted`] if the generation of the files is not the expected generation. After [`Error::Lost`],
    /// compare the generation in [`Client::get`] to find out whether the files were replaced.
    pub async fn update_files(&self, request: Wiped<UpdateFilesRequest>) -> Result<UpdateFilesResponse, Error> {
        self.answer(self.send(request, "/executor.v1.Executor/UpdateFiles").await)
    }

    /// Replaces all egress rules of a running container atomically, across restarts of executord. Repeating the call is
    /// harmless.
    ///
    /// # Errors
    /// Returns an error if the container is not running or a rule is invalid.
    pub async fn update_egress(&self, request: UpdateEgressRequest) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = request.clone();
            async move { rpc.update_egress(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Replaces limits of a running container, across restarts of executord. Repeating the call is harmless.
    ///
    /// # Errors
    /// Returns an error if the container is not running or a limit is invalid.
    pub async fn update_limits(&self, request: UpdateLimitsRequest) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = request.clone();
            async move { rpc.update_limits(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Starts the process of a container that was run with `hold`, across restarts of executord. Repeating the call is
    /// harmless. If the program could not be executed, the returned container contains the failure.
    ///
    /// # Errors
    /// Returns an error if the container was not held, or exited before its start.
    pub async fn start(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = StartRequest { id: id.to_owned() };
            async move { rpc.start(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Freezes all processes of a running container until [`Client::resume`], across restarts of executord. Repeating
    /// the call is harmless.
    ///
    /// # Errors
    /// Returns an error if the container is not running.
    pub async fn pause(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = PauseRequest { id: id.to_owned() };
            async move { rpc.pause(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Resumes the processes of a paused container, across restarts of executord. Repeating the call is harmless.
    ///
    /// # Errors
    /// Returns an error if the container is not running.
    pub async fn resume(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = ResumeRequest { id: id.to_owned() };
            async move { rpc.resume(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Reopens a container's log file ([`Run::log_file`](crate::Run::log_file)) after the file was renamed. Repeating
    /// the call is harmless.
    ///
    /// # Errors
    /// Returns an error if the container does not run, has no log file, or the file cannot be opened. After such an
    /// error, the old file stays in use.
    pub async fn reopen_log(&self, id: &str) -> Result<Container, Error> {
        let answer = self.retry(is_lost, |mut rpc| {
            let request = ReopenLogRequest { id: id.to_owned() };
            async move { rpc.reopen_log(request).await }
        });
        answer.await?.container.ok_or(Error::Incomplete("the container"))
    }

    /// Gets executord's version, capacity, policy and the cursor of its last event.
    ///
    /// # Errors
    /// Returns an error if executord is unavailable.
    pub async fn info(&self) -> Result<InfoResponse, Error> {
        self.retry(is_lost, |mut rpc| async move { rpc.info(InfoRequest {}).await }).await
    }

    /// Lists the networks in `names`, or all networks if `names` is empty, each with its containers. `names` has at
    /// most 50 entries.
    ///
    /// # Errors
    /// Returns [`Code::NotFound`] if one of the networks does not exist.
    pub async fn networks(&self, names: &[String]) -> Result<ListNetworksResponse, Error> {
        self.retry(is_lost, |mut rpc| {
            let request = ListNetworksRequest { names: names.to_vec() };
            async move { rpc.list_networks(request).await }
        })
        .await
    }

    /// Checks with the plugins of a CNI network that the network's containers are still connected.
    ///
    /// # Errors
    /// Returns [`Code::NotFound`] if there is no such network, [`Code::FailedPrecondition`] if the network is built in,
    /// [`Code::ResourceExhausted`] if the caller's previous check is still running.
    pub async fn check_network(&self, name: &str) -> Result<CheckNetworkResponse, Error> {
        self.retry(is_lost, |mut rpc| {
            let request = CheckNetworkRequest { name: name.to_owned() };
            async move { rpc.check_network(request).await }
        })
        .await
    }

    /// Gets the secret inputs of the container that this process runs in, using the container's runtime token.
    ///
    /// # Errors
    /// Returns [`Error::Argument`] if the token cannot be sent in an HTTP header, and [`Code::PermissionDenied`] if the
    /// token is not the runtime token of a running container.
    pub async fn secrets(&self, token: &Secret) -> Result<Wiped<GetSecretsResponse>, Error> {
        let not_a_token =
            || Error::Argument("the runtime token contains characters that an HTTP header cannot carry".into());
        let token = Zeroizing::new(format!("Bearer {}", token.expose_str().ok_or_else(not_a_token)?.trim_end()));
        let mut value: MetadataValue<Ascii> = token.as_str().try_into().map_err(|_| not_a_token())?;
        value.set_sensitive(true);
        let mut request = Request::new(GetSecretsRequest::default());
        request.metadata_mut().insert("authorization", value);
        let answer: Result<_, Status> = self.rpc().max_decoding_message_size(SECRETS_MAX).get_secrets(request).await;
        self.answer(answer).map(Wiped::new)
    }
}
