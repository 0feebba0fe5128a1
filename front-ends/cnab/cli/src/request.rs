//! Builds the run request for the container of a lowered action.
//!
//! Secrets are in the request's secret fields, so that executord masks and wipes them. Logs are stored with the claims;
//! therefore secrets of at least 4 bytes are masked in the logs. If the host supports it, the run tool may change its
//! files and create files next to them (CNAB 103).

use std::collections::HashMap;
use std::time::Duration;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::limits::LimitArgs;
use executor_cli_kit::network::Chosen;
use executor_cli_kit::request::{Request, to_proto};
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_client::v1::{
    Action, EnvironmentVariable, File, MountKind, Outputs, PullPolicy, Redaction, RunAction, RunRequest, UserNamespace,
    WritableFiles,
};
use executor_cnab::docker::Docker;
use executor_cnab::invocation::Invocation;

/// The user's options for the container.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) user: Option<String>,
    pub(crate) network: Chosen,
    pub(crate) egress: bool,
    pub(crate) limits: LimitArgs,
    pub(crate) grace: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self { user: None, network: Chosen::None, egress: false, limits: LimitArgs::default(), grace: None }
    }
}

/// Reference and pull policy of a container's root file system.
#[derive(Debug)]
pub(crate) struct ImageSource {
    pub(crate) reference: String,
    pub(crate) policy: PullPolicy,
}

/// Returns true if the host can make the run tool's files writable, and prints a note if not. The specification permits
/// run tools to write to these files, but run tools rarely need this.
pub(crate) async fn files_can_be_written(session: &Session) -> Result<bool, Failure> {
    let info = session.client.info().await.doing("info")?;
    let can = info.secret_mount_kind() != MountKind::Ramfs;
    if !can {
        session
            .output
            .note("the run tool's credential and parameter files are read-only: the host's Linux is older than 6.4");
    }
    Ok(can)
}

/// Builds the run request for a container with this id and root file system.
pub(crate) fn build(
    id: &str,
    rootfs: &ImageSource,
    invocation: &Invocation,
    docker: Option<Docker>,
    options: &Options,
    writable: bool,
) -> Result<Request, Failure> {
    let variable = |name: &String, value: &str| EnvironmentVariable {
        name: name.clone(),
        value: value.to_owned(),
        ..EnvironmentVariable::default()
    };
    let file = |path: &String, content: &[u8], public| File {
        path: path.clone(),
        content: content.to_vec(),
        public,
        ..File::default()
    };
    let public = invocation.files.iter().map(|(path, content)| file(path, content, true));
    let secret = invocation.secret_files.iter().map(|(path, content)| file(path, content.bytes(), false));
    let run = RunAction {
        path: invocation.program.to_owned(),
        env: invocation.env.iter().map(|(name, value)| variable(name, value)).collect(),
        // Lowering has checked that the values are UTF-8.
        secret_environment: invocation
            .secret_env
            .iter()
            .map(|(name, value)| variable(name, value.text().unwrap_or_default()))
            .collect(),
        user: options.user.clone().unwrap_or_default(),
        log_source: "CNAB".into(),
        volume_mounted_files: public.chain(secret).collect(),
        ..RunAction::default()
    };
    // executord refuses writable files if there are no files.
    let writable = writable && !run.volume_mounted_files.is_empty();
    let outputs: Vec<String> = invocation.outputs.keys().cloned().collect();
    let mut request = RunRequest {
        id: id.to_owned(),
        action: Some(Action { run: Some(run), ..Action::default() }),
        rootfs: rootfs.reference.clone(),
        pull_policy: rootfs.policy.into(),
        limits: Some(options.limits.limits()),
        labels: labels(&invocation.env),
        grace_period: options.grace.map(to_proto).transpose()?,
        egress: options.egress,
        outputs: (!outputs.is_empty()).then_some(Outputs { files: outputs, ..Outputs::default() }),
        redaction: Redaction::All.into(),
        writable_files: writable.then(WritableFiles::default),
        ..RunRequest::default()
    };
    if let Some(docker) = docker {
        request.docker_socket = true;
        request.user_namespace = UserNamespace::Host.into();
        request.privileged = docker.privileged;
    }
    options.network.apply(&mut request);
    Ok(Request::from_request(request))
}

/// Returns the labels with which users can find a container.
fn labels(env: &std::collections::BTreeMap<String, String>) -> HashMap<String, String> {
    let pairs = [("io.cnab.installation", "CNAB_INSTALLATION_NAME"), ("io.cnab.action", "CNAB_ACTION")];
    let labels = pairs.into_iter().filter_map(|(label, name)| Some((label.to_owned(), env.get(name)?.clone())));
    labels.filter(|(_, value)| value.len() <= 256).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operation;

    /// executord refuses writable files if there are no files.
    #[test]
    fn operation_without_files_omits_writable_files() {
        for (files, writable) in
            [(r#","files":{}"#, false), (r#","files":null"#, false), ("", false), (r#","files":{"/a":"b"}"#, true)]
        {
            let text = format!(r#"{{"image":{{"image":"a"}},"environment":{{"X":"y"}}{files}}}"#);
            let invocation = Operation::read(&mut text.as_bytes()).unwrap().invocation();
            let rootfs = ImageSource { reference: "docker://a".into(), policy: PullPolicy::IfMissing };
            let request = build("a", &rootfs, &invocation, None, &Options::default(), true).unwrap();
            assert_eq!(request.run().message().writable_files.is_some(), writable, "{files}");
        }
    }
}
