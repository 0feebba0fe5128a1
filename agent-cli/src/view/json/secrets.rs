//! What `secrets --json` prints: the one place where values are shown.

use executor_proto::v1;
use serde::Serialize;

use super::encoded;

/// Of `secrets --json`.
#[derive(Serialize)]
pub(crate) struct Secrets {
    environment: Vec<SecretVariable>,
    arguments: Vec<SecretArgument>,
    files: Vec<SecretContent>,
}

#[derive(Serialize)]
struct SecretVariable {
    name: String,
    value: String,
}

#[derive(Serialize)]
struct SecretArgument {
    index: u32,
    value: String,
}

#[derive(Serialize)]
struct SecretContent {
    path: String,
    public: bool,
    /// `utf-8` or `base64`.
    encoding: &'static str,
    data: String,
}

impl From<v1::GetSecretsResponse> for Secrets {
    fn from(response: v1::GetSecretsResponse) -> Self {
        let variable = |v1::EnvironmentVariable { name, value }| SecretVariable { name, value };
        let argument = |v1::SecretArgument { index, value }| SecretArgument { index, value };
        let file = |v1::File { path, content, public }| {
            let (encoding, data) = encoded(content);
            SecretContent { path, public, encoding, data }
        };
        Self {
            environment: response.environment.into_iter().map(variable).collect(),
            arguments: response.arguments.into_iter().map(argument).collect(),
            files: response.files.into_iter().map(file).collect(),
        }
    }
}
