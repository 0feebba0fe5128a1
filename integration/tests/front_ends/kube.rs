//! Plays Kubernetes objects from YAML in real containers: a pod with all kinds of containers, rotation in place,
//! replacement, removal, residue of a Secret, and a killed play. The rules are in docs/guides/kube-rules.md.

mod guide;
mod jobs;
mod killed;
mod play;
mod terminal;
mod world;
