//! `ps --format`: a line for each container as a template says, in the form of docker's.

use std::time::SystemTime;

use executor_client::v1::{Container, State};

use super::style::{Role, Style};
use super::table::Table;
use super::{human, json};
use crate::text::plain;

/// A template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Template {
    /// A JSON object a line, with everything that is known.
    Json,
    /// Text and fields; in columns with a heading, which tabulators divide, or as they stand.
    Parts { parts: Vec<Part>, table: bool },
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Field {
        field: Field,
        json: bool,
    },
    /// The whole container, as JSON.
    All,
}

/// Field of a container in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Named(&'static str),
    Label(String),
}

/// Fields without an argument, each with its heading.
const FIELDS: [(&str, &str); 15] = [
    ("ID", "ID"),
    ("Names", "NAMES"),
    ("Image", "IMAGE"),
    ("Command", "COMMAND"),
    ("CreatedAt", "CREATED AT"),
    ("RunningFor", "CREATED"),
    ("State", "STATE"),
    ("Status", "STATUS"),
    ("Exit", "EXIT"),
    ("Ports", "PORTS"),
    ("Addresses", "ADDRESSES"),
    ("Networks", "NETWORKS"),
    ("Pod", "POD"),
    ("Labels", "LABELS"),
    ("User", "USER"),
];

impl Template {
    /// Reads one: `{{.ID}} {{.Ports}}`, `table {{.ID}}\t{{.State}}`, `json`.
    ///
    /// # Errors
    /// Braces that do not fit, a field that there is not.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.trim() == "json" {
            return Ok(Self::Json);
        }
        let (table, mut rest) = match text.strip_prefix("table") {
            Some(rest) if rest.starts_with(char::is_whitespace) => (true, rest.trim_start()),
            _ => (false, text),
        };
        let mut parts = Vec::new();
        while let Some((before, inside)) = rest.split_once("{{") {
            let (inside, after) = inside.split_once("}}").ok_or("there is a {{ without its }}")?;
            parts.push(Part::Text(unescaped(before)));
            parts.push(Part::parse(inside.trim())?);
            rest = after;
        }
        parts.push(Part::Text(unescaped(rest)));
        parts.retain(|part| *part != Part::Text(String::new()));
        if parts.is_empty() {
            return Err("is empty; '{{.ID}}' writes ids".into());
        }
        Ok(Self::Parts { parts, table })
    }

    /// The lines of containers.
    pub(crate) fn render(&self, containers: &[Container], now: SystemTime, style: Style) -> String {
        match self {
            Self::Json => containers.iter().map(|container| json::line(&json::Container::from(container))).collect(),
            Self::Parts { parts, table: false } => {
                let line = |container| parts.iter().map(|part| part.of(container, now)).collect::<String>() + "\n";
                containers.iter().map(line).collect()
            }
            Self::Parts { parts, table: true } => {
                let cells = |text: String| text.split('\t').map(str::to_owned).collect::<Vec<_>>();
                let heading = cells(parts.iter().map(Part::heading).collect());
                let mut table = Table::with_heading(0, &heading.iter().map(String::as_str).collect::<Vec<_>>());
                for container in containers {
                    let row = cells(parts.iter().map(|part| part.of(container, now)).collect());
                    table.row(row.into_iter().map(|cell| (cell, Role::Plain)));
                }
                table.render(style)
            }
        }
    }
}

/// `\t` and `\n` as they are written on a command line.
fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

impl Part {
    fn parse(inside: &str) -> Result<Self, String> {
        if inside == "." || inside == "json ." {
            return Ok(Self::All);
        }
        let (json, inside) = inside.strip_prefix("json ").map_or((false, inside), |rest| (true, rest.trim()));
        let field = match inside.strip_prefix(".Label ") {
            Some(name) => {
                let name = name.trim();
                let bare = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
                Field::Label(bare.ok_or("a label is written {{.Label \"NAME\"}}")?.to_owned())
            }
            None => {
                let known = FIELDS.iter().find(|(name, _)| inside.strip_prefix('.') == Some(*name));
                Field::Named(known.map(|(name, _)| *name).ok_or_else(|| {
                    let names: Vec<String> = FIELDS.iter().map(|(name, _)| format!(".{name}")).collect();
                    format!("{{{{{inside}}}}} is not a field; there are {} and .Label \"NAME\"", names.join(", "))
                })?)
            }
        };
        Ok(Self::Field { field, json })
    }

    fn of(&self, container: &Container, now: SystemTime) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::All => json::line(&json::Container::from(container)).trim_end().to_owned(),
            Self::Field { field, json: true } => json::line(&field.of(container, now)).trim_end().to_owned(),
            Self::Field { field, json: false } => plain(&field.of(container, now)),
        }
    }

    fn heading(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::All => String::new(),
            Self::Field { field: Field::Label(name), .. } => name.to_uppercase(),
            Self::Field { field: Field::Named(name), .. } => {
                FIELDS.iter().find(|(field, _)| field == name).map_or("", |(_, heading)| heading).to_owned()
            }
        }
    }
}

impl Field {
    fn of(&self, container: &Container, now: SystemTime) -> String {
        let empty = Default::default();
        let spec = container.spec.as_ref().unwrap_or(&empty);
        let name = match self {
            Self::Label(name) => return spec.labels.get(name).cloned().unwrap_or_default(),
            Self::Named(name) => *name,
        };
        let age = || human::age(container.created_at.as_ref(), now);
        match name {
            "ID" | "Names" => container.id.clone(),
            "Image" => spec.rootfs.clone(),
            "Command" => spec.path.clone(),
            "CreatedAt" => human::time(container.created_at.as_ref()),
            "RunningFor" => format!("{} ago", age()),
            "State" => human::state(container.state),
            "Status" => match container.state() {
                State::Running => {
                    let health = human::health(container).map_or(String::new(), |health| format!(" ({health})"));
                    format!("Up {}{health}", human::age(container.started_at.as_ref(), now))
                }
                State::Completed => {
                    let ago = human::age(container.finished_at.as_ref(), now);
                    format!("Exited ({}) {ago} ago", human::ending(container))
                }
                _ => human::state(container.state),
            },
            "Exit" => human::ending(container),
            "Ports" => human::ports(container),
            "Addresses" => human::addresses(container),
            "Pod" => spec.pod.clone(),
            "Networks" => match &*spec.network_name {
                "" => {
                    container.network_status.as_ref().map_or_else(|| human::network(spec.network), |on| on.name.clone())
                }
                name => name.to_owned(),
            },
            "Labels" => human::labels(&spec.labels),
            "User" => spec.user.clone(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use executor_client::v1::{ContainerSpec, NetworkStatus, PortMapping};
    use prost_types::Timestamp;

    use super::*;

    fn container() -> Container {
        let port = PortMapping { host_port: 8080, container_port: 80, ..PortMapping::default() };
        Container {
            id: "web-1".into(),
            state: State::Running.into(),
            created_at: Some(Timestamp { seconds: 100, nanos: 0 }),
            started_at: Some(Timestamp { seconds: 101, nanos: 0 }),
            spec: Some(ContainerSpec {
                rootfs: "host".into(),
                path: "sh\n".into(),
                network: 2,
                labels: [("app".to_owned(), "w\"b".to_owned())].into(),
                ..ContainerSpec::default()
            }),
            network_status: Some(NetworkStatus {
                addresses: vec!["10.1.0.5/24".into(), "fd00::5/64".into()],
                ports: vec![
                    port,
                    PortMapping { host_ip: "::1".into(), host_port: 53, container_port: 53, protocol: 1 },
                ],
                name: "blue".into(),
            }),
            ..Container::default()
        }
    }

    fn shown(template: &str) -> String {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(160);
        Template::parse(template).unwrap().render(&[container(), Container::default()], now, Style::PLAIN)
    }

    #[test]
    fn fields_between_text() {
        let first = |template: &str| shown(template).lines().next().unwrap().to_owned();
        assert_eq!(first("{{.ID}}: {{ .State }}"), "web-1: running");
        assert_eq!(first("{{.Names}}\\t{{.Status}} {{.RunningFor}}"), "web-1\tUp 59s 1m ago");
        assert_eq!(
            first("{{.Ports}} {{.Addresses}} {{.Networks}}"),
            "8080->80/tcp, [::1]:53->53/udp 10.1.0.5, fd00::5 blue"
        );
        assert_eq!(first("{{.Command}} {{.Image}}"), "sh\\n host");
        assert_eq!(first("{{.Label \"app\"}} {{json .Label \"app\"}} {{.Label \"x\"}}|"), "w\"b \"w\\\"b\" |");
        assert_eq!(first("{{json .ID}}"), "\"web-1\"");
        for all in ["json", "{{json .}}"] {
            let value: serde_json::Value = serde_json::from_str(&first(all)).unwrap();
            assert_eq!(value["id"], "web-1", "{all}");
        }
    }

    #[test]
    fn a_table_has_a_heading() {
        assert_eq!(shown("table {{.ID}}\\t{{.State}}"), "ID      STATE\nweb-1   running\n        unspecified\n");
    }

    #[test]
    fn what_is_no_template() {
        for (text, why) in
            [("", "empty"), ("{{.ID", "without its"), ("{{.Nope}}", ".Addresses"), ("{{.Label x}}", "NAME")]
        {
            let error = Template::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
