//! Ids of sandboxes and containers: 64 hexadecimal digits (rule C4).

/// Length of an id in bytes, before the hexadecimal encoding.
const BYTES: usize = 32;

/// Returns a new random id.
///
/// # Errors
/// Returns UNAVAILABLE if the kernel returns no random bytes.
pub(crate) fn new() -> Result<String, tonic::Status> {
    let mut bytes = [0; BYTES];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(hex::encode(bytes)),
        Err(error) => Err(tonic::Status::unavailable(format!("cannot read random bytes from the kernel: {error}"))),
    }
}
