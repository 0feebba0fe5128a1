//! Reads annotations (rule C51) and the items of volumes (rule C52). Messages contain no values of unknown fields.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use executor_core::reference::{REFERENCES_MAX, SecretReference};
use executor_yaml::{Limits, decode, parse};
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use tonic::Status;

use super::input::{ContainerSecrets, SecretInput, Target, field};
use crate::config::is_label;
use crate::failure::{SHOWN_MAX, Violations, quoted};

/// Limits of a YAML list of secrets.
const LIMITS: Limits = Limits { bytes: 64 << 10, depth: 8, nodes: 4096, copied_bytes: 16 << 10 };
/// Maximum total size of a pod's annotations with references, in bytes: the limit of Kubernetes for all annotations.
const ALL_MAX: usize = 256 << 10;
/// Maximum permission bits of a file.
const MODE_MAX: u32 = 0o777;
/// Maximum length of a file's path, in bytes.
const PATH_MAX: usize = 4095;
/// Maximum length of a file's path in a volume, in bytes.
const VOLUME_PATH_MAX: usize = 1024;
/// Maximum length of the name of a variable or a group, in bytes.
const NAME_MAX: usize = 255;

/// Origin of a list of secrets, which determines the allowed fields of the list's entries.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Annotation,
    /// A volume with this provider. Entries have relative paths.
    Volume(&'a str),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entry {
    file: Option<String>,
    env: Option<String>,
    provider: Option<String>,
    path: Option<String>,
    key: Option<String>,
    version: Option<Word>,
    mode: Option<u32>,
    group: Option<Word>,
}

/// A string that the YAML text may contain as a number, such as a version.
#[derive(Debug)]
struct Word(String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordVisitor;
        impl Visitor<'_> for WordVisitor {
            type Value = Word;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a whole number")
            }

            fn visit_str<E>(self, text: &str) -> Result<Word, E> {
                Ok(Word(text.to_owned()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }
        }
        deserializer.deserialize_any(WordVisitor)
    }
}

/// Reads the annotations with a prefix, and returns the secrets by container name.
///
/// # Errors
/// Returns INVALID_ARGUMENT with every violation if an annotation is invalid.
pub(crate) fn read(
    prefix: &str,
    annotations: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, ContainerSecrets>, Status> {
    let mut violations = Violations::default();
    let (mut all, mut bytes) = (BTreeMap::new(), 0);
    for (annotation, text) in annotations {
        let name = annotation.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
        let Some(container) = name else { continue };
        let field = field(annotation);
        if !is_label(container) {
            violations.add(&field, "does not end with the name of a container");
            continue;
        }
        bytes += text.len();
        let inputs = read_one(&field, text, Place::Annotation, &mut violations);
        all.insert(container.to_owned(), ContainerSecrets { annotation: annotation.clone(), inputs });
    }
    if bytes > ALL_MAX {
        let what = format!("annotations with secrets are {bytes} bytes; the maximum is {ALL_MAX}");
        violations.add("config.annotations", what);
    }
    violations.check()?;
    Ok(all)
}

/// Reads a list of secrets, and adds its violations to `violations`.
pub(super) fn read_one(field: &str, text: &str, place: Place<'_>, violations: &mut Violations) -> Vec<SecretInput> {
    let parsed = match parse(text, 1, &LIMITS) {
        Ok(parsed) => parsed,
        Err(error) => {
            violations.add(field, format!("{}: {error}", error.place));
            return Vec::new();
        }
    };
    let decoded = decode::<Vec<Entry>>(&parsed.root);
    let entries = decoded.value.unwrap_or_default();
    let faults: Vec<_> = parsed.duplicates.into_iter().chain(decoded.faults).collect();
    if entries.len() > REFERENCES_MAX {
        violations.add(field, format!("has {} entries; at most {REFERENCES_MAX} are allowed", entries.len()));
        return Vec::new();
    }
    for fault in &faults {
        let path = fault.path.chars().take(SHOWN_MAX).collect::<String>();
        violations.add(&format!("{field}{path}"), format!("{} ({})", fault.message, fault.place));
    }
    if entries.is_empty() && faults.is_empty() {
        violations.add(field, "is empty; it must be a list of secrets");
    }
    let (mut inputs, mut targets) = (Vec::new(), BTreeSet::new());
    for (index, entry) in entries.into_iter().enumerate() {
        let field = format!("{field}[{index}]");
        // Faulty fields were dropped while decoding; they are not reported as missing again.
        let prefix = format!("[{index}]");
        if faults.iter().any(|fault| fault.path.starts_with(&prefix)) {
            continue;
        }
        let Some(input) = input(&field, entry, place, violations) else { continue };
        let (kind, target) = input.target.name();
        if !targets.insert((kind, target.to_owned())) {
            violations.add(&format!("{field}.{kind}"), format!("{} is given twice", quoted(target)));
        }
        inputs.push(input);
    }
    inputs
}

fn input(field: &str, entry: Entry, place: Place<'_>, violations: &mut Violations) -> Option<SecretInput> {
    let Entry { file, env, mut provider, path, key, version, mode, group } = entry;
    if let Place::Volume(of_volume) = place {
        if env.is_some() {
            violations.add(&format!("{field}.env"), "a volume has only files");
        }
        if provider.is_some() {
            violations.add(&format!("{field}.provider"), "all items have the provider of the volume");
        }
        provider = Some(of_volume.to_owned());
    }
    let group = group.map(|group| group.0);
    let reference = SecretReference {
        provider: provider.unwrap_or_default(),
        path: path.unwrap_or_default(),
        key: key.unwrap_or_default(),
        version: version.map(|version| version.0).unwrap_or_default(),
    };
    for (part, fault) in reference.faults() {
        violations.add(&format!("{field}.{part}"), fault);
    }
    let has_access = mode.is_some() || group.is_some();
    if let Some(mode) = mode.filter(|&mode| mode > MODE_MAX) {
        violations.add(&format!("{field}.mode"), format!("is {mode:#o}; 0 to {MODE_MAX:#o} is allowed"));
    }
    if let Some(group) = group.as_deref()
        && (group.is_empty() || group.len() > NAME_MAX || group.contains(|c: char| c.is_control() || c == ':'))
    {
        violations.add(&format!("{field}.group"), format!("{} is not a group", quoted(group)));
    }
    let target = match (file, env) {
        (Some(path), None) => {
            let why = match place {
                Place::Annotation => misplaced(&path),
                Place::Volume(_) => misplaced_in_volume(&path),
            };
            if let Some(why) = why {
                violations.add(&format!("{field}.file"), format!("{} {why}", quoted(&path)));
            }
            Target::File { path, mode, group }
        }
        (None, Some(name)) => {
            if name.is_empty() || name.len() > NAME_MAX || name.contains(|c: char| c.is_control() || c == '=') {
                violations.add(&format!("{field}.env"), format!("{} is not a name", quoted(&name)));
            }
            if has_access {
                violations.add(field, "mode and group can only be set with file");
            }
            Target::Env(name)
        }
        _ => {
            violations.add(field, "must have either file or env");
            return None;
        }
    };
    Some(SecretInput { target, reference })
}

/// Message for a path with a reserved name.
const RESERVED: &str = "must not contain empty components, \".\" or names that begin with \"..\"";

fn is_reserved(name: &str) -> bool {
    name.is_empty() || name == "." || name.starts_with("..")
}

/// Returns the reason if a path is invalid for a file of a volume.
fn misplaced_in_volume(path: &str) -> Option<String> {
    if path.starts_with('/') {
        return Some("is not relative to the volume".to_owned());
    }
    if path.len() > VOLUME_PATH_MAX || path.split('/').any(|name| name.len() > NAME_MAX) {
        return Some(format!("is too long; the maximum is {VOLUME_PATH_MAX} bytes, and {NAME_MAX} per component"));
    }
    if path.contains(char::is_control) {
        return Some("contains a control character".to_owned());
    }
    path.split('/').any(is_reserved).then(|| RESERVED.to_owned())
}

/// Returns the reason if a path is invalid for a secret file. executord and the shim check the path again.
fn misplaced(path: &str) -> Option<String> {
    if path.len() > PATH_MAX {
        return Some(format!("is {} bytes; the maximum is {PATH_MAX}", path.len()));
    }
    let Some(below) = path.strip_prefix('/') else { return Some("is not an absolute path".to_owned()) };
    if path.contains(char::is_control) {
        return Some("contains a control character".to_owned());
    }
    if below.split('/').any(is_reserved) {
        return Some(RESERVED.to_owned());
    }
    let reserved = ["/proc", "/sys", "/dev"].into_iter().find(|top| Path::new(path).starts_with(top));
    reserved.map(|top| format!("is in {top}, where secret files are not allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "secrets.executor.v1";

    fn parsed(text: &str) -> Result<usize, String> {
        let annotations = [(format!("{PREFIX}/app"), text.to_owned()), ("other/app".to_owned(), "[".to_owned())];
        let all = read(PREFIX, &annotations.into()).map_err(|status| status.message().to_owned())?;
        Ok(all["app"].inputs.len())
    }

    /// Rule C51: unknown fields are refused, and one message has every violation, without values of unknown fields.
    #[test]
    fn every_violation_is_named_at_once() {
        let text = "- {file: relative, provider: V, path: /a, value: hunter2}\n\
                    - {env: A=B, provider: p, path: a, mode: 0600}\n\
                    - {file: /a, env: A, provider: p, path: a}\n\
                    - {provider: p, path: a}\n\
                    - {file: /b, provider: p, path: a, mode: 01777, group: 'a:b'}\n\
                    - {file: /b, provider: p, path: a}\n\
                    - {file: /proc/x, provider: 5, path: a}\n\
                    - hunter2\n\
                    - {file: relative, provider: V, path: /a, key: k, version: a/b}\n";
        let error = parsed(text).unwrap_err();
        for part in [
            "config.annotations[secrets.executor.v1/app][0].value: is an unknown field",
            "[1].env: \"A=B\" is not a name",
            "[1]: mode and group can only be set with file",
            "[2]: must have either file or env",
            "[3]: must have either file or env",
            "[4].mode: is 0o1777; 0 to 0o777",
            "[4].group",
            "[5].file: \"/b\" is given twice",
            "[6].provider: is a number; it must be a string: quote it",
            "[7]: is a string; it must be a mapping",
            "[8].file: \"relative\" is not an absolute path",
            "[8].provider",
            "[8].path",
            "[8].version",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn bad_input_is_refused() {
        let entry = "{file: /a, provider: p, path: a}";
        let many: String = (0..=REFERENCES_MAX).map(|n| format!("- {{file: /a{n}, provider: p, path: a}}\n")).collect();
        let long = format!("- {{file: /{}, provider: p, path: a}}", "a".repeat(PATH_MAX));
        let aliases = format!("- &a {entry}\n{}", "- *a\n".repeat(2000));
        for (text, expected) in [
            ("", "is empty"),
            ("[]", "is empty"),
            ("null", "is empty"),
            ("{}", "must be a list"),
            ("5", "must be a list"),
            ("[", "is not YAML"),
            ("- {file: /a", "is not YAML"),
            ("---\n- a\n---\n- b\n", "second document"),
            ("- {file: /a, file: /b, provider: p, path: a}", "[0].file"),
            ("- {file: !!binary aa, provider: p, path: a}", "app]"),
            ("- {? [a] : b}", "app]"),
            ("- {file: /a//b, provider: p, path: a}", "empty components"),
            ("- {file: /a/../b, provider: p, path: a}", "empty components"),
            ("- {file: /, provider: p, path: a}", "empty components"),
            ("- {file: /..data, provider: p, path: a}", "begin with"),
            ("- {file: \"/a\\nb\", provider: p, path: a}", "control character"),
            ("- {file: /dev/shm/a, provider: p, path: a}", "is in /dev"),
            ("- {file: /a, provider: p, path: a, mode: -1}", "[0].mode"),
            ("- {file: /a, provider: p, path: a, mode: '0600'}", "[0].mode"),
            ("- {file: /a, provider: p, path: a, version: [1]}", "[0].version"),
            ("- {env: '', provider: p, path: a}", "is not a name"),
            (&many, "has 257 entries; at most 256"),
            (&long, "bytes; the maximum is 4095"),
            (&aliases, "app]"),
            (&"[".repeat(60_000), "app]"),
            (&" ".repeat(70_000), "the maximum is 65536"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
            assert!(error.len() <= 4096, "{} bytes", error.len());
        }
        let name = |key: &str| read(PREFIX, &[(key.to_owned(), format!("[{entry}]"))].into()).map(|all| all.len());
        assert_eq!(name("secrets.executor.v1/a-1").unwrap(), 1);
        assert_eq!(name("secrets.executor.v1x/a").unwrap(), 0);
        for key in
            ["secrets.executor.v1/", "secrets.executor.v1/A", "secrets.executor.v1/a/b", "secrets.executor.v1/a\nb"]
        {
            assert!(name(key).unwrap_err().message().contains("name of a container"), "{key}");
        }
        let large = |name: &str| (format!("{PREFIX}/{name}"), format!("[{entry}]{}", " ".repeat(60_000)));
        let five = ["a", "b", "c", "d", "e"].map(large).into();
        assert!(read(PREFIX, &five).unwrap_err().message().contains("the maximum is 262144"));
    }

    /// Random text is read or refused without a panic.
    #[test]
    fn random_texts_are_read_or_refused() {
        let words = [
            "- ",
            "{",
            "}",
            "[",
            "]",
            "file: ",
            "/a",
            ", ",
            "env: ",
            "A",
            "provider: p",
            "path: a",
            "\n",
            "  ",
            "mode: ",
            "0600",
            "&a ",
            "*a",
            "<<: ",
            "!!str ",
            "\"",
            "'",
            "|",
            ">",
            "#",
            "\t",
            "\u{202e}",
            "\0",
            "é",
            ": ",
            "? ",
        ];
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut accepted = 0;
        for _ in 0..20_000 {
            let text: String = (0..next() % 24).map(|_| words[(next() % words.len() as u64) as usize]).collect();
            let text = if next() % 2 == 0 { format!("- {{file: /a, provider: p, path: a}}\n{text}") } else { text };
            match parsed(&text) {
                Ok(inputs) => accepted += inputs,
                Err(why) => assert!(why.starts_with("config.annotations"), "{why}"),
            }
        }
        assert!(accepted > 0, "the control");
    }
}
