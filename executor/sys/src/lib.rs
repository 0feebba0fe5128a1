//! Wraps system calls that the standard library, nix and rustix lack, or offer in an unsuitable way.
//!
//! Apart from the allocator in `executor-secrets`, this is the only product crate with unsafe code; a comment at each
//! block explains why the block is sound. Descriptors are owned types, process identities are
//! [`executor_core::ident::ProcessIdentity`], and this crate contains no policy.

pub mod capabilities;
pub mod cgroup_usage;
pub mod clock;
pub mod entry;
pub mod events;
pub mod file_version;
pub mod heap;
pub mod heartbeat;
pub mod holes;
pub mod hugepages;
pub mod identity;
pub mod kernel_file;
pub mod kernel_version;
pub mod landlock;
pub mod loopdev;
pub mod memfile;
pub mod mount;
pub mod mountinfo;
pub mod mutex;
pub mod netif;
pub mod netsocket;
pub mod open;
pub mod overlay;
pub mod peer;
pub mod privileges;
pub mod process;
pub mod pty;
pub mod quota;
pub mod ready;
pub mod replace;
pub mod root;
pub mod seqpacket;
pub mod startup;
pub mod title;
pub mod tree;
pub mod tree_size;
pub mod unread;
pub mod userns;
