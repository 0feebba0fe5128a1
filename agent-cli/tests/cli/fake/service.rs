//! Implements the RPCs of the fake executord.

use std::pin::Pin;
use std::result::Result;
use std::sync::Arc;

use executor_proto::v1::executor_server::Executor;
use executor_proto::v1::{self, *};
use prost_types::Timestamp;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::{Call, Shared, TOKEN, container, end_of, signaled};

#[derive(Clone)]
pub(super) struct Service(pub(super) Arc<Shared>);

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Executor for Service {
    type StreamLogsStream = Streamed<StreamLogsResponse>;
    type WatchEventsStream = Streamed<WatchEventsResponse>;
    type WatchStatsStream = Streamed<WatchStatsResponse>;
    type GetOutputsStream = Streamed<GetOutputsResponse>;
    type ExecStream = Streamed<ExecResponse>;
    type AttachStream = Streamed<AttachResponse>;
    type GetArchiveStream = Streamed<GetArchiveResponse>;

    async fn exec(&self, _: Request<tonic::Streaming<ExecRequest>>) -> Result<Response<Self::ExecStream>, Status> {
        Err(Status::unimplemented("this fake executes nothing"))
    }

    async fn attach(
        &self,
        _: Request<tonic::Streaming<AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::unimplemented("this fake has no processes"))
    }

    async fn get_archive(&self, _: Request<GetArchiveRequest>) -> Result<Response<Self::GetArchiveStream>, Status> {
        Err(Status::unimplemented("this fake has no files"))
    }

    async fn put_archive(
        &self,
        _: Request<tonic::Streaming<PutArchiveRequest>>,
    ) -> Result<Response<PutArchiveResponse>, Status> {
        Err(Status::unimplemented("this fake has no files"))
    }

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        // `await_reader` is not part of the container.
        let request = RunRequest { await_reader: false, ..request.into_inner() };
        let id = request.id.clone();
        let hold = {
            let mut state = self.0.state();
            if let Some(refusal) = state.refuse_run.take() {
                return Err(refusal);
            }
            match state.requests.get(&id) {
                Some(earlier) if *earlier != request => {
                    return Err(Status::already_exists(format!("the id {id} is in use")));
                }
                Some(_) => {
                    let container = state.containers.get(&id).cloned();
                    state.calls.push(Call::Run(Box::new(request)));
                    drop(state);
                    self.0.touch();
                    return Ok(Response::new(RunResponse { container, created: false }));
                }
                None => {}
            }
            state.containers.insert(id.clone(), container(&id, State::Running, &request));
            state.requests.insert(id.clone(), request.clone());
            state.hold_run
        };
        self.0.event(&id, event::Kind::Running, None);
        if let Some(on_run) = &self.0.on_run {
            on_run(&self.0, &id);
        }
        self.0.call(Call::Run(Box::new(request)));
        if hold {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(RunResponse { container: Some(self.0.get(&id)?), created: true }))
    }

    async fn validate(&self, _: Request<ValidateRequest>) -> Result<Response<ValidateResponse>, Status> {
        Err(Status::unimplemented("an executord without this method"))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        Ok(Response::new(GetResponse { container: Some(self.0.get(&request.into_inner().id)?) }))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let request = request.into_inner();
        self.0.call(Call::List(request.clone()));
        let state = self.0.state();
        let mut containers: Vec<Container> = state
            .containers
            .values()
            .filter(|container| container.id.as_str() > request.page_token.as_str())
            .filter(|container| container.id.starts_with(&request.id_prefix))
            .filter(|container| request.states.is_empty() || request.states.contains(&container.state))
            .take(state.page_size + 1)
            .cloned()
            .collect();
        let more = containers.len() > state.page_size;
        containers.truncate(state.page_size);
        let last = containers.last().map(|container| container.id.clone());
        Ok(Response::new(ListResponse { containers, next_page_token: last.filter(|_| more).unwrap_or_default() }))
    }

    async fn wait(&self, request: Request<WaitRequest>) -> Result<Response<WaitResponse>, Status> {
        let id = request.into_inner().id;
        self.0.call(Call::Wait(id.clone()));
        let mut ticks = self.0.ticks.subscribe();
        loop {
            let container = self.0.get(&id)?;
            if container.state() == State::Completed {
                return Ok(Response::new(WaitResponse { container: Some(container) }));
            }
            let _ = ticks.changed().await;
        }
    }

    async fn stream_logs(
        &self,
        request: Request<StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        let request = request.into_inner();
        self.0.call(Call::Logs(request.clone()));
        if let Some(refusal) = self.0.state().refuse_logs.clone() {
            return Err(refusal);
        }
        self.0.get(&request.id)?;
        let (entries, stream) = mpsc::channel(1);
        let shared = Arc::clone(&self.0);
        let since = request.since.map_or((0, 0), |since| (since.seconds, since.nanos));
        tokio::spawn(async move {
            let mut ticks = shared.ticks.subscribe();
            let mut next = 0;
            loop {
                let (fresh, completed) = {
                    let state = shared.state();
                    let log = state.logs.get(&request.id).map_or(&[][..], Vec::as_slice);
                    let completed = state.containers.get(&request.id).is_none_or(|c| c.state() == State::Completed);
                    (log[next..].to_vec(), completed)
                };
                next += fresh.len();
                for entry in fresh {
                    let time = entry.time.unwrap_or_default();
                    let from = request.offset.unwrap_or(0);
                    let own_words = entry.stream() == LogStream::Executor && entry.offset >= from;
                    let wanted = (time.seconds, time.nanos) >= since && (own_words || end_of(&entry) > from);
                    if wanted && entries.send(Ok(entry)).await.is_err() {
                        return;
                    }
                }
                if completed || !request.follow {
                    return;
                }
                let _ = ticks.changed().await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        let request = request.into_inner();
        let mut container = self.0.get(&request.id)?;
        self.0.call(Call::Stop(request.clone()));
        container.set_state(State::Stopping);
        if !self.0.state().ignores_term {
            self.0.complete(&request.id, v1::Result { stopped: true, ..signaled(15) });
        }
        Ok(Response::new(StopResponse { container: Some(container) }))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Result<Response<SignalResponse>, Status> {
        let request = request.into_inner();
        self.0.get(&request.id)?;
        self.0.call(Call::Signal(request.clone()));
        if request.signal == 9 {
            self.0.complete(&request.id, signaled(9));
        }
        Ok(Response::new(SignalResponse {}))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        let request = request.into_inner();
        let container = self.0.get(&request.id)?;
        if container.state() != State::Completed && !request.force {
            return Err(Status::failed_precondition(format!("{} is running", request.id)));
        }
        self.0.state().containers.remove(&request.id);
        self.0.call(Call::Delete(request));
        Ok(Response::new(DeleteResponse {}))
    }

    async fn watch_events(
        &self,
        request: Request<WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let request = request.into_inner();
        self.0.call(Call::Watch(request.clone()));
        let shared = Arc::clone(&self.0);
        let mut next = request.after_cursor as usize;
        let ticks = tokio_stream::wrappers::WatchStream::new(shared.ticks.subscribe());
        let stream = ticks.map(move |_| {
            let fresh: Vec<Event> = shared.state().events.iter().skip(next).cloned().collect();
            next += fresh.len();
            fresh
        });
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Some(fresh) = stream.next().await {
                for event in fresh {
                    let response = WatchEventsResponse { event: Some(event), gap: false };
                    if sender.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn update_files(
        &self,
        request: Request<UpdateFilesRequest>,
    ) -> Result<Response<UpdateFilesResponse>, Status> {
        let request = request.into_inner();
        self.0.call(Call::Update(request.clone()));
        let mut container = self.0.get(&request.id)?;
        if request.expected_generation.is_some_and(|expected| expected != container.files_generation) {
            return Err(Status::aborted(format!("the files have generation {}", container.files_generation)));
        }
        container.files_generation += 1;
        container.files_updated_at = Some(Timestamp { seconds: 9, nanos: 0 });
        self.0.state().containers.insert(request.id, container.clone());
        Ok(Response::new(UpdateFilesResponse { container: Some(container) }))
    }

    async fn update_egress(
        &self,
        request: Request<UpdateEgressRequest>,
    ) -> Result<Response<UpdateEgressResponse>, Status> {
        let request = request.into_inner();
        let mut container = self.0.get(&request.id)?;
        container.egress_generation += 1;
        let mut spec = container.spec.unwrap_or_default();
        (spec.egress, spec.egress_rules) = (request.egress, request.egress_rules);
        container.spec = Some(spec);
        self.0.state().containers.insert(request.id, container.clone());
        Ok(Response::new(UpdateEgressResponse { container: Some(container) }))
    }

    async fn list_networks(
        &self,
        request: Request<ListNetworksRequest>,
    ) -> Result<Response<ListNetworksResponse>, Status> {
        let names = request.into_inner().names;
        let state = self.0.state();
        let wanted = |network: &&NodeNetwork| names.is_empty() || names.contains(&network.name);
        let networks: Vec<NodeNetwork> = state.networks.iter().filter(wanted).cloned().collect();
        if let Some(name) = names.iter().find(|name| !networks.iter().any(|network| network.name == **name)) {
            return Err(Status::not_found(format!("no network {name}")));
        }
        Ok(Response::new(ListNetworksResponse { networks, warnings: state.network_warnings.clone() }))
    }

    async fn check_network(
        &self,
        request: Request<CheckNetworkRequest>,
    ) -> Result<Response<CheckNetworkResponse>, Status> {
        let name = request.into_inner().name;
        let checked = self.0.state().network_checks.get(&name).cloned();
        checked.map(Response::new).ok_or_else(|| Status::not_found(format!("no network {name}")))
    }

    async fn start(&self, request: Request<StartRequest>) -> Result<Response<StartResponse>, Status> {
        let container = self.0.get(&request.into_inner().id)?;
        Ok(Response::new(StartResponse { container: Some(container) }))
    }

    async fn pause(&self, request: Request<PauseRequest>) -> Result<Response<PauseResponse>, Status> {
        let container = self.0.set_paused(&request.into_inner().id, true)?;
        Ok(Response::new(PauseResponse { container: Some(container) }))
    }

    async fn resume(&self, request: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        let container = self.0.set_paused(&request.into_inner().id, false)?;
        Ok(Response::new(ResumeResponse { container: Some(container) }))
    }

    async fn reopen_log(&self, request: Request<ReopenLogRequest>) -> Result<Response<ReopenLogResponse>, Status> {
        let container = Some(self.0.get(&request.into_inner().id)?);
        Ok(Response::new(ReopenLogResponse { container }))
    }

    async fn update_limits(
        &self,
        request: Request<UpdateLimitsRequest>,
    ) -> Result<Response<UpdateLimitsResponse>, Status> {
        let request = request.into_inner();
        let mut container = self.0.get(&request.id)?;
        container.limits_generation += 1;
        let mut spec = container.spec.unwrap_or_default();
        spec.limits = request.limits;
        container.spec = Some(spec);
        self.0.state().containers.insert(request.id, container.clone());
        Ok(Response::new(UpdateLimitsResponse { container: Some(container) }))
    }

    async fn get_secrets(&self, request: Request<GetSecretsRequest>) -> Result<Response<GetSecretsResponse>, Status> {
        let presented = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        if presented != Some(&format!("Bearer {TOKEN}")) {
            return Err(Status::permission_denied("this is no runtime token of a running container"));
        }
        let variable = |name: &str, value: &str| EnvironmentVariable {
            name: name.into(),
            value: value.into(),
            ..EnvironmentVariable::default()
        };
        let file = |path: &str, content: &[u8]| File { path: path.into(), content: content.into(), ..File::default() };
        Ok(Response::new(GetSecretsResponse {
            files: vec![file("/etc/a", b"x\ny"), file("/etc/b", b"\xff\0")],
            environment: vec![variable("PW", "canary one")],
            arguments: vec![SecretArgument { index: 3, value: "canary two\n".into(), ..SecretArgument::default() }],
        }))
    }

    async fn get_outputs(
        &self,
        request: Request<GetOutputsRequest>,
    ) -> Result<Response<Self::GetOutputsStream>, Status> {
        let request = request.into_inner();
        self.0.get(&request.id)?;
        let (parts, hold) = {
            let state = self.0.state();
            (state.outputs.clone(), state.hold_outputs)
        };
        self.0.call(Call::Outputs(request));
        let (sender, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            for part in parts {
                if sender.send(Ok(GetOutputsResponse { part: Some(part) })).await.is_err() {
                    return;
                }
            }
            if hold {
                sender.closed().await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        let containers = self.0.usage(&request.into_inner().ids)?;
        Ok(Response::new(StatsResponse { containers, next_page_token: String::new() }))
    }

    /// Sends two readings. The first reading is split into two messages.
    async fn watch_stats(
        &self,
        request: Request<WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let containers = self.0.usage(&request.into_inner().ids)?;
        let part = |containers: &[ContainerStats], end_of_reading| {
            Ok(WatchStatsResponse { containers: containers.to_vec(), end_of_reading })
        };
        let parts = vec![part(&containers, false), part(&[], true), part(&containers, true)];
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        let cursor = self.0.state().events.len() as u64;
        let capacity = Capacity { memory_bytes: 8 << 30, pids: 4096, containers: 250, disk_bytes: 100 << 30 };
        Ok(Response::new(InfoResponse {
            version: "9.9.9".into(),
            total: Some(capacity),
            remaining: Some(capacity),
            launcher_connected: true,
            cursor,
            ..InfoResponse::default()
        }))
    }
}
