//! `--format`: prints one line per item from a template, like docker.

mod container;

use std::time::SystemTime;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json::to_line;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use serde_json::Value;

/// An item that a template can format.
pub(crate) trait Listed {
    /// Fields in docker's spelling, with their headings.
    const FIELDS: &'static [(&'static str, &'static str)];

    /// Returns the text of a field of [`Self::FIELDS`].
    fn field(&self, name: &str, now: SystemTime) -> String;

    /// Returns the value of a label, if the item has that label.
    fn label(&self, _name: &str) -> Option<&str> {
        None
    }

    /// Returns the item as the document that `--json` prints.
    fn document(&self) -> Value;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Template {
    /// One JSON object per line, with all fields.
    Json,
    /// Text and fields. With `table`, tabs separate the columns of a table with a heading.
    Parts { parts: Vec<Part>, table: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Field { field: Field, json: bool },
}

/// Reference to a field of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// A field of [`Listed::FIELDS`], with its heading.
    Named(&'static str, &'static str),
    Label(String),
    /// Path of keys in the document of `--json`. An empty path selects the whole document.
    Path(Vec<String>),
}

impl Template {
    /// Parses a template: `{{.ID}} {{.result.exit_status}}`, `table {{.ID}}\t{{.State}}`, `json`.
    ///
    /// # Errors
    /// Returns an error if braces are unbalanced or a field is unknown.
    pub(crate) fn parse<T: Listed>(text: &str) -> Result<Self, String> {
        if text.trim() == "json" {
            return Ok(Self::Json);
        }
        let (table, mut rest) = match text.strip_prefix("table") {
            Some(rest) if rest.starts_with(char::is_whitespace) => (true, rest.trim_start()),
            _ => (false, text),
        };
        let mut parts = Vec::new();
        while let Some((before, inside)) = rest.split_once("{{") {
            let (inside, after) = inside.split_once("}}").ok_or("`{{` is not closed with `}}`")?;
            parts.push(Part::Text(unescaped(before)));
            parts.push(Part::parse::<T>(inside.trim())?);
            rest = after;
        }
        parts.push(Part::Text(unescaped(rest)));
        parts.retain(|part| *part != Part::Text(String::new()));
        if parts.is_empty() {
            return Err("is empty; use '{{.ID}}' to print ids".into());
        }
        Ok(Self::Parts { parts, table })
    }

    /// Formats items, one line each.
    ///
    /// # Errors
    /// Returns an error if the document of an item lacks a key.
    pub(crate) fn render<T: Listed>(&self, items: &[T], now: SystemTime, style: Style) -> Result<String, Failure> {
        let (parts, is_table) = match self {
            Self::Json => return Ok(items.iter().map(|item| to_line(&item.document())).collect()),
            Self::Parts { parts, table } => (parts, *table),
        };
        let lines = items.iter().map(|item| parts.iter().map(|part| part.render(item, now)).collect());
        let lines: Vec<String> =
            lines.collect::<Result<_, _>>().map_err(|why| Failure::Usage(format!("--format: {why}")))?;
        if !is_table {
            return Ok(lines.into_iter().map(|line| line + "\n").collect());
        }
        let heading: String = parts.iter().map(Part::heading).collect();
        let mut table = Table::with_heading(0, &heading.split('\t').collect::<Vec<_>>());
        for line in lines {
            table.row(line.split('\t').map(|cell| (cell.to_owned(), Role::Plain)));
        }
        Ok(table.render(style))
    }
}

/// Replaces `\t` and `\n` with a tab and a newline.
fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

impl Part {
    fn parse<T: Listed>(inside: &str) -> Result<Self, String> {
        let (json, inside) = inside.strip_prefix("json ").map_or((false, inside), |rest| (true, rest.trim()));
        let field = match (inside.strip_prefix(".Label "), inside.strip_prefix('.')) {
            (Some(name), _) => {
                let name = name.trim();
                let bare = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
                Field::Label(bare.ok_or("write a label as {{.Label \"NAME\"}}")?.to_owned())
            }
            (None, Some("")) => Field::Path(Vec::new()),
            (None, Some(path)) if path.starts_with(|first: char| first.is_ascii_lowercase()) => {
                Field::Path(path.split('.').map(str::to_owned).collect())
            }
            (None, name) => {
                let known = T::FIELDS.iter().find(|(field, _)| name == Some(field));
                let (name, heading) = known.ok_or_else(|| {
                    let names: Vec<String> = T::FIELDS.iter().map(|(name, _)| format!(".{name}")).collect();
                    format!(
                        "{{{{{inside}}}}} is not a field; use {}, .Label \"NAME\", or a key of --json, such as .id",
                        names.join(", ")
                    )
                })?;
                Field::Named(name, heading)
            }
        };
        Ok(Self::Field { field, json })
    }

    fn render(&self, item: &impl Listed, now: SystemTime) -> Result<String, String> {
        let (field, json) = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::Field { field, json } => (field, *json),
        };
        let value = field.value(item, now)?;
        Ok(match value {
            Value::String(text) if !json => plain(&text),
            Value::Null if !json => String::new(),
            value => to_line(&value).trim_end().to_owned(),
        })
    }

    fn heading(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Field { field: Field::Label(name), .. } => name.to_uppercase(),
            Self::Field { field: Field::Named(_, heading), .. } => (*heading).to_owned(),
            Self::Field { field: Field::Path(keys), .. } => keys.last().map_or(String::new(), |key| key.to_uppercase()),
        }
    }
}

impl Field {
    fn value(&self, item: &impl Listed, now: SystemTime) -> Result<Value, String> {
        match self {
            Self::Named(name, _) => Ok(item.field(name, now).into()),
            Self::Label(name) => Ok(item.label(name).unwrap_or_default().into()),
            Self::Path(keys) => {
                let mut value = item.document();
                for key in keys {
                    value = match value {
                        // A null value has no keys.
                        Value::Null => Value::Null,
                        Value::Object(mut object) => object.remove(key).ok_or_else(|| {
                            let names: Vec<&str> = object.keys().map(String::as_str).collect();
                            format!(
                                "there is no key {} in .{}; its keys are {}",
                                plain(key),
                                plain(&keys.join(".")),
                                names.join(", ")
                            )
                        })?,
                        _ => {
                            return Err(format!(
                                "the value before {} in .{} has no keys",
                                plain(key),
                                plain(&keys.join("."))
                            ));
                        }
                    };
                }
                Ok(value)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use executor_client::v1::{Container, ContainerSpec, NetworkStatus, PortMapping, State};
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
        let template = Template::parse::<Container>(template).unwrap();
        template.render(&[container(), Container::default()], now, Style::PLAIN).unwrap()
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
            let value: Value = serde_json::from_str(&first(all)).unwrap();
            assert_eq!(value["id"], "web-1", "{all}");
        }
    }

    #[test]
    fn a_table_has_a_heading() {
        assert_eq!(shown("table {{.ID}}\\t{{.State}}"), "ID      STATE\nweb-1   running\n        unspecified\n");
    }

    #[test]
    fn invalid_template_fails() {
        for (text, why) in
            [("", "empty"), ("{{.ID", "is not closed"), ("{{.Nope}}", ".Addresses"), ("{{.Label x}}", "NAME")]
        {
            let error = Template::parse::<Container>(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn keys_of_the_document_are_fields() {
        let first = |template: &str| shown(template).lines().next().unwrap().to_owned();
        assert_eq!(first("{{.id}} {{.spec.path}} {{.ready}} {{.finished_at}}|"), "web-1 sh\\n false |");
        assert_eq!(first("{{json .spec.labels}} {{.spec.labels}}"), r#"{"app":"w\"b"} {"app":"w\"b"}"#);
        assert_eq!(first("{{.result.exit_status}}|"), "|", "an unknown value is empty");
        for (text, why) in [("{{.nope}}", "there is no key nope in .nope"), ("{{.id.x}}", "has no keys")] {
            let template = Template::parse::<Container>(text).unwrap();
            let refusal = template.render(&[container()], SystemTime::UNIX_EPOCH, Style::PLAIN).unwrap_err();
            assert!(refusal.describe().contains(why), "{}", refusal.describe());
        }
    }
}
