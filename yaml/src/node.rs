//! A tree of values, each with its position in the text.

use std::fmt;

use zeroize::Zeroizing;

/// Position in a stream of documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A value and its starting position.
#[derive(Clone)]
pub struct Node {
    pub value: Value,
    /// Position at which the value starts. A copy by an alias has the position of its anchor.
    pub place: Place,
}

/// A value. Text may be secret: it is wiped on drop and not printed.
#[derive(Clone)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    Bool(bool),
    Int(i64),
    /// Whole number above [`i64::MAX`].
    UInt(u64),
    /// Any other finite number.
    Float(f64),
    Text(Zeroizing<String>),
    List(Vec<Node>),
    /// Mapping in the order of the file, with unique keys.
    Map(Vec<(Key, Node)>),
}

/// Key of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Name of the key. A key that is a number or a boolean is stored as its text.
    pub name: String,
    pub place: Place,
}

impl Value {
    /// Returns the kind of the value in words: `a string`, `a number`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::UInt(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

impl Node {
    /// Returns the value of the key `name`; `None` if the node is not a mapping or has no such key.
    pub fn get(&self, name: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(key, _)| key.name == name).map(|(_, node)| node),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the items of a list of Kubernetes objects: an object with `items` whose kind ends in `List`. An item
    /// that has neither kind nor `apiVersion` gets both from the list, as in a `ConfigMapList`.
    ///
    /// # Errors
    /// Returns the node if it is not such a list.
    pub fn into_items(self) -> Result<Vec<Self>, Self> {
        let text = |node: &Self, key: &str| node.get(key).and_then(Self::text).unwrap_or_default().to_owned();
        let (kind, version) = (text(&self, "kind"), text(&self, "apiVersion"));
        let items = self.get("items").map(|items| &items.value);
        let (Some(of), Some(Value::List(_) | Value::Null)) = (kind.strip_suffix("List"), items) else {
            return Err(self);
        };
        let Value::Map(entries) = self.value else { return Err(self) };
        let items = entries.into_iter().find(|(key, _)| key.name == "items");
        let Some((_, Self { value: Value::List(mut items), .. })) = items else { return Ok(Vec::new()) };
        for item in &mut items {
            let (place, is_whole) =
                (item.place, !text(item, "kind").is_empty() || !text(item, "apiVersion").is_empty());
            if let (false, false, Value::Map(entries)) = (is_whole, of.is_empty(), &mut item.value) {
                entries.retain(|(key, _)| !matches!(&*key.name, "kind" | "apiVersion"));
                entries.extend([("apiVersion", &*version), ("kind", of)].map(|(name, text)| {
                    let value = Value::Text(Zeroizing::new(text.to_owned()));
                    (Key { name: name.to_owned(), place }, Self { value, place })
                }));
            }
        }
        Ok(items)
    }

    /// Returns the node at a path as written in faults (`spec.containers[0].name`).
    pub fn at(&self, path: &str) -> Option<&Self> {
        steps(path).into_iter().try_fold(self, |node, step| match (step, &node.value) {
            (Step::Name(name), Value::Map(_)) => node.get(name),
            (Step::Index(index), Value::List(list)) => list.get(index),
            _ => None,
        })
    }

    /// Returns the position of the node at a path as written in faults (`spec.containers[0].name`), or of the deepest
    /// existing node on the path.
    pub fn place_of(&self, path: &str) -> Place {
        let mut node = self;
        let mut place = self.place;
        for step in steps(path) {
            let next = match (step, &node.value) {
                (Step::Name(name), Value::Map(entries)) => {
                    let found = entries.iter().find(|(key, _)| key.name == name);
                    found.map(|(key, node)| (node, key.place))
                }
                (Step::Index(index), Value::List(list)) => list.get(index).map(|node| (node, node.place)),
                _ => None,
            };
            let Some((below, at)) = next else { break };
            (node, place) = (below, at);
        }
        place
    }
}

enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

/// Splits a path into steps: names after dots, `[3]`, and `['a.b']` for names with other characters.
fn steps(path: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("['") {
            let Some(end) = quoted.find("']") else { break };
            steps.push(Step::Name(&quoted[..end]));
            rest = &quoted[end + 2..];
        } else if let Some(index) = rest.strip_prefix('[') {
            let Some(end) = index.find(']') else { break };
            let Ok(number) = index[..end].parse() else { break };
            steps.push(Step::Index(number));
            rest = &index[end + 1..];
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            if end == 0 {
                break;
            }
            steps.push(Step::Name(&name[..end]));
            rest = &name[end..];
        }
    }
    steps
}

/// Appends the name of a key to a path as written in faults.
pub(crate) fn below(path: &str, name: &str) -> String {
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_$".contains(&byte));
    match (plain, path.is_empty()) {
        (true, true) => name.to_owned(),
        (true, false) => format!("{path}.{name}"),
        // Long names are shortened for error messages.
        (false, _) => format!("{path}['{}']", name.chars().take(100).collect::<String>()),
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} at {})", self.value.kind(), self.place)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

/// Kind of a fault, for callers that tolerate some kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A value of the wrong type or format.
    Value,
    /// A field that the type does not have.
    Unknown,
    /// A key that occurs twice in a mapping. The last value is used.
    Duplicate,
}

/// A fault in a document. The message contains no value of the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Path of the node: `spec.containers[0].env[1].value`.
    pub path: String,
    pub place: Place,
    /// Description of the fault, without the path.
    pub message: String,
}
