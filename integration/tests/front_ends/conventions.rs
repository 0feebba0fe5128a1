//! Tests `agent-cli convention` with a convention server over HTTPS (integration/python/convention_server.py, written
//! only from the text of the protocol) and a registry. The rules are in docs/guides/conventions.md.

mod faults;
mod guide;
mod play;
mod privileges;
mod protocol;
