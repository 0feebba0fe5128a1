//! Stage 4 of creating a container: creates init, which waits for its start, and attaches it to its network.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;

use executor_core::idmap::IdMap;
use executor_core::placement::MountPoint;
use executor_core::plan::{Isolation, Plan, Redaction};
use executor_core::protocol::{Reason, Refused};
use executor_core::record::{ContainerRecord, PreparedContainer};
use executor_core::spec::{self, DeviceNode};
use executor_core::validate::Violation;
use executor_sys::identity;
use executor_sys::memfile::PrivateCopy;

use super::Undo;
use super::assemble::{Assembled, RecordedContainer};
use crate::capabilities;
use crate::cdi::DeviceEdits;
use crate::cgroup::Devices;
use crate::devices;
use crate::dirs::Dirs;
use crate::errors::failed;
use crate::finish::now;
use crate::host::Host;
use crate::network;
use crate::pods::{self, Pod};
use crate::program::{has_own_domain, needs_own_domain};
use crate::rootfs::LateMount;
use crate::seccomp::Filter;
use crate::shim::init::create::{self, Creation};
use crate::shim::init::init_spec::{InitRole, InitSpec};
use crate::shim::init::warm_files::{WarmFiles, injects_only_files};
use crate::shim::output::container_log;
use crate::shim::running::control::Control;
use crate::shim::running::limits;
use crate::shim::setup::{etc_files, host_options};
use crate::shim::warm::{Activation, WarmContainer};

/// Warning for a member of a pod that shares processes, if the kernel cannot isolate the members from each other.
const PEERS_READ_SECRETS: &str = "share_processes: this kernel does not have Landlock of Linux 5.19 or later enabled; \
     members of the pod that run as the same user can read this container's secret files, variables and memory";

/// Warning for a container in the host's pid namespace, if the kernel cannot isolate the container from the host's
/// processes.
const HOST_READS_SECRETS: &str = "host_pid: this kernel does not have Landlock of Linux 5.19 or later enabled; the \
     container and the host's processes of the same user can read each other's files, variables and memory";

/// Warning for a container with `pid_of`, if the kernel cannot isolate the other container from this container.
const TARGET_IS_READ: &str = "pid_of: this kernel does not have Landlock of Linux 5.19 or later enabled; this container \
     can read files, variables and memory of the other container's processes of the same user";

/// Stage 4: init waits for its start and is attached to its network.
pub(super) struct WaitingInit {
    pub(super) record: ContainerRecord,
    pub(super) dirs: Dirs,
    pub(super) log: container_log::Log,
    pub(super) container: create::Created,
    pub(super) id_map: IdMap,
    pub(super) ports: Option<network::Reserved>,
    pub(super) prepared: PreparedContainer,
    pub(super) devices: Vec<DeviceNode>,
    pub(super) message: Option<MountPoint>,
    /// View of the pod's or the host's /dev/shm.
    pub(super) shm: Option<OwnedFd>,
    /// Volumes that are mounted over the container's own file systems, in the container.
    pub(super) late: Vec<LateMount>,
    /// First process of the PID namespace that the container has joined.
    pub(super) target: Option<OwnedFd>,
    /// Copy of the contents of the secret files, if this process has written the files.
    pub(super) contents: Option<PrivateCopy>,
}

impl Assembled {
    pub(super) fn create(
        self,
        host: &Host,
        filter: &Arc<Filter>,
        site: &mut Undo,
        control: &mut Control,
    ) -> Result<WaitingInit, Refused> {
        let Self {
            recorded,
            mut tree,
            user,
            edits,
            extra_groups,
            file_groups,
            mounts,
            message,
            steps,
            late,
            warnings: earlier,
        } = self;
        let RecordedContainer { record, dirs, ids, mut pod, warm, mut log } = recorded;
        let target = pod.as_mut().and_then(Pod::take_target);
        site.remains.views = tree.take_views();
        let (limits, mut warnings) = limits::in_force(host, &record.plan)?;
        warnings.extend(earlier);
        let mut devices = host_options::check(host, &record.plan, &mut warnings)?;
        let DeviceEdits { nodes, environment: device_environment, .. } = edits;
        devices.extend(nodes);
        devices::check_entries(&devices)?;
        devices::add_all_of_host(&record.plan, &mut devices)?;
        warnings.extend_from_slice(tree.warnings());
        let held = capabilities::held(&record.plan.isolation, user.uid);
        capabilities::can_be_given(&record.plan.isolation, &held)?;
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
        if needs_own_domain(&record.plan) && !own_domain {
            let warning = match &record.plan.isolation {
                Isolation { host_pid: true, .. } => HOST_READS_SECRETS,
                Isolation { pid_of: Some(_), .. } => TARGET_IS_READ,
                _ => PEERS_READ_SECRETS,
            };
            warnings.push(warning.into());
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
        let stdio = log
            .stdio(id_map.to_host(user.uid), id_map.to_host(user.gid))
            .map_err(|error| failed("cannot create the pipes of the output", &error))?;
        let shm = match &pod {
            Some(pod) => Some(pod.shm().map_err(|error| failed("cannot open /dev/shm of the pod", &error))?),
            None if record.plan.isolation.host_ipc => {
                Some(pods::host_shm(host).map_err(|error| failed("cannot open /dev/shm of the host", &error))?)
            }
            None => None,
        };
        let (warm, unused) = match warm {
            Some(warm) if !WarmContainer::has_room_for(user.groups.len()) => (None, Some(warm)),
            warm => (warm, None),
        };
        if let Some(unused) = unused {
            unused.discard(host);
            site.init = None;
        }
        let (mut place, mut contents) = (None, None);
        let container = match warm {
            Some(mut warm) => {
                place = warm.take_network();
                // Directory at which the secret files are attached, on kernels that cannot clone detached mounts.
                let staging = &dirs.staging();
                warm.limit(host, &limits)?;
                let (plan, cgroup) = (&record.plan, &*record.cgroup);
                let (mounts, user, file_groups) = (&*mounts, &*user, &file_groups);
                let files = WarmFiles { plan, cgroup, mounts, user, file_groups, id_map, staging };
                // This process may read secrets from here on, because the warm container's init was already cloned and
                // does not inherit them.
                let written = files.write(host, &mut site.remains, control)?;
                let (views, copy) = written.map(|written| (written.views, written.contents)).unzip();
                contents = copy.filter(|_| plan.redaction != Redaction::None);
                // If nothing more must be done in the container's namespaces, init is activated when the program is
                // started.
                let starts_at_once = !plan.hold && plan.actions.is_none();
                let at_once = starts_at_once && injects_only_files(plan) && (views.is_some() || mounts.is_empty());
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
                    capabilities: &held,
                    limits: &limits,
                    cgroup: &record.cgroup,
                    user_namespace: namespace.as_deref(),
                    docker_socket: docker_socket(host, &record.plan)?,
                    shared: shared.as_ref(),
                    cgroup_view: cgroup_view.as_deref(),
                };
                let spec = spec::build(&record.plan, &resolved).map_err(|error| {
                    Refused::new(Reason::Internal, format!("cannot create the OCI specification: {error}"))
                })?;
                pods::enter_network(host, &record.plan, pod.as_ref())?;
                let of_cgroup = if record.plan.isolation.privileged { Devices::All } else { Devices::These(&devices) };
                let creation = Creation {
                    dir: &dirs.run,
                    cgroup: (&record.cgroup, of_cgroup),
                    cpuset: &host_options::cpuset(host, &record.plan.host_options, &record.cgroup)?,
                    has_writable_cgroup: record.plan.isolation.has_writable_cgroup(),
                    spec: &spec,
                    filter,
                    stdio,
                    part: Some(part),
                };
                let container = create::create(host, creation)?;
                site.init = Some(container.pid());
                let options = &record.plan.host_options;
                host.hierarchies
                    .limit(&record.cgroup, &limits)
                    .map_err(|error| failed("cannot set the limits", &error))?;
                host.hierarchies
                    .set_option_files(&record.cgroup, options)
                    .map_err(|error| failed("cannot set the cgroup files of the host options", &error))?;
                container
            }
        };
        drop(ids);
        site.init = Some(container.pid());
        host_options::set(host, &record.plan.host_options, &record.cgroup, container.pid())?;
        let network = network::attach(host, &record, (container.pid(), container.pidfd().as_fd()), place)?;
        warnings.extend(network::log_warning(&record.plan));
        if !tree.has_names() {
            let etc = match &pod {
                None => etc_files::contents(&record.plan, network.as_ref().map(|on| &on.addresses))?,
                Some(pod) => {
                    let addresses = network::addresses(host, &pod.record.plan)?;
                    etc_files::contents(&pod.record.plan, addresses.as_ref())?
                }
            };
            etc_files::write(&tree, &record.plan, &etc, &mut warnings)?;
        }
        drop(tree); // kept until here: see `Tree`
        let swap = host.hierarchies.limit_swap(&record.cgroup, record.plan.limits.swap_bytes);
        swap.map_err(|error| failed("cannot limit the swap space", &error))?;
        if let Some(actions) = &record.plan.actions {
            let parts = host.hierarchies.make_parts(&record.cgroup, &actions.sidecar_limits);
            parts.map_err(|error| failed("cannot create the cgroups of the sidecars", &error))?;
        }
        let (network, ports) = network.map(|network| (network.record, network.reserved)).unzip();
        let network = network.or_else(|| pod.and_then(|pod| pod.record.prepared?.network));
        let prepared = PreparedContainer {
            init: identity::read(container.pid())
                .map_err(|error| failed("cannot read the identity of the container's init in /proc", &error))?,
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
        Ok(WaitingInit {
            record,
            dirs,
            log,
            container,
            id_map,
            ports,
            prepared,
            devices,
            message,
            shm,
            late,
            target,
            contents,
        })
    }
}

/// Returns the path of the Docker daemon's socket if the plan requests the socket. The path comes from the launcher's
/// own configuration.
fn docker_socket<'a>(host: &'a Host, plan: &Plan) -> Result<Option<&'a Path>, Refused> {
    if !plan.isolation.docker_socket {
        return Ok(None);
    }
    let path = host.policy.docker_socket.as_path();
    match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => Ok(Some(path)),
        found => {
            let why = found.map_or_else(|error| error.to_string(), |_| "not a socket".to_owned());
            let why = format!("{} cannot be mounted into a container: {why}", path.display());
            Err(Refused::from_fields(Reason::Precondition, &[Violation::new("docker_socket", why)]))
        }
    }
}
