//! Maps fields of executord's requests to the fields of the Kubernetes object from which they were lowered (rule P1 of
//! `docs/guides/kube-rules.md`).
//!
//! For the field of a violation, the most precise known path is returned. If no table contains the field, the path of
//! the whole container or pod is returned.

use executor_client::v1::RunRequest;

use crate::plan::{Member, PodPlan};
use crate::report::Report;

/// Fields of CreatePodRequest, with the corresponding paths below the pod template. If a path ends with `[]`, the index
/// of the field is appended to the path.
const POD: [(&str, &str); 15] = [
    ("labels", "metadata.labels"),
    ("hostname", "spec.hostname"),
    ("dns.servers", "spec.dnsConfig.nameservers[]"),
    ("dns.searches", "spec.dnsConfig.searches[]"),
    ("dns.options", "spec.dnsConfig.options[]"),
    ("dns", "spec.dnsConfig"),
    ("extra_hosts", "spec.hostAliases"),
    ("sysctls", "spec.securityContext.sysctls"),
    ("user_namespace", "spec.hostUsers"),
    ("share_processes", "spec.shareProcessNamespace"),
    ("host_pid", "spec.hostPID"),
    ("host_ipc", "spec.hostIPC"),
    ("network", "spec.hostNetwork"),
    ("volumes", "spec.volumes"),
    ("ports", "spec.containers"),
];

/// Fields of RunRequest, with the corresponding paths below the container.
const MEMBER: [(&str, &str); 33] = [
    ("limits.memory_bytes", "resources.limits.memory"),
    ("limits.memory_reservation_bytes", "resources.requests.memory"),
    ("limits.disk_bytes", "resources.limits.ephemeral-storage"),
    ("limits.cpu_millis", "resources.limits.cpu"),
    ("limits.cpu_weight", "resources.requests.cpu"),
    ("limits", "resources.limits"),
    ("rootfs", "image"),
    ("pull_policy", "imagePullPolicy"),
    ("action.run.path", "command"),
    ("action.run.args", "args"),
    ("action.run.secret_arguments", "args"),
    ("action.run.dir", "workingDir"),
    ("action.run.user", "securityContext.runAsUser"),
    ("action.run.env", "env"),
    ("action.run.secret_environment", "env"),
    ("action.run.volume_mounted_files", "volumeMounts"),
    ("volumes", "volumeMounts"),
    ("file_directories", "volumeMounts"),
    ("capabilities", "securityContext.capabilities"),
    ("privileged", "securityContext.privileged"),
    ("read_only_rootfs", "securityContext.readOnlyRootFilesystem"),
    ("seccomp_profile", "securityContext.seccompProfile"),
    ("seccomp_unconfined", "securityContext.seccompProfile"),
    ("allow_new_privileges", "securityContext.allowPrivilegeEscalation"),
    ("masked_paths", "securityContext.procMount"),
    ("readonly_paths", "securityContext.procMount"),
    ("apparmor_profile", "securityContext.appArmorProfile"),
    ("checks.startup", "startupProbe"),
    ("checks.liveness", "livenessProbe"),
    ("checks.readiness", "readinessProbe"),
    ("stdin", "stdin"),
    ("terminal", "tty"),
    ("termination_message", "terminationMessagePath"),
];

impl PodPlan {
    /// Adds a violation that executord found in the pod or one of its containers to a report. `field` is a field of the
    /// Validate request and begins with `pod.` or `run.`.
    pub fn refuse(&self, member: Option<&Member>, field: &str, description: &str, report: &mut Report) {
        let (path, own) = match (field.strip_prefix("pod."), member) {
            (Some(own), _) => (self.pod_path(own), own),
            (None, Some(member)) => {
                let own = field.strip_prefix("run.").unwrap_or(field);
                (self.member_path(member, own), own)
            }
            (None, None) => (self.template.to_owned(), field),
        };
        let separator = if own.is_empty() { "" } else { ": " };
        report.refuse(
            &self.origin,
            path,
            "P1",
            format!("executord refuses the request: {own}{separator}{description}"),
        );
    }

    fn pod_path(&self, field: &str) -> String {
        let template =
            |path: &str| if self.template.is_empty() { path.into() } else { format!("{}.{path}", self.template) };
        let Some((found, path, rest)) = look_up(&POD, field) else { return template("spec") };
        let path = template(path);
        let item = match found {
            "sysctls" => self
                .origin
                .item(&path, "name", key(rest))
                .or_else(|| self.origin.item(&path, "name", &key(rest).replace('.', "/"))),
            "volumes" => {
                let volume = index(rest).and_then(|index| self.create.volumes.get(index));
                volume.and_then(|volume| self.origin.item(&path, "name", &volume.name))
            }
            _ => None,
        };
        with_item(path, rest, item)
    }

    fn member_path(&self, member: &Member, field: &str) -> String {
        let Some((found, path, rest)) = look_up(&MEMBER, field) else { return member.path.clone() };
        let path = format!("{}.{path}", member.path);
        let request: &RunRequest = &member.request;
        let run = request.action.as_ref().and_then(|action| action.run.as_ref());
        let named = |of: Option<&str>| of.and_then(|name| self.origin.item(&path, "name", name));
        let item = match found {
            "action.run.env" => named(run.zip(index(rest)).and_then(|(run, at)| Some(&*run.env.get(at)?.name))),
            "action.run.secret_environment" => {
                named(run.zip(index(rest)).and_then(|(run, at)| Some(&*run.secret_environment.get(at)?.name)))
            }
            "volumes" => {
                let volume = index(rest).and_then(|at| request.volumes.get(at));
                volume.and_then(|volume| self.origin.item(&path, "mountPath", &volume.path))
            }
            _ => None,
        };
        with_item(path, rest, item)
    }
}

/// Returns the longest field in a table that equals or contains `field`, with its path and the rest of `field`.
fn look_up<'a>(
    table: &[(&'static str, &'static str)],
    field: &'a str,
) -> Option<(&'static str, &'static str, &'a str)> {
    let below = |(known, path): &(&'static str, &'static str)| {
        let rest = field.strip_prefix(known)?;
        (rest.is_empty() || rest.starts_with(['.', '['])).then_some((*known, *path, rest))
    };
    table.iter().filter_map(below).max_by_key(|(known, ..)| known.len())
}

/// Returns the index at the start of a string such as `[3].name`.
fn index(rest: &str) -> Option<usize> {
    key(rest).parse().ok()
}

/// Returns the key in the brackets of a string such as `[net.core.somaxconn]`.
fn key(rest: &str) -> &str {
    rest.strip_prefix('[').and_then(|rest| rest.split(']').next()).unwrap_or_default()
}

/// Appends an index to a path: `item` if given, otherwise the index of the field if the path ends with `[]`.
fn with_item(path: String, rest: &str, item: Option<usize>) -> String {
    let (path, keeps) = match path.strip_suffix("[]") {
        Some(list) => (list.to_owned(), true),
        None => (path, false),
    };
    match item.or_else(|| index(rest).filter(|_| keeps)) {
        Some(item) => format!("{path}[{item}]"),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_field_of_a_table_is_found() {
        assert_eq!(look_up(&POD, "dns.searches[2]"), Some(("dns.searches", "spec.dnsConfig.searches[]", "[2]")));
        assert_eq!(look_up(&POD, "dns.other"), Some(("dns", "spec.dnsConfig", ".other")));
        assert_eq!(look_up(&MEMBER, "limits.memory_bytes").unwrap().1, "resources.limits.memory");
        assert_eq!(look_up(&MEMBER, "limitsx"), None);
        assert_eq!(with_item("a[]".into(), "[2].x", None), "a[2]");
        assert_eq!(with_item("a".into(), "[2].x", None), "a");
        assert_eq!(with_item("a".into(), "[net.x]", Some(1)), "a[1]");
        assert_eq!(key("[net.x]"), "net.x");
    }

    /// If a field of the requests is renamed, this test fails, because the tables would no longer map the field.
    #[test]
    fn every_field_of_the_tables_exists() {
        use prost::Message as _;
        let set = prost_types::FileDescriptorSet::decode(executor_client::FILE_DESCRIPTOR_SET).unwrap();
        let messages: Vec<_> = set.file.iter().flat_map(|file| &file.message_type).collect();
        let exists = |root: &str, field: &str| {
            field.split('.').try_fold(root.to_owned(), |message, name| {
                let message = messages.iter().find(|one| message.ends_with(one.name()))?;
                let field = message.field.iter().find(|one| one.name() == name)?;
                Some(field.type_name().rsplit('.').next().unwrap_or_default().to_owned())
            })
        };
        for (table, root) in [(&POD[..], "CreatePodRequest"), (&MEMBER[..], "RunRequest")] {
            for (field, _) in table {
                assert!(exists(root, field).is_some(), "{root}.{field}");
            }
        }
    }
}
