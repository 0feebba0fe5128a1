//! Rules of references that change while containers run.

use executor_proto::v1::event::Kind;
use executor_proto::v1::secret_source::Target;
use integration::daemon::Setup;
use integration::request::{RequestBuilder as _, sleeper};

use crate::references::{ROOT, Shelf, content, events_until, from, wait_for_content};

/// If the rule of a requester was removed, the requester gets no new value, even if executord was not running when the
/// rule was removed. As a control, a reference that a rule still allows is followed.
#[test]
fn reference_is_not_followed_without_its_rule() {
    for restarted in [false, true] {
        let shelf = Shelf::new();
        let put = |value: &str| ["kept", "lost"].map(|name| shelf.put(name, format!("{name} {value}")));
        put("1");
        let mut daemon = Setup::default().config(&shelf.provider()).start();
        let request = sleeper("r").action(|run| {
            run.volume_mounted_files = vec![from("kept", "shelf", "kept", ""), from("lost", "shelf", "lost", "")];
        });
        let container = daemon.api.started(request);
        put("2");
        wait_for_content(&container, "lost", "lost 2");
        let narrow = shelf.provider().replace("paths = [\"/\"]", "paths = [\"kept\"]");
        if restarted {
            daemon.kill();
            daemon.setup().replace_config(&narrow);
            daemon.start_again();
        } else {
            daemon.setup().replace_config(&narrow);
        }
        events_until(&daemon, "r", Kind::SecretsStale);
        for value in ["3", "4"] {
            put(value);
            wait_for_content(&container, "kept", &format!("kept {value}"));
        }
        assert_eq!(content(&container, "lost"), "lost 2", "restarted: {restarted}");
        let sources = daemon.api.get("r").unwrap().secret_sources;
        let lost = sources.iter().find(|one| one.target == Some(Target::File(format!("{ROOT}/lost")))).unwrap();
        assert!(!lost.followed && lost.stale && lost.problem.contains("no rule of secret_providers.allow"), "{lost:?}");
        assert!(sources.iter().any(|one| one.followed && !one.stale), "{sources:?}");
    }
}
