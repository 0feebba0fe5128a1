//! The request for a container, as it goes to executord.
//!
//! The request holds secrets (files' contents, values of the environment, arguments). The client library wipes its copies as
//! soon as executord has answered; what the gRPC library copied on the way lives in this process until it exits, and the
//! process allows neither core files nor debuggers of other users meanwhile.

use executor_client::Run;
use executor_client::v1::volume_mount::Source;
use executor_client::v1::{self, EnvironmentVariable, RunRequest};

use crate::failure::Failure;
use crate::images::OnDisk;
use crate::status::Named;

/// The request for a container.
pub struct Request {
    run: Run,
    named: Named,
}

impl Request {
    /// Wraps a message, whose fields errors name by their flags.
    pub fn from_request(request: RunRequest) -> Self {
        let named = Named { doing: format!("run {}", request.id), fields: Vec::new() };
        Self { run: request.into(), named }
    }

    /// Makes errors name the request and its fields as the user did.
    #[must_use]
    pub fn named(self, named: Named) -> Self {
        Self { named, ..self }
    }

    /// Returns the words in which errors name the request.
    pub fn names(&self) -> &Named {
        &self.named
    }

    /// The container's id.
    pub fn id(&self) -> &str {
        &self.message().id
    }

    /// Returns the image to fetch before the container is made, so that the user sees the progress: an image of a
    /// registry, and whether it is pulled even if it is already there.
    pub fn to_pull(&self) -> Option<(v1::PullImageRequest, bool)> {
        let policy = self.message().pull_policy();
        let wanted = self.message().rootfs.starts_with("docker://") && policy != v1::PullPolicy::Never;
        let (reference, credentials) = (self.message().rootfs.clone(), self.message().registry_credentials.clone());
        let platform = self.message().platform.clone();
        wanted.then(|| (v1::PullImageRequest { reference, credentials, platform }, policy == v1::PullPolicy::Always))
    }

    /// Returns the images of its volumes that are fetched likewise.
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

    /// Returns the volumes.
    pub fn volumes(&self) -> &[v1::VolumeMount] {
        &self.message().volumes
    }

    /// Returns the volumes, to be changed.
    pub fn volumes_mut(&mut self) -> &mut [v1::VolumeMount] {
        &mut self.run.message_mut().volumes
    }

    /// Returns the devices, to be changed.
    pub fn devices_mut(&mut self) -> &mut [v1::DeviceMount] {
        &mut self.run.message_mut().devices
    }

    /// The reference of its image, where that is read from this machine's disk.
    pub fn on_disk(&self) -> Option<String> {
        let wanted = self.message().pull_policy() != v1::PullPolicy::Never;
        Some(self.message().rootfs.clone()).filter(|rootfs| wanted && OnDisk::from_reference(rootfs).is_some())
    }

    /// Marks the image as taken in under its reference, so that executord does not pull it.
    pub fn is_taken_in(&mut self) {
        self.run.message_mut().set_pull_policy(v1::PullPolicy::Never);
    }

    /// Returns the declared outputs.
    pub fn outputs(&self) -> Option<&v1::Outputs> {
        self.message().outputs.as_ref()
    }

    /// The flag that set a variable of the process, if one did.
    pub fn flag_of(&self, variable: &str) -> Option<&'static str> {
        let run = self.message().action.as_ref()?.run.as_ref()?;
        let flags = [("--env", &run.env), ("--secret-env", &run.secret_environment)];
        let sets = |variables: &[EnvironmentVariable]| variables.iter().any(|given| given.name == variable);
        flags.into_iter().find_map(|(flag, variables)| sets(variables).then_some(flag))
    }

    /// Adds the files of bindings and the variable that names them, unless somebody gave that himself; and the directory that
    /// they lie in, if it is not executord's own.
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

    /// Lets the process wait for the reader of its output, who comes at once.
    pub fn await_reader(&mut self, awaited: bool) {
        self.run.message_mut().await_reader = awaited;
    }

    /// The request as the client library takes it.
    pub fn run(&self) -> &Run {
        &self.run
    }

    fn message(&self) -> &RunRequest {
        self.run.message()
    }
}

/// Core files and other users' debuggers would show what [`Request`] holds.
pub fn forbid_dumps() {
    // Allowed to every process for itself; where it fails all the same, the program runs on as it would have.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// A duration for the wire.
pub fn to_proto(duration: std::time::Duration) -> Result<prost_types::Duration, Failure> {
    duration.try_into().map_err(|_| Failure::Usage(format!("a duration of {duration:?} is too long")))
}
