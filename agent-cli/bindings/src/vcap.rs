//! Translates VCAP_SERVICES: `{"LABEL": [{"name": ..., "credentials": {...}, ...}, ...], ...}`.
//!
//! [`Profile`] describes the differences between the translations.

use serde_json::value::RawValue;
use zeroize::Zeroizing;

use crate::bindings::{Bindings, Builder};
use crate::json::{Document, Json};
use crate::names::{PROVIDER, PUBLIC, TYPE, is_entry};
use crate::violation::{Refused, Violation};
use crate::{INPUT_MAX, Profile};

/// An object's entries.
type Entries<'a> = Vec<(String, &'a RawValue)>;

impl Bindings {
    /// Returns the whole VCAP_SERVICES as one file, without white space.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON, is nested too deeply, or is too large.
    pub fn one_file(vcap_services: &[u8]) -> Result<Self, Refused> {
        let content = text(vcap_services)
            .and_then(Document::read)
            .and_then(|(document, whole)| services(document, whole).and_then(|_| document.compact(whole)))
            .map_err(|violation| Refused(vec![violation]))?;
        Self::from_one_file(content)
    }
}

impl Builder {
    /// Adds every binding of VCAP_SERVICES.
    #[must_use]
    pub fn vcap_services(mut self, vcap_services: &[u8], profile: Profile) -> Self {
        if let Err(violation) = translate(vcap_services, profile, &mut self) {
            self.refuse(violation);
        }
        self
    }
}

/// Checks that a document has at most [`INPUT_MAX`] bytes, and returns it as text.
fn text(bytes: &[u8]) -> Result<&str, Violation> {
    if bytes.len() > INPUT_MAX {
        return Err(Violation::Input(bytes.len()));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line_begins = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Violation::Syntax { line, column: before.len() - line_begins + 1 }
    })
}

/// Returns the lists of bindings in a document, each with its label.
fn services<'a>(document: Document<'a>, whole: &'a RawValue) -> Result<Entries<'a>, Violation> {
    match document.parse(whole)? {
        Json::Object(services) => Ok(services),
        _ => Err(Violation::NoServices),
    }
}

/// Adds every binding of a document.
fn translate(bytes: &[u8], profile: Profile, builder: &mut Builder) -> Result<(), Violation> {
    let (document, whole) = Document::read(text(bytes)?)?;
    for (service, list) in services(document, whole)? {
        let Json::Array(list) = document.parse(list)? else {
            builder.refuse(Violation::NoList(service));
            continue;
        };
        for (index, binding) in list.into_iter().enumerate() {
            match document.parse(binding)? {
                Json::Object(attributes) => one(document, &service, &attributes, profile, builder)?,
                _ => builder.refuse(Violation::NoBinding { service: service.clone(), number: index + 1 }),
            }
        }
    }
    Ok(())
}

/// Translates one binding. Returns errors of the document, and adds violations of the binding to the builder.
fn one<'a>(
    document: Document<'a>,
    service: &str,
    attributes: &Entries<'a>,
    profile: Profile,
    builder: &mut Builder,
) -> Result<(), Violation> {
    let name = name(document, attributes)?;
    let begun = builder.start(&name);
    let add = |entry: String, value: &'a RawValue, public: bool, builder: &mut Builder| {
        if !is_entry(&entry) {
            builder.refuse(Violation::FileName(entry));
        } else if !(profile.omits_empty() && document.parse(value)?.is_empty()) {
            let content = document.content(value)?;
            if begun {
                builder.put(&name, &entry, content, public);
            }
        }
        Ok(())
    };
    match attribute(attributes, "credentials").map(|value| document.parse(value)).transpose()? {
        Some(Json::Object(credentials)) => {
            for (key, value) in credentials {
                add(key, value, false, builder)?;
            }
        }
        Some(Json::Null) | None => {}
        Some(_) => builder.refuse(Violation::NoCredentials(name.clone())),
    }
    // Write attributes after the credentials, so that no credential replaces an attribute that describes the binding.
    if profile.writes_attributes() {
        for (key, value) in attributes.iter().filter(|(key, _)| key != "credentials") {
            add(profile.attribute(key), value, PUBLIC.contains(&key.as_str()), builder)?;
        }
    }
    if !begun {
        return Ok(());
    }
    // Cloud Controller uses the label as the key, so the key is the default for a missing label.
    let label = match attribute(attributes, "label") {
        Some(label) if !matches!(document.parse(label)?, Json::Null) => document.content(label)?,
        _ => Zeroizing::new(service.as_bytes().to_vec()),
    };
    let provider = if profile.provider_is_label() { label.clone() } else { service.as_bytes().to_vec().into() };
    builder.put(&name, TYPE, label, true);
    builder.put(&name, PROVIDER, provider, true);
    Ok(())
}

fn attribute<'a>(attributes: &Entries<'a>, name: &str) -> Option<&'a RawValue> {
    attributes.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
}

/// Returns the name of a binding: the attribute `name`, or else the name of the binding or of the service instance.
/// Cloud Controller derives the attribute `name` in the same order.
fn name<'a>(document: Document<'a>, attributes: &Entries<'a>) -> Result<String, Violation> {
    for key in ["name", "binding_name", "instance_name"] {
        match attribute(attributes, key).map(|value| document.parse(value)).transpose()? {
            Some(Json::String(mut name)) if !name.is_empty() => return Ok(std::mem::take(&mut *name)),
            Some(Json::Word(word)) => return Ok(word.to_owned()),
            _ => {}
        }
    }
    Ok(String::new())
}
