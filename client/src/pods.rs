//! Pods: groups of containers that share a network, IPC and a host name.

use std::collections::HashMap;
use std::time::Duration;

use executor_proto::v1::pods_client::PodsClient;
use executor_proto::v1::{CreatePodRequest, DeletePodRequest, GetPodRequest, ListPodsRequest, Pod, StopPodRequest};
use tonic::Code;
use tonic::transport::Channel;

use crate::connect::Client;
use crate::error::Error;
use crate::retry::{is_away, is_lost};
use crate::run::duration;

/// Maximum number of pods per page of a listing.
const PAGE: u32 = 1000;

/// Client for calls about pods.
#[derive(Clone, Debug)]
pub struct Pods(Client);

/// Filter for [`Pods::list`]. The default matches all pods.
#[derive(Clone, Debug, Default)]
pub struct PodFilter {
    /// Labels that a pod must have, with their values.
    pub labels: HashMap<String, String>,
    /// Prefix of the ids to match. Empty matches any id.
    pub id_prefix: String,
}

impl Client {
    /// Returns the client for calls about pods.
    pub fn pods(&self) -> Pods {
        Pods(self.clone())
    }
}

impl Pods {
    pub(crate) fn client(&self) -> &Client {
        &self.0
    }

    pub(crate) fn rpc(&self) -> PodsClient<Channel> {
        PodsClient::new(self.0.channel())
    }

    /// Creates a pod. With an id in the request, the call is repeated across a restart of executord. Returns the pod,
    /// and true if it is new.
    ///
    /// # Errors
    /// Returns every violation of the request, or an error if another pod or a container has the id.
    pub async fn create(&self, request: &CreatePodRequest) -> Result<(Pod, bool), Error> {
        let answer = if request.id.is_empty() {
            // Without an id, a repeated call would create another pod.
            self.0.answer(self.rpc().create_pod(request.clone()).await)?
        } else {
            let answer = self.0.retry(is_lost, |_| {
                let (mut rpc, request) = (self.rpc(), request.clone());
                async move { rpc.create_pod(request).await }
            });
            answer.await?
        };
        Ok((answer.pod.ok_or(Error::Incomplete("the pod"))?, answer.created))
    }

    /// Gets a pod. Retries during a restart of executord.
    ///
    /// # Errors
    /// Returns an error if there is no such pod.
    pub async fn get(&self, id: &str) -> Result<Pod, Error> {
        let answer = self.0.retry(is_away, |_| {
            let (mut rpc, request) = (self.rpc(), GetPodRequest { id: id.to_owned() });
            async move { rpc.get_pod(request).await }
        });
        answer.await?.pod.ok_or(Error::Incomplete("the pod"))
    }

    /// Lists all pods that match the filter.
    ///
    /// # Errors
    /// Returns an error if executord is unavailable.
    pub async fn list(&self, filter: &PodFilter) -> Result<Vec<Pod>, Error> {
        let PodFilter { labels, id_prefix } = filter.clone();
        let mut request = ListPodsRequest { page_size: PAGE, page_token: String::new(), labels, id_prefix };
        let mut pods = Vec::new();
        loop {
            let page = self.0.retry(is_lost, |_| {
                let (mut rpc, request) = (self.rpc(), request.clone());
                async move { rpc.list_pods(request).await }
            });
            let page = page.await?;
            pods.extend(page.pods);
            if page.next_page_token.is_empty() {
                return Ok(pods);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Stops a pod with all of its members, and waits until the pod has stopped, across restarts of executord. If
    /// `grace` is `None`, the grace period of each member applies.
    ///
    /// # Errors
    /// Returns an error if there is no such pod.
    pub async fn stop(&self, id: &str, grace: Option<Duration>) -> Result<Pod, Error> {
        let grace_period = grace.map(duration).transpose()?;
        let answer = self.0.retry(is_lost, |_| {
            let (mut rpc, request) = (self.rpc(), StopPodRequest { id: id.to_owned(), grace_period });
            async move { rpc.stop_pod(request).await }
        });
        answer.await?.pod.ok_or(Error::Incomplete("the pod"))
    }

    /// Deletes a pod with its members. With `force`, running members are killed first.
    ///
    /// # Errors
    /// Returns an error if there is no such pod, or a member is running and `force` is not set.
    pub async fn delete(&self, id: &str, force: bool) -> Result<(), Error> {
        let mut attempts = 0u32;
        let answer = self.0.retry(is_lost, |_| {
            attempts += 1;
            let (mut rpc, request) = (self.rpc(), DeletePodRequest { id: id.to_owned(), force });
            async move { rpc.delete_pod(request).await }
        });
        match answer.await {
            // An earlier attempt deleted the pod, but its response was lost.
            Err(error) if attempts > 1 && error.code() == Some(Code::NotFound) => Ok(()),
            answer => answer.map(drop),
        }
    }
}
