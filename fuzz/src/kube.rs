//! Target: reads a file of Kubernetes objects and converts the objects to requests.
//!
//! Input format: the file. The target adds a Secret with a unique value and a ConfigMap, so that references to them can
//! be resolved.

use executor_kube::lower::lower;
use executor_kube::object;
use executor_kube::options::{HostVolume, Options};
use executor_kube::plan::Plan;
use executor_kube::report::Strictness;

/// A Secret `s` and a ConfigMap `c`.
const OBJECTS: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: canary-of-the-fuzzer-2f61}\n---\n\
                       apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: v}\n";
/// The value of the Secret.
const CANARY: &str = "canary-of-the-fuzzer-2f61";

/// Runs the target of this module.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let strict = evaluate(&text, Strictness::Strict);
    assert_eq!(strict, evaluate(&text, Strictness::Strict), "evaluating a text twice gives different plans");
    let lenient = evaluate(&text, Strictness::Ignore);
    // Input that strict mode accepts is also accepted in lenient mode.
    assert!(strict.is_err() || lenient.is_ok(), "{strict:?}");
}

/// Returns digests of the pods, or the violations.
fn evaluate(text: &str, strictness: Strictness) -> Result<Vec<String>, String> {
    let mut report = object::report(strictness);
    let objects = object::read([("a", text), ("b", OBJECTS)], &mut report);
    let volume = HostVolume { name: "data".into(), path: "/srv".into(), read_only: false };
    let options = Options { play: "p".into(), host_volumes: Some(vec![volume]), ..Options::default() };
    match lower(&objects, &options, report) {
        Ok((plan, warnings)) => {
            assert!(!warnings.iter().any(|one| one.to_string().contains(CANARY)) || text.contains(CANARY));
            keeps_rules(&plan, text.contains(CANARY));
            Ok(plan.pods.iter().map(|pod| pod.digest.clone()).collect())
        }
        Err(violations) => {
            assert!(!violations.to_string().contains(CANARY) || text.contains(CANARY), "a violation contains a secret");
            Err(violations.to_string())
        }
    }
}

fn keeps_rules(plan: &Plan, canary_is_public: bool) {
    let crons = plan.crons.iter().flat_map(|cron| &cron.pods);
    for pod in plan.pods.iter().chain(crons) {
        assert!(pod.id.len() <= 128 && pod.create.labels.values().all(|value| value.len() <= 256), "{}", pod.id);
        for member in &pod.members {
            let request = &*member.request;
            assert!(request.id.len() <= 128 && request.labels.len() <= 64, "{}", request.id);
            let Some(run) = request.action.as_ref().and_then(|action| action.run.as_ref()) else { continue };
            let public = run.args.iter().chain(run.env.iter().map(|variable| &variable.value)).chain([&run.path]);
            let mut public = public.chain(request.volumes.iter().map(|volume| &volume.sub_path));
            assert!(
                canary_is_public || !public.any(|text| text.contains(CANARY)),
                "a recorded field contains a secret"
            );
            assert!(canary_is_public || !format!("{:?}", request.checks).contains(CANARY));
            for file in &run.volume_mounted_files {
                assert!(file.path.starts_with('/') && !file.path.split('/').any(|part| part == ".."), "{}", file.path);
                assert!(file.mode.is_some_and(|mode| mode <= 0o777));
                let is_secret = file.content.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
                assert!(canary_is_public || !is_secret || !file.public, "a public file contains a secret");
            }
        }
    }
}
