//! The document of `secrets --json`: the only document with values of secrets.

use executor_cli_kit::view::json::encoded;
use executor_client::v1;
use serde::Serialize;

/// The document of `secrets`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Secrets {
    environment: Vec<SecretVariable>,
    arguments: Vec<SecretArgument>,
    files: Vec<SecretContent>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SecretVariable {
    name: String,
    /// Encoding: `utf-8` or `base64`.
    encoding: &'static str,
    value: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SecretArgument {
    index: u32,
    value: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SecretContent {
    path: String,
    public: bool,
    /// Encoding: `utf-8` or `base64`.
    encoding: &'static str,
    content: String,
}

impl From<v1::GetSecretsResponse> for Secrets {
    fn from(response: v1::GetSecretsResponse) -> Self {
        let variable = |mut variable: v1::EnvironmentVariable| {
            let (encoding, value) = encoded(variable.take_content());
            SecretVariable { name: variable.name, encoding, value }
        };
        let argument = |v1::SecretArgument { index, value, .. }| SecretArgument { index, value };
        let file = |v1::File { path, content, public, .. }| {
            let (encoding, content) = encoded(content);
            SecretContent { path, public, encoding, content }
        };
        Self {
            environment: response.environment.into_iter().map(variable).collect(),
            arguments: response.arguments.into_iter().map(argument).collect(),
            files: response.files.into_iter().map(file).collect(),
        }
    }
}
