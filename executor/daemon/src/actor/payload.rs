//! Launch payloads: descriptors that executord passes to the launcher, with the plan, the process and the files of a
//! container in sealed memory files. If the launch fails, the secrets are overwritten.

use std::sync::Arc;

use executor_core::payload::{self, ProcessPayload};
use executor_core::plan::Plan;
use executor_proto::v1;
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;
use zeroize::Zeroizing;

use crate::ipc::memfiles;
use crate::model::container::link::ShimLink;
use crate::requests::draft;

/// Launch payload: descriptors for the launcher, with this process's only copies of the container's secrets.
#[derive(Debug)]
pub(crate) struct LaunchPayload {
    /// This daemon's end of the connection to the shim.
    pub(crate) ours: Arc<ShimLink>,
    /// The shim's end of the connection.
    pub(crate) theirs: Seqpacket,
    /// Plan of the container, as JSON.
    pub(crate) plan: MemFile,
    /// Program, arguments and environment of the process.
    pub(crate) process: MemFile,
    pub(crate) files: MemFile,
}

impl LaunchPayload {
    /// Writes plan and secrets into memory files, and creates the connection for the shim.
    pub(crate) fn new(plan: &Plan, request: &v1::RunRequest) -> std::io::Result<Self> {
        let process = process_payload(plan, request)?;
        // The files of a single run action belong to the container, even if the action is restarted.
        let of_steps = if request.single_run().is_some() { Vec::new() } else { request.runs() };
        let of_steps = of_steps.into_iter().flat_map(|run| &run.volume_mounted_files);
        let files = draft::files(request).map(|(_, file)| file).chain(of_steps).map(|file| file.content.as_slice());
        Self::from_parts(plan, process, &files.collect::<Vec<_>>())
    }

    /// Creates the payload of a pod, which runs no program.
    pub(crate) fn for_pod(plan: &Plan) -> std::io::Result<Self> {
        Self::from_parts(plan, MemFile::with_strings("executor-process", &[])?, &[])
    }

    fn from_parts(plan: &Plan, process: MemFile, files: &[&[u8]]) -> std::io::Result<Self> {
        let (ours, theirs) = Seqpacket::pair()?;
        let plan = memfiles::json("executor-plan", plan)?;
        let files = MemFile::with_strings("executor-files", files)?;
        Ok(Self { ours: ShimLink::new(ours)?, theirs, plan, process, files })
    }

    /// Overwrites the secrets of a launch that failed.
    pub(crate) fn wipe(&self) {
        wipe(&self.process);
        wipe(&self.files);
    }
}

/// Overwrites a memory file of secrets.
pub(super) fn wipe(file: &MemFile) {
    if let Err(error) = file.wipe() {
        tracing::error!(%error, "cannot overwrite the secrets in a memory file");
    }
}

/// Writes the payload of a single run action into a memory file; for a tree, the payloads of all processes, followed by
/// the URLs of all transfers.
fn process_payload(plan: &Plan, request: &v1::RunRequest) -> std::io::Result<MemFile> {
    if let Some(run) = request.single_run().filter(|_| plan.actions.is_none()) {
        return with_payload(run, request, |strings| MemFile::with_strings("executor-process", strings));
    }
    let mut payloads = Vec::new();
    for run in request.runs() {
        payloads.push(with_payload(run, request, |strings| {
            let mut bytes = Zeroizing::new(vec![0; payload::encoded_len(strings.iter().copied())]);
            payload::encode(strings.iter().copied(), &mut bytes);
            bytes
        }));
    }
    let urls = request.urls().into_iter().map(str::as_bytes);
    let strings: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).chain(urls).collect();
    MemFile::with_strings("executor-process", &strings)
}

/// Calls `use_them` with the strings of a process's payload.
fn with_payload<T>(run: &v1::RunAction, request: &v1::RunRequest, use_them: impl FnOnce(&[&[u8]]) -> T) -> T {
    let dir = if run.dir.is_empty() { "/" } else { &run.dir };
    let count = run.args.len().to_string();
    let mut args: Vec<&[u8]> = run.args.iter().map(String::as_bytes).collect();
    for v1::SecretArgument { index, value, .. } in &run.secret_arguments {
        if let Some(empty) = args.get_mut(*index as usize) {
            *empty = value.as_bytes();
        }
    }
    let own = run.env.iter().chain(&run.secret_environment);
    let inherited = request.environment.iter().filter(|shared| own.clone().all(|own| own.name != shared.name));
    let all = run.env.iter().chain(inherited).chain(&run.secret_environment);
    let joined: Vec<Zeroizing<Vec<u8>>> = all.clone().map(memfiles::environment_string).collect();
    let mut env: Vec<&[u8]> = joined.iter().map(|variable| &variable[..]).collect();
    let has = |name: &str| all.clone().any(|variable| variable.name == name);
    env.extend(payload::default_environment(has, request.terminal));
    use_them(&ProcessPayload::strings(run.path.as_bytes(), dir.as_bytes(), count.as_bytes(), &args, &env))
}
