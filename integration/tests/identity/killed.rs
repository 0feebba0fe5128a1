//! Processes that are killed while certificates are replaced.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use executor_proto::v1::Container;
use executor_residue::Needles;
use integration::daemon::{Daemon, has_ended, kill};
use integration::request::sleeper;
use integration::residue::wait_until_settled;
use integration::wait;

use crate::keys::{add, everywhere};
use crate::{Ca, file, openssl, signers, with_identity};

/// Containers of a round, whose certificates are due at different times.
const CONTAINERS: usize = 6;

fn due(container: &Container) -> SystemTime {
    let at = container.identity.as_ref().unwrap().renew_at.unwrap();
    UNIX_EPOCH + Duration::new(at.seconds as u64, at.nanos as u32)
}

/// Checks that certificate and key have one public key. They are read one after the other, between two readings of the certificate
/// that are alike: so no new pair came meanwhile.
fn fits(container: &Container) {
    let path = |name: &str| file(container, name).display().to_string();
    let certified = || openssl(&["x509", "-in", &path("instance.crt"), "-noout", "-pubkey"]);
    let (certified, of_key) = wait::until("no new pair comes meanwhile", || {
        let before = certified();
        let of_key = openssl(&["pkey", "-in", &path("instance.key"), "-pubout"]);
        (before == certified()).then_some((before, of_key))
    });
    assert_eq!(certified, of_key, "{}", container.id);
}

/// Kills processes, and starts what a supervisor would start.
fn kill_and_start(daemon: &mut Daemon, victims: &[i32]) {
    let dies = victims.contains(&daemon.pid());
    victims.iter().filter(|pid| **pid != daemon.pid()).for_each(|pid| kill(*pid, 9));
    if dies {
        daemon.kill();
    }
    wait::until("they are dead", || victims.iter().all(|pid| has_ended(*pid)).then_some(()));
    if dies {
        daemon.start_again();
    }
}

/// executord, the process that signs, and both with the launcher are killed just when a certificate is due, a few milliseconds later
/// each time: every container has a pair that fits, gets the next one, and no key of any is left.
#[test]
fn a_kill_while_certificates_are_replaced_leaves_pairs_that_fit() {
    let ca = Ca::new("cell CA");
    let mut daemon = ca.daemon();
    let mut needles = Needles::new().unwrap();
    let key_of = |needles: &mut Needles, container: &Container| {
        let pem = fs::read_to_string(file(container, "instance.key")).unwrap();
        add(needles, &format!("a key of {}", container.id), &pem);
    };
    for round in 0..3_u64 {
        let start = |number| {
            let id = format!("r{round}-{number}");
            daemon.api.started(with_identity(sleeper(&id), Some(10)))
        };
        let containers: Vec<Container> = (0..CONTAINERS).map(start).collect();
        containers.iter().for_each(|container| key_of(&mut needles, container));
        assert!(everywhere(&daemon, &needles, &signers(&daemon)).found(), "the control: shims have keys in force");
        let mut times: Vec<SystemTime> = containers.iter().map(due).collect();
        times.sort();
        let moment = times[CONTAINERS / 2] + Duration::from_millis(6 * round);
        wait::until("a certificate is due", || (SystemTime::now() >= moment).then_some(()));
        let victims = match round % 3 {
            0 => vec![daemon.pid()],
            1 => signers(&daemon),
            _ => [signers(&daemon), vec![daemon.launcher().unwrap(), daemon.pid()]].concat(),
        };
        kill_and_start(&mut daemon, &victims);
        for container in &containers {
            fits(container);
            wait::until("it is replaced", || {
                let identity = daemon.api.get(&container.id).unwrap().identity.unwrap();
                (identity.replaced > 0 && identity.problem.is_empty()).then_some(())
            });
            fits(container);
            key_of(&mut needles, container);
        }
        for container in &containers {
            daemon.api.stop(&container.id, Some(0)).unwrap();
        }
        for container in &containers {
            wait_until_settled(&daemon, &container.id);
            daemon.api.delete(&container.id, false).unwrap();
        }
        let report = everywhere(&daemon, &needles, &signers(&daemon));
        assert!(report.hits.is_empty(), "round {round}: {report}");
    }
}
