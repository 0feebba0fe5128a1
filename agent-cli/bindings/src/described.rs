//! Finds the entries of a binding directory that only describe the binding. Such entries are not secret and not masked.
//!
//! In VCAP_SERVICES attributes are separate from credentials; in a directory both are files. An entry is not secret if
//! one of these is true:
//!
//! - It is `type` or `provider`, which the specification of service bindings defines.
//! - A `.metadata` file in SAP's format lists it as metadata and not as a credential.
//! - There is no such list, the directory has an entry `label`, and the entry has the name of an attribute. The entry
//!   `label` shows that attributes were written as by [`crate::Profile`], and that an attribute replaced a credential
//!   of the same name. Without `label`, `name` may be the name of a database and `plan` a password.

use serde_json::Value;
use zeroize::Zeroizing;

use crate::METADATA;
use crate::names::{PROVIDER, PUBLIC, TYPE};

/// Name of the attribute that is always present if attributes are written.
const LABEL: &str = "label";

/// Properties of a binding from which the entries that are not secret are determined.
pub(crate) struct Described {
    /// True if the entries include attributes.
    attributes: bool,
    /// Names that `.metadata` lists, each with true if the entry only describes the binding and false if it is a
    /// credential.
    listed: Vec<(String, bool)>,
}

impl Described {
    /// Determines the properties from the entries of a binding.
    pub(crate) fn new(entries: &[(String, Zeroizing<Vec<u8>>)]) -> Self {
        let find = |name: &str| entries.iter().find(|(entry, _)| entry == name).map(|(_, content)| content);
        let listed = find(METADATA).and_then(|content| serde_json::from_slice(content).ok());
        Self { attributes: find(LABEL).is_some(), listed: listed.as_ref().map(listed_in).unwrap_or_default() }
    }

    /// Returns true if an entry only describes the binding.
    pub(crate) fn is_public(&self, entry: &str) -> bool {
        let listed = |public| self.listed.iter().any(|(name, list)| name == entry && *list == public);
        match entry {
            TYPE | PROVIDER | METADATA => true,
            _ if !self.listed.is_empty() => listed(true) && !listed(false),
            _ => self.attributes && PUBLIC.contains(&&*entry.replace('-', "_")),
        }
    }
}

/// Returns the names in both lists of a `.metadata`, each with true for metadata and false for a credential.
fn listed_in(metadata: &Value) -> Vec<(String, bool)> {
    let names = |list: &str, public| {
        let properties = metadata.get(list).and_then(Value::as_array).into_iter().flatten();
        let names = properties.filter_map(|property| property.get("name").and_then(Value::as_str));
        names.map(move |name| (name.to_owned(), public)).collect::<Vec<_>>()
    };
    [names("metaDataProperties", true), names("credentialProperties", false)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(entries: &[(&str, &str)]) -> Vec<String> {
        let entries: Vec<(String, Zeroizing<Vec<u8>>)> = entries
            .iter()
            .map(|(name, content)| ((*name).to_owned(), Zeroizing::new(content.as_bytes().to_vec())))
            .collect();
        let described = Described::new(&entries);
        entries.iter().map(|(name, _)| name.clone()).filter(|name| described.is_public(name)).collect()
    }

    #[test]
    fn binding_attributes_are_separated_from_credentials() {
        // As written by `bindings write`, including attributes, spelled as in RFC 0030.
        let written =
            [("type", "t"), ("provider", "p"), ("label", "l"), ("name", "n"), ("instance-guid", "g"), ("pw", "x")];
        assert_eq!(public(&written), ["type", "provider", "label", "name", "instance-guid"]);
        // These entries are credentials, one of which is called name.
        assert_eq!(public(&[("type", "t"), ("name", "n"), ("plan", "x")]), ["type"]);
    }

    #[test]
    fn public_entries_are_listed_in_metadata() {
        let metadata = r#"{"metaDataProperties": [{"name": "type", "format": "text"}, {"name": "region", "format": "text"},
            {"name": "both", "format": "text"}],
            "credentialProperties": [{"name": "label", "format": "text"}, {"name": "both", "format": "text"}]}"#;
        let entries =
            [(".metadata", metadata), ("type", "t"), ("label", "x"), ("region", "eu"), ("both", "x"), ("name", "n")];
        assert_eq!(public(&entries), [".metadata", "type", "region"]);
        for broken in ["", "[]", "{\"metaDataProperties\": {}}", "{\"metaDataProperties\": [1, {\"name\": 2}]}"] {
            assert_eq!(
                public(&[(".metadata", broken), ("label", "l"), ("pw", "x")]),
                [".metadata", "label"],
                "{broken}"
            );
        }
    }
}
