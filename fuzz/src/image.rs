//! Target: image references from clients, and image configurations from registries and archives.
//!
//! Input format: a reference, terminated by a byte 255, then a configuration as JSON.

use std::path::Component;

use executor_core::image::{Digest, ImageDefaults, ImageReference, parse_signal};
use oci_spec::image::ImageConfiguration;

/// Runs the target of this module.
pub fn run(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 255);
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    reference(&text);
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!(digest.to_string(), text);
        assert!(digest.hex().bytes().all(|b| b.is_ascii_hexdigit()));
    }
    assert!(parse_signal(&text).is_none_or(|signal| (1..=64).contains(&signal)));
    if let Ok(configuration) = serde_json::from_slice(parts.next().unwrap_or_default()) {
        defaults(&configuration);
    }
}

fn reference(text: &str) {
    let Ok(reference) = ImageReference::parse_short(text) else { return };
    let printed = reference.to_string();
    assert_eq!(printed.parse::<ImageReference>().as_ref(), Ok(&reference), "{printed}");
    assert_eq!(ImageReference::parse_short(&printed).as_ref(), Ok(&reference), "{printed}");
    match &reference {
        ImageReference::Registry(repository, selector) => {
            // Repository and selector are inserted into URLs unchanged.
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/:[]".contains(&b);
            assert!(repository.to_string().bytes().all(plain), "{printed}");
            assert!(!repository.path().split('/').any(|part| part.is_empty() || part == "." || part == ".."));
            assert!(selector.wanted().bytes().all(plain) && (selector.tag().is_some() || selector.digest().is_some()));
        }
        other => {
            let (path, _) =
                other.file().unwrap_or_else(|| unreachable!("the reference names neither a registry nor a file"));
            assert!(path.is_absolute() && !path.components().any(|part| part == Component::ParentDir), "{printed}");
        }
    }
}

fn defaults(configuration: &ImageConfiguration) {
    let Ok(defaults) = ImageDefaults::from_configuration(configuration) else { return };
    let mut names: Vec<&str> = defaults.env.iter().map(|(name, _)| &**name).collect();
    assert!(names.iter().all(|name| !name.is_empty() && !name.contains(['=', '\0'])));
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a variable occurs twice");
    assert!(defaults.volumes.iter().all(|volume| volume.starts_with('/') && !volume.contains("/../")));
    for args in [vec![], vec!["a".to_owned()]] {
        let own = args.len();
        if let Ok(command) = defaults.command(String::new(), args, |_| false) {
            assert!(!command.path.is_empty());
            let at = i64::try_from(own).unwrap_or(0) + command.shift;
            assert!(
                own == 0 || i64::try_from(command.args.len()) == Ok(at),
                "the reported shift differs from the position of the request's arguments"
            );
        }
    }
}
