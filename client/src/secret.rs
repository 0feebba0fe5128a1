//! Secret values, which print nothing and are wiped on drop, and messages that carry them.

use std::fmt;

use executor_proto::v1::{
    EnvironmentVariable, File, GetSecretsResponse, ProviderToken, PullImageRequest, RegistryCredentials, RunRequest,
    UpdateFilesRequest, ValidateRequest,
};
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use zeroize::Zeroize as _;

/// A secret value. A secret prints as `[REDACTED]`, and its memory is overwritten when it is dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Drop for Secret {
    fn drop(&mut self) {
        executor_proto::wipe(&mut self.0);
    }
}

impl Secret {
    /// Returns the bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes as text; `None` if they are not UTF-8.
    pub fn expose_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Moves the bytes out; the caller must wipe them.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        text.as_bytes().to_vec().into()
    }
}

impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

/// A message that can carry secrets.
pub trait Wipe {
    /// Overwrites the secrets with zeros.
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
        executor_proto::wipe(&mut self.content);
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
        self.for_each_run(|run| {
            run.volume_mounted_files.iter_mut().for_each(Wipe::wipe);
            run.env.iter_mut().chain(&mut run.secret_environment).for_each(EnvironmentVariable::wipe);
            run.secret_arguments.iter_mut().for_each(|argument| argument.value.zeroize());
            run.args.zeroize();
        });
        self.for_each_url(|url| url.zeroize());
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
pub struct Wiped<M: Wipe>(pub(crate) M);

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
    use executor_proto::v1::{Action, RunAction, SecretArgument};

    use super::*;

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
        RunRequest {
            action: Some(Action { run: Some(run), ..Action::default() }),
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
        assert!(has(&message), "the control");
        message.wipe();
        assert!(!has(&message), "{message:?}");
    }

    #[test]
    fn nothing_secret_is_printed() {
        let text = format!("{:?} {:?} {:?}", Wiped::new(request()), Secret::from("canary"), request());
        assert!(!text.contains("canary") && text.contains("[REDACTED]"), "{text}");
    }

    #[test]
    fn a_wiped_message_is_encoded_as_itself() {
        let (own, message) = (request().encode_to_vec(), Wiped::new(request()));
        assert_eq!(message.encode_to_vec(), own);
        assert_eq!(Wiped::<RunRequest>::decode(&*own).unwrap().0, message.0);
    }
}
