//! Target: decodes and validates a request from the network, and plans its container.
//!
//! Besides the rules for every plan, no output may depend on a secret: if every secret of the request is replaced with
//! another secret of the same length, the result, messages and debug output must be identical.

use executor_core::validate::Policy;
use executor_proto::v1::{File, RunAction, RunRequest};
use executord::run::plan::plan_request;
use prost::Message;

use crate::rules;

/// Decodes and validates a request. The first byte of the input selects the operator's policy, the rest is the message.
pub fn run(data: &[u8]) {
    let Some((choice, message)) = data.split_first() else { return };
    let Ok(mut request) = RunRequest::decode(message) else { return };
    let policy = policy(*choice);
    let outcome = plan_request(&request, &policy);
    let printed = format!("{request:?}");
    if let Ok(plan) = &outcome {
        rules::plan(plan, &policy);
        rules::check_round_trip(plan, &policy);
    }
    replace(&mut request);
    assert_eq!(plan_request(&request, &policy), outcome, "a message depends on a secret");
    assert_eq!(format!("{request:?}"), printed, "a secret is printed");
    let again = RunRequest::decode(&*request.encode_to_vec()).expect("an encoded request is decoded");
    assert_eq!(again, request);
}

/// Returns a policy that an operator could set.
fn policy(choice: u8) -> Policy {
    let bit = |number: u8| choice & (1 << number) != 0;
    Policy {
        allow_host_rootfs: !bit(0),
        allow_host_network: bit(1),
        rootfs_dirs: if bit(2) { vec!["/srv/images".into()] } else { Vec::new() },
        files_bytes_max: if bit(3) { 64 } else { 1 << 20 },
        outputs_bytes_max: if bit(5) { 64 } else { 64 << 20 },
        files_root: if bit(4) { "/".into() } else { "/etc/cf-service-bindings".into() },
        ..Policy::default()
    }
}

/// Replaces every secret with another secret of the same length. NULs are kept, because an error may report their
/// presence.
fn replace(request: &mut RunRequest) {
    let text = |secret: &mut String| *secret = secret.bytes().map(|byte| if byte == 0 { '\0' } else { 'x' }).collect();
    let content = |file: &mut File| file.content.fill(b'x');
    request.volume_mounted_files.iter_mut().for_each(content);
    if let Some(run) = request.action.as_mut().and_then(|action| action.run.as_mut()) {
        let RunAction { args, env, volume_mounted_files, secret_environment, secret_arguments, .. } = run;
        args.iter_mut().for_each(text);
        env.iter_mut().chain(secret_environment).for_each(|variable| text(&mut variable.value));
        secret_arguments.iter_mut().for_each(|argument| text(&mut argument.value));
        volume_mounted_files.iter_mut().for_each(content);
    }
}
