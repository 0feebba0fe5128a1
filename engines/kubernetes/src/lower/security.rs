//! Lowers the security context of a container: rules C27 and C28.

use std::path::Path;

use executor_client::v1::{Capabilities, PathList, RunRequest};
use executor_cri_api::v1::security_profile::ProfileType;
use executor_cri_api::v1::{LinuxContainerSecurityContext, SecurityProfile, SupplementalGroupsPolicy};

use crate::failure::Violations;

/// Maximum size of a seccomp profile in bytes: the limit of executord.
const PROFILE_MAX: u64 = 256 << 10;
/// Prefix of a profile's name in fields of older versions of the API.
const LOCALHOST: &str = "localhost/";
const CONTEXT: &str = "config.linux.security_context";

/// Sets the fields of a request that depend on the security context.
pub(super) fn apply(security: &LinuxContainerSecurityContext, run: &mut RunRequest, violations: &mut Violations) {
    run.privileged = security.privileged;
    run.read_only_rootfs = security.readonly_rootfs;
    run.extra_groups = groups(security, violations);
    run.strict_groups = security.supplemental_groups_policy() == SupplementalGroupsPolicy::Strict;
    run.merge_groups = security.run_as_group.is_some() && !run.strict_groups;
    run.capabilities = Some(capabilities(security));
    run.allow_new_privileges = !security.no_new_privs;
    if security.privileged {
        return; // no filter, no profile, and nothing is masked
    }
    match seccomp(security, violations) {
        Profile::None => run.seccomp_unconfined = true,
        Profile::Default => {}
        Profile::Named(path) => run.seccomp_profile = read_profile(&path, violations),
    }
    match apparmor(security, violations) {
        Profile::Named(name) => run.apparmor_profile = name, // executord refuses a profile that is not loaded
        // The runtime's default is no profile: seccomp, masked paths and capabilities restrict the container.
        Profile::Default | Profile::None => {}
    }
    let list = |paths: &[String]| Some(PathList { paths: paths.to_vec() });
    run.masked_paths = list(&security.masked_paths);
    run.readonly_paths = list(&security.readonly_paths);
}

fn groups(security: &LinuxContainerSecurityContext, violations: &mut Violations) -> Vec<String> {
    let mut groups = Vec::new();
    for &group in &security.supplemental_groups {
        match u32::try_from(group) {
            Ok(group) => groups.push(group.to_string()),
            Err(_) => violations.add(&format!("{CONTEXT}.supplemental_groups"), format!("{group} is not a group id")),
        }
    }
    groups
}

/// Returns the user of a container in the format of executord; empty for the user of the image.
pub(super) fn user(security: &LinuxContainerSecurityContext, violations: &mut Violations) -> String {
    let mut id = |name: &str, value: i64| {
        if u32::try_from(value).is_err() {
            violations.add(&format!("{CONTEXT}.{name}"), format!("{value} is not an id from 0 to {}", u32::MAX));
        }
        value.to_string()
    };
    let user = match &security.run_as_user {
        Some(user) => id("run_as_user", user.value),
        None => security.run_as_username.clone(),
    };
    match &security.run_as_group {
        None => user,
        Some(_) if user.is_empty() => {
            violations.add(&format!("{CONTEXT}.run_as_group"), "requires run_as_user or run_as_username");
            user
        }
        Some(group) => format!("{user}:{}", id("run_as_group", group.value)),
    }
}

/// Lowers the capabilities: ALL first, then single names. A capability that is dropped by name is not added.
fn capabilities(security: &LinuxContainerSecurityContext) -> Capabilities {
    let name = |name: &String| name.to_uppercase().trim_start_matches("CAP_").to_owned();
    let given = security.capabilities.clone().unwrap_or_default();
    let drop: Vec<String> = given.drop_capabilities.iter().map(name).collect();
    let added = given.add_capabilities.iter().chain(&given.add_ambient_capabilities).map(name);
    let mut add: Vec<String> = added.filter(|name| name == "ALL" || !drop.contains(name)).collect();
    add.sort();
    add.dedup();
    Capabilities { add, drop }
}

/// A seccomp or AppArmor profile.
#[derive(Debug, PartialEq, Eq)]
enum Profile {
    None,
    Default,
    Named(String),
}

impl Profile {
    /// Returns the profile of the field `name`, or of the corresponding field of older versions of the API.
    fn new(name: &str, field: Option<&SecurityProfile>, older: &str, violations: &mut Violations) -> Self {
        match field.map(|profile| (ProfileType::try_from(profile.profile_type), &profile.localhost_ref)) {
            Some((Ok(ProfileType::RuntimeDefault), _)) => Self::Default,
            Some((Ok(ProfileType::Unconfined), _)) => Self::None,
            Some((Ok(ProfileType::Localhost), name)) => {
                Self::Named(name.strip_prefix(LOCALHOST).unwrap_or(name).to_owned())
            }
            // A newer kubelet may know more types. The default could be less strict than the requested profile.
            Some((Err(unknown), _)) => {
                violations.add(&format!("{CONTEXT}.{name}.profile_type"), format!("{} is not supported", unknown.0));
                Self::Default
            }
            None => match older {
                "runtime/default" | "docker/default" => Self::Default,
                "" | "unconfined" => Self::None,
                name => Self::Named(name.strip_prefix(LOCALHOST).unwrap_or(name).to_owned()),
            },
        }
    }
}

#[allow(deprecated, reason = "older kubelets set the older fields")]
fn seccomp(security: &LinuxContainerSecurityContext, violations: &mut Violations) -> Profile {
    Profile::new("seccomp", security.seccomp.as_ref(), &security.seccomp_profile_path, violations)
}

#[allow(deprecated, reason = "older kubelets set the older fields")]
fn apparmor(security: &LinuxContainerSecurityContext, violations: &mut Violations) -> Profile {
    Profile::new("apparmor", security.apparmor.as_ref(), &security.apparmor_profile, violations)
}

fn read_profile(path: &str, violations: &mut Violations) -> String {
    let field = format!("{CONTEXT}.seccomp.localhost_ref");
    let file = Path::new(path);
    if !file.is_absolute() {
        violations.add(&field, format!("{path:?} is not an absolute path"));
        return String::new();
    }
    let read = std::fs::metadata(file).and_then(|metadata| match metadata.len() {
        0..=PROFILE_MAX if metadata.is_file() => std::fs::read_to_string(file),
        bytes => {
            let why =
                format!("the profile must be a regular file of at most {PROFILE_MAX} bytes; the size is {bytes} bytes");
            Err(std::io::Error::other(why))
        }
    });
    read.unwrap_or_else(|error| {
        violations.add(&field, format!("{path}: {error}"));
        String::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_cri_api::v1::{Capability, Int64Value};

    fn lowered(security: &LinuxContainerSecurityContext) -> Result<(RunRequest, String), String> {
        let (mut run, mut violations) = (RunRequest::default(), Violations::default());
        apply(security, &mut run, &mut violations);
        let user = user(security, &mut violations);
        violations.check().map(|()| (run, user)).map_err(|status| status.message().to_owned())
    }

    /// Rule C27: without a profile there is no filter, and empty lists mask nothing.
    #[test]
    fn unset_fields_restrict_nothing() {
        let (run, user) = lowered(&LinuxContainerSecurityContext::default()).unwrap();
        assert!(run.seccomp_unconfined && run.allow_new_privileges && user.is_empty());
        assert_eq!(run.masked_paths, Some(PathList::default()));
    }

    /// Rule C27: a field of the current API takes precedence over the corresponding field of older versions.
    #[test]
    #[allow(deprecated)]
    fn newer_profiles_win() {
        let security = LinuxContainerSecurityContext {
            seccomp: Some(SecurityProfile { profile_type: 0, localhost_ref: String::new() }),
            seccomp_profile_path: "unconfined".into(),
            apparmor: Some(SecurityProfile { profile_type: 2, localhost_ref: "localhost/new".into() }),
            apparmor_profile: "localhost/old".into(),
            ..Default::default()
        };
        let (run, _) = lowered(&security).unwrap();
        assert_eq!((run.seccomp_unconfined, &*run.apparmor_profile), (false, "new"));
        let older = LinuxContainerSecurityContext { seccomp: None, apparmor: None, ..security };
        let (run, _) = lowered(&older).unwrap();
        assert_eq!((run.seccomp_unconfined, &*run.apparmor_profile), (true, "old"));
    }

    /// A type of a newer version of the API is refused, because the default could be less strict.
    #[test]
    fn unknown_profile_types_are_refused() {
        let profile = Some(SecurityProfile { profile_type: 3, localhost_ref: String::new() });
        let both = LinuxContainerSecurityContext { seccomp: profile.clone(), apparmor: profile, ..Default::default() };
        let error = lowered(&both).unwrap_err();
        assert!(error.contains("seccomp.profile_type: 3 is not supported"), "{error}");
        assert!(error.contains("apparmor.profile_type: 3 is not supported"), "{error}");
    }

    /// Rule C27: a container with the default AppArmor profile runs without a profile, on every host.
    #[test]
    #[allow(deprecated)]
    fn default_apparmor_profile_is_none() {
        let profile = |profile_type| SecurityProfile { profile_type, localhost_ref: String::new() };
        let older = |name: &str| LinuxContainerSecurityContext { apparmor_profile: name.into(), ..Default::default() };
        let newer = |kind| LinuxContainerSecurityContext { apparmor: Some(profile(kind)), ..Default::default() };
        for security in [newer(0), newer(1), older("runtime/default"), older("unconfined"), older("")] {
            assert_eq!(lowered(&security).unwrap().0.apparmor_profile, "", "{security:?}");
        }
    }

    /// Rule C27: ALL applies before single names, and a capability that is dropped by name is not added.
    #[test]
    fn dropped_capabilities_are_not_added() {
        let list = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
        let capabilities = Some(Capability {
            add_capabilities: list(&["CAP_NET_ADMIN", "chown", "ALL"]),
            drop_capabilities: list(&["ALL", "CHOWN"]),
            add_ambient_capabilities: list(&["NET_ADMIN"]),
        });
        let (run, _) = lowered(&LinuxContainerSecurityContext { capabilities, ..Default::default() }).unwrap();
        let found = run.capabilities.unwrap();
        assert_eq!((found.add, found.drop), (list(&["ALL", "NET_ADMIN"]), list(&["ALL", "CHOWN"])));
    }

    /// Rules C21, C28: a group requires a user, and negative ids are refused.
    #[test]
    fn groups_require_users() {
        let id = |value| Some(Int64Value { value });
        let mut security = LinuxContainerSecurityContext { run_as_group: id(7), ..Default::default() };
        assert!(lowered(&security).unwrap_err().contains("run_as_group: requires"));
        security.run_as_username = "web".into();
        let (run, user) = lowered(&security).unwrap();
        assert!((&*user, run.merge_groups, run.strict_groups) == ("web:7", true, false), "Merge is the default");
        security.set_supplemental_groups_policy(SupplementalGroupsPolicy::Strict);
        let (run, _) = lowered(&security).unwrap();
        assert!(!run.merge_groups && run.strict_groups);
        security.run_as_user = id(1000);
        assert_eq!(lowered(&security).unwrap().1, "1000:7");
        security.run_as_user = id(-1);
        security.supplemental_groups = vec![1 << 40];
        let error = lowered(&security).unwrap_err();
        assert!(error.contains("run_as_user") && error.contains("supplemental_groups"), "{error}");
    }

    #[test]
    fn missing_profiles_are_named() {
        let profile = |path: &str| SecurityProfile { profile_type: 2, localhost_ref: path.into() };
        for path in ["/nope/profile.json", "profile.json", "/dev"] {
            let security = LinuxContainerSecurityContext { seccomp: Some(profile(path)), ..Default::default() };
            assert!(lowered(&security).unwrap_err().contains("seccomp.localhost_ref"));
        }
    }

    /// Rule C28: a privileged container has no filter, and nothing is masked.
    #[test]
    fn privileged_containers_have_no_filter() {
        let security = LinuxContainerSecurityContext {
            privileged: true,
            masked_paths: vec!["/proc/keys".into()],
            seccomp: Some(SecurityProfile::default()),
            ..Default::default()
        };
        let (run, _) = lowered(&security).unwrap();
        assert!(run.privileged && run.masked_paths.is_none() && !run.seccomp_unconfined);
    }
}
