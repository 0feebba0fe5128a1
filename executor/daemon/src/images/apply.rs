//! Completes a request with the defaults of its image.

use std::collections::BTreeSet;

use executor_core::image::{Command, ImageDefaults};
use executor_core::plan::PlannedImage;
use executor_core::validate::ViolationReason;
use executor_images::Resolved;
use executor_proto::v1::{EnvironmentVariable, RunAction, RunRequest, SecretArgument};

use crate::api_error::ApiError;

/// Fills in the fields that the request does not set. Arguments are moved, never copied.
///
/// # Errors
/// Returns an error if neither the request nor the image names a program.
pub(crate) fn apply(request: &mut RunRequest, resolved: &Resolved) -> Result<PlannedImage, ApiError> {
    fill(request, &resolved.defaults)?;
    let record = &resolved.record;
    Ok(PlannedImage {
        reference: request.rootfs.clone(),
        digest: record.digest.to_string(),
        layers: record.layers.iter().map(|layer| layer.diff_id.to_string()).collect(),
        volumes: resolved.defaults.volumes.iter().map(Into::into).collect(),
        labels: resolved.defaults.labels.clone(),
    })
}

fn fill(request: &mut RunRequest, defaults: &ImageDefaults) -> Result<(), ApiError> {
    if request.stop_signal == 0 {
        request.stop_signal = defaults.stop_signal.map_or(0, i32::unsigned_abs);
    }
    if request.single_run().is_none() {
        request.for_each_run(|run| fill_process_defaults(run, defaults));
        return Ok(());
    }
    let Some(run) = request.action.as_mut().and_then(|action| action.run.as_mut()) else { return Ok(()) };
    let secret: BTreeSet<u32> = run.secret_arguments.iter().map(|argument| argument.index).collect();
    let is_secret = |at: usize| u32::try_from(at).is_ok_and(|at| secret.contains(&at));
    let (path, args) = (std::mem::take(&mut run.path), std::mem::take(&mut run.args));
    let Command { path, args, shift } = defaults.command(path, args, is_secret).map_err(|none| {
        ApiError::invalid_field("action.run.path", ViolationReason::Required.because(none.to_string()))
    })?;
    (run.path, run.args) = (path, args);
    for argument in &mut run.secret_arguments {
        argument.index = u32::try_from(i64::from(argument.index) + shift).unwrap_or(u32::MAX);
    }
    if !run.secret_arguments.is_empty() {
        // Empty image arguments become empty secrets, to distinguish them from placeholders.
        let own = usize::try_from(shift).unwrap_or(0);
        let empty = run.args.iter().take(own).enumerate().filter(|(_, arg)| arg.is_empty());
        let empty =
            empty.map(|(at, _)| SecretArgument { index: at as u32, value: String::new(), ..SecretArgument::default() });
        run.secret_arguments.extend(empty.collect::<Vec<_>>());
    }
    fill_process_defaults(run, defaults);
    Ok(())
}

/// Fills in the environment, the directory and the user of a process. Does not fill in a program: only a single run
/// action can use the image's program.
fn fill_process_defaults(run: &mut RunAction, defaults: &ImageDefaults) {
    let used: BTreeSet<&str> = run.env.iter().chain(&run.secret_environment).map(|one| &*one.name).collect();
    let under = defaults.env_under(|name| used.contains(name));
    let mut env: Vec<EnvironmentVariable> = under
        .map(|(name, value)| EnvironmentVariable {
            name: name.clone(),
            value: value.clone(),
            ..EnvironmentVariable::default()
        })
        .collect();
    env.append(&mut run.env);
    run.env = env;
    for (field, default) in [(&mut run.dir, &defaults.working_dir), (&mut run.user, &defaults.user)] {
        if field.is_empty() {
            field.clone_from(default);
        }
    }
}

#[cfg(test)]
mod tests {
    use executor_proto::v1::Action;

    use super::*;

    fn filled(run: RunAction, defaults: &ImageDefaults) -> RunRequest {
        let action = Some(Action { run: Some(run), ..Default::default() });
        let mut request = RunRequest { action, ..Default::default() };
        fill(&mut request, defaults).unwrap();
        request
    }

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    fn defaults() -> ImageDefaults {
        ImageDefaults {
            entrypoint: strings(&["/entry", "", "-x"]),
            cmd: strings(&["c"]),
            env: vec![("PATH".into(), "/bin".into()), ("A".into(), "image".into()), ("S".into(), "image".into())],
            working_dir: "/srv".into(),
            user: "www".into(),
            stop_signal: Some(3),
            ..ImageDefaults::default()
        }
    }

    #[test]
    fn request_overrides_image_defaults() {
        let variable = |name: &str| EnvironmentVariable {
            name: name.into(),
            value: "request".into(),
            ..EnvironmentVariable::default()
        };
        let run = RunAction {
            args: strings(&["a", ""]),
            env: vec![variable("A"), variable("B")],
            secret_environment: vec![variable("S")],
            secret_arguments: vec![SecretArgument { index: 1, value: "pw".into(), ..SecretArgument::default() }],
            user: "0".into(),
            ..Default::default()
        };
        let request = filled(run, &defaults());
        assert_eq!(request.stop_signal, 3);
        let run = request.action.unwrap().run.unwrap();
        assert_eq!((&*run.path, &*run.dir, &*run.user), ("/entry", "/srv", "0"));
        assert_eq!(run.args, strings(&["", "-x", "a", ""]));
        let secret: Vec<_> = run.secret_arguments.iter().map(|one| (one.index, &*one.value)).collect();
        assert_eq!(secret, [(3, "pw"), (0, "")]);
        let env: Vec<_> = run.env.iter().map(|one| format!("{}={}", one.name, one.value)).collect();
        assert_eq!(env, ["PATH=/bin", "A=request", "B=request"]);
    }

    #[test]
    fn image_or_request_alone_selects_program() {
        let run = filled(RunAction::default(), &defaults()).action.unwrap().run.unwrap();
        assert_eq!((&*run.path, run.args), ("/entry", strings(&["", "-x", "c"])));
        let own = RunAction { path: "/own".into(), dir: "/".into(), ..Default::default() };
        let run = filled(own, &defaults()).action.unwrap().run.unwrap();
        assert_eq!((&*run.path, &*run.dir, run.args.len()), ("/own", "/", 0));
        let mut nothing = RunRequest {
            action: Some(Action { run: Some(RunAction::default()), ..Default::default() }),
            ..Default::default()
        };
        let problem = fill(&mut nothing, &ImageDefaults::default()).unwrap_err();
        assert_eq!(problem.violations[0].field, "action.run.path");
    }
}
