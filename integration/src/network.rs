//! A simulated host for the networks of one test: a network namespace in which executord, its launcher and the CNI
//! plugins run. A test's bridges, rules and routes are then separate from the machine's.
//!
//! A second namespace is the outside world. A veth pair connects it with the first namespace. A container reaches the
//! outside world only through the first namespace. Dropping a [`Network`] removes both namespaces, with all leftovers
//! of plugins.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::{Daemon, Setup};
use crate::wait;

/// Address of the outside world.
pub const BEYOND: &str = "192.0.2.2";
/// Port of the server in the outside world.
pub const BEYOND_PORT: u16 = 9000;
/// Response of the server in the outside world.
pub const BEYOND_SAYS: &str = "from-beyond";
/// Address of the host on the link to the outside world.
pub const HOST: &str = "192.0.2.1";
/// Address of the host on the bridge of the networks.
pub const GATEWAY: &str = "10.123.0.1";
/// IPv6 address of the outside world.
pub const BEYOND_V6: &str = "2001:db8::2";
/// IPv6 address of the host on the link to the outside world.
pub const HOST_V6: &str = "2001:db8::1";
/// IPv6 address of the host on the bridge.
pub const GATEWAY_V6: &str = "fd00:123::1";
const BRIDGE: &str = "cni-test0";
/// Debian's directory of CNI plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// Two network namespaces, and directories for plugins.
pub struct Network {
    name: String,
    dir: TempDir,
    /// Server in the outside world.
    listener: Child,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Network {
    /// Creates both namespaces.
    ///
    /// # Panics
    /// Panics if iproute2, busybox or a required kernel feature is missing.
    pub fn new() -> Self {
        let name = format!("ex{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let beyond = format!("{name}b");
        let dir = tempfile::tempdir().expect("a directory");
        for sub in ["net.d", "bin", "ipam"] {
            fs::create_dir(dir.path().join(sub)).expect("mkdir");
        }
        for name in [&name, &beyond] {
            ip(&["netns", "add", name]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
        }
        let cable = ["link", "add", "out0", "type", "veth", "peer", "name", "in0", "netns", beyond.as_str()];
        ip(&[&["-n", name.as_str()], &cable[..]].concat());
        for (space, link, address) in [(&name, "out0", HOST), (&beyond, "in0", BEYOND)] {
            ip(&["-n", space, "address", "add", &format!("{address}/24"), "dev", link]);
            ip(&["-n", space, "link", "set", link, "up"]);
        }
        ip(&["-n", &beyond, "route", "add", "default", "via", HOST]);
        let say = ["busybox", "nc", "-ll", "-p", &BEYOND_PORT.to_string(), "-e", "/bin/echo", BEYOND_SAYS];
        let mut listener = inside(&beyond, &say);
        listener.stdin(Stdio::null());
        let listener = listener.spawn().expect("busybox-static is installed");
        let made = Self { name, dir, listener };
        wait::until("the server outside of the network responds", || {
            made.on_host(&["busybox", "nc", "-w", "1", BEYOND, &BEYOND_PORT.to_string()])
                .contains(BEYOND_SAYS)
                .then_some(())
        });
        made
    }

    /// Configures a bridge network with published ports and access to the outside world. `more` are further plugins.
    pub fn configure(&self, file: &str, name: &str, more: &[Value]) {
        let ipam = self.addresses(&[("10.123.0.0/24", "0.0.0.0/0")]);
        let bridge = json!({
            "type": "bridge", "bridge": BRIDGE, "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": ipam,
            "dns": {"nameservers": [GATEWAY], "search": ["test.example"]},
        });
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let plugins: Vec<Value> = [bridge, portmap].into_iter().chain(more.iter().cloned()).collect();
        self.write_list(file, name, &plugins);
    }

    /// Creates both namespaces with IPv4 and IPv6 addresses, and enables packet forwarding on this host. Built-in
    /// networks need packet forwarding.
    pub fn forwarding() -> Self {
        let network = Self::new();
        network.add_ipv6();
        network.enter(|| {
            for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                fs::write(Path::new("/proc/sys/net").join(setting), "1").expect("a setting of the namespace");
            }
        });
        network
    }

    /// Adds IPv6 addresses to the link to the outside world, and a default route from the outside world to this host.
    fn add_ipv6(&self) {
        let beyond = self.beyond();
        for (space, link, address) in [(&self.name, "out0", HOST_V6), (&beyond, "in0", BEYOND_V6)] {
            ip(&["-n", space, "address", "add", &format!("{address}/64"), "dev", link, "nodad"]);
        }
        ip(&["-n", &beyond, "route", "add", "default", "via", HOST_V6]);
    }

    /// Returns the name of the network namespace of the outside world.
    fn beyond(&self) -> String {
        format!("{}b", self.name)
    }

    /// Configures a bridge network with IPv4 and IPv6 addresses and access to the outside world. There is no
    /// masquerading: the outside world has a route back.
    pub fn configure_both_families(&self, file: &str, name: &str) {
        self.add_ipv6();
        let ipam = self.addresses(&[("10.123.0.0/24", "0.0.0.0/0"), ("fd00:123::/64", "::/0")]);
        let bridge = json!({"type": "bridge", "bridge": BRIDGE, "isGateway": true, "hairpinMode": true, "ipam": ipam});
        self.write_list(file, name, &[bridge]);
    }

    /// Returns the `ipam` section for a network with these subnets and route destinations.
    fn addresses(&self, networks: &[(&str, &str)]) -> Value {
        let ranges: Vec<Value> = networks.iter().map(|(subnet, _)| json!([{"subnet": subnet}])).collect();
        let routes: Vec<Value> = networks.iter().map(|(_, reached)| json!({"dst": reached})).collect();
        json!({"type": "host-local", "dataDir": self.dir.path().join("ipam"), "ranges": ranges, "routes": routes})
    }

    fn write_list(&self, file: &str, name: &str, plugins: &[Value]) {
        let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins});
        fs::write(self.dir.path().join("net.d").join(file), list.to_string()).expect("write");
    }

    /// Returns the bridge's link-local IPv6 address.
    pub fn bridge_link_local(&self) -> String {
        let reported = self.on_host(&["ip", "-6", "-o", "address", "show", "dev", BRIDGE, "scope", "link"]);
        let address = reported.split_whitespace().find_map(|word| word.strip_suffix("/64"));
        address.unwrap_or_else(|| panic!("the output contains no address: {reported}")).to_owned()
    }

    /// Removes the configuration file of a network.
    pub fn remove_config(&self, file: &str) {
        fs::remove_file(self.dir.path().join("net.d").join(file)).expect("the configuration exists");
    }

    /// Writes a plugin. The plugin logs the CNI command of each call and the presence of a network namespace, and then
    /// runs `script`.
    pub fn plugin(&self, name: &str, script: &str) {
        let path = self.dir.path().join("bin").join(name);
        let note = format!("echo \"$CNI_COMMAND {name} ${{CNI_NETNS:+netns}}\" >> {}", self.calls_file().display());
        fs::write(&path, format!("#!/bin/bash\n{note}\n{script}\n")).expect("write");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    fn calls_file(&self) -> PathBuf {
        self.dir.path().join("calls")
    }

    /// Returns the logged calls of the plugins that [`Self::plugin`] wrote.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.calls_file()).unwrap_or_default();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Returns the directory for the state of a test's plugins.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a daemon on this host. `policy` is added to the `[policy]` section of its configuration.
    pub fn daemon(&self, policy: &str) -> Daemon {
        self.setup(policy).start()
    }

    /// Returns the configuration of the daemon that [`Self::daemon`] starts.
    pub fn setup(&self, policy: &str) -> Setup {
        self.with_plugin_timeout(30, policy)
    }

    /// Returns the configuration of [`Self::setup`] with a plugin timeout of `seconds`.
    pub fn with_plugin_timeout(&self, seconds: u32, policy: &str) -> Setup {
        self.configured(policy, &format!("cni_plugin_seconds = {seconds}"))
    }

    /// Returns a configuration with these keys in its sections `[policy]` and `[launcher]`.
    pub fn configured(&self, policy: &str, launcher: &str) -> Setup {
        let config = format!("[policy]\n{}{policy}\n[launcher]\n{launcher}\n", self.policy());
        Setup::default().config(&config).network(&self.namespace())
    }

    /// Returns the keys of a daemon's `[policy]` for this host's networks and plugins.
    pub fn policy(&self) -> String {
        let dir = self.dir.path();
        format!("cni_conf_dir = {:?}\ncni_bin_dirs = [{:?}, {PLUGINS:?}]\n", dir.join("net.d"), dir.join("bin"))
    }

    /// Returns the path of this host's network namespace.
    pub fn namespace(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Returns the configuration of a daemon on this host that has no CNI network. `policy` is added to the section
    /// `[policy]`; `networks` are sections of built-in networks.
    pub fn without_cni(&self, policy: &str, networks: &str) -> Setup {
        Setup::default().config(&self.config_without_cni(policy, networks)).network(&self.namespace())
    }

    /// Returns the configuration of [`Self::without_cni`].
    pub fn config_without_cni(&self, policy: &str, networks: &str) -> String {
        format!("[policy]\n{}{policy}\n{networks}\n", self.policy())
    }

    /// Runs a command on this host and returns its output.
    pub fn on_host(&self, command: &[&str]) -> String {
        output_of(inside(&self.name, command))
    }

    /// Runs a command in the outside world and returns its output.
    pub fn on_beyond(&self, command: &[&str]) -> String {
        output_of(inside(&self.beyond(), command))
    }

    /// Starts a command in the outside world.
    pub fn start_on_beyond(&self, command: &[&str]) -> Child {
        inside(&self.beyond(), command).stdin(Stdio::null()).spawn().expect("ip")
    }

    pub fn start_on_host(&self, command: &[&str]) -> Child {
        inside(&self.name, command).stdin(Stdio::null()).spawn().expect("ip")
    }

    /// Runs a closure in this host's network namespace. Sockets that the closure creates stay in that namespace.
    pub fn enter<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        within(&self.name, what)
    }

    /// Runs a closure in the network namespace of the outside world.
    pub fn enter_beyond<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        within(&self.beyond(), what)
    }

    /// Lists objects that plugins created for containers and did not remove: rules, addresses, interfaces, and the
    /// launcher's records of them.
    pub fn leftovers(&self, daemon: &Setup) -> Vec<String> {
        self.leftovers_in(&daemon.run_dir(), &daemon.state_dir())
    }

    /// Lists the same objects as [`Self::leftovers`] for the node with these directories.
    pub fn leftovers_in(&self, run_dir: &Path, state_dir: &Path) -> Vec<String> {
        let mut left = Vec::new();
        for table in ["nat", "filter"] {
            // Each container's chain is named after a hash and has a comment with the container's id.
            let rules = self.on_host(&["iptables-save", "-t", table]);
            left.extend(
                rules.lines().filter(|rule| rule.contains(" id: ") || rule.contains("CNI-DN-")).map(str::to_owned),
            );
            let chains = rules.lines().filter(|rule| rule.starts_with(":CNI-")).filter(|chain| {
                // Chains that portmap and firewall create for themselves belong to no container.
                !["HOSTPORT", "FORWARD", "ADMIN"].iter().any(|own| chain.contains(own))
            });
            left.extend(chains.map(str::to_owned));
        }
        left.extend(self.veth_links());
        for network in files(self.dir.path().join("ipam")) {
            let addresses = files(network)
                .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("10.")));
            left.extend(addresses.map(|path| path.display().to_string()));
        }
        for dir in [state_dir.join("networks"), run_dir.join("netns")] {
            left.extend(files(dir).map(|path| path.display().to_string()));
        }
        left
    }

    /// Lists the veth links of containers. Ignores warnings about namespaces of other hosts.
    fn veth_links(&self) -> Vec<String> {
        let links = self.on_host(&["ip", "-o", "link", "show", "type", "veth"]);
        let is_link = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit()) && !line.contains("out0");
        links.lines().filter(is_link).map(str::to_owned).collect()
    }

    /// Lists leftover objects of containers on built-in networks: bridge ports, elements and chains of nf_tables,
    /// leases and records.
    pub fn bridge_leftovers(&self, daemon: &Setup) -> Vec<String> {
        self.bridge_objects(&daemon.run_dir(), &daemon.state_dir())
    }

    /// Lists the same objects as [`Self::bridge_leftovers`] for the node with these directories.
    pub fn bridge_objects(&self, run_dir: &Path, state_dir: &Path) -> Vec<String> {
        let mut left = self.veth_links();
        let tables = self.on_host(&["nft", "list", "ruleset"]);
        let of_containers = |line: &&str| line.contains("elements = ") || line.contains("hook ingress");
        left.extend(tables.lines().filter(of_containers).map(str::to_owned));
        for path in files(state_dir.join("networks")) {
            match path.extension().is_some_and(|ending| ending == "leases") {
                true => left.extend(files(path).map(|lease| lease.display().to_string())),
                false => left.push(path.display().to_string()),
            }
        }
        left.extend(files(run_dir.join("netns")).map(|path| path.display().to_string()));
        left
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.listener.kill();
        let _ = self.listener.wait();
        for name in [self.beyond(), self.name.clone()] {
            let _ = Command::new("ip").args(["netns", "delete", &name]).status();
        }
    }
}

fn within<T: Send>(name: &str, what: impl FnOnce() -> T + Send) -> T {
    let namespace = fs::File::open(Path::new("/run/netns").join(name)).expect("a namespace");
    // Only a new thread enters the namespace. The thread ends afterwards.
    let entered = move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).expect("the namespace can be entered");
        what()
    };
    std::thread::scope(|scope| scope.spawn(entered).join().expect("the closure panicked"))
}

/// Returns the paths of the entries of a directory, or none if the directory does not exist.
fn files(dir: PathBuf) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Runs a command and returns its output. If the command fails, standard error is appended.
fn output_of(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("ip");
    // A successful command may print warnings. `ip` does this for names in /run/netns that other test programs have
    // mounted.
    let errors = if status.success() { Vec::new() } else { stderr };
    format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&errors))
}

fn inside(name: &str, command: &[&str]) -> Command {
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", name]).args(command);
    inside
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
