//! Messages whose secrets are wiped when they are dropped.

use std::fmt;

use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use zeroize::Zeroize as _;

use crate::v1::{
    EnvironmentVariable, ExecStart, File, GetSecretsResponse, ProviderToken, PullImageRequest, RegistryCredentials,
    RunAction, RunRequest, UpdateFilesRequest, ValidateRequest,
};

/// A message that can carry secrets.
pub trait Wipe {
    /// Overwrites the secrets in this message with zeros.
    fn wipe(&mut self);
}

impl Wipe for RegistryCredentials {
    fn wipe(&mut self) {
        self.password.zeroize();
        self.identity_token.zeroize();
        self.registry_token.zeroize();
    }
}

impl Wipe for File {
    fn wipe(&mut self) {
        crate::wipe(&mut self.content);
    }
}

impl Wipe for ProviderToken {
    fn wipe(&mut self) {
        self.token.zeroize();
    }
}

impl Wipe for RunRequest {
    fn wipe(&mut self) {
        self.provider_tokens.iter_mut().for_each(Wipe::wipe);
        self.registry_credentials.iter_mut().for_each(Wipe::wipe);
        self.volume_mounted_files.iter_mut().for_each(Wipe::wipe);
        self.environment.iter_mut().for_each(EnvironmentVariable::wipe);
        self.for_each_run(Wipe::wipe);
        // A monitor with secrets is rejected, but its secrets must be wiped, too.
        self.monitor.iter_mut().for_each(|monitor| monitor.for_each_run(Wipe::wipe));
        self.for_each_url(|url| url.zeroize());
    }
}

impl Wipe for RunAction {
    fn wipe(&mut self) {
        self.args.zeroize();
        self.env.iter_mut().chain(&mut self.secret_environment).for_each(EnvironmentVariable::wipe);
        self.secret_arguments.iter_mut().for_each(|argument| argument.value.zeroize());
        self.volume_mounted_files.iter_mut().for_each(Wipe::wipe);
    }
}

impl Wipe for ExecStart {
    fn wipe(&mut self) {
        self.args.zeroize();
        self.env.iter_mut().for_each(EnvironmentVariable::wipe);
    }
}

impl Wipe for ValidateRequest {
    fn wipe(&mut self) {
        self.run.iter_mut().for_each(Wipe::wipe);
    }
}

impl Wipe for UpdateFilesRequest {
    fn wipe(&mut self) {
        self.provider_tokens.iter_mut().for_each(Wipe::wipe);
        self.files.iter_mut().for_each(Wipe::wipe);
    }
}

impl Wipe for PullImageRequest {
    fn wipe(&mut self) {
        self.credentials.iter_mut().for_each(Wipe::wipe);
    }
}

impl Wipe for GetSecretsResponse {
    fn wipe(&mut self) {
        self.environment.iter_mut().for_each(EnvironmentVariable::wipe);
        self.arguments.iter_mut().for_each(|argument| argument.value.zeroize());
        self.files.iter_mut().for_each(Wipe::wipe);
    }
}

/// A message whose secrets are wiped when it is dropped. Encodes like the wrapped message.
#[derive(Clone, Default, PartialEq)]
pub struct Wiped<M: Wipe>(M);

impl<M: Wipe> Wiped<M> {
    /// Wraps a message.
    pub fn new(message: M) -> Self {
        Self(message)
    }
}

impl<M: Wipe> std::ops::Deref for Wiped<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.0
    }
}

impl<M: Wipe> std::ops::DerefMut for Wiped<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.0
    }
}

impl<M: Wipe> Drop for Wiped<M> {
    fn drop(&mut self) {
        self.0.wipe();
    }
}

impl<M: Wipe + fmt::Debug> fmt::Debug for Wiped<M> {
    /// Uses the message's own `Debug`, which prints names and sizes of secrets and no value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<M: Wipe + Message> Message for Wiped<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.0.encode_raw(buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.0.merge_field(tag, wire_type, buf, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.encoded_len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Action, SecretArgument};

    fn request() -> RunRequest {
        let variable =
            || EnvironmentVariable { name: "NAME".into(), value: "canary".into(), ..EnvironmentVariable::default() };
        let file = || File { path: "p".into(), content: b"canary".to_vec(), ..File::default() };
        let run = RunAction {
            args: vec!["canary".into()],
            env: vec![variable()],
            volume_mounted_files: vec![file()],
            secret_environment: vec![variable()],
            secret_arguments: vec![SecretArgument { index: 0, value: "canary".into(), ..SecretArgument::default() }],
            ..RunAction::default()
        };
        let credentials = RegistryCredentials {
            username: String::new(),
            password: "canary".into(),
            identity_token: "canary".into(),
            registry_token: "canary".into(),
        };
        let action = Action { run: Some(run), ..Action::default() };
        RunRequest {
            action: Some(action.clone()),
            monitor: Some(action),
            volume_mounted_files: vec![file()],
            registry_credentials: Some(credentials),
            provider_tokens: vec![ProviderToken { token: "canary".into(), ..ProviderToken::default() }],
            ..RunRequest::default()
        }
    }

    #[test]
    fn a_wiped_message_holds_no_secret() {
        let mut message = request();
        let has = |message: &RunRequest| message.encode_to_vec().windows(6).any(|window| window == b"canary");
        assert!(has(&message), "control failed");
        message.wipe();
        assert!(!has(&message), "{message:?}");
    }

    #[test]
    fn nothing_secret_is_printed() {
        let text = format!("{:?} {:?}", Wiped::new(request()), request());
        assert!(!text.contains("canary") && text.contains("[REDACTED]"), "{text}");
    }

    #[test]
    fn a_wiped_message_is_encoded_as_itself() {
        let (own, message) = (request().encode_to_vec(), Wiped::new(request()));
        assert_eq!(message.encode_to_vec(), own);
        assert_eq!(Wiped::<RunRequest>::decode(&*own).unwrap().0, message.0);
    }
}
