//! Reads the Kubernetes objects in a bundle's files.

use executor_yaml::{Limits, Node, Value, parse, parts};

use crate::fault::Faults;

/// Maximum number of objects of a file.
const OBJECTS_MAX: usize = 10_000;
/// Limits of a document. CustomResourceDefinitions are the largest documents.
const LIMITS: Limits = Limits { bytes: 16 << 20, depth: 100, nodes: 1_000_000, copied_bytes: 4 << 20 };

/// A Kubernetes object. The type does not implement `Debug`, because the object may be a Secret.
#[derive(Clone)]
pub struct Object {
    pub file: String,
    /// First line of the object, from 1.
    pub line: usize,
    pub api_version: String,
    pub kind: String,
    /// Name; may be empty.
    pub name: String,
    /// The whole object.
    pub node: Node,
}

impl Object {
    /// Returns the file and line for error messages.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

/// Returns the string at a path; empty if the value is absent or not a string.
pub(super) fn text<'a>(node: &'a Node, path: &[&str]) -> &'a str {
    at(node, path).and_then(Node::text).unwrap_or_default()
}

/// Returns the node at a path of keys.
pub(super) fn at<'a>(node: &'a Node, path: &[&str]) -> Option<&'a Node> {
    path.iter().try_fold(node, |node, key| node.get(key))
}

/// Returns the elements of the list at a path; an empty slice if the value is not a list.
pub(super) fn list<'a>(node: &'a Node, path: &[&str]) -> &'a [Node] {
    match at(node, path).map(|node| &node.value) {
        Some(Value::List(list)) => list,
        _ => &[],
    }
}

/// Returns the entries of the mapping at a path; no entries if the value is not a mapping.
pub(super) fn map<'a>(node: &'a Node, path: &[&str]) -> impl Iterator<Item = (&'a str, &'a Node)> {
    let entries = match at(node, path).map(|node| &node.value) {
        Some(Value::Map(entries)) => &entries[..],
        _ => &[],
    };
    entries.iter().map(|(key, node)| (&*key.name, node))
}

/// Returns the path and error message of each entry of a mapping whose value is not a string. If the value at the path
/// is not a mapping, returns one message about that value.
pub(super) fn no_texts(node: &Node, path: &[&str]) -> Vec<(String, String)> {
    match at(node, path).map(|node| &node.value) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Map(entries)) => entries
            .iter()
            .filter(|(_, node)| !matches!(node.value, Value::Null | Value::Text(_)))
            .map(|(key, node)| (format!("[{:?}]", key.name), format!("{}; it must be a string", node.value.kind())))
            .collect(),
        Some(other) => vec![(String::new(), format!("{}; it must be a mapping", other.kind()))],
    }
}

/// Returns the value of a key, ignoring case, as Go does for fields. If several keys differ only in case, returns the
/// value of the last key in byte order.
pub(super) fn folded<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    spellings(node, name).pop().map(|(_, node)| node)
}

/// Returns the entries whose keys differ from `name` at most in case, sorted by key.
pub(super) fn spellings<'a>(node: &'a Node, name: &str) -> Vec<(&'a str, &'a Node)> {
    let mut found: Vec<_> = map(node, &[]).filter(|(key, _)| key.eq_ignore_ascii_case(name)).collect();
    found.sort_by_key(|(key, _)| *key);
    found
}

/// Reads the objects of a file. If `first` is true, reads only the first object, as operator-registry does. Adds errors
/// to `faults` as violations of `rule`.
pub(super) fn read(file: &str, content: &[u8], first: bool, rule: &'static str, faults: &mut Faults) -> Vec<Object> {
    let Ok(text) = std::str::from_utf8(content) else {
        faults.add(file, rule, "is not UTF-8");
        return Vec::new();
    };
    let mut objects = Vec::new();
    for part in parts(text) {
        let place = format!("{file}:{}", part.line);
        let root = match parse(part.text, part.line, &LIMITS) {
            Ok(parsed) => parsed.root,
            Err(error) => {
                faults.add(format!("{file}:{}", error.place.line), rule, error.message);
                if first {
                    break;
                }
                continue;
            }
        };
        match object(file, part.line, root) {
            Ok(Some(object)) => objects.push(object),
            // The document has only comments.
            Ok(None) => continue,
            Err(why) => faults.add(place, rule, why),
        }
        if first {
            break;
        }
        if objects.len() > OBJECTS_MAX {
            faults.add(file, rule, format!("has more than {OBJECTS_MAX} objects"));
            break;
        }
    }
    objects
}

/// Adds an object of a plain bundle or, if the object is a list, the objects of the list.
pub(super) fn flatten(list: Object, objects: &mut Vec<Object>, faults: &mut Faults) {
    let Object { file, line, api_version, kind, name, node } = list;
    let items = match node.into_items() {
        Ok(items) => items,
        Err(node) => return objects.push(Object { file, line, api_version, kind, name, node }),
    };
    for item in items {
        if objects.len() >= OBJECTS_MAX {
            return faults.add(&*file, "P3", format!("has more than {OBJECTS_MAX} objects"));
        }
        let line = item.place.line;
        match object(&file, line, item) {
            Ok(Some(item)) => flatten(item, objects, faults),
            Ok(None) => faults.add(format!("{file}:{line}"), "P3", "is null; it must be an object"),
            Err(why) => faults.add(format!("{file}:{line}"), "P3", why),
        }
    }
}

fn object(file: &str, line: usize, node: Node) -> Result<Option<Object>, String> {
    match &node.value {
        Value::Null => return Ok(None),
        Value::Map(_) => {}
        other => return Err(format!("is {}; it must be an object", other.kind())),
    }
    let field = |path: &[&str]| match at(&node, path).map(|node| &node.value) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::Text(text)) => Ok(text.to_string()),
        Some(other) => Err(format!("{} is {}; it must be a string", path.join("."), other.kind())),
    };
    let (api_version, kind, name) = (field(&["apiVersion"])?, field(&["kind"])?, field(&["metadata", "name"])?);
    if kind.is_empty() {
        return Err("has no kind".to_owned());
    }
    Ok(Some(Object { file: file.to_owned(), line, api_version, kind, name, node }))
}
