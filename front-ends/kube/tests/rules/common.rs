//! Helpers that convert YAML to a plan or to violations.

use executor_client::v1::{EnvironmentVariable, File, RunAction, RunRequest};
use executor_kube::lower::lower;
use executor_kube::object;
use executor_kube::options::{HostVolume, Options, PodNetwork};
use executor_kube::plan::{Member, Plan};
use executor_kube::report::{Strictness, Violation};

pub(crate) fn options() -> Options {
    Options {
        play: "test".into(),
        node_name: "node-1".into(),
        memory_bytes: 8 << 30,
        cpu_millis: 4000,
        host_volumes: Some(vec![
            HostVolume { name: "data".into(), path: "/srv/data".into(), read_only: false },
            HostVolume { name: "certs".into(), path: "/srv/data/certs".into(), read_only: true },
        ]),
        host_paths: vec!["/srv/host".into()],
        ..Options::default()
    }
}

pub(crate) fn cni() -> Options {
    Options { network: PodNetwork::Cni(String::new()), ..options() }
}

/// Lowers YAML. Returns the plan with warnings, or the violations.
pub(crate) fn checked(
    text: &str,
    strictness: Strictness,
    options: &Options,
) -> Result<(Plan, Vec<Violation>), Vec<Violation>> {
    let mut report = object::report(strictness);
    let objects = object::read([("f.yaml", text)], &mut report);
    lower(&objects, options, report).map_err(|violations| violations.list)
}

pub(crate) fn plan_with(text: &str, options: &Options) -> (Plan, Vec<Violation>) {
    checked(text, Strictness::Strict, options).unwrap_or_else(|list| {
        panic!("{text}\n{}", list.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })
}

pub(crate) fn plan(text: &str) -> Plan {
    plan_with(text, &options()).0
}

/// Returns violations as `rule path: message`.
pub(crate) fn refused_with(text: &str, options: &Options) -> Vec<String> {
    match checked(text, Strictness::Strict, options) {
        Ok(_) => panic!("passes: {text}"),
        Err(list) => list.iter().map(|one| format!("{} {}: {}", one.rule, one.path, one.message)).collect(),
    }
}

pub(crate) fn refused(text: &str) -> Vec<String> {
    refused_with(text, &options())
}

/// Asserts that exactly one violation is reported, and that it begins with this rule and path.
pub(crate) fn refuses(text: &str, begins: &str) {
    let reported = refused(text);
    assert!(reported.len() == 1 && reported[0].starts_with(begins), "{begins}: {reported:#?}\n{text}");
}

pub(crate) fn warnings(text: &str) -> Vec<String> {
    plan_with(text, &options()).1.iter().map(|one| format!("{} {}: {}", one.rule, one.path, one.message)).collect()
}

/// Returns a pod with one container. The given lines are added to the container and to the spec.
pub(crate) fn pod(container: &str, spec: &str) -> String {
    let indent =
        |text: &str, by: usize| text.lines().map(|line| format!("{}{line}\n", " ".repeat(by))).collect::<String>();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels: {{app: web}}\n  annotations: {{note: \"a\\nb\"}}\nspec:\n{}  containers:\n  - name: app\n    image: example.com/app:1\n{}",
        indent(spec, 2),
        indent(container, 4)
    )
}

pub(crate) const SECRET: &str =
    "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {key: aHVudGVyMg==}\nstringData: {word: canary}\n";
pub(crate) const MAP: &str =
    "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {A: one, b.c: two}\nbinaryData: {bin: /w==}\n";

pub(crate) fn member(plan: &Plan) -> Member {
    plan.pods[0].members.last().unwrap().clone()
}

pub(crate) fn request(plan: &Plan) -> RunRequest {
    RunRequest::clone(&member(plan).request)
}

pub(crate) fn run(plan: &Plan) -> RunAction {
    request(plan).action.unwrap().run.unwrap()
}

pub(crate) fn variables(list: &[EnvironmentVariable]) -> Vec<(String, String)> {
    list.iter().map(|one| (one.name.clone(), one.value.clone())).collect()
}

pub(crate) fn file<'a>(run: &'a RunAction, path: &str) -> &'a File {
    run.volume_mounted_files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("no {path}"))
}
