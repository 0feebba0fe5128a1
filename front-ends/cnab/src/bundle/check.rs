//! Checks the rules of CNAB 101 that span several fields, which a schema cannot express.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Bundle, Destination, applies};
use crate::action::BUILT_IN;
use crate::docker::Docker;
use crate::parameter_sources::{ParameterSources, Source};
use crate::paths::{OUTPUTS, RESERVED, is_below, is_plain, rooted};
use crate::violation::{Violations, pointer};
use crate::{dependencies, digest, extension, names, parameter_sources};

/// Checks a bundle and returns warnings.
pub(super) fn check(bundle: &Bundle, object: &Map<String, Value>, wrong: &mut Violations) -> Vec<String> {
    let mut warnings = Vec::new();
    identity(bundle, object, wrong);
    images(bundle, &mut warnings);
    actions(bundle, wrong, &mut warnings);
    let places = destinations(bundle, wrong);
    shared(&places, wrong);
    outputs(bundle, wrong);
    definitions(bundle, object, wrong, &mut warnings);
    extensions(bundle, wrong, &mut warnings);
    warnings
}

fn identity(bundle: &Bundle, object: &Map<String, Value>, wrong: &mut Violations) {
    if object.get("name").is_some_and(Value::is_string)
        && let Some(fault) = names::fault(&bundle.name)
    {
        wrong.add("/name", 24, fault);
    }
    if object.get("version").is_some_and(Value::is_string) && semver::Version::parse(&bundle.version).is_err() {
        wrong.add("/version", 24, format!("{:?} is not a SemVer 2 version, such as 1.2.3", bundle.version));
    }
    if object.get("schemaVersion").is_some_and(Value::is_string) {
        let text = bundle.schema_version.strip_prefix('v').unwrap_or(&bundle.schema_version);
        let major = semver::Version::parse(text).map(|version| version.major);
        // The description in the published schema uses `v1`.
        if text != "1" && major.ok() != Some(1) {
            let message =
                format!("{:?} is not a supported version of the specification; use v1.x.y", bundle.schema_version);
            wrong.add("/schemaVersion", 24, message);
        }
    }
}

fn images(bundle: &Bundle, warnings: &mut Vec<String>) {
    for (index, image) in bundle.invocation_images.iter().enumerate() {
        match &image.content_digest {
            None => {
                warnings.push(format!("/invocationImages/{index} has no contentDigest: its content is not verified"));
            }
            Some(text) if digest::parts(text).is_none() => warnings.push(format!(
                "/invocationImages/{index}/contentDigest is not a digest (sha256: and 64 hexadecimal digits): no image \
                 matches it"
            )),
            Some(_) => {}
        }
    }
}

fn actions(bundle: &Bundle, wrong: &mut Violations, warnings: &mut Vec<String>) {
    for name in bundle.actions.keys() {
        let path = pointer("/actions", name);
        if BUILT_IN.contains(&name.as_str()) {
            wrong.add(&path, 35, "is the name of a built-in action; choose another name");
        }
        if name.is_empty() || name.contains('\0') {
            wrong.add(&path, 24, "is not a valid action name: it is empty or contains a NUL");
        } else if !name.contains('.') {
            warnings.push(format!("{path}: the name of a custom action should have a dot (org.example.action)"));
        }
    }
    let lists = (bundle.parameters.iter().map(|(name, it)| (pointer("/parameters", name), &it.apply_to)))
        .chain(bundle.credentials.iter().map(|(name, it)| (pointer("/credentials", name), &it.apply_to)))
        .chain(bundle.outputs.iter().map(|(name, it)| (pointer("/outputs", name), &it.apply_to)));
    for (path, apply_to) in lists {
        for action in
            apply_to.iter().filter(|name| !BUILT_IN.contains(&name.as_str()) && !bundle.actions.contains_key(*name))
        {
            warnings.push(format!("{path}/applyTo names {action:?}, which is not an action of this bundle"));
        }
    }
}

/// A parameter or credential with its destination.
struct Place<'a> {
    /// JSON pointer to the element.
    at: String,
    credential: bool,
    apply_to: &'a [String],
    env: Option<&'a str>,
    path: Option<String>,
}

fn destinations<'a>(bundle: &'a Bundle, wrong: &mut Violations) -> Vec<Place<'a>> {
    let parameters = bundle.parameters.iter().map(|(name, it)| {
        let at = format!("{}/destination", pointer("/parameters", name));
        (at, false, &it.apply_to, &it.destination)
    });
    let credentials = bundle
        .credentials
        .iter()
        .map(|(name, it)| (pointer("/credentials", name), true, &it.apply_to, &it.destination));
    parameters
        .chain(credentials)
        .map(|(at, credential, apply_to, destination)| {
            let Destination { env, path } = destination;
            if env.is_none() && path.is_none() {
                wrong.add(&at, 29, "has neither `env` nor `path`");
            }
            if let Some(env) = env {
                variable(&format!("{at}/env"), env, wrong);
            }
            if let Some(path) = path {
                file(&format!("{at}/path"), path, wrong);
            }
            Place { at, credential, apply_to, env: env.as_deref(), path: path.as_deref().map(rooted) }
        })
        .collect()
}

fn variable(at: &str, env: &str, wrong: &mut Violations) {
    if env.starts_with("CNAB_") {
        wrong.add(at, 33, format!("{env} begins with CNAB_, a prefix reserved for the runtime"));
    } else if env.is_empty() || env.contains(['=', '\0']) {
        wrong.add(at, 29, format!("{env:?} is not a valid variable name: it is empty, or contains `=` or a NUL"));
    }
}

fn file(at: &str, path: &str, wrong: &mut Violations) {
    let absolute = rooted(path);
    if !is_plain(&absolute) {
        wrong.add(
            at,
            28,
            format!("{path:?} is not a valid file path: use names separated by single slashes, without `.` and `..`"),
        );
    } else if absolute == OUTPUTS || is_below(&absolute, OUTPUTS) {
        wrong.add(at, 28, format!("{path} is in {OUTPUTS}, which is reserved for outputs"));
    } else if RESERVED
        .iter()
        .any(|taken| absolute == *taken || is_below(taken, &absolute) || is_below(&absolute, taken))
    {
        wrong.add(at, 28, format!("{path} conflicts with a path that the runtime reserves"));
    }
}

/// Refuses elements that share a destination. Two parameters or two credentials may share a destination if no action
/// uses both; a parameter and a credential may never share a destination.
fn shared(places: &[Place<'_>], wrong: &mut Violations) {
    for (index, second) in places.iter().enumerate() {
        for first in &places[..index] {
            if first.credential == second.credential && !together(first.apply_to, second.apply_to) {
                continue;
            }
            if first.env.is_some() && first.env == second.env {
                wrong.add(format!("{}/env", second.at), 32, format!("is the same as {}/env", first.at));
            }
            if let (Some(one), Some(other)) = (&first.path, &second.path) {
                let path = format!("{}/path", second.at);
                if one == other {
                    wrong.add(path, 32, format!("is the same as {}/path", first.at));
                } else if is_below(one, other) || is_below(other, one) {
                    wrong.add(
                        path,
                        32,
                        format!(
                            "conflicts with {}/path: one is a file, but also a parent directory of the other",
                            first.at
                        ),
                    );
                }
            }
        }
    }
}

fn together(one: &[String], other: &[String]) -> bool {
    one.is_empty() || other.is_empty() || one.iter().any(|action| applies(other, action))
}

fn outputs(bundle: &Bundle, wrong: &mut Violations) {
    let mut paths: BTreeMap<&str, String> = BTreeMap::new();
    for (name, output) in &bundle.outputs {
        let at = format!("{}/path", pointer("/outputs", name));
        let path = output.path.as_str();
        if !is_below(path, OUTPUTS) || !is_plain(path) {
            wrong.add(&at, 38, format!("{path:?} is not a valid file path below {OUTPUTS}"));
        }
        if name.is_empty() || name.len() > 200 || name.contains(['/', '\0']) || name.starts_with('.') {
            wrong.add(
                pointer("/outputs", name),
                38,
                "is not a valid output name: use 1 to 200 bytes without a slash or a NUL, not beginning with a dot",
            );
        }
        match paths.get(path) {
            Some(first) => wrong.add(&at, 38, format!("is the same as {first}")),
            None => drop(paths.insert(path, at)),
        }
    }
    let sorted: Vec<_> = paths.iter().collect();
    for (path, at) in &sorted {
        if let Some((_, inner)) = sorted.iter().find(|(inner, _)| is_below(inner, path)) {
            wrong.add((*at).clone(), 38, format!("is a file, but also a parent directory of {inner}"));
        }
    }
}

fn definitions(bundle: &Bundle, object: &Map<String, Value>, wrong: &mut Violations, warnings: &mut Vec<String>) {
    let declared = |name: &str| object.get("definitions").is_some_and(|definitions| definitions.get(name).is_some());
    let users = (bundle.parameters.iter().map(|(name, it)| (pointer("/parameters", name), &it.definition)))
        .chain(bundle.outputs.iter().map(|(name, it)| (pointer("/outputs", name), &it.definition)));
    for (at, definition) in users {
        if !declared(definition) {
            wrong.add(format!("{at}/definition"), 24, format!("{definition:?} is not in `definitions`"));
        }
    }
    for (name, definition) in &bundle.definitions {
        if let Some(default) = &definition.default
            && definition.validate("", default, 13).is_err()
        {
            warnings.push(format!("{}/default does not match its own definition", pointer("/definitions", name)));
        }
    }
}

fn extensions(bundle: &Bundle, wrong: &mut Violations, warnings: &mut Vec<String>) {
    for name in &bundle.required_extensions {
        if !bundle.custom.contains_key(name) && name != crate::docker::EXTENSION {
            warnings.push(format!("/requiredExtensions names {name:?}, which is not in `custom`"));
        }
        if !extension::SUPPORTED.contains(&name.as_str()) {
            warnings
                .push(format!("the required extension {name:?} is not supported: the bundle can be read but not run"));
        }
    }
    match dependencies::Dependencies::from_custom(&bundle.custom) {
        Ok(_) => {}
        Err(dependencies::Unusable::Draft) => warnings
            .push(format!("/custom/{} has the form of an old draft, which is not supported", dependencies::EXTENSION)),
        Err(dependencies::Unusable::Wrong(violations)) => wrong.append(violations),
    }
    match ParameterSources::from_custom(&bundle.custom) {
        Ok(sources) => warnings.extend(unusable_sources(bundle, &sources)),
        Err(violations) => wrong.append(violations),
    }
    wrong.append(Docker::new(&bundle.custom, &[]).err().unwrap_or_default());
}

/// Returns warnings about parameter sources that name something that the bundle does not define. Such a source never
/// has a value.
fn unusable_sources(bundle: &Bundle, sources: &ParameterSources) -> Vec<String> {
    let dependencies = dependencies::Dependencies::from_custom(&bundle.custom).unwrap_or_default();
    let mut odd = Vec::new();
    for (parameter, candidates) in sources.iter() {
        let at = pointer(parameter_sources::AT, parameter);
        if !bundle.parameters.contains_key(parameter) {
            odd.push(format!("{at}: the bundle has no such parameter"));
        }
        for source in candidates {
            match source {
                Source::Output(output) if !bundle.outputs.contains_key(output) => {
                    odd.push(format!("{at}: the bundle has no output {output:?}"));
                }
                Source::DependencyOutput { dependency, .. } if dependencies.requirement(dependency).is_none() => {
                    odd.push(format!("{at}: the bundle has no dependency {dependency:?}"));
                }
                _ => {}
            }
        }
    }
    odd
}
