//! Determines the AppArmor profiles of containers (rule P47 of `docs/guides/kube-rules.md`) from the field, or from the
//! annotation of earlier Kubernetes versions.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container};

use super::Lowering;

/// Prefix of the annotation with the profile of a container. The container's name follows.
const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Prefixes of annotations with seccomp profiles. Kubernetes no longer reads these annotations.
const SECCOMP: [&str; 2] = ["seccomp.security.alpha.kubernetes.io/", "container.seccomp.security.alpha.kubernetes.io/"];

impl Lowering<'_> {
    /// Refuses AppArmor annotations for containers that do not exist, and warns about annotations without effect.
    pub(super) fn security_annotations(&mut self) {
        let names: Vec<String> = self.metadata.annotations.iter().flatten().map(|(name, _)| name.clone()).collect();
        let is_container =
            |name: &str, lowering: &Self| lowering.containers().iter().any(|(_, one, _)| one.name == name);
        for name in names {
            let path = format!("metadata.annotations[{name}]");
            match name.strip_prefix(ANNOTATION) {
                Some(container) if !is_container(container, self) => {
                    self.refuse(&path, "P47", format!("`{container}` is not a container of the pod"));
                }
                None if SECCOMP.iter().any(|beginning| name.starts_with(beginning)) => {
                    let message = "is ignored, as in Kubernetes since 1.27; use securityContext.seccompProfile";
                    self.warn(&path, "P47", message);
                }
                _ => {}
            }
        }
    }

    /// Returns the name of a container's profile; empty if there is no profile. `field` is the profile field of the
    /// container or the pod, and `place` is the path of the field.
    pub(super) fn apparmor(&mut self, place: &str, container: &Container, field: Option<AppArmorProfile>) -> String {
        let name = format!("{ANNOTATION}{}", container.name);
        let annotated = self.metadata.annotations.as_ref().and_then(|all| all.get(&name)).cloned();
        let at = format!("metadata.annotations[{name}]");
        let annotated = annotated.and_then(|text| match parse(&text) {
            Ok(profile) => profile,
            Err(message) => {
                self.refuse(&at, "P47", message);
                None
            }
        });
        let (path, profile) = match (annotated, field) {
            (Some(annotated), Some(field)) if annotated != field => {
                let message = format!("differs from the profile of {place}");
                self.refuse(&at, "P47", message);
                return String::new();
            }
            (Some(annotated), None) => (at, annotated),
            (_, Some(field)) => (place.to_owned(), field),
            (None, None) => return String::new(),
        };
        if profile.type_ != "Localhost" && profile.localhost_profile.is_some() {
            self.refuse(&format!("{path}.localhostProfile"), "P47", "is only allowed with the type Localhost");
            return String::new();
        }
        match (&*profile.type_, profile.localhost_profile) {
            ("Unconfined", _) => String::new(),
            ("Localhost", Some(profile)) => profile,
            _ => {
                let message = "must be Localhost with a profile that the operator offers, or Unconfined; there is no default profile";
                self.refuse(&path, "P47", message);
                String::new()
            }
        }
    }
}

/// Parses the value of an annotation; `None` if the value is empty.
fn parse(text: &str) -> Result<Option<AppArmorProfile>, &'static str> {
    let profile = |kind: &str, localhost: Option<&str>| {
        Some(AppArmorProfile { type_: kind.into(), localhost_profile: localhost.map(str::to_owned) })
    };
    match (text, text.strip_prefix("localhost/")) {
        ("", _) => Ok(None),
        ("unconfined", _) => Ok(profile("Unconfined", None)),
        ("runtime/default", _) => Ok(profile("RuntimeDefault", None)),
        (_, Some(name)) if !name.is_empty() => Ok(profile("Localhost", Some(name))),
        _ => Err("must be unconfined, runtime/default or localhost/PROFILE"),
    }
}
