//! Tests the records on disk (rules 5, 44, 45 and 47 of `docs/guides/cnab-rules.md`): the layout, the state after a
//! crash, and untrusted content.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use executor_cnab::claim::{Claim, ClaimResult, Status};
use executor_cnab::store::{Store, StoreError};
use serde_json::json;

use crate::common::*;

fn made(store: &Store, last: Option<&Claim>, name: &str, status: Status) -> Claim {
    let bundle = parse(THIN);
    let claim = claim(&bundle, name, &resolved(&bundle, name, json!({})), last);
    store.save_claim(&claim).unwrap();
    let pending = ClaimResult::new(&claim, None, Status::Pending, at(0)).unwrap();
    store.save_result(&pending).unwrap();
    store.save_result(&ClaimResult::new(&claim, Some(&pending), status, at(0)).unwrap()).unwrap();
    claim
}

fn tree(root: &Path, into: &mut Vec<(String, u32)>) {
    for entry in fs::read_dir(root).unwrap().flatten() {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        into.push((entry.path().display().to_string(), mode));
        if entry.path().is_dir() {
            tree(&entry.path(), into);
        }
    }
}

#[test]
fn rule_45_last_claim_and_result_use_porter_paths() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(home.path().join("cnab"));
    let first = made(&store, None, "install", Status::Failed);
    let second = made(&store, Some(&first), "upgrade", Status::Succeeded);
    let records = store.read("my app").unwrap();
    assert_eq!(records.iter().map(|record| &record.claim).collect::<Vec<_>>(), [&first, &second]);
    assert_eq!(records[0].results.len(), 2);
    let last = records[1].last().unwrap();
    assert_eq!(last.status, Status::Succeeded);
    store.save_output(&last.id, "height", b"12").unwrap();
    let root = store.root();
    for path in [
        "installations/my app".to_owned(),
        format!("claims/my app/{}.json", second.id),
        format!("results/{}/{}.json", second.id, last.id),
        format!("outputs/{0}/{0}-height", last.id),
    ] {
        assert!(root.join(&path).is_file(), "{path}");
    }
    let mut all = Vec::new();
    tree(root, &mut all);
    for (path, mode) in all {
        assert_eq!(mode, if Path::new(&path).is_dir() { 0o700 } else { 0o600 }, "{path}");
    }
    assert_eq!(store.output(&last.id, "height").unwrap().as_deref(), Some(&b"12"[..]));
    assert_eq!(store.output(&last.id, "nope").unwrap(), None);
    // If a record is unreadable, the installation can still be removed.
    fs::write(root.join("claims/my app").join(format!("{}.json", executor_cnab::id::after(None, at(9)).unwrap())), "{")
        .unwrap();
    let lock = store.lock("my app").unwrap().unwrap();
    store.remove(&lock).unwrap();
    assert!(matches!(store.remove(&lock), Err(StoreError::NoInstallation(_))));
    assert!(matches!(store.read("my app"), Err(StoreError::NoInstallation(_))));
    assert!(store.installations().unwrap().is_empty() && !root.join("outputs").join(&last.id).exists());
}

#[test]
fn rule_05_installation_allows_one_action_at_time() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(home.path());
    let long = "/".repeat(200); // too long for a file name when escaped, so the file name is a hash
    let names = ["a/b", "../../x", ".y", "größe 20€", "100%", "-", &*long];
    for name in names {
        let bundle = parse(THIN);
        let mut claim = claim(&bundle, "install", &resolved(&bundle, "install", json!({})), None);
        claim.installation = name.into();
        store.save_claim(&claim).unwrap();
        assert_eq!(store.read(name).unwrap()[0].claim, claim);
    }
    let mut sorted = names;
    sorted.sort_unstable();
    assert_eq!(store.installations().unwrap(), sorted);
    let lock = store.lock("a/b").unwrap().unwrap();
    assert!(store.lock("a/b").unwrap().is_none());
    assert!(store.lock("-").unwrap().is_some());
    drop(lock);
    assert!(store.lock("a/b").unwrap().is_some());
    assert!(matches!(store.lock("a\nb"), Err(StoreError::Name(_))));
}

/// If a kill leaves temporary files, outputs without a result or a claim without a result, the other records are
/// readable.
#[test]
fn rule_47_records_remain_readable_after_crash() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(home.path());
    let first = made(&store, None, "install", Status::Succeeded);
    let bundle = parse(THIN);
    let claim = claim(&bundle, "upgrade", &resolved(&bundle, "upgrade", json!({})), Some(&first));
    store.save_claim(&claim).unwrap();
    fs::write(home.path().join("claims/my app/.partial-00"), "{").unwrap();
    fs::create_dir_all(home.path().join("results").join(&claim.id)).unwrap();
    fs::write(home.path().join("results").join(&claim.id).join(".partial-01"), "{").unwrap();
    store.save_output(&executor_cnab::id::after(Some(&claim.id), at(0)).unwrap(), "x", b"y").unwrap();
    let records = store.read("my app").unwrap();
    assert_eq!((records.len(), records[1].last()), (2, None), "pending: no result is recorded");
    store.save_result(&ClaimResult::new(&claim, None, Status::Unknown, at(2)).unwrap()).unwrap();
    assert_eq!(store.read("my app").unwrap()[1].last().unwrap().status, Status::Unknown);
}

#[test]
fn invalid_store_contents_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(home.path());
    let claim = made(&store, None, "install", Status::Succeeded);
    let path = home.path().join("claims/my app").join(format!("{}.json", claim.id));
    for content in ["", "{", "[]", r#"{"id":"x"}"#] {
        fs::write(&path, content).unwrap();
        assert!(matches!(store.read("my app"), Err(StoreError::Broken { .. })), "{content}");
    }
    fs::remove_file(&path).unwrap();
    symlink("/etc/passwd", &path).unwrap();
    assert!(matches!(store.read("my app"), Err(StoreError::Io { .. })));
    fs::remove_file(&path).unwrap();
    fs::File::create(&path).unwrap().set_len((16 << 20) + 1).unwrap();
    assert!(matches!(store.read("my app"), Err(StoreError::TooLarge { .. })));
    for (result, name) in [("../../x", "y"), (claim.id.as_str(), "../y"), (&claim.id, "")] {
        assert!(store.save_output(result, name, b"").is_err(), "{result} {name}");
    }
}

/// If a record is unreadable or does not match its path, it is reported, and all other records are returned.
#[test]
fn unreadable_record_hides_no_others() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(home.path());
    let first = made(&store, None, "install", Status::Succeeded);
    let second = made(&store, Some(&first), "upgrade", Status::Succeeded);
    let claims = home.path().join("claims/my app");
    let text = fs::read_to_string(claims.join(format!("{}.json", second.id))).unwrap();
    let third = executor_cnab::id::after(Some(&second.revision), at(9)).unwrap();
    let here = claims.join(format!("{third}.json"));
    let misplaced = |text: &str, field: &str| {
        fs::write(&here, text).unwrap();
        let survey = store.survey("my app").unwrap();
        let [error] = &survey.unreadable[..] else { panic!("{:?}", survey.unreadable) };
        assert!(matches!(error, StoreError::Misplaced { field: reported, .. } if *reported == field), "{error}");
        assert_eq!(survey.records.len(), 2);
        assert!(store.read("my app").is_err());
    };
    misplaced(&text, "id");
    let moved = text.replace(&second.id, &third);
    misplaced(&moved.replace("\"my app\"", "\"other\""), "installation");
    fs::remove_file(&here).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&here).status().unwrap().success());
    assert!(matches!(&store.survey("my app").unwrap().unreadable[..], [StoreError::Io { .. }]));
    fs::write(claims.join("x"), "").unwrap();
    fs::remove_file(&here).unwrap();
    let results = home.path().join("results").join(&second.id);
    let result = fs::read_dir(&results).unwrap().next().unwrap().unwrap().path();
    fs::write(&result, "{").unwrap();
    let survey = store.survey("my app").unwrap();
    assert_eq!((survey.records.len(), survey.records[1].results.len(), survey.unreadable.len()), (2, 1, 1));
    fs::rename(&result, results.join(format!("{third}.json"))).unwrap();
    fs::copy(results.join(format!("{}.json", survey.records[1].results[0].id)), results.join(format!("{third}.json")))
        .unwrap();
    assert!(matches!(&store.survey("my app").unwrap().unreadable[..], [StoreError::Misplaced { field: "id", .. }]));
}

#[test]
fn bundles_are_kept_by_their_digest() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::new(home.path());
    let digest = executor_cnab::digest::sha256(THIN.as_bytes());
    store.save_bundle(&digest, THIN.as_bytes()).unwrap();
    assert_eq!(store.bundle(&digest).unwrap().as_deref(), Some(THIN.as_bytes()));
    fs::write(home.path().join("bundles").join(format!("{}.json", digest.replace(':', "-"))), "other").unwrap();
    assert_eq!(store.bundle(&digest).unwrap(), None, "the content does not match its digest");
    assert_eq!(store.bundle("sha256:../../x").unwrap(), None);
}
