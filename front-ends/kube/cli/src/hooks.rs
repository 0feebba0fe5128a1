//! Runs the hooks after the start and before the stop of a container (rules P31 and P32 of
//! `docs/guides/kube-rules.md`). The hooks' output is discarded, because it may contain secrets.

use std::time::Duration;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::status::ErrorContext as _;
use executor_client::v1::{ExecStart, exit_status};
use executor_client::{Client, Executed};
use executor_kube::plan::Hook;

/// Runs a hook. Returns the reason if the hook failed.
pub(crate) async fn run(client: &Client, id: &str, hook: &Hook) -> Result<Option<String>, Failure> {
    let command = match hook {
        Hook::Sleep(time) => {
            tokio::time::sleep(*time).await;
            return Ok(None);
        }
        Hook::Exec(command) => command,
    };
    let Some((path, args)) = command.split_first() else { return Ok(None) };
    let start = ExecStart {
        id: id.to_owned(),
        path: path.clone(),
        args: args.to_vec(),
        container_environment: true,
        // As in Kubernetes, a hook may start a daemon.
        leave_processes: true,
        ..ExecStart::default()
    };
    let doing = format!("execute the hook of {id}");
    let mut process = client.exec(start).await.doing(&doing)?;
    loop {
        match process.next().await.doing(&doing)? {
            Executed::Exit(exit) => {
                return Ok(match exit.status {
                    Some(exit_status::Status::Code(0)) => None,
                    Some(exit_status::Status::Code(code)) => Some(format!("the hook exited with {code}")),
                    Some(exit_status::Status::Signal(signal)) => {
                        Some(format!("the hook was killed by signal {signal}"))
                    }
                    None => Some("the hook's exit status is unknown".into()),
                });
            }
            Executed::Failed(failure) => return Ok(Some(failure.message)),
            _ => {}
        }
    }
}

/// Runs a hook with a timeout. If the timeout expires, the hook is killed and reported as failed.
pub(crate) async fn run_within(client: &Client, id: &str, hook: &Hook, time: Duration) -> Option<String> {
    match tokio::time::timeout(time, run(client, id, hook)).await {
        Ok(Ok(failed)) => failed,
        Ok(Err(failure)) => Some(failure.describe()),
        Err(_) => Some(format!("the hook took longer than {} s", time.as_secs())),
    }
}
