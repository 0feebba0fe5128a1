//! `--filter KEY=VALUE`: docker's filters for containers and events.
//!
//! Several values of the same key are alternatives, except labels: all of them must match. Different keys must all
//! match.

use std::time::SystemTime;

use executor_cli_kit::exit::Outcome;
use executor_cli_kit::units;
use executor_cli_kit::view::quantity;
use executor_client::v1::{Container, Event, State, event};

use crate::view::human;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerFilter {
    /// Image name, with or without registry and tag, or a prefix of its digest.
    Ancestor(String),
    Exited(u8),
    /// Health: `ready`, `not ready`, `starting`, or `none`.
    Health(&'static str),
    /// Prefix of the id.
    Id(String),
    /// Label, and its value if given.
    Label(String, Option<String>),
    /// Substring of the id.
    Name(String),
    Network(String),
    Pod(String),
    Status(Status),
    /// Completed before this time.
    Until(SystemTime),
}

/// A state of a container, as shown by `ps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The state of a container that is not paused.
    State(State),
    Paused,
}

const KEYS: &str = "ancestor, exited, health, id, label, name, network, pod, status, until";

impl ContainerFilter {
    /// Parses a filter for containers: `KEY=VALUE`.
    ///
    /// # Errors
    /// Returns the reason if the key is unknown or the value is invalid for the key.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or_else(|| format!("a filter is KEY=VALUE; keys are {KEYS}"))?;
        let owned = value.to_owned();
        Ok(match key {
            "ancestor" => Self::Ancestor(owned),
            "exited" => Self::Exited(value.parse().map_err(|_| format!("exited={value}: use 0 to 255"))?),
            "health" => Self::Health(health(value)?),
            "id" => Self::Id(owned),
            "label" => match value.split_once('=') {
                Some((name, value)) => Self::Label(name.to_owned(), Some(value.to_owned())),
                None => Self::Label(owned, None),
            },
            "name" => Self::Name(owned),
            "network" => Self::Network(owned),
            "pod" => Self::Pod(owned),
            "status" => Self::Status(status(value)?),
            "until" => Self::Until(units::instant(value, SystemTime::now())?),
            _ => return Err(format!("{key} is not a filter key; use {KEYS}")),
        })
    }

    /// Returns true if the filter selects completed containers, which are not listed by default.
    pub(crate) fn selects_completed(&self) -> bool {
        matches!(self, Self::Status(Status::State(State::Completed)) | Self::Exited(_) | Self::Until(_))
    }

    fn holds(&self, container: &Container) -> bool {
        let spec = container.spec.as_ref();
        match self {
            Self::Ancestor(wanted) => container
                .image
                .as_ref()
                .is_some_and(|image| is_image(&image.reference, wanted) || is_digest(&image.digest, wanted)),
            Self::Exited(status) => {
                container.result.is_some() && Outcome::new(container.result.as_ref()).status() == *status
            }
            Self::Health(wanted) => human::health(container).unwrap_or("none") == *wanted,
            Self::Id(beginning) => container.id.starts_with(beginning),
            Self::Label(name, value) => spec
                .and_then(|spec| spec.labels.get(name))
                .is_some_and(|is| value.as_ref().is_none_or(|value| is == value)),
            Self::Name(part) => container.id.contains(part),
            Self::Network(name) => human::network_name(container) == *name,
            Self::Pod(pod) => spec.is_some_and(|spec| spec.pod == *pod),
            Self::Status(Status::State(state)) => container.state() == *state && !container.paused,
            Self::Status(Status::Paused) => container.paused,
            Self::Until(time) => {
                let finished = container.finished_at.as_ref().and_then(quantity::system_time);
                container.state() == State::Completed && finished.is_some_and(|finished| finished < *time)
            }
        }
    }
}

/// Returns true if a container matches all filters.
pub(crate) fn passes(filters: &[ContainerFilter], container: &Container) -> bool {
    filters.iter().all(|filter| match filter {
        ContainerFilter::Label(..) => filter.holds(container),
        _ => {
            let same_key = |other: &&ContainerFilter| std::mem::discriminant(*other) == std::mem::discriminant(filter);
            filters.iter().filter(same_key).any(|filter| filter.holds(container))
        }
    })
}

/// Parses a state, in agent-cli's or docker's spelling.
fn status(word: &str) -> Result<Status, String> {
    if word == "paused" {
        return Ok(Status::Paused);
    }
    let ours = match word {
        "removing" => "wiping",
        "exited" | "dead" => "completed",
        _ => word,
    };
    let state = State::from_str_name(&format!("STATE_{}", ours.to_ascii_uppercase()));
    state.filter(|state| *state != State::Unspecified).map(Status::State).ok_or_else(|| {
        let states = "reserved, initializing, created, running, paused, stopping, wiping, completed (exited)";
        format!("status={word}: use {states}")
    })
}

/// Parses a health state, in agent-cli's or docker's spelling.
fn health(word: &str) -> Result<&'static str, String> {
    Ok(match word {
        "ready" | "healthy" => "ready",
        "not ready" | "unhealthy" => "not ready",
        "starting" => "starting",
        "none" => "none",
        _ => return Err(format!("health={word}: use starting, healthy, unhealthy or none")),
    })
}

/// Returns true if a reference names the wanted image. `wanted` may omit docker's default registry and repository
/// prefix. If `wanted` has no tag or digest, it matches every tag and digest.
fn is_image(reference: &str, wanted: &str) -> bool {
    let bare = |text: &str| {
        let text = ["docker://", "docker.io/", "library/"]
            .iter()
            .fold(text, |text, part| text.strip_prefix(part).unwrap_or(text));
        text.to_owned()
    };
    let (is, wanted) = (bare(reference), bare(wanted));
    let rest = is.strip_prefix(&wanted);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('@') || rest.starts_with(':') && !rest.contains('/'))
}

/// Returns true if a digest begins with the wanted digits, of which there must be at least eight.
fn is_digest(digest: &str, wanted: &str) -> bool {
    const LEAST: usize = 8;
    let hex = |text: &str| text.split_once(':').map_or(text, |(_, hex)| hex).to_owned();
    let wanted = hex(wanted);
    wanted.len() >= LEAST && hex(digest).starts_with(&wanted)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EventFilter {
    /// The complete id of a container.
    Container(String),
    Kind(event::Kind),
}

impl EventFilter {
    /// Parses a filter for events: `KEY=VALUE`.
    ///
    /// # Errors
    /// Returns the reason if the key or kind is unknown.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("a filter is KEY=VALUE; keys are container and event")?;
        match key {
            "container" => Ok(Self::Container(value.to_owned())),
            "event" => kind(value).map(Self::Kind),
            _ => Err(format!("{key} is not a filter key; use container or event")),
        }
    }

    fn holds(&self, event: &Event) -> bool {
        match self {
            Self::Container(id) => event.container_id == *id,
            Self::Kind(kind) => event.kind() == *kind,
        }
    }
}

/// Parses a kind of event, in agent-cli's or docker's spelling.
fn kind(word: &str) -> Result<event::Kind, String> {
    let ours = match word {
        "create" => "created",
        "start" => "running",
        "restart" => "restarting",
        "stop" => "stopping",
        "die" => "completed",
        "destroy" => "deleted",
        _ => word,
    };
    let kind = event::Kind::from_str_name(&format!("KIND_{}", ours.to_ascii_uppercase()));
    kind.filter(|kind| *kind != event::Kind::Unspecified)
        .ok_or_else(|| format!("event={word}: use a kind that `agent-cli events` prints, such as running or completed"))
}

/// Returns true if an event matches all filters.
pub(crate) fn event_passes(filters: &[EventFilter], event: &Event) -> bool {
    filters.iter().all(|filter| {
        let same_key = |other: &&EventFilter| std::mem::discriminant(*other) == std::mem::discriminant(filter);
        filters.iter().filter(same_key).any(|filter| filter.holds(event))
    })
}

#[cfg(test)]
mod tests {
    use executor_client::v1::{ContainerSpec, ExitStatus, ImageInUse, exit_status};

    use super::*;

    #[test]
    fn filters_select_as_docker_does() {
        let exit = Some(ExitStatus { status: Some(exit_status::Status::Code(3)) });
        let container = Container {
            id: "web-1".into(),
            state: State::Completed.into(),
            finished_at: Some(prost_types::Timestamp { seconds: 1_000, nanos: 0 }),
            result: Some(executor_client::v1::Result { exit, ..Default::default() }),
            spec: Some(ContainerSpec {
                labels: [("app".to_owned(), "web".to_owned())].into(),
                network_name: "blue".into(),
                ..ContainerSpec::default()
            }),
            image: Some(ImageInUse {
                reference: "docker://docker.io/library/debian:12".into(),
                digest: "sha256:0123456789abcdef".into(),
            }),
            ..Container::default()
        };
        for (filters, expected) in [
            ("", true),
            ("id=web", true),
            ("id=eb", false),
            ("name=eb", true),
            ("status=exited", true),
            ("status=running", false),
            ("status=paused", false),
            ("status=running status=completed", true),
            ("exited=3", true),
            ("exited=0 exited=3", true),
            ("exited=0", false),
            ("label=app", true),
            ("label=app=web", true),
            ("label=app=db", false),
            ("label=app label=other", false),
            ("network=blue", true),
            ("pod=p", false),
            ("health=none", true),
            ("health=healthy", false),
            ("ancestor=debian", true),
            ("ancestor=debian:12", true),
            ("ancestor=docker.io/library/debian:12", true),
            ("ancestor=deb", false),
            ("ancestor=debian:1", false),
            ("ancestor=0123456789ab", true),
            ("until=1970-01-01T00:16:41Z", true),
            ("until=1970-01-01T00:16:40Z", false),
            ("name=web exited=0", false),
        ] {
            let parsed: Vec<_> = filters.split_whitespace().map(|text| ContainerFilter::parse(text).unwrap()).collect();
            assert_eq!(passes(&parsed, &container), expected, "{filters}");
        }
    }

    #[test]
    fn unknown_filters_name_the_known_ones() {
        for (text, why) in
            [("x", "KEY=VALUE"), ("volume=a", "ancestor"), ("status=asleep", "paused"), ("exited=x", "255")]
        {
            let refusal = ContainerFilter::parse(text).unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
        for (text, why) in [("x", "container"), ("image=a", "event"), ("event=attach", "completed")] {
            let refusal = EventFilter::parse(text).unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }

    #[test]
    fn events_are_selected_by_kind_and_container() {
        let event = Event { container_id: "web-1".into(), kind: event::Kind::Completed.into(), ..Event::default() };
        for (filters, expected) in
            [("event=die", true), ("event=start", false), ("event=start event=completed", true), ("container=a", false)]
        {
            let parsed: Vec<_> = filters.split_whitespace().map(|text| EventFilter::parse(text).unwrap()).collect();
            assert_eq!(event_passes(&parsed, &event), expected, "{filters}");
        }
    }
}
