//! Executor's client library: runs containers with secret files on a node and manages them, over gRPC.
//!
//! A [`Client`] is a connection to one executord. A [`Run`] is the request for a container; responses are the messages
//! of the interface ([`v1`]). Calls that are safe to repeat are repeated while executord restarts: [`Client::wait`],
//! [`Logs`], [`Events`] and [`Attach`] continue at the same position. An [`Error`] carries every violation of a
//! request, field by field.
//!
//! ```no_run
//! use executor_client::{Client, DEFAULT_SOCKET, Run, Secret};
//!
//! # async fn example() -> Result<(), executor_client::Error> {
//! let client = Client::connect(DEFAULT_SOCKET).await?;
//! let run = Run::new("host", "/bin/cat").args(["/run/demo"]).secret_file("/run/demo", Secret::from("hunter2"));
//! let started = client.run(&run).await?;
//! let completed = client.wait(&started.container.id).await?;
//! println!("{:?}", completed.result.and_then(|result| result.exit));
//! client.delete(&completed.id, false).await?;
//! # Ok(())
//! # }
//! ```
//!
//! **Secrets.** [`Secret`], [`Run`] and [`Wiped`] messages print no value and overwrite their memory when they are
//! dropped. The gRPC library frees its encoding buffers without overwriting them. A process that must not keep secrets
//! in freed memory needs an allocator that overwrites freed memory, as executord has.
//!
//! **Other machines.** [`Client::connect_tls`] connects over TCP with mutual TLS, with a certificate that executord's
//! configuration names.
//!
//! **Timeouts.** A call waits as long as executord takes to respond. If the connection is broken, a call waits
//! [`DEFAULT_PATIENCE`] for executord. A caller with its own deadline uses `tokio::time::timeout`; methods that are
//! cancel safe document this.
//!
//! This crate prints nothing and starts no process.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod attach;
mod cell;
mod connect;
mod connection;
mod containers;
mod error;
mod events;
mod exec;
mod files;
mod images;
mod input;
mod logs;
mod pods;
mod retry;
mod run;
mod secret;
mod stats;
mod tls;

pub use address::{ServerAddress, Tls};
pub use attach::{Attach, AttachOptions, Attached, rest_of_log};
pub use cell::{Cell, Drain};
pub use connect::{Attempts, Client, DEFAULT_PATIENCE, DEFAULT_SOCKET};
pub use connection::{Connection, Received};
pub use containers::{ListFilter, Match};
pub use error::{Code, ConnectError, Error, Refusal, Violation};
pub use events::Events;
pub use exec::{Exec, Executed};
pub use executor_proto::{FILE_DESCRIPTOR_SET, Wipe, Wiped, v1};
pub use files::{Archive, Output, OutputStream};
pub use images::{Images, Pull, Pulled};
pub use input::Input;
pub use logs::Logs;
pub use pods::{PodFilter, Pods};
pub use run::{Run, Started};
pub use secret::Secret;
pub use stats::Stats;

/// Compiles the guide's examples.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guides/client.md")]
struct Guide;
