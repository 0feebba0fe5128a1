//! Tests the conversion of binding flags to files, variables and updates.

use executor_client::v1::{Action, Container, ContainerSpec, RunAction, RunRequest, SecretFile, UpdateFilesRequest};

use super::*;

const VCAP: &[u8] = br#"{"mysql":[{"name":"db","label":"mysql","credentials":{"password":"canary-5b7e"}}]}"#;

fn args(vcap_services: &str) -> BindingArgs {
    BindingArgs { vcap_services: Some(vcap_services.into()), ..BindingArgs::default() }
}

fn variable(name: &str) -> Option<OsString> {
    (name == "VCAP").then(|| String::from_utf8(VCAP.to_vec()).unwrap().into())
}

fn delivery(args: BindingArgs, binding_root: Option<&str>) -> Delivery {
    let args = DeliveryArgs { from: args, binding_root: binding_root.map(str::to_owned), ..DeliveryArgs::default() };
    Delivery::read(&args, &[], &mut { VCAP }, &variable).unwrap().unwrap()
}

fn container(paths: &[&str], names: &[&str]) -> Container {
    let file = |path: &&str| SecretFile {
        path: (*path).into(),
        mount_point: "/etc/cf-service-bindings".into(),
        ..SecretFile::default()
    };
    let spec = ContainerSpec {
        environment_names: names.iter().map(|name| (*name).into()).collect(),
        runtime_token_path: "/etc/cf-service-bindings/db/token".into(),
        ..ContainerSpec::default()
    };
    Container {
        id: "web-1".into(),
        spec: Some(spec),
        files: paths.iter().map(file).collect(),
        files_generation: 3,
        ..Container::default()
    }
}

#[test]
fn bindings_are_read_from_every_source() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("vcap.json");
    std::fs::write(&file, VCAP).unwrap();
    for text in ["@-", "@env:VCAP", &format!("@{}", file.display())] {
        let bindings = read(&args(text), &[], &mut { VCAP }, &variable).unwrap().unwrap();
        assert_eq!(bindings.bindings()[0].entry("password"), Some(&b"canary-5b7e"[..]), "{text}");
    }
    assert!(read(&BindingArgs::default(), &[], &mut { VCAP }, &variable).unwrap().is_none());
    let literal = String::from_utf8(VCAP.to_vec()).unwrap();
    for (text, expected) in [
        (&*literal, "--vcap-services takes @FILE"),
        ("@", "--vcap-services takes @FILE"),
        ("@env:", "--vcap-services takes @FILE"),
        ("@env:NOPE", "the environment has no NOPE"),
        ("@/no/such/file", "--vcap-services @/no/such/file: cannot read /no/such/file"),
    ] {
        let error = read(&args(text), &[], &mut { VCAP }, &variable).unwrap_err().describe();
        assert!(error.contains(expected) && !error.contains("canary"), "{error}");
    }
    let files = ["a=@b".to_owned(), "c=@-".to_owned()];
    let others = [(Flag::PublicFile, &files[..0]), (Flag::File, &files[..])];
    let error = read(&args("@-"), &others, &mut { VCAP }, &variable).unwrap_err().to_string();
    assert!(error.contains("--file c=@-: standard input is already the content of --vcap-services"), "{error}");
}

/// Every violation is reported with Cloud Controller's message.
#[test]
fn violations_are_reported_one_per_line() {
    let bad = br#"{"l": [{"name": "B_D", "credentials": {"../x": "canary"}}]}"#;
    let error = read(&args("@-"), &[], &mut &bad[..], &variable).unwrap_err().describe();
    let lines: Vec<&str> = error.lines().collect();
    let expected = [
        r"Cannot build service binding files for app - Invalid binding name: 'B_D'. Name must match /^[a-z0-9\-.]{1,253}$/",
        "Cannot build service binding files for app - Invalid file name: ../x",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn files_and_variable_are_placed() {
    let table = [
        (None, "", "db/password", "/etc/cf-service-bindings"),
        (None, "/srv/b/", "db/password", "/srv/b"),
        (Some("/run/b/"), "/srv/b", "/run/b/db/password", "/run/b"),
    ];
    for (root, files_root, path, value) in table {
        let lowered = delivery(args("@-"), root).lower(files_root);
        assert_eq!((&*lowered.variable.name, &*lowered.variable.value), ("SERVICE_BINDING_ROOT", value));
        let file = lowered.files.iter().find(|file| file.path == path).unwrap();
        assert_eq!((&*file.content, file.public), (&b"canary-5b7e"[..], false));
    }
    let one_file = BindingArgs { vcap_file: true, ..args("@-") };
    let lowered = delivery(one_file, None).lower("");
    assert_eq!(lowered.variable.name, "VCAP_SERVICES_FILE_PATH");
    assert_eq!(lowered.variable.value, "/etc/cf-service-bindings/vcap_services");
    assert_eq!((lowered.files.len(), &*lowered.files[0].content), (1, VCAP));
    // The directory exists even without bindings.
    for (root, path) in [(None, ".bindings"), (Some("/run/b"), "/run/b/.bindings")] {
        let none = Builder::new().finish().unwrap();
        let lowered =
            Delivery { bindings: none, root: root.map(str::to_owned), access: source::Access::default() }.lower("");
        let files: Vec<_> = lowered.files.iter().map(|file| (&*file.path, file.content.len(), file.public)).collect();
        assert_eq!(files, [(path, 0, true)]);
    }
    for bad in ["x", "/", "", "/a/../b", "/a//b"] {
        let args = DeliveryArgs { from: args("@-"), binding_root: Some(bad.into()), ..DeliveryArgs::default() };
        let error = Delivery::read(&args, &[], &mut { VCAP }, &variable).err().unwrap().to_string();
        assert!(error.starts_with("--binding-root "), "{error}");
    }
}

/// The layouts exclude each other, and both exclude VCAP_SERVICES.
#[test]
fn binding_layouts_exclude_each_other() {
    let request = |env: Option<(&str, &str)>, secret: Option<(&str, &str)>| {
        let variables = |given: Option<(&str, &str)>| {
            let variable = |(name, value): (&str, &str)| EnvironmentVariable {
                name: name.into(),
                value: value.into(),
                ..EnvironmentVariable::default()
            };
            given.map(variable).into_iter().collect()
        };
        let run = RunAction { env: variables(env), secret_environment: variables(secret), ..RunAction::default() };
        let action = Some(Action { run: Some(run), ..Action::default() });
        Request::from_request(RunRequest { action, ..RunRequest::default() })
    };
    let given = Some(("VCAP_SERVICES", "{}"));
    for (request, flag) in [(request(given, None), "--env"), (request(None, given), "--secret-env")] {
        let error = delivery(args("@-"), None).check(&request).unwrap_err().to_string();
        assert!(error.contains("SERVICE_BINDING_ROOT") && error.ends_with(flag), "{error}");
    }
    delivery(args("@-"), None).check(&request(None, None)).unwrap();
    // A variable that the request sets is kept.
    for (env, ours) in [(None, true), (Some(("SERVICE_BINDING_ROOT", "/x")), false)] {
        let mut request = request(env, None);
        let lowered = delivery(args("@-"), None).lower("");
        request.bind(lowered.files, lowered.directory, lowered.variable);
        let run = request.run().message().clone().action.unwrap().run.unwrap();
        assert_eq!(run.volume_mounted_files.len(), 5);
        let value = if ours { "/etc/cf-service-bindings" } else { "/x" };
        assert_eq!(run.env.iter().map(|variable| &*variable.value).collect::<Vec<_>>(), [value]);
    }
}

#[test]
fn update_adds_changes_and_removes_files() {
    let root = "/etc/cf-service-bindings";
    let present = ["db/type", "db/password", "db/old", "gone/type", "gone/uri", "db/token", "other/file", "single"];
    let present = present.map(|path| format!("{root}/{path}"));
    let present: Vec<&str> = present.iter().map(String::as_str).collect();
    let container = container(&present, &["SERVICE_BINDING_ROOT"]);
    let base =
        UpdateFilesRequest { id: "web-1".into(), signal: 1, removed_paths: vec!["x".into()], ..Default::default() };
    let update = delivery(args("@-"), None).update(&base, &container, "").unwrap().message();
    let paths: Vec<&str> = update.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["db/label", "db/name", "db/password", "db/provider", "db/type"]);
    assert_eq!(update.removed_paths, ["x", "db/old", "gone/type", "gone/uri"]);
    assert_eq!((update.expected_generation, update.signal), (Some(3), 1));
    let base = UpdateFilesRequest { expected_generation: Some(2), ..base };
    let update = delivery(args("@-"), Some(root)).update(&base, &container, "/srv").unwrap().message();
    assert_eq!((&*update.removed_paths[1], update.expected_generation), (&*format!("{root}/db/old"), Some(2)));
}

#[test]
fn update_requires_layout_of_container() {
    let one_file = || BindingArgs { vcap_file: true, ..args("@-") };
    let update = |args, container: &Container| {
        let updated = delivery(args, None).update(&UpdateFilesRequest::default(), container, "");
        updated.map(|update| update.message().files.len()).map_err(|failure| failure.to_string())
    };
    let file = container(&["/etc/cf-service-bindings/vcap_services"], &["VCAP_SERVICES_FILE_PATH"]);
    let directories = container(&["/etc/cf-service-bindings/a/type"], &["SERVICE_BINDING_ROOT"]);
    let emptied = container(&[], &["SERVICE_BINDING_ROOT"]);
    assert_eq!(update(one_file(), &file), Ok(1));
    assert_eq!(update(args("@-"), &directories), Ok(5));
    assert_eq!(update(args("@-"), &emptied), Ok(5));
    assert!(update(args("@-"), &file).unwrap_err().contains("add --vcap-file"));
    assert!(update(one_file(), &directories).unwrap_err().contains("omit --vcap-file"));
    assert!(update(args("@-"), &container(&[], &[])).unwrap_err().contains("has no bindings below"));
}
