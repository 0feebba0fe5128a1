//! Lowers user, groups and privileges of a container (rules P44 to P48 of `docs/guides/kube-rules.md`).

use executor_client::v1::{Capabilities, PathList, RunRequest};
use k8s_openapi::api::core::v1::{Container, SELinuxOptions, SeccompProfile};

use super::Lowering;

/// User, groups and AppArmor profile of a container.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    /// User as `uid` or `uid:gid`; empty to use the image's user.
    pub(super) user: String,
    /// True if a later check must ensure that the image's user is not root.
    pub(super) check_image: bool,
    pub(super) groups: Vec<String>,
    pub(super) strict_groups: bool,
    pub(super) merge_groups: bool,
    /// Group of the files in the container's volumes.
    pub(super) fs_group: Option<String>,
    pub(super) apparmor: String,
}

impl Lowering<'_> {
    pub(super) fn identity(&mut self, path: &str, container: &Container, request: &mut RunRequest) -> Identity {
        let pod = self.spec.security_context.clone().unwrap_or_default();
        let own = container.security_context.clone().unwrap_or_default();
        let at = |field: &str| format!("{path}.securityContext.{field}");
        let of_pod = |field: &str| format!("spec.securityContext.{field}");
        // Path of the field in the container or in the pod.
        let place = |is_own: bool, field: &str| if is_own { at(field) } else { of_pod(field) };
        let id = |value: Option<i64>| value.map(|value| i32::try_from(value).ok().filter(|id| *id >= 0).ok_or(value));
        let number = |at: &str, value: Option<i64>, lowering: &mut Self| match id(value) {
            Some(Err(value)) => {
                lowering.refuse(at, "P44", format!("is {value}; it must be 0 to 2147483647"));
                None
            }
            other => other.and_then(Result::ok),
        };
        let user_at = place(own.run_as_user.is_some(), "runAsUser");
        let group_at = place(own.run_as_group.is_some(), "runAsGroup");
        let uid = number(&user_at, own.run_as_user.or(pod.run_as_user), self);
        let gid = number(&group_at, own.run_as_group.or(pod.run_as_group), self);
        let non_root = own.run_as_non_root.or(pod.run_as_non_root) == Some(true);
        let user = match (uid, gid) {
            (Some(uid), Some(gid)) => format!("{uid}:{gid}"),
            (Some(uid), None) => uid.to_string(),
            (None, Some(_)) => {
                self.refuse(&group_at, "P44", "is set without runAsUser: set both");
                String::new()
            }
            (None, None) => String::new(),
        };
        if non_root && uid == Some(0) {
            self.refuse(&user_at, "P44", "must not be 0 if runAsNonRoot is set");
        }
        let mut groups: Vec<String> = Vec::new();
        let mut fs_group = None;
        if let Some(group) = number(&of_pod("fsGroup"), pod.fs_group, self) {
            groups.push(group.to_string());
            fs_group = Some(group.to_string());
        }
        for (index, group) in pod.supplemental_groups.into_iter().flatten().enumerate() {
            if let Some(group) = number(&of_pod(&format!("supplementalGroups[{index}]")), Some(group), self) {
                groups.push(group.to_string());
            }
        }
        groups.dedup();
        self.labels_of_other_systems(&at(""), own.se_linux_options.as_ref(), own.windows_options.is_some());
        match own.proc_mount.as_deref() {
            None | Some("Default") => {}
            Some("Unmasked") => {
                request.masked_paths = Some(PathList::default());
                request.readonly_paths = Some(PathList::default());
            }
            Some(_) => self.refuse(&at("procMount"), "P47", "must be Default or Unmasked"),
        }
        request.allow_new_privileges = own.allow_privilege_escalation == Some(true);
        let privileged = own.privileged == Some(true);
        if privileged && own.allow_privilege_escalation == Some(false) {
            self.refuse(&at("allowPrivilegeEscalation"), "P46", "must not be false in a privileged container");
        }
        let adds = |name: &str| {
            let added = own.capabilities.as_ref().and_then(|capabilities| capabilities.add.as_ref());
            added.is_some_and(|added| added.iter().any(|one| one == name))
        };
        if own.allow_privilege_escalation == Some(false) && adds("CAP_SYS_ADMIN") {
            let message = "must not be false if the capability CAP_SYS_ADMIN is added";
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
            // A capability that is both added and dropped is dropped.
            let add = add.into_iter().filter(|name| !drop.contains(name) || name == "ALL").collect();
            Capabilities { add, drop }
        });
        let seccomp_at = place(own.seccomp_profile.is_some(), "seccompProfile");
        request.seccomp_unconfined = self.seccomp(&seccomp_at, own.seccomp_profile.or(pod.seccomp_profile).as_ref());
        let apparmor_at = place(own.app_armor_profile.is_some(), "appArmorProfile");
        let apparmor = self.apparmor(&apparmor_at, container, own.app_armor_profile.or(pod.app_armor_profile));
        let strict_groups = pod.supplemental_groups_policy.as_deref() == Some("Strict");
        let merge_groups = gid.is_some() && !strict_groups;
        let check_image = non_root && uid.is_none();
        Identity { user, check_image, groups, strict_groups, merge_groups, fs_group, apparmor }
    }

    /// Refuses SELinux labels and Windows options. `context` is the path of the security context, with a dot at the
    /// end.
    fn labels_of_other_systems(&mut self, context: &str, selinux: Option<&SELinuxOptions>, windows: bool) {
        if selinux.is_some_and(|options| *options != SELinuxOptions::default()) {
            let message = "is not supported: there is no SELinux here";
            self.refuse(&format!("{context}seLinuxOptions"), "P47", message);
        }
        if windows {
            let message = "is not supported: the host is not Windows";
            self.refuse(&format!("{context}windowsOptions"), "P47", message);
        }
    }

    /// Checks the security context of the pod (rules P45, P47 and P63). Called once for each pod.
    pub(super) fn pod_security(&mut self) {
        let spec = self.spec;
        let account = spec.service_account_name.as_ref().or(spec.service_account.as_ref());
        let named = account.is_some_and(|name| !matches!(&**name, "" | "default"));
        let field = match (spec.automount_service_account_token, named) {
            (Some(true), _) => Some("automountServiceAccountToken"),
            (None, true) if spec.service_account_name.is_some() => Some("serviceAccountName"),
            (None, true) => Some("serviceAccount"),
            _ => None,
        };
        if let Some(field) = field {
            let message = "is ignored: there is no API server, and the pod has no token for one";
            self.warn(&format!("spec.{field}"), "P63", message);
        }
        let Some(context) = &spec.security_context else { return };
        let windows = context.windows_options.is_some();
        self.labels_of_other_systems("spec.securityContext.", context.se_linux_options.as_ref(), windows);
        let path = "spec.securityContext.seLinuxChangePolicy";
        match context.se_linux_change_policy.as_deref() {
            None => {}
            Some("Recursive" | "MountOption") => {
                self.warn(path, "P47", "is ignored: there is no SELinux here");
            }
            Some(_) => self.refuse(path, "P47", "must be Recursive or MountOption"),
        }
        match context.supplemental_groups_policy.as_deref() {
            None | Some("Merge" | "Strict") => {}
            Some(_) => self.refuse("spec.securityContext.supplementalGroupsPolicy", "P45", "must be Merge or Strict"),
        }
        if !matches!(context.fs_group_change_policy.as_deref(), None | Some("Always" | "OnRootMismatch")) {
            let path = "spec.securityContext.fsGroupChangePolicy";
            self.refuse(path, "P45", "must be Always or OnRootMismatch");
        }
    }

    /// Checks a seccomp profile. Returns true if no filter applies.
    fn seccomp(&mut self, path: &str, profile: Option<&SeccompProfile>) -> bool {
        if profile.is_some_and(|profile| profile.type_ != "Localhost" && profile.localhost_profile.is_some()) {
            self.refuse(&format!("{path}.localhostProfile"), "P47", "is only allowed with the type Localhost");
        }
        match profile.map(|profile| &*profile.type_) {
            // Without a profile, executord's default filter applies.
            None | Some("RuntimeDefault") => {}
            Some("Unconfined") => return true,
            Some("Localhost") => {
                self.refuse(path, "P47", "Localhost is not supported: there is no directory of profiles");
            }
            Some(_) => self.refuse(path, "P47", "must be RuntimeDefault or Unconfined"),
        }
        false
    }
}
