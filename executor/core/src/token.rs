//! Defines the format of a container's runtime token, the only credential for GetSecrets.
//!
//! The format is `ID.HEX`: the container's id and 32 random bytes. The shim generates the token, writes it into the
//! container's secret file system and keeps the token's digest. The daemon forwards a call with a token to the
//! container's shim, with the token's digest. Unlike a password, 32 random bytes cannot be guessed from their digest.

use crate::ident::ContainerId;

/// Directory of sockets in a container with a token, mounted read-only. The mount is the directory instead of the
/// socket, because a restarted daemon creates a new socket.
pub const RUNTIME_DIR: &str = "/run/executor";
/// Name of the socket in that directory, and in the directory `runtime` of the daemon's run directory.
pub const RUNTIME_SOCKET: &str = "runtime.sock";
/// Directory in the daemon's run directory that is visible in containers. The directory contains only the runtime
/// socket.
pub const RUNTIME_HOST_DIR: &str = "runtime";
/// Number of random bytes in a token.
pub const RANDOM_BYTES: usize = 32;
/// Length of a token's digest (SHA-256), in bytes.
pub const DIGEST_BYTES: usize = 32;

/// Returns the length of a container's token in bytes.
pub fn length(id: &ContainerId) -> usize {
    id.as_str().len() + 1 + 2 * RANDOM_BYTES
}

/// Returns the container id in a token; `None` if the string is not a token.
pub fn parse_container_id(token: &str) -> Option<ContainerId> {
    let (id, random) = token.rsplit_once('.')?;
    let hex = random.len() == 2 * RANDOM_BYTES && random.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    id.parse().ok().filter(|_| hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_container() {
        let id: ContainerId = "web.1".parse().unwrap();
        let token = format!("web.1.{}", "0a".repeat(RANDOM_BYTES));
        assert_eq!(token.len(), length(&id));
        assert_eq!(parse_container_id(&token), Some(id));
        for bad in
            ["", "web", "web.1.", &token[1..].replace("eb", ""), &token.to_uppercase(), &token[..token.len() - 1]]
        {
            assert_eq!(parse_container_id(bad), None, "{bad}");
        }
    }
}
