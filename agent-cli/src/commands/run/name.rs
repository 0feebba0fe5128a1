//! `--name`: creates a new container with an unused name. In contrast, `--id` repeats the same request.
//!
//! The request has a nonce, so executord itself rejects the name if another command uses it in the meantime.

use std::time::SystemTime;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::view::quantity;
use executor_client::Code;
use executor_client::v1::{Container, State};

use crate::view::human;

/// Ensures that no container has the name. With `replace`, removes an existing container, even if it is running.
///
/// # Errors
/// Returns an error if a container has the name, or if the existing container cannot be removed.
pub(super) async fn claim(session: &Session, name: &str, replace: bool) -> Result<(), Failure> {
    let doing = format!("run --name {name}");
    let earlier = match session.client.get(name).await.doing(&doing) {
        // The run itself reports a malformed name, together with all other errors of the request.
        Err(failure) if matches!(failure.code(), Some(Code::NotFound | Code::InvalidArgument)) => return Ok(()),
        found => found?,
    };
    if !replace {
        return Err(Failure::Usage(in_use(name, &earlier, SystemTime::now())));
    }
    match session.client.delete(name, true).await.doing(&format!("run --replace --name {name}")) {
        Err(failure) if failure.code() == Some(Code::NotFound) => Ok(()),
        deleted => deleted,
    }
}

fn in_use(name: &str, earlier: &Container, now: SystemTime) -> String {
    let state = match earlier.state() {
        State::Completed => {
            let ending = human::ending(earlier);
            let status = if ending.starts_with(|c: char| c.is_ascii_digit()) { "exit status " } else { "" };
            format!("completed {} ago with {status}{ending}", quantity::age(earlier.finished_at.as_ref(), now))
        }
        state => format!("is {}", human::state(state.into())),
    };
    let force = if earlier.state() == State::Completed { "" } else { "-f " };
    format!(
        "the container {name} exists and {state}; remove the container (`agent-cli rm {force}{name}`), or use --replace"
    )
}

#[cfg(test)]
mod tests {
    use executor_client::v1::{ExitStatus, Result as Ending, exit_status::Status};

    use super::*;

    #[test]
    fn earlier_container_is_described() {
        let exit = Some(ExitStatus { status: Some(Status::Code(3)) });
        let finished_at = Some(prost_types::Timestamp { seconds: 1_000, nanos: 0 });
        let result = Some(Ending { exit, ..Ending::default() });
        let completed = Container { state: State::Completed.into(), result, finished_at, ..Container::default() };
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000 + 7_200);
        let message = in_use("web", &completed, now);
        for words in ["completed 2h", "with exit status 3", "rm web"] {
            assert!(message.contains(words), "{words}: {message}");
        }
        let running = Container { state: State::Running.into(), ..Container::default() };
        let message = in_use("web", &running, now);
        assert!(message.contains("is running") && message.contains("rm -f web"), "{message}");
    }
}
