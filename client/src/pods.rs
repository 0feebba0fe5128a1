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

/// Pods on a page, at most.
const PAGE: u32 = 1000;

/// Pods of an executord.
#[derive(Clone, Debug)]
pub struct Pods(Client);

/// Pods that [`Pods::list`] gives. The default is all of them.
#[derive(Clone, Debug, Default)]
pub struct PodFilter {
    /// Labels that the pods have, all of them.
    pub labels: HashMap<String, String>,
    /// Beginning of the pods' ids.
    pub id_prefix: String,
}

impl Client {
    /// The pods.
    pub fn pods(&self) -> Pods {
        Pods(self.clone())
    }
}

impl Pods {
    fn rpc(&self) -> PodsClient<Channel> {
        PodsClient::new(self.0.channel())
    }

    /// Creates a pod, over a restart of executord where the request has an id. Returns the pod, and true if it is new.
    ///
    /// # Errors
    /// Every violation of the request; another pod or a container has the id.
    pub async fn create(&self, request: &CreatePodRequest) -> Result<(Pod, bool), Error> {
        let answer = if request.id.is_empty() {
            // Sent again it would be another pod.
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

    /// Gets a pod, over a restart of executord.
    ///
    /// # Errors
    /// There is no such pod.
    pub async fn get(&self, id: &str) -> Result<Pod, Error> {
        let answer = self.0.retry(is_away, |_| {
            let (mut rpc, request) = (self.rpc(), GetPodRequest { id: id.to_owned() });
            async move { rpc.get_pod(request).await }
        });
        answer.await?.pod.ok_or(Error::Incomplete("the pod"))
    }

    /// Lists pods, all pages of them.
    ///
    /// # Errors
    /// Executord is away.
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

    /// Stops a pod with all of its members, each with this grace period or its own, and waits until it has ended, over
    /// restarts of executord.
    ///
    /// # Errors
    /// There is no such pod.
    pub async fn stop(&self, id: &str, grace: Option<Duration>) -> Result<Pod, Error> {
        let grace_period = grace.map(duration).transpose()?;
        let answer = self.0.retry(is_away, |_| {
            let (mut rpc, request) = (self.rpc(), StopPodRequest { id: id.to_owned(), grace_period });
            async move { rpc.stop_pod(request).await }
        });
        answer.await?.pod.ok_or(Error::Incomplete("the pod"))
    }

    /// Deletes a pod with its members; with `force` those that run are killed first.
    ///
    /// # Errors
    /// There is no such pod, or a member runs and `force` is not set.
    pub async fn delete(&self, id: &str, force: bool) -> Result<(), Error> {
        let mut attempts = 0u32;
        let answer = self.0.retry(is_lost, |_| {
            attempts += 1;
            let (mut rpc, request) = (self.rpc(), DeletePodRequest { id: id.to_owned(), force });
            async move { rpc.delete_pod(request).await }
        });
        match answer.await {
            // The attempt whose answer was lost has deleted it.
            Err(error) if attempts > 1 && error.code() == Some(Code::NotFound) => Ok(()),
            answer => answer.map(drop),
        }
    }
}
