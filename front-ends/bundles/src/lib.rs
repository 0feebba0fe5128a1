//! Catalogs and bundles of operators (OLM, RukPak): what there is, what upgrades to what, and what of it can be installed here.
//!
//! Rules are numbered as in `docs/guides/catalogs.md` and `docs/guides/bundles.md`, and each has a test that is called after it.

#![forbid(unsafe_code)]

pub mod bundle;
pub mod catalog;
pub mod fault;
pub mod installation;
pub mod manifest;
pub mod range;
pub mod reference;
pub mod resolve;
pub mod source;
mod text;
pub mod yaml;
