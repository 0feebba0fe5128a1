//! Selects the bundle to install, and the bundles to upgrade to. Each decision is returned with its reason.
//!
//! The installed bundle can be upgraded to a bundle that names it in `replaces`, `skips` or `skipRange`, or that has
//! the same version (rule R1 of `docs/guides/catalogs.md`). `force` ignores these edges (rule R2). Bundles that are not
//! deprecated are preferred, then the highest version (rule R3). If the preferred bundle needs other packages or APIs,
//! it is refused, because these are not provided here (rule R5). A lower version is chosen only on request.

use std::cmp::Ordering;

use semver::Version;
use serde::Serialize;

use crate::catalog::blob::Requirement;
use crate::catalog::{Bundle, Catalog, Channel, Entry, Package};
use crate::range::Range;

/// Maximum number of steps of one upgrade.
const STEPS_MAX: usize = 1000;

/// Request for a bundle of a catalog.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub package: String,
    /// The channel; `None` for the package's default channel.
    pub channel: Option<String>,
    /// Accepted versions; `None` to accept all versions.
    pub range: Option<Range>,
}

/// The installed bundle.
#[derive(Clone, Debug)]
pub struct Installed {
    pub name: String,
    pub version: Version,
}

/// Edge of the upgrade graph: the reason why a bundle can be upgraded to another bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Edge {
    /// The bundle names the installed bundle in `replaces`.
    Replaces,
    /// The bundle names the installed bundle in `skips`.
    Skips,
    /// The bundle's `skipRange` contains the installed version.
    SkipRange,
    /// The bundle has the installed version, including the release after `+`.
    SameVersion,
    /// There is no edge; the upgrade is forced.
    Forced,
}

/// Decision about a bundle that was considered: chosen, or the reason why it was not chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub enum Verdict {
    Chosen,
    /// Another bundle is preferred, because it is not deprecated or has a higher version.
    Lower,
    /// The bundle's version is not in the requested range.
    NotInRange,
    /// No edge leads from the installed bundle to this bundle.
    NoEdge,
    /// The bundle is the installed bundle.
    Installed,
    /// The bundle requires packages or APIs that are not provided here.
    Requires {
        /// Requirements that are not met.
        requires: Vec<Requirement>,
    },
}

/// A bundle that was considered.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    pub name: String,
    /// Version of the bundle, with its release.
    pub version: String,
    /// Deprecation message, if deprecated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<String>,
    /// Edge from the installed bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<Edge>,
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// One step: an installation or an upgrade.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Name of the previous bundle; `None` for a first installation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The chosen bundle.
    pub to: Bundle,
    pub channel: String,
    /// Deprecations of the package, the channel and the bundle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deprecations: Vec<Deprecation>,
    /// All bundles that were considered, sorted by preference.
    pub candidates: Vec<Candidate>,
}

/// A deprecated package, channel or bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deprecation {
    /// Kind of the object: `package`, `channel` or `bundle`.
    pub of: &'static str,
    pub name: String,
    /// Message for users.
    pub message: String,
}

/// Reason why no bundle was chosen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("the catalog has no package {0:?}")]
    NoPackage(String),
    #[error("package {package:?} has no channel {channel:?}; it has {}", .known.join(", "))]
    NoChannel { package: String, channel: String, known: Vec<String> },
    #[error("package {package:?}, channel {channel:?}: no bundle has a version in {range:?}")]
    NoVersion { package: String, channel: String, range: String },
    #[error("{bundle} needs packages or APIs that are not provided here: {}; choose another version with --version", .requires.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Requires { bundle: String, requires: Vec<Requirement> },
    #[error("{installed} is the newest version in channel {channel:?}")]
    UpToDate { installed: String, channel: String },
    #[error(
        "channel {channel:?} has no upgrade from {installed} to a requested version; --force ignores the edges of the graph"
    )]
    NoEdge { installed: String, channel: String },
}

struct Found<'a> {
    bundle: &'a Bundle,
    edge: Option<Edge>,
    verdict: Verdict,
}

/// Returns the package and the channel of a query.
fn place<'a>(catalog: &'a Catalog, query: &Query) -> Result<(&'a Package, &'a Channel), ResolveError> {
    let package = catalog.packages.get(&query.package).ok_or_else(|| ResolveError::NoPackage(query.package.clone()))?;
    let channel = query.channel.as_deref().unwrap_or(&package.default_channel);
    let found = package.channels.get(channel).ok_or_else(|| ResolveError::NoChannel {
        package: package.name.clone(),
        channel: channel.to_owned(),
        known: package.channels.keys().cloned().collect(),
    })?;
    Ok((package, found))
}

/// Orders bundles by preference, the best first (rule R3).
fn preferred(one: &Bundle, other: &Bundle) -> Ordering {
    one.deprecation.is_some().cmp(&other.deprecation.is_some()).then_with(|| other.precedes(one))
}

/// Returns the edge from the installed bundle to an entry's bundle (rule R1).
pub fn edge(entry: &Entry, bundle: &Bundle, installed: &Installed) -> Option<Edge> {
    if entry.replaces.as_deref() == Some(&*installed.name) {
        Some(Edge::Replaces)
    } else if entry.skips.contains(&installed.name) {
        Some(Edge::Skips)
    } else if entry.skip_range.as_ref().is_some_and(|range| range.has(&installed.version)) {
        Some(Edge::SkipRange)
    } else if bundle.version == installed.version {
        Some(Edge::SameVersion)
    } else {
        None
    }
}

/// Chooses the bundle to install.
///
/// # Errors
/// Returns the reason if no bundle can be chosen.
pub fn install(catalog: &Catalog, query: &Query) -> Result<Step, ResolveError> {
    let (package, channel) = place(catalog, query)?;
    let found = entries(package, channel).map(|(_, bundle)| {
        let wanted = query.range.as_ref().is_none_or(|range| range.has(&bundle.version));
        Found { bundle, edge: None, verdict: if wanted { Verdict::Lower } else { Verdict::NotInRange } }
    });
    choose(None, (package, channel), found.collect(), || ResolveError::NoVersion {
        package: package.name.clone(),
        channel: channel.name.clone(),
        range: query.range.as_ref().map(ToString::to_string).unwrap_or_default(),
    })
}

/// Chooses the next step of an upgrade. With `force`, an upgrade to every other bundle of the channel is allowed (rule
/// R2).
///
/// # Errors
/// Returns the reason if no step is possible.
pub fn upgrade(catalog: &Catalog, query: &Query, installed: &Installed, force: bool) -> Result<Step, ResolveError> {
    let (package, channel) = place(catalog, query)?;
    let found: Vec<_> = entries(package, channel)
        .map(|(entry, bundle)| {
            let wanted = query.range.as_ref().is_none_or(|range| range.has(&bundle.version));
            let edge = edge(entry, bundle, installed).or(force.then_some(Edge::Forced));
            let verdict = match edge {
                _ if bundle.name == installed.name => Verdict::Installed,
                _ if !wanted => Verdict::NotInRange,
                None => Verdict::NoEdge,
                Some(_) => Verdict::Lower,
            };
            Found { bundle, edge, verdict }
        })
        .collect();
    let is_head = channel.head == installed.name;
    choose(Some(installed), (package, channel), found, || {
        let (installed, channel) = (installed.name.clone(), channel.name.clone());
        if is_head {
            ResolveError::UpToDate { installed, channel }
        } else {
            ResolveError::NoEdge { installed, channel }
        }
    })
}

/// Returns the whole upgrade path from the installed bundle. Each step follows an edge, and the path is as long as
/// possible. If versions are requested, the last bundle has a requested version; intermediate bundles may have other
/// versions.
///
/// # Errors
/// Returns the reason if no step is possible.
pub fn path(catalog: &Catalog, query: &Query, installed: &Installed, force: bool) -> Result<Vec<Step>, ResolveError> {
    // A forced upgrade is a single step.
    if force {
        return upgrade(catalog, query, installed, true).map(|step| vec![step]);
    }
    let any = Query { range: None, ..query.clone() };
    let (mut steps, mut at, mut why): (Vec<Step>, _, _) = (Vec::new(), installed.clone(), None);
    while steps.len() < STEPS_MAX {
        let step = match upgrade(catalog, query, &at, false) {
            Err(ResolveError::NoEdge { .. }) if query.range.is_some() => upgrade(catalog, &any, &at, false),
            other => other,
        };
        match step {
            // From the second step on, versions must increase: equal versions could form a cycle.
            Ok(step) if steps.is_empty() || step.to.version > at.version => {
                at = Installed { name: step.to.name.clone(), version: step.to.version.clone() };
                steps.push(step);
            }
            Ok(_) => break,
            Err(error) => {
                why = Some(error);
                break;
            }
        }
    }
    // Drop the steps after the last step with a requested version.
    let wanted = |step: &Step| query.range.as_ref().is_none_or(|range| range.has(&step.to.version));
    match steps.iter().rposition(wanted) {
        Some(last) => {
            steps.truncate(last + 1);
            Ok(steps)
        }
        None => Err(why.filter(|_| steps.is_empty()).unwrap_or_else(|| ResolveError::NoEdge {
            installed: installed.name.clone(),
            channel: query
                .channel
                .clone()
                .or_else(|| steps.first().map(|step| step.channel.clone()))
                .unwrap_or_default(),
        })),
    }
}

fn entries<'a>(package: &'a Package, channel: &'a Channel) -> impl Iterator<Item = (&'a Entry, &'a Bundle)> {
    channel.entries.values().filter_map(|entry| Some((entry, package.bundles.get(&entry.name)?)))
}

fn choose(
    installed: Option<&Installed>,
    (package, channel): (&Package, &Channel),
    mut found: Vec<Found<'_>>,
    none: impl FnOnce() -> ResolveError,
) -> Result<Step, ResolveError> {
    found.sort_by(|one, other| preferred(one.bundle, other.bundle));
    for it in &mut found {
        if it.verdict == Verdict::Lower && !it.bundle.requires.is_empty() {
            it.verdict = Verdict::Requires { requires: it.bundle.requires.clone() };
        }
    }
    let best = found.iter_mut().find(|it| matches!(it.verdict, Verdict::Lower | Verdict::Requires { .. }));
    let best = best.ok_or_else(none)?;
    if let Verdict::Requires { requires } = &best.verdict {
        return Err(ResolveError::Requires { bundle: best.bundle.name.clone(), requires: requires.clone() });
    }
    best.verdict = Verdict::Chosen;
    let to = best.bundle.clone();
    let deprecated = [
        ("package", &package.name, &package.deprecation),
        ("channel", &channel.name, &channel.deprecation),
        ("bundle", &to.name, &to.deprecation),
    ];
    let deprecations = deprecated
        .into_iter()
        .filter_map(|(of, name, message)| Some(Deprecation { of, name: name.clone(), message: message.clone()? }));
    let deprecations = deprecations.collect();
    let candidates = found
        .into_iter()
        .map(|Found { bundle, edge, verdict }| Candidate {
            name: bundle.name.clone(),
            version: bundle.version_text(),
            deprecated: bundle.deprecation.clone(),
            edge,
            verdict,
        })
        .collect();
    Ok(Step { from: installed.map(|it| it.name.clone()), to, channel: channel.name.clone(), deprecations, candidates })
}
