//! Creates a container from a plan. If a step fails, all earlier steps are undone, so that a refusal leaves nothing
//! behind and the id is free.
//!
//! ```text
//!  admit      plan validated, id claimed                                             Admitted
//!  record     record, control socket, log                                            Recorded
//!  assemble   root file system, user, file targets                                   Assembled
//!  create     specification, libcontainer, network, names                            Waiting
//!  inject     secret files, runtime token                                            Injected
//!  finish     masked values for the output; the record says that it is created       Built
//! ```
//! Each stage is a type, and the step to the next one consumes it. The undo actions are kept separately, in [`Undo`].

mod admit;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use executor_core::ident::ContainerId;
use executor_core::idmap::IdMap;
use executor_core::lifecycle::State;
use executor_core::limits::WRITABLE_ENTRIES;
use executor_core::placement::{MountPoint, VolumeSize};
use executor_core::plan::{Actions, Plan, WritableFiles};
use executor_core::protocol::{Reason, Refused};
use executor_core::record::{ContainerRecord, Prepared, PreparedStep};
use executor_core::spec::DeviceNode;
use executor_core::time::Timestamp;
use executor_core::users::ResolvedUser;
use executor_core::validate::Violation;
use executor_core::{placement, spec};
use executor_secrets::TokenDigest;
use executor_secrets::volume::Volume;
use executor_sys::identity;
use executor_sys::memfile::MemFile;
use zeroize::Zeroizing;

use admit::{Admitted, admit};

use super::etc_files;
use super::host_options;
use crate::cdi::{self, DeviceEdits};
use crate::cgroup::Devices;
use crate::dirs::Dirs;
use crate::disk;
use crate::errors::failed;
use crate::finish::{Remains, Rotated, SHIM, now};
use crate::host::Host;
use crate::ids::Ids;
use crate::network;
use crate::pods::{self, Pod};
use crate::program::has_own_domain;
use crate::rootfs::Tree;
use crate::seccomp::Filter;
use crate::shim::Ready;
use crate::shim::files::inject;
use crate::shim::files::update;
use crate::shim::init::create;
use crate::shim::init::create::Creation;
use crate::shim::init::init_spec::{InitRole, InitSpec};
use crate::shim::init::warm_files::{Files, carries_files_at_most};
use crate::shim::output::container_log;
use crate::shim::output::redaction::MaskedValues;
use crate::shim::output::termination_message::{MessageFile, Placing};
use crate::shim::running::control::Control;
use crate::shim::running::limits;
use crate::shim::running::usage::Interfaces;
use crate::shim::steps::Running;
use crate::shim::warm::{Activation, WarmContainer};
use crate::warm::Opened;

/// Warning for a pod member that shares processes if the kernel cannot separate them.
const PEERS_READ_SECRETS: &str = "share_processes: this kernel has no Landlock of Linux 5.19 or newer among its security modules; \
     members of the pod that run as the same user can read this container's secret files, variables and memory";

/// A request for a container, without secrets.
pub(crate) struct Request {
    pub(crate) id: ContainerId,
    pub(crate) plan: MemFile,
    pub(crate) request_tag: String,
    pub(crate) created_at: Timestamp,
    pub(crate) id_range: Option<u32>,
    pub(crate) pod_range: Option<u32>,
    pub(crate) launcher: u32,
    pub(crate) begun: Timestamp,
}

/// Prepares a container stage by stage, and undoes everything if a stage fails. An unused warm container is ended.
///
/// Never inlined: the caller's stack frame stays as long as the container.
#[inline(never)]
pub(crate) fn prepare(
    host: &Host,
    filter: &Arc<Filter>,
    request: &Request,
    (inputs, warm): (Vec<MemFile>, &mut Option<WarmContainer>),
    control: &mut Control,
) -> Result<Box<Ready>, Refused> {
    let init = warm.as_ref().map(WarmContainer::init);
    let admitted = admit(host, request, warm);
    let (dirs, cgroup) = match &admitted {
        Ok(admitted) => (admitted.dirs.clone(), admitted.record.cgroup.clone()),
        Err(_) => (Dirs::nowhere(), PathBuf::new()),
    };
    let remains =
        Remains { by: SHIM, dirs, cgroup, volumes: Vec::new(), inputs, rotated: Rotated::default(), views: Vec::new() };
    let mut site = Undo { init: admitted.as_ref().ok().and_then(|admitted| admitted.warm.as_ref()).and(init), remains };
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(refused) => {
            let _ = site.remains.wipe(""); // logged
            return Err(refused);
        }
    };
    let id = request.id.as_str();
    match admitted.build(host, filter, &mut site, control) {
        Ok(Built { record, container, ports, log, token, watch, steps, message, interfaces }) => Ok(Box::new(Ready {
            record,
            remains: site.remains,
            container,
            ports,
            log,
            watch,
            token,
            steps,
            message,
            interfaces,
            begun: request.begun,
            generations: update::Generations::default(),
            paused: None,
        })),
        Err(refused) => {
            site.undo(host, id);
            Err(refused)
        }
    }
}

/// Undo actions for a failure.
struct Undo {
    /// Pid of init, after it was cloned.
    init: Option<i32>,
    remains: Remains,
}

impl Undo {
    fn undo(mut self, host: &Host, id: &str) {
        undo(host, id, self.init, &mut self.remains);
    }
}

/// Undoes everything that was made for a container, as if it had never existed.
pub(crate) fn undo(host: &Host, id: &str, init: Option<i32>, remains: &mut Remains) {
    if let Some(init) = init {
        create::kill(init);
    }
    unmount(&remains.dirs);
    remains.discard(host, id);
}

/// Returns the Docker daemon's socket if the container asked for it. Its path is the launcher's own configuration.
fn docker_socket<'a>(host: &'a Host, plan: &Plan) -> Result<Option<&'a Path>, Refused> {
    if !plan.isolation.docker_socket {
        return Ok(None);
    }
    let path = host.policy.docker_socket.as_path();
    match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => Ok(Some(path)),
        found => {
            let why = found.map_or_else(|error| error.to_string(), |_| "not a socket".to_owned());
            let why = format!("{} cannot be given to a container: {why}", path.display());
            Err(Refused::from_fields(Reason::Precondition, &[Violation::new("docker_socket", why)]))
        }
    }
}

/// Stage 2: a container with a record, a control socket and a log.
struct Recorded {
    record: ContainerRecord,
    dirs: Dirs,
    ids: Rc<Ids>,
    pod: Option<Pod>,
    warm: Option<WarmContainer>,
    log: container_log::Log,
}

/// Stage 3: a container with its root file system.
struct Assembled {
    recorded: Recorded,
    tree: Tree,
    user: Arc<ResolvedUser>,
    edits: DeviceEdits,
    extra_groups: Vec<u32>,
    file_groups: BTreeMap<String, u32>,
    mounts: Vec<MountPoint>,
    /// Mount point of the termination message file.
    message: Option<MountPoint>,
    steps: Vec<PreparedStep>,
    /// Warnings of disk limits that cannot be enforced.
    unheld: Vec<String>,
}

/// Stage 4: init waits to be started, on its network.
struct Waiting {
    record: ContainerRecord,
    dirs: Dirs,
    log: container_log::Log,
    container: create::Created,
    id_map: IdMap,
    ports: Option<network::Reserved>,
    prepared: Prepared,
    devices: Vec<DeviceNode>,
    message: Option<MountPoint>,
    /// View of the pod's /dev/shm.
    shm: Option<OwnedFd>,
}

/// Stage 5: the secret files are in place.
struct Injected {
    waiting: Waiting,
    token: Option<TokenDigest>,
    message: Option<MessageFile>,
    interfaces: Interfaces,
}

/// Stage 6: a container that is ready to be started.
struct Built {
    record: ContainerRecord,
    container: create::Created,
    ports: Option<network::Reserved>,
    log: container_log::Log,
    token: Option<TokenDigest>,
    watch: MaskedValues,
    steps: Option<Running>,
    message: Option<MessageFile>,
    interfaces: Interfaces,
}

impl Admitted {
    fn build(
        self,
        host: &Host,
        filter: &Arc<Filter>,
        site: &mut Undo,
        control: &mut Control,
    ) -> Result<Built, Refused> {
        let waiting = self.record(host, control)?.assemble(host)?.create(host, filter, site, control)?;
        // No descriptor leads to a secret before this point, when init has been cloned.
        waiting.inject(host, site, control)?.finish(host, filter, site, control)
    }

    fn record(self, host: &Host, control: &mut Control) -> Result<Recorded, Refused> {
        let Self { record, brought, dirs, ids, pod, warm } = self;
        let (listener, file) = match brought {
            Some(Opened { listener, log }) => (listener, Some(log)),
            None => {
                dirs.write_first_record(&record).map_err(|error| failed("state directory", &error))?;
                let listener = dirs.listen().map_err(|error| failed("control socket", &error))?;
                dirs.keep_room(&record).map_err(|error| failed("state directory", &error))?;
                (listener, None)
            }
        };
        control.listen(listener);
        let log = container_log::Log::create(&dirs, &record.plan, host.log_bytes_max, file);
        let log = log.map_err(|error| failed("log", &error))?;
        Ok(Recorded { record, dirs, ids, pod, warm, log })
    }
}

impl Recorded {
    fn assemble(mut self, host: &Host) -> Result<Assembled, Refused> {
        let (plan, project) = (&self.record.plan, self.record.id_range_start);
        let (layer, unheld) = disk::lay_out(&host.policy, plan, &self.dirs.state, project)?;
        let mut unheld: Vec<String> = unheld.into_iter().collect();
        self.dirs.layer = layer;
        let names = etc_files::contents_ahead(plan)?;
        let mut tree = Tree::assemble(host, plan, names.as_ref(), &self.dirs, &self.ids)?;
        if !plan.has_ordered_mounts() {
            tree.make_room_for_tmpfs(plan)?;
        }
        // By the files of the root, not of a volume.
        let field = match plan.actions.as_ref().and_then(Actions::first_process) {
            Some(first) => format!("{}.run.user", plan.processes[first].id),
            None => "action.run.user".to_owned(),
        };
        let edits = cdi::edits(host, plan, self.ids.map())?;
        unheld.extend_from_slice(&edits.warnings);
        let mut extra_groups = tree.extra_groups(plan)?;
        extra_groups.extend_from_slice(&edits.groups);
        let mut user = tree.resolve_user(&plan.user, &field)?;
        user.join(&extra_groups);
        let user = Arc::new(user);
        let mut users = tree.step_users(plan)?;
        users.iter_mut().for_each(|user| user.join(&extra_groups));
        let file_groups = tree.file_groups(plan)?;
        unheld.extend(tree.mount_volumes(
            host,
            plan,
            &edits.mounts,
            (&self.dirs, &self.ids, self.pod.as_ref()),
            &user,
            project,
        )?);
        if plan.token_file().is_some() {
            tree.make_runtime_dir(plan)?;
        }
        etc_files::make_dir(&tree)?;
        let mounts = tree.place(plan, &plan.files, &host.policy.files_root, &user)?;
        let steps = tree.steps(plan, users, &mounts, (&host.policy.files_root, host.nofile_max))?;
        tree.make_targets(mounts.iter(), &plan.files, &user)?;
        for (process, step) in plan.processes.iter().zip(&steps) {
            tree.make_targets(step.mounts.iter().map(|mount| &mount.point), &process.files, &step.user)?;
        }
        let message = tree.termination_message(plan, &mounts, &user)?;
        Ok(Assembled { recorded: self, tree, user, edits, extra_groups, file_groups, mounts, message, steps, unheld })
    }
}

impl Assembled {
    fn create(
        self,
        host: &Host,
        filter: &Arc<Filter>,
        site: &mut Undo,
        control: &mut Control,
    ) -> Result<Waiting, Refused> {
        let Self { recorded, mut tree, user, edits, extra_groups, file_groups, mounts, message, steps, unheld } = self;
        let Recorded { record, dirs, ids, pod, warm, mut log } = recorded;
        site.remains.views = tree.take_views();
        let (limits, mut warnings) = limits::in_force(host, &record.plan)?;
        warnings.extend(unheld);
        let mut devices = host_options::check(host, &record.plan, &mut warnings)?;
        let DeviceEdits { nodes, environment: device_environment, .. } = edits;
        devices.extend(nodes);
        warnings.extend_from_slice(tree.warnings());
        let held = spec::held(&record.plan.isolation, user.uid);
        limits::can_be_given(&record.plan, &held)?;
        let (filter, unknown) = Filter::from_request(filter, &record.plan.isolation, &held)?;
        warnings.extend(unknown);
        let role = match (&record.plan.actions, record.plan.surroundings.init) {
            _ if record.plan.is_pod() => InitRole::Reaper,
            (Some(_), _) => InitRole::Reaper,
            (None, true) => InitRole::Parent,
            (None, false) => InitRole::Program,
        };
        let (terminal, options) =
            (record.plan.terminal.then_some(record.plan.window), record.plan.host_options.clone());
        let own_domain = has_own_domain(&record.plan);
        if record.plan.member_of().is_some() && record.plan.shares_processes() && !own_domain {
            warnings.push(PEERS_READ_SECRETS.into());
        }
        let part = InitSpec {
            user: (*user).clone(),
            terminal,
            role,
            options,
            device_environment: device_environment.clone(),
            own_domain,
        };
        let id_map = ids.map();
        let stdio = log.ends(id_map.host(user.uid), id_map.host(user.gid)).map_err(|error| failed("pipe", &error))?;
        let shm = pod.as_ref().map(Pod::shm).transpose().map_err(|error| failed("/dev/shm of the pod", &error))?;
        let (warm, unused) = match warm {
            Some(warm) if !WarmContainer::has_room_for(user.groups.len()) => (None, Some(warm)),
            warm => (warm, None),
        };
        if let Some(unused) = unused {
            unused.end(host);
            site.init = None;
        }
        let container = match warm {
            Some(warm) => {
                // A place to attach the secret files on kernels that need one.
                let staging = &dirs.staging();
                warm.limit(host, &limits)?;
                let (plan, cgroup) = (&record.plan, &*record.cgroup);
                let (mounts, user, file_groups) = (&*mounts, &*user, &file_groups);
                let files = Files { plan, cgroup, mounts, user, file_groups, id_map, staging };
                // Init was cloned long ago: no secret that this process reads is in its memory.
                let views = files.write(host, &mut site.remains, control)?;
                // If nothing more is done in the container's namespaces, init is activated together with the start of
                // the program.
                let at_once =
                    carries_files_at_most(plan) && (views.is_some() || mounts.is_empty()) && plan.actions.is_none();
                let shown = views.map(|views| (mounts, views));
                let (rootfs, nofile) = (&*dirs.stage, limits.nofile);
                warm.become_container(Activation { plan, part, nofile, held: &held, stdio, rootfs, shown }, at_once)?
            }
            None => {
                let namespace = ids.namespace_path();
                let shared = pod.as_ref().map(Pod::namespaces);
                let cgroup_view = host.hierarchies.has_view().then(|| host.cgroup_view());
                let resolved = spec::Resolved {
                    rootfs: &dirs.stage,
                    user: &user,
                    limits: &limits,
                    cgroup: &record.cgroup,
                    user_namespace: namespace.as_deref(),
                    docker_socket: docker_socket(host, &record.plan)?,
                    shared: shared.as_ref(),
                    cgroup_view: cgroup_view.as_deref(),
                };
                let spec = spec::build(&record.plan, &resolved)
                    .map_err(|error| Refused::new(Reason::Internal, format!("spec: {error}")))?;
                pods::enter_network(host, &record.plan, pod.as_ref())?;
                let of_cgroup = if record.plan.isolation.privileged { Devices::All } else { Devices::These(&devices) };
                let creation = Creation {
                    dir: &dirs.run,
                    cgroup: (&record.cgroup, of_cgroup),
                    cpuset: &host_options::cpuset(host, &record.plan.host_options, &record.cgroup)?,
                    spec: &spec,
                    filter,
                    stdio,
                    part: Some(part),
                };
                let container = create::create(host, creation)?;
                site.init = Some(container.pid());
                host.hierarchies.limit(&record.cgroup, &limits).map_err(|error| failed("limits", &error))?;
                container
            }
        };
        drop(ids);
        site.init = Some(container.pid());
        host_options::set(host, &record.plan.host_options, &record.cgroup, container.pid())?;
        let network = network::attach(host, &record, container.pid())?;
        warnings.extend(network::log_warning(&record.plan));
        if !tree.has_names() {
            let contents = match &pod {
                None => etc_files::contents(&record.plan, network.as_ref().map(|on| &on.addresses))?,
                Some(pod) => {
                    let addresses = network::addresses(host, &pod.record.plan)?;
                    etc_files::contents(&pod.record.plan, addresses.as_ref())?
                }
            };
            etc_files::write(&tree, &record.plan, &contents, &mut warnings)?;
        }
        drop(tree); // not before: see `Tree`
        let swap = host.hierarchies.limit_swap(&record.cgroup, record.plan.limits.swap_bytes);
        swap.map_err(|error| failed("memory.swap.max", &error))?;
        if let Some(actions) = &record.plan.actions {
            let parts = host.hierarchies.make_parts(&record.cgroup, &actions.sidecar_limits);
            parts.map_err(|error| failed("cgroups of the sidecars", &error))?;
        }
        let (network, ports) = network.map(|network| (network.record, network.reserved)).unzip();
        let network = network.or_else(|| pod.and_then(|pod| pod.record.prepared?.network));
        let prepared = Prepared {
            init: identity::read(container.pid()).map_err(|error| failed("/proc", &error))?,
            user: (*user).clone(),
            extra_groups,
            device_environment,
            mounts,
            file_groups,
            volume: None,
            nofile: limits.nofile,
            warnings,
            network,
            steps,
            at: now(),
        };
        Ok(Waiting { record, dirs, log, container, id_map, ports, prepared, devices, message, shm })
    }
}

impl Waiting {
    fn inject(mut self, host: &Host, site: &mut Undo, control: &mut Control) -> Result<Injected, Refused> {
        let is_filled = !site.remains.volumes.is_empty(); // by the warm container
        let message = self.message_file(host)?;
        let volume = if is_filled { None } else { self.volume(host, site, control)? };
        site.remains.volumes.extend(volume);
        self.prepared.volume = site.remains.volumes.first().map(Volume::kind);
        let injection = inject::Injection {
            host,
            plan: &self.record.plan,
            cgroup: &self.record.cgroup,
            init: self.container.pidfd().as_fd(),
            network_begun: self.container.was_warm(),
            prepared: &self.prepared,
            id_map: self.id_map,
            volume: site.remains.volumes.first(),
            message: message.as_ref().zip(self.message.as_ref()).map(|(file, point)| Placing { file, point }),
            shm: self.shm.as_ref(),
            process: &site.remains.inputs[0],
            files: &site.remains.inputs[1],
            staging: &self.dirs.staging(),
            devices: &self.devices,
        };
        let token = if is_filled { None } else { injection.execute()? };
        if let (Some(WritableFiles { bytes_max }), Some(volume)) =
            (self.record.plan.writable_files, site.remains.volumes.first())
        {
            let room = VolumeSize { bytes: bytes_max.next_multiple_of(host.page), inodes: WRITABLE_ENTRIES };
            volume.leave_room(room).map_err(|error| failed("secret file system", &error))?;
        }
        let interfaces = Interfaces::new(&self.record.plan, self.container.pid());
        Ok(Injected { waiting: self, token, message, interfaces })
    }

    /// Makes the termination message file, if the plan has one.
    fn message_file(&self, host: &Host) -> Result<Option<MessageFile>, Refused> {
        let user = &self.prepared.user;
        let owner = (self.id_map.host(user.uid), self.id_map.host(user.gid));
        let file = self.message.as_ref().map(|_| MessageFile::create(owner, host.noswap));
        file.transpose().map_err(|error| failed("termination message", &error))
    }

    /// Makes the file system of the secret files, if there are any, and sends the launcher its handle.
    fn volume(&self, host: &Host, site: &Undo, control: &mut Control) -> Result<Option<Volume>, Refused> {
        let plan = &self.record.plan;
        if self.prepared.mounts.is_empty() && !plan.has_hidden_secrets() {
            return Ok(None);
        }
        let mut size = placement::volume_size(&plan.files, host.page);
        if inject::keeps_inputs(plan) {
            // Their number and names are known, their sizes are not: their sum is less than the payload.
            size = size.and_a_file_of(site.remains.inputs[0].len() as u64, host.page);
        }
        if plan.keep_environment {
            size = size.and_a_file_of(site.remains.inputs[0].len() as u64, host.page);
        }
        let mut files = plan.files.len();
        if plan.actions.is_some() {
            let payloads = site.remains.inputs[0].len() as u64;
            let steps =
                placement::steps_size((&plan.processes, &plan.transfers), payloads, plan.files.len(), host.page);
            (size.bytes, size.inodes) = (size.bytes + steps.bytes, size.inodes + steps.inodes);
            files += plan.processes.iter().map(|process| process.files.len() + 4).sum::<usize>();
            files += 2 * plan.transfers.len();
        }
        let volume = Volume::create(size).map_err(|error| failed("secret file system", &error))?;
        limits::allow_descriptors(files);
        control.share_volume(&volume);
        Ok(Some(volume))
    }
}

impl Injected {
    fn finish(self, host: &Host, filter: &Arc<Filter>, site: &Undo, control: &mut Control) -> Result<Built, Refused> {
        let Self { waiting, token, message, interfaces } = self;
        let Waiting { mut record, dirs, mut log, container, ports, mut prepared, .. } = waiting;
        let [process, files] = &site.remains.inputs[..] else {
            return Err(Refused::new(Reason::Internal, "a launch has two payloads"));
        };
        // Must happen before this process reads a secret.
        let steps = match &record.plan.actions {
            None => None,
            Some(actions) => Some(
                Running::prepare(host, filter, &record, &prepared, actions, container.pidfd().as_fd())
                    .map_err(|error| failed("steps", &error))?,
            ),
        };
        record.steps = steps.as_ref().map(Running::records).unwrap_or_default();
        record.restarts = steps.as_ref().and_then(Running::restarts).cloned();
        let watch = read_token(&record.plan, &prepared, site.remains.volumes.first())
            .and_then(|token| MaskedValues::start(&record.plan, &host.policy.files_root, process, files, token))
            .map_err(|error| failed("secrets to be masked", &error))?;
        let masking = watch.masking();
        prepared.warnings.extend_from_slice(masking.warnings());
        log.mask(masking);
        prepared.at = now();
        record.files_generation = u64::from(!prepared.mounts.is_empty());
        record.prepared = Some(prepared);
        record.state = State::Created;
        dirs.write_record(&record).map_err(|error| failed("run directory", &error))?;
        control.pass(State::Created);
        Ok(Built { record, container, ports, log, token, watch, steps, message, interfaces })
    }
}

/// Reads the runtime token, if the container has one: the last of its files.
fn read_token(
    plan: &Plan,
    prepared: &Prepared,
    volume: Option<&Volume>,
) -> std::io::Result<Option<Zeroizing<Vec<u8>>>> {
    let (Some(volume), Some(_)) = (volume, plan.token_file()) else { return Ok(None) };
    let stored = volume.current(&prepared.mounts, plan.files.len() - 1, plan.layout())?;
    let mut token = Zeroizing::new(vec![0; stored.len()]);
    stored.read_into(&mut token)?;
    Ok(Some(token))
}

/// Unmounts the container's root and layer in this shim's namespace, so that their mount points are empty directories
/// again.
pub(crate) fn unmount(dirs: &Dirs) {
    while executor_sys::mount::detach(&dirs.stage).is_ok() {}
    while executor_sys::mount::detach(&disk::place(&dirs.state)).is_ok() {}
    while executor_sys::mount::detach(&dirs.staging()).is_ok() {}
}
