//! The request for a container.
//!
//! The request holds secrets (file contents, environment values, arguments). The client library wipes its copies as
//! soon as executord has responded. Copies made by the gRPC library stay in memory until this process exits, so the
//! process disables core files and unprivileged debuggers ([`forbid_dumps`]).

use executor_client::Run;
use executor_client::v1::volume_mount::Source;
use executor_client::v1::{self, EnvironmentVariable, RunRequest};

use crate::failure::Failure;
use crate::images::OnDisk;
use crate::status::Named;

pub struct Request {
    run: Run,
    named: Named,
}

impl Request {
    /// Wraps a message; errors name its fields by their flags.
    pub fn from_request(request: RunRequest) -> Self {
        let named = Named { doing: format!("run {}", request.id), fields: Vec::new() };
        Self { run: request.into(), named }
    }

    /// Sets the names that errors use for the request and its fields.
    #[must_use]
    pub fn named(self, named: Named) -> Self {
        Self { named, ..self }
    }

    /// Returns the names that errors use.
    pub fn names(&self) -> &Named {
        &self.named
    }

    pub fn id(&self) -> &str {
        &self.message().id
    }

    /// Returns the pull request for the image, and true if an image that is present is pulled again. The image is
    /// pulled before the container is created, so that the user sees the progress. `None` if the image is not in a
    /// registry or is never pulled.
    pub fn to_pull(&self) -> Option<(v1::PullImageRequest, bool)> {
        let policy = self.message().pull_policy();
        let wanted = self.message().rootfs.starts_with("docker://") && policy != v1::PullPolicy::Never;
        let (reference, credentials) = (self.message().rootfs.clone(), self.message().registry_credentials.clone());
        let platform = self.message().platform.clone();
        wanted.then(|| (v1::PullImageRequest { reference, credentials, platform }, policy == v1::PullPolicy::Always))
    }

    /// Returns the images of volumes to pull before the container is created, each as in [`Self::to_pull`].
    pub fn volumes_to_pull(&self) -> Vec<(v1::PullImageRequest, bool)> {
        let policy = self.message().pull_policy();
        let images = self.volumes().iter().filter_map(|volume| match &volume.source {
            Some(Source::Image(v1::ImageVolume { reference })) if reference.starts_with("docker://") => Some(reference),
            _ => None,
        });
        let pull = |reference: &String| v1::PullImageRequest { reference: reference.clone(), ..Default::default() };
        let wanted = images.filter(|_| policy != v1::PullPolicy::Never);
        wanted.map(|reference| (pull(reference), policy == v1::PullPolicy::Always)).collect()
    }

    pub fn volumes(&self) -> &[v1::VolumeMount] {
        &self.message().volumes
    }

    pub fn volumes_mut(&mut self) -> &mut [v1::VolumeMount] {
        &mut self.run.message_mut().volumes
    }

    pub fn devices_mut(&mut self) -> &mut [v1::DeviceMount] {
        &mut self.run.message_mut().devices
    }

    /// Returns the image reference if the image is on this machine's disk.
    pub fn on_disk(&self) -> Option<String> {
        let wanted = self.message().pull_policy() != v1::PullPolicy::Never;
        Some(self.message().rootfs.clone()).filter(|rootfs| wanted && OnDisk::from_reference(rootfs).is_some())
    }

    /// Marks the image as imported under its reference, so that executord does not pull it.
    pub fn mark_imported(&mut self) {
        self.run.message_mut().set_pull_policy(v1::PullPolicy::Never);
    }

    pub fn outputs(&self) -> Option<&v1::Outputs> {
        self.message().outputs.as_ref()
    }

    /// Returns the flag that set an environment variable, if any.
    pub fn flag_of(&self, variable: &str) -> Option<&'static str> {
        let run = self.message().action.as_ref()?.run.as_ref()?;
        let flags = [("--env", &run.env), ("--secret-env", &run.secret_environment)];
        let sets = |variables: &[EnvironmentVariable]| variables.iter().any(|given| given.name == variable);
        flags.into_iter().find_map(|(flag, variables)| sets(variables).then_some(flag))
    }

    /// Adds the files of bindings. Adds their directory if it is not executord's default, and `variable` if the user
    /// did not set it.
    pub fn bind(&mut self, files: Vec<v1::File>, directory: Option<String>, variable: EnvironmentVariable) {
        let ours = self.flag_of(&variable.name).is_none();
        let declared = directory.filter(|directory| !self.message().file_directories.contains(directory));
        self.run.message_mut().file_directories.extend(declared);
        let run = self.run.message_mut().action.get_or_insert_default().run.get_or_insert_default();
        run.volume_mounted_files.extend(files);
        if ours {
            run.env.push(variable);
        }
    }

    /// Sets whether the process blocks until its output is read. If `awaited`, the caller must attach a reader
    /// immediately.
    pub fn await_reader(&mut self, awaited: bool) {
        self.run.message_mut().await_reader = awaited;
    }

    /// Returns the request as the client library's type.
    pub fn run(&self) -> &Run {
        &self.run
    }

    fn message(&self) -> &RunRequest {
        self.run.message()
    }
}

/// Disables core files, and debuggers without CAP_SYS_PTRACE, because both would expose [`Request`].
pub fn forbid_dumps() {
    // A process needs no privilege for this. Best effort: ignore errors.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Converts a duration to its protobuf type.
pub fn to_proto(duration: std::time::Duration) -> Result<prost_types::Duration, Failure> {
    duration.try_into().map_err(|_| Failure::Usage(format!("a duration of {duration:?} is too long")))
}
