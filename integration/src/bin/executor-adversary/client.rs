//! Attacks by a client. The attacks search executord's memory for secrets of requests, or exhaust resources that other
//! clients need.

mod crowd;
mod memory;
pub(crate) mod streams;

use crate::attack::{Attack, Position};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "secrets: a connection of gRPC's C core",
        position: Position::Client,
        claim: "executord wipes the secrets of a Run while its client stays connected, whatever the client library",
        attack: memory::c_core,
        control: memory::c_core_control,
    },
    Attack {
        name: "secrets: of requests that are refused",
        position: Position::Client,
        claim: "the secrets of a refused request are wiped while its client stays connected",
        attack: memory::refused,
        control: memory::c_core_control,
    },
    Attack {
        name: "secrets: credentials of a registry",
        position: Position::Client,
        claim: "the credentials of a pull are wiped when the pull ends",
        attack: memory::registry,
        control: memory::registry_control,
    },
    Attack {
        name: "secrets: output of Exec",
        position: Position::Client,
        claim: "the output of an Exec process is wiped when its client has received it",
        attack: memory::printed,
        control: memory::printed_control,
    },
    Attack {
        name: "callers: connections that send nothing",
        position: Position::Client,
        claim: "silent connections do not lock out other clients permanently",
        attack: crowd::silent,
        control: crowd::silent_control,
    },
    Attack {
        name: "memory: actions within actions",
        position: Position::Client,
        claim: "a request of 2 MB costs executord at most 48 MiB of memory, whatever its content",
        attack: crowd::nested,
        control: crowd::nested_control,
    },
    Attack {
        name: "memory: unread responses",
        position: Position::Client,
        claim: "unread responses are bounded in bytes, per connection and in total",
        attack: crowd::unread,
        control: crowd::unread_control,
    },
    Attack {
        name: "faults: executord without descriptors",
        position: Position::Client,
        claim: "a Run or an Exec without free descriptors returns RESOURCE_EXHAUSTED, and nothing else fails",
        attack: crowd::descriptors,
        control: crowd::descriptors_control,
    },
    Attack {
        name: "faults: a disk full to the last byte",
        position: Position::Client,
        claim: "on a full disk executord starts, refuses new containers, and deletes old ones",
        attack: crowd::full_disk,
        control: crowd::full_disk_control,
    },
];
