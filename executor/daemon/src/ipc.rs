//! Packets to the launcher and to shims, and the sealed memory files that accompany them.

pub(crate) mod memfiles;
pub(crate) mod packets;
