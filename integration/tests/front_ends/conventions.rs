//! `agent-cli convention` with a convention's server over HTTPS (integration/python/convention_server.py, written from the
//! protocol's text alone) and a registry. Rules are those of docs/guides/conventions.md.

mod faults;
mod guide;
mod play;
mod privileges;
mod protocol;
