//! Formats the output of `validate` and `explain`.

use executor_cli_kit::text::plain;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_cnab::action::Action;
use executor_cnab::bundle::{Bundle, Destination, applies};
use executor_cnab::definition::text;
use executor_cnab::dependencies::Dependencies;
use executor_cnab::violation::Violations;
use serde::Serialize;
use serde_json::Value;

#[derive(Serialize)]
struct Violation<'a> {
    path: &'a str,
    rule: u8,
    message: &'a str,
}

/// JSON output of `validate`.
#[derive(Serialize)]
pub(crate) struct Validated<'a> {
    pub(crate) valid: bool,
    name: Option<&'a str>,
    version: Option<&'a str>,
    violations: Vec<Violation<'a>>,
    warnings: &'a [String],
}

impl<'a> Validated<'a> {
    pub(crate) fn new(bundle: Option<&'a Bundle>, violations: Option<&'a Violations>, warnings: &'a [String]) -> Self {
        let violations = violations.into_iter().flat_map(Violations::iter);
        Self {
            valid: bundle.is_some(),
            name: bundle.map(|bundle| &*bundle.name),
            version: bundle.map(|bundle| &*bundle.version),
            violations: violations
                .map(|it| Violation { path: &it.path, rule: it.rule, message: &it.message })
                .collect(),
            warnings,
        }
    }

    pub(crate) fn text(&self, file: &str) -> String {
        let mut text = String::new();
        for violation in &self.violations {
            let at = if violation.path.is_empty() { String::new() } else { format!("{}: ", plain(violation.path)) };
            text.push_str(&format!("{at}{} (rule {})\n", plain(violation.message), violation.rule));
        }
        for warning in self.warnings {
            text.push_str(&format!("warning: {}\n", plain(warning)));
        }
        match (self.name, self.version) {
            (Some(name), Some(version)) => text.push_str(&format!("{} {} is valid\n", plain(name), plain(version))),
            _ => {
                let count = self.violations.len();
                let plural = if count == 1 { "" } else { "s" };
                text.push_str(&format!("{} is not valid: {count} violation{plural}\n", plain(file)));
            }
        }
        text
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Parameter<'a> {
    name: &'a str,
    r#type: String,
    required: bool,
    default: Option<&'a Value>,
    choices: &'a [Value],
    read_only: bool,
    write_only: bool,
    env: Option<&'a str>,
    path: Option<String>,
    apply_to: &'a [String],
    description: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Credential<'a> {
    name: &'a str,
    required: bool,
    env: Option<&'a str>,
    path: Option<String>,
    apply_to: &'a [String],
    description: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Output<'a> {
    name: &'a str,
    r#type: String,
    path: &'a str,
    write_only: bool,
    apply_to: &'a [String],
    description: &'a str,
}

#[derive(Serialize)]
struct Act<'a> {
    name: &'a str,
    modifies: bool,
    stateless: bool,
    description: &'a str,
}

/// JSON output of `explain`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explained<'a> {
    name: &'a str,
    version: &'a str,
    description: &'a str,
    image: &'a str,
    content_digest: Option<&'a str>,
    actions: Vec<Act<'a>>,
    parameters: Vec<Parameter<'a>>,
    credentials: Vec<Credential<'a>>,
    outputs: Vec<Output<'a>>,
    /// Dependencies in the order in which they are installed.
    dependencies: Vec<String>,
    required_extensions: &'a [String],
}

impl<'a> Explained<'a> {
    pub(crate) fn new(bundle: &'a Bundle, actions: &[&'a str]) -> Self {
        let matters = |apply_to: &[String]| actions.iter().any(|action| applies(apply_to, action));
        let kind = |definition: &str| bundle.definitions.get(definition).map_or_else(String::new, |it| it.type_name());
        let image = bundle.invocation_images.first();
        let act = |name: &&'a str| {
            let action = Action::new(&bundle.actions, name).ok();
            Act {
                name,
                modifies: action.as_ref().is_some_and(Action::modifies),
                stateless: action.as_ref().is_some_and(Action::is_stateless),
                description: bundle.actions.get(*name).map_or("", |it| &it.description),
            }
        };
        let parameters = bundle.parameters.iter().filter(|(_, it)| matters(&it.apply_to)).filter_map(|(name, it)| {
            let definition = bundle.definitions.get(&it.definition)?;
            let write_only = bundle.is_write_only(name);
            Some(Parameter {
                name,
                r#type: definition.type_name(),
                required: it.required && definition.default.is_none(),
                default: definition.default.as_ref().filter(|_| !write_only),
                choices: if write_only { &[] } else { &definition.choices },
                read_only: definition.read_only,
                write_only,
                env: it.destination.env.as_deref(),
                path: it.destination.absolute_path(),
                apply_to: &it.apply_to,
                description: if it.description.is_empty() { &definition.description } else { &it.description },
            })
        });
        let credentials = bundle.credentials.iter().filter(|(_, it)| matters(&it.apply_to)).map(|(name, it)| {
            let Destination { env, .. } = &it.destination;
            Credential {
                name,
                required: it.required,
                env: env.as_deref(),
                path: it.destination.absolute_path(),
                apply_to: &it.apply_to,
                description: &it.description,
            }
        });
        let outputs = bundle.outputs.iter().filter(|(_, it)| matters(&it.apply_to)).map(|(name, it)| Output {
            name,
            r#type: kind(&it.definition),
            path: &it.path,
            write_only: bundle.is_output_write_only(name),
            apply_to: &it.apply_to,
            description: &it.description,
        });
        let dependencies = Dependencies::from_custom(&bundle.custom).unwrap_or_default();
        Self {
            name: &bundle.name,
            version: &bundle.version,
            description: &bundle.about.description,
            image: image.map_or("", |image| &image.image),
            content_digest: image.and_then(|image| image.content_digest.as_deref()),
            actions: actions.iter().map(act).collect(),
            parameters: parameters.collect(),
            credentials: credentials.collect(),
            outputs: outputs.collect(),
            dependencies: dependencies.order("install").0.into_iter().map(str::to_owned).collect(),
            required_extensions: &bundle.required_extensions,
        }
    }

    pub(crate) fn text(&self, style: Style) -> String {
        let mut head = Table::bare(0);
        head.pair("bundle", format!("{} {}", self.name, self.version));
        for (name, value) in [("description", self.description), ("image", self.image)] {
            if !value.is_empty() {
                head.pair(name, value);
            }
        }
        head.pair("digest", self.content_digest.unwrap_or("none: the image's content is not verified"));
        if !self.dependencies.is_empty() {
            head.pair("dependencies", self.dependencies.join(", "));
        }
        let mut text = head.render(style);
        let cell = |text: &str| (text.to_owned(), Role::Plain);
        let all = |apply_to: &[String]| if apply_to.is_empty() { "all".to_owned() } else { apply_to.join(", ") };
        let place = |env: Option<&str>, path: &Option<String>| {
            let env = env.map(|env| format!("${env}"));
            [env, path.clone()].into_iter().flatten().collect::<Vec<_>>().join(" and ")
        };
        let mut section = |title: &str, table: Option<Table>| {
            if let Some(table) = table {
                text.push_str(&format!("\n{}\n{}", style.paint(Role::Heading, title), table.render(style)));
            }
        };
        let mut actions = Table::with_heading(2, &["NAME", "MODIFIES", "STATELESS", "DESCRIPTION"]);
        let yes = |yes: bool| cell(if yes { "yes" } else { "no" });
        for it in &self.actions {
            actions.row([cell(it.name), yes(it.modifies), yes(it.stateless), cell(it.description)]);
        }
        section("Actions", Some(actions));
        let mut parameters =
            Table::with_heading(2, &["NAME", "TYPE", "WITHOUT A VALUE", "GOES TO", "ACTIONS", "DESCRIPTION"]);
        for it in &self.parameters {
            let mut kind = it.r#type.clone();
            if it.write_only {
                kind.push_str(", writeOnly");
            }
            if it.read_only {
                kind.push_str(", readOnly");
            }
            let unset = match it.default {
                Some(default) => format!("default: {}", text_of(default)),
                None if it.required => "an error".into(),
                None if it.write_only => "its default, or empty".into(),
                None => "empty".into(),
            };
            let goes_to = place(it.env, &it.path);
            parameters.row([
                cell(it.name),
                cell(&kind),
                cell(&unset),
                cell(&goes_to),
                cell(&all(it.apply_to)),
                cell(it.description),
            ]);
        }
        section("Parameters", (!self.parameters.is_empty()).then_some(parameters));
        let mut credentials = Table::with_heading(2, &["NAME", "REQUIRED", "GOES TO", "ACTIONS", "DESCRIPTION"]);
        for it in &self.credentials {
            let goes_to = place(it.env, &it.path);
            credentials.row([
                cell(it.name),
                yes(it.required),
                cell(&goes_to),
                cell(&all(it.apply_to)),
                cell(it.description),
            ]);
        }
        section("Credentials", (!self.credentials.is_empty()).then_some(credentials));
        let mut outputs = Table::with_heading(2, &["NAME", "TYPE", "FROM", "ACTIONS", "DESCRIPTION"]);
        for it in &self.outputs {
            let kind = if it.write_only { format!("{}, writeOnly", it.r#type) } else { it.r#type.clone() };
            outputs.row([cell(it.name), cell(&kind), cell(it.path), cell(&all(it.apply_to)), cell(it.description)]);
        }
        section("Outputs", (!self.outputs.is_empty()).then_some(outputs));
        text.push_str(
            "\nThe run tool also gets $CNAB_INSTALLATION_NAME, $CNAB_BUNDLE_NAME, $CNAB_ACTION, $CNAB_REVISION,\n\
             $CNAB_CLAIMS_VERSION, /cnab/bundle.json and /cnab/claim.json.\n",
        );
        text
    }
}

/// Formats a default value, truncated to 40 characters.
fn text_of(value: &Value) -> String {
    let text = text(value);
    if text.chars().count() > 40 { text.chars().take(39).chain(['…']).collect() } else { text }
}
