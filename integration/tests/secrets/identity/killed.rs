//! Processes are killed while certificates are renewed.

use std::time::{Duration, SystemTime};

use executor_proto::v1::Container;
use executor_residue::Needles;
use integration::api::pid;
use integration::daemon::{Daemon, has_ended, kill};
use integration::identity::{Pair, add_key, due};
use integration::request::sleeper;
use integration::residue::wait_until_settled;
use integration::wait;

use crate::identity::keys::everywhere;
use crate::identity::{Ca, signers, with_identity};

/// Number of containers per round. Their certificates are due at different times.
const CONTAINERS: usize = 6;

/// Checks that the certificate and the key have the same public key. Returns the key.
fn fits(container: &Container) -> String {
    let pair = Pair::read(pid(container)).unwrap();
    pair.check().unwrap_or_else(|why| panic!("{}: {why}", container.id));
    pair.key
}

/// Kills processes, then restarts those that a supervisor would restart.
fn kill_and_start(daemon: &mut Daemon, victims: &[i32]) {
    let dies = victims.contains(&daemon.pid());
    victims.iter().filter(|pid| **pid != daemon.pid()).for_each(|pid| kill(*pid, 9));
    if dies {
        daemon.kill();
    }
    wait::until("the victims have exited", || victims.iter().all(|pid| has_ended(*pid)).then_some(()));
    if dies {
        daemon.start_again();
    }
}

/// executord, the signer, or both with the launcher are killed when a certificate is due, each time a few milliseconds
/// later. Every container then has a matching certificate and key, its certificates are still renewed, and no key is
/// left.
#[test]
fn kill_during_renewal_leaves_matching_pairs() {
    let ca = Ca::new("cell CA");
    let mut daemon = ca.daemon();
    let mut needles = Needles::new().unwrap();
    let key_of = |needles: &mut Needles, container: &Container| {
        add_key(needles, &format!("a key of {}", container.id), &fits(container));
    };
    for round in 0..3_u64 {
        let start = |number| {
            let id = format!("r{round}-{number}");
            daemon.api.started(with_identity(sleeper(&id), Some(10)))
        };
        let containers: Vec<Container> = (0..CONTAINERS).map(start).collect();
        containers.iter().for_each(|container| key_of(&mut needles, container));
        assert!(
            everywhere(&daemon, &needles, &signers(&daemon)).found(),
            "control: the current keys are found in the shims"
        );
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
            fits(container);
            wait::until("the certificate is replaced", || {
                let identity = daemon.api.get(&container.id).unwrap().identity.unwrap();
                (identity.replaced > 0 && identity.problem.is_empty()).then_some(())
            });
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
