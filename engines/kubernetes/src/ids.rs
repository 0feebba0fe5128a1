//! Ids of sandboxes and containers: 64 hexadecimal digits (rule C4).

/// Bytes of an id.
const BYTES: usize = 32;

/// Returns a new random id.
///
/// # Errors
/// Returns an error if the kernel gives no random bytes.
pub(crate) fn new() -> Result<String, tonic::Status> {
    let mut bytes = [0; BYTES];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(hex::encode(bytes)),
        Err(error) => Err(tonic::Status::unavailable(format!("the kernel gives no random bytes: {error}"))),
    }
}
