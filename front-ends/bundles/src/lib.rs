//! Reads and validates catalogs and bundles of operators (OLM, RukPak), resolves upgrades, and converts bundles into
//! manifests for `agent-cli kube play`.
//!
//! Rules are numbered as in `docs/guides/catalogs.md` and `docs/guides/bundles.md`. Each rule has a test whose name
//! begins with its number.

#![forbid(unsafe_code)]

pub mod bundle;
pub mod catalog;
pub mod fault;
pub mod installation;
pub mod manifest;
pub mod range;
pub mod resolve;
pub mod source;
mod text;
pub mod yaml;
