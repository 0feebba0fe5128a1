//! Kubernetes objects played from YAML in real containers: a pod with all kinds of containers, rotation in place, replacement, removal, what
//! is left of a Secret, and a play that is killed. Rules are those of docs/guides/kube-rules.md.

mod guide;
mod jobs;
mod killed;
mod play;
mod terminal;
mod world;
