//! Creates launch payloads: the plan, the process and the files of a container in sealed memory files.

use executor_core::payload::{self, ProcessPayload};
use executor_core::plan::Plan;
use executor_proto::v1;
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;
use zeroize::Zeroizing;

use crate::actor::LaunchPayload;
use crate::ipc::memfiles;
use crate::model::container::link::ShimLink;
use crate::requests::draft;

/// Writes plan and secrets into memory files, and creates the connection for the shim.
pub(super) fn load(plan: &Plan, request: &v1::RunRequest) -> std::io::Result<LaunchPayload> {
    let (ours, theirs) = Seqpacket::pair()?;
    let process = process_payload(plan, request)?;
    // The files of a single run action belong to the container, even if the action is restarted.
    let of_steps = if request.single_run().is_some() { Vec::new() } else { request.runs() };
    let of_steps = of_steps.into_iter().flat_map(|run| &run.volume_mounted_files);
    let files = draft::files(request).map(|(_, file)| file).chain(of_steps).map(|file| file.content.as_slice());
    let plan = memfiles::json("executor-plan", plan)?;
    let files = MemFile::with_strings("executor-files", &files.collect::<Vec<_>>())?;
    Ok(LaunchPayload { ours: ShimLink::new(ours)?, theirs, plan, process, files })
}

/// Creates the payload of a pod, which runs no program.
pub(super) fn of_pod(plan: &Plan) -> std::io::Result<LaunchPayload> {
    let (ours, theirs) = Seqpacket::pair()?;
    let plan = memfiles::json("executor-plan", plan)?;
    let (process, files) =
        (MemFile::with_strings("executor-process", &[])?, MemFile::with_strings("executor-files", &[])?);
    Ok(LaunchPayload { ours: ShimLink::new(ours)?, theirs, plan, process, files })
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
