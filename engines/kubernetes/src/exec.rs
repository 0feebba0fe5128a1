//! ExecSync: executes a command in a container, and returns its output and exit code (rule C36).

use executor_client::v1::exit_status::Status as Exit;
use executor_client::v1::{ExecStart, ExitStatus};
use executor_client::{Client, Executed};
use executor_core::limits::GRACE_MAX;
use executor_cri_api::v1::{ExecSyncRequest, ExecSyncResponse};
use prost_types::Duration;
use tonic::Status;

use crate::failure;
use crate::node::Node;

/// Maximum output of each stream, in bytes. Further output is discarded.
const OUTPUT_MAX: usize = 16 << 20;

/// Executes a command and returns its output and exit code.
///
/// # Errors
/// Returns NOT_FOUND if the container does not exist, INVALID_ARGUMENT if the command is empty or the time limit is too
/// long, DEADLINE_EXCEEDED if the command runs longer than `timeout` (the process and its descendants are then killed),
/// UNKNOWN if the program cannot be executed, or an error if a call to executord fails.
pub(crate) async fn sync(node: &Node, request: ExecSyncRequest) -> Result<ExecSyncResponse, Status> {
    let container = node.container(&request.container_id)?;
    let mut start = start(container.record.id.clone(), request.cmd)?;
    start.timeout = timeout(request.timeout)?;
    // The buffers of this connection hold arguments and output, so the connection ends with the call.
    let client = node.own_client().await?;
    execute(&client, start).await
}

/// Returns the request for a command in a container, with the container's environment. Processes that outlive the
/// command keep running, such as a daemon that a hook starts.
///
/// # Errors
/// Returns INVALID_ARGUMENT if the command is empty.
pub(crate) fn start(id: String, cmd: Vec<String>) -> Result<ExecStart, Status> {
    let mut words = cmd.into_iter();
    let path = words.next().filter(|path| !path.is_empty()).ok_or_else(|| Status::invalid_argument("cmd: required"))?;
    Ok(ExecStart {
        id,
        path,
        args: words.collect(),
        container_environment: true,
        leave_processes: true,
        ..ExecStart::default()
    })
}

/// Converts a time limit in seconds; 0 means no limit.
fn timeout(seconds: i64) -> Result<Option<Duration>, Status> {
    let longest = i64::try_from(GRACE_MAX.as_secs()).unwrap_or(i64::MAX);
    if seconds > longest {
        return Err(Status::invalid_argument(format!("timeout: is {seconds} s; the maximum is {longest} s")));
    }
    Ok((seconds > 0).then_some(Duration { seconds, nanos: 0 }))
}

async fn execute(client: &Client, start: ExecStart) -> Result<ExecSyncResponse, Status> {
    let mut exec = client.exec(start).await.map_err(failure::status)?;
    let mut response = ExecSyncResponse::default();
    loop {
        match exec.next().await.map_err(failure::status)? {
            Executed::Started { .. } => {}
            Executed::Stdout(bytes) => append(&mut response.stdout, &bytes),
            Executed::Stderr(bytes) => append(&mut response.stderr, &bytes),
            Executed::Exit(exit) => {
                response.exit_code = exit_code(exit);
                return Ok(response);
            }
            Executed::Failed(failed) => {
                return Err(Status::unknown(format!("cannot execute the command: {}", failed.message)));
            }
        }
    }
}

fn append(output: &mut Vec<u8>, bytes: &[u8]) {
    let room = OUTPUT_MAX - output.len().min(OUTPUT_MAX);
    output.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// Returns the exit code of a process; 128 plus the number of the signal if a signal killed the process.
pub(crate) fn exit_code(exit: ExitStatus) -> i32 {
    match exit.status {
        Some(Exit::Code(code)) => code,
        Some(Exit::Signal(signal)) => 128 + signal,
        None => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule C36: the rest of the output is discarded.
    #[test]
    fn output_is_limited() {
        let mut output = vec![0; OUTPUT_MAX - 1];
        append(&mut output, b"abc");
        append(&mut output, b"d");
        assert_eq!((output.len(), output.last()), (OUTPUT_MAX, Some(&b'a')));
    }

    #[test]
    fn long_time_limits_are_refused() {
        let seconds = |timeout: Option<Duration>| timeout.map(|timeout| timeout.seconds);
        assert_eq!(
            [0, 1, 7200, 604_800].map(|given| seconds(timeout(given).unwrap())),
            [None, Some(1), Some(7200), Some(604_800)]
        );
        assert!(timeout(604_801).unwrap_err().message().contains("the maximum is 604800 s"));
    }

    #[test]
    fn commands_are_required() {
        assert!(start("c".into(), vec![]).is_err());
        assert_eq!(start("c".into(), vec!["ls".into(), "-l".into()]).unwrap().args, ["-l"]);
    }
}
