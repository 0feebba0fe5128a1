//! Draws the upgrade graph as a Mermaid diagram.

use std::fmt::Write as _;

use executor_core::text::is_harmful;

use super::model::{Catalog, Channel, Package};

/// Draws one package, or all packages if `package` is `None`.
pub fn draw(catalog: &Catalog, package: Option<&str>) -> String {
    let mut text = "graph LR\n  classDef deprecated fill:#E8960F\n  classDef head stroke-width:4px\n".to_owned();
    for package in catalog.packages.values().filter(|it| package.is_none_or(|name| it.name == name)) {
        let mut deprecated: Vec<String> = package.deprecation.iter().map(|_| id(&[&package.name])).collect();
        let _ = writeln!(text, "  subgraph {}[{}]", id(&[&package.name]), quoted(&package.name));
        for channel in package.channels.values() {
            let channel_id = id(&[&package.name, &channel.name]);
            let _ = writeln!(text, "    subgraph {channel_id}[{}]", quoted(&channel.name));
            draw_channel(&mut text, package, channel);
            text.push_str("    end\n");
            deprecated.extend(channel.deprecation.iter().map(|_| channel_id.clone()));
        }
        text.push_str("  end\n");
        for id in deprecated {
            let _ = writeln!(text, "  class {id} deprecated");
        }
    }
    text
}

fn draw_channel(text: &mut String, package: &Package, channel: &Channel) {
    let node = |name: &str| format!("{}[{}]", id(&[&package.name, &channel.name, name]), quoted(name));
    // Sort by version, highest first, and then by name.
    let mut entries: Vec<_> = channel.entries.values().collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(package.bundles.get(&entry.name).map(|bundle| &bundle.version)));
    for entry in &entries {
        let to = node(&entry.name);
        let class = match package.bundles.get(&entry.name) {
            Some(bundle) if bundle.deprecation.is_some() => ":::deprecated",
            _ if channel.head == entry.name => ":::head",
            _ => "",
        };
        let _ = writeln!(text, "      {to}{class}");
        if let Some(replaces) = &entry.replaces {
            let _ = writeln!(text, "      {}-- replaces --> {to}", node(replaces));
        }
        for skip in &entry.skips {
            let _ = writeln!(text, "      {}-- skips --> {to}", node(skip));
        }
        if let Some(range) = &entry.skip_range {
            for other in entries.iter().filter(|other| other.name != entry.name) {
                if package.bundles.get(&other.name).is_some_and(|bundle| range.has(&bundle.version)) {
                    let _ = writeln!(
                        text,
                        "      {}-- {} --> {to}",
                        node(&other.name),
                        quoted(&format!("skipRange {range}"))
                    );
                }
            }
        }
    }
}

/// Returns an identifier of letters, digits and `_`. Different names have different identifiers.
fn id(names: &[&str]) -> String {
    let mut id = String::new();
    for name in names {
        for c in name.chars() {
            if c.is_ascii_alphanumeric() { id.push(c) } else { _ = write!(id, "_{:x}_", u32::from(c)) }
        }
        id.push_str("__");
    }
    id
}

/// Quotes a string and escapes its special characters.
fn quoted(text: &str) -> String {
    let escaped: String = text.chars().filter(|c| !is_harmful(*c)).collect();
    format!("\"{}\"", escaped.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;"))
}
