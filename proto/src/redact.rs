//! `Debug` for the messages that can carry a secret: names and sizes, never a value.

mod streams;

use std::fmt;

use crate::v1::{
    DownloadAction, EnvironmentVariable, File, ProviderToken, RegistryCredentials, RunAction, SecretArgument,
    StreamLogsResponse, UploadAction,
};

impl fmt::Debug for EnvironmentVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvironmentVariable")
            .field("name", &self.name)
            .field("value", &"[REDACTED]")
            .field("from", &self.from)
            .finish()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("content", &format_args!("[REDACTED] ({} bytes)", self.content.len()))
            .field("public", &self.public)
            .field("mode", &self.mode)
            .field("group", &self.group)
            .field("from", &self.from)
            .finish()
    }
}

impl fmt::Debug for SecretArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretArgument")
            .field("index", &self.index)
            .field("value", &"[REDACTED]")
            .field("from", &self.from)
            .finish()
    }
}

impl fmt::Debug for ProviderToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderToken")
            .field("provider", &self.provider)
            .field("token", &"[REDACTED]")
            .field("role", &self.role)
            .finish()
    }
}

impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryCredentials")
            .field("username", &self.username)
            .field("password", &"[REDACTED]")
            .finish()
    }
}

impl fmt::Debug for RunAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunAction")
            .field("path", &self.path)
            .field("args", &format_args!("[REDACTED] ({} arguments)", self.args.len()))
            .field("dir", &self.dir)
            .field("env", &self.env)
            .field("resource_limits", &self.resource_limits)
            .field("user", &self.user)
            .field("log_source", &self.log_source)
            .field("suppress_log_output", &self.suppress_log_output)
            .field("volume_mounted_files", &self.volume_mounted_files)
            .field("secret_environment", &self.secret_environment)
            .field("secret_arguments", &self.secret_arguments)
            .finish()
    }
}

impl fmt::Debug for DownloadAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DownloadAction")
            .field("artifact", &self.artifact)
            .field("from", &"[REDACTED]")
            .field("to", &self.to)
            .field("cache_key", &self.cache_key)
            .field("log_source", &self.log_source)
            .field("user", &self.user)
            .field("checksum_algorithm", &self.checksum_algorithm)
            .field("checksum_value", &self.checksum_value)
            .finish()
    }
}

impl fmt::Debug for UploadAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadAction")
            .field("artifact", &self.artifact)
            .field("from", &self.from)
            .field("to", &"[REDACTED]")
            .field("log_source", &self.log_source)
            .field("user", &self.user)
            .finish()
    }
}

impl fmt::Debug for StreamLogsResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLogsResponse")
            .field("time", &self.time)
            .field("stream", &self.stream)
            .field("data", &format_args!("{} bytes", self.data.len()))
            .field("log_source", &self.log_source)
            .field("gap", &self.gap)
            .field("offset", &self.offset)
            .field("sequence", &self.sequence)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Action, GetSecretsResponse, RunRequest};

    /// The output contains no value, at any depth of the printed message.
    #[test]
    fn debug_of_a_request_names_no_value() {
        const CANARY: &str = "canary-5f1d";
        let file = File { path: "a/b".into(), content: CANARY.into(), ..File::default() };
        let run = RunAction {
            path: "/bin/true".into(),
            args: vec![CANARY.into()],
            env: vec![EnvironmentVariable { name: "K".into(), value: CANARY.into(), ..EnvironmentVariable::default() }],
            secret_environment: vec![EnvironmentVariable {
                name: "S".into(),
                value: CANARY.into(),
                ..EnvironmentVariable::default()
            }],
            secret_arguments: vec![SecretArgument { index: 0, value: CANARY.into(), ..SecretArgument::default() }],
            volume_mounted_files: vec![file.clone()],
            ..Default::default()
        };
        let request = RunRequest {
            id: "x".into(),
            action: Some(Action { run: Some(run), ..Default::default() }),
            setup: Some(Action {
                download: Some(DownloadAction { from: CANARY.into(), ..Default::default() }),
                upload: Some(UploadAction { to: CANARY.into(), ..Default::default() }),
                ..Default::default()
            }),
            volume_mounted_files: vec![file],
            registry_credentials: Some(RegistryCredentials {
                username: "user".into(),
                password: CANARY.into(),
                identity_token: CANARY.into(),
                registry_token: CANARY.into(),
            }),
            provider_tokens: vec![ProviderToken { token: CANARY.into(), ..ProviderToken::default() }],
            ..Default::default()
        };
        let secrets = GetSecretsResponse { files: request.volume_mounted_files.clone(), ..Default::default() };
        let printed = format!("{request:?} {request:#?} {secrets:?}");
        assert!(printed.contains("a/b") && printed.contains("[REDACTED]"), "{printed}");
        assert!(!printed.contains(CANARY), "{printed}");
    }
}
