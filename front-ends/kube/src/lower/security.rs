//! User, groups and privileges of a container (P44 to P48).

use executor_client::v1::{Capabilities, RunRequest};
use k8s_openapi::api::core::v1::{Container, SELinuxOptions, SeccompProfile};

use super::Lowering;

/// The user of a container.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    /// `uid`, `uid:gid`, or empty for the image's.
    pub(super) user: String,
    /// Nobody checked yet that the image's user is not root.
    pub(super) check_image: bool,
    /// Supplementary groups.
    pub(super) groups: Vec<String>,
    /// Group of the files of its volumes.
    pub(super) fs_group: Option<String>,
    /// AppArmor profile.
    pub(super) apparmor: String,
}

impl Lowering<'_> {
    pub(super) fn identity(&mut self, path: &str, container: &Container, request: &mut RunRequest) -> Identity {
        let pod = self.spec.security_context.clone().unwrap_or_default();
        let own = container.security_context.clone().unwrap_or_default();
        let at = |field: &str| format!("{path}.securityContext.{field}");
        let id = |value: Option<i64>| value.map(|value| i32::try_from(value).ok().filter(|id| *id >= 0).ok_or(value));
        let number = |field: &str, value: Option<i64>, lowering: &mut Self| match id(value) {
            Some(Err(value)) => {
                lowering.refuse(&at(field), "P44", format!("is {value}; it must be 0 to 2147483647"));
                None
            }
            other => other.and_then(Result::ok),
        };
        let uid = number("runAsUser", own.run_as_user.or(pod.run_as_user), self);
        let gid = number("runAsGroup", own.run_as_group.or(pod.run_as_group), self);
        let non_root = own.run_as_non_root.or(pod.run_as_non_root) == Some(true);
        let user = match (uid, gid) {
            (Some(uid), Some(gid)) => format!("{uid}:{gid}"),
            (Some(uid), None) => uid.to_string(),
            (None, Some(_)) => {
                self.refuse(&at("runAsGroup"), "P44", "is set without runAsUser: set that, too");
                String::new()
            }
            (None, None) => String::new(),
        };
        if non_root && uid == Some(0) {
            self.refuse(&at("runAsUser"), "P44", "is 0, and runAsNonRoot is set");
        }
        let mut groups: Vec<String> = Vec::new();
        let mut fs_group = None;
        if let Some(group) = number("fsGroup", pod.fs_group, self) {
            groups.push(group.to_string());
            fs_group = Some(group.to_string());
        }
        for group in pod.supplemental_groups.into_iter().flatten() {
            if let Some(group) = number("supplementalGroups", Some(group), self) {
                groups.push(group.to_string());
            }
        }
        groups.dedup();
        let refused = [
            (
                "seLinuxOptions",
                [&own.se_linux_options, &pod.se_linux_options]
                    .into_iter()
                    .flatten()
                    .any(|options| *options != SELinuxOptions::default()),
                "is not carried out: there is no SELinux here",
            ),
            (
                "windowsOptions",
                own.windows_options.is_some() || pod.windows_options.is_some(),
                "is not carried out: the host is not Windows",
            ),
            ("procMount", own.proc_mount.as_deref().is_some_and(|mount| mount != "Default"), "must be Default"),
        ];
        for (field, _, message) in refused.into_iter().filter(|(_, set, _)| *set) {
            self.refuse(&at(field), "P47", message);
        }
        let privileged = own.privileged == Some(true);
        if privileged && own.allow_privilege_escalation == Some(false) {
            self.refuse(&at("allowPrivilegeEscalation"), "P46", "is false in a privileged container");
        }
        let adds = |name: &str| {
            let added = own.capabilities.as_ref().and_then(|capabilities| capabilities.add.as_ref());
            added.is_some_and(|added| added.iter().any(|one| one == name))
        };
        if own.allow_privilege_escalation == Some(false) && adds("CAP_SYS_ADMIN") {
            let message = "is false, and the capability CAP_SYS_ADMIN is added";
            self.refuse(&at("allowPrivilegeEscalation"), "P46", message);
        }
        request.privileged = privileged;
        request.read_only_rootfs = own.read_only_root_filesystem == Some(true);
        request.capabilities = own.capabilities.map(|capabilities| {
            let plain = |names: Option<Vec<String>>| -> Vec<String> {
                let names = names.unwrap_or_default().into_iter();
                names.map(|name| name.strip_prefix("CAP_").map_or(name.clone(), str::to_owned)).collect()
            };
            let (add, drop) = (plain(capabilities.add), plain(capabilities.drop));
            // Single ones are dropped after the adding.
            let add = add.into_iter().filter(|name| !drop.contains(name) || name == "ALL").collect();
            Capabilities { add, drop }
        });
        self.seccomp(&at("seccompProfile"), own.seccomp_profile.or(pod.seccomp_profile).as_ref());
        let apparmor = self.apparmor(path, container, own.app_armor_profile.or(pod.app_armor_profile));
        Identity { user, check_image: non_root && uid.is_none(), groups, fs_group, apparmor }
    }

    /// Checks what is the whole pod's, once (P45).
    pub(super) fn pod_security(&mut self) {
        let Some(context) = &self.spec.security_context else { return };
        match context.supplemental_groups_policy.as_deref() {
            None | Some("Merge") => {}
            Some(policy) => {
                let message = match policy {
                    "Strict" => "Strict is not carried out: groups of the image's /etc/group are added",
                    _ => "must be Merge",
                };
                self.refuse("spec.securityContext.supplementalGroupsPolicy", "P45", message);
            }
        }
        if !matches!(context.fs_group_change_policy.as_deref(), None | Some("Always" | "OnRootMismatch")) {
            let path = "spec.securityContext.fsGroupChangePolicy";
            self.refuse(path, "P45", "must be Always or OnRootMismatch");
        }
    }

    fn seccomp(&mut self, path: &str, profile: Option<&SeccompProfile>) {
        if profile.is_some_and(|profile| profile.type_ != "Localhost" && profile.localhost_profile.is_some()) {
            self.refuse(&format!("{path}.localhostProfile"), "P47", "is for the type Localhost alone");
        }
        match profile.map(|profile| &*profile.type_) {
            // Without one it is executord's own filter.
            None | Some("RuntimeDefault") => {}
            Some("Unconfined") => {
                self.refuse(path, "P47", "Unconfined is not carried out: executord's own filter is in force; a privileged container has none");
            }
            Some("Localhost") => {
                self.refuse(path, "P47", "Localhost is not carried out: there is no directory of profiles");
            }
            Some(_) => self.refuse(path, "P47", "must be RuntimeDefault"),
        }
    }
}
