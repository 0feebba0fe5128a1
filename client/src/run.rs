//! The request for a container, and the methods that run and validate the request.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use executor_proto::Wiped;
use executor_proto::v1::{
    Action, Container, EnvironmentVariable, File, IdMapping, Limits, Network, Outputs, PathList, PortMapping,
    RegistryCredentials, RunAction, RunRequest, RunResponse, SecretArgument, UserNamespace, ValidateRequest,
    ValidateResponse,
};
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use zeroize::Zeroize as _;

use crate::connect::Client;
use crate::error::Error;
use crate::retry::is_lost;
use crate::secret::Secret;

/// A request for a container. A [`Run`] prints no secret, and wipes its secrets on drop.
///
/// A field that has no method here is set on the message itself ([`Run::message_mut`]).
///
/// ```
/// use executor_client::{Run, Secret};
///
/// let run = Run::new("docker://docker.io/library/alpine:3.20", "/bin/sh")
///     .args(["-c", "cat /run/secrets/db/password | wc -c"])
///     .env("STAGE", "test")
///     .secret_file("/run/secrets/db/password", Secret::from("hunter2"))
///     .memory_bytes(64 << 20)
///     .label("app", "web");
/// assert!(!format!("{run:?}").contains("hunter2"));
/// ```
#[derive(Clone, Debug)]
pub struct Run(Wiped<RunRequest>);

impl Run {
    /// Creates a request for a container that executes a program in a root file system (`host`, `dir:/path` or an
    /// image, as `rootfs` of the interface). If `path` is empty, the image's own program is executed.
    pub fn new(rootfs: impl Into<String>, path: impl Into<String>) -> Self {
        let run = RunAction { path: path.into(), ..RunAction::default() };
        let action = Some(Action { run: Some(run), ..Action::default() });
        RunRequest { rootfs: rootfs.into(), action, ..RunRequest::default() }.into()
    }

    /// Creates a request for a container that executes a tree of actions in a root file system. Setup, sidecars, and
    /// variables of all processes are set on the message ([`Run::message_mut`]).
    pub fn actions(rootfs: impl Into<String>, action: Action) -> Self {
        RunRequest { rootfs: rootfs.into(), action: Some(action), ..RunRequest::default() }.into()
    }

    /// Sets the container's id. A request with an id can be sent again. If unset, a UUID is generated.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.0.id = id.into();
        self
    }

    /// Appends arguments after the program's name.
    #[must_use]
    pub fn args<T: Into<String>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.action().args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets the program's working directory.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<String>) -> Self {
        self.action().dir = dir.into();
        self
    }

    /// Sets the user of the program: `user`, `uid`, `user:group` or `uid:gid`.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.action().user = user.into();
        self
    }

    /// Adds an environment variable that is not secret.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.action().env.push(EnvironmentVariable {
            name: name.into(),
            value: value.into(),
            ..EnvironmentVariable::default()
        });
        self
    }

    /// Adds an environment variable that is not secret, with a value that need not be UTF-8.
    #[must_use]
    pub fn env_bytes(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.action().env.push(EnvironmentVariable::from_bytes(name, value.into()));
        self
    }

    /// Adds a secret environment variable, which is masked in the log. Its value need not be UTF-8.
    ///
    /// # Errors
    /// Returns an error if the value contains NUL.
    pub fn secret_env(mut self, name: impl Into<String>, value: Secret) -> Result<Self, Error> {
        let variable = EnvironmentVariable::from_bytes(name, value.into_bytes());
        if variable.content().contains(&0) {
            let mut variable = variable;
            variable.wipe();
            let name = variable.name;
            return Err(Error::Argument(format!("secret_environment {name}: contains NUL; put it into a secret file")));
        }
        self.action().secret_environment.push(variable);
        Ok(self)
    }

    /// Sets the argument at `index` to a secret value. The argument must be empty before the call.
    ///
    /// # Errors
    /// Returns an error if the value is not UTF-8.
    pub fn secret_arg(mut self, index: u32, value: Secret) -> Result<Self, Error> {
        let value = text(value, &format!("secret_arguments {index}"))?;
        self.action().secret_arguments.push(SecretArgument { index, value, ..SecretArgument::default() });
        Ok(self)
    }

    /// Adds a secret file with mode 0600, owned by the process's user. `path` is absolute, or relative to executord's
    /// directory of files.
    #[must_use]
    pub fn secret_file(mut self, path: impl Into<String>, content: Secret) -> Self {
        let file = File { path: path.into(), content: content.into_bytes(), ..File::default() };
        self.action().volume_mounted_files.push(file);
        self
    }

    /// Limits memory including swap, in bytes.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.limits().memory_bytes = bytes;
        self
    }

    /// Limits the number of processes and threads.
    #[must_use]
    pub fn pids(mut self, pids: u64) -> Self {
        self.limits().pids = pids;
        self
    }

    /// Requests no limit on memory and on processes, which the operator must allow (`policy.allow_no_limits`).
    #[must_use]
    pub fn unlimited(mut self) -> Self {
        let limits = self.limits();
        (limits.unlimited_memory, limits.unlimited_pids) = (true, true);
        self
    }

    /// Keeps the result of the completed container until it is deleted, which the operator must allow
    /// (`policy.keep_until_deleted_max`).
    #[must_use]
    pub fn keep_until_deleted(mut self) -> Self {
        self.0.keep_until_deleted = true;
        self
    }

    /// Places the container's cgroup below another cgroup, which the operator must allow (`policy.cgroup_parents`).
    #[must_use]
    pub fn cgroup_parent(mut self, path: impl Into<String>) -> Self {
        self.0.cgroup_parent = path.into();
        self
    }

    /// Appends the output to a file of the host in addition to the log. The file must be below a directory that the
    /// operator allows (`policy.log_dirs`). See [`Client::reopen_log`](crate::Client::reopen_log).
    #[must_use]
    pub fn log_file(mut self, path: impl Into<String>) -> Self {
        self.0.log_file = path.into();
        self
    }

    /// Runs the processes in the host's PID namespace, with the host's user ids. The operator must allow both
    /// (`policy.allow_host_pid`, `allow_host_userns`).
    #[must_use]
    pub fn host_pid(mut self) -> Self {
        self.0.host_pid = true;
        self.0.user_namespace = UserNamespace::Host.into();
        self
    }

    /// Maps the container's users to the 65,536 host ids that begin at `host_id`, which the operator must allow
    /// (`policy.given_id_ranges`).
    #[must_use]
    pub fn id_map(mut self, host_id: u32) -> Self {
        self.0.id_map = Some(IdMapping { container_id: 0, host_id, length: 65_536 });
        self
    }

    /// Joins the PID namespace of a running member of the same pod.
    #[must_use]
    pub fn pid_of(mut self, id: impl Into<String>) -> Self {
        self.0.pid_of = id.into();
        self
    }

    /// Gives the container the host's IPC namespace and /dev/shm, with the host's user ids. The operator must allow
    /// both (`policy.allow_host_ipc`, `allow_host_userns`).
    #[must_use]
    pub fn host_ipc(mut self) -> Self {
        self.0.host_ipc = true;
        self.0.user_namespace = UserNamespace::Host.into();
        self
    }

    /// Allows programs to gain privileges through set-user-id bits. The operator must allow this
    /// (`policy.allow_new_privileges`).
    #[must_use]
    pub fn allow_new_privileges(mut self) -> Self {
        self.0.allow_new_privileges = true;
        self
    }

    /// Runs the container without a seccomp filter, which the operator must allow (`policy.allow_no_seccomp`).
    #[must_use]
    pub fn seccomp_unconfined(mut self) -> Self {
        self.0.seccomp_unconfined = true;
        self
    }

    /// Replaces the list of masked paths. The operator must allow a list without executord's own paths
    /// (`policy.allow_unmasked`).
    #[must_use]
    pub fn masked_paths(mut self, paths: Vec<String>) -> Self {
        self.0.masked_paths = Some(PathList { paths });
        self
    }

    /// Replaces the list of read-only paths, under the rules of [`Self::masked_paths`].
    #[must_use]
    pub fn readonly_paths(mut self, paths: Vec<String>) -> Self {
        self.0.readonly_paths = Some(PathList { paths });
        self
    }

    /// Limits CPU time, in thousandths of a CPU.
    #[must_use]
    pub fn cpu_millis(mut self, millis: u64) -> Self {
        self.limits().cpu_millis = millis;
        self
    }

    /// Adds a label, which [`crate::ListFilter`] can match.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.labels.insert(name.into(), value.into());
        self
    }

    /// Replaces all labels.
    #[must_use]
    pub fn labels(mut self, labels: HashMap<String, String>) -> Self {
        self.0.labels = labels;
        self
    }

    /// Sets the time between the stop signal and SIGKILL.
    ///
    /// # Errors
    /// Returns an error if the time is too long for the interface.
    pub fn grace_period(mut self, grace: Duration) -> Result<Self, Error> {
        self.0.grace_period = Some(duration(grace)?);
        Ok(self)
    }

    /// Sets the kind of network.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.0.set_network(network);
        self
    }

    /// Attaches the container to a network of the node by its name, for example `bridge`.
    #[must_use]
    pub fn on_network(mut self, name: impl Into<String>) -> Self {
        self.0.network_name = name.into();
        self.network(Network::Cni)
    }

    /// Adds a name by which containers on the same built-in network find the container.
    #[must_use]
    pub fn network_alias(mut self, alias: impl Into<String>) -> Self {
        self.0.network_aliases.push(alias.into());
        self
    }

    /// Publishes a port of the container on the host.
    #[must_use]
    pub fn port(mut self, port: PortMapping) -> Self {
        self.0.ports.push(port);
        self
    }

    /// Sets the files to capture after the process has exited.
    #[must_use]
    pub fn outputs(mut self, outputs: Outputs) -> Self {
        self.0.outputs = Some(outputs);
        self
    }

    /// Sets user and password for the image's registry.
    #[must_use]
    pub fn registry_credentials(mut self, credentials: RegistryCredentials) -> Self {
        self.0.registry_credentials = Some(credentials);
        self
    }

    /// Returns the request as a message of the interface.
    pub fn message(&self) -> &RunRequest {
        &self.0
    }

    /// Returns the request as a message of the interface, to set fields that have no method of [`Run`].
    pub fn message_mut(&mut self) -> &mut RunRequest {
        &mut self.0
    }

    fn action(&mut self) -> &mut RunAction {
        self.0.action.get_or_insert_default().run.get_or_insert_default()
    }

    fn limits(&mut self) -> &mut Limits {
        self.0.limits.get_or_insert_default()
    }
}

impl From<RunRequest> for Run {
    fn from(request: RunRequest) -> Self {
        Self(Wiped::new(request))
    }
}

/// Result of [`Client::run`].
#[derive(Clone, Debug)]
pub struct Started {
    /// The container at the time of the response.
    pub container: Container,
    /// True if this call created the container; false if an earlier call with the same request created it.
    pub created: bool,
}

impl Client {
    /// Runs a container. The container is created or running when this returns.
    ///
    /// The request is sent with an id (generated if unset), so that it can be repeated if the connection breaks:
    /// executord then returns the container that the first call created.
    ///
    /// # Errors
    /// Returns every violation of the request ([`Error::violations`]), or an error if the connection broke and could
    /// not be restored in time; the container may exist in that case.
    pub async fn run(&self, run: &Run) -> Result<Started, Error> {
        let mut message = run.0.clone();
        if message.id.is_empty() {
            message.id = uuid::Uuid::new_v4().to_string();
        }
        let begun = SystemTime::now();
        let mut attempts = 0u32;
        let answer = self.retry(is_lost, |_| {
            attempts += 1;
            self.send::<_, RunResponse>(message.clone(), "/executor.v1.Executor/Run")
        });
        let RunResponse { container, created, .. } = answer.await?;
        let container = container.ok_or(Error::Incomplete("the container"))?;
        // After a repeated call, executord reports that a container exists even if this call created it. A container
        // that is older than this call was created by another call.
        let made_at = container.created_at.and_then(|at| SystemTime::try_from(at).ok());
        let made_by_this = attempts > 1 && made_at.is_some_and(|at| at >= begun);
        Ok(Started { container, created: created || made_by_this })
    }

    /// Validates a request for a container or a pod, without creating anything. The pod of a container need not exist.
    /// Retries during a restart of executord. The field names of violations begin with `run.` or `pod.`.
    ///
    /// # Errors
    /// Returns every violation of the request. Returns [`tonic::Code::Unimplemented`] if executord does not list the
    /// feature `validate` in [`Client::info`].
    pub async fn validate(&self, request: &Wiped<ValidateRequest>) -> Result<(), Error> {
        let answer = self
            .retry(is_lost, |_| self.send::<_, ValidateResponse>(request.clone(), "/executor.v1.Executor/Validate"));
        answer.await.map(drop)
    }

    /// Validates the request for a container, like [`Client::validate`]. The field names of violations have no prefix
    /// `run.`.
    ///
    /// # Errors
    /// Returns the same errors as [`Client::validate`].
    pub async fn validate_run(&self, run: &Run) -> Result<(), Error> {
        let request = Wiped::new(ValidateRequest { run: Some(run.message().clone()), pod: None });
        self.validate(&request).await.map_err(|error| match error {
            Error::Refused(mut refusal) => {
                for violation in &mut refusal.violations {
                    if let Some(own) = violation.field.strip_prefix("run.") {
                        violation.field = own.to_owned();
                    }
                }
                Error::Refused(refusal)
            }
            other => other,
        })
    }

    /// Sends a message that is wiped as soon as it is encoded.
    pub(crate) async fn send<M, A>(&self, message: M, method: &'static str) -> Result<Response<A>, Status>
    where
        M: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<M, A>::default();
        grpc.unary(Request::new(message), PathAndQuery::from_static(method), codec).await
    }

    /// Sends a message like [`Client::send`], to a method that returns a stream.
    pub(crate) async fn send_for_stream<M, A>(
        &self,
        message: M,
        method: &'static str,
    ) -> Result<Response<Streaming<A>>, Status>
    where
        M: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let codec = ProstCodec::<M, A>::default();
        grpc.server_streaming(Request::new(message), PathAndQuery::from_static(method), codec).await
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel());
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }
}

fn text(value: Secret, what: &str) -> Result<String, Error> {
    String::from_utf8(value.into_bytes()).map_err(|error| {
        error.into_bytes().zeroize();
        Error::Argument(format!("{what}: not UTF-8; put binary values into a secret file"))
    })
}

pub(crate) fn duration(duration: Duration) -> Result<prost_types::Duration, Error> {
    let seconds = duration.as_secs();
    duration.try_into().map_err(|_| Error::Argument(format!("a duration of {seconds} s is too long")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_arrives_in_the_message() {
        let run = Run::new("dir:/x", "/bin/true")
            .id("web-1")
            .args(["a"])
            .args(["b"])
            .dir("/d")
            .user("vcap")
            .env("A", "1")
            .secret_file("s", Secret::from("x"))
            .memory_bytes(1)
            .pids(2)
            .cpu_millis(3)
            .label("k", "v")
            .network(Network::Host)
            .secret_env("B", Secret::from("y"))
            .and_then(|run| run.secret_arg(2, Secret::from("z")))
            .and_then(|run| run.grace_period(Duration::from_millis(1500)))
            .unwrap();
        let message = run.message();
        let action = message.action.as_ref().and_then(|action| action.run.as_ref()).unwrap();
        assert_eq!((&*message.id, &*message.rootfs, &*action.path), ("web-1", "dir:/x", "/bin/true"));
        assert_eq!((&*action.args, &*action.dir, &*action.user), (&["a".to_owned(), "b".into()][..], "/d", "vcap"));
        assert_eq!((action.env.len(), action.secret_environment.len(), action.secret_arguments[0].index), (1, 1, 2));
        assert_eq!(action.volume_mounted_files[0].content, b"x");
        let limits = message.limits.as_ref().unwrap();
        assert_eq!((limits.memory_bytes, limits.pids, limits.cpu_millis), (1, 2, 3));
        assert_eq!((message.labels["k"].as_str(), message.network()), ("v", Network::Host));
        assert_eq!(message.grace_period.as_ref().unwrap().nanos, 500_000_000);
        let refused = Run::new("host", "x").secret_env("B", Secret::from(vec![0xff, 0])).err().unwrap();
        assert!(refused.to_string().contains("secret_environment B"), "{refused}");
    }
}
