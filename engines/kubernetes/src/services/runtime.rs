//! Implements the service `runtime.v1.RuntimeService`.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use executor_cri_api::v1::runtime_service_server::RuntimeService;
use executor_cri_api::v1::*;
use tokio::time::timeout;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Empty, Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::{answer, to_end, to_end_within};
use crate::lower::sandbox::{HANDLER, HOST_HANDLER};
use crate::node::Node;
use crate::{containers, exec, failure, metrics, sandboxes, stats, status, streams};

/// Version of the kubelet's interface (rule C1).
const KUBELET_API: &str = "0.1.0";
const RUNTIME_API: &str = "v1";

/// Time limit for responses from executord in Status. The kubelet waits for 2 minutes, but the node becomes NotReady
/// after 30 s without a good status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Runtime(pub(super) Arc<Node>);

impl Runtime {
    fn node(&self) -> Arc<Node> {
        Arc::clone(&self.0)
    }
}

/// Response stream of methods that are not implemented.
type EmptyStream<T> = Empty<Result<T, Status>>;

/// Returns the status of a method that is not implemented. The message begins with the message of gRPC's Go server,
/// because clients compare it.
fn unimplemented<T>(method: &str, remedy: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!("method {method} not implemented{remedy}")))
}

/// Returns the information for `verbose` (rule C15): a map with one key, whose value is JSON.
fn info(name: &str, value: &impl serde::Serialize) -> BTreeMap<String, String> {
    serde_json::to_string(value).map(|json| BTreeMap::from([(name.to_owned(), json)])).unwrap_or_default()
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    type StreamPodSandboxesStream = EmptyStream<StreamPodSandboxesResponse>;
    type StreamContainersStream = EmptyStream<StreamContainersResponse>;
    type StreamContainerStatsStream = EmptyStream<StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = EmptyStream<StreamPodSandboxStatsResponse>;
    type StreamPodSandboxMetricsStream = EmptyStream<StreamPodSandboxMetricsResponse>;
    type GetContainerEventsStream = Pin<Box<dyn Stream<Item = Result<ContainerEventResponse, Status>> + Send>>;

    async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        answer(VersionResponse {
            version: KUBELET_API.into(),
            runtime_name: HANDLER.into(),
            runtime_version: env!("CARGO_PKG_VERSION").into(),
            runtime_api_version: RUNTIME_API.into(),
        })
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Result<Response<RunPodSandboxResponse>, Status> {
        let (node, request) = (self.node(), request.into_inner());
        let pod_sandbox_id = to_end(async move { sandboxes::run(&node, request).await }).await?;
        answer(RunPodSandboxResponse { pod_sandbox_id })
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Result<Response<StopPodSandboxResponse>, Status> {
        let (node, id) = (self.node(), request.into_inner().pod_sandbox_id);
        to_end(async move { sandboxes::stop(&node, &id).await }).await?;
        answer(StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Result<Response<RemovePodSandboxResponse>, Status> {
        let (node, id) = (self.node(), request.into_inner().pod_sandbox_id);
        to_end(async move { sandboxes::remove(&node, &id).await }).await?;
        answer(RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Result<Response<PodSandboxStatusResponse>, Status> {
        let PodSandboxStatusRequest { pod_sandbox_id, verbose } = request.into_inner();
        let sandbox = self.0.sandbox(&pod_sandbox_id)?;
        let members = self.0.store.containers.all().into_iter();
        let members = members.filter(|container| container.record.sandbox == sandbox.record.id);
        answer(PodSandboxStatusResponse {
            status: Some(status::sandbox(&sandbox)),
            info: if verbose { info("info", &*sandbox.record) } else { BTreeMap::new() },
            containers_statuses: members.map(|container| status::container(&container)).collect(),
            timestamp: crate::node::now(),
        })
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        let sandboxes = sandboxes::list(&self.0, request.into_inner().filter);
        answer(ListPodSandboxResponse { items: sandboxes.iter().map(status::listed_sandbox).collect() })
    }

    async fn stream_pod_sandboxes(
        &self,
        _: Request<StreamPodSandboxesRequest>,
    ) -> Result<Response<Self::StreamPodSandboxesStream>, Status> {
        unimplemented("StreamPodSandboxes", "; use ListPodSandbox")
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Result<Response<CreateContainerResponse>, Status> {
        let (node, request) = (self.node(), request.into_inner());
        let container_id = to_end(async move { containers::create(&node, request).await }).await?;
        answer(CreateContainerResponse { container_id })
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Result<Response<StartContainerResponse>, Status> {
        let (node, id) = (self.node(), request.into_inner().container_id);
        to_end(async move { containers::start(&node, &id).await }).await?;
        answer(StartContainerResponse {})
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Result<Response<StopContainerResponse>, Status> {
        let (node, request) = (self.node(), request.into_inner());
        // The duration depends on the container, so the call has its own time limit.
        to_end_within(Duration::MAX, async move { containers::stop(&node, &request).await }).await?;
        answer(StopContainerResponse {})
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Result<Response<RemoveContainerResponse>, Status> {
        let (node, id) = (self.node(), request.into_inner().container_id);
        to_end(async move { containers::remove(&node, &id).await }).await?;
        answer(RemoveContainerResponse {})
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let containers = containers::list(&self.0, request.into_inner().filter);
        answer(ListContainersResponse { containers: containers.iter().map(status::listed_container).collect() })
    }

    async fn stream_containers(
        &self,
        _: Request<StreamContainersRequest>,
    ) -> Result<Response<Self::StreamContainersStream>, Status> {
        unimplemented("StreamContainers", "; use ListContainers")
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let ContainerStatusRequest { container_id, verbose } = request.into_inner();
        let container = self.0.container(&container_id)?;
        let details = || {
            let processes = container.state.iter().flat_map(|run| &run.processes);
            let pid = processes.map(|process| process.pid).find(|&pid| pid > 0).unwrap_or_default();
            info("info", &serde_json::json!({ "pid": pid, "record": &*container.record }))
        };
        answer(ContainerStatusResponse {
            status: Some(status::container(&container)),
            info: if verbose { details() } else { BTreeMap::new() },
        })
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Result<Response<UpdateContainerResourcesResponse>, Status> {
        let (node, request) = (self.node(), request.into_inner());
        let UpdateContainerResourcesRequest { container_id, linux, .. } = request;
        to_end(async move { containers::update(&node, &container_id, linux).await }).await?;
        answer(UpdateContainerResourcesResponse {})
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> Result<Response<ReopenContainerLogResponse>, Status> {
        let container = self.0.container(&request.into_inner().container_id).map_err(failure::precondition)?;
        if status::state(&container) != ContainerState::ContainerRunning {
            return Err(Status::failed_precondition("the container is not running"));
        }
        let reopened = self.0.client.reopen_log(&container.record.id).await;
        reopened.map_err(failure::status)?;
        answer(ReopenContainerLogResponse {})
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Result<Response<ExecSyncResponse>, Status> {
        answer(exec::sync(&self.0, request.into_inner()).await?)
    }

    async fn exec(&self, request: Request<ExecRequest>) -> Result<Response<ExecResponse>, Status> {
        answer(ExecResponse { url: streams::exec(&self.0, request.into_inner())? })
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<AttachResponse>, Status> {
        answer(AttachResponse { url: streams::attach(&self.0, request.get_ref())? })
    }

    async fn port_forward(
        &self,
        request: Request<PortForwardRequest>,
    ) -> Result<Response<PortForwardResponse>, Status> {
        answer(PortForwardResponse { url: streams::port_forward(&self.0, request.get_ref())? })
    }

    async fn container_stats(
        &self,
        request: Request<ContainerStatsRequest>,
    ) -> Result<Response<ContainerStatsResponse>, Status> {
        let container = self.0.container(&request.into_inner().container_id)?;
        let stats = stats::of_containers(&self.0, vec![container]).await?.pop();
        answer(ContainerStatsResponse { stats })
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> Result<Response<ListContainerStatsResponse>, Status> {
        answer(ListContainerStatsResponse { stats: stats::list(&self.0, request.into_inner().filter).await? })
    }

    async fn stream_container_stats(
        &self,
        _: Request<StreamContainerStatsRequest>,
    ) -> Result<Response<Self::StreamContainerStatsStream>, Status> {
        unimplemented("StreamContainerStats", "; use ListContainerStats")
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<PodSandboxStatsRequest>,
    ) -> Result<Response<PodSandboxStatsResponse>, Status> {
        let sandbox = self.0.sandbox(&request.into_inner().pod_sandbox_id)?;
        let stats = stats::of_sandboxes(&self.0, vec![sandbox]).await?.pop();
        answer(PodSandboxStatsResponse { stats })
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> Result<Response<ListPodSandboxStatsResponse>, Status> {
        answer(ListPodSandboxStatsResponse {
            stats: stats::list_sandboxes(&self.0, request.into_inner().filter).await?,
        })
    }

    async fn stream_pod_sandbox_stats(
        &self,
        _: Request<StreamPodSandboxStatsRequest>,
    ) -> Result<Response<Self::StreamPodSandboxStatsStream>, Status> {
        unimplemented("StreamPodSandboxStats", "; use ListPodSandboxStats")
    }

    /// Does nothing: the network plugins configure the pod CIDR (rule C15).
    async fn update_runtime_config(
        &self,
        _: Request<UpdateRuntimeConfigRequest>,
    ) -> Result<Response<UpdateRuntimeConfigResponse>, Status> {
        answer(UpdateRuntimeConfigResponse {})
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let condition = |kind: &str, problem: Option<(&str, String)>| {
            let status = problem.is_none();
            let (reason, message) = problem.map(|(reason, message)| (reason.to_owned(), message)).unwrap_or_default();
            RuntimeCondition { r#type: kind.into(), status, reason, message }
        };
        let late = |_| format!("executord has not responded within {} s", STATUS_TIMEOUT.as_secs());
        let answer_of_info = timeout(STATUS_TIMEOUT, self.0.client.info()).await;
        let runtime = match answer_of_info.map_err(late).and_then(|info| info.map_err(|error| error.to_string())) {
            Ok(info) if info.launcher_connected => None,
            Ok(_) => Some(("LauncherMissing", "no launcher is connected to executord".to_owned())),
            Err(problem) => Some(("ExecutordMissing", problem)),
        };
        let network = match &runtime {
            Some((reason, message)) => Some((*reason, message.clone())),
            None => match timeout(STATUS_TIMEOUT, self.0.client.networks(&[]))
                .await
                .map_err(late)
                .and_then(|networks| networks.map_err(|error| error.to_string()))
            {
                Ok(networks) if networks.networks.iter().any(|network| network.driver == "cni") => None,
                Ok(networks) => {
                    let warnings = networks.warnings.join("; ");
                    Some(("NetworkPluginNotReady", format!("there is no CNI configuration; {warnings}")))
                }
                Err(problem) => Some(("NetworkUnknown", problem)),
            },
        };
        let features = Some(RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: true });
        let handler = |name: &str| RuntimeHandler { name: name.into(), features };
        answer(StatusResponse {
            status: Some(RuntimeStatus {
                conditions: vec![condition("RuntimeReady", runtime), condition("NetworkReady", network)],
            }),
            info: match request.into_inner().verbose {
                true => {
                    let config = serde_json::json!({ "executord": self.0.executor, "apparmorDefaultProfile": "" });
                    info("config", &config)
                }
                false => BTreeMap::new(),
            },
            runtime_handlers: vec![handler(""), handler(HANDLER), handler(HOST_HANDLER)],
            features: Some(RuntimeFeatures { supplemental_groups_policy: true, ..RuntimeFeatures::default() }),
        })
    }

    async fn checkpoint_container(
        &self,
        _: Request<CheckpointContainerRequest>,
    ) -> Result<Response<CheckpointContainerResponse>, Status> {
        unimplemented("CheckpointContainer", "")
    }

    async fn checkpoint_pod(
        &self,
        _: Request<CheckpointPodRequest>,
    ) -> Result<Response<CheckpointPodResponse>, Status> {
        unimplemented("CheckpointPod", "")
    }

    async fn restore_pod(&self, _: Request<RestorePodRequest>) -> Result<Response<RestorePodResponse>, Status> {
        unimplemented("RestorePod", "")
    }

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        let events = BroadcastStream::new(self.0.events.subscribe());
        // A watcher that is too slow must make a new call and read all states again.
        answer(Box::pin(events.map(|event| match event {
            Ok(event) => Ok(ContainerEventResponse::clone(&event)),
            Err(_) => Err(Status::resource_exhausted("events were lost, because the client reads too slowly")),
        })))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<ListMetricDescriptorsRequest>,
    ) -> Result<Response<ListMetricDescriptorsResponse>, Status> {
        answer(ListMetricDescriptorsResponse { descriptors: metrics::descriptors() })
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<ListPodSandboxMetricsRequest>,
    ) -> Result<Response<ListPodSandboxMetricsResponse>, Status> {
        answer(ListPodSandboxMetricsResponse { pod_metrics: metrics::list(&self.0).await? })
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<StreamPodSandboxMetricsRequest>,
    ) -> Result<Response<Self::StreamPodSandboxMetricsStream>, Status> {
        unimplemented("StreamPodSandboxMetrics", "; use ListPodSandboxMetrics")
    }

    async fn runtime_config(
        &self,
        _: Request<RuntimeConfigRequest>,
    ) -> Result<Response<RuntimeConfigResponse>, Status> {
        let linux = LinuxRuntimeConfiguration { cgroup_driver: CgroupDriver::Cgroupfs.into() };
        answer(RuntimeConfigResponse { linux: Some(linux) })
    }

    /// Does nothing: the kubelet changes the pod's cgroup itself (rule C15).
    async fn update_pod_sandbox_resources(
        &self,
        _: Request<UpdatePodSandboxResourcesRequest>,
    ) -> Result<Response<UpdatePodSandboxResourcesResponse>, Status> {
        answer(UpdatePodSandboxResourcesResponse {})
    }
}
