//! The request for a container, as it goes to executord.
//!
//! The request holds secrets (files' contents, values of the environment, arguments). [`Request`] wipes its
//! own copy when it is dropped, which is as soon as executord has answered; what the gRPC library copied on
//! the way lives in this process until it exits, and the process allows neither core files nor debuggers
//! of other users meanwhile.

use executor_proto::v1::{self, EnvironmentVariable, RunRequest};
use zeroize::Zeroize;

use crate::failure::Failure;
use crate::images::OnDisk;
use crate::registry::wipe;

/// A request that wipes itself.
pub struct Request(Box<RunRequest>);

impl Request {
    /// Wraps a message.
    pub fn of(request: RunRequest) -> Self {
        Self(Box::new(request))
    }

    /// The container's id.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// What is to be fetched first, so that a person sees how far it is: an image of a registry, and whether it is wanted
    /// anew.
    pub fn to_pull(&self) -> Option<(v1::PullImageRequest, bool)> {
        let policy = self.0.pull_policy();
        let wanted = self.0.rootfs.starts_with("docker://") && policy != v1::PullPolicy::Never;
        let (reference, credentials) = (self.0.rootfs.clone(), self.0.registry_credentials.clone());
        let platform = self.0.platform.clone();
        wanted.then(|| (v1::PullImageRequest { reference, credentials, platform }, policy == v1::PullPolicy::Always))
    }

    /// The reference of its image, where that is read from this machine's disk.
    pub fn on_disk(&self) -> Option<String> {
        let wanted = self.0.pull_policy() != v1::PullPolicy::Never;
        Some(self.0.rootfs.clone()).filter(|rootfs| wanted && OnDisk::of(rootfs).is_some())
    }

    /// Its image was taken in under its reference: executord looks no further.
    pub fn is_taken_in(&mut self) {
        self.0.set_pull_policy(v1::PullPolicy::Never);
    }

    /// What it declares as outputs.
    pub fn outputs(&self) -> Option<&v1::Outputs> {
        self.0.outputs.as_ref()
    }

    /// The flag that set a variable of the process, if one did.
    pub fn flag_of(&self, variable: &str) -> Option<&'static str> {
        let run = self.0.action.as_ref()?.run.as_ref()?;
        let flags = [("--env", &run.env), ("--secret-env", &run.secret_environment)];
        let sets = |variables: &[EnvironmentVariable]| variables.iter().any(|given| given.name == variable);
        flags.into_iter().find_map(|(flag, variables)| sets(variables).then_some(flag))
    }

    /// Adds the files of bindings and the variable that names them, unless somebody gave that himself; and the directory that
    /// they lie in, if it is not executord's own.
    pub fn bind(&mut self, files: Vec<v1::File>, directory: Option<String>, variable: EnvironmentVariable) {
        let ours = self.flag_of(&variable.name).is_none();
        let declared = directory.filter(|directory| !self.0.file_directories.contains(directory));
        self.0.file_directories.extend(declared);
        let run = self.0.action.get_or_insert_default().run.get_or_insert_default();
        run.volume_mounted_files.extend(files);
        if ours {
            run.env.push(variable);
        }
    }

    /// Lets the process wait for the reader of its output, who comes at once.
    pub fn await_reader(&mut self, awaited: bool) {
        self.0.await_reader = awaited;
    }

    /// A copy for the wire.
    pub fn message(&self) -> RunRequest {
        RunRequest::clone(&self.0)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.0.registry_credentials.iter_mut().for_each(wipe);
        let Some(run) = self.0.action.as_mut().and_then(|action| action.run.as_mut()) else { return };
        run.volume_mounted_files.iter_mut().for_each(|file| file.content.zeroize());
        run.env.iter_mut().chain(&mut run.secret_environment).for_each(|variable| variable.value.zeroize());
        run.secret_arguments.iter_mut().for_each(|argument| argument.value.zeroize());
        run.args.zeroize();
    }
}

/// Core files and other users' debuggers would show what [`Request`] holds.
pub fn forbid_dumps() {
    // Allowed to every process for itself; where it fails all the same, the program runs on as it would have.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// A duration for the wire.
pub fn to_proto(duration: std::time::Duration) -> Result<prost_types::Duration, Failure> {
    duration.try_into().map_err(|_| Failure::Usage(format!("--grace {duration:?} is too long")))
}
