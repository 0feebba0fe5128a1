//! Defines plans: pods in start order, each with the run requests for its containers.
//!
//! Rules are numbered as in `docs/guides/kube-rules.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use executor_client::Wiped;
use executor_client::v1::{CreatePodRequest, File, RunRequest};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::job::{CronSpec, JobRun};
use crate::report::Origin;
use crate::workload::{Kind, Update};

/// Label with the name of the play, on pods and containers.
pub const PLAY: &str = "executor.kube/play";
/// Label with the workload, for example `Deployment/web`.
pub const WORKLOAD: &str = "executor.kube/workload";
/// Label with the namespace.
pub const NAMESPACE: &str = "executor.kube/namespace";
/// Label with the pod's name.
pub const POD: &str = "executor.kube/pod";
/// Label with the container's name.
pub const CONTAINER: &str = "executor.kube/container";
/// Label with the container's role: `init`, `sidecar` or `main`.
pub const ROLE: &str = "executor.kube/role";
/// Label with the container's position in the start order.
pub const INDEX: &str = "executor.kube/index";
/// Label with the digest of the pod's specification without its secrets.
pub const SPEC: &str = "executor.kube/spec";
/// Prefix of the labels with the pieces of the preStop hook, for example `executor.kube/pre-stop.0`.
pub const PRE_STOP: &str = "executor.kube/pre-stop";
/// Maximum length of a piece of a hook in a label, in bytes.
const PIECE: usize = 256;
/// Maximum number of pieces of a hook.
pub const PIECES_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An init container, which runs to completion before the next container starts.
    Init,
    /// A sidecar, which starts before the main containers and is stopped after them.
    Sidecar,
    /// A main container.
    Main,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Sidecar => "sidecar",
            Self::Main => "main",
        }
    }
}

/// Action that runs in a container after its start or before its stop. A hook contains no secret (rule P13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A program with its arguments.
    Exec(Vec<String>),
    Sleep(Duration),
}

impl Hook {
    /// Returns the hook as labels. `None` if the hook is too long.
    pub fn to_labels(&self) -> Option<Vec<(String, String)>> {
        let text = match self {
            Self::Exec(command) => serde_json::to_string(command).ok()?,
            Self::Sleep(time) => time.as_secs().to_string(),
        };
        let mut pieces = Vec::new();
        let mut rest = &*text;
        while !rest.is_empty() {
            let mut end = rest.len().min(PIECE);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            pieces.push((format!("{PRE_STOP}.{}", pieces.len()), rest[..end].to_owned()));
            rest = &rest[end..];
        }
        (pieces.len() <= PIECES_MAX).then_some(pieces)
    }

    /// Returns the preStop hook that a container's labels contain; `None` without such labels.
    pub fn from_labels<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let mut text = String::new();
        for piece in 0..PIECES_MAX {
            let Some(more) = label(&format!("{PRE_STOP}.{piece}")) else { break };
            text.push_str(more);
        }
        if text.starts_with('[') {
            return serde_json::from_str(&text).ok().map(Self::Exec);
        }
        text.parse().ok().map(Duration::from_secs).map(Self::Sleep)
    }
}

/// A container of a pod.
#[derive(Clone, Debug)]
pub struct Member {
    /// Name of the container in the pod.
    pub name: String,
    pub role: Role,
    /// Run request, including container id and pod id.
    pub request: Wiped<RunRequest>,
    /// Directories whose files are updated when their Secrets or ConfigMaps change (rule P55).
    pub rotating: BTreeSet<String>,
    /// Hook that runs after the container's start.
    pub post_start: Option<Hook>,
    /// Hook that runs before the container's stop.
    pub pre_stop: Option<Hook>,
    /// True if the image's user must not be root (rule P44).
    pub non_root: bool,
    /// Path of the container in the object that defines it.
    pub path: String,
}

#[derive(Clone, Debug)]
pub struct PodPlan {
    pub id: String,
    pub namespace: String,
    pub name: String,
    pub kind: Kind,
    pub workload: String,
    /// Strategy by which an existing pod is replaced.
    pub update: Update,
    /// True if the next pod of the workload waits until this pod is ready.
    pub in_order: bool,
    pub create: CreatePodRequest,
    /// Containers in start order.
    pub members: Vec<Member>,
    /// Maximum duration, after which the pod has failed (rule P27).
    pub deadline: Option<Duration>,
    /// Parameters of the pod's Job; `None` if the pod belongs to no Job.
    pub job: Option<JobRun>,
    /// Digest of all properties except secrets and rotating files, in hexadecimal. If the digest changes, the pod is
    /// replaced.
    pub digest: String,
    /// Location of the object that defines the pod.
    pub origin: Origin,
    /// Path of the pod template in the object; empty for a Pod.
    pub template: &'static str,
}

/// A CronJob, which is run by a generated systemd timer and not by a play.
#[derive(Clone, Debug)]
pub struct CronPlan {
    pub namespace: String,
    pub name: String,
    /// Schedule and policy of the CronJob.
    pub cron: CronSpec,
    /// Pods of one run.
    pub pods: Vec<PodPlan>,
}

/// All pods and CronJobs to run.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Pods in start order.
    pub pods: Vec<PodPlan>,
    pub crons: Vec<CronPlan>,
}

/// A keyed digest of secrets. Without the key, guessed secrets cannot be verified.
pub type Tag = [u8; 32];

impl Member {
    /// Returns the files below [`Member::rotating`], sorted by path.
    pub fn rotating_files(&self) -> Vec<&File> {
        let mut files: Vec<&File> = self.files().filter(|file| self.is_rotating(&file.path)).collect();
        files.sort_by(|one, other| one.path.cmp(&other.path));
        files
    }

    /// Returns the total size of files, variables and arguments, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let run = self.request.action.iter().filter_map(|action| action.run.as_ref());
        let words = run.map(|run| {
            let variables = run.env.iter().chain(&run.secret_environment).map(|one| one.name.len() + one.value.len());
            let secret = run.secret_arguments.iter().map(|one| one.value.len());
            variables.chain(secret).chain(run.args.iter().map(String::len)).sum::<usize>()
        });
        words.sum::<usize>() + self.files().map(|file| file.path.len() + file.content.len()).sum::<usize>()
    }

    fn files(&self) -> impl Iterator<Item = &File> {
        let run = self.request.action.iter().filter_map(|action| action.run.as_ref());
        run.flat_map(|run| &run.volume_mounted_files)
    }

    fn is_rotating(&self, path: &str) -> bool {
        self.rotating
            .iter()
            .any(|directory| path.strip_prefix(directory.as_str()).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Returns keyed digests of the values that are not part of the pod's digest: the first of secret variables and
    /// arguments, the second of rotating files.
    pub fn tags(&self, key: &Tag) -> (Tag, Tag) {
        let mut environment = Keyed::new(key);
        for run in self.request.action.iter().filter_map(|action| action.run.as_ref()) {
            for variable in &run.secret_environment {
                environment.part(variable.name.as_bytes());
                environment.part(variable.value.as_bytes());
            }
            for argument in &run.secret_arguments {
                environment.part(&argument.index.to_be_bytes());
                environment.part(argument.value.as_bytes());
            }
        }
        let mut files = Keyed::new(key);
        for file in self.rotating_files() {
            files.part(file.path.as_bytes());
            files.part(&file.mode.unwrap_or(u32::MAX).to_be_bytes());
            files.part(file.group.as_deref().unwrap_or_default().as_bytes());
            files.part(&[u8::from(file.public)]);
            files.part(&file.content);
        }
        (environment.end(), files.end())
    }
}

/// HMAC-SHA-256 over length-prefixed parts.
pub(crate) struct Keyed {
    inner: Sha256,
    outer: [u8; 64],
}

impl Keyed {
    pub(crate) fn new(key: &Tag) -> Self {
        let (mut inner_key, mut outer) = ([0x36; 64], [0x5c; 64]);
        for (at, byte) in key.iter().enumerate() {
            inner_key[at] ^= byte;
            outer[at] ^= byte;
        }
        let mut inner = Sha256::new();
        inner.update(inner_key);
        Self { inner, outer }
    }

    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.inner.update((bytes.len() as u64).to_be_bytes());
        self.inner.update(bytes);
    }

    pub(crate) fn end(self) -> Tag {
        let mut outer = Sha256::new();
        outer.update(self.outer);
        outer.update(self.inner.finalize());
        outer.finalize().into()
    }
}

/// Returns the digest of a pod and its members without their secrets, rotating files and labels of the play.
pub(crate) fn digest(create: &CreatePodRequest, members: &[Member]) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    let mut create = create.clone();
    for (key, value) in
        sorted(std::mem::take(&mut create.labels)).into_iter().chain(sorted(std::mem::take(&mut create.sysctls)))
    {
        part(key.as_bytes());
        part(value.as_bytes());
    }
    part(&create.encode_to_vec());
    for member in members {
        let mut request = RunRequest::clone(&member.request);
        for (key, value) in sorted(std::mem::take(&mut request.labels)) {
            part(key.as_bytes());
            part(value.as_bytes());
        }
        request.registry_credentials = None;
        for run in request.action.iter_mut().filter_map(|action| action.run.as_mut()) {
            for variable in &mut run.secret_environment {
                variable.value.clear();
            }
            for argument in &mut run.secret_arguments {
                argument.value.clear();
            }
            run.volume_mounted_files.retain(|file| !member.is_rotating(&file.path));
            for file in &mut run.volume_mounted_files {
                file.content.clear();
            }
        }
        part(&request.encode_to_vec());
        part(format!("{:?} {:?} {}", member.post_start, member.pre_stop, member.non_root).as_bytes());
    }
    hex::encode(hash.finalize())
}

fn sorted(labels: std::collections::HashMap<String, String>) -> BTreeMap<String, String> {
    labels.into_iter().collect()
}
