//! Run requests that are overwritten when they are dropped.

use executor_proto::v1;
use zeroize::Zeroize as _;

/// A request that is overwritten on drop, e.g. if its client disconnects during an image pull.
pub(super) struct WipedRequest(pub(super) v1::RunRequest);

impl Drop for WipedRequest {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Overwrites the secrets in a request.
fn wipe(request: &mut v1::RunRequest) {
    request.for_each_run(wipe_run);
    // A monitor with secrets is rejected, but its secrets must be wiped, too.
    request.monitor.iter_mut().for_each(|monitor| monitor.for_each_run(wipe_run));
    request.for_each_url(|url| url.zeroize());
    request.environment.iter_mut().for_each(v1::EnvironmentVariable::wipe);
    request.volume_mounted_files.iter_mut().for_each(|file| executor_proto::wipe(&mut file.content));
    if let Some(credentials) = request.registry_credentials.as_mut() {
        credentials.password.zeroize();
        credentials.identity_token.zeroize();
        credentials.registry_token.zeroize();
    }
    request.provider_tokens.iter_mut().for_each(|one| one.token.zeroize());
}

fn wipe_run(run: &mut v1::RunAction) {
    run.args.zeroize();
    let v1::RunAction { env, secret_environment, secret_arguments, .. } = run;
    env.iter_mut().chain(secret_environment).for_each(v1::EnvironmentVariable::wipe);
    secret_arguments.iter_mut().for_each(|argument| argument.value.zeroize());
    run.volume_mounted_files.iter_mut().for_each(|file| executor_proto::wipe(&mut file.content));
}
