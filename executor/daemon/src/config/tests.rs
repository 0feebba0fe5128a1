mod documented;

use std::time::Duration;

use clap::Parser as _;

use super::*;

fn load(text: &str, flags: &[&str]) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("executor.toml");
    std::fs::write(&path, text).unwrap();
    let args = ["executord", "--config", path.to_str().unwrap()];
    let args = Args::try_parse_from(args.iter().chain(flags)).unwrap();
    Config::load(&args).map_err(|error| executor_core::errors::chain(&error).replace(path.to_str().unwrap(), "FILE"))
}

#[test]
fn old_warm_pool_names_are_read() {
    let warnings = |text: &str| load(text, &[]).unwrap().warnings().join("|");
    assert!(warnings("[shells]\nready = 2\n").ends_with(": [shells] ready is an old name; use [warm_pool] size"));
    assert_eq!(warnings("[warm_pool]\nsize = 2\n"), "");
    let both = load("[shells]\nready = 2\n[warm_pool]\nsize = 2\n", &[]).unwrap_err();
    assert!(both.contains("duplicate field"), "{both}");
    let beyond = load("[shells]\nready = 65\n", &[]).unwrap_err();
    assert!(beyond.contains("warm_pool.size = 65"), "{beyond}");
}

#[test]
fn every_fault_is_reported_with_line() {
    let text = "run_dir = 'run'\n[capacity]\npids = 0\n\n[metrics]\nlisten = '192.0.2.1:1'\n[listen]\nunix = 'here'\n";
    let error = load(text, &[]).unwrap_err();
    let lines: Vec<&str> = error.lines().map(|line| line.split(" = ").next().unwrap()).collect();
    assert_eq!(lines, ["FILE:1: run_dir", "FILE:7: listen", "FILE:3: capacity.pids", "FILE:6: metrics.listen"]);
    let text = "[policy]\nrootfs_dirs = [\n  '/a',\n  'b',\n  'c',\n]\ncni_conf_dir = 'd'\ncapabilities_allowed = [\n  'KILL',\n  \
                'CHOWN',\n]\nswap_bytes_max = -2\noom_score_adj_min = -1001\nlog_lines_per_second_max = -2\n\
                default_memory_bytes = 5\ndefault_grace_seconds = 700000\nuserns_pool_start = 1\n\
                network_namespaces = ['/a', 'x']\n[policy.ulimits_max]\ncore = 1\nnproc = -2\n[quarantine]\n\
                stop_seconds = 0\nwipe_seconds = 0\n[self_test]\ninterval_seconds = 86401\ntimeout_seconds = 0\n\
                [transfers]\nattempts = 0\nidle_seconds = 0\ndenied = ['x', '10.0.0.0/8', 'y']\n[launcher]\n\
                watchdog_seconds = 1\n[warm_pool]\nsize = 65\n[[volumes]]\nname = 'v'\npath = 'v'\n[[volumes]]\n\
                name = 'w'\npath = 'w'\n[[devices]]\nname = 'd'\npath = '/d'\n[[devices]]\nname = 'e'\npath = '/e'\n";
    let error = load(text, &[]).unwrap_err();
    let mut lines: Vec<&str> = error.lines().map(|line| line.split(" = ").next().unwrap()).collect();
    lines.sort_by_key(|line| line.split(':').nth(1).unwrap().parse::<usize>().unwrap());
    assert_eq!(
        lines,
        [
            "FILE:4: policy.rootfs_dirs[1]",
            "FILE:5: policy.rootfs_dirs[2]",
            "FILE:7: policy.cni_conf_dir",
            "FILE:9: policy.capabilities_allowed[0]",
            "FILE:10: policy.capabilities_allowed[1]",
            "FILE:12: policy.swap_bytes_max",
            "FILE:13: policy.oom_score_adj_min",
            "FILE:14: policy.log_lines_per_second_max",
            "FILE:15: policy.default_memory_bytes",
            "FILE:16: policy.default_grace_seconds",
            "FILE:17: policy.userns_pool_start",
            "FILE:18: policy.network_namespaces[0]",
            "FILE:18: policy.network_namespaces[1]",
            "FILE:20: policy.ulimits_max.core",
            "FILE:21: policy.ulimits_max.nproc",
            "FILE:23: quarantine.stop_seconds",
            "FILE:24: quarantine.wipe_seconds",
            "FILE:26: self_test.interval_seconds",
            "FILE:27: self_test.timeout_seconds",
            "FILE:29: transfers.attempts",
            "FILE:30: transfers.idle_seconds",
            "FILE:31: transfers.denied[0]",
            "FILE:31: transfers.denied[2]",
            "FILE:33: launcher.watchdog_seconds",
            "FILE:35: warm_pool.size",
            "FILE:36: volumes[0]",
            "FILE:39: volumes[1]",
            "FILE:42: devices[0]",
            "FILE:45: devices[1]",
        ]
    );
    let typo = load("[policy]\n\ndefault_pid = 5\n", &[]).unwrap_err();
    assert!(typo.starts_with("FILE:3: "), "{typo}");
}

/// Entries of the wrong type, unknown keys and values out of range are reported together.
#[test]
fn form_and_range_are_reported_together() {
    let text = "user = 5\n[capacity]\npids = 0\ncontainers = 'many'\ncontainer = 1\n[server]\nconnections = 0\n\
                [[volumes]]\nname = 5\npath = '/v'\n[[volumes]]\nname = 'w'\npath = 'w'\n[policy]\n\
                rootfs_dirs = [1, 'b', '/a']\n";
    let error = load(text, &[]).unwrap_err();
    let mut lines: Vec<&str> = error.lines().filter(|line| line.starts_with("FILE:")).collect();
    lines.sort_by_key(|line| line.split(':').nth(1).unwrap().parse::<usize>().unwrap());
    let lines: Vec<&str> = lines.into_iter().map(|line| line.split(" = ").next().unwrap()).collect();
    let form = |line: usize, column: usize| format!("FILE:{line}: TOML parse error at line {line}, column {column}");
    let forms = [form(1, 8), form(4, 14), form(5, 1), form(9, 8), form(15, 16)];
    let expected = [
        &forms[0],
        "FILE:3: capacity.pids",
        &forms[1],
        &forms[2],
        "FILE:7: server.connections",
        &forms[3],
        "FILE:11: volumes[1]",
        &forms[4],
        "FILE:15: policy.rootfs_dirs[1]",
    ];
    assert_eq!(lines, expected, "{error}");
    assert!(!error.contains("missing field") && !error.contains("\n\n"), "{error}");
    // The duplicate field remains, whichever entry is removed.
    let error = load("[shells]\nready = 2\n[warm_pool]\nsize = 2\n[capacity]\npids = 'x'\n", &[]).unwrap_err();
    assert!(error.contains("duplicate field"), "{error}");
    let error = load("[capacity]\npids = 0\n[capacity\n", &[]).unwrap_err();
    assert!(error.starts_with("FILE:3: ") && !error.contains("capacity.pids"), "{error}");
}

#[test]
fn an_empty_file_is_the_defaults() {
    let config = load("", &[]).unwrap();
    assert_eq!(config.paths.run_dir, Path::new("/run/executor"));
    assert_eq!(config.listen, Path::new("/run/executor/executor.sock"));
    assert_eq!(config.bounds.message_bytes, 2 << 20);
    assert_eq!((config.retention.completed, config.retention.kept_for), (10_000, Duration::from_secs(86_400)));
    assert!(config.retention.bytes >= disk_of(&config.paths.state_dir) / 10);
    assert_eq!(config.capacity.containers, 1000);
    assert!(config.capacity.memory_bytes > 1 << 20);
    assert!(!config.policy.allow_host_network && !config.keep_root);
    assert_eq!(config.images.dir, Path::new("/var/lib/executor/images"));
    assert_eq!(config.images.insecure_registries, ["localhost", "127.0.0.1", "[::1]"]);
}

#[test]
fn image_settings_are_read() {
    let text = "state_dir = '/a'\n[images]\ninsecure_registries = ['R.example:80']\nbytes_budget = 5\nca_file = '/c'\n";
    let images = load(text, &[]).unwrap().images;
    assert_eq!((&*images.dir, images.bytes_budget), (Path::new("/a/images"), 5));
    assert_eq!((images.insecure_registries, images.ca_file), (vec!["r.example:80".to_owned()], Some("/c".into())));
}

#[test]
fn images_run_by_the_files_policy() {
    let policy = |text: &str, flags: &[&str]| load(text, flags).unwrap().policy.images;
    assert!(!policy("", &[]).is_set() && policy("", &[]).is_open());
    let closed = "[images]\nallow = []\n";
    assert!(policy(closed, &[]).is_set() && !policy(closed, &["--ephemeral"]).is_open());
    let text = "[images]\nallow = ['debian', 'docker.io/library/*', 'r.example/a:1']\n";
    let reported = load(text, &[]).unwrap_err();
    for part in
        ["FILE", "images.allow = debian, docker.io", "repository pattern \"debian\"", "pattern \"r.example/a:1\""]
    {
        assert!(reported.contains(part), "{reported}");
    }
    // The default file belongs to the host-wide daemon.
    let args = Args::try_parse_from(["executord", "--ephemeral"]).unwrap();
    let (_, file, _) = Document::read(Path::new("/etc/executor/executor.toml"), closed).unwrap();
    let private = resolve(&args, file, None, String::new()).unwrap();
    assert!(private.policy.images.is_open() && private.images.policy.is_open() && private.policy.images.is_set());
}

#[test]
fn signing_keys_are_read_and_faults_reported() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("a.pub");
    let pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEABmF3Dv6b/wHNFkq7s2akP6v17oQ9cWvV7OOHKcV/fek=\n-----END PUBLIC KEY-----\n";
    std::fs::write(&key, pem).unwrap();
    let entry = |images: &str, keys: &str| format!("[[images.signed]]\nimages = [{images}]\nkeys = [{keys}]\n");
    let good = format!("{}identity = 'repository'\n", entry("'r.example/**'", &format!("{key:?}")));
    let rules = load(&good, &[]).unwrap().images.signatures.0;
    assert!(rules.len() == 1 && rules[0].keys.len() == 1 && rules[0].repository);
    let bad = [entry("'debian'", "'/nonexistent/key'"), entry("", "'b.pub'"), entry("'*'", "'/dev/null'")].concat();
    let reported = load(&bad, &[]).unwrap_err();
    for part in [
        "images.signed",
        "entry 1",
        "debian",
        "/nonexistent/key",
        "entry 2",
        "b.pub must be an absolute path",
        "entry 3",
        "no public key",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
}

#[test]
fn the_packages_configuration_is_closed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in ["packaging/debian/executor.toml", "docs/executor.toml"] {
        let policy = load(&std::fs::read_to_string(root.join(name)).unwrap(), &[]).unwrap().policy;
        assert!(!policy.allow_host_rootfs && !policy.rootfs_dirs.is_empty(), "{name}");
        let images = &policy.images;
        assert!(images.is_set() && images.patterns().is_empty() && images.may_import().is_err(), "{name}");
        for reference in ["docker://debian", "oci:/srv/a", "oci-archive:/srv/a", "docker-archive:/srv/a"] {
            assert!(images.permits(&reference.parse().unwrap()).is_err(), "{name}: {reference}");
        }
    }
}

#[test]
fn flags_win_over_the_file() {
    let text = "run_dir = '/a'\nlisten = 'unix:///b'\nkeep_root = true\nlog_format = 'json'\n[policy]\nfiles_bytes_max = 5000000\n";
    let config = load(text, &[]).unwrap();
    assert_eq!((&*config.listen, config.keep_root), (Path::new("/b"), true));
    assert_eq!(config.bounds.message_bytes, 5_000_000 + (1 << 20));
    let flags = ["--run-dir", "/c", "--user", "x", "--log-format", "text", "--ephemeral"];
    let config = load(text, &flags).unwrap();
    assert_eq!(config.paths.run_dir, Path::new("/c"));
    assert_eq!((config.keep_root, config.user.as_deref()), (false, Some("x")));
    assert_eq!(config.log_format, LogFormat::Text);
    assert!(config.policy.allow_host_network, "a private daemon");
}

#[test]
fn sizes_have_units() {
    let text = "[policy]\ndefault_memory_bytes = '128M'\nfiles_bytes_max = '4MiB'\ndefault_disk_bytes = '1.5G'\noutputs_bytes_max = '1k'\n\
                [capacity]\nmemory_bytes = '64G'\ndisk_bytes = '1T'\n[server]\nmessage_bytes_max = '8M'\n\
                [images]\nbytes_budget = '10GiB'\nimage_bytes_max = '2G'\nbytes_least = '1K'\n[launcher]\nlog_bytes_max = '1M'\n";
    let config = load(text, &[]).unwrap();
    let policy = &config.policy;
    assert_eq!((policy.default_memory_bytes, policy.files_bytes_max), (128 << 20, 4 << 20));
    assert_eq!((policy.default_disk_bytes, policy.outputs_bytes_max), (3 << 29, 1024));
    assert_eq!((config.capacity.memory_bytes, config.capacity.disk_bytes), (64 << 30, 1 << 40));
    assert_eq!((config.bounds.message_bytes, config.images.bytes_budget), (8 << 20, 10 << 30));
    assert_eq!((config.images.image_bytes_max, config.images.bytes_least), (2 << 30, 1024));
}

#[test]
fn faults_name_file_key_and_value() {
    let cases: &[(&str, &[&str])] = &[
        ("[policy]\ndefault_memory_bytes = '5X'", &["FILE", "default_memory_bytes", "5X", "256M"]),
        ("run_dri = '/x'", &["FILE", "run_dri", "line 1"]),
        ("[policy]\nfiles_rot = 'x'", &["FILE", "files_rot", "line 2"]),
        ("[launcher]\nspeed = 1", &["FILE", "speed"]),
        ("run_dir = 'x'", &["FILE", "run_dir = x", "absolute"]),
        ("listen = 'tcp://[::]:80'", &["FILE", "listen = tcp://[::]:80", "unix:///"]),
        ("[capacity]\ncontainers = 0", &["FILE", "capacity.containers = 0", "at least 1"]),
        ("[capacity]\ncontainers = -1", &["FILE", "containers", "-1"]),
        ("[capacity]\nreserved_percent = 0", &["FILE", "capacity.reserved_percent = 0", "1 to 100"]),
        ("[capacity]\nreserved_percent = 101", &["FILE", "capacity.reserved_percent = 101", "1 to 100"]),
        ("[policy]\ndefault_memory_bytes = 5", &["FILE", "policy.default_memory_bytes = 5", "is allowed"]),
        ("[policy]\ndefault_grace_seconds = 700000", &["FILE", "policy.default_grace_seconds = 700000", "at most"]),
        (
            "[images]\ninsecure_registries = ['http://x/']",
            &["images.insecure_registries = http://x/", "must be a host"],
        ),
        (
            "[[images.mirrors]]\nregistry = 'hub'\nmirrors = []\n[[images.mirrors]]\nregistry = 'docker.io'\nmirrors = ['http://m']",
            &[
                "images.mirrors = hub, docker.io",
                "entry 1: registry",
                "0 mirrors; 1 to 16",
                "entry 2: mirror",
                "without a scheme",
            ],
        ),
        ("[images]\nno_proxy = ['a']", &["images.proxy", "no_proxy is set"]),
        ("[images]\nproxy = 'http://p'\nno_proxy = ['10.0.0.0/40']", &["images.no_proxy = 10.0.0.0/40", "network"]),
        ("[images]\nproxy = 'http://u:secret@p'", &["images.proxy = (not shown)", "proxy_credentials_file"]),
        ("[images]\nproxy = 'https://p'", &["images.proxy = https://p", "http://"]),
        ("[images]\ndocker_config = 'x'", &["FILE", "images.docker_config = x", "absolute"]),
        ("[images]\npatience_seconds = 0", &["FILE", "images.patience_seconds = 0", "1 to 3600"]),
        ("[policy]\ncapabilities_allowed = ['KILL']", &["policy.capabilities_allowed[0] = KILL", "CAP_KILL"]),
        ("[policy]\nuserns_pool_start = 1000", &["policy.userns_pool_start = 1000", "65536 or above"]),
        ("[policy]\ndefault_disk_bytes = 5", &["policy.default_disk_bytes = 5", "1048576 to"]),
        ("[launcher]\nwatchdog_seconds = 1", &["FILE", "launcher.watchdog_seconds = 1", "2 to 3600"]),
        ("[self_test]\ninterval_seconds = 86401", &["FILE", "self_test.interval_seconds = 86401", "0 to 86400"]),
        ("[self_test]\ntimeout_seconds = 0", &["FILE", "self_test.timeout_seconds = 0", "1 to 600"]),
        ("[quarantine]\nstop_seconds = 0", &["FILE", "quarantine.stop_seconds = 0", "1 to 3600"]),
        ("[warm_pool]\nsize = 65", &["FILE", "warm_pool.size = 65", "0 to 64"]),
        ("[launcher]\ncgroup_parent = '../x'", &["launcher.cgroup_parent", "../x", "must be a relative path"]),
        ("[server]\nmessage_bytes_max = 1", &["FILE", "server.message_bytes_max = 1", "65536 to"]),
    ];
    for (text, expected) in cases {
        let reported = load(text, &[]).unwrap_err();
        for part in *expected {
            assert!(reported.contains(part), "{text:?}: {reported}");
        }
    }
    let long = format!("unix:///{}", "x".repeat(120));
    assert!(load("", &["--listen", &long]).unwrap_err().contains("at most 107"));
    let missing = Args::try_parse_from(["executord", "--config", "/nonexistent/x.toml"]).unwrap();
    assert!(executor_core::errors::chain(&Config::load(&missing).unwrap_err()).contains("/nonexistent/x.toml"));
}

#[test]
fn volumes_are_listed() {
    let text = "[[volumes]]\nname = 'cache'\npath = '/srv/cache'\n[[volumes]]\nname = 'certs'\npath = '/srv/certs'\nread_only = true\n";
    let volumes = load(text, &[]).unwrap().policy.volumes;
    let listed: Vec<_> = volumes.iter().map(|one| (&*one.name, one.path.to_str().unwrap(), one.read_only)).collect();
    assert_eq!(listed, [("cache", "/srv/cache", false), ("certs", "/srv/certs", true)]);
    for (text, words) in [
        ("[[volumes]]\nname = 'a'\npath = 'x'\n", ["volumes[0] = a", "absolute path"]),
        (
            "state_dir = '/s'\n[[volumes]]\nname = 'a'\npath = '/s/images'\n",
            ["volumes[0] = a", "directory of the executor: /s"],
        ),
        ("[[volumes]]\nname = 'a'\npath = '/x'\nreadonly = true\n", ["readonly", "unknown field"]),
    ] {
        let reported = load(text, &[]).unwrap_err();
        assert!(words.iter().all(|word| reported.contains(word)), "{text}: {reported}");
    }
}

const TCP: &str = "address = '127.0.0.1:7443'\ncertificate = '/c'\nkey = '/k'\nclient_ca = '/a'\n";

#[test]
fn tcp_listener_has_files_and_callers() {
    assert!(load("", &[]).unwrap().tcp.is_none());
    let text = format!("[listen]\nunix = 'unix:///s'\n[listen.tcp]\n{TCP}[[callers]]\nou = 'a'\nmethods = ['read']\n");
    let config = load(&text, &[]).unwrap();
    assert_eq!(config.listen, Path::new("/s"));
    let tcp = config.tcp.unwrap();
    assert_eq!((tcp.address.to_string().as_str(), &*tcp.files.key), ("127.0.0.1:7443", Path::new("/k")));
    assert_eq!((tcp.limits.handshakes, tcp.limits.each, tcp.callers.0.len()), (512, 128, 1));
    assert_eq!(load("listen = 'unix:///t'", &[]).unwrap().listen, Path::new("/t"));
    let reported = load(&format!("[listen.tcp]\n{TCP}"), &[]).unwrap_err();
    assert!(reported.contains("callers = []: no client may call over TCP"), "{reported}");
    let reported = load("[[callers]]\nou = 'a'\nmethods = ['read']\n", &[]).unwrap_err();
    assert!(reported.contains("callers = 1 entries: callers need a TCP listener"), "{reported}");
    assert!(load("[listen]\nudp = 1", &[]).unwrap_err().contains("udp"));
}

#[test]
fn tcp_listener_reports_all_faults() {
    let text = "[listen.tcp]\naddress = 'localhost'\ncertificate = 'c'\nkey = '/k'\nhandshakes = 0\n\
                handshake_seconds = 301\nconnections_per_address = 100001\n\
                [[callers]]\nmethods = []\n[[callers]]\ncn = ''\nmethods = ['write', 'Stop']\n";
    let reported = load(text, &[]).unwrap_err();
    for part in [
        "listen.tcp.address = localhost: must be an IP address and a port",
        "listen.tcp.certificate = c: must be an absolute path",
        "listen.tcp.client_ca = (not set): is required",
        "listen.tcp.handshakes = 0: must be 1 to 10000",
        "listen.tcp.handshake_seconds = 301: must be 1 to 300",
        "listen.tcp.connections_per_address = 100001: must be 1 to 100000",
        "callers[0] = (no identity): must name at least one of uri, dns, cn and ou",
        "callers[0].methods = 0: must have 1 to 100 entries",
        "callers[1].cn = 0 bytes: must be 1 to 2048 bytes",
        "callers[1].methods = write: unknown method \"write\"; use `read`",
        "callers[1].methods = Stop",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert_eq!(reported.lines().count(), 11, "{reported}");
}

#[test]
fn metrics_are_served_on_this_machine_alone() {
    let of =
        |address: &str| load(&format!("[metrics]\nlisten = {address:?}\n"), &[]).map(|config| config.metrics.listen);
    assert_eq!(of("unix:/run/m.sock"), Ok(Some(MetricsAddress::Unix("/run/m.sock".into()))));
    assert_eq!(of("unix:///run/m.sock"), Ok(Some(MetricsAddress::Unix("/run/m.sock".into()))));
    for address in ["127.0.0.1:9464", "[::1]:9464"] {
        assert_eq!(of(address), Ok(Some(MetricsAddress::Loopback(address.parse().unwrap()))));
    }
    for (address, why) in [
        ("0.0.0.0:9464", "not a loopback address"),
        ("[::]:9464", "not a loopback address"),
        ("192.0.2.1:9464", "not a loopback address"),
        ("127.0.0.1:0", "the port"),
        ("127.0.0.1", "a loopback address with a port"),
        ("unix:m.sock", "unix:/ABSOLUTE/PATH"),
        ("localhost:9464", "a loopback address with a port"),
    ] {
        let reported = of(address).unwrap_err();
        assert!(
            reported.contains(&format!("FILE:2: metrics.listen = {address}: ")) && reported.contains(why),
            "{reported}"
        );
    }
    let labels = |list: &str| load(&format!("[metrics]\nlabels = {list}\n"), &[]).map(|config| config.metrics.labels);
    assert_eq!(labels("['team', 'app.kubernetes.io/name']").unwrap().len(), 2);
    let reported = labels("['a.b', 'a-b']").unwrap_err();
    assert!(reported.contains("\"a.b\" and \"a-b\" would both become label_a_b"), "{reported}");
    let reported = labels(&format!("{:?}", (0..11).map(|i| i.to_string()).collect::<Vec<_>>())).unwrap_err();
    assert!(reported.contains("11 entries; at most 10"), "{reported}");
}

#[test]
fn traces_endpoint_must_not_contain_password() {
    let of = |endpoint: &str, rest: &str| {
        let loaded = load(&format!("[traces]\nendpoint = {endpoint:?}\n{rest}"), &[]);
        loaded.map(|config| config.traces.map(|traces| traces.endpoint).unwrap_or_default())
    };
    assert_eq!(of("http://127.0.0.1:4317", ""), Ok("http://127.0.0.1:4317".into()));
    assert_eq!(of("http://h:4318/", "protocol = 'http'"), Ok("http://h:4318/v1/traces".into()));
    assert_eq!(of("http://h:4318/a/b", "protocol = 'http'"), Ok("http://h:4318/a/b".into()));
    for (endpoint, why) in [
        ("http://127.0.0.1:4317/v1/traces", "must not have a path"),
        ("https://h:4317", "TLS is not supported"),
        ("h:4317", "must be http://HOST:PORT"),
        ("http://h", "must be http://HOST:PORT"),
        ("", "must be http://HOST:PORT"),
        ("http://user:s3cret@h:4317", "must not contain a user name or password"),
    ] {
        let reported = of(endpoint, "").unwrap_err();
        assert!(
            reported.contains("FILE:2: traces.endpoint = ") && reported.contains(why) && !reported.contains("s3cret"),
            "{reported}"
        );
    }
}

#[test]
fn log_targets_are_validated_with_all_faults() {
    let none = load("[logs]\ntargets = [\"file\"]\n[logs.syslog]\nfacility = \"local7\"\n", &[]).unwrap().logs;
    assert!(none.syslog.is_none() && none.journald.is_none());
    let text = "[logs]\ntargets = [\"file\", \"journald\", \"syslog\"]\nlabels = [\"app\"]\n[logs.syslog]\n\
                address = \"tls://[::1]:6514\"\nca_file = \"/ca\"\ncertificate = \"/c\"\nkey = \"/k\"\n";
    let logs = load(text, &[]).unwrap().logs;
    assert_eq!(logs.journald.as_deref(), Some(Path::new("/run/systemd/journal/socket")));
    let own = Some(("/c".into(), "/k".into()));
    let address = SyslogAddress::Tls { host: "::1".into(), port: 6514, ca_file: "/ca".into(), own };
    let syslog = logs.syslog.unwrap();
    assert_eq!((syslog.address, syslog.facility), (address, 1));
    let unix = "[logs]\ntargets = [\"syslog\"]\n[logs.syslog]\naddress = \"unix:///dev/log\"\n";
    assert_eq!(load(unix, &[]).unwrap().logs.syslog.unwrap().address, SyslogAddress::Unix("/dev/log".into()));
    let wrong = "[logs]\ntargets = [\"syslog\"]\nlabels = [\"message\", \"container.id\", \"a.b\", \"a-b\", \"_x\"]\n\
                 message_bytes_max = 2047\nwaiting_bytes_max = \"2048G\"\n[logs.journald]\nsocket = \"x\"\n[logs.syslog]\n\
                 address = \"tcp://a:1\"\nkey = \"k\"\nfacility = \"local8\"\napp_name = \"a b\"\nstructured_data_id = \"x\"\n";
    let reported = load(wrong, &[]).unwrap_err();
    for part in [
        "the field MESSAGE,",
        "the field CONTAINER_ID,",
        "both become A_B",
        "must begin with a letter",
        "logs.message_bytes_max = 2047: must be 2048 to 1048576",
        "logs.waiting_bytes_max",
        "logs.journald.socket = x",
        "logs.syslog.address = tcp://a:1: must be tls://HOST:PORT",
        "logs.syslog.key = k: must be an absolute path",
        "certificate and key must be set together",
        "logs.syslog.facility = local8: must be one of kern, user",
        "logs.syslog.app_name",
        "logs.syslog.structured_data_id",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    let reported = |rest: &str| load(&format!("[logs]\ntargets = [\"syslog\"]\n{rest}"), &[]).unwrap_err();
    assert!(reported("").contains("logs.syslog.address = (not set)"));
    assert!(reported("[logs.syslog]\naddress = \"tls://a:1\"\n").contains("needs logs.syslog.ca_file"));
    let large = reported("message_bytes_max = \"1M\"\n[logs.syslog]\naddress = \"unix:///x\"\nca_file = \"/ca\"\n");
    assert!(large.contains("at most 65536") && large.contains("logs.syslog.ca_file = /ca: needs"), "{large}");
}

#[test]
fn vault_rule_for_system_mount_is_refused() {
    let load = |more: &str, path: &str| {
        let table =
            "[[secret_providers]]\nname = 'v'\ntype = 'vault'\naddress = 'https://vault.example'\ntoken_file = '/t'\n";
        load(&format!("{table}{more}\nallow = [{{ uid = 1, paths = ['{path}'] }}]\n"), &[])
    };
    for path in ["auth/", "sys", "team/identity/entity", "Cubbyhole/x", "%61uth/token"] {
        let error = load("", path).unwrap_err();
        assert!(
            error.contains(&format!("secret_providers.allow.paths = {path}"))
                && error.contains("system mount of the server"),
            "{error}"
        );
    }
    assert!(load("kv_mounts = ['auth']", "/").unwrap_err().contains("secret_providers.kv_mounts = auth"));
    assert!(load("namespace = 'team/sys'", "/").unwrap_err().contains("secret_providers.namespace = team/sys"));
    for path in ["/", "kv/auth/", "database/creds/app", "oauth/x"] {
        load("", path).unwrap();
    }
}

#[test]
fn kubernetes_provider_has_own_keys() {
    let load = |keys: &str| {
        let table = "[[secret_providers]]\nname = 'k'\ntype = 'kubernetes'\n";
        load(&format!("{table}{keys}"), &[]).map(drop)
    };
    let address = "address = 'https://10.0.0.1:6443'\n";
    let pair = "certificate_file = '/c'\nkey_file = '/k'\n";
    for keys in ["token_file = '/t'\nca_file = '/ca'\n", &format!("auth = 'cert'\n{pair}")] {
        load(&format!("{address}{keys}")).unwrap();
    }
    for (keys, key) in [
        ("token_file = '/t'\n".to_owned(), "address"),
        ("address = 'http://10.0.0.1'\ntoken_file = '/t'\n".to_owned(), "address"),
        (address.to_owned(), "token_file"),
        (format!("{address}token_file = '/t'\nkv_mounts = ['a']\n"), "kv_mounts"),
        (format!("{address}token_file = '/t'\nnamespace = 'a'\n"), "namespace"),
        (format!("{address}token_file = '/t'\n{pair}"), "certificate_file"),
        (format!("{address}auth = 'approle'\nrole_id_file = '/r'\n"), "auth"),
        (format!("{address}auth = 'cert'\n"), "certificate_file"),
    ] {
        let error = load(&keys).unwrap_err();
        assert!(error.contains(&format!("secret_providers.{key} = ")), "{key}: {error}");
    }
}
