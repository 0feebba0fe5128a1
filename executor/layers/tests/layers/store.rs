//! Tests that the store contains only complete layers, regardless of other processes.

use std::fs;

use executor_layers::{DiffId, Store, UnpackError};

use crate::harness::{Layer, Sandbox, diff_id};

#[test]
fn concurrent_unpacks_make_one_layer() {
    let sandbox = Sandbox::new();
    let archive = (0..200).fold(Layer::new(), |layer, index| layer.file(&format!("f{index}"), "x")).bytes();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| sandbox.unpack(&[], &archive))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap(), diff_id(&archive));
        }
    });
    assert_eq!(sandbox.merged(&[diff_id(&archive)]).len(), 200);
    assert!(sandbox.store.left_over().unwrap().is_empty());
    assert_eq!(fs::read_dir(sandbox.path().join("layers/sha256")).unwrap().count(), 1);
}

#[test]
fn removed_layer_space_is_freed_later() {
    let sandbox = Sandbox::new();
    let archive = Layer::new().dir("d/", 0o755).file("d/f", "x").bytes();
    let layer = sandbox.unpack(&[], &archive).unwrap();
    let taken = sandbox.store.take_out(&layer).unwrap();
    assert!(!sandbox.store.has(&layer, &[]) && taken.len() == 1);
    assert!(matches!(sandbox.store.open(&[layer]), Err(UnpackError::Parent(missing)) if missing == layer));
    // Another store on the same directory, as after a crash, finds the directories to clear.
    let again = Store::create(&sandbox.path().join("layers")).unwrap();
    assert_eq!(again.left_over().unwrap(), taken);
    sandbox.unpack(&[], &archive).unwrap();
    again.clear(&taken).unwrap();
    assert!(again.left_over().unwrap().is_empty() && again.has(&layer, &[]));
    assert!(again.take_out(&DiffId::from_bytes([7; 32])).unwrap().is_empty());
}

#[test]
fn layer_requires_its_parent_layers() {
    let sandbox = Sandbox::new();
    let missing = DiffId::from_bytes([7; 32]);
    let error = sandbox.unpack(&[missing], &Layer::new().file("f", "x").bytes()).unwrap_err();
    assert!(matches!(error, UnpackError::Parent(layer) if layer == missing));
    assert!(sandbox.store.left_over().unwrap().is_empty());
}

/// Only root can access the directories of the store, regardless of the content of layers.
#[test]
fn store_directories_are_private_to_root() {
    use std::os::unix::fs::MetadataExt;
    let sandbox = Sandbox::new();
    sandbox.unpack(&[], &Layer::new().dir(".", 0o777).file("f", "x").bytes()).unwrap();
    for dir in ["layers", "layers/sha256", "layers/ingest", "layers/view"] {
        let meta = fs::metadata(sandbox.path().join(dir)).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o700, 0), "{dir}");
    }
}
