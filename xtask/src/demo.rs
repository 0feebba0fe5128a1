//! `cargo xtask demo`: a container with a secret file, and the proof that nothing of the secret is left.
//!
//! In go a daemon of the demo's own (in a temporary directory, as root, gone at the end) and a secret made
//! of random bytes. Out come three things to look at: what the process saw, what the executor says about
//! it, and a list of claims, each checked from outside and ticked. One claim that fails makes the demo fail.
//!
//! Every "is not there" comes with a control: the same search, a moment before, in a place where the
//! secret must be. A search that cannot find proves nothing.

mod container;
mod daemon;
mod host;
mod residue;
mod screen;
mod secret;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use self::container::{Container, GENERATIONS, ID, OWNER};
use self::daemon::Daemon;
use self::host::{cgroups, mounts};
use self::screen::Screen;
use self::secret::Secret;
use crate::dist;
use crate::workspace::{Workspace, is_root};

/// By then the memory of our processes must be free of an ended container's secrets.
const SETTLED: Duration = Duration::from_secs(1);

/// Nothing to choose.
#[derive(clap::Args)]
pub(crate) struct Options {}

/// Builds, runs, checks; fails when a claim does.
pub(crate) fn run(workspace: &Workspace, _: &Options) -> anyhow::Result<ExitCode> {
    ensure!(is_root(), "containers need namespaces, mounts and cgroups: run the demo as root (sudo)");
    dist::build(workspace)?;
    let mut screen = Screen::new();
    screen.title("A secret file in a container, and what is left of it");

    let secret = Secret::random()?;
    let daemon = Daemon::start(workspace)?;
    let command = "agent-cli run --user 1000:1000 --file /etc/cf-service-bindings/db/password=@- -- sh -c ...";
    screen.heading("A daemon of its own runs this");
    screen.quote(&[command.to_owned(), format!("with {secret} on standard input")]);

    let running = Container::run(&daemon, &secret)?;
    what_it_saw(&mut screen, &running, &secret)?;
    let cgroup = while_it_runs(&mut screen, &daemon, &running, &secret)?;
    let ended = running.stop()?;
    let at = Instant::now();
    the_result(&mut screen, &ended);
    std::thread::sleep(SETTLED.saturating_sub(at.elapsed()));
    after_its_end(&mut screen, &daemon, &secret)?;
    daemon.agent(&["rm", ID])?;
    an_audit(&mut screen, &daemon)?;
    after_the_daemon(&mut screen, daemon, &secret, &cgroup)?;
    Ok(screen.verdict())
}

fn what_it_saw(screen: &mut Screen, container: &Container, secret: &Secret) -> anyhow::Result<()> {
    screen.heading("What the process saw");
    screen.facts(container.facts());
    let fact = |name: &str| container.fact(name);
    let mount: Vec<_> = fact("mount").split(' ').collect();
    let has = |options: Option<&&str>, wanted: &[&str]| {
        options.is_some_and(|options| wanted.iter().all(|one| options.split(',').any(|option| option == *one)))
    };
    screen.claim("it read the secret that was sent", fact("sha256") == secret.sha256()?);
    screen.claim("what it prints of the secret is masked", fact("printed") == "[REDACTED:db/password]");
    screen.claim("the file is 0600 and belongs to its user", fact("mode and owner") == format!("600 {OWNER}"));
    screen.claim("its directory is 0700 and belongs to its user", fact("directory") == format!("700 {OWNER}"));
    screen.claim("the mount is ro,nosuid,nodev,noexec", has(mount.get(5), &["ro", "nosuid", "nodev", "noexec"]));
    let filesystem = mount.iter().position(|word| *word == "-").map_or(&[][..], |at| &mount[at + 1..]);
    let noswap = filesystem.first() == Some(&"ramfs") || has(filesystem.get(2), &["noswap"]);
    screen.claim("no page of it can reach a swap device (tmpfs noswap, or ramfs)", noswap);
    screen.claim("writing to it is refused", fact("write").contains("Read-only"));
    screen.claim("a seccomp filter is in force, and no_new_privs", fact("seccomp, no_new_privs") == "2 1");
    screen.claim("it sees no network interface but lo", fact("network") == "lo");
    Ok(())
}

fn while_it_runs(
    screen: &mut Screen,
    daemon: &Daemon,
    container: &Container,
    secret: &Secret,
) -> anyhow::Result<String> {
    screen.heading("While it runs, seen from the host");
    let ours = daemon.processes()?;
    let init = container.pid(&ours)?;
    screen.quote(&ours.iter().map(ToString::to_string).collect::<Vec<_>>());
    // The file's path leads there by a link, and the search follows none.
    let file = residue::files(&[format!("/proc/{init}/root{GENERATIONS}").into()], secret)?;
    screen.control("the search finds it in the container's tmpfs, through /proc", file.found());
    let memory = residue::processes(&[init], secret)?;
    screen.control("the search finds it in the memory of the process that holds it", memory.found());
    screen.control("the container has a cgroup", !cgroups(ID)?.is_empty());
    let daemons_cgroup = cgroup_above(&cgroups(ID)?)?;
    let files = residue::files(&[daemon.directory().to_owned()], secret)?;
    screen.claim(&format!("it is in no file of the daemon ({files})"), !files.found());
    let seen_inside = mounts(&init.to_string(), daemon.directory())?;
    screen.control("the tmpfs shows in the container's mount table", !seen_inside.is_empty());
    screen.claim("and not in the host's", mounts("self", daemon.directory())?.is_empty());
    Ok(daemons_cgroup)
}

/// The name of the cgroup that the daemon made for all its containers.
fn cgroup_above(cgroups: &[PathBuf]) -> anyhow::Result<String> {
    let above = cgroups.first().and_then(|path| path.parent()?.file_name()?.to_str());
    Ok(above.context("the container has no cgroup")?.to_owned())
}

fn the_result(screen: &mut Screen, ended: &container::Ended) {
    screen.heading("The result");
    screen.facts(ended.facts());
    screen.claim("the process ended by itself on SIGTERM, with exit status 0", ended.exit_status == Some(0));
    let wiped = ended.wipe.files == 1 && ended.wipe.bytes == secret::LENGTH && ended.wipe.verified;
    screen.claim("the receipt: one file, all its bytes, read back as zero", wiped);
}

fn after_its_end(screen: &mut Screen, daemon: &Daemon, secret: &Secret) -> anyhow::Result<()> {
    screen.heading("One second after its end");
    let ours = daemon.processes()?;
    let pids: Vec<_> = ours.iter().map(|process| process.pid).collect();
    let witness = residue::Witness::of(secret)?;
    let known = residue::processes(&[witness.pid()], secret)?;
    screen.control("the search finds it in the memory of a shell that was given it", known.found());
    let names: Vec<_> = ours.iter().map(|process| process.name.as_str()).collect();
    let memory = residue::processes(&pids, secret)?;
    screen.claim(&format!("it is not in the memory of {} ({memory})", names.join(", ")), !memory.found());
    let files = residue::files(&[daemon.directory().to_owned()], secret)?;
    screen.claim(&format!("it is in no file: runtime, state, logs ({files})"), !files.found());
    screen.claim("no process of the container is left", !ours.iter().any(|process| process.contained));
    screen.claim("no cgroup of it is left", cgroups(ID)?.is_empty());
    screen.claim("no mount of it is left", mounts("self", daemon.directory())?.is_empty());
    Ok(())
}

/// The same for every kind of secret input, as an operator does it.
fn an_audit(screen: &mut Screen, daemon: &Daemon) -> anyhow::Result<()> {
    screen.heading("agent-cli audit: files, rotated files, variables, arguments, the runtime token");
    let told: serde_json::Value = serde_json::from_str(&daemon.agent(&["audit", "--json"])?)?;
    let searched = &told["searched"];
    let what = format!("{} processes and {} files searched", searched["processes"], searched["files"]);
    screen.claim(&format!("nothing is left of any of them ({what})"), told["clean"] == true);
    Ok(())
}

fn after_the_daemon(screen: &mut Screen, daemon: Daemon, secret: &Secret, cgroup: &str) -> anyhow::Result<()> {
    screen.heading("After the daemon's end");
    let (left, processes) = daemon.stop()?;
    screen.claim("no process of it is left", processes.is_empty());
    screen.claim("no cgroup of it is left", cgroups(cgroup)?.is_empty());
    let entries =
        std::fs::read_dir(left.path())?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    screen.claim("its run and state directories are gone", entries == [daemon::LOG]);
    let log = residue::files(&[left.path().to_owned()], secret)?;
    screen.claim(&format!("what it logged does not hold it ({log})"), !log.found());
    Ok(())
}
