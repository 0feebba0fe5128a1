//! `audit`: what the executor on this machine leaves of a secret, found out by giving it some.
//!
//! [`inputs`] makes a canary for every way in which a container can be given a secret, and the request; [`scene`] finds the
//! executor's processes and directories and searches them; [`findings`] says what that means. The order of things is in
//! `commands/audit.rs`.

pub(crate) mod findings;
pub(crate) mod inputs;
pub(crate) mod scene;
