//! `pod`: creates, lists, shows, stops and removes pods.

mod cni;
mod port_forward;

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueEnum};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::units;
use executor_client::PodFilter;
use executor_client::v1::{
    self, CreatePodRequest, EmptyVolume, ExtraHost, IdMapping, PodVolume, RunRequest, empty_volume,
};

use self::cni::CniArgs;
use self::port_forward::ForwardArgs;
#[cfg(test)]
pub(crate) use self::port_forward::ForwardedPort;
use super::run::{HostNamespaceArgs, NetworkArgs, host, id_map, pairs, sysctl};
use crate::batch;
use crate::view::json;
use crate::view::pods as view;

#[derive(Debug, Args)]
pub(crate) struct PodArgs {
    #[command(subcommand)]
    pub(crate) command: PodCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PodCommand {
    /// Create a pod; `run --pod` starts its members
    ///
    /// Prints its id. The members of a pod share its network, IPC, /dev/shm, host name, hosts and name servers, and
    /// with --share-processes their processes. The pod exists until it is stopped, regardless of its members.
    Create(Box<CreateArgs>),
    /// List pods
    Ls(LsArgs),
    /// Show all details of a pod
    Inspect(PodIdArg),
    /// Stop pods: all members, each with its grace period, then the shared resources
    ///
    /// Returns when the pods have completed. To stop in a certain order, stop the members individually first.
    Stop(StopArgs),
    /// Remove pods with their volumes, members and logs
    Rm(RmArgs),
    /// Forward local TCP ports to ports in a pod, until Ctrl-C
    ///
    /// Connects inside of the pod to 127.0.0.1, then to ::1, so programs that listen only on these addresses can be
    /// reached. executord's configuration must allow connections (allow_connect).
    PortForward(ForwardArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Id of the pod [default: a new UUID]
    #[arg(long, visible_alias = "name", value_name = "ID")]
    id: Option<String>,
    /// Label of the pod; can be repeated
    #[arg(long = "label", short, value_name = "NAME=VALUE", value_parser = units::label)]
    labels: Vec<(String, String)>,
    /// Share one pid namespace: members see each other's processes
    #[arg(long)]
    share_processes: bool,
    /// Empty volume that members mount by its name (run --mount type=pod,source=NAME,target=/path); can be repeated
    ///
    /// Options: medium=disk or memory, size=64m, mode=1777. A volume in memory needs a size.
    #[arg(long, short, value_name = "NAME[:OPTIONS]", value_parser = volume)]
    volume: Vec<PodVolume>,
    /// Size of the members' /dev/shm [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    shm_size: Option<u64>,
    /// User ids of the members on the host
    #[arg(long, value_enum, default_value_t = UsernsArg::Own)]
    userns: UsernsArg,
    /// Range of ids on the host for the members' users: 0:HOST:65536
    ///
    /// executord's configuration lists the permitted ranges (given_id_ranges).
    #[arg(long, value_name = "MAPPING", value_parser = id_map)]
    id_map: Option<IdMapping>,
    #[command(flatten)]
    namespaces: HostNamespaceArgs,
    /// Kernel parameter of the pod's namespaces: net.*, kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.*; can be
    /// repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = sysctl)]
    sysctl: Vec<(String, String)>,
    /// Entry for /etc/hosts: db:10.0.0.1, db=::1; can be repeated
    #[arg(long, value_name = "NAME:ADDRESS", value_parser = host, help_heading = "Network")]
    add_host: Vec<ExtraHost>,
    /// Cgroup below which the cgroups of the pod and its members are created: /kubepods/pod1
    ///
    /// executord's configuration lists the permitted cgroups (cgroup_parents).
    #[arg(long, value_name = "PATH")]
    cgroup_parent: Option<String>,
    /// Let executord keep the ended pod until it is removed, regardless of its retention limits
    ///
    /// executord's configuration must allow it (keep_until_deleted_max).
    #[arg(long)]
    keep_until_deleted: bool,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    cni: CniArgs,
}

/// User namespace of a pod, as named by `--userns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum UsernsArg {
    /// A range of ids used by no other pod or container
    #[default]
    Own,
    /// The host's ids, if executord's configuration allows that
    Host,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// List only pods with this label; if repeated, with all of the labels
    #[arg(long = "label", short, value_name = "NAME=VALUE", value_parser = units::label)]
    labels: Vec<(String, String)>,
    /// Print only ids, one per line
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PodIdArg {
    /// Id of the pod
    #[arg(value_name = "ID")]
    id: String,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Grace period of all members, instead of their own: 0s, 500ms, 1m30s; a plain number is seconds
    #[arg(long, short = 't', visible_aliases = ["time", "timeout"], value_name = "DURATION", value_parser = units::grace)]
    grace: Option<Duration>,
    /// Ids of the pods
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Kill running members first
    #[arg(long, short)]
    force: bool,
    /// Ids of the pods
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// A command whose files were read.
pub(crate) enum Prepared {
    Create(Box<CreatePodRequest>),
    Ls(LsArgs),
    Inspect(String),
    Stop(StopArgs),
    Rm(RmArgs),
    PortForward(ForwardArgs),
}

impl PodCommand {
    /// Reads the files that the flags name.
    pub(super) fn prepare(self) -> Result<Prepared, Failure> {
        Ok(match self {
            Self::Create(args) => Prepared::Create(Box::new(args.request()?)),
            Self::Ls(args) => Prepared::Ls(args),
            Self::Inspect(PodIdArg { id }) => Prepared::Inspect(id),
            Self::Stop(args) => Prepared::Stop(args),
            Self::Rm(args) => Prepared::Rm(args),
            Self::PortForward(args) => Prepared::PortForward(args),
        })
    }
}

impl CreateArgs {
    fn request(self) -> Result<CreatePodRequest, Failure> {
        let mut shared = RunRequest::default();
        self.network.apply(&mut shared)?;
        let (host_pid, host_ipc) = self.namespaces.flags();
        Ok(CreatePodRequest {
            // Generate the id here, so that the same request can be repeated after a lost connection.
            id: self.id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            labels: pairs("--label", self.labels)?,
            network: shared.network,
            network_name: shared.network_name,
            network_namespace: shared.network_namespace,
            ports: shared.ports,
            egress: shared.egress,
            egress_rules: shared.egress_rules,
            hostname: shared.hostname,
            network_aliases: shared.network_aliases,
            cgroup_parent: self.cgroup_parent.unwrap_or_default(),
            keep_until_deleted: self.keep_until_deleted,
            dns: shared.dns,
            extra_hosts: self.add_host,
            sysctls: self.sysctl.into_iter().collect(),
            shm_bytes: self.shm_size.unwrap_or(0),
            user_namespace: match self.userns {
                UsernsArg::Own => v1::UserNamespace::Own.into(),
                UsernsArg::Host => v1::UserNamespace::Host.into(),
            },
            share_processes: self.share_processes,
            host_pid,
            host_ipc,
            id_map: self.id_map,
            cni: self.cni.options()?,
            volumes: self.volume,
        })
    }
}

/// Parses a volume of a pod: `NAME`, or `NAME:OPTION=VALUE,...`.
fn volume(text: &str) -> Result<PodVolume, String> {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    if name.is_empty() {
        return Err("a volume is NAME, or NAME:medium=memory,size=64m".into());
    }
    let mut empty = EmptyVolume::default();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("medium", "disk")) => empty.set_medium(empty_volume::Medium::Disk),
            Some(("medium", "memory")) => empty.set_medium(empty_volume::Medium::Memory),
            Some(("size", size)) => empty.size_bytes = units::size(size)?,
            Some(("mode", mode)) => {
                let octal = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777);
                empty.mode = Some(octal.ok_or_else(|| format!("mode={mode} is not an octal mode such as 1777"))?);
            }
            _ => return Err(format!("unknown option {option:?}; use medium=disk or memory, size or mode")),
        }
    }
    Ok(PodVolume { name: name.to_owned(), empty: Some(empty) })
}

pub(super) async fn pod(session: &Session, prepared: Prepared) -> Result<u8, Failure> {
    let pods = session.client.pods();
    match prepared {
        Prepared::Create(request) => {
            let (pod, _) = pods.create(&request).await.doing("pod create")?;
            if !session.json {
                for warning in pod.spec.iter().flat_map(|spec| &spec.warnings) {
                    session.output.note(format!("warning: {}", plain(warning)));
                }
            }
            session.print(&json::PodDocument::from(&pod), || plain(&pod.id) + "\n").await;
        }
        Prepared::Ls(LsArgs { labels, quiet }) => {
            let filter = PodFilter { labels: labels.into_iter().collect(), ..PodFilter::default() };
            let all = pods.list(&filter).await.doing("pod ls")?;
            if quiet {
                session.output.text(all.iter().map(|pod| plain(&pod.id) + "\n").collect()).await;
                return Ok(0);
            }
            let document: Vec<_> = all.iter().map(json::PodDocument::from).collect();
            session.print(&document, || view::table(&all, SystemTime::now(), session.style)).await;
        }
        Prepared::Inspect(id) => {
            let pod = pods.get(&id).await.doing(&format!("pod inspect {id}"))?;
            session
                .print(&json::PodDocument::from(&pod), || view::inspect(&pod, SystemTime::now(), session.style))
                .await;
        }
        Prepared::Stop(StopArgs { grace, ids }) => {
            let calls = ids.into_iter().map(|id| {
                let pods = pods.clone();
                let call = async move { (pods.stop(&id, grace).await.doing(&format!("pod stop {id}")), id) };
                tokio::spawn(call)
            });
            let calls: Vec<_> = calls.collect();
            let (mut done, mut failures) = (Vec::new(), Vec::new());
            for call in calls {
                let (stopped, id) = call.await.map_err(|error| Failure::System(std::io::Error::other(error)))?;
                report(session, id, stopped.err(), None, &mut done, &mut failures).await;
            }
            return batch::finish(session, &done, failures).await;
        }
        Prepared::PortForward(args) => return port_forward::forward(session, &args).await,
        Prepared::Rm(RmArgs { force, ids }) => {
            let (mut done, mut failures) = (Vec::new(), Vec::new());
            for id in ids {
                let deleted = pods.delete(&id, force).await.doing(&format!("pod rm {id}"));
                report(session, id, deleted.err(), Some(()), &mut done, &mut failures).await;
            }
            return batch::finish(session, &done, failures).await;
        }
    }
    Ok(0)
}

/// Reports the result for a single pod. `deletes` is `Some` if the command removes pods.
async fn report(
    session: &Session,
    id: String,
    failure: Option<Failure>,
    deletes: Option<()>,
    done: &mut Vec<json::Done>,
    failures: &mut Vec<Failure>,
) {
    let error = failure.as_ref().map(Failure::describe);
    if failure.is_none() && !session.json {
        session.output.text(format!("{}\n", plain(&id))).await;
    }
    failures.extend(failure);
    done.push(json::Done { deleted: deletes.map(|()| error.is_none()), ..json::Done::new(id, error) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_volumes_are_parsed() {
        assert_eq!(volume("a"), Ok(PodVolume { name: "a".into(), empty: Some(EmptyVolume::default()) }));
        let empty = EmptyVolume { medium: 1, size_bytes: 1 << 20, mode: Some(0o700), gid: None };
        assert_eq!(volume("b:medium=memory,size=1m,mode=700"), Ok(PodVolume { name: "b".into(), empty: Some(empty) }));
        for text in ["", ":size=1m", "a:x", "a:medium=tape", "a:mode=9", "a:size=x"] {
            assert!(volume(text).is_err(), "{text}");
        }
    }
}
