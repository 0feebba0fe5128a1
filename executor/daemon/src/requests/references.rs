//! Secrets by reference: replaces the references of a request with values.
//!
//! ```text
//!  request ── collect, check ──> references ── fetch ──> values ── fill ──> request with values, as if in the request
//!                                                  └──> records (no values), kept with the container ──> following
//! ```
//! After `fill` no code distinguishes these values from values in the request, and neither the launcher nor the shim
//! receives the references. The container's records state which inputs are refreshed while the container runs
//! (`following`).

use std::path::Path;
use std::sync::Arc;

use executor_core::reference::{
    PROVIDER_MAX, PROVIDER_TOKENS_MAX, REFERENCES_MAX, SecretReference, check_provider_role, check_provider_token,
};
use executor_core::text::printable;
use executor_core::validate::ViolationReason::{
    Conflict, InvalidCharacter, NotAllowed, Required, TooMany, UnknownValue,
};
use executor_core::validate::{Violation, ViolationReason};
use executor_proto::v1::{
    self, Action, EnvironmentVariable, File, ProviderToken, RunAction, RunRequest, UpdateFilesRequest,
};
use executor_providers::{ErrorKind, FetchError, FetchRequest, Fetched, Value, WorkloadLogins, WorkloadToken};
use executor_secrets::TagKey;
use zeroize::Zeroizing;

use crate::access::Client;
use crate::access::rules::Requester;
use crate::api_error::{ApiError, Kind};
use crate::model::sources::{SourceRecord, ValueTarget};
use crate::node::Node;

/// A reference in a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestedValue {
    /// Name of the request field that contains the reference.
    field: String,
    target: ValueTarget,
    action: String,
    reference: SecretReference,
    /// Path of the grant that allows the reference.
    rule: String,
    followed: bool,
}

/// References of a request, and their violations.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// References, in the order in which [`fill`] expects the values.
    pub(crate) asked: Vec<RequestedValue>,
    /// Client that the references were checked for.
    requester: Option<Arc<Requester>>,
    /// Logins of the request's tokens.
    pub(crate) logins: WorkloadLogins,
    pub(crate) violations: Vec<Violation>,
    /// True if all violations are references that the caller may not use.
    pub(crate) is_denial: bool,
}

/// Collects the references of a request, takes its tokens, and checks whether the caller may use them.
pub(crate) fn for_request(node: &Node, request: &mut RunRequest, client: Option<&Client>) -> Collected {
    let tokens = std::mem::take(&mut request.provider_tokens);
    let root = &node.config.policy.files_root;
    let mut collecting = ReferenceCollector::default();
    let is_single = request.single_run().is_some();
    let is_writable = request.writable_files.is_some();
    for (field, run) in runs(request) {
        let action = if is_single { "" } else { field.strip_suffix(".run").unwrap_or(&field) };
        collecting.run(&field, action, run, root, is_single && !is_writable);
    }
    for (index, file) in request.volume_mounted_files.iter().enumerate() {
        collecting.file(format!("volume_mounted_files[{index}]"), "", file, root, !is_writable);
    }
    collecting.refuse_plain("environment", &request.environment);
    collecting.checked(node, "volume_mounted_files", client, (tokens, &WorkloadLogins::default()))
}

/// Collects the references of an update, takes its tokens, and checks whether the caller may use them. `present` holds
/// the container's logins.
pub(crate) fn resolve_update(
    node: &Node,
    request: &mut UpdateFilesRequest,
    client: Option<&Client>,
    present: &WorkloadLogins,
) -> Collected {
    let tokens = std::mem::take(&mut request.provider_tokens);
    let mut collecting = ReferenceCollector::default();
    for (index, file) in request.files.iter().enumerate() {
        collecting.file(format!("files[{index}]"), "", file, &node.config.policy.files_root, true);
    }
    collecting.checked(node, "files", client, (tokens, present))
}

/// Rejects references in variables that are not secret, and variables with two values.
pub(crate) fn plain_variables(field: &str, variables: &[EnvironmentVariable]) -> Vec<Violation> {
    let mut collecting = ReferenceCollector::default();
    collecting.refuse_plain(field, variables);
    collecting.violations
}

/// Returns every run action with the name of its field, in the order of [`RunRequest::for_each_run`].
fn runs(request: &RunRequest) -> Vec<(String, &RunAction)> {
    let sidecars = request.sidecars.iter().enumerate();
    let sidecars =
        sidecars.filter_map(|(index, one)| Some((format!("sidecars[{index}].action"), one.action.as_ref()?)));
    let setup = request.setup.iter().map(|action| ("setup".to_owned(), action));
    let action = request.action.iter().map(|action| ("action".to_owned(), action));
    let mut waiting: Vec<(String, &Action)> = setup.chain(action).chain(sidecars).collect();
    waiting.reverse();
    let mut all = Vec::new();
    while let Some((path, action)) = waiting.pop() {
        all.extend(action.run.as_ref().map(|run| (format!("{path}.run"), run)));
        let below: Vec<_> = action.below().into_iter().map(|(step, one)| (format!("{path}{step}"), one)).collect();
        waiting.extend(below.into_iter().rev());
    }
    all
}

#[derive(Default)]
struct ReferenceCollector {
    asked: Vec<RequestedValue>,
    violations: Vec<Violation>,
}

impl ReferenceCollector {
    fn run(&mut self, field: &str, action: &str, run: &RunAction, root: &Path, followed: bool) {
        for (index, file) in run.volume_mounted_files.iter().enumerate() {
            self.file(format!("{field}.volume_mounted_files[{index}]"), action, file, root, followed);
        }
        for (index, variable) in run.secret_environment.iter().enumerate() {
            let (field, target) =
                (format!("{field}.secret_environment[{index}]"), ValueTarget::Variable(variable.name.clone()));
            self.input(field, action, target, variable.from.as_ref(), ("value", variable.content().is_empty()), false);
        }
        for (index, argument) in run.secret_arguments.iter().enumerate() {
            let (field, target) = (format!("{field}.secret_arguments[{index}]"), ValueTarget::Argument(argument.index));
            self.input(field, action, target, argument.from.as_ref(), ("value", argument.value.is_empty()), false);
        }
        self.refuse_two_values(&format!("{field}.secret_environment"), &run.secret_environment);
        self.refuse_plain(&format!("{field}.env"), &run.env);
    }

    fn file(&mut self, field: String, action: &str, file: &File, root: &Path, followed: bool) {
        let target = ValueTarget::File(root.join(&file.path));
        let is_empty = file.content.is_empty();
        self.input(field, action, target, file.from.as_ref(), ("content", is_empty), followed && action.is_empty());
    }

    fn input(
        &mut self,
        field: String,
        action: &str,
        target: ValueTarget,
        from: Option<&v1::SecretReference>,
        (value, is_empty): (&str, bool),
        followed: bool,
    ) {
        let Some(v1::SecretReference { provider, path, key, version }) = from else { return };
        if !is_empty {
            let why = format!("is set together with {value}; set one of the two");
            self.violations.push(Violation::new(format!("{field}.from"), Conflict.because(why)));
        }
        let reference = SecretReference {
            provider: provider.clone(),
            path: path.clone(),
            key: key.clone(),
            version: version.clone(),
        };
        // A value with a fixed version never changes.
        let followed = followed && reference.version.is_empty();
        self.asked.push(RequestedValue {
            field,
            target,
            action: action.to_owned(),
            reference,
            rule: String::new(),
            followed,
        });
    }

    fn refuse_two_values(&mut self, field: &str, variables: &[EnvironmentVariable]) {
        let has_two = |variable: &EnvironmentVariable| !variable.value.is_empty() && !variable.value_bytes.is_empty();
        for (index, _) in variables.iter().enumerate().filter(|(_, variable)| has_two(variable)) {
            let why = Conflict.because("is set together with value; set one of the two");
            self.violations.push(Violation::new(format!("{field}[{index}].value_bytes"), why));
        }
    }

    fn refuse_plain(&mut self, field: &str, variables: &[EnvironmentVariable]) {
        self.refuse_two_values(field, variables);
        for (index, _) in variables.iter().enumerate().filter(|(_, variable)| variable.from.is_some()) {
            let why = NotAllowed.because("is for secret variables only (secret_environment)");
            self.violations.push(Violation::new(format!("{field}[{index}].from"), why));
        }
    }

    /// Checks each token, and for each reference the syntax, the provider, the caller's permission, and the login.
    fn checked(
        self,
        node: &Node,
        list: &str,
        client: Option<&Client>,
        (tokens, present): (Vec<ProviderToken>, &WorkloadLogins),
    ) -> Collected {
        let Self { mut asked, mut violations } = self;
        let logins = check_tokens(node, tokens, &mut violations);
        if asked.len() > REFERENCES_MAX {
            let why = format!("{} references in the request; at most {REFERENCES_MAX} are allowed", asked.len());
            violations.push(Violation::new(list, TooMany.because(why)));
            return Collected { asked, violations, ..Collected::default() };
        }
        let (rules, requester) = (node.rules.current(), client.map(Requester::new));
        let mut denials = Vec::new();
        for RequestedValue { field, reference, rule, .. } in &mut asked {
            let name = |part: &str| format!("{field}.from.{part}");
            let faults = reference.faults();
            if !faults.is_empty() {
                violations.extend(faults.into_iter().map(|(part, fault)| Violation::new(name(part), fault)));
                continue;
            }
            let Some(config) = node.providers.config(&reference.provider) else {
                let why = format!("{:?} is not a provider of this node (secret_providers)", reference.provider);
                violations.push(Violation::new(name("provider"), UnknownValue.because(why)));
                continue;
            };
            if let Some((part, why)) = config.check_reference(reference) {
                violations.push(Violation::new(name(part), ViolationReason::InvalidFormat.because(why)));
            }
            let has_login = [&logins, present].iter().any(|logins| logins.get(&reference.provider).is_some());
            if config.uses_workload_token() && !has_login {
                let why = format!("{:?} needs a token of the workload: set provider_tokens", reference.provider);
                violations.push(Violation::new(name("provider"), Required.because(why)));
            }
            let covering = requester
                .as_ref()
                .and_then(|requester| rules.covering(requester, &reference.provider, &reference.path));
            if let Some(covering) = covering {
                covering.clone_into(rule);
            } else {
                let who = requester.as_ref().map_or_else(|| "this caller".to_owned(), ToString::to_string);
                let why = format!(
                    "{who} may not use {:?} of provider {:?}: no rule of secret_providers.allow covers it",
                    reference.path, reference.provider
                );
                denials.push(Violation::new(name("path"), NotAllowed.because(why)));
            }
        }
        let is_denial = violations.is_empty() && !denials.is_empty();
        violations.extend(denials);
        let requester = requester.map(|requester| Arc::new(requester.bounded()));
        Collected { asked, requester, logins, violations, is_denial }
    }
}

/// Checks the tokens of a request, and returns their logins.
fn check_tokens(node: &Node, mut tokens: Vec<ProviderToken>, violations: &mut Vec<Violation>) -> WorkloadLogins {
    let logins = WorkloadLogins::default();
    let mut add = |field: String, fault| violations.push(Violation::new(field, fault));
    if tokens.len() > PROVIDER_TOKENS_MAX {
        let why = format!("has {} entries; at most {PROVIDER_TOKENS_MAX} are allowed", tokens.len());
        add("provider_tokens".into(), TooMany.because(why));
    }
    for (index, one) in tokens.iter_mut().enumerate() {
        let token = Zeroizing::new(std::mem::take(&mut one.token));
        if index >= PROVIDER_TOKENS_MAX {
            continue;
        }
        let name = |part: &str| format!("provider_tokens[{index}].{part}");
        match node.providers.config(&one.provider) {
            None => {
                let shown = printable(&one.provider, PROVIDER_MAX);
                let why = format!("\"{shown}\" is not a provider of this node (secret_providers)");
                add(name("provider"), UnknownValue.because(why));
            }
            Some(config) if !config.uses_workload_token() => {
                let why = format!("{:?} does not use tokens of workloads (auth = \"jwt\")", one.provider);
                add(name("provider"), NotAllowed.because(why));
            }
            Some(_) if logins.get(&one.provider).is_some() => {
                add(name("provider"), Conflict.because(format!("{:?} has two tokens", one.provider)));
            }
            Some(_) => {}
        }
        if let Err(fault) = check_provider_token(&token) {
            add(name("token"), fault);
        }
        if let Err(fault) = check_provider_role(&one.role) {
            add(name("role"), fault);
        }
        let (provider, role) = (std::mem::take(&mut one.provider), std::mem::take(&mut one.role));
        logins.insert(WorkloadToken { provider, token, role });
    }
    logins
}

impl Collected {
    /// Returns the error for all violations, if any.
    pub(crate) fn problem(&self) -> Option<ApiError> {
        let kind = if self.is_denial { Kind::Denied } else { Kind::Invalid };
        (!self.violations.is_empty()).then(|| ApiError { kind, ..ApiError::invalid(self.violations.clone()) })
    }
}

/// Fetched values in the order of their references, and their records.
pub(crate) struct Fetches {
    pub(crate) values: Vec<Value>,
    pub(crate) records: Vec<SourceRecord>,
}

/// Fetches all references in parallel, with the logins of the workload.
///
/// # Errors
/// Returns an error if a reference cannot be fetched. The error lists each failed reference with its field, target,
/// provider and path.
pub(crate) async fn fetch(
    node: &Node,
    collected: &Collected,
    key: &TagKey,
    logins: &WorkloadLogins,
) -> Result<Fetches, ApiError> {
    let Collected { asked, requester, .. } = collected;
    let wanted: Vec<FetchRequest> = asked
        .iter()
        .map(|one| FetchRequest {
            reference: one.reference.clone(),
            rule: one.rule.clone(),
            lease: None,
            login: logins.get(&one.reference.provider),
        })
        .collect();
    let results = tokio::select! {
        results = node.providers.fetch(&wanted) => results,
        () = node.until_stopping() => return Err(ApiError::stopping()),
    };
    let (now, mut failed) = (crate::now(), Vec::new());
    let mut fetches = Fetches { values: Vec::new(), records: Vec::new() };
    for (one, result) in asked.iter().zip(results) {
        let value = match result {
            Ok(Fetched::Value(value)) => value,
            Ok(Fetched::Renewed(_)) => {
                failed.push((
                    one,
                    FetchError { kind: ErrorKind::Unavailable, why: "the provider returned no value".into() },
                ));
                continue;
            }
            Err(error) => {
                failed.push((one, error));
                continue;
            }
        };
        fetches.records.push(record(one, requester.as_ref(), &value, key, now));
        fetches.values.push(value);
    }
    executor_secrets::scrub_stack();
    if failed.is_empty() { Ok(fetches) } else { Err(not_fetched(&failed)) }
}

fn record(
    asked: &RequestedValue,
    requester: Option<&Arc<Requester>>,
    value: &Value,
    key: &TagKey,
    now: executor_core::time::Timestamp,
) -> SourceRecord {
    SourceRecord {
        requester: requester.filter(|_| asked.followed).map(Arc::clone),
        target: asked.target.clone(),
        action: asked.action.clone(),
        reference: asked.reference.clone(),
        version: value.version.clone(),
        tag: key.tag([&value.content[..]]),
        fetched_at: now,
        followed: asked.followed,
        lease: value.lease.clone(),
        stale: None,
    }
}

/// Returns the error for references that could not be fetched.
fn not_fetched(failed: &[(&RequestedValue, FetchError)]) -> ApiError {
    let violation = |(asked, error): &(&RequestedValue, FetchError)| {
        let reason = match error.kind {
            ErrorKind::NotFound => ViolationReason::NotFound,
            ErrorKind::Denied => ViolationReason::AccessDenied,
            ErrorKind::Unsuitable => ViolationReason::Unsuitable,
            ErrorKind::Unavailable | ErrorKind::NoToken => ViolationReason::InvalidValue,
        };
        let into = match &asked.target {
            ValueTarget::File(path) => format!("file {}", path.display()),
            ValueTarget::Variable(name) => format!("variable {name}"),
            ValueTarget::Argument(index) => format!("argument {index}"),
        };
        let why = format!("cannot fetch {} for {into}: {}", asked.reference, error.why);
        Violation::new(format!("{}.from", asked.field), reason.because(why))
    };
    let has = |kind: ErrorKind| failed.iter().any(|(_, error)| error.kind == kind);
    let kind = match () {
        () if has(ErrorKind::Denied) => Kind::Denied,
        () if has(ErrorKind::NotFound) => Kind::NotFound,
        () if has(ErrorKind::Unsuitable) => Kind::Precondition,
        () => Kind::Unavailable,
    };
    ApiError { kind, ..ApiError::invalid(failed.iter().map(violation).collect()) }
}

/// Inserts the values into a request, in the order in which the references were collected.
///
/// # Errors
/// Returns an error if the value of an argument is not text.
pub(crate) fn fill(request: &mut RunRequest, requested: &[RequestedValue], values: Vec<Value>) -> Result<(), ApiError> {
    let mut pairs = requested.iter().zip(values);
    let mut violations = Vec::new();
    request.for_each_run(|run| {
        fill_files(&mut run.volume_mounted_files, &mut pairs);
        // Editors and `echo` add a newline that is not part of the secret.
        let trim = |value: &mut Value| {
            if value.content.last() == Some(&b'\n') {
                value.content.pop();
            }
        };
        for variable in run.secret_environment.iter_mut().filter(|one| one.from.is_some()) {
            let Some((_, mut value)) = pairs.next() else { return };
            trim(&mut value);
            variable.set_content(std::mem::take(&mut *value.content));
        }
        for text in run.secret_arguments.iter_mut().filter(|one| one.from.is_some()).map(|one| &mut one.value) {
            let Some((requested, mut value)) = pairs.next() else { return };
            trim(&mut value);
            match std::str::from_utf8(&value.content) {
                Ok(found) => found.clone_into(text),
                Err(_) => {
                    let why = format!("{}: the value is not UTF-8; use a file for binary values", requested.reference);
                    violations.push(Violation::new(format!("{}.from", requested.field), InvalidCharacter.because(why)));
                }
            }
        }
    });
    fill_files(&mut request.volume_mounted_files, &mut pairs);
    if violations.is_empty() { Ok(()) } else { Err(ApiError::invalid(violations)) }
}

/// Inserts the values into an update, which has only files.
pub(crate) fn fill_update(request: &mut UpdateFilesRequest, requested: &[RequestedValue], values: Vec<Value>) {
    fill_files(&mut request.files, &mut requested.iter().zip(values));
}

fn fill_files<'a>(files: &mut [File], pairs: &mut impl Iterator<Item = (&'a RequestedValue, Value)>) {
    for file in files.iter_mut().filter(|file| file.from.is_some()) {
        if let Some((_, mut value)) = pairs.next() {
            file.content = std::mem::take(&mut *value.content);
        }
    }
}
