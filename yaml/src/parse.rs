//! Parses one document as a tree, within limits.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine as _;
use granit_parser::{Event, Parser, ScalarStyle, Tag};
use zeroize::Zeroizing;

use crate::lenient::lenient;
use crate::node::{Fault, FaultKind, Key, Node, Place, Value, below};
use crate::scalar;

/// Limits of a document.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of bytes of the text.
    pub bytes: usize,
    /// Maximum nesting of lists and mappings.
    pub depth: usize,
    /// Maximum number of values, including values that aliases copy.
    pub nodes: usize,
    /// Maximum total number of bytes of text that aliases copy.
    pub copied_bytes: usize,
}

impl Limits {
    /// Limits of a Kubernetes object: the 3 MiB of a request to an API server (rule P5).
    pub const OBJECT: Self = Self { bytes: 3 << 20, depth: 100, nodes: 500_000, copied_bytes: 4 << 20 };
}

/// A parsed document, and its duplicate keys.
#[derive(Debug)]
pub struct Parsed {
    pub root: Node,
    /// Keys that occur twice in a mapping. The tree has the last value.
    pub duplicates: Vec<Fault>,
}

/// A document that is not a tree of JSON values within the limits. The error contains no value of the document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SyntaxError {
    pub place: Place,
    /// Description of the fault, without the position.
    pub message: String,
}

/// Maximum number of duplicate keys that are reported.
const DUPLICATES_MAX: usize = 100;

/// Parses one document whose first line is `line` of its stream. Accepts the indentation and tabs that Go programs
/// accept ([`lenient`]).
///
/// # Errors
/// Returns an error if the text is not YAML, has more than one document, has a key that is not a scalar, has a tag that
/// is not a core tag of YAML, or exceeds a limit.
pub fn parse(text: &str, line: usize, limits: &Limits) -> Result<Parsed, SyntaxError> {
    if text.len() > limits.bytes {
        let message = format!("the document is {} bytes; the maximum is {}", text.len(), limits.bytes);
        return Err(SyntaxError { place: Place { line, column: 1 }, message });
    }
    lenient(text, |text| tree(text, line, limits))
}

fn tree(text: &str, line: usize, limits: &Limits) -> Result<Parsed, SyntaxError> {
    let mut builder = Builder {
        limits,
        nodes: 0,
        copied: 0,
        open: Vec::new(),
        anchors: HashMap::new(),
        duplicates: Vec::new(),
        root: None,
        documents: 0,
    };
    let shift = line.saturating_sub(1);
    for next in Parser::new_from_str(text) {
        let (event, span) = next.map_err(|error| SyntaxError {
            place: Place { line: error.marker().line() + shift, column: error.marker().col() + 1 },
            message: format!("the text is not YAML: {}", error.info()),
        })?;
        let place = Place { line: span.start.line() + shift, column: span.start.col() + 1 };
        builder.event(event, place).map_err(|message| SyntaxError { place, message })?;
    }
    let empty = Node { value: Value::Null, place: Place { line, column: 1 } };
    Ok(Parsed { root: builder.root.unwrap_or(empty), duplicates: builder.duplicates })
}

/// An unfinished list or mapping.
struct Open {
    place: Place,
    anchor: usize,
    path: String,
    holds: Holds,
}

enum Holds {
    List(Vec<Node>),
    Map { entries: Vec<(Key, Node)>, index: HashMap<String, usize>, merged: Vec<Node>, key: Option<Pending> },
}

enum Pending {
    Key(Key),
    Merge,
}

struct Anchored {
    node: Node,
    weight: Weight,
}

#[derive(Clone, Copy, Default)]
struct Weight {
    nodes: usize,
    bytes: usize,
    /// Nesting of lists and mappings within the value.
    levels: usize,
}

struct Builder<'a> {
    limits: &'a Limits,
    nodes: usize,
    copied: usize,
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    duplicates: Vec<Fault>,
    root: Option<Node>,
    documents: usize,
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, place: Place) -> Result<(), String> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err("a second document begins here without a line `---`".into());
                }
                Ok(())
            }
            Event::Alias(id) => {
                let Some(anchored) = self.anchors.get(&id) else {
                    return Err("an alias is within its own anchor".into());
                };
                let Weight { nodes, bytes, levels } = anchored.weight;
                let total = self.nodes.saturating_add(nodes);
                if self.open.len() + levels > self.limits.depth {
                    return Err(format!("values are nested deeper than {} levels", self.limits.depth));
                }
                self.copied = self.copied.saturating_add(bytes);
                if self.copied > self.limits.copied_bytes {
                    return Err(format!("aliases copy more than the maximum of {} bytes", self.limits.copied_bytes));
                }
                if total > self.limits.nodes {
                    return Err(too_many(self.limits));
                }
                let node = anchored.node.clone();
                self.nodes = total;
                self.place(node, 0)
            }
            Event::UnresolvedAlias(_) => Err("an alias without an anchor".into()),
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1)?;
                let merges = match core(tag.as_deref())?.as_deref() {
                    None => style == ScalarStyle::Plain,
                    Some(name) => name == "merge",
                };
                if merges && &*text == "<<" && self.takes_key() {
                    return self.pending(Pending::Merge);
                }
                let value = scalar_value(&text, style, tag.as_deref())?;
                self.place(Node { value, place }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), "seq")?;
                self.start(place, anchor, Holds::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), "map")?;
                let (entries, index) = (Vec::new(), HashMap::new());
                self.start(place, anchor, Holds::Map { entries, index, merged: Vec::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            // Ignore ends of documents, and comments.
            _ => Ok(()),
        }
    }

    fn count(&mut self, nodes: usize) -> Result<(), String> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > self.limits.nodes {
            return Err(too_many(self.limits));
        }
        Ok(())
    }

    fn takes_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { holds: Holds::Map { key: None, .. }, .. }))
    }

    fn pending(&mut self, pending: Pending) -> Result<(), String> {
        if let Some(Open { holds: Holds::Map { key, .. }, .. }) = self.open.last_mut() {
            *key = Some(pending);
        }
        Ok(())
    }

    fn start(&mut self, place: Place, anchor: usize, holds: Holds) -> Result<(), String> {
        self.count(1)?;
        if self.open.len() >= self.limits.depth {
            return Err(format!("values are nested deeper than {} levels", self.limits.depth));
        }
        if self.takes_key() {
            return Err("a key is not a scalar".into());
        }
        let path = match self.open.last() {
            None => String::new(),
            Some(Open { path, holds: Holds::List(list), .. }) => format!("{path}[{}]", list.len()),
            Some(Open { path, holds: Holds::Map { key: Some(Pending::Key(key)), .. }, .. }) => below(path, &key.name),
            Some(Open { path, .. }) => path.clone(),
        };
        self.open.push(Open { place, anchor, path, holds });
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        let Some(Open { place, anchor, holds, .. }) = self.open.pop() else { return Ok(()) };
        let value = match holds {
            Holds::List(list) => Value::List(list),
            Holds::Map { mut entries, mut index, merged, .. } => {
                // The mapping's own keys have priority over merged keys; of several merged mappings the first has
                // priority.
                for source in merged {
                    let sources = match source.value {
                        Value::Map(_) => vec![source],
                        Value::List(sources) => sources,
                        _ => return Err("`<<` must have a mapping or a list of mappings".into()),
                    };
                    for source in sources {
                        let Value::Map(more) = source.value else {
                            return Err("`<<` must have a mapping or a list of mappings".into());
                        };
                        for (key, node) in more {
                            if !index.contains_key(&key.name) {
                                index.insert(key.name.clone(), entries.len());
                                entries.push((key, node));
                            }
                        }
                    }
                }
                Value::Map(entries)
            }
        };
        self.place(Node { value, place }, anchor)
    }

    /// Inserts a finished node into its parent.
    fn place(&mut self, node: Node, anchor: usize) -> Result<(), String> {
        if anchor > 0 {
            let weight = weigh(&node);
            // Storing the anchored value is a copy, too.
            self.copied = self.copied.saturating_add(weight.bytes);
            if self.copied > self.limits.copied_bytes {
                return Err(format!(
                    "anchors and aliases copy more than the maximum of {} bytes",
                    self.limits.copied_bytes
                ));
            }
            self.anchors.insert(anchor, Anchored { node: node.clone(), weight });
        }
        let Some(Open { holds, path, .. }) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match holds {
            Holds::List(list) => list.push(node),
            Holds::Map { entries, index, merged, key } => match key.take() {
                None => *key = Some(Pending::Key(Key { name: key_name(&node)?, place: node.place })),
                Some(Pending::Merge) => merged.push(node),
                Some(Pending::Key(name)) => match index.get(&name.name) {
                    Some(at) => {
                        if self.duplicates.len() < DUPLICATES_MAX {
                            let first = entries[*at].0.place.line;
                            let message = format!("occurs twice, first in line {first}");
                            let (path, place) = (below(path, &name.name), name.place);
                            self.duplicates.push(Fault { kind: FaultKind::Duplicate, path, place, message });
                        }
                        entries[*at] = (name, node);
                    }
                    None => {
                        index.insert(name.name.clone(), entries.len());
                        entries.push((name, node));
                    }
                },
            },
        }
        Ok(())
    }
}

fn too_many(limits: &Limits) -> String {
    format!("the document has more than {} values, including copies by aliases", limits.nodes)
}

fn weigh(node: &Node) -> Weight {
    let mut weight = Weight { nodes: 1, bytes: 64, levels: 0 };
    match &node.value {
        Value::Text(text) => weight.bytes += text.len(),
        Value::List(list) => list.iter().map(weigh).for_each(|more| add(&mut weight, more)),
        Value::Map(entries) => entries.iter().for_each(|(key, node)| {
            weight.bytes += key.name.len();
            add(&mut weight, weigh(node));
        }),
        _ => return weight,
    }
    weight.levels += 1;
    weight
}

fn add(weight: &mut Weight, more: Weight) {
    weight.nodes = weight.nodes.saturating_add(more.nodes);
    weight.bytes = weight.bytes.saturating_add(more.bytes);
    weight.levels = weight.levels.max(more.levels);
}

/// Returns the name of a key: the text of a scalar, as in JSON.
fn key_name(node: &Node) -> Result<String, String> {
    Ok(match &node.value {
        Value::Text(text) => text.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Null => return Err("a key is null: quote it".into()),
        Value::List(_) | Value::Map(_) => return Err("a key is not a scalar".into()),
    })
}

/// Returns the name of a core tag (`str` for `!!str`); `None` without a tag.
fn core(tag: Option<&Tag>) -> Result<Option<Cow<'_, str>>, String> {
    let Some(tag) = tag else { return Ok(None) };
    if tag.handle() == "!" && tag.suffix().is_empty() || (tag.handle().is_empty() && tag.suffix() == "!") {
        return Ok(Some("str".into()));
    }
    tag.suffix_in_namespace("tag:yaml.org,2002:")
        .map(Some)
        .ok_or_else(|| "the tag is not a standard YAML tag".to_owned())
}

fn core_tag(tag: Option<&Tag>, expected: &str) -> Result<(), String> {
    match core(tag)?.as_deref() {
        None => Ok(()),
        Some(name) if name == expected || name == "str" => Ok(()),
        Some(_) => Err("the tag does not match its value".into()),
    }
}

fn scalar_value(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let as_text = || Value::Text(Zeroizing::new(text.to_owned()));
    let not_finite = |_| "the value is a number that JSON cannot represent".to_owned();
    let resolved = || scalar::resolve(text).map_err(not_finite);
    let wrong = || "the tag does not match its value".to_owned();
    Ok(match core(tag)?.as_deref() {
        None if style == ScalarStyle::Plain => resolved()?,
        None | Some("str") => as_text(),
        Some("binary") => {
            let packed: Zeroizing<String> = Zeroizing::new(text.split_ascii_whitespace().collect());
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(&*packed)
                .map_err(|_| "the value is not base64".to_owned())?;
            let text = String::from_utf8(bytes).map_err(|_| "the value is binary data that is not UTF-8".to_owned())?;
            Value::Text(Zeroizing::new(text))
        }
        Some("int") => match resolved()? {
            value @ (Value::Int(_) | Value::UInt(_)) => value,
            _ => return Err(wrong()),
        },
        Some("float") => match resolved()? {
            Value::Int(number) => Value::Float(number as f64),
            Value::UInt(number) => Value::Float(number as f64),
            value @ Value::Float(_) => value,
            _ => return Err(wrong()),
        },
        Some("bool") => match resolved()? {
            value @ Value::Bool(_) => value,
            _ => return Err(wrong()),
        },
        Some("null") => match resolved()? {
            Value::Null => Value::Null,
            _ => return Err(wrong()),
        },
        Some("timestamp") => as_text(),
        Some(_) => return Err(wrong()),
    })
}
