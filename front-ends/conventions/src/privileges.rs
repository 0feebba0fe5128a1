//! Checks that a convention adds privileges to a template only with a grant (rule 13 of `docs/guides/conventions.md`).
//!
//! The privileges of the templates before and after the call are compared. A privilege belongs to a container or to the
//! pod, not to a field: if a privilege moves to another field, it is not new. Some privileges exist because a field is
//! absent, such as running as the image's user. Removing a restriction therefore adds a privilege.

mod container;
mod volume;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::grant::Grant;
use crate::registration::Registration;
use crate::violation::{Violation, Violations};

/// Fields of a pod that list containers.
pub(crate) const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// A privilege and its holder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Privilege {
    /// Name of the container; empty if the privilege belongs to the pod.
    holder: String,
    grant: Grant,
    what: String,
}

/// Field that grants a privilege.
#[derive(Clone, Debug)]
struct Origin {
    field: String,
    /// True if the container has the privilege because no field removes it.
    default: bool,
}

#[derive(Debug, Default)]
struct Privileges {
    held: BTreeMap<Privilege, Origin>,
    containers: BTreeSet<String>,
}

/// Container or pod whose privileges are being collected.
struct Holder<'a> {
    all: &'a mut Privileges,
    name: &'a str,
    field: String,
}

impl Holder<'_> {
    fn add(&mut self, grant: Grant, field: &str, what: impl Into<String>) {
        self.insert(grant, field, what.into(), false);
    }

    /// Adds a privilege that exists because a field does not remove it.
    fn keeps(&mut self, grant: Grant, field: &str, what: impl Into<String>) {
        self.insert(grant, field, what.into(), true);
    }

    fn insert(&mut self, grant: Grant, field: &str, what: String, default: bool) {
        let joint = if field.starts_with('[') { "" } else { "." };
        let field = format!("{}{joint}{field}", self.field);
        let privilege = Privilege { holder: self.name.to_owned(), grant, what };
        self.all.held.entry(privilege).or_insert(Origin { field, default });
    }
}

impl Privileges {
    fn from_template(template: &Value) -> Self {
        let mut all = Self::default();
        let (pod, none) = (&template["spec"], Vec::new());
        let annotations = &template["metadata"]["annotations"];
        of_pod(&mut Holder { all: &mut all, name: "", field: "spec".into() }, pod);
        for list in LISTS {
            for container in pod[list].as_array().unwrap_or(&none) {
                let name = text(&container["name"]);
                all.containers.insert(name.to_owned());
                let field = format!("spec.{list}[{name}]");
                container::collect(&mut Holder { all: &mut all, name, field }, container, pod, annotations);
            }
        }
        all
    }

    /// Returns true if a privilege already exists, by itself or as part of a wider privilege.
    fn covers(&self, wanted: &Privilege, default: bool) -> bool {
        let held = |what: &str| {
            let (holder, grant) = (wanted.holder.clone(), wanted.grant);
            self.held.contains_key(&Privilege { holder, grant, what: what.to_owned() })
        };
        if held(&wanted.what) {
            return true;
        }
        if wanted.grant == Grant::Capabilities && held(container::ALL_CAPABILITIES) {
            return true;
        }
        if wanted.grant == Grant::Secrets
            && let Some((secret, _)) = wanted.what.rsplit_once(volume::KEY)
            && held(&format!("{secret}{}", volume::EVERY_KEY))
        {
            return true;
        }
        // A new container may lack the same restrictions as an existing container.
        default && !wanted.holder.is_empty() && !self.containers.contains(&wanted.holder) && {
            let same = |other: &Privilege| other.grant == wanted.grant && other.what == wanted.what;
            self.held.keys().any(|other| !other.holder.is_empty() && same(other))
        }
    }
}

/// Checks that the convention's grants permit all privileges that the convention added.
pub(crate) fn evaluate(registration: &Registration, before: &Value, after: &Value) -> Violations {
    let (before, after) = (Privileges::from_template(before), Privileges::from_template(after));
    let mut violations = Violations::default();
    let mut refuse = |grant: Grant, field: String, message: String| {
        if !registration.grants.contains(&grant) {
            let convention = Some(registration.name.clone());
            violations.push(Violation { convention, field, rule: 13, grant: Some(grant), message });
        }
    };
    for name in before.containers.difference(&after.containers) {
        refuse(Grant::Containers, format!("spec.containers[{name}]"), "removes the container".to_owned());
    }
    for (privilege, origin) in &after.held {
        if !before.covers(privilege, origin.default) {
            refuse(privilege.grant, origin.field.clone(), format!("adds {}", privilege.what));
        }
    }
    violations
}

fn of_pod(holder: &mut Holder<'_>, pod: &Value) {
    for (field, what) in
        [("hostNetwork", "the host's network"), ("hostPID", "the host's processes"), ("hostIPC", "the host's IPC")]
    {
        if pod[field] == true {
            holder.add(Grant::HostNamespaces, field, what);
        }
    }
    if pod["hostUsers"] != false {
        holder.keeps(Grant::HostNamespaces, "hostUsers", "the host's user namespace");
    }
    if pod["shareProcessNamespace"] == true {
        holder.add(Grant::Isolation, "shareProcessNamespace", "one process namespace for all containers");
    }
    let account =
        [&pod["serviceAccountName"], &pod["serviceAccount"]].into_iter().map(text).find(|name| !name.is_empty());
    let account = account.unwrap_or("default");
    holder.add(Grant::ServiceAccount, "serviceAccountName", format!("the service account {account}"));
    if pod["automountServiceAccountToken"] != false {
        holder.keeps(Grant::ServiceAccount, "automountServiceAccountToken", "the service account's token");
    }
    let runtime = Some(text(&pod["runtimeClassName"])).filter(|name| !name.is_empty());
    let runtime = runtime.map_or_else(|| "the default runtime".to_owned(), |name| format!("the runtime class {name}"));
    holder.add(Grant::Isolation, "runtimeClassName", runtime);
    for sysctl in entries(&pod["securityContext"]["sysctls"]) {
        let (name, value) = (text(&sysctl["name"]), text(&sysctl["value"]));
        holder.add(Grant::Isolation, "securityContext.sysctls", format!("the sysctl {name}={value}"));
    }
    let context = &pod["securityContext"];
    if context["fsGroup"] == 0 || entries(&context["supplementalGroups"]).iter().any(|group| *group == 0) {
        holder.add(Grant::Root, "securityContext", "group 0");
    }
    for secret in entries(&pod["imagePullSecrets"]) {
        holder.add(Grant::Secrets, "imagePullSecrets", format!("the pull secret {}", text(&secret["name"])));
    }
    for claim in entries(&pod["resourceClaims"]) {
        let mut claim = claim.clone();
        if let Some(fields) = claim.as_object_mut() {
            fields.remove("name");
        }
        holder.add(Grant::Devices, "resourceClaims", format!("the resource claim {claim}"));
    }
    for volume in entries(&pod["volumes"]) {
        let field = format!("volumes[{}]", text(&volume["name"]));
        for (grant, what) in volume::privileges(volume) {
            holder.add(grant, &field, what);
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn entries(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
