//! Target: messages, plans, payloads and records between the executor's processes.
//!
//! The launcher's messages are the critical ones: the launcher is privileged, and a compromised daemon can send it any
//! bytes. The first byte selects the type of the remaining bytes.

use std::fmt::Debug;

use executor_core::disclosure::Manifest;
use executor_core::payload::{self, ProcessPayload};
use executor_core::plan::Plan;
use executor_core::protocol::{
    LauncherReply, LauncherRequest, PACKET_MAX, Reason, Refused, ShimReport, ShimRequest, state_number, state_of,
};
use executor_core::record::{ContainerRecord, ExitRecord};
use executor_core::token;
use executor_core::update::FileUpdate;
use executor_core::validate::{Policy, recheck};
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rules;

/// Runs the target of this module.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 11 {
        0 => message::<LauncherRequest>(bytes),
        1 => message::<LauncherReply>(bytes),
        2 => message::<ShimRequest>(bytes),
        3 => message::<ShimReport>(bytes),
        4 => strings(bytes),
        5 => forged(bytes),
        6 => drop(record::<ContainerRecord>(bytes)),
        7 => drop(record::<ExitRecord>(bytes)),
        8 => drop(record::<FileUpdate>(bytes)),
        9 => token(bytes),
        _ => drop(record::<Manifest>(bytes)),
    }
    let number = u32::from(*choice);
    assert!(state_of(number).is_none_or(|state| state_number(state) == number));
}

/// Checks that a message is unchanged after encoding and decoding.
fn message<M: Message + Default + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(message) = M::decode(bytes) else { return };
    let again = M::decode(&*message.encode_to_vec()).expect("an encoded message is decoded");
    assert!(again == message, "{message:?}");
}

/// Checks that a payload is either rejected, or unchanged after it is decoded and encoded again.
fn strings(bytes: &[u8]) {
    let Ok(strings) = payload::decode(bytes) else {
        return assert!(ProcessPayload::decode(bytes).is_err());
    };
    let mut again = vec![0; payload::encoded_len(strings.iter().copied())];
    payload::encode(strings.iter().copied(), &mut again);
    assert_eq!(again, bytes);
    let Ok(process) = ProcessPayload::decode(bytes) else { return };
    let head = strings.iter().take(3).chain(&process.args).chain(&process.env);
    assert!(head.eq(&strings), "the decoded strings differ from the payload");
    assert!(strings.iter().all(|string| !string.contains(&0)), "a string for execve contains a NUL");
}

/// Checks a plan that a daemon forged: it is either rejected with a reason that fits into a packet, or obeys the rules
/// for every plan.
fn forged(bytes: &[u8]) {
    let Some(plan) = record::<Plan>(bytes) else { return };
    let policy = Policy { rootfs_dirs: vec!["/srv/images".into()], ..Policy::default() };
    match recheck(&plan, &policy) {
        Ok(()) => rules::plan(&plan, &policy),
        Err(violations) => {
            let refused = Refused::from_fields(Reason::Invalid, &violations);
            assert!(!violations.is_empty() && refused.encoded_len() < PACKET_MAX);
        }
    }
}

/// Checks that a token names at most one container.
fn token(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(id) = token::parse_container_id(&text) {
        assert!(text.starts_with(&format!("{id}.")) && text.len() == token::length(&id));
    }
}

/// Checks that a record is unchanged after encoding and decoding. Returns `None` if the bytes are not a record.
fn record<R: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<R> {
    let record: R = serde_json::from_slice(bytes).ok()?;
    let json = serde_json::to_vec(&record).expect("a record is JSON");
    let again: R = serde_json::from_slice(&json).expect("a serialized record is parsed");
    assert_eq!(again, record);
    Some(record)
}
