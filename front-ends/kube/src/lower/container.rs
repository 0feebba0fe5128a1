//! Lowers one container to a run request.
//!
//! Rules are numbered as in `docs/guides/kube-rules.md`.

use std::collections::HashMap;

use executor_client::Wiped;
use executor_client::v1::restart_policy::Mode;
use executor_client::v1::{
    Action, CreatePodRequest, EnvironmentVariable, Network, RestartPolicy, RunAction, RunRequest, SecretArgument,
    TerminationMessage,
};
use executor_core::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, EnvVar, ObjectFieldSelector, ResourceFieldSelector};
use zeroize::Zeroizing;

use super::volumes::Volumes;
use super::{Lowering, checks, set_fields};
use crate::config::Config;
use crate::docker;
use crate::environment::{Environment, VALUE_MAX, Variable, is_name};
use crate::names::is_qualified;
use crate::plan::{self, Hook, Member, PIECES_MAX, Role};

/// Maximum grace period of executord, in seconds.
const GRACE_MAX: i64 = executor_core::limits::GRACE_MAX.as_secs().cast_signed();

/// Variable with the index of a pod in an Indexed job.
const JOB_INDEX: &str = "JOB_COMPLETION_INDEX";
/// Allowed divisors for amounts of bytes.
const BYTES: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
/// Maximum total size of variables and arguments, in bytes, which is a limit of the kernel.
const WORDS_MAX: usize = 6 << 20;

impl<'a> Lowering<'a> {
    pub(super) fn container(
        &mut self,
        at: &str,
        container: &Container,
        role: Role,
        index: usize,
        volumes: &Volumes,
        create: &CreatePodRequest,
    ) -> Member {
        let id = format!("{}_{}", self.id, container.name);
        let mut request = RunRequest { id, pod: self.id.clone(), ..RunRequest::default() };
        let environment = self.environment(at, container, create);
        let identity = self.identity(at, container, &mut request);
        let (limits, requests) = self.amounts(at, container.resources.as_ref());
        request.limits = Some(self.limits(at, &limits, &requests));
        request.oom_score_adj = self.oom_score(&requests);
        let (checks, executes) = self.checks(at, container, role, &environment);
        let lifecycle = container.lifecycle.clone();
        if role == Role::Init && lifecycle.is_some() {
            self.refuse(
                &format!("{at}.lifecycle"),
                "P23",
                "is not allowed for an init container, unless it is a sidecar",
            );
        }
        let handler =
            |which: fn(
                &k8s_openapi::api::core::v1::Lifecycle,
            ) -> Option<&k8s_openapi::api::core::v1::LifecycleHandler>| lifecycle.as_ref().and_then(which);
        let post_start =
            self.hook(&format!("{at}.lifecycle.postStart"), handler(|lifecycle| lifecycle.post_start.as_ref()));
        let pre_stop = self.hook(&format!("{at}.lifecycle.preStop"), handler(|lifecycle| lifecycle.pre_stop.as_ref()));
        if let Some(signal) = lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref()) {
            let path = format!("{at}.lifecycle.stopSignal");
            match is_signal(signal) {
                true => self.warn(&path, "P31", "is ignored: the image's own signal is sent"),
                false => self.refuse(&path, "P31", "is not a valid signal name, such as SIGTERM"),
            }
        }
        let hooks_execute = [&post_start, &pre_stop].into_iter().any(|hook| matches!(hook, Some(Hook::Exec(_))));
        request.checks = checks;
        request.keep_environment = executes || hooks_execute;
        self.restart(at, container, role, &mut request);
        self.rootfs(at, container, &mut request);
        let expand = |text: &str| environment.expand(text);
        let mounted = self.mounts(at, container, volumes, &expand, identity.fs_group.as_deref());
        request.volumes = mounted.volumes;
        request.file_directories = mounted.directories;
        let mut run = self.program(at, container, &environment);
        run.user = identity.user;
        run.volume_mounted_files = mounted.files;
        run.log_source = container.name.to_uppercase();
        request.action = Some(Action { run: Some(run), ..Action::default() });
        request.extra_groups = identity.groups;
        request.strict_groups = identity.strict_groups;
        request.merge_groups = identity.merge_groups;
        request.apparmor_profile = identity.apparmor;
        request.termination_message = Some(self.termination(at, container));
        request.grace_period = Some(self.grace());
        request.labels = HashMap::from([
            (plan::NAMESPACE.to_owned(), self.workload.namespace.clone()),
            (plan::POD.to_owned(), self.name.chars().take(253).collect()),
            (plan::CONTAINER.to_owned(), container.name.clone()),
            (plan::ROLE.to_owned(), role.name().to_owned()),
            (plan::INDEX.to_owned(), index.to_string()),
        ]);
        if let Some(hook) = &pre_stop {
            match hook.to_labels() {
                Some(labels) => request.labels.extend(labels),
                None => {
                    let message = format!("is longer than {} bytes", PIECES_MAX * 256);
                    self.refuse(&format!("{at}.lifecycle.preStop"), "P32", message);
                }
            }
        }
        let rotating = mounted.rotating.into_iter().collect();
        let name = container.name.clone();
        Member {
            name,
            role,
            request: Wiped::new(request),
            rotating,
            post_start,
            pre_stop,
            non_root: identity.check_image,
            path: self.workload.path(at),
        }
    }

    /// Returns the seconds between the stop signal and SIGKILL. A negative number is treated as 1 (rule P31).
    pub(super) fn grace_seconds(&self) -> i64 {
        let seconds = self.spec.termination_grace_period_seconds.unwrap_or(30);
        if seconds < 0 { 1 } else { seconds.min(GRACE_MAX) }
    }

    fn grace(&mut self) -> prost_types::Duration {
        let seconds = self.spec.termination_grace_period_seconds.unwrap_or(30);
        if seconds > GRACE_MAX {
            self.refuse(
                "spec.terminationGracePeriodSeconds",
                "P31",
                format!("is {seconds}; at most {GRACE_MAX} is allowed"),
            );
        }
        checks::time(self.grace_seconds())
    }

    fn restart(&mut self, at: &str, container: &Container, role: Role, request: &mut RunRequest) {
        if container.restart_policy_rules.as_ref().is_some_and(|rules| !rules.is_empty()) {
            self.refuse(&format!("{at}.restartPolicyRules"), "P24", "is not supported");
        }
        if container.resize_policy.as_ref().is_some_and(|policy| !policy.is_empty()) {
            self.refuse(
                &format!("{at}.resizePolicy"),
                "P52",
                "is not supported: limits do not change while a container runs",
            );
        }
        match (role, container.restart_policy.as_deref()) {
            (_, None) | (Role::Sidecar, _) => {}
            _ => self.refuse(
                &format!("{at}.restartPolicy"),
                "P24",
                "is only supported for init containers, with the value Always, which makes them sidecars",
            ),
        }
        let pod = self.spec.restart_policy.as_deref().filter(|policy| !policy.is_empty()).unwrap_or("Always");
        let mode = match (role, pod) {
            (Role::Sidecar, _) => Mode::Always,
            (Role::Init, "Always" | "OnFailure") => Mode::OnFailure,
            (Role::Main, "Always") => Mode::Always,
            (Role::Main, "OnFailure") => Mode::OnFailure,
            _ => Mode::No,
        };
        if mode != Mode::No {
            // A Job fails after `max_retries` restarts (rule P62).
            let job = self.workload.job.as_ref().filter(|_| mode == Mode::OnFailure && role == Role::Main);
            let max_retries = job.map_or(0, |job| job.backoff_limit.max(1));
            let policy = RestartPolicy { mode: mode.into(), max_retries, ..RestartPolicy::default() };
            let never = job.is_some_and(|job| job.backoff_limit == 0);
            request.restart_policy = (!never).then_some(policy);
        }
        for (field, set) in [("tty", container.tty), ("stdin", container.stdin)] {
            if set != Some(true) {
                continue;
            }
            match request.restart_policy {
                Some(_) => self.warn(&format!("{at}.{field}"), "P24", "is ignored: the container may be restarted"),
                None if field == "tty" => request.terminal = true,
                None => request.stdin = true,
            }
        }
    }

    fn rootfs(&mut self, at: &str, container: &Container, request: &mut RunRequest) {
        let image = container.image.clone().unwrap_or_default();
        let Some(policy) = docker::policy(&image, container.image_pull_policy.as_deref()) else {
            self.refuse(&format!("{at}.imagePullPolicy"), "P60", "must be Always, IfNotPresent or Never");
            return;
        };
        if let Some(rootfs) = self.options.images.get(&image) {
            request.rootfs.clone_from(rootfs);
            return;
        }
        if !docker::is_image(&image) {
            let message = if image.is_empty() { "is missing" } else { "is not a valid image name (InvalidImageName)" };
            self.refuse(&format!("{at}.image"), "P60", message);
            return;
        }
        request.rootfs = format!("docker://{image}");
        request.pull_policy = policy.into();
        let names: Vec<String> = self.spec.image_pull_secrets.iter().flatten().map(|one| one.name.clone()).collect();
        let mut secrets: Vec<&Config> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            match self.config(true, name) {
                Some(secret) => secrets.push(secret),
                // The kubelet also pulls the image without the credentials.
                None => {
                    let message =
                        format!("there is no Secret `{name}` among the files: the image is pulled without it");
                    self.warn(&format!("spec.imagePullSecrets[{index}]"), "P60", message);
                }
            }
        }
        match docker::credentials(&image, &secrets) {
            Ok(credentials) => request.registry_credentials = credentials,
            Err((name, message)) => {
                self.refuse("spec.imagePullSecrets", "P60", format!("the Secret `{name}` {message}"));
            }
        }
    }

    /// Returns the program and its arguments (rule P18).
    fn program(&mut self, at: &str, container: &Container, environment: &Environment) -> RunAction {
        let mut run = RunAction { dir: container.working_dir.clone().unwrap_or_default(), ..RunAction::default() };
        if !run.dir.is_empty() && !run.dir.starts_with('/') {
            self.refuse(&format!("{at}.workingDir"), "P18", "must be absolute");
        }
        let command = container.command.clone().unwrap_or_default();
        let args = container.args.clone().unwrap_or_default();
        let words = command.iter().enumerate().map(|(index, word)| (format!("{at}.command[{index}]"), word));
        let words = words.chain(args.iter().enumerate().map(|(index, word)| (format!("{at}.args[{index}]"), word)));
        let (mut public, mut secret) = (Vec::new(), Vec::new());
        for (place, word) in words {
            let expanded = environment.expand(word);
            if expanded.text.contains('\0') || expanded.text.len() >= VALUE_MAX {
                self.refuse(
                    &place,
                    "P21",
                    format!("has a NUL or is larger than the maximum of {} bytes", VALUE_MAX - 1),
                );
            }
            if public.is_empty() && !command.is_empty() {
                if expanded.secret {
                    self.refuse(&place, "P12", "would contain a value of a Secret, and programs are recorded");
                }
                public.push(if expanded.secret { String::new() } else { expanded.text.to_string() });
                continue;
            }
            let at = u32::try_from(public.len() - usize::from(!command.is_empty())).unwrap_or(u32::MAX);
            if expanded.secret {
                public.push(String::new());
                secret.push((at, expanded.text));
            } else {
                public.push(expanded.text.to_string());
            }
        }
        if !command.is_empty() {
            run.path = public.remove(0);
            if run.path.is_empty() {
                self.refuse(&format!("{at}.command[0]"), "P18", "is empty");
            }
        }
        if !secret.is_empty() {
            // If an argument is secret, its entry in the public arguments is empty. Other empty arguments must
            // therefore also be secret.
            let given: Vec<u32> = secret.iter().map(|(index, _)| *index).collect();
            for (index, word) in public.iter().enumerate() {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                if word.is_empty() && !given.contains(&index) {
                    secret.push((index, Zeroizing::default()));
                }
            }
            secret.sort_by_key(|(index, _)| *index);
        }
        let values = environment.variables.iter().map(|(name, variable)| name.len() + variable.value.len() + 2);
        let arguments =
            public.iter().map(String::len).chain(secret.iter().map(|(_, value)| value.len())).map(|len| len + 1);
        let words: usize = values.chain(arguments).sum();
        if words > WORDS_MAX {
            let message = format!("has {words} bytes of variables and arguments; the maximum is {WORDS_MAX}");
            self.refuse(&format!("{at}.env"), "P21", message);
        }
        run.args = public;
        run.secret_arguments = secret
            .into_iter()
            .map(|(index, value)| SecretArgument { index, value: value.to_string(), ..SecretArgument::default() })
            .collect();
        for name in &environment.order {
            let Some(variable) = environment.variables.get(name) else { continue };
            let value = variable.value.to_string();
            let list = if variable.secret { &mut run.secret_environment } else { &mut run.env };
            list.push(EnvironmentVariable { name: name.clone(), value, ..EnvironmentVariable::default() });
        }
        run
    }

    fn termination(&mut self, at: &str, container: &Container) -> TerminationMessage {
        let path = container.termination_message_path.clone().unwrap_or_default();
        if !path.is_empty() && !path.starts_with('/') {
            self.refuse(&format!("{at}.terminationMessagePath"), "P33", "must be absolute");
        }
        let fallback = match container.termination_message_policy.as_deref() {
            None | Some("" | "File") => false,
            Some("FallbackToLogsOnError") => true,
            Some(_) => {
                self.refuse(&format!("{at}.terminationMessagePolicy"), "P33", "must be File or FallbackToLogsOnError");
                false
            }
        };
        TerminationMessage { path, bytes_max: 0, fallback_to_logs: fallback }
    }

    /// Returns the environment variables of a container (rules P15 to P21).
    fn environment(&mut self, at: &str, container: &Container, create: &CreatePodRequest) -> Environment {
        let mut environment = Environment::default();
        for (index, from) in container.env_from.iter().flatten().enumerate() {
            let at = format!("{at}.envFrom[{index}]");
            let source = match (&from.config_map_ref, &from.secret_ref) {
                (Some(source), None) => (false, source.name.clone(), source.optional),
                (None, Some(source)) => (true, source.name.clone(), source.optional),
                _ => {
                    self.refuse(&at, "P15", "must have exactly one of configMapRef and secretRef");
                    continue;
                }
            };
            let (secret, name, optional) = source;
            let what = if secret { "Secret" } else { "ConfigMap" };
            let Some(config) = self.config(secret, &name) else {
                if optional != Some(true) {
                    let message = format!(
                        "there is no {what} `{name}` in the namespace {} among the files",
                        self.workload.namespace
                    );
                    self.refuse(&at, "P19", message);
                }
                continue;
            };
            let prefix = from.prefix.clone().unwrap_or_default();
            for (key, value) in config.data.iter().filter(|(key, _)| !config.binary.contains(key)) {
                let variable = format!("{prefix}{key}");
                if !is_name(&variable) {
                    self.refuse(&at, "P16", format!("the key `{key}` is not a valid variable name"));
                    continue;
                }
                let place = format!("the key `{key}`");
                if let Some(value) = self.value(&at, &place, value.bytes()) {
                    environment.set(&variable, Variable { value, secret, plain: false });
                }
            }
        }
        for (index, variable) in container.env.iter().flatten().enumerate() {
            let at = format!("{at}.env[{index}]");
            if !is_name(&variable.name) {
                self.refuse(&format!("{at}.name"), "P16", "must be printable ASCII without `=`");
                continue;
            }
            let Some(source) = &variable.value_from else {
                let expanded = environment.expand(variable.value.as_deref().unwrap_or_default());
                let (secret, text) = (expanded.secret, expanded.text);
                if let Some(value) = self.value(&format!("{at}.value"), "the value", text.as_bytes()) {
                    environment.set(&variable.name, Variable { value, secret, plain: !secret });
                }
                continue;
            };
            if variable.value.as_ref().is_some_and(|value| !value.is_empty()) {
                self.refuse(&at, "P17", "has both value and valueFrom");
                continue;
            }
            let at = format!("{at}.valueFrom");
            let kinds = set_fields(source);
            if kinds.len() > 1 {
                self.refuse(&at, "P17", format!("has {}; exactly one is allowed", kinds.join(" and ")));
                continue;
            }
            let (value, secret) = if let Some(key) = &source.config_map_key_ref {
                (self.key(&format!("{at}.configMapKeyRef"), false, &key.name, &key.key, key.optional), false)
            } else if let Some(key) = &source.secret_key_ref {
                (self.key(&format!("{at}.secretKeyRef"), true, &key.name, &key.key, key.optional), true)
            } else if let Some(field) = &source.field_ref {
                (self.env_field(&format!("{at}.fieldRef"), field, create).map(Zeroizing::new), false)
            } else if let Some(resource) = &source.resource_field_ref {
                let at = format!("{at}.resourceFieldRef");
                let named = resource.container_name.as_deref().filter(|name| !name.is_empty());
                let value = match named.map_or(Some(container), |name| self.container_of(name)) {
                    Some(container) => self.resource_field(&at, resource, container),
                    None => {
                        self.refuse(&format!("{at}.containerName"), "P21", "is not a container of the pod");
                        None
                    }
                };
                (value.map(Zeroizing::new), false)
            } else {
                let message = if source.file_key_ref.is_some() { "fileKeyRef is not supported" } else { "is empty" };
                self.refuse(&at, "P21", message);
                continue;
            };
            if let Some(value) = value {
                environment.set(&variable.name, Variable { value, secret, plain: false });
            }
        }
        // As in the Job controller, this variable follows the others. The variable is added only if the container does
        // not set it.
        let own = |variable: &EnvVar| variable.name == JOB_INDEX;
        if self.workload.job.as_ref().is_some_and(|job| job.indexed) && !container.env.iter().flatten().any(own) {
            let value = Zeroizing::new(self.index.to_string());
            environment.set(JOB_INDEX, Variable { value, secret: false, plain: false });
        }
        environment
    }

    fn key(
        &mut self,
        at: &str,
        secret: bool,
        name: &str,
        key: &str,
        optional: Option<bool>,
    ) -> Option<Zeroizing<String>> {
        let what = if secret { "Secret" } else { "ConfigMap" };
        let optional = optional == Some(true);
        let Some(config) = self.config(secret, name) else {
            if !optional {
                let message =
                    format!("there is no {what} `{name}` in the namespace {} among the files", self.workload.namespace);
                self.refuse(at, "P19", message);
            }
            return None;
        };
        match config.data.get(key) {
            Some(value) if !config.binary.iter().any(|it| it == key) => self.value(at, "the value", value.bytes()),
            _ if optional => None,
            _ => {
                self.refuse(&format!("{at}.key"), "P19", format!("the {what} `{name}` has no key `{key}`"));
                None
            }
        }
    }

    /// Returns a container of the pod by its name.
    pub(super) fn container_of(&self, name: &str) -> Option<&'a Container> {
        self.containers().into_iter().map(|(_, container, _)| container).find(|container| container.name == name)
    }

    /// Returns the value of a variable, which must be UTF-8 without NUL and within the kernel's limit.
    fn value(&mut self, at: &str, what: &str, bytes: &[u8]) -> Option<Zeroizing<String>> {
        if bytes.contains(&0) || bytes.len() >= VALUE_MAX {
            self.refuse(
                at,
                "P21",
                format!("{what} has a NUL or is larger than the maximum of {} bytes", VALUE_MAX - 1),
            );
            return None;
        }
        match String::from_utf8(bytes.to_vec()) {
            Ok(text) => Some(Zeroizing::new(text)),
            Err(error) => {
                drop(Zeroizing::new(error.into_bytes()));
                self.refuse(at, "P21", format!("{what} is not UTF-8: mount it as a file"));
                None
            }
        }
    }

    fn env_field(&mut self, at: &str, field: &ObjectFieldSelector, create: &CreatePodRequest) -> Option<String> {
        match &*field.field_path {
            "spec.nodeName" => Some(self.options.node_name.clone()),
            "spec.serviceAccountName" => {
                let spec = self.spec;
                Some(
                    spec.service_account_name
                        .clone()
                        .or(spec.service_account.clone())
                        .unwrap_or_else(|| "default".into()),
                )
            }
            "status.hostIP" | "status.hostIPs" => Some("127.0.0.1".into()),
            "status.podIP" | "status.podIPs" => match create.network() {
                Network::Cni => {
                    self.refuse(
                        &format!("{at}.fieldPath"),
                        "P20",
                        "is not known before the pod has its network: read it in the container (`hostname -i`)",
                    );
                    None
                }
                _ => Some("127.0.0.1".into()),
            },
            path if path.starts_with("metadata.") => self.field(at, field),
            _ => {
                self.refuse(&format!("{at}.fieldPath"), "P20", "is not a supported field");
                None
            }
        }
    }

    /// Returns a field of the pod's metadata (rule P20).
    pub(super) fn field(&mut self, at: &str, field: &ObjectFieldSelector) -> Option<String> {
        let path = &*field.field_path;
        if !matches!(field.api_version.as_deref(), None | Some("" | "v1")) {
            self.refuse(&format!("{at}.apiVersion"), "P20", "must be v1");
            return None;
        }
        let of = |all: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
            all.as_ref().and_then(|all| all.get(key)).cloned().unwrap_or_default()
        };
        let inner = |prefix: &str| path.strip_prefix(prefix).and_then(|rest| rest.strip_suffix("']"));
        let key = inner("metadata.labels['").map(str::to_owned);
        let key = key.or_else(|| inner("metadata.annotations['").map(str::to_ascii_lowercase));
        if key.is_some_and(|key| !is_qualified(&key)) {
            self.refuse(&format!("{at}.fieldPath"), "P20", "names an invalid key of a label or annotation");
            return None;
        }
        if let Some(key) = inner("metadata.labels['") {
            return Some(of(&self.metadata.labels, key));
        }
        if let Some(key) = inner("metadata.annotations['") {
            let index = (key == "batch.kubernetes.io/job-completion-index" && self.workload.job.is_some())
                .then(|| self.index.to_string());
            return Some(index.unwrap_or_else(|| of(&self.metadata.annotations, key)));
        }
        match path {
            "metadata.name" => Some(self.name.clone()),
            "metadata.namespace" => Some(self.workload.namespace.clone()),
            "metadata.uid" => Some(self.uid()),
            _ => {
                self.refuse(&format!("{at}.fieldPath"), "P20", "is not a supported field");
                None
            }
        }
    }

    /// Returns a limit or a request, rounded up (rule P21). A missing limit of CPU or memory is the node's capacity, and a
    /// missing request is the limit.
    pub(super) fn resource_field(
        &mut self,
        at: &str,
        field: &ResourceFieldSelector,
        container: &Container,
    ) -> Option<String> {
        let resources = container.resources.clone().unwrap_or_default();
        let Some((kind, name)) = field.resource.split_once('.') else {
            self.refuse(&format!("{at}.resource"), "P21", "must be limits.NAME or requests.NAME");
            return None;
        };
        let parse = |amounts: &Option<
            std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
        >| {
            amounts.as_ref().and_then(|amounts| amounts.get(name)).and_then(|amount| Quantity::parse(&amount.0))
        };
        let known = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        let node = match name {
            "cpu" => Quantity::parse(&format!("{}m", self.options.cpu_millis)),
            "memory" => Some(Quantity::from_units(self.options.memory_bytes)),
            _ => Some(Quantity::from_units(0)),
        };
        let amount = match kind {
            "limits" if known => parse(&resources.limits).or(node),
            "requests" if known => {
                parse(&resources.requests).or(parse(&resources.limits)).or(Some(Quantity::from_units(0)))
            }
            _ => None,
        };
        let divisor =
            field.divisor.as_ref().map(|divisor| &*divisor.0).filter(|divisor| !divisor.is_empty() && *divisor != "0");
        let divisors: &[&str] = if name == "cpu" { &["1", "1m"] } else { &BYTES };
        if divisor.is_some_and(|divisor| known && !divisors.contains(&divisor)) {
            self.refuse(&format!("{at}.divisor"), "P21", format!("must be one of {}", divisors.join(", ")));
            return None;
        }
        let divisor = divisor.map_or(Some(Quantity::from_units(1)), Quantity::parse);
        match amount.zip(divisor).and_then(|(amount, divisor)| amount.divided_by(divisor)) {
            Some(quotient) => Some(quotient.to_string()),
            None => {
                self.refuse(at, "P21", "is not a supported resource or has a wrong divisor");
                None
            }
        }
    }
}

/// Returns true for the name of a Linux signal, such as `SIGUSR1` or `SIGRTMIN+3`.
fn is_signal(text: &str) -> bool {
    const NAMES: [&str; 35] = [
        "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE", "POLL",
        "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1",
        "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ", "RTMIN",
    ];
    let Some(name) = text.strip_prefix("SIG") else { return false };
    let real_time = |prefix: &str, most: u8| {
        let number = name.strip_prefix(prefix).and_then(|number| number.parse::<u8>().ok());
        number.is_some_and(|number| (1..=most).contains(&number))
    };
    NAMES.contains(&name) || name == "RTMAX" || real_time("RTMIN+", 15) || real_time("RTMAX-", 14)
}
