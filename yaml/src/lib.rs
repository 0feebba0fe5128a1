//! YAML and JSON as Kubernetes' tools read them, with limits on the input and with the position of every node.
//!
//! ```text
//! text -> [`parts`]: cut at lines that begin with `---`   -> [`parse`]: a tree of [`Node`]s with lines and columns
//!      -> [`decode`]: a typed value, and every fault with its path, line and kind
//! ```
//!
//! Scalars are YAML 1.1 as go-yaml version 2 reads them, because the files were written for that library ([`scalar`]).
//! [`Limits`] restrict the input: bytes, depth, nodes, and copies by aliases. No message contains a value of the text.
//! Rules P1 to P5 are in docs/guides/kube-rules.md.

#![forbid(unsafe_code)]

mod decode;
mod lenient;
mod node;
mod parse;
pub mod scalar;
mod split;

pub use decode::{Decoded, decode};
pub use lenient::lenient;
pub use node::{Fault, FaultKind, Key, Node, Place, Value};
pub use parse::{Limits, Parsed, SyntaxError, parse};
pub use split::{Part, parts};
