//! `agent-cli convention` with a convention server over HTTPS (integration/python/convention_server.py, written only
//! from the protocol's text) and a registry. The rules are those of docs/guides/conventions.md.

mod faults;
mod guide;
mod play;
mod privileges;
mod protocol;
