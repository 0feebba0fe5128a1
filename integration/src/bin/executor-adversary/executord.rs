//! Attacks by executord's user: actions by which a compromised executord can attack the launcher or a shim. The
//! launcher and the shims run as root.

mod disk;
mod messages;

use crate::attack::{Attack, Position};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "root: a directory moved while it is emptied",
        position: Position::Executord,
        claim: "a removal removes only its own tree, even if its directories are moved during the removal",
        attack: disk::moved,
        control: disk::moved_control,
    },
    Attack {
        name: "root: links in the ledger's directory",
        position: Position::Executord,
        claim: "an executord that root starts follows no link of its user: link targets are not chowned, truncated or written",
        attack: disk::links,
        control: disk::links_control,
    },
    Attack {
        name: "launcher: a plan that changes while it is read",
        position: Position::Executord,
        claim: "a plan is read once, from immutable memory",
        attack: messages::changing,
        control: messages::changing_control,
    },
    Attack {
        name: "launcher: two ids for one container",
        position: Position::Executord,
        claim: "if the id of a launch differs from the id in its plan, the launcher still cleans up the container",
        attack: messages::two_ids,
        control: messages::two_ids_control,
    },
    Attack {
        name: "shim: a client's socket that blocks",
        position: Position::Executord,
        claim: "a shim never blocks on a peer: it stops its container, whatever its peers do to their sockets",
        attack: messages::waiting,
        control: messages::waiting_control,
    },
    Attack {
        name: "shim: the handle for root",
        position: Position::Executord,
        claim: "the handle on the secret files is given only to root, not to a process that has a socket bound by root",
        attack: messages::handle,
        control: messages::handle_control,
    },
];
