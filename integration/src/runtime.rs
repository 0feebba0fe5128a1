//! Calls GetSecrets, the only call of the runtime socket, as a container does.

use std::path::{Path, PathBuf};

use executor_proto::v1::{GetSecretsRequest, GetSecretsResponse};
use tonic::{Code, Request};

use crate::api::Api;
use crate::daemon::Daemon;

/// Path of the runtime token that [`token`] reads.
pub const TOKEN: &str = "/etc/executor-test/token";

/// Returns the host path of the runtime socket that containers with a token see.
pub fn socket(daemon: &Daemon) -> PathBuf {
    daemon.setup().run_dir().join("runtime/runtime.sock")
}

/// Reads the token of a running container, as root of the host.
pub fn token(init: i32) -> String {
    std::fs::read_to_string(format!("/proc/{init}/root{TOKEN}")).expect("a token")
}

/// Calls GetSecrets on a new connection.
///
/// # Errors
/// Returns the code and message of the daemon's status if the call fails.
pub fn get_secrets(socket: &Path, authorization: Option<&str>, id: &str) -> Result<GetSecretsResponse, (Code, String)> {
    let api = Api::connect(socket).expect("the socket is served");
    let mut request = Request::new(GetSecretsRequest { id: id.into() });
    if let Some(authorization) = authorization {
        request.metadata_mut().insert("authorization", authorization.parse().expect("visible characters"));
    }
    let answer = api.block_on(api.rpc().get_secrets(request));
    answer.map(tonic::Response::into_inner).map_err(|status| (status.code(), status.message().to_owned()))
}

/// Calls GetSecrets with a token.
///
/// # Errors
/// Returns the daemon's status if the call fails.
pub fn with_token(socket: &Path, token: &str) -> Result<GetSecretsResponse, (Code, String)> {
    get_secrets(socket, Some(&format!("Bearer {token}")), "")
}

/// Returns every value of a response, as `NAME=VALUE`, `[INDEX]=VALUE` or `PATH=CONTENT`.
pub fn values(answer: &GetSecretsResponse) -> Vec<String> {
    let environment = answer.environment.iter().map(|variable| format!("{}={}", variable.name, variable.value));
    let arguments = answer.arguments.iter().map(|argument| format!("[{}]={}", argument.index, argument.value));
    let files = answer.files.iter();
    let files = files.map(|file| format!("{}={}", file.path, String::from_utf8_lossy(&file.content)));
    environment.chain(arguments).chain(files).collect()
}
