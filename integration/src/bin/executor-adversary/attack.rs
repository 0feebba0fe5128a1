//! What an attack is.

use clap::ValueEnum;

/// From where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Position {
    /// Whoever may call, and whoever can connect.
    Client,
    /// A process in a container with the default profile.
    Container,
    /// The user that executord runs as: an executord that was taken over.
    Executord,
    /// Who made an image, or a root file system.
    Image,
}

impl Position {
    /// As options and reports have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Container => "container",
            Self::Executord => "executord",
            Self::Image => "image",
        }
    }
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Enough to see the mechanism.
    Short,
    /// What a race or a measurement needs to be told with a number.
    Long,
}

impl Scale {
    /// One of two numbers.
    pub(crate) fn of<T>(self, short: T, long: T) -> T {
        match self {
            Self::Short => short,
            Self::Long => long,
        }
    }
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It did not go through; what was seen.
    Held(String),
    /// It went through; what was seen.
    Through(String),
}

impl Outcome {
    /// It went through where there is a fault.
    pub(crate) fn of(fault: Option<String>, held: impl Into<String>) -> Self {
        fault.map_or_else(|| Self::Held(held.into()), Self::Through)
    }
}

/// Plays a part of an attack.
type Play<T> = fn(Scale) -> anyhow::Result<T>;

/// A claim, an attack on it, and its control.
pub(crate) struct Attack {
    /// Unique.
    pub(crate) name: &'static str,
    pub(crate) position: Position,
    /// What holds.
    pub(crate) claim: &'static str,
    pub(crate) attack: Play<Outcome>,
    /// Shows that the attack is made and judged: what it saw, or why it shows nothing.
    pub(crate) control: Play<String>,
}
