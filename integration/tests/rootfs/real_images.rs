//! Tests a real image of Debian. mmdebstrap, umoci and skopeo make it, and Debian's docker-registry serves it.

mod shared;
mod trees;
