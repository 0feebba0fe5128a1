//! Attacks. Each attack has a claim, an attempt to break the claim from one of six positions, and a control.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Position {
    /// A caller, or another process that can connect to executord.
    Client,
    /// A process in a container with the default profile.
    Container,
    /// The user that executord runs as, that is, a compromised executord.
    Executord,
    /// The author of an image or of a root file system.
    Image,
    /// A server that executord or a front end sends requests to.
    Server,
    /// The machine: its clock, disk, memory and processes.
    Machine,
}

impl Position {
    /// Returns the name of the position in options and reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Container => "container",
            Self::Executord => "executord",
            Self::Image => "image",
            Self::Server => "server",
            Self::Machine => "machine",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Small numbers, enough to exercise the mechanism.
    Short,
    /// Large numbers, enough for races and for measurements.
    Long,
}

impl Scale {
    /// Selects `short` or `long`.
    pub(crate) fn pick<T>(self, short: T, long: T) -> T {
        match self {
            Self::Short => short,
            Self::Long => long,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The attack failed; the text is the observation.
    Held(String),
    /// The attack succeeded; the text is the observation.
    Through(String),
}

impl Outcome {
    /// Returns [`Self::Through`] if there is a violation.
    pub(crate) fn new(fault: Option<String>, held: impl Into<String>) -> Self {
        fault.map_or_else(|| Self::Held(held.into()), Self::Through)
    }
}

/// A function that runs the attack or its control.
type PartFn<T> = fn(Scale) -> anyhow::Result<T>;

/// A claim, an attack on it, and its control.
pub(crate) struct Attack {
    /// Unique name of the attack.
    pub(crate) name: &'static str,
    pub(crate) position: Position,
    /// The claim that the attack tries to break.
    pub(crate) claim: &'static str,
    pub(crate) attack: PartFn<Outcome>,
    /// Control: shows that the attack is really made and evaluated. Returns the observation, or an error if the control
    /// shows nothing.
    pub(crate) control: PartFn<String>,
}
