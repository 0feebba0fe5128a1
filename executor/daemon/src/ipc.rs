//! Sends packets to the launcher and to shims, and the sealed memory files that accompany the packets.

pub(crate) mod memfiles;
pub(crate) mod packets;
