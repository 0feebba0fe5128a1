//! Parses the objects of a catalog. Only the fields that the rules and the upgrade graph need are stored.
//!
//! The field `schema` is the type of an object. OLM defines four schemas; for objects with another schema, only schema,
//! package and name are stored.

use std::fmt;

use executor_core::image::ImageReference;
use memchr::memmem;
use semver::Version;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::form::Form;
use crate::range;
use crate::text::{AnyBool, AnyList, AnyText, AnyTexts, AnyWhole, Base64, Key, object};

/// Value of `schema` for packages.
pub const PACKAGE: &str = "olm.package";
/// Value of `schema` for channels.
pub const CHANNEL: &str = "olm.channel";
/// Value of `schema` for bundles.
pub const BUNDLE: &str = "olm.bundle";
/// Value of `schema` for deprecations.
pub const DEPRECATIONS: &str = "olm.deprecations";

object! { top
    /// Object with the schema `olm.package`.
    pub struct PackageBlob {
        schema("schema"): String,
        name("name"): String,
        /// Channel that is used by default.
        default_channel("defaultChannel"): String,
        /// Description for users.
        description("description"): String,
        icon("icon"): Icon,
        properties("properties"): AnyList<AnyProperty>,
    }
}

object! {
    pub(crate) struct Icon {
        _data("base64data"): Base64,
        _kind("mediatype"): AnyText,
    }
}

object! { top
    /// Object with the schema `olm.channel`.
    pub struct ChannelBlob {
        schema("schema"): String,
        name("name"): String,
        package("package"): String,
        /// One entry for each bundle of the channel.
        entries("entries"): Vec<EntryBlob>,
        properties("properties"): AnyList<AnyProperty>,
    }
}

object! {
    /// An entry of a channel: a bundle, and the bundles that can be upgraded to it.
    pub struct EntryBlob {
        name("name"): String,
        /// Name of the bundle that this bundle replaces.
        replaces("replaces"): String,
        /// Names of bundles that an upgrade to this bundle may skip.
        skips("skips"): Vec<String>,
        /// Range of versions that can be upgraded to this bundle.
        skip_range("skipRange"): String,
    }
}

object! { top
    /// Object with the schema `olm.deprecations`.
    pub struct DeprecationsBlob {
        schema("schema"): String,
        package("package"): String,
        /// Deprecated objects.
        entries("entries"): Vec<DeprecationBlob>,
    }
}

object! {
    pub struct DeprecationBlob {
        /// The deprecated object.
        reference("reference"): ReferenceBlob,
        /// Message for users.
        message("message"): String,
    }
}

object! {
    /// Reference to an object of a package.
    pub struct ReferenceBlob {
        schema("schema"): String,
        name("name"): String,
    }
}

object! { top
    struct BundleFields {
        schema("schema"): String,
        name("name"): String,
        package("package"): String,
        image("image"): String,
        properties("properties"): Vec<Property>,
        related("relatedImages"): Vec<RelatedImage>,
    }
}

object! {
    struct RelatedImage {
        _name("name"): AnyText,
        image("image"): String,
    }
}

/// A requirement that a bundle declares in its properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Requirement {
    /// The bundle requires a package with a version in a range.
    Package {
        package: String,
        /// The range of versions, as written in the catalog.
        range: String,
    },
    /// The bundle requires a package that provides this API.
    #[serde(rename = "gvk")]
    Api { group: String, version: String, kind: String },
    /// A constraint, which is not evaluated.
    Constraint,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Package { package, range } => write!(f, "package {package} {range}"),
            Self::Api { group, version, kind } => write!(f, "API {kind} of {group}/{version}"),
            Self::Constraint => f.write_str("a constraint (olm.constraint)"),
        }
    }
}

/// An object of schema `olm.bundle`, with the violations that were found in the object itself.
#[derive(Clone, Debug, Default)]
pub struct BundleBlob {
    pub name: String,
    pub package: String,
    /// Reference of the bundle's image.
    pub image: String,
    /// Version; `None` if the version is invalid.
    pub version: Option<Version>,
    /// Release, which orders bundles of equal version; may be empty.
    pub release: String,
    pub requires: Vec<Requirement>,
    /// Rules that the bundle itself breaks, each with a message.
    pub faults: Vec<(&'static str, String)>,
}

/// An object of a catalog.
#[derive(Clone, Debug)]
pub enum Blob {
    /// Object with the schema `olm.package`.
    Package(PackageBlob),
    /// Object with the schema `olm.channel`.
    Channel(ChannelBlob),
    /// Object with the schema `olm.bundle`.
    Bundle(BundleBlob),
    /// Object with the schema `olm.deprecations`.
    Deprecations(DeprecationsBlob),
    /// An object with another schema.
    Other {
        schema: String,
        /// Package; may be empty.
        package: String,
        /// Name; may be empty.
        name: String,
    },
}

impl Blob {
    /// Returns schema, package and name.
    pub fn meta(&self) -> (&str, &str, &str) {
        match self {
            Self::Package(it) => (PACKAGE, &it.name, &it.name),
            Self::Channel(it) => (CHANNEL, &it.package, &it.name),
            Self::Bundle(it) => (BUNDLE, &it.package, &it.name),
            Self::Deprecations(it) => (DEPRECATIONS, &it.package, ""),
            Self::Other { schema, package, name } => (schema, package, name),
        }
    }
}

object! { top
    /// Fields that an object of any schema may have.
    struct Meta {
        schema("schema"): String,
        package("package"): String,
        name("name"): String,
    }
}

/// Guesses the schema without parsing, from the first unindented key `schema` in YAML or the first `"schema"` in JSON.
fn guess(form: Form, text: &str) -> &'static str {
    let found = match form {
        Form::Json => memmem::find(text.as_bytes(), b"\"schema\"").map(|at| at + 8),
        Form::Yaml if text.starts_with("schema:") => Some(6),
        Form::Yaml => memmem::find(text.as_bytes(), b"\nschema:").map(|at| at + 7),
    };
    let rest = found.map_or("", |at| &text[at..]).trim_start_matches([':', ' ', '"', '\'']);
    // None of the four schemas is a prefix of another, so their order does not matter.
    [DEPRECATIONS, PACKAGE, CHANNEL, BUNDLE].into_iter().find(|schema| rest.starts_with(schema)).unwrap_or_default()
}

/// Reads an object as the guessed type; `None` if the guess is wrong or the object is invalid.
fn read_guessed(form: Form, text: &str) -> Option<Blob> {
    Some(match guess(form, text) {
        PACKAGE => Blob::Package(form.read::<PackageBlob>(text).ok().filter(|it| it.schema == PACKAGE)?),
        CHANNEL => Blob::Channel(form.read::<ChannelBlob>(text).ok().filter(|it| it.schema == CHANNEL)?),
        BUNDLE => Blob::Bundle(form.read::<BundleFields>(text).ok().filter(|it| it.schema == BUNDLE)?.into()),
        DEPRECATIONS => {
            Blob::Deprecations(form.read::<DeprecationsBlob>(text).ok().filter(|it| it.schema == DEPRECATIONS)?)
        }
        _ => return None,
    })
}

/// Reads an object.
///
/// # Errors
/// Returns the broken rule and a message if the object is invalid.
pub fn read(form: Form, text: &str) -> Result<Blob, (&'static str, String)> {
    if let Some(blob) = read_guessed(form, text) {
        return Ok(blob);
    }
    let unparsed = |error: String| ("C1", error);
    let meta: Meta = form.read(text).map_err(unparsed)?;
    let typed = |error: String| ("C1", format!("as {}: {error}", meta.schema));
    Ok(match &*meta.schema {
        "" => return Err(("C3", "has no schema".to_owned())),
        PACKAGE => Blob::Package(form.read(text).map_err(typed)?),
        CHANNEL => Blob::Channel(form.read(text).map_err(typed)?),
        BUNDLE => Blob::Bundle(form.read::<BundleFields>(text).map_err(typed)?.into()),
        DEPRECATIONS => Blob::Deprecations(form.read(text).map_err(typed)?),
        _ => Blob::Other { schema: meta.schema, package: meta.package, name: meta.name },
    })
}

impl From<BundleFields> for BundleBlob {
    fn from(fields: BundleFields) -> Self {
        let mut bundle = Self { name: fields.name, package: fields.package, image: fields.image, ..Self::default() };
        let mut faults = Vec::new();
        let (mut packages, mut objects) = (Vec::new(), 0usize);
        for (index, Property { kind, value }) in fields.properties.into_iter().enumerate() {
            if kind.is_empty() {
                faults.push(("C13", format!("properties[{index}].type is not set")));
            }
            match value {
                Found::Absent => faults.push(("C13", format!("properties[{index}].value is not set"))),
                Found::Package(package) => packages.push(package),
                Found::Required(it) => {
                    bundle.requires.push(Requirement::Package { package: it.package_name, range: it.version_range });
                }
                Found::ApiRequired(it) => {
                    bundle.requires.push(Requirement::Api { group: it.group, version: it.version, kind: it.kind });
                }
                Found::Constraint => bundle.requires.push(Requirement::Constraint),
                Found::Object => objects += 1,
                Found::Other => {}
            }
        }
        match &packages[..] {
            [package] => {
                if package.package_name != bundle.package {
                    faults.push((
                        "C6",
                        format!("the property olm.package names another package, {:?}", package.package_name),
                    ));
                }
                match range::version(&package.version) {
                    Ok(version) => {
                        if !version.build.is_empty() && !package.release.is_empty() {
                            faults
                                .push(("C6", format!("version {version} has build metadata in addition to a release")));
                        }
                        bundle.version = Some(version);
                    }
                    Err(error) => faults.push(("C6", format!("version {error}"))),
                }
                let release = &package.release;
                if !release.is_empty() && (release.len() > 20 || !range::is_release(release)) {
                    faults.push(("C6", format!("release {release:?} is not valid")));
                }
                bundle.release = package.release.clone();
            }
            other => {
                faults.push(("C6", format!("has {} olm.package properties; exactly one is required", other.len())));
            }
        }
        let related = fields.related.iter().enumerate();
        let related = related.map(|(index, related)| (format!("relatedImages[{index}].image"), &related.image));
        for (field, image) in std::iter::once(("image".to_owned(), &bundle.image)).chain(related) {
            if let (false, Err(bad)) = (image.is_empty(), ImageReference::parse_registry(image)) {
                faults.push(("C6", format!("{field} {image:?}: {bad}")));
            }
        }
        if bundle.image.is_empty() && objects == 0 {
            faults.push(("C6", "has no image".to_owned()));
        }
        bundle.faults = faults;
        bundle
    }
}

#[derive(Clone, Debug, Default)]
struct Property {
    kind: String,
    value: Found,
}

/// The fields of a property's value that the rules need.
#[derive(Clone, Debug, Default)]
enum Found {
    #[default]
    Absent,
    Package(PackageProperty),
    Required(RequiredProperty),
    ApiRequired(ApiProperty),
    Constraint,
    Object,
    Other,
}

object! {
    struct PackageProperty {
        package_name("packageName"): String,
        version("version"): String,
        release("release"): String,
    }
}

object! {
    struct RequiredProperty {
        package_name("packageName"): String,
        version_range("versionRange"): String,
    }
}

object! {
    struct ApiProperty {
        group("group"): String,
        version("version"): String,
        kind("kind"): String,
    }
}

object! {
    struct ObjectProperty {
        data("data"): Base64,
    }
}

object! {
    struct ChannelProperty {
        _name("channelName"): AnyText,
        _priority("priority"): AnyWhole,
    }
}

object! {
    /// Fields of a CSV that catalogs contain for display. Their types are checked; their values are not stored.
    struct CsvProperty {
        _annotations("annotations"): AnyTexts,
        _services("apiServiceDefinitions"): Described,
        _definitions("crdDescriptions"): Described,
        _description("description"): AnyText,
        _display_name("displayName"): AnyText,
        _modes("installModes"): AnyList<InstallMode>,
        _keywords("keywords"): AnyList<AnyText>,
        _labels("labels"): AnyTexts,
        _links("links"): AnyList<Link>,
        _maintainers("maintainers"): AnyList<Maintainer>,
        _maturity("maturity"): AnyText,
        _minimum("minKubeVersion"): AnyText,
        _native("nativeAPIs"): AnyList<ApiProperty>,
        _provider("provider"): Link,
    }
}

object! {
    struct Described {
        _owned("owned"): AnyList<Description>,
        _required("required"): AnyList<Description>,
    }
}

object! {
    /// Description of a CustomResourceDefinition or an API service.
    struct Description {
        _name("name"): AnyText,
        _group("group"): AnyText,
        _version("version"): AnyText,
        _kind("kind"): AnyText,
        _deployment("deploymentName"): AnyText,
        _port("containerPort"): AnyWhole,
        _display_name("displayName"): AnyText,
        _description("description"): AnyText,
        _resources("resources"): AnyList<ApiProperty>,
        _status("statusDescriptors"): AnyList<Descriptor>,
        _spec("specDescriptors"): AnyList<Descriptor>,
        _actions("actionDescriptors"): AnyList<Descriptor>,
    }
}

object! {
    struct Descriptor {
        _path("path"): AnyText,
        _display_name("displayName"): AnyText,
        _description("description"): AnyText,
        _x("x-descriptors"): AnyList<AnyText>,
    }
}

object! {
    struct InstallMode {
        _type("type"): AnyText,
        _supported("supported"): AnyBool,
    }
}

object! {
    struct Link {
        _name("name"): AnyText,
        _url("url"): AnyText,
    }
}

object! {
    struct Maintainer {
        _name("name"): AnyText,
        _email("email"): AnyText,
    }
}

object! {
    /// A property of a package or a channel with any value.
    pub(crate) struct AnyProperty {
        _type("type"): AnyText,
    }
}

/// Parses a property's value according to the property's type.
struct ValueOf<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for ValueOf<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        Ok(match self.0 {
            "olm.package" => Option::deserialize(deserializer)?.map_or(Found::Absent, Found::Package),
            "olm.package.required" => Option::deserialize(deserializer)?.map_or(Found::Absent, Found::Required),
            "olm.gvk.required" => Option::deserialize(deserializer)?.map_or(Found::Absent, Found::ApiRequired),
            "olm.gvk" => Option::<ApiProperty>::deserialize(deserializer)?.map_or(Found::Absent, |_| Found::Other),
            "olm.constraint" => {
                Option::<IgnoredAny>::deserialize(deserializer)?.map_or(Found::Absent, |_| Found::Constraint)
            }
            "olm.channel" => {
                Option::<ChannelProperty>::deserialize(deserializer)?.map_or(Found::Absent, |_| Found::Other)
            }
            "olm.csv.metadata" => {
                Option::<CsvProperty>::deserialize(deserializer)?.map_or(Found::Absent, |_| Found::Other)
            }
            "olm.bundle.object" => match Option::<ObjectProperty>::deserialize(deserializer)? {
                None => Found::Absent,
                Some(object) => {
                    let text = std::str::from_utf8(&object.data.0)
                        .map_err(|_| D::Error::custom("olm.bundle.object is not UTF-8"))?;
                    let form = Form::from_text(text);
                    form.read::<IgnoredAny>(text)
                        .map_err(|error| D::Error::custom(format!("olm.bundle.object: {error}")))?;
                    Found::Object
                }
            },
            _ => Option::<IgnoredAny>::deserialize(deserializer)?.map_or(Found::Absent, |_| Found::Other),
        })
    }
}

impl<'de> Deserialize<'de> for Property {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Property;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a property")
            }
            fn visit_unit<E>(self) -> Result<Property, E> {
                Ok(Property::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Property, A::Error> {
                let (mut property, mut typed, mut early) = (Property::default(), false, None);
                while let Some(key) = map.next_key::<Key>()? {
                    if key.is("type") {
                        property.kind = map.next_value::<Option<String>>()?.unwrap_or_default();
                        typed = true;
                    } else if !key.is("value") {
                        map.next_value::<IgnoredAny>()?;
                    } else if typed {
                        property.value = map.next_value_seed(ValueOf(&property.kind))?;
                    } else {
                        // The value precedes the type: store the value until the type is known.
                        early = Some(map.next_value::<Value>()?);
                    }
                }
                if let Some(value) = early {
                    property.value = ValueOf(&property.kind).deserialize(value).map_err(A::Error::custom)?;
                }
                Ok(property)
            }
        }
        deserializer.deserialize_any(Object)
    }
}
