//! Real images: Debian, made by mmdebstrap, umoci and skopeo, and served by Debian's registry.

mod shared;
mod trees;
