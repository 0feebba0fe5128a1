//! Access of a member to the processes of other members, in a pod with a shared pid namespace.

use executor_proto::v1::{Capabilities, CreatePodRequest, RunRequest, UserNamespace};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh};
use integration::streams::{self, executed};

use super::{asked, create, delete, in_pod, script_output};

const PATH: &str = "/etc/cf-service-bindings/a";
/// Reads files of the victim's process that require the kernel's ptrace access check; `$1` is its pid in the pod.
const READ: &str = "cd /proc/$1 || exit; cat root/etc/cf-service-bindings/a; tr '\\0' '\\n' <environ; \
     readlink exe; ls fd; readlink ns/mnt; wc -c <mem";

/// Builds a request for a member with a secret file and a secret variable. The member prints its pid.
fn victim(pod: &str, id: &str, user: &str) -> RunRequest {
    in_pod(pod, sh("echo $$; exec sleep 100000").id(id).user(user).file(PATH, b"SECRET-FILE").env("KEY", "SECRET-ENV"))
}

fn pid_in_pod(daemon: &Daemon, id: &str) -> String {
    let lines = daemon.api.follow(id).until(|entry| !entry.data.is_empty());
    String::from_utf8(lines.last().unwrap().data.clone()).unwrap().trim().to_owned()
}

fn reader(pod: &str, victim: &str, user: &str) -> RunRequest {
    in_pod(pod, sh(&format!("set -- {victim}; {READ}")).user(user))
}

pub(super) fn exec(daemon: &Daemon, id: &str, script: &str) -> String {
    let done = executed(&daemon.api, streams::script(id, script)).unwrap();
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

#[test]
fn peer_with_shared_processes_reads_no_secret() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    create(&daemon, &CreatePodRequest { share_processes: true, ..asked("p") });
    for (round, user) in ["0:0", "1000:1000"].into_iter().enumerate() {
        let id = format!("victim{round}");
        let container = daemon.api.started(victim("p", &id, user));
        let warned = container.spec.unwrap().warnings;
        assert!(!warned.iter().any(|warning| warning.contains("Landlock")), "{warned:?}");
        let pid = pid_in_pod(&daemon, &id);
        for by in ["0:0", user] {
            let seen = script_output(&daemon, reader("p", &pid, by));
            assert!(!seen.contains("SECRET") && !seen.contains("mnt:["), "{by} of {user}: {seen}");
            assert!(seen.contains("Permission denied"), "the victim is visible to {by}: {seen}");
        }
        // As a control, a process of the same member can read all of these files, after the child has executed `sleep`.
        let own = format!("sleep 100000 & set -- $!; until grep -q KEY /proc/$1/environ; do :; done; {READ}");
        let own = script_output(
            &daemon,
            in_pod("p", sh(&own).user(user).file(PATH, b"OWN-FILE").env("KEY", "OWN-ENV").unmasked()),
        );
        assert!(own.contains("OWN-FILE") && own.contains("OWN-ENV") && own.contains("mnt:["), "{own}");
        // An executed process cannot read a process of another member either, and the other member cannot read the
        // executed process.
        let reads = daemon.api.started(in_pod("p", sh("exec sleep 100000").id("reads")));
        let seen = exec(&daemon, &reads.id, &format!("set -- {pid}; {READ}"));
        assert!(!seen.contains("SECRET") && seen.contains("Permission denied"), "{seen}");
        // Other members can still send signals and list processes.
        let reported =
            script_output(&daemon, in_pod("p", sh(&format!("tr '\\0' ' ' </proc/{pid}/cmdline; kill {pid}"))));
        assert!(reported.starts_with("sleep 100000"), "{reported}");
        daemon.api.wait(&id).unwrap();
        daemon.api.delete("reads", true).unwrap();
        daemon.api.delete(&id, true).unwrap();
    }
    delete(&daemon, "p", true).unwrap();
    daemon.wait_until_back_at(&before);
}

/// Members with shared processes are in a Landlock domain. Such a domain forbids moves between directories unless a
/// rule allows them.
#[test]
fn member_with_shared_processes_moves_files() {
    let daemon = Daemon::start();
    create(&daemon, &CreatePodRequest { share_processes: true, ..asked("p") });
    let moves = "mkdir /tmp/a /tmp/b && echo x >/tmp/a/f && ln /tmp/a/f /tmp/b/g && \
                 perl -e 'rename \"/tmp/a/f\", \"/tmp/b/f\" or die $!' && ls /tmp/b";
    assert_eq!(script_output(&daemon, in_pod("p", sh(moves))), "f\ng\n");
    delete(&daemon, "p", true).unwrap();
}

/// A privileged member with the host's ids is root of the host, and can mount. As a control, a member with only the
/// capability is in a Landlock domain, which forbids mounts.
#[test]
fn privileged_member_of_the_host_mounts() {
    let config = "[policy]\nallow_privileged = true\nallow_host_userns = true\ncapabilities_allowed = [\"ALL\"]\n\
                  allow_no_seccomp = true\n";
    let daemon = Setup::default().config(config).start();
    let user_namespace = UserNamespace::Host.into();
    create(&daemon, &CreatePodRequest { share_processes: true, user_namespace, ..asked("p") });
    let mounts = || in_pod("p", sh("mount -t tmpfs none /tmp && grep -c '^none /tmp tmpfs' /proc/mounts"));
    assert_eq!(script_output(&daemon, RunRequest { privileged: true, ..mounts() }), "1\n");
    let capabilities = Some(Capabilities { add: vec!["CAP_SYS_ADMIN".into()], drop: vec![] });
    let refused = script_output(&daemon, RunRequest { capabilities, seccomp_unconfined: true, ..mounts() });
    assert!(refused.contains("permission denied"), "{refused}");
    delete(&daemon, "p", true).unwrap();
}
