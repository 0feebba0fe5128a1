//! Validates a plan again in the privileged process, without trusting the sender.
//!
//! The plan is converted back to a draft of the request, and the draft is validated, so that the same rules apply to
//! requests and plans.

use std::path::{Path, PathBuf};

use super::{
    Draft, DraftFile, DraftStep, DraftTransfer, Policy, Unlimited, Violation, actions, files, logging, outputs,
    secrets, validate,
};
use crate::plan::{OutputSource, Plan, PlannedFile, PlannedProcess, PlannedTransfer, Rootfs};

/// Checks a plan that came over a socket from a less privileged process: the launcher checks all plans of the daemon.
///
/// # Errors
/// Returns all violations if the plan is invalid.
pub fn recheck(plan: &Plan, policy: &Policy) -> Result<(), Vec<Violation>> {
    let main = match &plan.actions {
        Some(actions) => {
            actions::recheck(actions, &plan.processes)?;
            None
        }
        None if plan.is_pod() && plan.processes.is_empty() => None,
        None => {
            let main = plan.main().filter(|_| plan.processes.len() == 1 && plan.transfers.is_empty());
            let main = main.ok_or_else(|| vec![Violation::new("action", "must have exactly one process")])?;
            secrets::recheck("action.run", main)?;
            Some(main)
        }
    };
    let steps = plan.actions.iter().flat_map(|_| &plan.processes).map(StepTexts::from_process).collect::<Vec<_>>();
    let user = plan.user.to_string();
    let transfer_users: Vec<String> = plan.transfers.iter().map(|transfer| transfer.user.to_string()).collect();
    // A path below `files_root` is counted as a relative path, so that the total never exceeds the total that the
    // daemon computed.
    let given = |path: &Path| path.strip_prefix(&policy.files_root).unwrap_or(path).display().to_string();
    let paths: Vec<String> = plan.files.iter().map(|file| given(&file.path)).collect();
    let groups: Vec<Option<String>> = plan.files.iter().map(|file| Some(file.group.as_ref()?.to_string())).collect();
    let directories: Vec<String> = plan.file_directories.iter().map(|path| path.display().to_string()).collect();
    let outputs = plan.outputs.as_ref().map(outputs::DraftTexts::from_planned).transpose()?;
    let extra_groups: Vec<String> = plan.extra_groups.iter().map(ToString::to_string).collect();
    files::check_token_is_last(plan)?;
    let rootfs = plan.rootfs.to_string();
    let draft = Draft {
        id: plan.id.as_str(),
        rootfs: &rootfs,
        path: main.map_or("", |main| &main.path),
        dir: main.map_or("", |main| &main.dir),
        user: &user,
        nofile: Some(plan.limits.nofile),
        memory_bytes: plan.limits.memory_bytes,
        pids: plan.limits.pids,
        cpu_millis: plan.limits.cpu_millis,
        labels: plan.labels.clone(),
        grace: Some(plan.grace),
        network: Some(plan.network),
        log_source: main.map_or("", |main| &main.log_source),
        files: plan
            .given_files()
            .iter()
            .zip(paths.iter().zip(&groups))
            .map(|(file, (path, group))| as_drafted(file, path, group.as_deref()))
            .collect(),
        file_directories: directories.iter().map(String::as_str).collect(),
        writable_files: plan.writable_files.map(|writable| writable.bytes_max),
        token_path: plan.token_file().and(paths.last()).map_or("", String::as_str),
        redaction: plan.redaction,
        outputs: outputs.as_ref().map(outputs::DraftTexts::draft),
        image: match &plan.rootfs {
            Rootfs::Image(image) => Some(image.clone()),
            Rootfs::Host | Rootfs::Dir(_) | Rootfs::Pod => None,
        },
        disk_bytes: plan.limits.disk_bytes,
        cpu_weight: plan.limits.cpu_weight,
        io_weight: plan.limits.io_weight,
        isolation: plan.isolation.clone(),
        connectivity: plan.connectivity.clone(),
        surroundings: plan.surroundings.clone(),
        volumes: plan.volumes.clone(),
        host_options: plan.host_options.clone(),
        swap_bytes: plan.limits.swap_bytes,
        memory_reservation_bytes: plan.limits.memory_reservation_bytes,
        unlimited: Unlimited { memory: plan.limits.memory_bytes == 0, pids: plan.limits.pids == 0 },
        cpu_period_us: plan.limits.cpu_period_us,
        cpu_quota_us: i64::try_from(plan.limits.cpu_quota_us).unwrap_or(i64::MAX),
        cpu_shares: plan.limits.cpu_shares,
        terminal: plan.terminal,
        window: (plan.window.0.into(), plan.window.1.into()),
        stdin: plan.stdin,
        await_reader: plan.await_reader,
        stop_signal: plan.stop_signal,
        remove_when_completed: plan.remove_when_completed,
        keep_until_deleted: plan.keep_until_deleted,
        hold: plan.hold,
        actions: plan.actions.clone(),
        steps: steps.iter().map(|texts| texts.draft(&policy.files_root)).collect(),
        transfers: plan.transfers.iter().zip(&transfer_users).map(|(transfer, user)| drafted(transfer, user)).collect(),
        logging: logging::drafted(&plan.logging),
        checks: plan.checks.clone(),
        extra_groups: extra_groups.iter().map(String::as_str).collect(),
        strict_groups: plan.strict_groups,
        merge_groups: plan.merge_groups,
        keep_environment: plan.keep_environment,
        termination_message: plan.termination_message.clone(),
        pod: plan.pod.clone(),
        ..Draft::default()
    };
    check_form(plan, validate(&draft, policy)?)
}

/// Accepts a plan only in the exact form that validation produces. Otherwise, for example with a relative path or a
/// limit of 0, the executed plan could differ from the checked plan.
fn check_form(plan: &Plan, mut again: Plan) -> Result<(), Vec<Violation>> {
    // The draft above has neither arguments nor variables.
    let same_count = again.processes.len() == plan.processes.len();
    for (again, process) in again.processes.iter_mut().zip(&plan.processes) {
        again.argument_count = process.argument_count;
        again.environment_names.clone_from(&process.environment_names);
        again.secret_environment_names.clone_from(&process.secret_environment_names);
        again.secret_arguments.clone_from(&process.secret_arguments);
        again.suppress_log_output = process.suppress_log_output;
    }
    // Paths are compared as strings, because `==` treats some different strings as equal paths.
    let texts = paths(plan).map(Path::as_os_str).eq(paths(&again).map(Path::as_os_str));
    if same_count && texts && *plan == again {
        return Ok(());
    }
    Err(vec![Violation::new("action", "is not in the form that validation produces")])
}

/// Returns every path of a plan.
fn paths(plan: &Plan) -> impl Iterator<Item = &Path> {
    let rootfs = match &plan.rootfs {
        Rootfs::Host | Rootfs::Pod => &[],
        Rootfs::Dir(dir) => std::slice::from_ref(dir),
        Rootfs::Image(image) => &image.volumes[..],
    };
    let outputs = match plan.outputs.as_ref().map(|outputs| &outputs.source) {
        None => &[],
        Some(OutputSource::Files(files)) => &files[..],
        Some(OutputSource::Directory(directory)) => std::slice::from_ref(directory),
    };
    let files = plan.files.iter().map(|file| &file.path).chain(&plan.file_directories);
    let tmpfs = plan.surroundings.tmpfs.iter().map(|tmpfs| &tmpfs.path);
    let for_steps = actions::file_paths(&plan.processes);
    let volumes = plan.volumes.iter().flat_map(|volume| [&volume.path, &volume.sub_path]);
    let devices = plan.host_options.devices.iter();
    let devices = devices.flat_map(|device| std::iter::once(&device.path).chain(device.host_path.as_ref()));
    let message = plan.termination_message.as_ref().map(|message| &message.path);
    let hosts = [&plan.connectivity.network_namespace, &plan.host_options.cgroup_parent, &plan.logging.file];
    let placed = devices.chain(message).chain(hosts);
    let mounts = outputs.iter().chain(tmpfs).chain(for_steps).chain(volumes).chain(placed);
    rootfs.iter().chain(files).chain(mounts).map(PathBuf::as_path)
}

/// Strings of a planned process, which a draft borrows.
struct StepTexts<'a> {
    process: &'a PlannedProcess,
    user: String,
    paths: Vec<String>,
    groups: Vec<Option<String>>,
}

impl<'a> StepTexts<'a> {
    fn from_process(process: &'a PlannedProcess) -> Self {
        Self {
            process,
            user: process.user.as_ref().map(ToString::to_string).unwrap_or_default(),
            paths: process.files.iter().map(|file| file.path.display().to_string()).collect(),
            groups: process.files.iter().map(|file| Some(file.group.as_ref()?.to_string())).collect(),
        }
    }

    fn draft(&self, files_root: &Path) -> DraftStep<'_> {
        let process = self.process;
        let relative = |path: &'_ str| -> usize {
            let root = files_root.to_str().unwrap_or_default();
            path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')).map_or(0, |rest| path.len() - rest.len())
        };
        let texts = self.paths.iter().map(|path| &path[relative(path)..]).zip(&self.groups);
        DraftStep {
            field: format!("{}.run", process.id),
            path: &process.path,
            dir: &process.dir,
            user: &self.user,
            nofile: process.nofile,
            log_source: &process.log_source,
            files: process
                .files
                .iter()
                .zip(texts)
                .map(|(file, (path, group))| as_drafted(file, path, group.as_deref()))
                .collect(),
            ..DraftStep::default()
        }
    }
}

/// Converts a planned transfer to a draft, without the URL, which plans do not have.
fn drafted<'a>(transfer: &'a PlannedTransfer, user: &'a str) -> DraftTransfer<'a> {
    let checksum = transfer.checksum.as_ref();
    DraftTransfer {
        id: transfer.id.clone(),
        direction: transfer.direction,
        artifact: &transfer.artifact,
        url: None,
        path: &transfer.path,
        user,
        log_source: &transfer.log_source,
        checksum: checksum.map_or(("", ""), |checksum| (checksum.algorithm.name(), &checksum.value)),
        cache_key: &transfer.cache_key,
    }
}

fn as_drafted<'a>(file: &PlannedFile, path: &'a str, group: Option<&'a str>) -> DraftFile<'a> {
    DraftFile { field: file.field.clone(), path, size: file.size, public: file.public, mode: Some(file.mode), group }
}
